"""Recommends an oracle: the smallest predicted error, and whether it is better than a guess.

    worst-mse    largest variance of a value with a frequency up to `max_frequency`
    l2           sum of the variances of all values
    l1           sum of the mean absolute errors of all values, sqrt(2/pi) times their deviations
    heavy        smallest frequency that is detected with probability 95%, by a threshold that with
                 probability 95% no absent value exceeds

l1 and l2 are predicted for one value that all devices hold and d - 1 absent ones, which is within
1/n of any other population; l1 for normal errors. Thresholds use the exact tails of absent values
(`tail_bounds.py`). No oracle works if a guess without any report errs as little, or if it only
detects values that half of all devices hold.

Among oracles within 3% of the smallest error, that of the fewest bytes is chosen, then the fastest
to decode; one that decodes for more than ten minutes only if all do. Recursive Hadamard response,
local hashing and Apple's sketch are never recommended: another oracle is better in bits, in time
or in error.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, inf, pi, sqrt
from typing import Literal

from protocol.numerics import special
from protocol.numerics.binary_search import boundary
from protocol.oracles.hadamard import Hadamard
from protocol.oracles.krr import KaryRandomizedResponse
from protocol.oracles.ocms.hash_range_mixture import OcmsMixture
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.ocms_gf import OcmsGf
from protocol.oracles.oracle import Oracle
from protocol.oracles.rappor import Rappor
from protocol.oracles.subset_selection import SubsetSelection

Goal = Literal["worst-mse", "l1", "l2", "heavy"]
GUESS_ERRORS: dict[Goal, float] = {"worst-mse": 0.25, "l1": 1.0, "l2": 1.0, "heavy": 0.5}

_ERROR_TOLERANCE = 1.03
_DETECTION_PROBABILITY = 0.95
_MAX_DECODE_SECONDS = 600.0
MAX_USERS = 10**15


@dataclass(frozen=True, slots=True)
class Recommendation:
    """An `oracle` for a `goal`, and its cost.

    `error` is the predicted error in the goal's own measure. The oracle works if this is below the
    error of a guess, `GUESS_ERRORS`. `nbytes` are of one report, `seconds` of one core for the
    whole dictionary. `users_needed` is the number of users from which the oracle works, None if
    more than 10^15.
    """

    oracle: Oracle
    goal: Goal
    error: float
    nbytes: int
    seconds: float
    users_needed: int | None


def recommend(
    users: int,
    domain: int,
    epsilon: float,
    goal: Goal,
    *,
    max_frequency: float = 1.0,
    max_bytes: int = 64,
) -> Recommendation:
    """Return the best oracle for `users` reports, where no frequency is above `max_frequency`.

    Raises ValueError if a parameter is out of range, or all oracles have longer reports.
    """
    if users < 1:
        raise ValueError(f"users must be 1 or more, not {users}")
    if goal not in GUESS_ERRORS:
        raise ValueError(f"goal must be one of {', '.join(GUESS_ERRORS)}, not {goal!r}")
    if not 0 <= max_frequency <= 1:
        raise ValueError(f"max_frequency must be from 0 to 1, not {max_frequency}")
    KaryRandomizedResponse(epsilon, domain)  # refuses parameters that no oracle allows
    candidates = _candidates(epsilon, domain, max_frequency)
    small = [oracle for oracle in candidates if oracle.nbytes <= max_bytes]
    if not small:
        raise ValueError(f"max_bytes must be more than {max_bytes} for {domain:,} values")
    max_ns = 1e9 * _MAX_DECODE_SECONDS
    quick = [oracle for oracle in small if oracle.batched_decode_ns(users) <= max_ns]
    errors = {
        oracle: predicted_error(oracle, users, goal, max_frequency) for oracle in quick or small
    }

    def users_needed(oracle: Oracle) -> int | None:
        return min_users(
            lambda n: predicted_error(oracle, n, goal, max_frequency) < GUESS_ERRORS[goal]
        )

    smallest = min(errors.values())
    if smallest < inf:
        best = min(
            (oracle for oracle in errors if errors[oracle] <= _ERROR_TOLERANCE * smallest),
            key=lambda oracle: (oracle.nbytes, oracle.batched_decode_ns(users), errors[oracle]),
        )
    else:
        best = min(errors, key=lambda oracle: (users_needed(oracle) or inf, oracle.nbytes))
    return Recommendation(
        best,
        goal,
        errors[best],
        best.nbytes,
        best.batched_decode_ns(users) / 1e9,
        users_needed(best),
    )


def predicted_error(oracle: Oracle, users: int, goal: Goal, max_frequency: float = 1.0) -> float:
    """Return the error of `oracle` with `users` reports; infinite if no value is detected."""
    absent, present = (n_variance / users for n_variance in oracle.scaled_variances)
    if goal == "worst-mse":
        return max(absent, absent + (present - absent) * max_frequency)
    if goal == "l2":
        return present + (oracle.domain - 1) * absent
    if goal == "l1":
        return sqrt(2 / pi) * (sqrt(present) + (oracle.domain - 1) * sqrt(absent))
    threshold = oracle.detection_threshold(users, (1 - _DETECTION_PROBABILITY) / oracle.domain)

    def is_detected(frequency: float) -> bool:
        variance = absent + (present - absent) * frequency
        return frequency > threshold + float(special.ndtri(_DETECTION_PROBABILITY)) * sqrt(variance)

    return boundary(is_detected, 0.0, 1.0, 1e-9) if is_detected(1.0) else inf


def _candidates(epsilon: float, domain: int, max_frequency: float) -> Iterator[Oracle]:
    constructors: list[Callable[[], Oracle]] = [
        lambda: KaryRandomizedResponse(epsilon, domain),
        lambda: Hadamard(epsilon, domain),
        lambda: OcmsGf.for_mse(epsilon, domain, max_frequency),
        lambda: OcmsGf.for_l2(epsilon, domain),
        lambda: OcmsMixture.for_mse(epsilon, domain, max_frequency),
        lambda: Ocms.for_mse(epsilon, domain, max_frequency),
        lambda: Ocms.for_l2(epsilon, domain),
        lambda: Rappor(epsilon, domain, symmetric=True),
        lambda: SubsetSelection.standard(epsilon, domain),
        lambda: SubsetSelection.for_mse(epsilon, domain),
    ]
    for construct in constructors:
        try:
            yield construct()
        except ValueError:
            continue  # the oracle is for larger or smaller dictionaries


def min_users(works: Callable[[int], bool]) -> int | None:
    """Return the smallest number of users from which `works` holds, to 1%; None above 10^15."""
    high = 1
    while not works(high):
        if high >= MAX_USERS:
            return None
        high = min(2 * high, MAX_USERS)
    low = high // 2
    while high - low > max(1, high // 200):
        middle = ceil((low + high) / 2)
        low, high = (low, middle) if works(middle) else (middle, high)
    return high
