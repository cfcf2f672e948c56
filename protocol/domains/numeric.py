"""Numbers of an interval as digits: the domain of quantiles, ranges and histograms of values.

A number x from `low` to `high` has a *position* (x - low) / (high - low) from 0 to 1. Its *cell* is
one of alpha^length cells of equal width, with a number of `length` digits to the base `alpha`. The
first digits of a cell are a wider cell, so prefixes are ranges, and the tree of prefixes is the
hierarchy of histograms that answers range queries.

    cell = min(floor(position alpha^length), alpha^length - 1)      so `high` is in the last

All numbers of a cell are one item, whose name is the middle of the cell with the decimals that a
cell has: for example "28.5", not "28.499999999999996". Subtraction, division, multiplication and
floor are monotone also when rounded, so that cells are ranges of floats. Rounding to decimals moves
the middle by an eighth of a cell, and that of floats by a quarter, so it stays inside: cells are at
least 4 units in the last place of the interval's ends, and at most 2^48 in number.

Source: the ranges of [Cormode21, section 4]; there the interval is [0, 1).
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.domains.base import Digits
from protocol.numerics.array_types import Floats

_MAX_CELLS = 2**48  # rounding errors stay far below half a cell
_MIN_CELL_ULPS = 4  # units in the last place; rounding a middle moves it by half a unit


class NumericInterval(Digits):
    """Numbers from `low` to `high`, as `length` digits to the base `alpha`.

    An item is text that is a number as Python writes it: "0.25", "-1e3".
    """

    terminator: ClassVar[None] = None  # all numbers have the same length
    _pad_digit: ClassVar[int] = 0
    kind: Literal["interval"] = "interval"
    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    alpha: int = Field(default=4, ge=2, le=256)
    length: int = Field(default=10, ge=1, le=48)

    @model_validator(mode="after")
    def _has_cells(self) -> Self:
        if not self.low < self.high or math.isinf(self.high - self.low):
            raise ValueError(f"low must be below high, not {self.low:g} and {self.high:g}")
        if self.cells > _MAX_CELLS:
            raise ValueError(f"{self.length} digits to the base {self.alpha} are above 2^48 cells")
        finest = math.ulp(max(abs(self.low), abs(self.high)))
        if (self.high - self.low) / self.cells < _MIN_CELL_ULPS * finest:
            raise ValueError("cells are narrower than floats can distinguish: use fewer digits")
        return self

    @property
    def cells(self) -> int:
        """Return the number of cells."""
        return int(self.alpha**self.length)

    def __contains__(self, item: str) -> bool:
        try:
            return "_" not in item and self.low <= float(item) <= self.high  # NaN is not
        except ValueError:
            return False

    def name(self, item: str) -> str:
        return self._middle(int(self.cells_of(np.array([float(item)]))[0]))

    def canonical(self, item: str) -> str | None:
        return self.name(item) if item in self else None

    def truncate(self, item: str) -> str | None:
        return self.canonical(item)

    def positions_of(self, values: Floats) -> Floats:
        """Return the positions of numbers of the interval, 0 for `low` to 1 for `high`."""
        return np.asarray((values - self.low) / (self.high - self.low), np.float64)

    def values_at(self, positions: Floats) -> Floats:
        """Return the numbers at positions from 0 to 1."""
        values = self.low + positions * (self.high - self.low)
        return np.asarray(np.clip(values, self.low, self.high), np.float64)

    def cells_of(self, values: Floats) -> NDArray[np.int64]:
        """Return the cells of numbers of the interval."""
        cells = np.floor(self.positions_of(values) * self.cells).astype(np.int64)
        return np.minimum(cells, self.cells - 1)

    def _middle(self, cell: int) -> str:
        position = np.array([(cell + 0.5) / self.cells])
        return repr(round(float(self.values_at(position)[0]), self._decimals))

    @cached_property
    def _decimals(self) -> int:
        """Return the decimals by which rounding moves a middle by an eighth of a cell at most."""
        return math.ceil(-math.log10((self.high - self.low) / self.cells / 4))

    @property
    def base(self) -> int:
        return self.alpha

    @property
    def width(self) -> int:
        return self.length

    def _digits(self, items: Sequence[str]) -> NDArray[np.uint64]:
        cells = self.cells_of(np.array([float(item) for item in items], np.float64))
        digits = np.zeros((len(items), self._width), np.uint64)
        digits[:, : self.length], _ = self._split(cells.astype(np.uint64), self.length)
        return digits

    def _item(self, digits: NDArray[Any]) -> str:
        if digits[self.length :].any():
            raise ValueError("the last chunk is not padded as that of an item")
        cell = 0
        for digit in digits[: self.length].tolist():
            cell = cell * self.alpha + int(digit)
        return self._middle(cell)
