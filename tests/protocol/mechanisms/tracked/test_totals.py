"""Totals of tracked items that sketches show in earlier rounds."""

import numpy as np
import pytest

from protocol.change_points import ChangeRates, History, segmented_totals
from protocol.mechanisms.tracked.totals import with_sketches


def test_a_sketch_leaves_the_variance_of_a_gaussian_observation() -> None:
    """10 blocks of 100 hidden tokens, which are Poisson, each seen with an error of variance 50."""
    devices = np.full(10, 1000.0)
    rates, zeros = np.full((1, 10), 0.1), np.zeros((1, 10))
    counts, noise = np.full((1, 10), 100.0), np.full((1, 10), 50.0)
    history = with_sketches(History(zeros, zeros, devices, counts, noise), rates)
    assert history.exposure == pytest.approx(np.full((1, 10), 2 / 3 * 1000))
    assert history.observed == pytest.approx(np.full((1, 10), 2 / 3 * 100))
    got = segmented_totals(history, ChangeRates(np.zeros(10)))
    assert got.totals[0] == pytest.approx(1000, rel=1e-3)
    # 10 blocks of 100 x 50 / 150, and half as much again since the rate is measured as well.
    assert got.variances[0] == pytest.approx(1000 / 3 * 1.5, rel=0.01)
