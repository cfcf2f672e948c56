"""Totals of tracked items that sketches show in earlier rounds."""

import numpy as np
import pytest

from protocol.estimation.change_points import segmented_totals
from protocol.estimation.history import History
from protocol.estimation.segments import ChangeRates
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


@pytest.mark.parametrize("assumed", [5.0, 20.0])
def test_items_may_be_absent_from_blocks_with_sketches(assumed: float) -> None:
    """Items with 20 tokens per block, of which a share of 0.15 appears in a random block.

    Sketches show the first 10 of 20 blocks with a noise of 1000, where `assumed` tokens are
    expected. With four seeds, errors were 0.95 to 1.07 times as large as stated, so that another
    fails with probability below 1e-3. They were 1.78 to 2.0 times as large while any tokens in a
    sketch showed that the item was not absent.
    """
    rng, devices = np.random.default_rng(7), np.full(20, 10_000.0)
    first = np.where(rng.random(2_000) < 0.15, rng.integers(1, 20, 2_000), 0)[:, np.newaxis]
    first = first[first[:, 0] <= 10]
    counts = rng.poisson(np.where(np.arange(20) < first, 0.0, 20.0))
    is_later = np.broadcast_to(np.arange(20) >= 10, counts.shape)
    sketched = counts + rng.normal(0, 1000**0.5, counts.shape)
    observed, exposure = np.where(is_later, counts, 0.0), np.where(is_later, devices, 0.0)
    history = History(observed, exposure, devices, sketched, np.where(is_later, np.inf, 1000.0))
    rates = np.where(is_later, 20.0, assumed) / devices
    got = segmented_totals(with_sketches(history, rates), ChangeRates(np.full(20, 1e-4)))
    z_scores = (got.totals - counts.sum(axis=1)) / np.sqrt(got.variances)
    assert 0.8 < np.sqrt((z_scores**2).mean()) < 1.2
