"""A population's ledger: what was released about it, and the loss of all of it together.

A ledger only stores its entries. Every number is computed from them, by composing the exact
losses of all releases (`loss.py`). So a ledger is public, frozen, and the same after a crash:
an entry that is spent twice counts once, by its name. A budget is for one party's view.
"""

from collections import Counter
from functools import lru_cache
from typing import Annotated

from pydantic import Field, model_validator

from protocol.model import PublicModel
from protocol.privacy.events import PARTIES, DpEvent, LedgerEntry, Party, PartyView, loss_to
from protocol.privacy.loss import MIN_DELTA, NeighbourRelation, compose, epsilon_of
from protocol.privacy.suggestions import suggestions


class BudgetError(ValueError):
    """An entry would exceed the budget; `suggestions` are entries that would not."""

    def __init__(self, message: str, alternatives: tuple[DpEvent, ...]) -> None:
        super().__init__(message)
        self.suggestions = alternatives


class Budget(PublicModel):
    """Bound on what `party` may learn about any one device, by all entries of a ledger."""

    epsilon: Annotated[float, Field(gt=0, le=100)]
    delta: Annotated[float, Field(ge=MIN_DELTA, lt=1)]
    party: Party = "public"
    relation: NeighbourRelation = "add-remove"


class PartyEpsilon(PublicModel):
    """Bounds on what one party learns: an epsilon is None if it has no bound."""

    party: Party
    epsilon: float | None
    epsilon_replace_one: float | None


class StatementLine(PublicModel):
    """One entry of a statement, with its epsilon as if it were the only entry."""

    entry: LedgerEntry
    views: dict[Party, PartyView]
    epsilon: dict[Party, float | None]


class Statement(PublicModel):
    """The numbers of a ledger at one delta, with the rest of its budget if it has one."""

    delta: float
    parties: tuple[PartyEpsilon, ...]
    lines: tuple[StatementLine, ...]
    budget: Budget | None
    remaining_epsilon: float | None


class Ledger(PublicModel):
    """The entries of one population, in the order they were spent, and their budget if any."""

    entries: tuple[LedgerEntry, ...] = ()
    budget: Budget | None = None

    @model_validator(mode="after")
    def _names_differ(self) -> "Ledger":
        names = [entry.name for entry in self.entries]
        if len(set(names)) < len(names):
            raise ValueError("two entries of a ledger have the same name")
        return self

    def epsilon(
        self, delta: float, party: Party = "public", relation: NeighbourRelation = "add-remove"
    ) -> float | None:
        """Return the epsilon of `party` with `delta`, from 1e-11 to below 1; None if unbounded."""
        return _epsilon(tuple(e.event for e in self.entries), delta, party, relation)

    def spend(self, entry: LedgerEntry) -> "Ledger":
        """Return the ledger with `entry`; this ledger if it has the entry already.

        Raises ValueError if another entry has its name, BudgetError if the budget is exceeded.
        """
        for known in self.entries:
            if known.name == entry.name:
                if known != entry:
                    raise ValueError(f"{entry.name} is the name of another entry of the ledger")
                return self
        more = Ledger(entries=(*self.entries, entry), budget=self.budget)
        if self.budget and not more._is_within(self.budget):
            raise self._budget_error(entry, self.budget)
        return more

    def statement(self, delta: float) -> Statement:
        """Return all numbers of the ledger at `delta`, from 1e-11 to below 1."""
        parties = [
            PartyEpsilon(
                party=party,
                epsilon=self.epsilon(delta, party),
                epsilon_replace_one=self.epsilon(delta, party, "replace-one"),
            )
            for party in PARTIES
        ]
        lines = [
            StatementLine(
                entry=entry,
                views=entry.views(),
                epsilon={p: _epsilon((entry.event,), delta, p, "add-remove") for p in PARTIES},
            )
            for entry in self.entries
        ]
        return Statement(
            delta=delta,
            parties=tuple(parties),
            lines=tuple(lines),
            budget=self.budget,
            remaining_epsilon=self._remaining_epsilon(),
        )

    def _is_within(self, budget: Budget) -> bool:
        spent = self.epsilon(budget.delta, budget.party, budget.relation)
        return spent is not None and spent <= budget.epsilon

    def _remaining_epsilon(self) -> float | None:
        """Return the budget's epsilon minus the spent one: an indication, as losses do not add."""
        if self.budget is None:
            return None
        spent = self.epsilon(self.budget.delta, self.budget.party, self.budget.relation)
        return None if spent is None else max(0.0, self.budget.epsilon - spent)

    def _budget_error(self, entry: LedgerEntry, budget: Budget) -> BudgetError:
        spent = tuple(known.event for known in self.entries)

        def fits(event: DpEvent) -> bool:
            cost = _epsilon((*spent, event), budget.delta, budget.party, budget.relation)
            return cost is not None and cost <= budget.epsilon

        alternatives = tuple(suggestions(entry.event, fits))
        cost = _epsilon((*spent, entry.event), budget.delta, budget.party, budget.relation)
        total = "without bound" if cost is None else f"{cost:.4g}"
        changes = "; or ".join(_difference(entry.event, each) for each in alternatives)
        return BudgetError(
            f"{entry.name} would bring the {budget.party}'s epsilon to {total}, above "
            f"{budget.epsilon:g} at delta {budget.delta:g} ({budget.relation}): "
            + (
                f"{changes} would keep it"
                if alternatives
                else "no event of this kind would keep it"
            ),
            alternatives,
        )


@lru_cache(maxsize=1024)
def _epsilon(
    events: tuple[DpEvent, ...], delta: float, party: Party, relation: NeighbourRelation
) -> float | None:
    """Return the epsilon of `party` for all of `events`; None if it has no bound."""
    losses = []
    for event, times in Counter(events).items():
        loss = loss_to(event, party, relation)
        if loss is None:
            return None
        losses.append((loss, times))
    epsilon = epsilon_of(compose(losses), delta)
    return None if epsilon == float("inf") else epsilon


def _difference(refused: DpEvent, alternative: DpEvent) -> str:
    """Return the fields of `alternative` that differ from `refused`, in words."""
    before, after = refused.model_dump(), alternative.model_dump()
    return " and ".join(
        f"{name} {after[name]:.6g}" for name in after if after[name] != before[name]
    )
