"""Posteriors under measured noise list almost nothing that only noise shows."""

import numpy as np
import pytest

from protocol.estimation.empirical_bayes import Posterior, normal_posterior
from protocol.numerics.array_types import Floats
from protocol.reference_mechanisms.measured_noise import MeasuredNoise, posterior_with_noise

_ITEMS, _KEYS_OF_NOBODY, _THRESHOLD = 20_000, 2**14, 49.5


def _noise(rng: np.random.Generator, count: int) -> tuple[Floats, Floats]:
    """Return errors with heavy tails, a tenth of them three times as wide, and their variances."""
    deviations = np.where(rng.random(count) < 0.1, 30.0, 10.0)
    return deviations * rng.standard_t(3, count) / np.sqrt(3), deviations**2


def _study(seed: int) -> tuple[Floats, Floats, Floats, MeasuredNoise]:
    """Return true counts by rank^-1.5, their scores with variances, and the noise of nobody."""
    rng = np.random.default_rng(seed)
    truth = np.floor(1e5 * np.arange(1.0, _ITEMS + 1) ** -1.5)
    errors, variances = _noise(rng, _ITEMS)
    return truth, truth + errors, variances, MeasuredNoise(*_noise(rng, _KEYS_OF_NOBODY))


def _covered(result: Posterior, truth: Floats) -> float:
    """Return the share of listed items within 1.96 standard errors."""
    listed = result.heavy >= 0.5
    z_scores = (result.means - truth) / np.sqrt(np.maximum(result.variances, 1 / 12))
    return float((np.abs(z_scores[listed]) < 1.96).mean())


def test_intervals_of_listed_items_hold_under_noise_with_heavy_tails() -> None:
    """About 150 items are listed.

    With ten seeds 0.91 to 0.98 of the intervals held, and the expected number of heavy items among
    the listed ones was within 16 of the true one, so that another seed fails with probability below
    0.01. With normal errors 0.78 to 0.86 of the intervals held.
    """
    truth, scores, variances, noise = _study(seed=1)
    result = posterior_with_noise(scores, variances, _THRESHOLD, noise)
    assert _covered(result, truth) > 0.89
    listed = result.heavy >= 0.5
    assert abs(result.heavy[listed].sum() - (truth >= 50)[listed].sum()) < 24
    assert _covered(normal_posterior(scores, variances, _THRESHOLD), truth) < 0.9


def test_frequent_items_keep_their_scores() -> None:
    rng = np.random.default_rng(2)
    truth = np.floor(1e5 * np.arange(1.0, _ITEMS + 1) ** -1.5)
    scores, variances = truth + rng.normal(0, 10, _ITEMS), np.full(_ITEMS, 100.0)
    noise = MeasuredNoise(rng.normal(0, 10, _KEYS_OF_NOBODY), np.full(_KEYS_OF_NOBODY, 100.0))
    result = posterior_with_noise(scores, variances, _THRESHOLD, noise)
    frequent = truth > 1_000
    assert result.means[frequent] == pytest.approx(scores[frequent], rel=1e-3)
    assert result.variances[frequent] == pytest.approx(variances[frequent], rel=0.4)
    assert (result.heavy[frequent] > 0.999).all()


def test_without_noise_scores_are_exact() -> None:
    counts, zeros = np.array([0.0, 3.0, 80.0, 400.0]), np.zeros(4)
    noise = MeasuredNoise(np.zeros(100), np.zeros(100))
    result = posterior_with_noise(counts, zeros, _THRESHOLD, noise)
    assert result.means == pytest.approx(counts, abs=0.3)
    assert (result.heavy > 0.99).tolist() == [False, False, True, True]


def test_no_items_have_an_empty_posterior() -> None:
    nothing = np.zeros(0)
    result = posterior_with_noise(nothing, nothing, 1.0, MeasuredNoise(nothing, nothing))
    assert len(result.means) == len(result.heavy) == 0
