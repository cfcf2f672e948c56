"""Which oracle to use: the least predicted error, and whether any is good enough to use at all.

    worst-mse    greatest variance of a value with a frequency up to `most`
    l2           sum of all values' variances
    l1           sum of all values' mean absolute errors, sqrt(2/pi) times their deviations
    heavy        least frequency that stands out: found with odds of 95%, when with odds of 95%
                 none of the values that nobody holds is

l1 and l2 are predicted for one value that everybody holds and d - 1 others, which is within
1/n of any other population's; l1 for normal errors. What estimates of nothing rise to is by their
exact tails (`tails.py`): a normal quantile so far out would be exceeded many times as often where
few reports speak for a value. A heavy value's own estimate is normal, at its 5% quantile.

Nothing works where a guess that has seen no report errs as little: of 1/2 for a value, by a
square of 1/4 at most; of 0 for all values, by 1 in absolute values and at most 1 in squares. Of
heavy values none works if only one that half of all devices hold stands out. Then the number of
users is told from which on something does, of the oracle that takes the fewest if none stands
out at all. Of oracles within 3% of the least error the one of fewest bytes is taken, then the
fastest to decode; none is taken that decodes for more than ten minutes if another does not.
Recursive Hadamard response, local hashing and Apple's sketch are never proposed: in bits, in
time or in error something is better.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, inf, pi, sqrt
from typing import Literal

from scipy.special import ndtri

from protocol.oracles.bits import Rappor, SubsetSelection
from protocol.oracles.hadamard import Hadamard
from protocol.oracles.inner_product import OcmsGf
from protocol.oracles.krr import RandomisedResponse
from protocol.oracles.mixture import OcmsMixture
from protocol.oracles.ocms import Ocms
from protocol.oracles.oracle import Oracle

Goal = Literal["worst-mse", "l1", "l2", "heavy"]
GUESS: dict[Goal, float] = {"worst-mse": 0.25, "l1": 1.0, "l2": 1.0, "heavy": 0.5}

_ALIKE = 1.03
_SURE = 0.95
_MOST_SECONDS = 600.0
MOST_USERS = 10**15  # that are looked for


@dataclass(frozen=True, slots=True)
class Recommendation:
    """An `oracle` for a `goal`, what it costs, and whether it `works`.

    `error` is predicted, in the goal's own measure, and is to be below `guess`; `nbytes` are of
    one report, `seconds` of one core for the whole dictionary. `users` are how many it takes to
    do better than a guess, None if more than 10^15.
    """

    oracle: Oracle
    goal: Goal
    error: float
    guess: float
    nbytes: int
    seconds: float
    users: int | None

    @property
    def works(self) -> bool:
        """Return whether it is better than a guess that has seen no report."""
        return self.error < self.guess


def recommend(
    users: int,
    domain: int,
    epsilon: float,
    goal: Goal,
    *,
    most: float = 1.0,
    most_bytes: int = 64,
) -> Recommendation:
    """Return the best oracle for `users` reports, where no frequency is above `most`.

    Raises:
        ValueError: if `users` or `most_bytes` is below 1, `goal` not one of the four, `most` not
            within 0 and 1, `epsilon` or `domain` out of range, or no oracle has reports of so
            few bytes.
    """
    if users < 1:
        raise ValueError(f"users must be 1 or more, not {users}")
    if goal not in GUESS:
        raise ValueError(f"goal must be one of {', '.join(GUESS)}, not {goal!r}")
    if not 0 <= most <= 1:
        raise ValueError(f"most must be within 0 and 1, not {most}")
    RandomisedResponse(epsilon, domain)  # refuses what no oracle takes
    known = [one for one in _candidates(epsilon, domain, most) if one.nbytes <= most_bytes]
    if not known:
        raise ValueError(f"most_bytes must be more than {most_bytes} for {domain:,} values")
    quick = [one for one in known if one.batched_ns(users) <= 1e9 * _MOST_SECONDS]
    errors = {one: predicted(one, users, goal, most) for one in quick or known}

    def needed(oracle: Oracle) -> int | None:
        return least_users(lambda n: predicted(oracle, n, goal, most) < GUESS[goal])

    least = min(errors.values())
    if least < inf:
        alike = [one for one in errors if errors[one] <= _ALIKE * least]
        oracle = min(alike, key=lambda one: (one.nbytes, one.batched_ns(users), errors[one]))
    else:
        oracle = min(errors, key=lambda one: (needed(one) or inf, one.nbytes))
    return Recommendation(
        oracle,
        goal,
        errors[oracle],
        GUESS[goal],
        oracle.nbytes,
        oracle.batched_ns(users) / 1e9,
        needed(oracle),
    )


def predicted(oracle: Oracle, users: int, goal: Goal, most: float = 1.0) -> float:
    """Return the error of `oracle` with `users` reports; infinite if nothing stands out."""
    absent, present = (n_variance / users for n_variance in oracle.spread)
    if goal == "worst-mse":
        return max(absent, absent + (present - absent) * most)
    if goal == "l2":
        return present + (oracle.domain - 1) * absent
    if goal == "l1":
        return sqrt(2 / pi) * (sqrt(present) + (oracle.domain - 1) * sqrt(absent))
    above = oracle.bar(users, (1 - _SURE) / oracle.domain)

    def stands_out(frequency: float) -> bool:
        variance = absent + (present - absent) * frequency
        return frequency > above + float(ndtri(_SURE)) * sqrt(variance)

    if not stands_out(1.0):
        return inf
    low, high = 0.0, 1.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if stands_out(middle) else (middle, high)
    return high


def _candidates(epsilon: float, domain: int, most: float) -> Iterator[Oracle]:
    makers: list[Callable[[], Oracle]] = [
        lambda: RandomisedResponse(epsilon, domain),
        lambda: Hadamard(epsilon, domain),
        lambda: OcmsGf.for_mse(epsilon, domain, most),
        lambda: OcmsGf.for_l2(epsilon, domain),
        lambda: OcmsMixture.for_mse(epsilon, domain, most),
        lambda: Ocms.for_mse(epsilon, domain, most),
        lambda: Ocms.for_l2(epsilon, domain),
        lambda: Rappor(epsilon, domain, symmetric=True),
        lambda: SubsetSelection.standard(epsilon, domain),
        lambda: SubsetSelection.for_mse(epsilon, domain),
    ]
    for make in makers:
        try:
            yield make()
        except ValueError:
            continue  # this one is for larger or smaller dictionaries


def least_users(works: Callable[[int], bool]) -> int | None:
    """Return the least number of users for which it `works`, which more do, within a percent.

    None if it is more than 10^15.
    """
    high = 1
    while not works(high):
        if high >= MOST_USERS:
            return None
        high = min(2 * high, MOST_USERS)
    low = high // 2
    while high - low > max(1, high // 200):
        middle = ceil((low + high) / 2)
        low, high = (low, middle) if works(middle) else (middle, high)
    return high
