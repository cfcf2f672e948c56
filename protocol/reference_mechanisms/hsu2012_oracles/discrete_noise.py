"""Integer noise, drawn exactly: the discrete Laplace and the discrete Gaussian distribution.

    discrete Laplace of scale t    P(k) = (1 - r) / (1 + r) r^|k|,  r = exp(-1 / t)
    discrete Gaussian, variance s  P(k) proportional to exp(-k^2 / 2 s)

for all integers k, where t is rational and s an integer. All decisions compare uniform integers, so
no probability is rounded, and the leaks of floating-point noise [Mironov12] cannot occur. The sum
of n draws, for simulations in floats, costs as much as one draw:

    Laplace     sum of n = G - G', two negative binomials of n and 1 - r, exactly
    Gaussian    sum of n = one of variance n s, except with probability below exp(-pi^2 s)
                [Kairouz21]

Source: algorithms 1 to 3 of [Canonne20].
"""

import math
from fractions import Fraction

import numpy as np

from protocol.numerics.array_types import Flags, Integers, Words
from protocol.randomness import RandomWords, uniform_below

MAX_VARIANCE = 2**24  # so that the integers below fit in 64 bits
_MAX_SHORT_BOUND = 2**32  # the range of `uniform_below`


def discrete_laplace(chance: RandomWords, scale: Fraction, count: int) -> Integers:
    """Return `count` independent draws of discrete Laplace noise of `scale`.

    Raises ValueError if `scale` is not above 0 and below 2^24, or its denominator above 2^10.
    """
    a, b = scale.numerator, scale.denominator
    if not 0 < scale < 2**24 or b > 2**10:
        raise ValueError(
            f"scale must be above 0 and below 2^24, with a denominator up to 1024, not {scale}"
        )
    drawn = np.empty(count, np.int64)
    pending = np.arange(count)
    while len(pending):
        rest = _uniform_below(chance, a, len(pending))
        accepted = _bernoulli_exp(chance, rest, a)
        pending, rejected, rest = pending[accepted], pending[~accepted], rest[accepted]
        whole = _geometric(chance, len(pending))
        size = ((rest + np.uint64(a) * whole) // np.uint64(b)).astype(np.int64)
        negative = chance(len(pending)) & np.uint64(1) == 1
        again = negative & (size == 0)  # otherwise zero would result from both signs
        drawn[pending] = np.where(negative, -size, size)
        pending = np.concatenate((rejected, pending[again]))
    return drawn


def discrete_gaussian(chance: RandomWords, variance: int, count: int) -> Integers:
    """Return `count` draws of discrete Gaussian noise of parameter `variance`, from 1 to 2^24."""
    if not 1 <= variance <= MAX_VARIANCE:
        raise ValueError(f"variance must be from 1 to 2^24, not {variance}")
    t = math.isqrt(variance) + 1
    drawn = np.empty(count, np.int64)
    pending = np.arange(count)
    while len(pending):
        proposed = discrete_laplace(chance, Fraction(t), len(pending))
        # Below 2^63 unless |proposed| > 2^7 t, which has probability exp(-128).
        off = (np.abs(proposed) * t - variance).astype(np.int64)
        accepted = _bernoulli_exp_any(chance, (off * off).astype(np.uint64), 2 * variance * t * t)
        drawn[pending[accepted]] = proposed[accepted]
        pending = pending[~accepted]
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
    pending = np.arange(count)
    while len(pending):
        up, down = rng.geometric(-math.expm1(-1 / t), (2, len(pending)))
        acceptance = np.exp(-((np.abs(up - down) - total / t) ** 2) / (2 * total))
        accepted = rng.random(len(pending)) < acceptance
        drawn[pending[accepted]] = (up - down)[accepted]
        pending = pending[~accepted]
    return drawn


def laplace_variance(scale: Fraction) -> float:
    """Return the variance of one draw: 2 r / (1 - r)^2, about 2 t^2."""
    return 1 / (2 * math.sinh(1 / (2 * scale)) ** 2)


def _uniform_below(chance: RandomWords, bound: int, count: int) -> Words:
    """Return `count` integers, exactly uniform below `bound` <= 2^63."""
    if bound <= _MAX_SHORT_BOUND:
        return uniform_below(chance, bound, count)
    shift = np.uint64(64 - (bound - 1).bit_length())
    drawn = chance(count) >> shift
    while len(over := np.flatnonzero(drawn >= np.uint64(bound))):
        drawn[over] = chance(len(over)) >> shift
    return drawn


def _bernoulli_exp(chance: RandomWords, above: Words, under: int) -> Flags:
    """Return outcomes of probability exp(-above / under), for `above` <= `under`.

    The first k for which an event of probability above / (under k) fails is odd with this
    probability.
    """
    happened = np.zeros(len(above), np.bool_)
    running, k = np.arange(len(above)), 1
    while len(running):
        succeeds = _uniform_below(chance, under * k, len(running)) < above[running]
        happened[running[~succeeds]] = k % 2 == 1
        running, k = running[succeeds], k + 1
    return happened


def _bernoulli_exp_any(chance: RandomWords, above: Words, under: int) -> Flags:
    """Return outcomes of probability exp(-above / under), where the quotient may exceed 1."""
    happened = _geometric(chance, len(above)) >= above // np.uint64(under)
    sure = np.flatnonzero(happened)
    happened[sure] = _bernoulli_exp(chance, above[sure] % np.uint64(under), under)
    return happened


def _geometric(chance: RandomWords, count: int) -> Words:
    """Return the number of times that an event of probability 1 / e happens before it fails."""
    times = np.zeros(count, np.uint64)
    running = np.arange(count)
    while len(running):
        ones = np.ones(len(running), np.uint64)
        running = running[_bernoulli_exp(chance, ones, 1)]
        times[running] += np.uint64(1)
    return times
