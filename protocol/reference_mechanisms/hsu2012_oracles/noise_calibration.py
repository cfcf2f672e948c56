"""The noise that a vector of integers needs, computed from the exact composition.

A device's message is v + z: its integers v and independent noise z on each. Its neighbour's
integers differ from v by shifts. A *profile* states the number of coordinates of each shift, and
the noise must suffice for the worst of a few profiles. The privacy losses
ln P(message | v) / P(message | v') of independent coordinates add up, and

    delta(epsilon) = E max(0, 1 - exp(epsilon - loss))

is exact for the worst v, v', so the noise cannot be smaller.

    Laplace   a shift of d has loss (|k - d| - |k|) / t, on the lattice {-d, -d + 2 .. d} / t, so
              the sum is a convolution of short vectors; for d = 1 that of [Kairouz15]
    Gaussian  the loss is (|d|^2 - 2 <d, z>) / 2 s, and <d, z> is, except with probability below
              exp(-pi^2 s), a discrete Gaussian of variance |d|^2 s on multiples of the shifts'
              greatest divisor: only |d|^2 matters

Source: theorem 2.5 of [hsu2012] for the paper's scale; [BalleWang18] for the continuous curve.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import cache

import numpy as np

from protocol.numerics.array_types import Floats
from protocol.numerics.binary_search import boundary, first_true
from protocol.reference_mechanisms.hsu2012_oracles.discrete_noise import MAX_VARIANCE

ShiftProfile = tuple[tuple[int, int], ...]  # (shift, number of coordinates)
MIN_VARIANCE = 16  # exp(-pi^2 16) < 10^-68: sums of discrete Gaussians are discrete Gaussians
_SCALE_DENOMINATOR = 64  # scales are multiples of 1 / 64, which the exact sampler takes


def check_privacy_parameters(epsilon: float, delta: float, *, pure: bool) -> None:
    """Raise ValueError unless `epsilon` is 0.01 to 50 and `delta` 1e-30 to 0.5, 0 if `pure`."""
    if not 0.01 <= epsilon <= 50:  # also refuses NaN
        raise ValueError(f"epsilon must be from 0.01 to 50, not {epsilon}")
    if pure and delta != 0:
        raise ValueError(f"delta must be 0 for this kind of noise, not {delta}")
    if not pure and not 1e-30 <= delta <= 0.5:
        raise ValueError(f"delta must be from 1e-30 to 0.5, not {delta}")


def paper_scale(queries: int, epsilon: float, delta: float) -> Fraction:
    """Return sqrt(8 T ln 1/delta) / epsilon, the scale for sensitivity 1 of theorem 2.5."""
    return _round_up(math.sqrt(8 * queries * math.log(1 / delta)) / epsilon)


def pure_scale(profiles: Iterable[ShiftProfile], epsilon: float) -> Fraction:
    """Return the Laplace scale of `epsilon` and delta = 0: the L1 sensitivity / `epsilon`."""
    return _round_up(max(sum(shift * times for shift, times in p) for p in profiles) / epsilon)


@cache
def laplace_scale(profiles: tuple[ShiftProfile, ...], epsilon: float, delta: float) -> Fraction:
    """Return the smallest scale, in 64ths, of discrete Laplace noise that is (epsilon, delta)."""

    def suffices(steps: int) -> bool:
        scale = Fraction(steps, _SCALE_DENOMINATOR)
        return all(laplace_delta(profile, scale, epsilon) <= delta for profile in profiles)

    largest = int(pure_scale(profiles, epsilon) * _SCALE_DENOMINATOR)
    return Fraction(first_true(suffices, 1, largest), _SCALE_DENOMINATOR)


@cache
def gaussian_variance(profiles: tuple[ShiftProfile, ...], epsilon: float, delta: float) -> int:
    """Return the smallest variance of discrete Gaussian noise that is (epsilon, delta).

    Raises ValueError if it is above 2^24: `epsilon` is too small for the number of queries.
    """

    def suffices(variance: int) -> bool:
        return all(gaussian_delta(profile, variance, epsilon) <= delta for profile in profiles)

    if not suffices(MAX_VARIANCE):
        raise ValueError(f"epsilon {epsilon} needs a variance above 2^24: increase epsilon")
    return first_true(suffices, MIN_VARIANCE, MAX_VARIANCE)


def laplace_delta(profile: ShiftProfile, scale: Fraction, epsilon: float) -> float:
    """Return the smallest delta for which discrete Laplace noise of `scale` is `epsilon`-DP."""
    probabilities, reach = _laplace_loss(profile, scale)
    return _hockey_stick(probabilities, np.arange(-reach, reach + 1) / float(scale), epsilon)


def laplace_epsilon(profiles: Iterable[ShiftProfile], scale: Fraction, delta: float) -> float:
    """Return the smallest epsilon for which discrete Laplace noise of `scale` is `delta`-DP."""
    worst = 0.0
    for profile in profiles:
        probabilities, reach = _laplace_loss(profile, scale)
        losses = np.arange(-reach, reach + 1) / float(scale)

        def suffices(
            epsilon: float, probabilities: Floats = probabilities, losses: Floats = losses
        ) -> bool:
            return _hockey_stick(probabilities, losses, epsilon) <= delta

        worst = max(worst, boundary(suffices, 0.0, reach / float(scale)))
    return worst


def gaussian_delta(profile: ShiftProfile, variance: int, epsilon: float) -> float:
    """Return the smallest delta of discrete Gaussian noise of `variance` >= 16 for `epsilon`-DP."""
    squared = sum(shift**2 * times for shift, times in profile)
    step = math.gcd(*(shift for shift, times in profile if times))
    deviation = math.sqrt(variance * squared)
    # Loss above epsilon is <d, z> below this, so only the tail is added up.
    start = math.ceil((epsilon * variance - squared / 2) / step)
    ends = max(start, -math.ceil(40 * deviation / step)), math.ceil(40 * deviation / step)
    if ends[1] - ends[0] > 10**6:  # the lattice is so fine that sums are integrals
        return _continuous_delta(squared, variance, epsilon)
    points = np.arange(ends[0], ends[1] + 1) * float(step)
    norm = deviation * math.sqrt(2 * math.pi) / step
    probabilities = np.exp(-(points**2) / (2 * variance * squared)) / norm
    return _hockey_stick(probabilities, (squared + 2 * points) / (2 * variance), epsilon)


def _continuous_delta(squared: int, variance: int, epsilon: float) -> float:
    """Return theorem 8 of [BalleWang18] for the L2 sensitivity sqrt(`squared`)."""
    ratio = math.sqrt(squared / variance)
    upper = math.erfc((epsilon / ratio - ratio / 2) / math.sqrt(2)) / 2
    return upper - math.exp(epsilon) * math.erfc((epsilon / ratio + ratio / 2) / math.sqrt(2)) / 2


def _laplace_loss(profile: ShiftProfile, scale: Fraction) -> tuple[Floats, int]:
    """Return the probability of each sum of losses from -reach to reach, in 1 / `scale`."""
    probabilities, reach = np.ones(1), 0
    for shift, times in profile:
        r = math.exp(-1 / scale)
        single = np.zeros(2 * shift + 1)
        single[-1], single[0] = 1 / (1 + r), r**shift / (1 + r)
        for k in range(1, shift):
            single[2 * (shift - k)] = (1 - r) / (1 + r) * r**k
        probabilities = np.convolve(probabilities, _convolution_power(single, times))
        reach += shift * times
    return probabilities, reach


def _convolution_power(probabilities: Floats, times: int) -> Floats:
    """Return `probabilities` convolved with itself; all terms are positive, so none cancel."""
    result, power = np.ones(1), probabilities
    while times:
        if times % 2:
            result = np.convolve(result, power)
        times //= 2
        power = np.convolve(power, power) if times else power
    return result


def _hockey_stick(probabilities: Floats, losses: Floats, epsilon: float) -> float:
    over = losses > epsilon
    return float(probabilities[over] @ -np.expm1(epsilon - losses[over]))


def _round_up(scale: float) -> Fraction:
    # Slightly more, so that the rounding error of the division never costs privacy.
    return Fraction(math.floor(scale * (1 + 1e-12) * _SCALE_DENOMINATOR) + 1, _SCALE_DENOMINATOR)
