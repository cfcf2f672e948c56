"""Noise scales: whether the accounting is exact, by enumeration, and what the paper's costs."""

import itertools
import math
from fractions import Fraction

import pytest

from protocol.reference_mechanisms.hsu2012_oracles.noise_calibration import (
    ShiftProfile,
    check_privacy_parameters,
    gaussian_delta,
    gaussian_variance,
    laplace_delta,
    laplace_epsilon,
    laplace_scale,
    paper_scale,
    pure_scale,
)

TWO_APART: ShiftProfile = ((2, 1), (1, 1))
WRONG_EPSILONS = (0, -1, math.inf, math.nan, 0.001, 51)


def enumerated_delta(probabilities: dict[int, float], shifts: list[int], epsilon: float) -> float:
    """Return delta by adding up every message of noise with `probabilities` on each coordinate."""
    total = 0.0
    for message in itertools.product(probabilities, repeat=len(shifts)):
        first = math.prod(probabilities[k] for k in message)
        second = math.prod(
            probabilities.get(k - shift, 0.0) for k, shift in zip(message, shifts, strict=True)
        )
        total += max(0.0, first - math.exp(epsilon) * second)
    return total


def normal(weights: dict[int, float]) -> dict[int, float]:
    total = sum(weights.values())
    return {k: weight / total for k, weight in weights.items()}


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 1.4])
def test_laplace_delta_is_that_of_all_messages(epsilon: float) -> None:
    scale = Fraction(2)
    probabilities = normal({k: math.exp(-abs(k) / scale) for k in range(-60, 61)})
    expected = enumerated_delta(probabilities, [2, 1], epsilon)
    assert laplace_delta(TWO_APART, scale, epsilon) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.6, 1.0])
def test_gaussian_delta_is_that_of_all_messages(epsilon: float) -> None:
    probabilities = normal({k: math.exp(-(k**2) / (2 * 20)) for k in range(-60, 61)})
    for profile, shifts in ((TWO_APART, [2, 1]), (((2, 2),), [2, 2]), (((1, 1),), [1])):
        expected = enumerated_delta(probabilities, shifts, epsilon)
        assert gaussian_delta(profile, 20, epsilon) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_less_noise_than_solved_is_too_little(epsilon: float) -> None:
    profiles: tuple[ShiftProfile, ...] = (((2, 266),), ((1, 300),))
    scale = laplace_scale(profiles, epsilon, 1e-6)
    assert max(laplace_delta(p, scale, epsilon) for p in profiles) <= 1e-6
    assert max(laplace_delta(p, scale - Fraction(1, 64), epsilon) for p in profiles) > 1e-6
    assert laplace_epsilon(profiles, scale, 1e-6) == pytest.approx(epsilon, rel=1e-3)
    variance = gaussian_variance(profiles, epsilon, 1e-6)
    assert max(gaussian_delta(p, variance, epsilon) for p in profiles) <= 1e-6
    assert max(gaussian_delta(p, variance - 1, epsilon) for p in profiles) > 1e-6


def test_one_bit_composed_is_randomised_response_composed() -> None:
    # The binomial sum of [Kairouz15], which bounds the composition of any pure mechanisms.
    times, scale, epsilon = 40, Fraction(30), 1.0
    p = 1 / (1 + math.exp(-1 / scale))
    bound = sum(
        math.comb(times, k)
        * max(
            0.0, p**k * (1 - p) ** (times - k) - math.exp(epsilon) * p ** (times - k) * (1 - p) ** k
        )
        for k in range(times + 1)
    )
    assert laplace_delta(((1, times),), scale, epsilon) == pytest.approx(bound, rel=1e-9)


def test_pure_noise_has_no_delta() -> None:
    profiles = [TWO_APART, ((1, 5),)]
    for epsilon in (0.5, 3.0):
        scale = pure_scale(profiles, epsilon)
        assert all(laplace_delta(p, scale, epsilon) == 0 for p in profiles)
        assert float(scale) < 5 / epsilon + 1 / 32


@pytest.mark.parametrize("nominal", [1.0, 2.0, 4.0])
def test_what_the_papers_scale_costs(nominal: float) -> None:
    scale = paper_scale(266, nominal, 1e-6)
    assert float(scale) == pytest.approx(math.sqrt(8 * 266 * math.log(1e6)) / nominal, abs=1 / 32)
    # The theorem is loose: exactly, even signs stay within the paper's budget.
    assert 0.7 * nominal < laplace_epsilon([((2, 266),)], scale, 1e-6) < 0.9 * nominal


def test_a_gaussian_so_wide_is_the_continuous_one() -> None:
    # sigma / L2 for (1, 1e-6): theorem 8 of [BalleWang18], solved on its own.
    def curve(sigma: float) -> float:
        low, high = 1 / (2 * sigma) - sigma, -1 / (2 * sigma) - sigma
        return math.erfc(-low / 2**0.5) / 2 - math.e * math.erfc(-high / 2**0.5) / 2

    low, high = 1.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) > 1e-6 else (low, middle)
    variance = gaussian_variance((((2, 512),),), 1.0, 1e-6)
    assert math.sqrt(variance / (4 * 512)) == pytest.approx(high, rel=1e-4)
    # On a lattice too fine to be added up the curve itself is taken: both agree.
    fine, wide = 2**24, ((1, 2**14),)
    assert gaussian_delta(wide, fine, 0.2) == pytest.approx(curve_of(2**14, fine, 0.2), rel=1e-6)
    near = gaussian_delta(((1, 60),), fine, 0.005), curve_of(60, fine, 0.005)
    assert near[0] == pytest.approx(near[1], rel=1e-6)


def curve_of(squared: int, variance: int, epsilon: float) -> float:
    ratio = math.sqrt(squared / variance)
    upper, lower = (math.erfc((epsilon / ratio + s * ratio / 2) / 2**0.5) / 2 for s in (-1, 1))
    return upper - math.exp(epsilon) * lower


@pytest.mark.parametrize(
    ("epsilon", "delta", "pure", "message"),
    [
        *((wrong, 1e-6, False, r"epsilon must be from 0\.01 to 50") for wrong in WRONG_EPSILONS),
        *((1, wrong, False, "delta must be from 1e-30") for wrong in (0, -1e-6, math.nan, 0.6, 1)),
        (1, 1e-6, True, "delta must be 0"),
    ],
)
def test_parameters_out_of_range_are_refused(
    epsilon: float, delta: float, pure: bool, message: str
) -> None:
    check_privacy_parameters(1, 0 if pure else 1e-6, pure=pure)
    with pytest.raises(ValueError, match=message):
        check_privacy_parameters(epsilon, delta, pure=pure)


def test_noise_too_wide_to_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match=r"epsilon 0\.01 needs a variance"):
        gaussian_variance((((2, 2000),),), 0.01, 1e-9)
