"""A population's ledger: what was released about it, and the loss of all of it together.

A ledger only stores its entries. Every number is computed from them, by composing the exact
losses of all releases (`loss_distributions.py`). So a ledger is public, frozen, and the same after
a crash: an entry that is spent twice counts once, by its name. A budget is for one party's view.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Annotated

from pydantic import Field, model_validator

from protocol.numerics.binary_search import first_true
from protocol.privacy import sample_threshold, skellam
from protocol.privacy.events import (
    PARTIES,
    DpEvent,
    ExactSumEvent,
    LedgerEntry,
    LocalReportsEvent,
    Party,
    PartyView,
    SampleThresholdEvent,
    SkellamNoiseEvent,
    loss_to,
)
from protocol.privacy.loss_distributions import MIN_DELTA, NeighbourRelation, compose, epsilon_of
from protocol.privacy.noise_loss import CountNoise, noise_epsilon
from protocol.public_model import PublicModel, Rows
from secagg.errors import PortableError

_BISECTION_STEPS = 14  # of a suggested real parameter, to a part in 10^4
_MIN_PROBABILITY = 1e-6
_MIN_EPSILON = 1e-3


class BudgetError(PortableError, ValueError):
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
    parties: Rows[PartyEpsilon]
    lines: Rows[StatementLine]
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

        alternatives = tuple(_suggestions(entry.event, fits))
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
    if relation == "add-remove" and all(isinstance(each, SkellamNoiseEvent) for each in events):
        counts = Counter[CountNoise]()
        for event in events:
            assert isinstance(event, SkellamNoiseEvent)
            counts += event.counts_for(party)
        return noise_epsilon(counts, delta)  # the number of devices
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


def _suggestions(event: DpEvent, fits: Callable[[DpEvent], bool]) -> Iterator[DpEvent]:
    """Yield events that fit and differ from `event` in one parameter, by as little as possible.

    More of any change never reveals more, so bisection finds the smallest.
    """
    yield from _fewer_releases(event, fits)
    match event:
        case SampleThresholdEvent():
            yield from _nearest_fitting(event, "probability", _MIN_PROBABILITY, fits)
            yield from _higher_threshold(event, fits)
        case SkellamNoiseEvent():
            yield from _nearest_fitting(event, "variance", skellam.MAX_VARIANCE, fits)
        case LocalReportsEvent():
            yield from _nearest_fitting(event, "epsilon", _MIN_EPSILON, fits)
        case ExactSumEvent():
            return


def _fewer_releases(event: DpEvent, fits: Callable[[DpEvent], bool]) -> Iterator[DpEvent]:
    def releases(count: int) -> DpEvent:
        return event.model_copy(update={"releases": count})

    count = first_true(lambda n: not fits(releases(n)), 1, event.releases) - 1
    if count:
        yield releases(count)


def _higher_threshold(
    event: SampleThresholdEvent, fits: Callable[[DpEvent], bool]
) -> Iterator[DpEvent]:
    def threshold(theta: int) -> DpEvent:
        return event.model_copy(update={"threshold": theta})

    low, high = event.threshold, 2 * event.threshold
    # A cell of q (k + 1) reveals -ln(1 - p) for any theta, so more than 16 times is useless.
    highest = min(16 * event.threshold, sample_threshold.MAX_THRESHOLD)
    while high < highest and not fits(threshold(high)):
        low, high = high, 2 * high
    high = min(high, highest)
    if high <= low or not fits(threshold(high)):
        return
    yield threshold(first_true(lambda theta: fits(threshold(theta)), low + 1, high))


def _nearest_fitting(
    event: DpEvent, parameter: str, limit: float, fits: Callable[[DpEvent], bool]
) -> Iterator[DpEvent]:
    """Yield the event that fits with the nearest value of `parameter`, on the way to `limit`."""

    def with_value(value: float) -> DpEvent:
        return event.model_copy(update={parameter: value})

    value = getattr(event, parameter)
    # Doublings first, because distant values are slow to compute and rarely needed.
    step = 2.0 if limit > value else 0.5
    low, high = value, value * step
    while not fits(with_value(high)):
        low, high = high, high * step
        if (high > limit) == (limit > value):
            return
    for _ in range(_BISECTION_STEPS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(with_value(middle)) else (middle, high)
    yield with_value(high)
