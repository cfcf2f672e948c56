"""Where a device's chance comes from, in bulk: uniform 64-bit words, and integers made of them.

A report is locally private only if nobody can foresee its noise, and a sampled count only if
nobody can foresee its coins, so the programs take the words of the operating system; a generator
with a seed is for tests and simulations. All noise is made from these words by integer
arithmetic: comparing floating-point numbers would leave holes in the output that tell inputs
apart [Mironov12].
"""

import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Chance: TypeAlias = Callable[[int], NDArray[np.uint64]]  # so many independent uniform words

_MOST = 2**32


def system(count: int) -> NDArray[np.uint64]:
    """Return `count` words of the operating system's randomness."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def seeded(generator: np.random.Generator) -> Chance:
    """Return the chance that `generator` makes: for tests and simulations, nothing secret."""
    return lambda count: generator.integers(0, 2**64, count, np.uint64)


def below(chance: Chance, bound: int, count: int) -> NDArray[np.uint64]:
    """Return `count` independent integers, exactly uniform below `bound`.

    A word's upper half x gives floor(x bound / 2^32), unless the rest of that division is one
    of the 2^32 mod `bound` that would make some integers likelier: then another is drawn
    [Lemire19].

    Raises:
        ValueError: if `bound` is not within 1 to 2^32.
    """
    if not 1 <= bound <= _MOST:
        raise ValueError(f"bound must be within 1 and 2^32, not {bound}")
    surplus = _MOST % bound
    product = (chance(count) >> np.uint64(32)) * np.uint64(bound)
    if surplus:
        refused = np.flatnonzero((product & np.uint64(_MOST - 1)) < surplus)
        while len(refused):
            product[refused] = (chance(len(refused)) >> np.uint64(32)) * np.uint64(bound)
            refused = refused[(product[refused] & np.uint64(_MOST - 1)) < surplus]
    return product >> np.uint64(32)


def uniforms(chance: Chance, count: int) -> NDArray[np.float64]:
    """Return `count` independent numbers from 0 to below 1, multiples of 2^-53.

    For sampling where only statistics hang on the odds: they are right to 2^-53.
    """
    return np.asarray((chance(count) >> np.uint64(11)) * 2.0**-53, np.float64)


def happens(chance: Chance, of_2_64: int, count: int) -> NDArray[np.bool_]:
    """Return `count` independent outcomes, each true with odds of exactly `of_2_64` / 2^64.

    Raises:
        ValueError: if `of_2_64` is not within 0 and 2^64.
    """
    if not 0 <= of_2_64 <= 2**64:
        raise ValueError(f"odds must be within 0 and 2^64, not {of_2_64}")
    if of_2_64 == 2**64:
        return np.ones(count, np.bool_)
    return chance(count) < np.uint64(of_2_64)
