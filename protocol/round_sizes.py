"""Sizes of rounds: cohorts for a number of devices, and seats for those that join by coins."""

import math
from typing import Any, Final

from protocol.question_and_plan import Terms

MAX_COHORT_SIZE: Final = 100_000  # the largest of Terms
_SEAT_SDS, _EXTRA_SEATS = 10, 16  # seats above the mean of those that join


def terms_for(
    devices: int,
    max_cohort_size: int = MAX_COHORT_SIZE,
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
