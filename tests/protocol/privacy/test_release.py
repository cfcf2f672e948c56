"""Counts that are shown are right on average; no coin is more probable than its parameter."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, skellam

from protocol.privacy.release import Release
from tests.protocol.chance import no_words, only, seeded


def sampled(probability: float, theta: int) -> Release:
    return Release(probability=probability, threshold=theta, variance=0.0)


@pytest.mark.parametrize("theta", [1, 2, 5, 12, 20])
@pytest.mark.parametrize("p", [0.01, 0.145593, 0.5, 0.93])
def test_a_shown_count_is_right_on_average(p: float, theta: int) -> None:
    release = sampled(p, theta)
    for k in (theta, theta + 1, 2 * theta, 10 * theta, 400):
        x = np.arange(theta, k + 1)
        probabilities = binom.pmf(x, k, p)
        counts, _ = release.estimate_counts(x, 0.0)
        assert (counts * probabilities).sum() == pytest.approx(k * probabilities.sum(), rel=1e-12)


def test_the_variance_that_is_stated_is_that_of_coins() -> None:
    p, k = 0.2, 500
    x = np.arange(k + 1)
    probabilities = binom.pmf(x, k, p)
    counts, variances = sampled(p, 1).estimate_counts(x[1:], 0.0)
    spread = (counts**2 * probabilities[1:]).sum() - k**2
    assert (variances * probabilities[1:]).sum() == pytest.approx(spread, rel=1e-6)


def shown_in_noise(theta: int, variance: float, held: int) -> tuple[NDArray[np.float64], float]:
    """Return the counts shown by 400,000 sums of `held` votes with noise, and the stated bias.

    The bias is s/2 (P(theta - 1) + P(theta)) / P(X >= theta), as `Release.counts` has it.
    """
    half = variance / 2
    sums = held + skellam.rvs(half, half, size=400_000, random_state=held)
    release = Release(probability=1.0, threshold=theta, variance=variance)
    counts, variances = release.estimate_counts(sums[sums >= theta], variance)
    assert (variances == variance).all()
    at = skellam.pmf([theta - 1 - held, theta - held], half, half).sum()
    return counts, float(half * at / skellam.sf(theta - 1 - held, half, half))


@pytest.mark.parametrize(("held", "most"), [(20, 1.2), (24, 1.0), (30, 0.5), (60, 0.01)])
def test_counts_that_are_shown_in_noise_have_the_stated_bias(held: int, most: float) -> None:
    """Near theta about a deviation, here 4, and next to nothing above."""
    counts, bias = shown_in_noise(24, 16.0, held)
    error = counts.std() / len(counts) ** 0.5
    assert abs(counts.mean() - held - bias) < 4.5 * error  # fails with probability 1e-5
    assert bias < most * 4 + 0.01 or held < 24


def test_counts_are_never_negative() -> None:
    release = Release(probability=0.5, threshold=1, variance=4.0)
    counts, variances = release.estimate_counts(np.array([1, 2]), 4.0)
    assert counts.tolist() == [2, 4]
    assert variances.tolist() == [2 + 16, 4 + 16]


@pytest.mark.parametrize(
    "p", [1e-6, 0.1, 1 / 3, 0.145593, 0.5, 0.9, 1 - 2**-53, math.nextafter(0.25, 1)]
)
def test_a_coin_never_has_a_probability_above_p(p: float) -> None:
    """Heads are the words below an integer: the largest that is p 2^64 at most."""
    release = sampled(p, 2)
    below = math.floor(Fraction(p) * 2**64)
    assert Fraction(below, 2**64) <= Fraction(p) < Fraction(below + 1, 2**64)
    assert release.vote_coins(only(below - 1), 3).all()
    assert not release.vote_coins(only(below), 3).any()


def test_without_coins_all_votes_count_and_no_chance_is_drawn() -> None:
    release = Release(probability=1.0, threshold=2, variance=1.0)
    assert release.vote_coins(no_words, 4).all()
    assert release.mode == "noise"


def test_coins_have_their_probability() -> None:
    heads = sampled(0.145593, 2).vote_coins(seeded(1), 10**6).sum()
    assert abs(heads - 145_593) < 4.5 * (145_593 * 0.854) ** 0.5


def test_noise_has_a_reach_and_none_has_none() -> None:
    noisy = Release(probability=0.5, threshold=2, variance=16.0)
    assert noisy.mode == "both"
    assert noisy.max_variance(3, 0.2, 0.9) == pytest.approx(3 * 16 / 0.72)
    widest = noisy.max_noise(3, 0.2, 0.9)
    half = noisy.max_variance(3, 0.2, 0.9) / 2
    assert 2 * skellam.sf(widest, half, half) < 2.0**-64
    quiet = sampled(0.5, 2)
    assert quiet.mode == "sample-threshold"
    assert quiet.max_noise(3, 0.2, 0.9) == 0
    assert quiet.noise_shares(10, 0.2, 0.9) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"probability": 0.0},
        {"probability": 1.01},
        {"probability": float("nan")},
        {"threshold": 0},
        {"variance": -1.0},
        {"variance": float("inf")},
        {"variance": 2.0**24 + 1},
        {"probability": 1.0},  # every vote, without noise
    ],
)
def test_a_release_that_hides_nobody_is_refused(fields: dict[str, float]) -> None:
    whole = {"probability": 0.5, "threshold": 2, "variance": 0.0}
    with pytest.raises(ValueError):
        Release.model_validate(whole | fields)


def test_noise_that_hides_nothing_is_refused() -> None:
    """The privacy loss in a sum divides by the variance: it would be infinite."""
    for variance in (5e-324, 1e-308, 2.0**-21):
        with pytest.raises(ValueError, match="hides nothing"):
            Release(probability=1.0, threshold=1, variance=variance)
