"""Ranks, quantiles and masses of numbers, and frequencies of prefixes, from a tree of counts.

Only numbers have ranks, quantiles and ranges. Strings have an order too, but it means little for a
population: between "lunch" and "meeting" a quantile would be a string that no device holds.

All numbers are shares of the values of devices. Each has an interval that contains the true share
with probability 1 - beta, for a query that is chosen beforehand. Values of one leaf are not
distinguished, so intervals extend to the ends of leaves.

**A trie** (`PrunedErrors`): with sampled votes of m = p n devices, alpha extensions per level, L
levels

    |error|  <=  L (alpha - 1) theta / m  +  sqrt(2 v ln(2 / beta))

The first term is pruning. Along a path, each level hides at most alpha - 1 cells, each of fewer
than theta votes, in each of the rounds that are added up. A node for which the words had
no room is spread evenly, so that all of it may be elsewhere in its range. The second term bounds
the random error of the rest, with variance v. With "ratio",

    v  =  (1 - p) / (4 m)  +  L (alpha - 1) s / m^2

where s is the variance of noise in a cell: coins are separate on each level, yet the variances of
the levels telescope to that of one sample, (1 - p) R (1 - R) / m. With "plain", which does not know
the total, the first term is (1 - p) / m. A range has the same v by sampling, and twice the terms of
paths.

**A complete tree** (`ConsistentErrors`): nothing is pruned and, by least squares, all errors are
known: `complete_tree.rank_variance`, times the noise of a count. Coins in addition to noise add up
to (1 - p) L / m: L votes of a device, none with a weight above 1. A range has the standard
deviations of its two ends, added.

Source: [Cormode21, section 4], whose bound has the first term only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.domains.base import Digits
from protocol.domains.numeric import NumericInterval
from protocol.estimation.estimates import gamma_interval
from protocol.numerics.array_types import Floats
from protocol.quantiles.cdf import CumulativeDistribution
from protocol.quantiles.complete_tree import rank_variance
from protocol.quantiles.prefix_tree import PrefixTree

_MAX_KNOTS: Final = 2**16


@dataclass(frozen=True, slots=True, eq=False)
class BoundedEstimate:
    """Estimates, and confidence intervals from `low` to `high`; all of one shape."""

    values: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]


@dataclass(frozen=True, slots=True)
class PrunedErrors:
    """Errors of a trie: by pruning and by noise on a path, and by sampling."""

    pruning: float
    sampling_variance: float
    noise_variance: float

    def rank_margin(self, positions: Floats, ranks: Floats, spread: float) -> Floats:
        """Return bounds on the errors of `ranks`; `spread` is in standard deviations."""
        del positions
        error = self.pruning + spread * math.sqrt(self.sampling_variance + self.noise_variance)
        return np.full(np.shape(ranks), error)

    def mass_margin(self, starts: Floats, ends: Floats, ranks: Floats, spread: float) -> Floats:
        """Return bounds on the errors of masses between positions; `ranks` are of the ends."""
        del starts, ends
        error = 2 * self.pruning + spread * math.sqrt(
            self.sampling_variance + 2 * self.noise_variance
        )
        return np.full(ranks.shape[1:], error)


@dataclass(frozen=True, slots=True)
class ConsistentErrors:
    """Errors of a complete tree: variances by noise of a count and by sampling, as shares."""

    base: int
    depth: int
    noise_variance: float
    sampling_variance: float

    def rank_margin(self, positions: Floats, ranks: Floats, spread: float) -> Floats:
        """Return bounds on the errors of `ranks`; `spread` is in standard deviations."""
        variance = self.noise_variance * rank_variance(self.base, self.depth, positions, ranks)
        return np.asarray(spread * np.sqrt(variance + self.sampling_variance), np.float64)

    def mass_margin(self, starts: Floats, ends: Floats, ranks: Floats, spread: float) -> Floats:
        """Return bounds on the errors of masses between positions; `ranks` are of the ends."""
        return self.rank_margin(starts, ranks[0], spread) + self.rank_margin(ends, ranks[1], spread)


@dataclass(frozen=True, slots=True, eq=False)
class PrefixShares:
    """The nodes of a trie as shares; a cell that is not shown is below `max_hidden_share`."""

    tree: PrefixTree
    max_hidden_share: float
    hidden_variance: float

    def frequency(self, digits: NDArray[np.uint8], base: int, beta: float) -> tuple[float, ...]:
        """Return the share of items that begin with `digits`, and its interval.

        It is the share of a node or, where no level ends there, of the shown nodes below it.
        """
        depths = np.unique(self.tree.depths)
        deeper = depths[depths >= len(digits)]
        if not len(deeper):
            raise ValueError(f"prefixes of {len(digits)} digits are longer than the deepest level")
        level = self.tree.level(int(deeper[0]))
        inside = (level.rows[:, : len(digits)] == digits).all(axis=1)
        share, variance = level.counts[inside].sum(), level.variances[inside].sum()
        hidden = base ** float(deeper[0] - len(digits)) - inside.sum()
        largest = share + hidden * self.max_hidden_share
        spread = variance + hidden * self.hidden_variance
        ends = np.array([share, largest]), np.array([variance, spread])
        (low, _), (_, high) = gamma_interval(*ends, level=1 - beta)
        if not inside.any():
            high = max(high, self._max_unasked_share(digits, beta))
        return min(1.0, float(share)), float(low), min(1.0, float(high))

    def _max_unasked_share(self, digits: NDArray[np.uint8], beta: float) -> float:
        """Return the largest share of `digits` if no device was asked for them, otherwise 0.

        The last shown node on their path may have had no room in a frontier, if none of its
        children is shown.
        """
        depths = np.unique(self.tree.depths).tolist()
        shorter = [pair for pair in pairwise(depths) if pair[0] < len(digits)]
        for depth, following in reversed(shorter):
            level, below = self.tree.level(depth), self.tree.level(following)
            mine = digits[:depth]
            same = (level.rows[:, :depth] == mine).all(axis=1)
            if same.any():
                if (below.rows[:, :depth] == mine).all(axis=1).any():
                    return 0.0
                _, high = gamma_interval(level.counts[same], level.variances[same], level=1 - beta)
                return float(high[0])
        return 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """The distribution of a population's values over `domain`, estimated by a tree of counts."""

    domain: Digits
    cumulative: CumulativeDistribution
    errors: PrunedErrors | ConsistentErrors
    prefixes: PrefixShares | None = None  # a complete tree has them in its distribution
    beta: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.beta < 1:
            raise ValueError(f"beta must be above 0 and below 1, not {self.beta}")

    def rank(self, x: ArrayLike) -> BoundedEstimate:
        """Return the share of values below each of `x`."""
        positions = self._positions(x, "x")
        ends = self._leaf_bounds(positions)
        low, high = (self._rank_bound(end, sign) for end, sign in zip(ends, (-1, 1), strict=True))
        return BoundedEstimate(self.cumulative.rank(positions), low, high)

    def quantile(self, q: ArrayLike) -> BoundedEstimate:
        """Return the first value of each rank `q` from 0 to 1.

        Its interval has all values whose interval of the rank contains `q`. If the rank of the last
        value that was counted may be below `q`, it ends where the domain does.
        """
        ranks = _checked_floats(q, 0.0, 1.0, "q")
        positions, known = self._knots
        margin = self.errors.rank_margin(positions, known, self._margin_sds)
        reached = np.maximum.accumulate(known + margin)
        passed = np.minimum.accumulate((known - margin)[::-1])[::-1]
        # A rank is 0 at the start and 1 at the end, for any counts.
        reached, passed = np.append(reached, np.inf), np.append(passed, np.inf)
        ends = np.append(positions, 1.0)
        low, _ = self._leaf_bounds(_crossings(reached, ends, ranks, "left"))
        _, high = self._leaf_bounds(_crossings(passed, ends, ranks, "right"))
        values = self._values(self.cumulative.quantile(ranks))
        return BoundedEstimate(values, self._values(low), self._values(high))

    def cdf(self, points: int = 101) -> tuple[NDArray[Any], BoundedEstimate]:
        """Return `points` (2 to 2^20) equidistant values, from first to last, and their ranks."""
        if not 2 <= points <= 2**20:
            raise ValueError(f"points must be from 2 to 2^20, not {points}")
        positions = np.arange(points) / (points - 1)
        low, high = self._rank_bound(positions, -1), self._rank_bound(positions, 1)
        return self._values(positions), BoundedEstimate(self.cumulative.rank(positions), low, high)

    def mean(self) -> BoundedEstimate:
        """Return the mean of the values, with its interval; all are numbers.

        It is the last value without the integral of the ranks. So its error is at most the integral
        of the ranks' errors, since spreads of sub-Gaussian errors add up, dependent or not.
        """
        positions, ranks = self._knots
        margin = self.errors.rank_margin(positions, ranks, self._margin_sds)
        above, error = (
            float(np.diff(np.concatenate(([0.0], positions, [1.0]))) @ (edges[1:] + edges[:-1]) / 2)
            for edges in (np.pad(column, 1, "edge") for column in (1 - ranks, margin))
        )
        error += 0.5 / self.cumulative.leaves
        ends = np.clip([above, above - error, above + error], 0.0, 1.0)
        return BoundedEstimate(*self._values(ends))

    def histogram(self, bins: int) -> tuple[NDArray[Any], BoundedEstimate]:
        """Return the edges (bins + 1,) of ranges of equal width, and the share of each (bins,)."""
        edges = np.arange(bins + 1) / bins
        return self._values(edges), self._mass(edges[:-1], edges[1:])

    def mass(self, low: ArrayLike, high: ArrayLike) -> BoundedEstimate:
        """Return the shares of values from each of `low` to below each of `high`.

        The last number of an interval counts as below itself. Raises ValueError if an end is
        outside the domain, or a `low` is above its `high`.
        """
        starts, ends = self._positions(low, "low"), self._positions(high, "high")
        starts, ends = np.broadcast_arrays(starts, ends)
        if (starts > ends).any():
            raise ValueError("low must not be above high")
        return self._mass(starts, ends)

    def frequency(self, prefixes: str | Sequence[str]) -> BoundedEstimate:
        """Return the shares of items that begin with each of `prefixes`.

        Raises ValueError if no item has a prefix, it is too long, or the domain has numbers.
        """
        prefix_list = [prefixes] if isinstance(prefixes, str) else list(prefixes)
        rows = [self.domain.digits_of_prefix(prefix) for prefix in prefix_list]
        base = self.domain.base
        if self.prefixes is None:
            starts = np.array([_position_of_digits(row, base) for row in rows])
            sizes = np.array([float(base) ** -len(row) for row in rows])
            shares = self._mass(starts, starts + sizes)
        else:
            bounds = [self.prefixes.frequency(row, base, self.beta) for row in rows]
            shares = BoundedEstimate(*np.array(bounds, np.float64).reshape(-1, 3).T)
        if isinstance(prefixes, str):
            return BoundedEstimate(shares.values[0], shares.low[0], shares.high[0])
        return shares

    @property
    def _knots(self) -> tuple[Floats, Floats]:
        """Return positions and their ranks, at most 2^16 of them and the last."""
        positions, ranks = self.cumulative.positions, self.cumulative.ranks
        step = -(-len(positions) // _MAX_KNOTS)
        taken = np.append(np.arange(0, len(positions) - 1, step), len(positions) - 1)
        return positions[taken], ranks[taken]

    @property
    def _margin_sds(self) -> float:
        return math.sqrt(2 * math.log(2 / self.beta))

    def _mass(self, starts: Floats, ends: Floats) -> BoundedEstimate:
        first, last = self._leaf_bounds(starts), self._leaf_bounds(ends)
        ranks = np.stack((self.cumulative.rank(starts), self.cumulative.rank(ends)))
        margin = self.errors.mass_margin(starts, ends, ranks, self._margin_sds)
        low = self.cumulative.rank(last[0]) - self.cumulative.rank(first[1]) - margin
        high = self.cumulative.rank(last[1]) - self.cumulative.rank(first[0]) + margin
        return BoundedEstimate(ranks[1] - ranks[0], np.clip(low, 0, 1), np.clip(high, 0, 1))

    def _rank_bound(self, positions: Floats, sign: int) -> Floats:
        ranks = self.cumulative.rank(positions)
        margin = self.errors.rank_margin(positions, ranks, self._margin_sds)
        return np.asarray(np.clip(ranks + sign * margin, 0.0, 1.0), np.float64)

    def _leaf_bounds(self, positions: Floats) -> tuple[Floats, Floats]:
        """Return the starts and ends of the leaves that contain the positions."""
        scaled = np.round(positions * self.cumulative.leaves, 9)  # an edge of leaves stays one
        return np.floor(scaled) / self.cumulative.leaves, np.ceil(scaled) / self.cumulative.leaves

    @property
    def _interval(self) -> NumericInterval:
        if isinstance(self.domain, NumericInterval):
            return self.domain
        raise ValueError(f"values of kind {self.domain.kind} have no ranks: ask for prefixes")

    def _positions(self, x: ArrayLike, name: str) -> Floats:
        interval = self._interval
        return interval.positions_of(_checked_floats(x, interval.low, interval.high, name))

    def _values(self, positions: Floats) -> Floats:
        return self._interval.values_at(positions)


def _crossings(
    bounds: Floats, positions: Floats, ranks: Floats, side: Literal["left", "right"]
) -> Floats:
    """Return the positions at which growing `bounds` cross each of `ranks`; 0 before the first."""
    after = np.searchsorted(bounds, ranks, side=side)
    before = np.maximum(after - 1, 0)
    rise = bounds[after] - bounds[before]
    is_step = (rise == 0) | np.isinf(rise)
    part = np.where(is_step, 1.0, (ranks - bounds[before]) / np.where(is_step, 1.0, rise))
    crossing = positions[before] + part * (positions[after] - positions[before])
    return np.asarray(np.where(after == 0, 0.0, crossing), np.float64)


def _position_of_digits(row: NDArray[np.uint8], base: int) -> float:
    position = 0.0
    for digit in reversed(row.tolist()):
        position = (position + digit) / base
    return position


def _checked_floats(x: ArrayLike, low: float, high: float, name: str) -> Floats:
    """Return `x` as floats; ValueError if one is not from `low` to `high`."""
    values = np.asarray(x, np.float64)
    wrong = ~((values >= low) & (values <= high))  # also of NaN
    if wrong.any():
        raise ValueError(f"{name} must be from {low:g} to {high:g}, not {values[wrong].flat[0]}")
    return values
