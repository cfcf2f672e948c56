"""The epsilon of Skellam noise on counts, the one number for devices, planners and the ledger.

A device adds one to a count, and noise Z of variance s hides it. Let P(z) = e^-s I_z(s), and let
the device's secret coin have the probability p (1 without a coin). Then the count has the
distribution P without the device, and Q(z) = (1 - p) P(z) + p P(z - 1) with it. A value z has the
loss ln Q(z) / P(z) if the device leaves, and ln P(z) / Q(z) if it joins. Losses of several counts
add up, also if their noise differs. For example, a variance of 13.03 in seven counts is epsilon 3
at delta 1e-5, and so is the same variance in one count of each of seven rounds.

The exact losses, moved to a grid, are composed by Fourier transforms. A loss between two points of
the grid is divided between both, so that its probability with and without the device stays the
same. So the number never understates the loss. It needs numpy only, because devices use it.

Source: [Doroshenko22] Doroshenko et al., Connect the dots, PoPETs 2022(4).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Floats
from protocol.privacy.noise_shares import tail_bound

_NEGLIGIBLE_TAIL: Final = 1e-21  # of one count's noise beyond the enumerated range
_TAIL: Final = 1e-15  # of the composed loss beyond each end of the grid, and of rounding
_GRID: Final = 2**18
_MAX_EPSILON: Final = 500.0  # above it, nothing is private, and e^epsilon is out of range
_CHERNOFF_EXPONENTS: Final = 2.0 ** np.arange(-6, 8.5, 0.5)


@dataclass(frozen=True, slots=True, order=True)
class CountNoise:
    """Noise of `variance` on a count, in which a device's coin of `probability` decides.

    A variance of 0 is a count without noise.
    """

    variance: float
    probability: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.variance < math.inf and 0 < self.probability <= 1):
            raise ValueError(f"{self} is not noise on a count")


# The number of counts with each noise that one device adds to.
NoisyCounts: TypeAlias = Mapping[CountNoise, int]


def noise_epsilon(counts: NoisyCounts, delta: float) -> float:
    """Return the epsilon at `delta` of a device that adds one to all of these counts.

    It is exact to a part in 10^4 for up to a thousand counts, never too small, and infinite if a
    count has no noise. A new number takes about a tenth of a second for each different noise.
    """
    return _epsilon(tuple(sorted((noise, n) for noise, n in counts.items() if n)), delta)


@dataclass(frozen=True, slots=True)
class _Losses:
    """Losses of one count, their probabilities, and the number of such counts."""

    losses: Floats
    masses: Floats
    counts: int


@lru_cache(maxsize=1024)
def _epsilon(counts: tuple[tuple[CountNoise, int], ...], delta: float) -> float:
    if not counts:
        return 0.0
    if not delta > 5 * _TAIL or counts[0][0].variance == 0:  # also refuses NaN
        return math.inf
    leaves = [_losses(noise, number, leaves=True) for noise, number in counts]
    if all(noise.probability == 1 for noise, _ in counts):  # the same losses if it joins
        return _epsilon_of(leaves, delta)
    joins = [_losses(noise, number, leaves=False) for noise, number in counts]
    return max(_epsilon_of(leaves, delta), _epsilon_of(joins, delta))


def _losses(noise: CountNoise, counts: int, *, leaves: bool) -> _Losses:
    half = _probabilities(noise.variance)
    probabilities = np.concatenate([half[:0:-1], half])
    without, moved = probabilities[1:], probabilities[:-1]
    ratio = moved / without
    losses = np.log1p(noise.probability * np.expm1(np.log(ratio)))
    if leaves:
        return _Losses(losses, without * np.exp(losses), counts)
    return _Losses(-losses, without, counts)


def _epsilon_of(parts: list[_Losses], delta: float) -> float:
    # Chernoff bounds on the composed loss, which the grid covers.
    highest = _highest([(each.losses, each.masses, each.counts) for each in parts])
    lowest = -_highest([(-each.losses, each.masses, each.counts) for each in parts])
    if highest > _MAX_EPSILON:
        return highest
    # Each loss moves by a step at most. By Hoeffding's inequality, the sum moves by more than
    # this margin with a negligible probability.
    number = sum(each.counts for each in parts)
    margin = min(number, math.ceil(6 * math.sqrt(number)))
    interval = (highest - lowest) / (_GRID - 2 * margin - 4)
    spectrum = math.prod(_spectrum(each, interval) for each in parts)
    composed = np.maximum(np.fft.irfft(spectrum, _GRID), 0.0)
    last = math.ceil(highest / interval) + margin + 1
    steps = np.arange(last, 0, -1)
    missing = 3 * _TAIL + 2 * number * _NEGLIGIBLE_TAIL
    return _epsilon_of_losses(
        np.asarray(steps * interval, np.float64), composed[steps % _GRID], delta - missing
    )


def _probabilities(variance: float) -> Floats:
    """Return P(z) for z from 0 to a bound that noise exceeds with a negligible probability.

    The ratios r_z = I_z / I_(z-1) = 1 / (2 z / s + r_(z+1)) come from far above the bound, where
    the start does not matter (Miller's algorithm).
    """
    end = tail_bound(variance, _NEGLIGIBLE_TAIL)
    ratios, ratio = np.ones(end + 1), 0.0
    for z in range(2 * end + 50, 0, -1):
        ratio = 1 / (2 * z / variance + ratio)
        if z <= end:
            ratios[z] = ratio
    relative = np.exp(np.cumsum(np.log(ratios)))
    scaled: Floats = relative / (relative[0] + 2 * relative[:0:-1].sum())
    return scaled


def _highest(parts: list[tuple[Floats, Floats, int]]) -> float:
    """Return a loss that all counts together exceed with a negligible probability."""
    exponent = np.zeros(len(_CHERNOFF_EXPONENTS))
    for losses, masses, counts in parts:
        exponents = _CHERNOFF_EXPONENTS[:, None] * losses + np.log(masses)
        largest = exponents.max(axis=1, keepdims=True)
        moments = largest[:, 0] + np.log(np.exp(exponents - largest).sum(axis=1))
        exponent += counts * moments
    bound = float(((exponent - math.log(_TAIL)) / _CHERNOFF_EXPONENTS).min())
    return min(bound, sum(counts * float(losses.max()) for losses, _, counts in parts))


def _spectrum(part: _Losses, interval: float) -> NDArray[np.complex128]:
    """Return the Fourier transform of the sum of a part's losses, on the grid and modulo it."""
    steps = part.losses / interval
    below = np.floor(steps)
    upper = np.expm1((below - steps) * interval) / math.expm1(-interval) * part.masses
    grid = np.zeros(_GRID)
    np.add.at(grid, below.astype(np.int64) % _GRID, part.masses - upper)
    np.add.at(grid, (below.astype(np.int64) + 1) % _GRID, upper)
    return np.fft.rfft(grid) ** part.counts


def _epsilon_of_losses(losses: Floats, masses: Floats, delta: float) -> float:
    """Return the epsilon at `delta` of positive `losses`, from the highest down."""
    with_device = np.cumsum(masses)
    without = np.cumsum(masses * np.exp(-losses))
    excess = with_device - np.exp(losses) * without  # delta if epsilon is this loss
    first = int(np.searchsorted(excess, delta, side="right"))
    if first == 0:
        return float(losses[0])
    # Between two losses, delta is a straight line in e^epsilon.
    rest = float(with_device[first - 1]) - delta
    if rest <= 0:
        return 0.0 if first == len(losses) else float(losses[first])
    return max(0.0, math.log(rest / without[first - 1]))
