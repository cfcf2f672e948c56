"""A population's ledger: what was released about it, and what all of it tells together.

The entries are all that is kept; every number is computed from them, by composing the exact
losses of all releases (`loss.py`). So a ledger is public, frozen, and the same after a crash:
an entry spent twice is spent once, by its name.

    spend    a new ledger with one entry more, or `BudgetError`, and nothing is spent
    epsilon  what a party learns at most at a given delta: None if that has no bound
    state    all of it: each party, either relation, each entry and who saw what

A budget is of one party's view. What would meet a budget that is exceeded, is said with the
refusal: fewer releases, a rarer coin, a higher theta, more noise.
"""

from collections import Counter
from functools import lru_cache
from typing import Annotated

from pydantic import Field, model_validator

from protocol.privacy.entries import PARTIES, Entry, Mechanism, Party, View, loss_to
from protocol.privacy.loss import LEAST_DELTA, Relation, composed, epsilon_of
from protocol.privacy.remedies import remedies
from protocol.public import Public


class BudgetError(ValueError):
    """An entry would exceed the budget; `remedies` are entries that would not."""

    def __init__(self, message: str, remedies: tuple[Mechanism, ...]) -> None:
        super().__init__(message)
        self.remedies = remedies


class Budget(Public):
    """What `party` may learn of any one device, by all entries of a ledger."""

    epsilon: Annotated[float, Field(gt=0, le=100)]
    delta: Annotated[float, Field(ge=LEAST_DELTA, lt=1)]
    party: Party = "public"
    relation: Relation = "add-remove"


class Sight(Public):
    """What one party learns at most: epsilons are None where there is no bound."""

    party: Party
    epsilon: float | None
    epsilon_replace_one: float | None


class Line(Public):
    """One entry of a statement, with what it costs by itself if it were the only one."""

    entry: Entry
    views: dict[Party, View]
    epsilon: dict[Party, float | None]


class Statement(Public):
    """A ledger in numbers at one delta, with what is left of its budget if it has one."""

    delta: float
    sights: tuple[Sight, ...]
    lines: tuple[Line, ...]
    budget: Budget | None
    left: float | None


class Ledger(Public):
    """The entries of one population, in the order they were spent, and their budget if any."""

    entries: tuple[Entry, ...] = ()
    budget: Budget | None = None

    @model_validator(mode="after")
    def _names_differ(self) -> "Ledger":
        names = [entry.name for entry in self.entries]
        if len(set(names)) < len(names):
            raise ValueError("two entries of a ledger have one name")
        return self

    def epsilon(
        self, delta: float, party: Party = "public", relation: Relation = "add-remove"
    ) -> float | None:
        """Return what `party` learns at most with `delta`; None if there is no bound.

        Raises:
            ValueError: if `delta` is not within 1e-11 and 1.
        """
        return _epsilon(tuple(e.mechanism for e in self.entries), delta, party, relation)

    def spend(self, entry: Entry) -> "Ledger":
        """Return the ledger with `entry`; the same one if it has it already.

        Raises:
            ValueError: if another entry has its name.
            BudgetError: if the budget would be exceeded.
        """
        for known in self.entries:
            if known.name == entry.name:
                if known != entry:
                    raise ValueError(f"{entry.name} was spent on something else")
                return self
        more = Ledger(entries=(*self.entries, entry), budget=self.budget)
        if self.budget and not more._is_within(self.budget):
            raise self._refusal(entry, self.budget)
        return more

    def statement(self, delta: float) -> Statement:
        """Return everything about the ledger at `delta`.

        Raises:
            ValueError: if `delta` is not within 1e-11 and 1.
        """
        sights = [
            Sight(
                party=party,
                epsilon=self.epsilon(delta, party),
                epsilon_replace_one=self.epsilon(delta, party, "replace-one"),
            )
            for party in PARTIES
        ]
        lines = [
            Line(
                entry=entry,
                views=entry.views(),
                epsilon={p: _epsilon((entry.mechanism,), delta, p, "add-remove") for p in PARTIES},
            )
            for entry in self.entries
        ]
        return Statement(
            delta=delta,
            sights=tuple(sights),
            lines=tuple(lines),
            budget=self.budget,
            left=self._left(),
        )

    def _is_within(self, budget: Budget) -> bool:
        spent = self.epsilon(budget.delta, budget.party, budget.relation)
        return spent is not None and spent <= budget.epsilon

    def _left(self) -> float | None:
        """Return the budget's epsilon less what is spent: what one may hope for, no promise."""
        if self.budget is None:
            return None
        spent = self.epsilon(self.budget.delta, self.budget.party, self.budget.relation)
        return None if spent is None else max(0.0, self.budget.epsilon - spent)

    def _refusal(self, entry: Entry, budget: Budget) -> BudgetError:
        spent = tuple(known.mechanism for known in self.entries)

        def fits(mechanism: Mechanism) -> bool:
            cost = _epsilon((*spent, mechanism), budget.delta, budget.party, budget.relation)
            return cost is not None and cost <= budget.epsilon

        found = tuple(remedies(entry.mechanism, fits))
        cost = _epsilon((*spent, entry.mechanism), budget.delta, budget.party, budget.relation)
        would = "without bound" if cost is None else f"{cost:.4g}"
        meets = "; or ".join(_difference(entry.mechanism, each) for each in found)
        return BudgetError(
            f"{entry.name} would bring the {budget.party}'s epsilon to {would}, above "
            f"{budget.epsilon:g} at delta {budget.delta:g} ({budget.relation}): "
            + (f"{meets} would meet it" if found else "nothing of this kind would meet it"),
            found,
        )


@lru_cache(maxsize=1024)
def _epsilon(
    mechanisms: tuple[Mechanism, ...], delta: float, party: Party, relation: Relation
) -> float | None:
    """Return what `party` learns at most by all of `mechanisms`; None if unbounded."""
    losses = []
    for mechanism, times in Counter(mechanisms).items():
        loss = loss_to(mechanism, party, relation)
        if loss is None:
            return None
        losses.append((loss, times))
    found = epsilon_of(composed(losses), delta)
    return None if found == float("inf") else found


def _difference(asked: Mechanism, other: Mechanism) -> str:
    """Return the fields of `other` that are not as `asked`, in words."""
    before, after = asked.model_dump(), other.model_dump()
    return " and ".join(
        f"{name} {after[name]:.6g}" for name in after if after[name] != before[name]
    )
