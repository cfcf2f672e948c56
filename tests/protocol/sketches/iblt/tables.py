"""Tables of tests: their contents, what is listed, and sums that no devices make."""

import numpy as np
from hypothesis import strategies as st

from protocol.sketches.iblt.decoding import DecodedTable
from protocol.sketches.iblt.table import Iblt
from secagg.ring import Vector

SEED = bytes(range(32))
Held = dict[tuple[int, ...], int]  # values by key
_chunks = st.integers(0, 2**24 - 1)
contents = st.dictionaries(st.tuples(_chunks, _chunks), st.integers(1, 1000), max_size=20)


def insert(table: Iblt, held: Held) -> Vector:
    keys = np.array(list(held), np.uint64).reshape(-1, table.cell.chunks)
    return table.insert(keys, np.array(list(held.values()), np.int64))


def listed(decoded: DecodedTable) -> Held:
    """Return the values by key, each key of which is listed once."""
    assert len(np.unique(decoded.keys, axis=0)) == len(decoded.keys)
    return dict(zip(map(tuple, decoded.keys.tolist()), decoded.values.tolist(), strict=True))


def garbage(table: Iblt, rng: np.random.Generator) -> Vector:
    lanes = table.ring.lanes
    return tuple(rng.integers(0, lane.q, lane.length).astype(lane.dtype) for lane in lanes)
