"""Distributions of discrete Laplace and Gaussian noise, and of sums of draws."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.randomness import system_words
from protocol.reference_mechanisms.hsu2012_oracles.discrete_noise import (
    discrete_gaussian,
    discrete_laplace,
    gaussian_sum,
    laplace_sum,
    laplace_variance,
)
from tests.protocol.chance import fit, seeded

DRAWS = 200_000


def laplace_probabilities(scale: Fraction, points: NDArray[np.int64]) -> NDArray[np.float64]:
    r = np.exp(-1 / float(scale))
    return np.asarray((1 - r) / (1 + r) * r ** np.abs(points))


def gaussian_probabilities(variance: float, points: NDArray[np.int64]) -> NDArray[np.float64]:
    weights = np.exp(-(points**2) / (2 * variance))
    return np.asarray(weights / weights.sum())


# Each of these fails with probability 1e-4 under another seed.
@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(1), Fraction(7, 3), Fraction(641, 64)])
def test_laplace_noise_has_its_distribution(scale: Fraction) -> None:
    points = np.arange(-200, 201)
    drawn = discrete_laplace(seeded(1), scale, DRAWS)
    assert fit(drawn, points, laplace_probabilities(scale, points)) > 1e-4


@pytest.mark.parametrize("variance", [1, 2, 17, 400])
def test_gaussian_noise_has_its_distribution(variance: int) -> None:
    points = np.arange(-300, 301)
    drawn = discrete_gaussian(seeded(2), variance, DRAWS)
    assert fit(drawn, points, gaussian_probabilities(variance, points)) > 1e-4


def test_the_chi_square_test_notices_a_wrong_scale() -> None:
    points = np.arange(-200, 201)
    drawn = discrete_laplace(seeded(1), Fraction(7, 3), DRAWS)
    assert fit(drawn, points, laplace_probabilities(Fraction(12, 5), points)) < 1e-4
    drawn = discrete_gaussian(seeded(2), 17, DRAWS)
    assert fit(drawn, points, gaussian_probabilities(17.4, points)) < 1e-4


def test_wide_noise_has_its_variance_and_fourth_moment() -> None:
    # Standard errors are 0.5% and 2.2% (Laplace: kurtosis 6), 0.3% and 1% (Gaussian).
    words = seeded(3)
    laplace = discrete_laplace(words, Fraction(30_001, 64), DRAWS).astype(float)
    assert (laplace**2).mean() == pytest.approx(laplace_variance(Fraction(30_001, 64)), rel=0.02)
    assert (laplace**4).mean() / (laplace**2).mean() ** 2 == pytest.approx(6, rel=0.09)
    gaussian = discrete_gaussian(words, 2**24, DRAWS).astype(float)
    assert (gaussian**2).mean() == pytest.approx(2**24, rel=0.013)
    assert (gaussian**4).mean() / (gaussian**2).mean() ** 2 == pytest.approx(3, rel=0.04)


def test_sums_are_distributed_as_sums_of_draws() -> None:
    # Chi-square against convolutions: each fails with probability 1e-4 under another seed.
    points, rng = np.arange(-400, 401), np.random.default_rng(4)
    for terms in (1, 3, 20):
        single = laplace_probabilities(Fraction(5, 2), points)
        probabilities = single
        for _ in range(terms - 1):
            probabilities = np.convolve(probabilities, single, "same")
        assert fit(laplace_sum(rng, Fraction(5, 2), terms, DRAWS), points, probabilities) > 1e-4
        single = probabilities = gaussian_probabilities(16, points)
        for _ in range(terms - 1):
            probabilities = np.convolve(probabilities, single, "same")
        assert fit(gaussian_sum(rng, 16, terms, DRAWS), points, probabilities) > 1e-4


def test_the_sum_of_a_hundred_million_costs_as_much_as_one() -> None:
    rng, terms = np.random.default_rng(5), 10**8
    scale, draws = Fraction(450), 20_000  # standard error of the variance: 1%
    assert laplace_sum(rng, scale, terms, draws).var() == pytest.approx(
        terms * laplace_variance(scale), rel=0.04
    )
    assert gaussian_sum(rng, 36_100, terms, draws).var() == pytest.approx(terms * 36_100, rel=0.04)


def test_scales_and_variances_out_of_range_are_refused() -> None:
    for scale in (Fraction(0), Fraction(-1), Fraction(2**24), Fraction(1, 2000)):
        with pytest.raises(ValueError, match="scale must be above 0"):
            discrete_laplace(system_words, scale, 1)
    for variance in (0, -5, 2**24 + 1):
        with pytest.raises(ValueError, match="variance must be from 1"):
            discrete_gaussian(system_words, variance, 1)
