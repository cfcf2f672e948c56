"""Consistent counts of all prefixes up to a depth, from counts with independent equal noise.

A level l has the counts of all base^l prefixes of l digits, in their order; the root is not
counted. A count and the counts of its extensions estimate the same number with independent noise.
The tree with consistent sums that is nearest to all counts (least squares) therefore has less noise
in each leaf, the smallest of all unbiased linear estimates. Two passes compute it, in units of the
noise's variance:

    up     z = (y + v' s) / (1 + v'),  v' = 1 / (b v_below),  v = 1 / (1 + v')
    down   h = z + (h_parent - s_parent) / b

where y is a node's count, s the sum of z over its b children and v the variance of z: 1 for
leaves, whose z is y. Nodes of level 1 have no parent, since the root is not counted: h = z.

**Rank.** For a point with the digits d_1 d_2 .. d_L let a_l be its position within its node of
level l, from 0 to 1; a_0 is its position in the domain, and a leaf is spread evenly. The estimated
count to its left is a_0 times the root's plus, on each level, an independent multiple of the
deviation of children from their mean. So the rank, as a share R of the estimated root N, has the
variance

    (b v_1 (a_0 - R)^2  +  sum over l of v_l (d_l + a_l^2 - b a_(l-1)^2)) / N^2

for a known R; the error of the estimated one is of second order.

Source: [Hay10, section 4.1], for a tree whose root is not counted; ranks are ours.
"""

from dataclasses import dataclass

import numpy as np

from protocol.numerics.array_types import Floats


@dataclass(frozen=True, slots=True, eq=False)
class CompleteTree:
    """The counts of each level, starting with level 1; level l has `base`^l of them."""

    base: int
    levels: tuple[Floats, ...]

    @classmethod
    def from_counts(cls, base: int, counts: Floats) -> "CompleteTree":
        """Return the tree of `counts`, one level after the other; ValueError if a level is cut."""
        sizes = [base]
        while sum(sizes) < len(counts):
            sizes.append(sizes[-1] * base)
        if sum(sizes) != len(counts):
            raise ValueError(f"{len(counts)} counts do not fill whole levels to the base {base}")
        return cls(base, tuple(np.split(counts, np.cumsum(sizes)[:-1])))

    @property
    def depth(self) -> int:
        return len(self.levels)

    def consistent(self) -> "CompleteTree":
        """Return the counts by least squares: counts of children add up to their parent's."""
        variances = subtree_variances(self.base, self.depth)
        up, sums = [self.levels[-1]], list[Floats]()
        for level in range(self.depth - 1, 0, -1):
            total = up[-1].reshape(-1, self.base).sum(axis=1)
            weight = 1 / (self.base * variances[level])
            up.append((self.levels[level - 1] + weight * total) / (1 + weight))
            sums.append(total)
        down = [up.pop()]
        while up:
            difference = (down[-1] - sums.pop()) / self.base
            down.append(up.pop() + np.repeat(difference, self.base))
        return CompleteTree(self.base, tuple(down))


def subtree_variances(base: int, depth: int) -> Floats:
    """Return the variance v of the nodes of each level given their subtrees, level 1 first."""
    variances = np.ones(depth)
    for level in range(depth - 1, 0, -1):
        variances[level - 1] = 1 / (1 + 1 / (base * variances[level]))
    return variances


def leaf_variance(base: int, depth: int) -> float:
    """Return the variance of a leaf by least squares, in units of a count's."""
    variances = subtree_variances(base, depth)
    variance = float(variances[0])
    for v in variances[1:].tolist():
        variance = v * (1 - 1 / base) + variance / base**2
    return variance


def rank_variance(base: int, depth: int, positions: Floats, ranks: Floats) -> Floats:
    """Return N^2 times the variance of `ranks` at `positions`, in units of a count's."""
    variances = subtree_variances(base, depth)
    total = base * variances[0] * (positions - ranks) ** 2
    outer = positions
    for v in variances.tolist():
        digits = np.minimum(np.floor(outer * base), base - 1)
        inner = outer * base - digits
        total = total + v * (digits + inner**2 - base * outer**2)
        outer = inner
    return np.asarray(np.maximum(total, 0.0), np.float64)  # rounding may make 0 negative
