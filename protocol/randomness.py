"""Sources of a device's randomness: uniform 64-bit words, and integers and answers made of them.

A report is locally private only if its noise is unpredictable, and a sampled count only if its
coins are. So programs use the words of the operating system; a seeded generator is for tests and
simulations. All noise is made from these words by integer arithmetic: comparisons of floating-point
numbers would leave gaps in the output that distinguish inputs [Mironov12].

Probabilities that keep a promise of privacy are exact. The device compares a uniform word with an
integer T, so an outcome has probability T / 2^64. T is rounded toward privacy: with g at most
e^epsilon, favouring w of v + w outcomes has the probability

    T / 2^64  <=  w g / (w g + v)       so   (T / w) / ((2^64 - T) / v)  <=  g  <=  e^epsilon

Source: k-ary randomized response is [Warner65] generalised, as in [Kairouz16, section 2].
"""

import os
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Codes
from secagg.keys import Keystream

RandomWords: TypeAlias = Callable[[int], NDArray[np.uint64]]  # of a number: uniform words

PROBABILITY_ONE = 2**64
_MAX_BOUND = 2**32
_EXP_DIGITS = 80
_EXP_RELATIVE_ERROR = Decimal("1e-70")


def system_words(count: int) -> NDArray[np.uint64]:
    """Return `count` words of the operating system's randomness."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def seeded_words(generator: np.random.Generator) -> RandomWords:
    """Return the words of a seeded `generator`, for tests and simulations: they are not secret."""
    return lambda count: generator.integers(0, 2**64, count, np.uint64)


def keyed_words(key: bytes) -> RandomWords:
    """Return the words of the AES-CTR stream under a 32-byte `key`, the same ones each time."""
    stream = Keystream(key)

    def words(count: int) -> NDArray[np.uint64]:
        drawn = np.empty(count, "<u8")
        stream.fill(drawn)
        return drawn

    return words


def uniform_below(chance: RandomWords, bound: int, count: int) -> NDArray[np.uint64]:
    """Return `count` independent integers, exactly uniform below `bound`, from 1 to 2^32.

    The upper half x of a word gives floor(x bound / 2^32), unless the remainder of this division is
    one of the 2^32 mod `bound` that would make some integers more likely than others. Then
    another word is drawn [Lemire19].
    """
    if not 1 <= bound <= _MAX_BOUND:
        raise ValueError(f"bound must be between 1 and 2^32, not {bound}")
    surplus = _MAX_BOUND % bound
    product = (chance(count) >> np.uint64(32)) * np.uint64(bound)
    if surplus:
        refused = np.flatnonzero((product & np.uint64(_MAX_BOUND - 1)) < surplus)
        while len(refused):
            product[refused] = (chance(len(refused)) >> np.uint64(32)) * np.uint64(bound)
            refused = refused[(product[refused] & np.uint64(_MAX_BOUND - 1)) < surplus]
    return product >> np.uint64(32)


def uniform_integer(chance: RandomWords, bound: int) -> int:
    """Return an integer that is exactly uniform below `bound`, from 1 to 2^64.

    It is the upper bits of a word, as many as the largest integer has. Words above it are refused.
    """
    unused = 64 - (bound - 1).bit_length()
    while (drawn := int(chance(1)[0]) >> unused) >= bound:
        pass
    return drawn


def uniform_floats(chance: RandomWords, count: int) -> NDArray[np.float64]:
    """Return `count` independent numbers in [0, 1), multiples of 2^-53, for sampling."""
    return np.asarray((chance(count) >> np.uint64(11)) * 2.0**-53, np.float64)


def bernoulli(chance: RandomWords, of_2_64: int, count: int) -> NDArray[np.bool_]:
    """Return `count` independent outcomes, each true with probability `of_2_64` / 2^64 exactly."""
    if not 0 <= of_2_64 <= PROBABILITY_ONE:
        raise ValueError(f"of_2_64 must be between 0 and 2^64, not {of_2_64}")
    if of_2_64 == PROBABILITY_ONE:
        return np.ones(count, np.bool_)
    return chance(count) < np.uint64(of_2_64)


@cache
def exp_lower_bound(epsilon: float) -> Fraction:
    """Return a fraction below e^`epsilon` by at most a part of 10^70."""
    with localcontext() as context:
        context.prec = _EXP_DIGITS
        return Fraction(Decimal(epsilon).exp() * (1 - _EXP_RELATIVE_ERROR))


@cache
def favoured_of_2_64(epsilon: float, favoured: int, others: int) -> int:
    """Return the largest T, where a value favours `favoured` outcomes over `others`."""
    weight = favoured * exp_lower_bound(epsilon)
    return int(PROBABILITY_ONE * weight / (weight + others))


def randomize(chance: RandomWords, symbols: Codes, among: int, keep: int) -> Codes:
    """Return each of `symbols` with probability `keep` / 2^64, otherwise one of the others.

    There are `among` symbols; all others have the same probability.
    """
    kept = bernoulli(chance, keep, len(symbols))
    others = uniform_below(chance, among - 1, len(symbols))
    others += (others >= symbols).astype(np.uint64)
    return np.where(kept, symbols, others)
