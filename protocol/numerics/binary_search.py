"""Searches for the smallest number for which a condition holds."""

from bisect import bisect_left
from collections.abc import Callable

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
