"""State of a study: the counts that finished rounds leave for the next one.

Decoding a round takes the state of the rounds before and returns the next one. So a study is a fold
over its rounds, in a simulation as in the service, which stores the bytes. It keeps the numbers of
devices too, and counts of rounds by *block*: consecutive rounds, one each in a short study.

**The next round.** How many devices come is not known when t is set. A round at night may have a
twentieth of those by day. A table for too many devices only samples too little; one for too few is
not read at all. So t is set for the largest of the recent rounds.
"""

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Floats, Indices

# Blocks of rounds that a study state keeps apart: 64 of 16,384 items take 100 to 350 MB (tracked).
MAX_BLOCKS = 64
_ITEMS_KEY, _COLUMN_PREFIX, _ARRAY_PREFIX = "items", "column ", "array "
_RECENT_ROUNDS = 4  # so that two small rounds after another, such as a weekend, are passed over
_SAME_SIZE_FACTOR = 1.3  # factor within which rounds have about the same number of devices
_RECENT_DEVICES_ARRAY = "recent devices"  # of the last rounds, the last one last
_DEVICES_ARRAY = "devices of all and of unread rounds"
_COUNTED_COLUMN = "devices of unread rounds that counted it"


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


def add_devices(
    state: StudyState, devices: int, *, is_read: bool, counted: Sequence[str] = ()
) -> StudyState:
    """Return `state` after a round of `devices`, in which the `counted` items were counted."""
    all_and_unread = state.arrays.get(_DEVICES_ARRAY, np.zeros(2))
    after = all_and_unread + np.array([devices, 0 if is_read else devices])
    state = state.with_array(_DEVICES_ARRAY, after)
    if is_read or not counted:
        return state
    return state.add(counted, {_COUNTED_COLUMN: np.full(len(counted), float(devices))})


def all_devices(state: StudyState) -> int:
    """Return the number of devices that all rounds of `state` counted, read or not."""
    return int(state.arrays.get(_DEVICES_ARRAY, np.zeros(2))[0])


def read_devices(state: StudyState) -> tuple[Floats, Floats]:
    """Return for each item the devices of the rounds that showed its count, and of the others."""
    devices, unread_devices = state.arrays.get(_DEVICES_ARRAY, np.zeros(2)).tolist()
    unread = unread_devices - state.column(_COUNTED_COLUMN)
    return np.maximum(devices - unread, 1), unread


def add_recent_devices(state: StudyState, devices: int) -> StudyState:
    """Return `state` after a round of `devices`."""
    sizes = [*recent_devices(state), float(devices)][-_RECENT_ROUNDS - 1 :]
    return state.with_array(_RECENT_DEVICES_ARRAY, np.array(sizes))


def recent_devices(state: StudyState) -> list[float]:
    """Return the devices of the last rounds of the study, the last one last."""
    sizes: list[float] = state.arrays.get(_RECENT_DEVICES_ARRAY, np.zeros(0)).tolist()
    return sizes


def expected_devices(recent: Sequence[float], max_devices: int) -> float:
    """Return the devices for which to set t, from those of the `recent` rounds, the last one last.

    They are the largest of the last rounds, averaged with those of about the same size. If the last
    round is larger than all before by a factor, the next may grow by this factor again.
    """
    *earlier, latest = (max(1.0, devices) for devices in recent[-_RECENT_ROUNDS:])
    if earlier and is_small(max(earlier), latest):
        return min(max_devices, latest * latest / max(earlier))
    largest = max(latest, *earlier, 1.0)
    usual = [devices for devices in (*earlier, latest) if not is_small(devices, largest)]
    return min(max_devices, math.fsum(usual) / len(usual))


def is_small(devices: float, expected: float) -> bool:
    """Return whether a round had far fewer devices than expected."""
    return devices * _SAME_SIZE_FACTOR < expected


def block_of(round_number: int, rounds: int) -> int:
    """Return the block of a round, out of `rounds`."""
    return (round_number - 1) * min(rounds, MAX_BLOCKS) // rounds


def block_ends(rounds: int) -> Indices:
    """Return the last round of each block."""
    blocks = min(rounds, MAX_BLOCKS)
    ends: Indices = -(-np.arange(1, blocks + 1) * rounds // blocks)
    return ends
