"""Integer noise, drawn exactly: the discrete Laplace and the discrete Gaussian distribution.

    discrete Laplace of scale t    P(k) = (1 - r) / (1 + r) r^|k|,  r = exp(-1 / t)
    discrete Gaussian, variance s  P(k) proportional to exp(-k^2 / 2 s)

for all integers k, where t = a / b is rational and s an integer. Everything is decided by
comparing uniform integers, so no probability is rounded and nothing shows through that
floating-point noise would let through [Mironov12]. All are drawn at once: what was refused
is drawn again, among the refused.

The sum of n draws, which is what a server's accuracy depends on, costs as much as one:

    Laplace     sum of n = G - G', two negative binomials of n and 1 - r, exactly
    Gaussian    sum of n = one of variance n s, but for odds below exp(-pi^2 s) [Kairouz21]

Source: algorithms 1 to 3 of [Canonne20]; the sums are for simulations and use floats.
"""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance, below

MOST_VARIANCE = 2**24  # so that the integers below fit in 64 bits
_BELOW = 2**32  # what `below` reaches

Integers = NDArray[np.int64]


def discrete_laplace(chance: Chance, scale: Fraction, count: int) -> Integers:
    """Return `count` independent draws of discrete Laplace noise of `scale` > 0.

    Raises:
        ValueError: if `scale` is not above 0 and below 2^24, or its denominator above 2^10.
    """
    a, b = scale.numerator, scale.denominator
    if not 0 < scale < 2**24 or b > 2**10:
        raise ValueError(f"scale must be above 0 and below 2^24, in 1024ths, not {scale}")
    drawn = np.empty(count, np.int64)
    missing = np.arange(count)
    while len(missing):
        rest = _below(chance, a, len(missing))
        kept = _happens_exp(chance, rest, a)
        missing, later, rest = missing[kept], missing[~kept], rest[kept]
        whole = _geometric(chance, len(missing))
        size = ((rest + np.uint64(a) * whole) // np.uint64(b)).astype(np.int64)
        negative = chance(len(missing)) & np.uint64(1) == 1
        twice = negative & (size == 0)  # else zero would come from both signs
        drawn[missing] = np.where(negative, -size, size)
        missing = np.concatenate((later, missing[twice]))
    return drawn


def discrete_gaussian(chance: Chance, variance: int, count: int) -> Integers:
    """Return `count` independent draws of discrete Gaussian noise of parameter `variance`.

    Raises:
        ValueError: if `variance` is not within 1 and 2^24.
    """
    if not 1 <= variance <= MOST_VARIANCE:
        raise ValueError(f"variance must be within 1 and 2^24, not {variance}")
    t = math.isqrt(variance) + 1
    drawn = np.empty(count, np.int64)
    missing = np.arange(count)
    while len(missing):
        proposed = discrete_laplace(chance, Fraction(t), len(missing))
        # Below 2^63 unless |proposed| > 2^7 t, which has odds of exp(-128).
        off = (np.abs(proposed) * t - variance).astype(np.int64)
        kept = _happens_exp_any(chance, (off * off).astype(np.uint64), 2 * variance * t * t)
        drawn[missing[kept]] = proposed[kept]
        missing = missing[~kept]
    return drawn


def laplace_sum(rng: np.random.Generator, scale: Fraction, terms: int, count: int) -> Integers:
    """Return `count` sums of `terms` draws of discrete Laplace noise each, for simulations."""
    done = -math.expm1(-1 / scale)
    up, down = rng.negative_binomial(terms, done, (2, count))
    return np.asarray(up - down, np.int64)


def gaussian_sum(rng: np.random.Generator, variance: int, terms: int, count: int) -> Integers:
    """Return `count` sums of `terms` draws of discrete Gaussian noise, for simulations."""
    total = float(variance) * terms
    t = math.floor(math.sqrt(total)) + 1
    drawn = np.empty(count, np.int64)
    missing = np.arange(count)
    while len(missing):
        up, down = rng.geometric(-math.expm1(-1 / t), (2, len(missing)))
        odds = np.exp(-((np.abs(up - down) - total / t) ** 2) / (2 * total))
        kept = rng.random(len(missing)) < odds
        drawn[missing[kept]] = (up - down)[kept]
        missing = missing[~kept]
    return drawn


def laplace_variance(scale: Fraction) -> float:
    """Return the variance of one draw: 2 r / (1 - r)^2, about 2 t^2."""
    return 1 / (2 * math.sinh(1 / (2 * scale)) ** 2)


def _below(chance: Chance, bound: int, count: int) -> NDArray[np.uint64]:
    """Return `count` integers, exactly uniform below `bound` <= 2^63."""
    if bound <= _BELOW:
        return below(chance, bound, count)
    shift = np.uint64(64 - (bound - 1).bit_length())
    drawn = chance(count) >> shift
    while len(over := np.flatnonzero(drawn >= np.uint64(bound))):
        drawn[over] = chance(len(over)) >> shift
    return drawn


def _happens_exp(chance: Chance, above: NDArray[np.uint64], under: int) -> NDArray[np.bool_]:
    """Return outcomes of odds exp(-above / under), for `above` <= `under`.

    The first k for which an event of odds above / (under k) fails is odd with these odds.
    """
    happened = np.zeros(len(above), np.bool_)
    running, k = np.arange(len(above)), 1
    while len(running):
        on = _below(chance, under * k, len(running)) < above[running]
        happened[running[~on]] = k % 2 == 1
        running, k = running[on], k + 1
    return happened


def _happens_exp_any(chance: Chance, above: NDArray[np.uint64], under: int) -> NDArray[np.bool_]:
    """Return outcomes of odds exp(-above / under), where the quotient may exceed 1."""
    happened = _geometric(chance, len(above)) >= above // np.uint64(under)
    sure = np.flatnonzero(happened)
    happened[sure] = _happens_exp(chance, above[sure] % np.uint64(under), under)
    return happened


def _geometric(chance: Chance, count: int) -> NDArray[np.uint64]:
    """Return how often an event of odds 1 / e happens before it first fails."""
    times = np.zeros(count, np.uint64)
    running = np.arange(count)
    while len(running):
        ones = np.ones(len(running), np.uint64)
        running = running[_happens_exp(chance, ones, 1)]
        times[running] += np.uint64(1)
    return times
