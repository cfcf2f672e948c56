"""Threshold sampling: a device keeps rare items with a probability that grows with their count.

Sampling with threshold t keeps a count h >= t as it is, and turns a smaller count into
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

Devices that hold N items together sample no more than N coins give, each of which is c units with
probability p: c = 1 and p = 1 / t in the first case, c = ceil t and p = 1 / c in the second. (Such
coins have the larger moment generating function: the logarithm of that of a sampled count h is
concave in h, and a count that is kept as it is has the smallest.) So they sample c y units or more
with probability at most

    e^-(N KL(y / N, p))       y >= p N, KL the relative entropy of two coins [Hoeffding63]

and a sum that has more than where this is 2^-64 breaks a law (`SampledTable.fault`).

Source: algorithm 1 of [Gascon23], after [Duffield05]; sampled integers are ours.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.binary_search import first_true
from secagg.parameters import relative_entropy

# Logarithms of the ratio of neighbours among the thresholds of plans.
_MIN_LOG_STEP, _MAX_LOG_STEP = math.log(1.05), math.log(2)
_STEPS_PER_CHANGE = 20  # so that one item changes the t of a plan in one of 20 rounds
_FALSE_ALARM_BITS = 64  # honest devices sample more than the laws allow with probability 2^-64


def coarse_threshold(t: float, log_change: float = 0.0) -> float:
    """Return the smallest power of a ratio from 1.05 to 2 that is at least `t`, which is 1 or more.

    All digits of a t that follows the data would state the number of different items in a sum, and
    so whether one device added an item. One more item changes ln t by `log_change`, and the t that
    is returned in about 1 of 20 rounds: the ratio is e^(20 `log_change`). For example it is 1.22 if
    `log_change` is 0.01. Beyond 0.035 the ratio would exceed 2, and the chance is higher.
    """
    step = min(max(_MIN_LOG_STEP, _STEPS_PER_CHANGE * log_change), _MAX_LOG_STEP)
    return math.exp(step * math.ceil(math.log(t) / step - 1e-9))


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

    def max_device_count(self, copies: int) -> float:
        """Return the most that a device with `copies` of an item adds to the item's estimate."""
        return self.t if self.t >= self.max_count else float(max(copies, math.ceil(self.t)))

    def max_units(self, total: int) -> int:
        """Return the units that devices with `total` items exceed with probability 2^-64 at most.

        The module derives it. Nothing is sampled at t = 1, so that the bound is `total`.
        """
        step = 1 if self.t >= self.max_count else math.ceil(self.t)
        p, limit = 1 / max(self.t, step), _FALSE_ALARM_BITS * math.log(2)

        def is_unlikely(units: int) -> bool:
            heads = units / step / total
            return heads > p and bool(total * relative_entropy(heads, p) >= limit)

        return first_true(is_unlikely, 0, total * step)

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
