"""What a study has counted so far: the state that its rounds leave behind.

A *tally* has columns of numbers by item, and arrays by name; what they mean is the mechanism's
affair. Decoding a round takes the tally of the rounds before and gives the next, so a study is
a fold over its rounds, the same in a simulation and in the service, which keeps the bytes.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
_ITEMS, _COLUMN, _ARRAY = "items", "column ", "array "


@dataclass(frozen=True, eq=False)
class Tally:
    """Columns of one number for each of `items`, and `arrays` of any shape and real type.

    Raises:
        ValueError: if an item stands twice, or a column is not as long as `items`.
    """

    items: tuple[str, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.rows) < len(self.items):
            raise ValueError("an item stands twice in a tally")
        if any(column.shape != (len(self.items),) for column in self.columns.values()):
            raise ValueError(f"columns of {len(self.items)} numbers expected")

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Return the row of each item."""
        return {item: row for row, item in enumerate(self.items)}

    def column(self, name: str) -> Column:
        """Return a column, zeros if there is none of this name."""
        found = self.columns.get(name)
        return np.zeros(len(self.items)) if found is None else found

    def add(self, items: Sequence[str], columns: Mapping[str, Column]) -> "Tally":
        """Return this tally with numbers added to some items; what is new starts from zero.

        Raises:
            ValueError: if one of `items` stands there twice, or a column is not as long.
        """
        rows = dict(self.rows)
        where = np.array([rows.setdefault(item, len(rows)) for item in items], np.int64)
        if len(set(items)) < len(items) or any(len(c) != len(items) for c in columns.values()):
            raise ValueError("one number for each of different items expected")
        summed = {}
        for name in {**self.columns, **columns}:
            wide = np.zeros(len(rows))
            wide[: len(self.items)] = self.column(name)
            if name in columns:
                wide[where] += columns[name]
            summed[name] = wide
        return Tally(tuple(rows), summed, self.arrays)

    def where(self, rows: NDArray[np.bool_]) -> "Tally":
        """Return this tally with some of its items only, and all of its arrays."""
        items = tuple(self.items[row] for row in np.flatnonzero(rows).tolist())
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Tally(items, columns, self.arrays)

    def put(self, name: str, column: Column) -> "Tally":
        """Return this tally with a column in the place of what was there.

        Raises:
            ValueError: if it has not a number for each item.
        """
        return Tally(self.items, {**self.columns, name: column}, self.arrays)

    def keep(self, name: str, array: NDArray[Any]) -> "Tally":
        """Return this tally with `array` under `name`, in the place of what was there."""
        return Tally(self.items, self.columns, {**self.arrays, name: array})

    def pack(self) -> bytes:
        """Return the bytes to keep."""
        items = np.frombuffer(json.dumps(self.items).encode(), np.uint8)
        columns = {_COLUMN + name: column for name, column in self.columns.items()}
        arrays = {_ARRAY + name: array for name, array in self.arrays.items()}
        out = io.BytesIO()
        np.savez_compressed(out, allow_pickle=False, **{_ITEMS: items}, **columns, **arrays)
        return out.getvalue()

    @classmethod
    def unpack(cls, body: bytes) -> "Tally":
        """Return the tally of `pack`; trust the bytes, which are the service's own."""
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            names = file.files
            columns = {n.removeprefix(_COLUMN): file[n] for n in names if n.startswith(_COLUMN)}
            arrays = {n.removeprefix(_ARRAY): file[n] for n in names if n.startswith(_ARRAY)}
            return cls(tuple(json.loads(file[_ITEMS].tobytes())), columns, arrays)

    def __eq__(self, other: object) -> bool:
        """Return whether items, columns and arrays are the same, in the same order."""
        if not isinstance(other, Tally):
            return NotImplemented
        same = self.items == other.items and self.columns.keys() == other.columns.keys()
        same = same and self.arrays.keys() == other.arrays.keys()
        pairs = [(self.columns[name], other.columns[name]) for name in self.columns if same]
        pairs += [(self.arrays[name], other.arrays[name]) for name in self.arrays if same]
        return same and all(np.array_equal(one, two) for one, two in pairs)

    def __hash__(self) -> int:
        """Return the same for equal tallies; arrays have no hash of their own."""
        return hash((self.items, tuple(self.columns), tuple(self.arrays)))


NOTHING = Tally()  # before the first round
