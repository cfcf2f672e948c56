"""Sources of a device's randomness: uniform 64-bit words, and integers made of them.

A report is locally private only if its noise is unpredictable, and a sampled count only if its
coins are. So programs use the words of the operating system; a seeded generator is for tests and
simulations. All noise is made from these words by integer arithmetic: comparisons of floating-point
numbers would leave gaps in the output that distinguish inputs [Mironov12].
"""

import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

RandomWords: TypeAlias = Callable[[int], NDArray[np.uint64]]  # of a number: uniform words

_MAX_BOUND = 2**32


def system_words(count: int) -> NDArray[np.uint64]:
    """Return `count` words of the operating system's randomness."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def seeded_words(generator: np.random.Generator) -> RandomWords:
    """Return the words of a seeded `generator`, for tests and simulations: they are not secret."""
    return lambda count: generator.integers(0, 2**64, count, np.uint64)


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


def uniform_floats(chance: RandomWords, count: int) -> NDArray[np.float64]:
    """Return `count` independent numbers in [0, 1), multiples of 2^-53, for sampling."""
    return np.asarray((chance(count) >> np.uint64(11)) * 2.0**-53, np.float64)


def bernoulli(chance: RandomWords, of_2_64: int, count: int) -> NDArray[np.bool_]:
    """Return `count` independent outcomes, each true with probability `of_2_64` / 2^64 exactly."""
    if not 0 <= of_2_64 <= 2**64:
        raise ValueError(f"of_2_64 must be between 0 and 2^64, not {of_2_64}")
    if of_2_64 == 2**64:
        return np.ones(count, np.bool_)
    return chance(count) < np.uint64(of_2_64)
