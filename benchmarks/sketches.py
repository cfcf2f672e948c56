"""Encoding and decoding of tables compared with the memory floor, and their sizes with peers'.

    python -m benchmarks.sketches [--keys N ...] [--json PATH]

Speeds are keys per second of one thread's CPU time, the best of several runs; those of the
decoder are for the whole of `decode_table`. The floor
is measured in the same run: three updates of random 64-byte cells per key, in a table of the
same number of cells. `ratio` is value / reference; the peers' figures are constants, measured
once on a machine of this kind, not in this run. Sizes are those at which 99% of tables are read
in full, which `tests/protocol/sketches/iblt/test_capacity.py` checks.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import (
    BenchmarkRow,
    argument_parser,
    fastest_cpu_seconds,
    report,
)
from protocol.numerics.array_types import Integers, Keys
from protocol.sketches.iblt.decoding import decode_table
from protocol.sketches.iblt.layout import cells_for
from protocol.sketches.iblt.table import CellFormat, Iblt

# Keys per second at 1,000, 10,000 and 100,000 keys: TensorFlow Federated's decoder, and that of
# riblt in Go, whose tables cannot be summed.
_PEERS = {"TFF": (1_040, 1_280, 950), "riblt": (2.3e6, 1.9e6, 1.05e6)}
_SIZES = 1_000, 10_000, 100_000
_CELLS_PER_KEY = {100: 1.55, 1_000: 1.21, 10_000: 1.13, 100_000: 1.11}  # of prototypes
_BITS_PER_KEY = {"36-bit keys": 69.0, "three of 46 characters": 45.0}
_CELLS = {
    "36-bit keys": CellFormat(2, 2**18, 10_000, 10_000),
    "three of 46 characters": CellFormat(1, 97_336, 10_000, 10_000),
}
_SPEED = CellFormat(1, 2**24, 10_000, 10**6)


def update_cells(table: NDArray[np.int64], cells: NDArray[np.int64]) -> None:
    """Add 1 to all of each cell; of cells that are named twice, once."""
    table[cells] += 1


def random_contents(
    cell: CellFormat, count: int, rng: np.random.Generator
) -> tuple[Keys, Integers]:
    """Return `count` distinct random keys with values from 1 to 7."""
    drawn = rng.integers(0, cell.key_bound, (count + count // 5 + 8, cell.chunks))
    keys = rng.permutation(np.unique(drawn.astype(np.uint64), axis=0))[:count]
    return keys, rng.integers(1, 8, count)


def speed_rows(count: int) -> list[BenchmarkRow]:
    """Return the rows of encoding and decoding `count` keys."""
    rng = np.random.default_rng(count)
    table = Iblt(_SPEED, cells_for(count, 99), rng.bytes(32))
    keys, values = random_contents(_SPEED, count, rng)
    total = table.insert(keys, values)
    assert decode_table(table, total).complete  # with this fixed seed
    memory = np.zeros((table.cells, 8), np.int64)
    cells = rng.integers(0, table.cells, 3 * count)
    floor = count / fastest_cpu_seconds(partial(update_cells, memory, cells)) / 1e6
    encode = count / fastest_cpu_seconds(partial(table.insert, keys, values)) / 1e6
    decode = count / fastest_cpu_seconds(partial(decode_table, table, total)) / 1e6
    rows = [
        BenchmarkRow(f"floor: three random 64-byte cells, {count:,} keys", floor, "M keys/s"),
        BenchmarkRow(f"encode {count:,} keys", encode, "M keys/s", floor),
        BenchmarkRow(f"decode {count:,} keys", decode, "M keys/s", floor),
    ]
    for peer, figures in _PEERS.items():
        if count in _SIZES:
            name = f"decode {count:,} keys, compared with {peer}"
            figure = figures[_SIZES.index(count)] / 1e6
            rows.append(BenchmarkRow(name, decode, "M keys/s", figure))
    return rows


def size_rows() -> list[BenchmarkRow]:
    """Return the rows of cells and bits per key."""
    rows = [
        BenchmarkRow(f"cells per key, {keys:,} keys", cells_for(keys, 99) / keys, "cells", known)
        for keys, known in _CELLS_PER_KEY.items()
    ]
    for name, known in _BITS_PER_KEY.items():
        bits = 8 * _CELLS[name].ring(cells_for(1_000, 99)).nbytes / 1_000
        rows.append(BenchmarkRow(f"bits per key, 1,000 {name}", bits, "bits", known))
    return rows


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--keys", type=int, action="append", help="1,000, 10,000 and 100,000")
    options = parser.parse_args()
    rows = list[BenchmarkRow]()
    for count in options.keys or _SIZES:
        rows += speed_rows(count)
    rows += size_rows()
    report(rows, "reference", options.json)


if __name__ == "__main__":
    main()
