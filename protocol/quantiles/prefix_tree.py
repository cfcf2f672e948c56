"""Prefixes and their counts: a tree, level by level, as arrays.

A *node* is a prefix of some digits, a row of the tree's `rows` that is zero after its depth.
Its *cells* are its possible extensions: the next digits of an item, all that a level takes, as a
number. Rows are found by a polynomial of their digits modulo 2^64, and then compared, so two
prefixes are never mistaken for one another.
"""

from dataclasses import dataclass

import numpy as np

from protocol.numerics.array_types import DigitRows, Flags, Floats, Indices, Words
from protocol.study_state import StudyState

NO_PREFIX = -1
_POLYNOMIAL_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so no digit is lost
_ARRAYS = ("rows", "depths", "counts", "variances")


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """Nodes with their counts and the variances of these, in the order of discovery."""

    rows: DigitRows
    depths: Indices
    counts: Floats
    variances: Floats

    @classmethod
    def from_state(cls, state: StudyState) -> "PrefixTree":
        """Return the tree of a study state, empty if it has none."""
        if not state.arrays:
            none = np.zeros(0)
            return cls(np.zeros((0, 1), np.uint8), np.zeros(0, np.int64), none, none)
        return cls(*(state.arrays[name] for name in _ARRAYS))

    def store_in(self, state: StudyState) -> StudyState:
        """Return `state` with this tree instead of its former one."""
        for name in _ARRAYS:
            state = state.with_array(name, getattr(self, name))
        return state

    def __len__(self) -> int:
        return len(self.depths)

    def select(self, chosen: Flags | Indices) -> "PrefixTree":
        return PrefixTree(*(getattr(self, name)[chosen] for name in _ARRAYS))

    def level(self, depth: int) -> "PrefixTree":
        return self.select(self.depths == depth)

    def extended(self, more: "PrefixTree") -> "PrefixTree":
        """Return this tree with the nodes of `more`, which must be new."""
        if not len(self):
            return more
        return PrefixTree(*(np.concatenate([getattr(self, n), getattr(more, n)]) for n in _ARRAYS))


def find_prefixes(rows: DigitRows, prefixes: DigitRows) -> Indices:
    """Return for each of `rows` the index of its prefix among `prefixes`, or `NO_PREFIX`.

    The prefixes, `(k, depth)`, differ from one another; rows are as long or longer.
    """
    if not len(prefixes):
        return np.full(len(rows), NO_PREFIX)
    depth = prefixes.shape[1]
    heads = rows[:, :depth]
    hashes, head_hashes = _row_hashes(prefixes), _row_hashes(heads)
    order = np.argsort(hashes, kind="stable")
    index = order[np.minimum(np.searchsorted(hashes[order], head_hashes), len(hashes) - 1)]
    index = np.where((prefixes[index] == heads).all(axis=1), index, NO_PREFIX)
    if len(np.unique(hashes)) < len(hashes):  # a collision, by accident or design
        table = {row.tobytes(): number for number, row in enumerate(prefixes)}
        return np.array([table.get(head.tobytes(), NO_PREFIX) for head in heads], np.int64)
    return np.asarray(index, np.int64)


def digits_to_integers(digits: DigitRows, base: int) -> Indices:
    """Return rows of digits as integers to `base`; they must stay below 2^62."""
    total = np.zeros(len(digits), np.int64)
    for column in digits.T:
        total = total * base + column
    return total


def integers_to_digits(values: Indices, base: int, count: int) -> DigitRows:
    """Return the `count` digits of each of `values` to `base`, first to last."""
    rows = np.zeros((len(values), count), np.uint8)
    for column in reversed(range(count)):
        values, rows[:, column] = np.divmod(values, base)
    return rows


def _row_hashes(rows: DigitRows) -> Words:
    total = np.zeros(len(rows), np.uint64)
    for column in rows.T:
        total = total * _POLYNOMIAL_FACTOR + column + np.uint64(1)
    return total
