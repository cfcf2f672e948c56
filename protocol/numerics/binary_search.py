"""Searches for the smallest number for which a condition holds."""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.arrays import Floats

_MAX_STEPS = 60


def first_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest integer from `low` for which it `holds`, or `high` if none is below."""
    return min(high, low + bisect_left(range(low, high), True, key=holds))


def boundary(
    holds: Callable[[float], bool], low: float, high: float, tolerance: float = 0.0
) -> float:
    """Return a number up to `high` for which it `holds`, the smallest to a part of `tolerance`.

    It must hold for `high`, which is returned if no smaller number is found.
    """
    for _ in range(_MAX_STEPS):
        if high - low <= tolerance * high:
            break
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def first_counts(holds: Callable[[Floats], NDArray[np.bool_]], start: Floats) -> Floats:
    """Return for each entry the smallest whole number >= 0 for which `holds` is true, by bisection.

    `holds` takes a number for each entry; it is false up to a number, and true above. `start` has a
    first guess of an upper end, which is doubled where it is too small.
    """
    low, high = np.full(start.shape, -1.0), start
    while not (reached := holds(high)).all():
        low, high = np.where(reached, low, high), np.where(reached, high, 2 * high + 1)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        reached = holds(middle)
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high
