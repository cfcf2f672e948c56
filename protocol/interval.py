"""Numbers of an interval as digits: the domain of quantiles, ranges and histograms of values.

A number x from `low` to `high` has a *position* (x - low) / (high - low) from 0 to 1, and the
position `length` digits to the base `alpha`: the number of its *cell*, of alpha^length as wide as
one another. The first digits of a cell are a wider cell, so prefixes are ranges, and the tree of
prefixes is the hierarchy of histograms that range queries are answered from.

    cell = min(floor(position alpha^length), alpha^length - 1)      so `high` is in the last

All numbers of a cell are one item, which goes by the middle of the cell. Subtraction, division,
multiplication and floor are monotone also when rounded, so that cells are ranges of floats, and
what rounding moves by less than a quarter of a cell does not take the middle out of it: cells
are 4 units in the last place of the interval's ends or more, and at most 2^48.

Source: the ranges of [Cormode21, section 4]; there the interval is [0, 1).
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.digits import Digits, Rows

Floats: TypeAlias = NDArray[np.float64]
_MOST_CELLS = 2**48  # what is rounded stays far below half of one
_NARROWEST = 4  # units in the last place: a middle is rounded by half of one
_GROUP = 2**24  # the numbers of a chunk's digits stay below


class Interval(Digits):
    """Numbers from `low` to `high`, told as `length` digits to the base `alpha`.

    An item is text that is a number as Python writes it: "0.25", "-1e3".
    """

    kind: Literal["interval"] = "interval"
    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    alpha: int = Field(default=4, ge=2, le=256)
    length: int = Field(default=10, ge=1, le=48)

    @model_validator(mode="after")
    def _has_cells(self) -> Self:
        if not self.low < self.high or math.isinf(self.high - self.low):
            raise ValueError(f"low must be below high, not {self.low:g} and {self.high:g}")
        if self.cells > _MOST_CELLS:
            raise ValueError(f"{self.length} digits to the base {self.alpha} are above 2^48 cells")
        finest = math.ulp(max(abs(self.low), abs(self.high)))
        if (self.high - self.low) / self.cells < _NARROWEST * finest:
            raise ValueError("cells are narrower than floats can tell: ask for fewer digits")
        return self

    @property
    def cells(self) -> int:
        """Return how many cells there are."""
        return int(self.alpha**self.length)

    @property
    def chunks(self) -> int:
        """Return how many integers an item becomes."""
        most = 1
        while self.alpha ** (most + 1) <= _GROUP:
            most += 1
        return -(-self.length // most)

    def __contains__(self, item: str) -> bool:
        """Return whether `item` is a number of the interval."""
        try:
            return self.low <= float(item) <= self.high  # NaN is not
        except ValueError:
            return False

    def name(self, item: str) -> str:
        """Return the middle of the cell that `item` is in."""
        return self._middle(int(self.cells_of(np.array([float(item)]))[0]))

    def admit(self, item: str) -> str | None:
        """Return the middle of the cell that `item` is in; None if it is outside."""
        return self.name(item) if item in self else None

    def cut(self, item: str) -> str | None:
        """Return as `admit`: a number has no beginning that is an item."""
        return self.admit(item)

    @property
    def terminator(self) -> int | None:
        """Return None: all numbers are of one length."""
        return None

    def prefix_of(self, row: Rows) -> str:
        """Return the range of the numbers that begin with some digits."""
        first = 0
        for digit in row.tolist():
            first = first * self.alpha + digit
        cells = self.alpha ** len(row)
        start, end = self.values_at(np.array([first, first + 1]) / cells).tolist()
        return f"[{start:.12g}, {end:.12g}{']' if first + 1 == cells else ')'}"

    def positions_of(self, values: Floats) -> Floats:
        """Return where numbers of the interval are in it, 0 for `low` to 1 for `high`."""
        return np.asarray((values - self.low) / (self.high - self.low), np.float64)

    def values_at(self, positions: Floats) -> Floats:
        """Return the numbers at positions from 0 to 1."""
        found = self.low + positions * (self.high - self.low)
        return np.asarray(np.clip(found, self.low, self.high), np.float64)

    def cells_of(self, values: Floats) -> NDArray[np.int64]:
        """Return the cells of numbers of the interval."""
        cells = np.floor(self.positions_of(values) * self.cells).astype(np.int64)
        return np.minimum(cells, self.cells - 1)

    def _middle(self, cell: int) -> str:
        position = np.array([(cell + 0.5) / self.cells])
        return repr(float(self.values_at(position)[0]))

    @property
    def _base(self) -> int:
        return self.alpha

    @property
    def _length(self) -> int:
        return self.length

    @property
    def _filler(self) -> int:
        return 0

    def _digits(self, items: Sequence[str]) -> NDArray[np.uint64]:
        cells = self.cells_of(np.array([float(item) for item in items], np.float64))
        digits = np.zeros((len(items), self._width), np.uint64)
        digits[:, : self.length], _ = self._split(cells.astype(np.uint64), self.length)
        return digits

    def _item(self, digits: NDArray[Any]) -> str:
        if digits[self.length :].any():
            raise ValueError("the last chunk is not filled up as an item's is")
        cell = 0
        for digit in digits[: self.length].tolist():
            cell = cell * self.alpha + int(digit)
        return self._middle(cell)
