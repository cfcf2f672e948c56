"""The best parameters for a budget, by the exact loss.

For sample-and-threshold, the best (theta, m) has the smallest theta / m: the frequency from
which a prefix is shown about half the time. A theta that does not keep the budget at the best
ratio so far cannot be better, so a single composition rules out most of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from functools import lru_cache, partial

from protocol.privacy import sample_threshold, skellam
from protocol.privacy.loss_distributions import (
    LOSS_INTERVAL,
    NeighbourRelation,
    compose,
    epsilon_of,
)

_RELATIVE_PRECISION = 1e-5  # of m and of a variance
_COARSE_INTERVAL = 10 * LOSS_INTERVAL  # of searches, whose results are close at a tenth of the time
_MAX_MISSES = 2  # consecutive theta without improvement that end the search
_MAX_DEVICES = 10**9
_MAX_THETA = 1000
_MAX_LOG_STEP = 1.4  # of the logarithm of a parameter
_SIX_DIGITS_UP = Context(prec=6, rounding=ROUND_CEILING)


@dataclass(frozen=True, slots=True)
class SampleThresholdDesign:
    """Suppression below `theta`, with `m` devices sampled on average, and its loss `epsilon`."""

    theta: int
    m: int
    epsilon: float


@lru_cache(maxsize=128)
def best_design(
    n: int,
    epsilon: float,
    delta: float,
    levels: int,
    items: int = 1,
    relation: NeighbourRelation = "add-remove",
) -> SampleThresholdDesign:
    """Return the design of the smallest theta / m for `n` devices with `items` in each of `levels`.

    m is the largest to a part in 10^5. Raises ValueError if no m of 1 or more keeps the budget.
    """
    releases = levels * items
    _check(epsilon, delta, releases)
    if not 2 <= n <= _MAX_DEVICES:
        raise ValueError(f"n must be from 2 to 10^9 devices, not {n}")

    def cost(theta: int, m: float, interval: float = _COARSE_INTERVAL) -> float:
        if releases * (m / n) ** theta > delta:  # saves the work, since this loss is total
            return math.inf
        loss = sample_threshold.privacy_loss.__wrapped__(m / n, theta, relation, interval)
        return epsilon_of(compose([(loss, releases)], interval), delta)

    # Near the best theta for usual budgets; the search continues from here in both directions.
    start = 2 + math.floor(0.6 * math.log(releases / delta))
    while cost(start, 1) > epsilon:
        start *= 2
        if start > _MAX_THETA:
            raise ValueError(
                f"no sample of {n} devices keeps epsilon {epsilon:g} at delta {delta:g} over "
                f"{releases} releases: increase the budget, or release less often"
            )
    best = start, budget_boundary(partial(cost, start), epsilon, 1, n)
    for step in (1, -1):
        theta, misses = start + step, 0
        while misses < _MAX_MISSES and theta >= 1:
            m = math.floor(theta * best[1] / best[0]) + 1
            if m < n and cost(theta, m) <= epsilon:
                best = theta, budget_boundary(partial(cost, theta), epsilon, m, n)
                misses = 0
            else:
                misses += 1
            theta += step
    theta, coarse = best
    exact_cost = partial(cost, theta, interval=LOSS_INTERVAL)
    m = math.floor(_exact_boundary(exact_cost, epsilon, coarse, n))
    return SampleThresholdDesign(theta, m, exact_cost(m))


@lru_cache(maxsize=128)
def min_variance(
    epsilon: float,
    delta: float,
    releases: int,
    probability: float = 1.0,
    relation: NeighbourRelation = "add-remove",
) -> float:
    """Return the smallest variance of Skellam noise for `releases`, to two parts in 10^5.

    It has six digits, so it is the same on every processor.
    Raises ValueError if a parameter is out of range, or the variance is above 2^24.
    """
    _check(epsilon, delta, releases)

    def cost(variance: float, interval: float = LOSS_INTERVAL) -> float:
        loss = skellam.privacy_loss.__wrapped__(variance, probability, relation, interval)
        return epsilon_of(compose([(loss, releases)], interval), delta)

    # The classic bound for a Gaussian usually suffices.
    enough = 4 * releases * math.log(2 / delta) / epsilon**2
    enough = min(max(enough, 1.0), skellam.MAX_VARIANCE)
    coarse_cost = partial(cost, interval=_COARSE_INTERVAL)
    while coarse_cost(enough) > epsilon:
        if enough == skellam.MAX_VARIANCE:
            raise ValueError(
                f"epsilon {epsilon:g} at delta {delta:g} over {releases} releases needs a "
                "variance above 2^24: increase the budget, or release less often"
            )
        enough = min(4 * enough, skellam.MAX_VARIANCE)
    coarse = budget_boundary(coarse_cost, epsilon, enough, skellam.MIN_VARIANCE)
    smallest = _exact_boundary(cost, epsilon, coarse, skellam.MIN_VARIANCE)
    # The last digits depend on the processor, and a plan's digest should not.
    rounded = _SIX_DIGITS_UP.create_decimal_from_float(smallest)
    return min(float(rounded), skellam.MAX_VARIANCE)


def _exact_boundary(
    cost: Callable[[float], float], budget: float, coarse: float, outside: float
) -> float:
    """Return the boundary of `cost`; that of an approximate cost is `coarse`.

    Usually both are the same to a part in 10^5, which two costs show.
    """
    step = math.copysign(_RELATIVE_PRECISION, outside - coarse)
    if cost(coarse) <= budget:
        near = coarse * math.exp(step)
        if (outside - near) * step <= 0 or cost(near) > budget:
            return coarse
        return budget_boundary(cost, budget, near, outside)
    inside, outside = coarse * math.exp(-step), coarse
    while cost(inside) > budget:
        step *= 4
        inside, outside = coarse * math.exp(-step), inside
    return budget_boundary(cost, budget, inside, outside)


def budget_boundary(
    cost: Callable[[float], float], budget: float, inside: float, outside: float
) -> float:
    """Return the parameter between `inside` and `outside` whose `cost` just keeps the `budget`.

    It is found to a part in 10^5. The cost is nearly a power of the parameter, so the next guess
    is by a straight line between logarithms, moved slightly to the side that is further away. Each
    fourth guess halves the interval, because a cost may also jump.
    """
    sign = 1 if outside > inside else -1
    low, high = 0.0, abs(math.log(outside / inside))
    low_cost, high_cost = cost(inside), math.inf
    nudge, step = 0.0, 0
    while high - low > _RELATIVE_PRECISION:
        step += 1
        guess = (low + high) / 2
        if step % 4 and low_cost > 0:
            if math.isfinite(high_cost):
                part = math.log(budget / low_cost) / math.log(high_cost / low_cost)
                guess = low + part * (high - low) + nudge
            else:
                guess = min(guess, low + 0.9 * math.log(budget / low_cost))
        margin = min(_RELATIVE_PRECISION, high - low) / 2
        guess = min(max(guess, low + margin), high - margin, low + _MAX_LOG_STEP)
        guess_cost = cost(inside * math.exp(sign * guess))
        if guess_cost <= budget:
            low, low_cost, nudge = guess, guess_cost, _RELATIVE_PRECISION / 2
        else:
            high, high_cost, nudge = guess, guess_cost, -_RELATIVE_PRECISION / 2
    return inside * math.exp(sign * low)


def _check(epsilon: float, delta: float, releases: int) -> None:
    if not 0 < epsilon <= 40:
        raise ValueError(f"epsilon must be above 0 and at most 40, not {epsilon}")
    if not 1e-11 <= delta < 1:
        raise ValueError(f"delta must be from 1e-11 to below 1, not {delta}")
    if releases < 1:
        raise ValueError(f"releases must be 1 or more, not {releases}")
