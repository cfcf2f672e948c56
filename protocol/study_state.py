"""State of a study: the counts that finished rounds leave for the next one.

Decoding a round takes the state of the rounds before and returns the next one. So a study is a fold
over its rounds, in a simulation as in the service, which stores the bytes.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.arrays import Floats

_ITEMS_KEY, _COLUMN_PREFIX, _ARRAY_PREFIX = "items", "column ", "array "


@dataclass(frozen=True, eq=False)
class StudyState:
    """Columns of one number for each of `items`, and `arrays` of any shape and real type.

    Each mechanism defines their meaning.
    """

    items: tuple[str, ...] = ()
    columns: Mapping[str, Floats] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.rows) < len(self.items):
            raise ValueError("an item is repeated in a study state")
        if any(column.shape != (len(self.items),) for column in self.columns.values()):
            raise ValueError(f"expected columns of {len(self.items)} numbers")

    @cached_property
    def rows(self) -> Mapping[str, int]:
        return {item: row for row, item in enumerate(self.items)}

    def column(self, name: str) -> Floats:
        """Return a column, zeros if there is none of this name."""
        column = self.columns.get(name)
        return np.zeros(len(self.items)) if column is None else column

    def add(self, items: Sequence[str], columns: Mapping[str, Floats]) -> "StudyState":
        """Return this state with numbers added to `items`; new items start from zero."""
        rows = dict(self.rows)
        where = np.array([rows.setdefault(item, len(rows)) for item in items], np.int64)
        if len(set(items)) < len(items) or any(len(c) != len(items) for c in columns.values()):
            raise ValueError("expected one number for each of different items")
        summed = {}
        for name in {**self.columns, **columns}:
            wide = np.zeros(len(rows))
            wide[: len(self.items)] = self.column(name)
            if name in columns:
                wide[where] += columns[name]
            summed[name] = wide
        return StudyState(tuple(rows), summed, self.arrays)

    def select_rows(self, rows: NDArray[np.bool_]) -> "StudyState":
        """Return this state with the items of `rows`, and all of its arrays."""
        items = tuple(self.items[row] for row in np.flatnonzero(rows).tolist())
        columns = {name: column[rows] for name, column in self.columns.items()}
        return StudyState(items, columns, self.arrays)

    def with_column(self, name: str, column: Floats) -> "StudyState":
        """Return this state with a column replaced, which has a number for each item."""
        return StudyState(self.items, {**self.columns, name: column}, self.arrays)

    def with_array(self, name: str, array: NDArray[Any]) -> "StudyState":
        return StudyState(self.items, self.columns, {**self.arrays, name: array})

    def pack(self) -> bytes:
        items = np.frombuffer(json.dumps(self.items).encode(), np.uint8)
        columns = {_COLUMN_PREFIX + name: column for name, column in self.columns.items()}
        arrays = {_ARRAY_PREFIX + name: array for name, array in self.arrays.items()}
        out = io.BytesIO()
        np.savez_compressed(out, allow_pickle=False, **{_ITEMS_KEY: items}, **columns, **arrays)
        return out.getvalue()

    @classmethod
    def unpack(cls, body: bytes) -> "StudyState":
        """Return the state of `pack`; the bytes must be those of the service itself."""
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            names = file.files
            columns = {
                n.removeprefix(_COLUMN_PREFIX): file[n]
                for n in names
                if n.startswith(_COLUMN_PREFIX)
            }
            arrays = {
                n.removeprefix(_ARRAY_PREFIX): file[n] for n in names if n.startswith(_ARRAY_PREFIX)
            }
            return cls(tuple(json.loads(file[_ITEMS_KEY].tobytes())), columns, arrays)

    def __eq__(self, other: object) -> bool:
        """Return whether items, columns and arrays are the same, in the same order."""
        if not isinstance(other, StudyState):
            return NotImplemented
        same = self.items == other.items and self.columns.keys() == other.columns.keys()
        same = same and self.arrays.keys() == other.arrays.keys()
        pairs = [(self.columns[name], other.columns[name]) for name in self.columns if same]
        pairs += [(self.arrays[name], other.arrays[name]) for name in self.arrays if same]
        return same and all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    def __hash__(self) -> int:
        """Return a hash that is equal for equal states; arrays have none."""
        return hash((self.items, tuple(self.columns), tuple(self.arrays)))


EMPTY_STATE = StudyState()  # before the first round
