"""How much noise a vector of integers needs, solved from the exact composition.

A device's message is v + z: its integers v and independent noise z on each. Its neighbour's
integers differ from v by shifts; a *profile* says how many coordinates move how far, and
what a mechanism must withstand is the worst of a few profiles. The privacy loss
ln P(message | v) / P(message | v') of independent coordinates adds up, and

    delta(epsilon) = E max(0, 1 - exp(epsilon - loss))

holds with equality for the worst v, v': there is no slack left to remove from it.

    Laplace   a shift of d has loss (|k - d| - |k|) / t, on the lattice {-d, -d + 2 .. d} / t, so
              the sum is a convolution of short vectors. For d = 1 it has two values, and
              composing them is composing randomised response: what bounds every composition of
              pure mechanisms [Kairouz15] is here the thing itself
    Gaussian  the loss is (|d|^2 - 2 <d, z>) / 2 s, and <d, z> a discrete Gaussian of variance
              |d|^2 s on multiples of the shifts' greatest divisor, but for odds below
              exp(-pi^2 s): only |d|^2 matters. The start is the continuous curve [BalleWang18]

Beside them stands what hsu2012 uses: theorem 2.5, epsilon' = epsilon / sqrt(8 T ln 1/delta), and
the theorem of [DRV10] that it is a round version of.
"""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from protocol.oracles.discrete_noise import MOST_VARIANCE

Profile = tuple[tuple[int, int], ...]  # of (shift, so many coordinates)
LEAST_VARIANCE = 16  # exp(-pi^2 16) < 10^-68: sums of discrete Gaussians are discrete Gaussians
_STEPS = 64  # scales are multiples of 1 / 64, which the exact sampler takes


def check_budget(epsilon: float, delta: float, *, pure: bool) -> None:
    """Check the privacy parameters of a mechanism.

    Raises:
        ValueError: if `epsilon` is not within 0.01 and 50, or `delta` not within 1e-30 and 0.5;
            of a `pure` mechanism, if it is not 0.
    """
    if not 0.01 <= epsilon <= 50:  # also refuses NaN
        raise ValueError(f"epsilon must be within 0.01 and 50, not {epsilon}")
    if pure and delta != 0:
        raise ValueError(f"delta must be 0, which is what this noise gives, not {delta}")
    if not pure and not 1e-30 <= delta <= 0.5:
        raise ValueError(f"delta must be within 1e-30 and 0.5, not {delta}")


def paper_scale(queries: int, epsilon: float, delta: float) -> Fraction:
    """Return sqrt(8 T ln 1/delta) / epsilon, the scale for sensitivity 1 of theorem 2.5."""
    return _round_up(math.sqrt(8 * queries * math.log(1 / delta)) / epsilon)


def advanced_epsilon(queries: int, each: float, delta: float) -> float:
    """Return what `queries` mechanisms of epsilon `each` cost by [DRV10], theorem III.3."""
    return each * math.sqrt(2 * queries * math.log(1 / delta)) + queries * each * math.expm1(each)


def pure_scale(profiles: Iterable[Profile], epsilon: float) -> Fraction:
    """Return the Laplace scale of `epsilon` and delta = 0: the L1 sensitivity / `epsilon`."""
    return _round_up(max(sum(shift * times for shift, times in p) for p in profiles) / epsilon)


@cache
def laplace_scale(profiles: tuple[Profile, ...], epsilon: float, delta: float) -> Fraction:
    """Return the least scale, in 64ths, of discrete Laplace noise that is (epsilon, delta)."""

    def suffices(steps: int) -> bool:
        scale = Fraction(steps, _STEPS)
        return all(laplace_delta(profile, scale, epsilon) <= delta for profile in profiles)

    most = int(pure_scale(profiles, epsilon) * _STEPS)
    return Fraction(_least(suffices, 1, most), _STEPS)


@cache
def gaussian_variance(profiles: tuple[Profile, ...], epsilon: float, delta: float) -> int:
    """Return the least variance of discrete Gaussian noise that is (epsilon, delta).

    Raises:
        ValueError: if that is more than 2^24, so `epsilon` is too small for so many queries.
    """

    def suffices(variance: int) -> bool:
        return all(gaussian_delta(profile, variance, epsilon) <= delta for profile in profiles)

    if not suffices(MOST_VARIANCE):
        raise ValueError(f"epsilon {epsilon} needs noise of more than 2^24 variance; take more")
    return _least(suffices, LEAST_VARIANCE, MOST_VARIANCE)


def laplace_delta(profile: Profile, scale: Fraction, epsilon: float) -> float:
    """Return the least delta for which discrete Laplace noise of `scale` is `epsilon`-DP."""
    odds, reach = _laplace_loss(profile, scale)
    return _hockey_stick(odds, np.arange(-reach, reach + 1) / float(scale), epsilon)


def laplace_epsilon(profiles: Iterable[Profile], scale: Fraction, delta: float) -> float:
    """Return the least epsilon for which discrete Laplace noise of `scale` is `delta`-DP."""
    worst = 0.0
    for profile in profiles:
        odds, reach = _laplace_loss(profile, scale)
        losses = np.arange(-reach, reach + 1) / float(scale)
        low, high = 0.0, reach / float(scale)
        for _ in range(60):
            middle = (low + high) / 2
            over = _hockey_stick(odds, losses, middle) > delta
            low, high = (middle, high) if over else (low, middle)
        worst = max(worst, high)
    return worst


def gaussian_delta(profile: Profile, variance: int, epsilon: float) -> float:
    """Return the least delta for which discrete Gaussian noise of `variance` is `epsilon`-DP.

    `variance` must be 16 or more.
    """
    squared = sum(shift**2 * times for shift, times in profile)
    step = math.gcd(*(shift for shift, times in profile if times))
    deviation = math.sqrt(variance * squared)
    # Loss above epsilon is <d, z> below this; whence only the tail is added up.
    start = math.ceil((epsilon * variance - squared / 2) / step)
    ends = max(start, -math.ceil(40 * deviation / step)), math.ceil(40 * deviation / step)
    if ends[1] - ends[0] > 10**6:  # so fine a lattice that sums are integrals
        return _continuous_delta(squared, variance, epsilon)
    points = np.arange(ends[0], ends[1] + 1) * float(step)
    norm = deviation * math.sqrt(2 * math.pi) / step
    odds = np.exp(-(points**2) / (2 * variance * squared)) / norm
    return _hockey_stick(odds, (squared + 2 * points) / (2 * variance), epsilon)


def _continuous_delta(squared: int, variance: int, epsilon: float) -> float:
    """Return theorem 8 of [BalleWang18] for the L2 sensitivity sqrt(`squared`)."""
    ratio = math.sqrt(squared / variance)
    upper = math.erfc((epsilon / ratio - ratio / 2) / math.sqrt(2)) / 2
    return upper - math.exp(epsilon) * math.erfc((epsilon / ratio + ratio / 2) / math.sqrt(2)) / 2


def _laplace_loss(profile: Profile, scale: Fraction) -> tuple[NDArray[np.float64], int]:
    """Return the odds of each sum of losses from -reach to reach, in 1 / `scale`; and reach."""
    odds, reach = np.ones(1), 0
    for shift, times in profile:
        r = math.exp(-1 / scale)
        single = np.zeros(2 * shift + 1)
        single[-1], single[0] = 1 / (1 + r), r**shift / (1 + r)
        for k in range(1, shift):
            single[2 * (shift - k)] = (1 - r) / (1 + r) * r**k
        odds, reach = np.convolve(odds, _power(single, times)), reach + shift * times
    return odds, reach


def _power(odds: NDArray[np.float64], times: int) -> NDArray[np.float64]:
    """Return `odds` convolved with itself; all terms are positive, so nothing cancels."""
    result = np.ones(1)
    while times:
        if times % 2:
            result = np.convolve(result, odds)
        times //= 2
        odds = np.convolve(odds, odds) if times else odds
    return result


def _hockey_stick(odds: NDArray[np.float64], losses: NDArray[np.float64], epsilon: float) -> float:
    over = losses > epsilon
    return float(odds[over] @ -np.expm1(epsilon - losses[over]))


def _least(suffices: Callable[[int], bool], least: int, most: int) -> int:
    """Return the least integer from `least` to `most` that suffices; `most` does."""
    low, high = least - 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _round_up(scale: float) -> Fraction:
    # A hair more, so that the division's rounding error never costs privacy.
    return Fraction(math.floor(scale * (1 + 1e-12) * _STEPS) + 1, _STEPS)
