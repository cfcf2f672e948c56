"""Prefixes and their counts: a tree, level by level, as arrays.

A *node* is a prefix of some digits, a row of the tree's `rows` that is zero from its depth on.
Its *cells* are what may follow: the next digits of an item, all that a level takes, as a number.

    rows   (nodes, width)   digits
    depths (nodes,)         how many of them are the prefix
    counts, variances       of the votes for it, as estimated

Rows are found by a polynomial of their digits modulo 2^64, and are compared then: no two
prefixes are ever taken for one another.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.digits import Rows
from protocol.tally import Tally

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

NOWHERE = -1
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so no digit is lost
_NAMES = ("rows", "depths", "counts", "variances")


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Nodes with their counts and the variances of these, in the order they were found."""

    rows: Rows
    depths: Places
    counts: Floats
    variances: Floats

    @classmethod
    def of(cls, tally: Tally) -> "Tree":
        """Return the tree that a study's tally holds, empty if none."""
        if not tally.arrays:
            none = np.zeros(0)
            return cls(np.zeros((0, 1), np.uint8), np.zeros(0, np.int64), none, none)
        return cls(*(tally.arrays[name] for name in _NAMES))

    def keep(self, tally: Tally) -> Tally:
        """Return `tally` with this tree in the place of what was there."""
        for name in _NAMES:
            tally = tally.keep(name, getattr(self, name))
        return tally

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.depths)

    def where(self, chosen: NDArray[np.bool_] | Places) -> "Tree":
        """Return some of the nodes."""
        return Tree(*(getattr(self, name)[chosen] for name in _NAMES))

    def level(self, depth: int) -> "Tree":
        """Return the nodes of `depth` digits."""
        return self.where(self.depths == depth)

    def grow(self, more: "Tree") -> "Tree":
        """Return this tree with the nodes of `more`, none of which it has yet."""
        if not len(self):
            return more
        return Tree(*(np.concatenate([getattr(self, n), getattr(more, n)]) for n in _NAMES))


def places(rows: Rows, prefixes: Rows) -> Places:
    """Return for each of `rows` the first of `prefixes` that it begins with, or `NOWHERE`.

    The prefixes, `(k, depth)`, differ from one another; rows are as long or longer.
    """
    if not len(prefixes):
        return np.full(len(rows), NOWHERE)
    depth = prefixes.shape[1]
    heads = rows[:, :depth]
    known, sought = _polynomial(prefixes), _polynomial(heads)
    order = np.argsort(known, kind="stable")
    found = np.minimum(np.searchsorted(known[order], sought), len(known) - 1)
    place = order[found]
    place = np.where((prefixes[place] == heads).all(axis=1), place, NOWHERE)
    if len(np.unique(known)) < len(known):  # by accident or design: then one by one
        table = {row.tobytes(): number for number, row in enumerate(prefixes)}
        return np.array([table.get(head.tobytes(), NOWHERE) for head in heads], np.int64)
    return np.asarray(place, np.int64)


def numbers(digits: Rows, base: int) -> Places:
    """Return rows of digits as integers to `base`; they must stay below 2^62."""
    total = np.zeros(len(digits), np.int64)
    for column in digits.T:
        total = total * base + column
    return total


def digits_of(values: Places, base: int, count: int) -> Rows:
    """Return the `count` digits of each of `values` to `base`, first to last."""
    rows = np.zeros((len(values), count), np.uint8)
    for column in reversed(range(count)):
        values, rows[:, column] = np.divmod(values, base)
    return rows


def _polynomial(rows: Rows) -> NDArray[np.uint64]:
    total = np.zeros(len(rows), np.uint64)
    for column in rows.T:
        total = total * _FACTOR + column + np.uint64(1)
    return total
