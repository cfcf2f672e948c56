"""Result of a simulation, a JSON document and tables, and what several simulations share.

The shared parts are the table of the first heavy hitters, the privacy loss in each party's view,
terms, and the loop over rounds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rich.console import Group

from blindtally.console.progress import progress_steps
from blindtally.console.tables import Printable, result_table
from blindtally.simulate.accuracy import FoundItem
from protocol.mechanism import SumMechanism
from protocol.privacy.events import PARTIES, DpEvent, LedgerEntry
from protocol.privacy.ledger import Ledger
from protocol.study import P, Terms
from protocol.study_state import EMPTY_STATE, StudyState
from secagg.ring import Vector

MAX_LISTED_ITEMS = 1000  # heavy hitters in a JSON document of reports
_SEAT_SDS, _EXTRA_SEATS = 10, 16  # seats above the mean of those that join
_MAX_SHOWN_ITEMS = 20  # heavy hitters in a table


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A `document` to write, `tables` to print, and how far a study came that Ctrl-C stopped."""

    document: dict[str, Any]
    tables: Sequence[Printable]
    stopped_after: str | None = None


def heavy_hitter_table(hitters: Sequence[FoundItem]) -> Group:
    """Return the first found items as a table, each item as Python writes it."""
    rows = [
        (
            repr(hitter.item),
            f"{hitter.estimate:,.0f}",
            f"{hitter.standard_error:,.0f}",
            f"{hitter.true_count:,}",
        )
        for hitter in hitters[:_MAX_SHOWN_ITEMS]
    ]
    return result_table(["item"], ["estimate", "± s.e.", "true"], rows, "Heavy hitters")


def shown_share(hitters: Sequence[FoundItem]) -> str:
    """Return the number of found items that the table shows."""
    hidden = len(hitters) - _MAX_SHOWN_ITEMS
    return f"{_MAX_SHOWN_ITEMS} shown, {hidden:,} more found" if hidden > 0 else "all shown"


def epsilon_by_party(event: DpEvent, delta: float) -> dict[str, float | None]:
    """Return the epsilon of one study in each party's view; None where there is no bound."""
    ledger = ledger_of(event)
    return {party: ledger.epsilon(delta, party) for party in PARTIES}


def ledger_of(event: DpEvent) -> Ledger:
    """Return the ledger of one study."""
    return Ledger(entries=(LedgerEntry(name="simulation", event=event),))


def privacy_facts(epsilons: Mapping[str, float | None], delta: float) -> dict[str, str]:
    """Return the lines of a table of facts that show the epsilon of each party's view."""
    return {
        f"to {party}": "no bound" if epsilon is None else f"epsilon {epsilon:.4g}, delta {delta:g}"
        for party, epsilon in epsilons.items()
    }


def run_rounds(
    mechanism: SumMechanism[Any, P],
    plan: P,
    rounds: int,
    rng: Random,
    sum_round: Callable[[P], tuple[Vector, int]],
) -> tuple[P, StudyState]:
    """Run a study from its first plan; return the last plan and the study state.

    `sum_round` returns the sum of a round and its number of participants.
    """
    state = EMPTY_STATE
    with progress_steps("rounds", rounds) as step:
        while True:
            answer = mechanism.decode(plan, *sum_round(plan), state)
            state = answer.state
            step(1)
            if plan.round == rounds or mechanism.is_over(plan, answer, state):
                return plan, state
            plan = mechanism.next_plan(plan, answer, state, rng)


def terms_for(
    devices: int,
    max_cohort_size: int,
    max_cohorts: int | None = None,
    **assumptions: Any,  # noqa: ANN401 (fields of terms)
) -> Terms:
    """Return terms for `devices` in the smallest number of cohorts, all of about the same size."""
    cohorts = -(-devices // max_cohort_size)
    if max_cohorts is not None:
        cohorts = min(max_cohorts, cohorts)
    size = -(-devices // cohorts)
    return Terms(cohort_size=size, minimum=max(3, size // 2), cohorts=cohorts, **assumptions)


def seats_for(devices: int, join_probability: float) -> int:
    """Return a number of seats that all of `devices` that join fit in, except with 1e-20.

    The number that joins is Bin(n, v): n v on average, with a standard deviation below sqrt(n v).
    Where that is small, its tail is longer than a normal one's. A device without a seat is lost,
    and then the devices with seats reveal something about the coins of the others. So there must
    be seats for all.
    """
    mean = devices * join_probability
    return min(devices, math.ceil(mean + _SEAT_SDS * math.sqrt(mean)) + _EXTRA_SEATS)
