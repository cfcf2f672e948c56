"""The posterior of counts outside their windows is that of all possible sets of counts."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import nbinom

from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.window_posterior import GroupLaws, read_windows
from protocol.numerics.array_types import Floats, Integers

PRIME = 10_007
WINDOW = 8
SHIFTS = (-1, 0, 1, 2)
COUNTS, MEANS = np.array([9, 4, 12, 3, 17, 1]), np.array([5.0, 3.0, 10.0, 6.0, 12.0, 2.0])
DEVIATIONS = 1.3 * np.sqrt(MEANS)


def priors(share: float, counts: Integers, means: Floats, deviations: Floats) -> Floats:
    """Return the prior probabilities of all possible counts (n, k), by their definition."""
    means, variances = means[:, np.newaxis], deviations[:, np.newaxis] ** 2
    usual = nbinom.pmf(counts, means**2 / (variances - means), means / variances)
    changed = means / (2 * np.maximum(means, counts) ** 2)
    return np.where(counts >= 0, (1 - share) * usual + share * changed, 0.0)


def _sets(windows: int) -> tuple[Integers, Floats]:
    """Return all sets of shifts that add up to `windows`, as columns, and their probabilities."""
    columns = np.array(list(product(range(len(SHIFTS)), repeat=len(COUNTS))))
    columns = columns[np.array(SHIFTS)[columns].sum(axis=1) == windows]
    rows, possible = np.arange(len(COUNTS)), COUNTS[:, np.newaxis] + WINDOW * np.array(SHIFTS)
    shares = [priors(2.0**-power, possible, MEANS, DEVIATIONS) for power in range(1, 11)]
    parts = [share[rows, columns].prod(axis=1) for share in shares]
    return columns, max(parts, key=lambda part: float(part.sum()))


@pytest.fixture(autouse=True)
def few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MAX_WINDOWS_BELOW", 1)
    monkeypatch.setattr(tuning, "MAX_WINDOWS_ABOVE", 2)


@pytest.mark.parametrize("windows", [-1, 0, 1, 3])
def test_without_a_set_that_agrees_all_larger_sets_remain(windows: int) -> None:
    """No set has a check of 5,000. Those of one or two moves are tried, so larger ones remain."""
    laws = GroupLaws(np.arange(1, 7), PRIME, windows, 5000)
    read = read_windows(COUNTS, WINDOW, MEANS, DEVIATIONS, laws)
    columns, chances = _sets(windows)
    marginals = np.stack([chances @ (columns == k) for k in range(len(SHIFTS))], axis=1)
    is_larger = (columns != marginals.argmax(axis=1)).sum(axis=1) > 2
    columns, chances = columns[is_larger], chances[is_larger] / chances[is_larger].sum()
    marginals = np.stack([chances @ (columns == k) for k in range(len(SHIFTS))], axis=1)
    best = marginals.argmax(axis=1)
    assert read.counts.tolist() == (COUNTS + WINDOW * np.array(SHIFTS)[best]).tolist()
    squares = (WINDOW * (np.array(SHIFTS) - np.array(SHIFTS)[best][:, np.newaxis])) ** 2
    assert read.squared_errors == pytest.approx((marginals * squares).sum(axis=1))


@pytest.mark.parametrize(
    "moves", [(0, 0, 0, 0, 0, 0), (0, 2, 0, 0, 0, 0), (1, 0, 0, 0, -1, 1), (0, 1, 2, 0, 0, 0)]
)
def test_a_set_that_agrees_is_the_truth(moves: tuple[int, ...]) -> None:
    """The check is modulo a prime of 24 bits: no other of the 4,096 sets has it."""
    weights, prime = np.array([5, 700, 90_001, 1_200_003, 44, 16_000_007]), 16_777_213
    check = int((weights * WINDOW * np.array(moves)).sum()) % prime
    laws = GroupLaws(weights, prime, sum(moves), check)
    read = read_windows(COUNTS, WINDOW, MEANS, DEVIATIONS, laws)
    assert read.counts.tolist() == (COUNTS + WINDOW * np.array(moves)).tolist()
    assert read.squared_errors is None


def test_two_sets_that_agree_are_weighed() -> None:
    """The first two items have the same weight and counts, so either may have left its window."""
    counts, means = np.array([9, 9, 12]), np.array([5.0, 5.0, 10.0])
    laws = GroupLaws(np.array([3, 3, 100]), PRIME, 1, 3 * WINDOW)
    read = read_windows(counts, WINDOW, means, np.sqrt(means), laws)
    assert read.squared_errors is not None
    assert (read.squared_errors[:2] > WINDOW**2 / 4).all()
    assert read.squared_errors[0] == pytest.approx(read.squared_errors[1])
    assert read.squared_errors[2] < 0.01
