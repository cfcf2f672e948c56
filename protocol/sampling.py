"""Sampling of one device's histogram: down to the contribution bound, and at a threshold.

*Threshold sampling* with threshold t keeps a count h >= t as it is, and turns a smaller count into
t with probability h / t, else into 0. This is unbiased, and of all such rules it has the smallest
total variance for the number of items it keeps. A device must add integers to a sum, but t need
not be an integer. There are two cases, for a device with at most m items:

    t >= m   each sampled item counts t, so the device adds 1 and the reader multiplies by t
    t < m    t is rounded at random to T in {floor t, ceil t}. Any T gives an unbiased count;
             P(T = floor t) = floor t (ceil t - t) / t makes E[1 / T] = 1 / t, so that a
             single token is kept with probability 1 / t exactly

    Var = h (E[T] - h) for h < t, and 0 above, where T = t in the first case and
    E[T] = floor t + ceil t - floor t ceil t / t in the second

So a sum over devices that together hold N of an item has variance at most N (E[T] - 1), and
exactly that if each of them holds one. One uniform number determines T and the result.

Source: Algorithm 1 of [Gascon23], after [Duffield05]; integers are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.histograms import Histograms


def clip(
    histogram: Mapping[str, int], contribution: int, rng: np.random.Generator
) -> dict[str, int]:
    """Return `contribution` tokens of `histogram`, drawn without replacement, or all if fewer."""
    return clip_histograms(Histograms.from_mappings([histogram]), contribution, rng)[0]


def clip_histograms(held: Histograms, contribution: int, rng: np.random.Generator) -> Histograms:
    """Return `clip` of each device's histogram, with one generator for all."""
    totals = held.device_totals
    over = np.flatnonzero(totals > contribution)
    if not len(over):
        return held
    clipped = held.take(over)
    tokens = _draw_without_replacement(totals[over], contribution, rng)
    # Number the tokens holding by holding, over all devices.
    tokens += (np.cumsum(totals[over]) - totals[over])[:, np.newaxis]
    holdings = np.searchsorted(np.cumsum(clipped.counts), tokens.reshape(-1), side="right")
    counts = held.counts.copy()
    is_clipped = (totals > contribution)[held.devices]
    counts[is_clipped] = np.bincount(holdings, minlength=len(clipped.counts))
    return held.with_counts(counts)


def _draw_without_replacement(
    totals: NDArray[np.int64], draws: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return, row by row, `draws` < n different numbers below each n of `totals`.

    Floyd's algorithm [BentleyFloyd87]: step j draws a number from 0 to n - draws + j. If this
    number was selected before, by the draw of an earlier step or as its largest number, step j
    selects its largest number instead.
    """
    steps = np.arange(draws)
    last = (totals - draws)[:, np.newaxis] + steps
    drawn = rng.integers(0, last + 1)
    order = np.argsort(drawn, axis=1, kind="stable")
    row = np.take_along_axis(drawn, order, axis=1)
    again = np.zeros(drawn.shape, np.bool_)
    np.put_along_axis(again, order[:, 1:], row[:, 1:] == row[:, :-1], axis=1)
    earlier = drawn - last[:, :1]
    is_last = (earlier >= 0) & (earlier < steps)
    earlier = np.where(is_last, earlier, 0)
    while True:  # each iteration completes one more step of the longest chain
        more = again | (is_last & np.take_along_axis(again, earlier, axis=1))
        if (more == again).all():
            return np.where(again, last, drawn)
        again = more


@dataclass(frozen=True, slots=True)
class ThresholdSampler:
    """Sampling at threshold `t` >= 1 of counts up to `max_count`, the contribution bound m."""

    t: float
    max_count: int

    @property
    def unit(self) -> float:
        """Return the count that one sampled unit stands for."""
        return self.t if self.t >= self.max_count else 1.0

    @property
    def max_item_units(self) -> int:
        """Return the largest number of units that a device adds to one item."""
        return 1 if self.t >= self.max_count else self.max_count

    @property
    def max_device_units(self) -> int:
        """Return the largest number of units that a device adds to all items together.

        For t < m it is more than m: m items with a count of 1 may all be sampled as T.
        """
        return self.max_count if self.t >= self.max_count else self.max_count * math.ceil(self.t)

    @property
    def mean_threshold(self) -> float:
        """Return E[T]: a sampled count of 1 has variance E[T] - 1."""
        if self.t >= self.max_count:
            return self.t
        return math.floor(self.t) + 1 - self._floor_probability

    def sample(self, counts: NDArray[np.int64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the sampled `counts` in units; `uniform` has a number in [0, 1) for each."""
        if self.t >= self.max_count:
            return (uniform * self.t < counts).astype(np.int64)
        low, p = math.floor(self.t), self._floor_probability
        is_low = uniform < p
        level = np.where(is_low, low, low + 1)
        # Given T, the rest of the number is uniform.
        rest = np.where(is_low, uniform / p, (uniform - p) / max(1 - p, math.ulp(1)))
        sampled = np.where(rest * level < counts, level, 0)
        return np.where(counts >= level, counts, sampled)

    @property
    def _floor_probability(self) -> float:
        low = math.floor(self.t)
        return low * (low + 1 - self.t) / self.t
