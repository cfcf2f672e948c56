"""Counts of all prefixes up to a depth, each with the same noise, made to add up.

A level l has the counts of all base^l prefixes of l digits, in their order; the root is not
counted. A count and those of its extensions say the same in noise of their own, so that of all
leaves that add up to what is nearest to every count (least squares) each has less of it, and of
all unbiased linear estimates the least. Two passes find them, in units of the noise's variance:

    up     z = (y + v' s) / (1 + v'),  v' = 1 / (b v_below),  v = 1 / (1 + v')
    down   h = z + (h_parent - s_parent) / b

where y is a node's count, s the sum of z over its b children and v the variance of z: 1 for
leaves, whose z is y. Nodes of level 1 have no parent, since nobody counted the root: h = z.

**Rank.** Of a point with the digits d_1 d_2 .. d_L let a_l be its position within its node of
level l, from 0 to 1; a_0 is that in all, and a leaf is spread evenly. What h says is left of it is
a_0 times the root's and, on each level, an independent multiple of how children deviate from
their mean. So the rank, as a share R of the estimated root N, has the variance

    (b v_1 (a_0 - R)^2  +  sum over l of v_l (d_l + a_l^2 - b a_(l-1)^2)) / N^2

for an R that is known; the error of the estimated one is of second order.

Source: [Hay10, section 4.1], for a tree whose root is not counted; ranks are ours.
"""

from dataclasses import dataclass

import numpy as np

from protocol.tree import Floats


@dataclass(frozen=True, slots=True, eq=False)
class CompleteTree:
    """The counts of each level from 1 on; level l has `base`^l of them."""

    base: int
    levels: tuple[Floats, ...]

    @classmethod
    def of(cls, base: int, counts: Floats) -> "CompleteTree":
        """Return the tree of `counts`, one level after the other.

        Raises:
            ValueError: if they are of no number of whole levels.
        """
        sizes = [base]
        while sum(sizes) < len(counts):
            sizes.append(sizes[-1] * base)
        if sum(sizes) != len(counts):
            raise ValueError(f"{len(counts)} counts are no whole levels to the base {base}")
        return cls(base, tuple(np.split(counts, np.cumsum(sizes)[:-1])))

    @property
    def depth(self) -> int:
        """Return the number of levels."""
        return len(self.levels)

    def consistent(self) -> "CompleteTree":
        """Return the counts by least squares: those of children add up to their parent's."""
        variances = below(self.base, self.depth)
        up, sums = [self.levels[-1]], list[Floats]()
        for level in range(self.depth - 1, 0, -1):
            total = up[-1].reshape(-1, self.base).sum(axis=1)
            weight = 1 / (self.base * variances[level])
            up.append((self.levels[level - 1] + weight * total) / (1 + weight))
            sums.append(total)
        found = [up.pop()]
        while up:
            spare = (found[-1] - sums.pop()) / self.base
            found.append(up.pop() + np.repeat(spare, self.base))
        return CompleteTree(self.base, tuple(found))


def below(base: int, depth: int) -> Floats:
    """Return the variance v of each level's nodes by what is at or below them, level 1 first."""
    variances = np.ones(depth)
    for level in range(depth - 1, 0, -1):
        variances[level - 1] = 1 / (1 + 1 / (base * variances[level]))
    return variances


def leaf_variance(base: int, depth: int) -> float:
    """Return the variance of a leaf by least squares, in units of a count's."""
    variances = below(base, depth)
    variance = float(variances[0])
    for v in variances[1:].tolist():
        variance = v * (1 - 1 / base) + variance / base**2
    return variance


def rank_variance(base: int, depth: int, positions: Floats, ranks: Floats) -> Floats:
    """Return N^2 times the variance of `ranks` at `positions`, in units of a count's."""
    variances = below(base, depth)
    total = base * variances[0] * (positions - ranks) ** 2
    outer = positions
    for v in variances.tolist():
        digits = np.minimum(np.floor(outer * base), base - 1)
        inner = outer * base - digits
        total = total + v * (digits + inner**2 - base * outer**2)
        outer = inner
    return np.asarray(np.maximum(total, 0.0), np.float64)  # 0 may be rounded below
