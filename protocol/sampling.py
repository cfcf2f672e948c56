"""Sampling of one device's histogram: down to its contribution, and at a threshold.

*Threshold sampling* with threshold t keeps a count h >= t as it is, and makes a smaller one
t with probability h / t, else 0: unbiased, and of all such rules the one of least total
variance for the number of items it keeps. What a device adds to a sum must be an integer,
and t need not be one. There are two cases, for a device that holds at most m:

    t >= m   whatever is kept counts t, so the device adds 1 and the reader multiplies by t
    t < m    t is rounded at random to T in {floor t, ceil t}. Any T gives an unbiased count;
             P(T = floor t) = floor t (ceil t - t) / t makes E[1 / T] = 1 / t, so that a
             single token is kept with probability 1 / t exactly

    Var = h (E[T] - h) for h < t, and 0 above, where T = t in the first case and
    E[T] = floor t + ceil t - floor t ceil t / t in the second

so a sum over devices that together hold N of an item has variance at most N (E[T] - 1), and
exactly that if each of them holds one. One uniform number decides T and what is kept.

Source: Algorithm 1 of [Gascon23], after [Duffield05]; integers are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.histograms import Histograms


def clip(histogram: Mapping[str, int], most: int, rng: np.random.Generator) -> dict[str, int]:
    """Return `most` tokens of `histogram`, drawn without replacement, or all if fewer."""
    return clip_all(Histograms.of([histogram]), most, rng)[0]


def clip_all(held: Histograms, most: int, rng: np.random.Generator) -> Histograms:
    """Return each device's histogram as `clip` makes it, one by one of the same generator.

    What is clipped must add up to less than 2^63.
    """
    totals = held.totals
    over = np.flatnonzero(totals > most)
    if not len(over):
        return held
    clipped = held.take(over)
    tokens = _drawn(totals[over], most, rng)
    # By number: the tokens of a holding follow those of the one before, over all devices.
    tokens += (np.cumsum(totals[over]) - totals[over])[:, np.newaxis]
    places = np.searchsorted(np.cumsum(clipped.counts), tokens.reshape(-1), side="right")
    counts = held.counts.copy()
    counts[(totals > most)[held.devices]] = np.bincount(places, minlength=len(clipped.counts))
    return held.counted(counts)


def _drawn(totals: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return, row by row, `most` < n different numbers below each n of `totals`.

    Floyd's algorithm [BentleyFloyd87]: step j draws from 0 to n - most + j, and takes the last of
    these if what it drew was taken before. That is, by an earlier step that drew the same, or as
    the last of an earlier step.
    """
    steps = np.arange(most)
    last = (totals - most)[:, np.newaxis] + steps
    drawn = rng.integers(0, last + 1)
    order = np.argsort(drawn, axis=1, kind="stable")
    row = np.take_along_axis(drawn, order, axis=1)
    again = np.zeros(drawn.shape, np.bool_)
    np.put_along_axis(again, order[:, 1:], row[:, 1:] == row[:, :-1], axis=1)
    earlier = drawn - last[:, :1]
    is_last = (earlier >= 0) & (earlier < steps)
    earlier = np.where(is_last, earlier, 0)
    while True:  # each time round settles one step more of the longest chain at least
        more = again | (is_last & np.take_along_axis(again, earlier, axis=1))
        if (more == again).all():
            return np.where(again, last, drawn)
        again = more


@dataclass(frozen=True, slots=True)
class Threshold:
    """Sampling at threshold `t` >= 1 of counts up to `most`, the contribution bound m."""

    t: float
    most: int

    @property
    def unit(self) -> float:
        """Return what a sampled 1 stands for."""
        return self.t if self.t >= self.most else 1.0

    @property
    def bound(self) -> int:
        """Return the most that one device adds to one item, in units."""
        return 1 if self.t >= self.most else self.most

    @property
    def total(self) -> int:
        """Return the most that one device adds to all items together, in units.

        For t < m that is more than m: m items that it holds one of may all come out as T.
        """
        return self.most if self.t >= self.most else self.most * math.ceil(self.t)

    @property
    def mean(self) -> float:
        """Return E[T]: a sampled count of 1 has variance E[T] - 1."""
        if self.t >= self.most:
            return self.t
        return math.floor(self.t) + 1 - self._odds_of_floor

    def sample(self, counts: NDArray[np.int64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return `counts` sampled, in units; `uniform` has a number in [0, 1) for each."""
        if self.t >= self.most:
            return (uniform * self.t < counts).astype(np.int64)
        low, odds = math.floor(self.t), self._odds_of_floor
        is_low = uniform < odds
        level = np.where(is_low, low, low + 1)
        # Given T, what is left of the number is uniform again.
        again = np.where(is_low, uniform / odds, (uniform - odds) / max(1 - odds, math.ulp(1)))
        kept = np.where(again * level < counts, level, 0)
        return np.where(counts >= level, counts, kept)

    @property
    def _odds_of_floor(self) -> float:
        low = math.floor(self.t)
        return low * (low + 1 - self.t) / self.t
