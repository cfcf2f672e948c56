"""Where a tree of counts puts ranks: the knots of a cumulative distribution, straight between them.

A prefix is a range of positions from 0 to 1, and what follows it cuts that range in `base`
parts (or base^stride). From level to level each shown node hands its mass down to its shown
children, from left to right; what was pruned has no node, and two ways to go on:

    plain   a child has the share that was counted of it: what was pruned has mass 0
    ratio   all mass of a node is its shown children's, in proportion to their counts; a node
            without shown children is spread evenly

A node of the deepest level, or one that has ended, is spread evenly. By "plain" the rank jumps
where a node ends, by what was pruned in it and by what separate coins on two levels differ, which
may be downward: such ranks are made to grow by isotonic regression, which takes no rank further
from the true ones than the furthest was.

Source: plain is [Cormode21, section 4]; ratio is ours.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from protocol.tree import Floats, Places, Tree, numbers

Estimator: TypeAlias = Literal["ratio", "plain"]
_MOST = 2**48  # nodes of a level that positions tell apart


class EmptyTreeError(ValueError):
    """There is nothing in the tree to tell ranks by."""


@dataclass(frozen=True, slots=True, eq=False)
class Knots:
    """Ranks at positions from 0 to 1, both growing; `cells` are the leaves of all positions."""

    positions: Floats
    ranks: Floats
    cells: int
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
        found = self.positions[left] + part * (self.positions[right] - self.positions[left])
        found = np.where(after == 0, self.positions[0], found)
        return np.asarray(np.where(after == len(self.ranks), 1.0, found), np.float64)


def even_knots(leaves: Floats, levels: int) -> Knots:
    """Return the knots of leaves as wide as one another, with counts of any sign.

    Raises:
        EmptyTreeError: if the counts add up to 0 or less.
    """
    ranks = np.concatenate(([0.0], np.cumsum(leaves)))
    if ranks[-1] <= 0:
        raise EmptyTreeError("the counts add up to nothing: no device has told its value yet")
    positions = np.arange(len(ranks)) / len(leaves)
    return Knots(positions, _growing(ranks / ranks[-1]), len(leaves), levels)


def tree_knots(tree: Tree, base: int, terminator: int | None, estimator: Estimator) -> Knots:
    """Return the knots of `tree`, whose counts are shares, down to 2^48 prefixes of a level.

    Raises:
        EmptyTreeError: if the tree is empty.
    """
    depths = [int(depth) for depth in np.unique(tree.depths) if base ** int(depth) <= _MOST]
    if not depths:
        raise EmptyTreeError("the tree is empty: no prefix was shown, so nothing has a rank")
    points, above = _Points(), _Level(0, np.zeros(1, np.int64), np.zeros(1), np.ones(1))
    for depth in depths:
        level = _Level.of(tree.level(depth), depth, base, above, estimator)
        points.put_parents(above, level, base, estimator)
        above = level.without(points.put_ended(level, tree, base, terminator))
    points.put_leaves(above, base)
    positions, ranks = points.sorted()
    return Knots(positions, _growing(ranks), base ** depths[-1], len(depths))


def _growing(ranks: Floats) -> Floats:
    """Return the growing ranks nearest to `ranks`, from 0 to 1."""
    fitted = np.asarray(isotonic_regression(ranks).x, np.float64)
    return np.maximum.accumulate(np.clip(fitted, 0.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Nodes of one depth in the order of their codes, the ranks they start at, their mass."""

    depth: int
    codes: Places
    starts: Floats
    masses: Floats
    parents: Places = field(default_factory=lambda: np.zeros(0, np.int64))  # places in the above

    @classmethod
    def of(
        cls, nodes: Tree, depth: int, base: int, above: "_Level", estimator: Estimator
    ) -> "_Level":
        """Return the level of `nodes`, but for those whose parent is not in the level above."""
        codes = numbers(nodes.rows[:, :depth], base)
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

    def without(self, gone: NDArray[np.bool_]) -> "_Level":
        """Return the nodes that are not `gone`."""
        return _Level(self.depth, self.codes[~gone], self.starts[~gone], self.masses[~gone])


_START, _END, _AFTER = range(3)  # kinds of knots


class _Points:
    """Knots as they are found.

    At one position ends come first, deeper ones before others, each with what comes after it.
    """

    def __init__(self) -> None:
        self._positions: list[Floats] = []
        self._ranks: list[Floats] = []
        self._turns: list[Floats] = []

    def put_parents(self, above: _Level, level: _Level, base: int, estimator: Estimator) -> None:
        """Put the ends of all nodes above, and the starts of those without shown children."""
        shown = np.bincount(level.parents, level.masses, minlength=len(above.codes))
        childless = np.bincount(level.parents, minlength=len(above.codes)) == 0
        inside = np.where(childless & (estimator == "ratio"), above.masses, shown)
        self._put(above, base, above.starts + inside, _END)
        if above.depth:  # of all positions nothing comes after
            self._put(above, base, above.starts + above.masses, _AFTER)
        self._put(above.without(~childless), base, above.starts[childless], _START)

    def put_ended(
        self, level: _Level, tree: Tree, base: int, terminator: int | None
    ) -> NDArray[np.bool_]:
        """Put the nodes that have ended above the deepest level; return which they are."""
        if terminator is None or level.depth == tree.depths.max():
            return np.zeros(len(level.codes), np.bool_)
        ended: NDArray[np.bool_] = level.codes % base == terminator
        self.put_leaves(level.without(~ended), base)
        return ended

    def put_leaves(self, level: _Level, base: int) -> None:
        """Put nodes that are spread evenly."""
        self._put(level, base, level.starts, _START)
        self._put(level, base, level.starts + level.masses, _END)

    def sorted(self) -> tuple[Floats, Floats]:
        """Return all positions and ranks, from left to right."""
        positions, ranks = np.concatenate(self._positions), np.concatenate(self._ranks)
        order = np.lexsort((np.concatenate(self._turns), positions))
        return positions[order], ranks[order]

    def _put(self, level: _Level, base: int, ranks: Floats, kind: int) -> None:
        turn = 1.0 if kind == _START else float(kind - 2 * level.depth) - _AFTER
        self._positions.append((level.codes + (kind != _START)) / base**level.depth)
        self._ranks.append(ranks)
        self._turns.append(np.full(len(level.codes), turn))
