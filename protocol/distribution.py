"""What a tree of counts says of values: ranks, quantiles, masses of ranges and of prefixes.

All numbers are shares of what devices gave. Each comes with the ends of an interval that holds
the truth with odds of 1 - beta, for a query that is named beforehand:

    rank(x)     the share of values below x, or, in a leaf, between its start and its end: values
                of one leaf are not told apart, so the interval is that of the whole leaf
    quantile(q) the first value whose rank is q; its interval goes to the ends of leaves
    mass        rank of the one end less rank of the other

**A trie** (`Pruned`): with sampled votes of m = p n devices, alpha extensions a level, L levels

    |error|  <=  L (alpha - 1) theta / m  +  sqrt(2 v ln(2 / beta))

The first term is what was pruned: beside a path, each level hides alpha - 1 cells at most, each of
fewer than theta votes, in each of the rounds that are added up; and a node for which the words had
no place is spread evenly, so that all of it may be elsewhere in its range. The second bounds what
chance does to the rest, v its variance. By "ratio",

    v  =  (1 - p) / (4 m)  +  L (alpha - 1) s / m^2

where s is the variance of noise in a cell. Without noise it is sqrt(ln(2 / beta) / (2 m)) and a
factor for what is not left to chance: coins are separate on each level, yet what levels add to the
variance telescopes to that of one sample, (1 - p) R (1 - R) / m. By "plain", which knows no total,
it is (1 - p) R / m, so (1 - p) / m. Both are of first order in 1 / m, and normal. A range has the
same v by sampling, and twice what is of paths.

**A complete tree** (`Consistent`): nothing is pruned and, by least squares, all errors are known:
`complete_tree.rank_variance`, times the noise of a count. Coins beside noise add up to
(1 - p) L / m: L votes of a device, none with a weight above 1. A range has the standard deviations
of its two ends, added.

Source: [Cormode21, section 4], whose bound has the first term only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.complete_tree import rank_variance
from protocol.confidence import interval
from protocol.digits import Digits
from protocol.interval import Interval
from protocol.knots import Knots
from protocol.tree import Floats, Tree, digits_of

Points: TypeAlias = ArrayLike | str | Sequence[str]  # numbers of an interval, else items


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Estimates, and intervals from `low` to `high` that hold the truth; all of one shape."""

    values: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Pruned:
    """Errors of a trie: `pruning` on a path, variances by `coins` and, on a path, by `noise`."""

    pruning: float
    coins: float
    noise: float

    def margin(self, positions: Floats, ranks: Floats, spread: float) -> Floats:
        """Return what `ranks` are off by at most; `spread` is in standard deviations."""
        del positions
        error = self.pruning + spread * math.sqrt(self.coins + self.noise)
        return np.full(np.shape(ranks), error)

    def between(self, starts: Floats, ends: Floats, ranks: Floats, spread: float) -> Floats:
        """Return what masses between positions are off by at most; `ranks` are of the ends."""
        del starts, ends
        error = 2 * self.pruning + spread * math.sqrt(self.coins + 2 * self.noise)
        return np.full(ranks.shape[1:], error)


@dataclass(frozen=True, slots=True)
class Consistent:
    """Errors of a complete tree: `noise` of a count and the variance by `coins`, as shares."""

    base: int
    depth: int
    noise: float
    coins: float

    def margin(self, positions: Floats, ranks: Floats, spread: float) -> Floats:
        """Return what `ranks` are off by at most; `spread` is in standard deviations."""
        variance = self.noise * rank_variance(self.base, self.depth, positions, ranks)
        return np.asarray(spread * np.sqrt(variance + self.coins), np.float64)

    def between(self, starts: Floats, ends: Floats, ranks: Floats, spread: float) -> Floats:
        """Return what masses between positions are off by at most; `ranks` are of the ends."""
        return self.margin(starts, ranks[0], spread) + self.margin(ends, ranks[1], spread)


@dataclass(frozen=True, slots=True, eq=False)
class Prefixes:
    """The nodes of a trie as shares; a cell of a level that is not shown is below `hidden`."""

    tree: Tree
    hidden: float
    hidden_variance: float

    def frequency(self, digits: NDArray[np.uint8], base: int, beta: float) -> tuple[float, ...]:
        """Return the share of what begins with `digits`, and its interval.

        It is that of a node, or, where no level ends there, of the shown nodes below it.
        """
        depths = np.unique(self.tree.depths)
        deeper = depths[depths >= len(digits)]
        if not len(deeper):
            raise ValueError(f"prefixes of {len(digits)} digits are longer than the levels asked")
        level = self.tree.level(int(deeper[0]))
        inside = (level.rows[:, : len(digits)] == digits).all(axis=1)
        share, variance = level.counts[inside].sum(), level.variances[inside].sum()
        hidden = base ** float(deeper[0] - len(digits)) - inside.sum()
        most = share + hidden * self.hidden
        spread = variance + hidden * self.hidden_variance
        ends = np.array([share, most]), np.array([variance, spread])
        (low, _), (_, high) = interval(*ends, level=1 - beta)
        if not inside.any():
            high = max(high, self._unasked(digits, beta))
        return float(share), float(low), min(1.0, float(high))

    def _unasked(self, digits: NDArray[np.uint8], beta: float) -> float:
        """Return the most that can begin with `digits`, because nobody was asked; else 0.

        The last shown node on their path may have had no place in a frontier, if nothing that
        follows it is shown.
        """
        depths = np.unique(self.tree.depths).tolist()
        for depth, following in reversed(list(pairwise(depths))):
            level, below = self.tree.level(depth), self.tree.level(following)
            mine = digits[:depth]
            same = (level.rows[:, :depth] == mine).all(axis=1)
            if depth < len(digits) and same.any():
                if (below.rows[:, :depth] == mine).all(axis=1).any():
                    return 0.0
                _, high = interval(level.counts[same], level.variances[same], level=1 - beta)
                return float(high[0])
        return 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """The values of a population, over `domain`, as far as a tree of counts tells."""

    domain: Digits
    knots: Knots
    errors: Pruned | Consistent
    prefixes: Prefixes | None = None  # of a trie; a complete tree has all of them in its knots
    beta: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.beta < 1:
            raise ValueError(f"beta must be above 0 and below 1, not {self.beta}")

    def rank(self, x: Points) -> Bounded:
        """Return the share of values below each of `x`, numbers or items of the domain.

        Raises:
            ValueError: if one of `x` is outside the domain.
        """
        positions = self._positions(x, "x")
        ends = self._leaf(positions)
        low, high = (self._bound(end, sign) for end, sign in zip(ends, (-1, 1), strict=True))
        return Bounded(self.knots.rank(positions), low, high)

    def quantile(self, q: ArrayLike) -> Bounded:
        """Return the first value of each rank `q`; of strings, what a prefix of it says.

        Raises:
            ValueError: if one of `q` is not within 0 and 1.
        """
        ranks = _within(q, 0.0, 1.0, "q")
        found = self.knots.quantile(ranks)
        margin = self.errors.margin(found, ranks, self._spread)
        low, _ = self._leaf(self.knots.quantile(np.maximum(ranks - margin, 0.0)))
        _, high = self._leaf(self.knots.quantile(np.minimum(ranks + margin, 1.0)))
        return Bounded(self._values(found), self._values(low), self._values(high))

    def cdf(self, points: int = 101) -> tuple[NDArray[Any], Bounded]:
        """Return so many values as far from one another, from first to last, and their ranks.

        Raises:
            ValueError: if `points` is not within 2 and 2^20.
        """
        if not 2 <= points <= 2**20:
            raise ValueError(f"points must be within 2 and 2^20, not {points}")
        positions = np.arange(points) / (points - 1)
        low, high = self._bound(positions, -1), self._bound(positions, 1)
        return self._values(positions), Bounded(self.knots.rank(positions), low, high)

    def mass(self, low: Points, high: Points) -> Bounded:
        """Return the shares of values from each of `low` to below each of `high`.

        The last number of an interval is one of those below itself.

        Raises:
            ValueError: if an end is outside the domain, or a `low` is above its `high`.
        """
        starts, ends = self._positions(low, "low"), self._positions(high, "high")
        starts, ends = np.broadcast_arrays(starts, ends)
        if (starts > ends).any():
            raise ValueError("low must not be above high")
        return self._between(starts, ends)

    def frequency(self, prefixes: str | Sequence[str]) -> Bounded:
        """Return the shares of items that begin with each of `prefixes`.

        Raises:
            ValueError: if a prefix is of no item, or longer than what was asked; or the domain
                is of numbers, whose ranges are masses.
        """
        several = [prefixes] if isinstance(prefixes, str) else list(prefixes)
        rows = [self.domain.digits_of_prefix(prefix) for prefix in several]
        base = self.domain.base
        if self.prefixes is None:
            starts = np.array([_position(row, base) for row in rows])
            sizes = np.array([float(base) ** -len(row) for row in rows])
            found = self._between(starts, starts + sizes)
        else:
            told = [self.prefixes.frequency(row, base, self.beta) for row in rows]
            found = Bounded(*np.array(told, np.float64).reshape(-1, 3).T)
        if isinstance(prefixes, str):
            return Bounded(found.values[0], found.low[0], found.high[0])
        return found

    @property
    def _spread(self) -> float:
        return math.sqrt(2 * math.log(2 / self.beta))

    def _between(self, starts: Floats, ends: Floats) -> Bounded:
        first, last = self._leaf(starts), self._leaf(ends)
        ranks = np.stack((self.knots.rank(starts), self.knots.rank(ends)))
        margin = self.errors.between(starts, ends, ranks, self._spread)
        least = self.knots.rank(last[0]) - self.knots.rank(first[1]) - margin
        most = self.knots.rank(last[1]) - self.knots.rank(first[0]) + margin
        return Bounded(ranks[1] - ranks[0], np.clip(least, 0, 1), np.clip(most, 0, 1))

    def _bound(self, positions: Floats, sign: int) -> Floats:
        ranks = self.knots.rank(positions)
        margin = self.errors.margin(positions, ranks, self._spread)
        return np.asarray(np.clip(ranks + sign * margin, 0.0, 1.0), np.float64)

    def _leaf(self, positions: Floats) -> tuple[Floats, Floats]:
        """Return where the leaves start and end that positions are in, or between."""
        scaled = positions * self.knots.cells
        return np.floor(scaled) / self.knots.cells, np.ceil(scaled) / self.knots.cells

    def _positions(self, x: Points, name: str) -> Floats:
        if isinstance(self.domain, Interval):
            values = _within(x, self.domain.low, self.domain.high, name)
            return self.domain.positions_of(values)
        items = np.asarray(x, np.str_)
        rows = self.domain.rows_of(items.ravel().tolist())
        positions = np.zeros(len(rows))
        for column in rows.T[::-1]:
            positions = (positions + column) / self.domain.base
        return positions.reshape(items.shape)

    def _values(self, positions: Floats) -> NDArray[Any]:
        if isinstance(self.domain, Interval):
            return self.domain.values_at(positions)
        codes = np.floor(positions * self.knots.cells).astype(np.int64)
        codes = np.minimum(codes, self.knots.cells - 1).ravel()
        depth = round(math.log(self.knots.cells, self.domain.base))
        rows = digits_of(codes, self.domain.base, depth)
        texts = [self.domain.prefix_of(row) for row in rows]
        return np.array(texts, np.str_).reshape(np.shape(positions))


def _position(row: NDArray[np.uint8], base: int) -> float:
    position = 0.0
    for digit in reversed(row.tolist()):
        position = (position + digit) / base
    return position


def _within(x: ArrayLike, low: float, high: float, name: str) -> Floats:
    """Return `x` as floats; ValueError if one is not within `low` and `high`."""
    values = np.asarray(x, np.float64)
    wrong = ~((values >= low) & (values <= high))  # also of NaN
    if wrong.any():
        raise ValueError(f"{name} must be within {low:g} and {high:g}, not {values[wrong].flat[0]}")
    return values
