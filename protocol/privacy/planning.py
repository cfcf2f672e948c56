"""The best parameters for a budget, by the exact loss.

Of sample-and-threshold, the best (theta, m) is the one of least theta / m: the frequency from
which a prefix is shown about half the time. Each theta admits an m up to the budget; one that
does not keep the budget at the ratio found so far cannot be better, so most are ruled out by a
single composition. Of Skellam noise it is the least variance.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from protocol.privacy import sample_threshold, skellam
from protocol.privacy.loss import Relation, composed, epsilon_of

_PRECISION = 1e-5  # of m and of a variance
_MISSES = 2  # so many theta in a row that are no better end the search
_MOST_DEVICES = 10**9
_MOST_THETA = 1000
_LEAP = 1.4  # of a logarithm: at most so far at once


@dataclass(frozen=True, slots=True)
class Design:
    """Suppress below `theta` what `m` of all devices, on average, are sampled for.

    It costs `epsilon`.
    """

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
    relation: Relation = "add-remove",
) -> Design:
    """Return the design of least theta / m for `n` devices with `items` in each of `levels`.

    m is the largest to a part in 10^5.

    Raises:
        ValueError: if a parameter is out of range, or no m of 1 or more keeps the budget.
    """
    releases = levels * items
    _check(epsilon, delta, releases)
    if not 2 <= n <= _MOST_DEVICES:
        raise ValueError(f"2 to 10^9 devices are sampled from, not {n}")

    def cost(theta: int, m: float) -> float:
        if releases * (m / n) ** theta > delta:  # saves the work, as this much loss is total
            return math.inf
        loss = sample_threshold.privacy_loss.__wrapped__(m / n, theta, relation)
        return epsilon_of(composed([(loss, releases)]), delta)

    # Near the best theta at usual budgets; from there the ratio is followed down both ways.
    start = 2 + math.floor(0.6 * math.log(releases / delta))
    while cost(start, 1) > epsilon:
        start *= 2
        if start > _MOST_THETA:
            raise ValueError(
                f"no sample of {n} devices keeps epsilon {epsilon:g} at delta {delta:g} over "
                f"{releases} releases: one of {n} is too many; allow more, or release less often"
            )
    best = start, math.floor(_edge(partial(cost, start), epsilon, 1, n))
    for step in (1, -1):
        theta, misses = start + step, 0
        while misses < _MISSES and theta >= 1:
            least = math.floor(theta * best[1] / best[0]) + 1
            if least < n and cost(theta, least) <= epsilon:
                best = theta, math.floor(_edge(partial(cost, theta), epsilon, least, n))
                misses = 0
            else:
                misses += 1
            theta += step
    theta, m = best
    return Design(theta, m, cost(theta, m))


def least_threshold(probability: float, epsilon: float, delta: float, releases: int = 1) -> int:
    """Return the least theta that keeps the budget with coins of `probability`.

    So the list of what b tables of sampled items say together over a study is private for whoever
    sees nothing else, if each is suppressed below theta: coins of 1 / t, b releases.

    Raises:
        ValueError: if a parameter is out of range, or no theta up to 1,000 keeps it.
    """
    _check(epsilon, delta, releases)

    def fits(theta: int) -> bool:
        loss = sample_threshold.privacy_loss.__wrapped__(probability, theta, "add-remove")
        return epsilon_of(composed([(loss, releases)]), delta) <= epsilon

    high = 1
    while not fits(high):
        if high > _MOST_THETA:
            raise ValueError(
                f"no theta keeps epsilon {epsilon:g} at delta {delta:g} with coins of "
                f"{probability:g} over {releases} releases: sample more rarely"
            )
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@lru_cache(maxsize=128)
def least_variance(
    epsilon: float,
    delta: float,
    releases: int,
    sampled: float = 1.0,
    relation: Relation = "add-remove",
) -> float:
    """Return the least variance of Skellam noise for so many `releases`, to a part in 10^5.

    Raises:
        ValueError: if a parameter is out of range, or it is above 2^24.
    """
    _check(epsilon, delta, releases)

    def cost(variance: float) -> float:
        loss = skellam.privacy_loss.__wrapped__(variance, sampled, relation)
        return epsilon_of(composed([(loss, releases)]), delta)

    # What a Gaussian would need, by the classic bound: most often enough.
    enough = 4 * releases * math.log(2 / delta) / epsilon**2
    enough = min(max(enough, 1.0), skellam.MOST_VARIANCE)
    while cost(enough) > epsilon:
        if enough == skellam.MOST_VARIANCE:
            raise ValueError(
                f"epsilon {epsilon:g} at delta {delta:g} over {releases} releases needs a "
                "variance above 2^24: allow more, or release less often"
            )
        enough = min(4 * enough, skellam.MOST_VARIANCE)
    return _edge(cost, epsilon, enough, skellam.LEAST_VARIANCE)


def _edge(cost: Callable[[float], float], most: float, inside: float, outside: float) -> float:
    """Return where `cost` is `most` or hardly less, between `inside`, where it is, and `outside`.

    It is found to a part in 10^5. The cost is nearly a power of the parameter, so the next guess
    is where a straight line between logarithms says, a hair to the side that is further off;
    each fourth halves what is left, as a cost may also jump.
    """
    sign = 1 if outside > inside else -1
    low, high = 0.0, abs(math.log(outside / inside))
    cheap, dear = cost(inside), math.inf
    nudge, turn = 0.0, 0
    while high - low > _PRECISION:
        turn += 1
        guess = (low + high) / 2
        if turn % 4 and cheap > 0:
            if math.isfinite(dear):
                part = math.log(most / cheap) / math.log(dear / cheap)
                guess = low + part * (high - low) + nudge
            else:
                guess = min(guess, low + 0.9 * math.log(most / cheap))
        hair = min(_PRECISION, high - low) / 2
        guess = min(max(guess, low + hair), high - hair, low + _LEAP)
        found = cost(inside * math.exp(sign * guess))
        if found <= most:
            low, cheap, nudge = guess, found, _PRECISION / 2
        else:
            high, dear, nudge = guess, found, -_PRECISION / 2
    return inside * math.exp(sign * low)


def _check(epsilon: float, delta: float, releases: int) -> None:
    if not 0 < epsilon <= 40:
        raise ValueError(f"epsilon must be above 0 and at most 40, not {epsilon}")
    if not 1e-11 <= delta < 1:
        raise ValueError(f"delta must be within 1e-11 and 1, not {delta}")
    if releases < 1:
        raise ValueError(f"something is released once or more, not {releases} times")
