"""Rounds of a simulated study: its terms, its seats, and the loop over its rounds."""

import math
from collections.abc import Callable
from random import Random
from typing import Any

from blindtally.console.progress import progress_steps
from blindtally.simulate.options import SimulationRequest
from protocol.committee_terms import CommitteeTerms
from protocol.mechanism import SumMechanism
from protocol.question_and_plan import P, Terms
from protocol.study_state import EMPTY_STATE, StudyState
from secagg.keys import Identity
from secagg.ring import Vector

_SEAT_SDS, _EXTRA_SEATS = 10, 16  # seats above the mean of those that join
_COHORT_SIZE = 1000  # devices of a pairwise sum; a larger one only costs its devices more
_MAX_COHORTS = 1000  # cohorts of a round; beyond a million devices cohorts are larger
_OPERATORS = 7  # of the simulated committee of one-shot sums


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


def study_terms(request: SimulationRequest, devices: int) -> Terms:
    """Return the terms of a study of exact sums with `devices` in a round.

    Raises:
        ValueError: if the dropout is not a fraction, the terms are not possible, or one-shot sums
            are asked for without secure sums.
    """
    if not 0 <= request.dropout < 1:
        raise ValueError(f"dropout is a fraction from 0 to below 1, got {request.dropout}")
    assumptions: dict[str, Any] = {
        "corrupt": request.corrupt,
        "dropout": max(0.2, request.dropout + 0.1),
        "mode": request.mode,
    }
    if request.sum_kind == "pairwise":
        return terms_for(devices, _COHORT_SIZE, _MAX_COHORTS, **assumptions)
    if not request.secagg:
        raise ValueError("--sum one-shot is a kind of secure sum: add --secagg")
    keys = (Identity.of(bytes([number]) * 32).public for number in range(_OPERATORS))
    committee = CommitteeTerms(members=tuple(key.hex() for key in keys))
    return terms_for(devices, devices, **assumptions, sum="one-shot", committee=committee)


def seats_for(devices: int, join_probability: float) -> int:
    """Return a number of seats that all of `devices` that join fit in, except with 1e-20.

    The number that joins is Bin(n, v): n v on average, with a standard deviation below sqrt(n v).
    Where that is small, its tail is longer than a normal one's. A device without a seat is lost,
    and then the devices with seats reveal something about the coins of the others. So there must
    be seats for all.
    """
    mean = devices * join_probability
    return min(devices, math.ceil(mean + _SEAT_SDS * math.sqrt(mean)) + _EXTRA_SEATS)
