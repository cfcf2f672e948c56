"""Thinned counts: random parts of sums modulo p, which show how many windows of p are missing.

All that devices compute from a count without a coin is a function of the count modulo p, so no
total and no check shows that a count left its window. But a device can keep each copy with
probability q: then q of M missing windows, q M p, is missing from what the kept copies lead to
expect. There are three levels, with coins of their own and q = 1/4, 1/16 and 1/32. The first shows
M modulo 4, the second M modulo 16, and the third M modulo 32. For example, with p = 521 an item
that rose from 100 to 700 misses one window: 130 more copies than expected are kept at the first
level.

Counts of a *class* are thinned together. A class is small enough for p/4 to be eight standard
deviations at the first level: S copies have the deviation sqrt(3 S)/4. Nothing would show that 32
windows are missing, and little that 27 to 31 are. So p is above 1/26 of all tokens that devices may
hold (`mechanism.round_primes`). Missing windows are hidden if the thinned counts are by
chance e^10 times as likely without them: in 4 of 10^7 rounds with p from 61 to 521, which missed 1
to 26 windows of classes that held what was expected or three times as much.

Source: an addition of blindtally.
"""

import math

import numpy as np

from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.numerics.array_types import Floats, Indices, Integers, Words

LEVELS = ((0, 2), (2, 4), (6, 5))  # the first bit of a coin in a random word, and its bits
PICK_BITS = 53  # upper bits of the word, which no coin uses
# Of a few copies, none or one is kept: without it one copy of one would surprise by 31 variances.
_ROUNDING_VARIANCE = 0.5


def thin(classes: Indices, words: Words, number: int) -> Integers:
    """Return the kept copies by level and class, levels x `number`; each copy has a random word."""
    kept = [
        classes[(words >> np.uint64(first)) & np.uint64(2**bits - 1) == 0] for first, bits in LEVELS
    ]
    return np.stack([np.bincount(each, minlength=number) for each in kept])


def squared_surprises(sums: Integers, p: int, thinned: Integers) -> tuple[Floats, Floats]:
    """Return for each of `sums` of a class by how many variances its `thinned` counts differ.

    These are modulo `p`, one for each level. If a sum is right, the first result is chi-squared
    with three degrees of freedom, about; the second has the sums of the logarithms of variances.
    """
    squares, logarithms = np.zeros((2, len(sums)))
    for (_, bits), kept in zip(LEVELS, thinned.tolist(), strict=True):
        share = 2.0**-bits
        expected = share * np.maximum(sums, 0)
        off = (kept - expected + p / 2) % p - p / 2
        variances = expected * (1 - share) + _ROUNDING_VARIANCE
        squares += off**2 / variances
        logarithms += np.log(variances)
    return squares, logarithms


def window_doubt(
    total: int, p: int, thinned: Integers, below: int = 0, most: float = math.inf
) -> tuple[float, float]:
    """Return how a class's `thinned` counts differ from the `total` that was read of it.

    The first result is chi-squared. The second is the logarithm of the odds of `total` against the
    likeliest other one up to `most`: it may miss windows of `p`, or have up to `below` too many.
    For example, of a class with p = 181 that holds 505 copies, 324 may be read. This may surprise
    by 9 only, since the class is beyond its limit of 171, but 505 surprises by 2.
    """
    above = max_windows(total, p, most)
    windows = np.append(0, np.delete(np.arange(-below, above + 1), below))
    squares, logarithms = squared_surprises(total + windows * p, p, thinned)
    surprises = squares + logarithms
    return float(squares[0]), float(surprises[1:].min(initial=np.inf) - surprises[0]) / 2


def max_windows(total: int, p: int, most: float) -> int:
    """Return how many windows of `p` a class may miss if all devices hold `most` copies."""
    return int(np.clip((most - total) / p, 0, tuning.MAX_CLASS_WINDOWS))


def class_limit(p: int) -> float:
    """Return the largest expected sum of a class."""
    return (p / 32) ** 2 / (3 / 16)


def table_class_limit(p: int) -> float:
    """Return the largest expected sum of a class of a table.

    It is half as much as that of counters, because a table is read whole or not at all.
    """
    return class_limit(p) / 2
