"""Randomness of tests, seeded or written down, and a test of fit."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from protocol.numerics.array_types import Integers
from protocol.randomness import RandomWords, seeded_words


def seeded(seed: int) -> RandomWords:
    """Return a source of random words that repeats."""
    return seeded_words(np.random.default_rng(seed))


def only(word: int) -> RandomWords:
    return lambda count: np.full(count, word, np.uint64)


def no_words(count: int) -> NDArray[np.uint64]:
    raise AssertionError(count)


def fit(drawn: Integers, points: Integers, probabilities: NDArray[np.float64]) -> float:
    """Return the p-value of `drawn` if `points`, which ascend by 1, have `probabilities`.

    Points that fewer than 10 draws are expected of are pooled with all that is elsewhere.
    """
    expected, offsets = probabilities * len(drawn), drawn - points[0]
    common = expected >= 10
    inside = offsets[(offsets >= 0) & (offsets < len(points))]
    seen = np.bincount(inside, minlength=len(points))[common]
    statistic = ((seen - expected[common]) ** 2 / expected[common]).sum()
    rest = len(drawn) - expected[common].sum()
    if rest > 1:
        statistic += (len(drawn) - seen.sum() - rest) ** 2 / rest
    return float(chi2.sf(statistic, common.sum() - (rest <= 1)))
