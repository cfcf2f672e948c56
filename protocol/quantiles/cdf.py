"""Cumulative distribution of a tree of counts: knots at which ranks are known, linear in between.

A prefix is a range of positions from 0 to 1, and its extensions cut that range into `base`
parts (or base^stride). From level to level each shown node passes its mass to its shown
children, from left to right. A pruned prefix has no node, and there are two estimators:

    plain   a child has the share that was counted of it: pruned prefixes have mass 0
    ratio   all mass of a node belongs to its shown children, in proportion to their counts; a
            node without shown children is spread evenly

A node of the deepest level, or one that has ended, is spread evenly. With "plain" the rank jumps
where a node ends, by the mass that was pruned in it and by the difference of separate coins on two
levels, which may be negative. Isotonic regression makes such ranks grow; its largest error is not
larger than that of its input.

Source: plain is [Cormode21, section 4]; ratio is ours.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from protocol.numerics import optimize
from protocol.numerics.array_types import Flags, Floats, Indices
from protocol.quantiles.prefix_tree import PrefixTree, digits_to_integers

Estimator: TypeAlias = Literal["ratio", "plain"]
_MAX_LEVEL_NODES = 2**48  # that floating-point positions can distinguish
_START, _END, _AFTER = range(3)  # kinds of knots


class EmptyTreeError(ValueError):
    """The tree has no counts, so that no ranks can be estimated."""


@dataclass(frozen=True, slots=True, eq=False)
class CumulativeDistribution:
    """Ranks at positions from 0 to 1, both growing, over a number of `leaves`."""

    positions: Floats
    ranks: Floats
    leaves: int
    levels: int

    def rank(self, positions: Floats) -> Floats:
        """Return the share of the mass to the left of `positions`; at 1 it is all."""
        return np.asarray(np.interp(positions, self.positions, self.ranks), np.float64)

    def quantile(self, ranks: Floats) -> Floats:
        """Return the first positions at which `ranks` are reached, 1 if they never are."""
        after = np.searchsorted(self.ranks, ranks, side="left")
        right = np.clip(after, 1, len(self.ranks) - 1)
        left = right - 1
        rise = self.ranks[right] - self.ranks[left]
        part = (ranks - self.ranks[left]) / np.where(rise > 0, rise, 1.0)
        positions = self.positions[left] + part * (self.positions[right] - self.positions[left])
        positions = np.where(after == 0, self.positions[0], positions)
        return np.asarray(np.where(after == len(self.ranks), 1.0, positions), np.float64)


def leaf_cdf(leaves: Floats, levels: int) -> CumulativeDistribution:
    """Return the distribution of leaves of equal width, with counts of any sign.

    Raises EmptyTreeError if the counts add up to 0 or less.
    """
    ranks = np.concatenate(([0.0], np.cumsum(leaves)))
    if ranks[-1] <= 0:
        raise EmptyTreeError("the counts add up to nothing: no device has reported its value yet")
    positions = np.arange(len(ranks)) / len(leaves)
    return CumulativeDistribution(positions, _monotone(ranks / ranks[-1]), len(leaves), levels)


def tree_cdf(
    tree: PrefixTree, base: int, terminator: int | None, estimator: Estimator
) -> CumulativeDistribution:
    """Return the distribution of `tree`, whose counts are shares, up to 2^48 prefixes per level."""
    depths = [
        int(depth) for depth in np.unique(tree.depths) if base ** int(depth) <= _MAX_LEVEL_NODES
    ]
    if not depths:
        raise EmptyTreeError("the tree is empty: no prefix was shown, so no rank can be estimated")
    points, above = _KnotBuilder(), _Level(0, np.zeros(1, np.int64), np.zeros(1), np.ones(1))
    for depth in depths:
        level = _Level.of(tree.level(depth), depth, base, above, estimator)
        points.put_parents(above, level, base, estimator)
        above = level.excluding(points.put_ended(level, tree, base, terminator))
    points.put_leaves(above, base)
    positions, ranks = points.sorted()
    return CumulativeDistribution(positions, _monotone(ranks), base ** depths[-1], len(depths))


def _monotone(ranks: Floats) -> Floats:
    """Return the growing ranks nearest to `ranks`, from 0 to 1."""
    fitted = np.asarray(optimize.isotonic_regression(ranks).x, np.float64)
    return np.maximum.accumulate(np.clip(fitted, 0.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Nodes of one depth in the order of their codes, with their first ranks and masses."""

    depth: int
    codes: Indices
    starts: Floats
    masses: Floats
    # Indices in the level above.
    parents: Indices = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(
        cls, nodes: PrefixTree, depth: int, base: int, above: "_Level", estimator: Estimator
    ) -> "_Level":
        """Return the level of the `nodes` whose parent is in the level above."""
        codes = digits_to_integers(nodes.rows[:, :depth], base)
        order = np.argsort(codes, kind="stable")
        codes, shares = codes[order], nodes.counts[order]
        if not len(above.codes):
            return cls(depth, codes[:0], shares[:0], shares[:0])
        heads = codes // base ** (depth - above.depth)
        parents = np.minimum(np.searchsorted(above.codes, heads), len(above.codes) - 1)
        known = above.codes[parents] == heads
        codes, shares, parents = codes[known], shares[known], parents[known]
        if estimator == "ratio":
            totals = np.bincount(parents, shares, minlength=len(above.codes))
            shares = shares / totals[parents] * above.masses[parents]
        before = np.cumsum(shares) - shares
        first = np.searchsorted(parents, parents, side="left")  # of the same parent
        starts = above.starts[parents] + before - before[first]
        return cls(depth, codes, starts, shares, parents)

    def excluding(self, excluded: Flags) -> "_Level":
        included = ~excluded
        return _Level(
            self.depth, self.codes[included], self.starts[included], self.masses[included]
        )


class _KnotBuilder:
    """Knots in the order of their discovery.

    At one position ends come first, deeper ones before others, each followed by its `_AFTER` knot.
    """

    def __init__(self) -> None:
        self._positions: list[Floats] = []
        self._ranks: list[Floats] = []
        self._order_keys: list[Floats] = []

    def put_parents(self, above: _Level, level: _Level, base: int, estimator: Estimator) -> None:
        """Put the ends of all nodes above, and the starts of those without shown children."""
        shown = np.bincount(level.parents, level.masses, minlength=len(above.codes))
        childless = np.bincount(level.parents, minlength=len(above.codes)) == 0
        inside = np.where(childless & (estimator == "ratio"), above.masses, shown)
        self._put(above, base, above.starts + inside, _END)
        if above.depth:  # no position follows the root
            self._put(above, base, above.starts + above.masses, _AFTER)
        self._put(above.excluding(~childless), base, above.starts[childless], _START)

    def put_ended(
        self, level: _Level, tree: PrefixTree, base: int, terminator: int | None
    ) -> Flags:
        """Put the nodes that have ended above the deepest level; return a flag for each node."""
        if terminator is None or level.depth == tree.depths.max():
            return np.zeros(len(level.codes), np.bool_)
        ended: Flags = level.codes % base == terminator
        self.put_leaves(level.excluding(~ended), base)
        return ended

    def put_leaves(self, level: _Level, base: int) -> None:
        self._put(level, base, level.starts, _START)
        self._put(level, base, level.starts + level.masses, _END)

    def sorted(self) -> tuple[Floats, Floats]:
        """Return all positions and ranks, from left to right."""
        positions, ranks = np.concatenate(self._positions), np.concatenate(self._ranks)
        order = np.lexsort((np.concatenate(self._order_keys), positions))
        return positions[order], ranks[order]

    def _put(self, level: _Level, base: int, ranks: Floats, kind: int) -> None:
        order_key = 1.0 if kind == _START else float(kind - 2 * level.depth) - _AFTER
        self._positions.append((level.codes + (kind != _START)) / base**level.depth)
        self._ranks.append(ranks)
        self._order_keys.append(np.full(len(level.codes), order_key))
