"""Encoding and decoding tables beside the memory floor, and their sizes beside what others reach.

    python -m benchmarks.sketches [--keys N ...] [--sweep] [--json PATH]

Speeds are keys a second of one thread's CPU time, the best of several runs; those of the
decoder are for all of `decode_table`, once it is compiled, which has a row of its own. The
floor is measured in the same run: three updates of random 64-byte cells a key, in a table of
as many cells. `ratio` is value / reference; the peers' figures are constants, measured once
on a machine of this kind (they are no part of this run). Bits a key are at 99% full reads.

With --sweep the sizes of `capacity.py` are put to the test: the share of tables that is read
in full, and the false keys of tables that are a quarter too full.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

sys.path[0] = str(Path(__file__).parents[1])  # not this folder: its secagg.py would hide ours

from benchmarks.rows import BenchmarkRow, report
from protocol.arrays import Integers, Keys
from protocol.sketches.iblt.capacity import capacity, cells_for
from protocol.sketches.iblt.decoding import decode_table
from protocol.sketches.iblt.table import CellFormat, Iblt
from protocol.sketches.iblt.tight import tight_cell

# Keys a second at 1,000, 10,000 and 100,000 keys: TensorFlow Federated's decoder, and riblt's
# in Go, which cannot be summed.
_PEERS = {"TFF": (1_040, 1_280, 950), "riblt": (2.3e6, 1.9e6, 1.05e6)}
_SIZES = 1_000, 10_000, 100_000
_CELLS_A_KEY = {100: 1.55, 1_000: 1.21, 10_000: 1.13, 100_000: 1.11}  # what prototypes reached
_BITS_A_KEY = {"36-bit keys": 69.0, "three of 46 characters": 45.0}
_CELLS = {
    "36-bit keys": CellFormat(2, 2**18, 10_000, 10_000),
    "three of 46 characters": CellFormat(1, 97_336, 10_000, 10_000),
}
_SPEED = CellFormat(1, 2**24, 10_000, 10**6)
_TIGHT_BITS_A_KEY = {"36-bit keys": 52.0, "three of 46 characters": 29.0}
_TIGHT_CELLS = 1_206  # 1,000 keys: 1% more than the default mode


def fastest_cpu_seconds(work: Callable[[], object], seconds: float = 1.0) -> float:
    """Return the least CPU seconds that `work` takes, of as many runs as fit in `seconds`."""
    times, end = list[float](), time.process_time() + seconds
    while len(times) < 3 or time.process_time() < end:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


@njit
def update_cells(table: NDArray[np.int64], cells: NDArray[np.int64]) -> None:
    """Add 1 to all of each cell."""
    for cell in cells:
        for column in range(8):
            table[cell, column] += 1


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
    assert decode_table(table, total).complete  # a fixed seed of which it is
    memory = np.zeros((table.cells, 8), np.int64)
    cells = rng.integers(0, table.cells, 3 * count)
    update_cells(memory, cells)
    floor = count / fastest_cpu_seconds(lambda: update_cells(memory, cells)) / 1e6
    encode = count / fastest_cpu_seconds(lambda: table.insert(keys, values)) / 1e6
    decode = count / fastest_cpu_seconds(lambda: decode_table(table, total)) / 1e6
    rows = [
        BenchmarkRow(f"floor: three random 64-byte cells, {count:,} keys", floor, "M keys/s"),
        BenchmarkRow(f"encode {count:,} keys", encode, "M keys/s", floor, encode / floor),
        BenchmarkRow(f"decode {count:,} keys", decode, "M keys/s", floor, decode / floor),
    ]
    for peer, figures in _PEERS.items():
        if count in _SIZES:
            figure = figures[_SIZES.index(count)] / 1e6
            name = f"decode {count:,} keys, beside {peer}"
            rows.append(BenchmarkRow(name, decode, "M keys/s", figure, decode / figure))
    return rows


def tight_speed(name: str) -> BenchmarkRow:
    """Return the row of decoding 1,000 keys from a tight table; their values are Zipf's."""
    rng = np.random.default_rng(1)
    table = Iblt(tight_cell(_CELLS[name], _TIGHT_CELLS), _TIGHT_CELLS, rng.bytes(32))
    keys, _ = random_contents(table.cell, 1_000, rng)
    total = table.insert(keys, zipf_values(1_000, 10_000, rng))
    assert decode_table(table, total).complete  # a fixed seed of which it is
    decode = 1_000 / fastest_cpu_seconds(lambda: decode_table(table, total)) / 1e6
    return BenchmarkRow(f"decode 1,000 {name}, tight", decode, "M keys/s", 1.0, decode)


def zipf_values(count: int, total: int, rng: np.random.Generator) -> Integers:
    """Return `count` values from 1 up that add up to `total`: the first are the largest."""
    shares = 1 / np.arange(1, count + 1)
    return 1 + rng.multinomial(total - count, shares / shares.sum())


def compile_time() -> BenchmarkRow:
    """Return the seconds of the first decoding, or of loading what was compiled before."""
    table = Iblt(_SPEED, 40, bytes(32))
    start = time.process_time()
    decode_table(table, table.ring.zero())
    return BenchmarkRow(
        "first decode: compile, or load from the cache", time.process_time() - start, "s"
    )


def size_rows() -> list[BenchmarkRow]:
    """Return the rows of cells and bits a key."""
    rows = []
    for keys, known in _CELLS_A_KEY.items():
        cells = cells_for(keys, 99) / keys
        rows.append(
            BenchmarkRow(f"cells a key, {keys:,} keys", cells, "cells", known, cells / known)
        )
    for name, known in _BITS_A_KEY.items():
        bits = 8 * _CELLS[name].ring(cells_for(1_000, 99)).nbytes / 1_000
        rows.append(BenchmarkRow(f"bits a key, 1,000 {name}", bits, "bits", known, bits / known))
    for name, known in _TIGHT_BITS_A_KEY.items():
        tight = tight_cell(_CELLS[name], _TIGHT_CELLS)
        bits = 8 * tight.ring(_TIGHT_CELLS).nbytes / 1_000
        rows.append(
            BenchmarkRow(f"bits a key, 1,000 {name}, tight", bits, "bits", known, bits / known)
        )
    return rows


def decoding_rows() -> list[BenchmarkRow]:
    """Return the shares of tables read in full, and of false keys."""
    rows = []
    for count, trials in ((30, 4000), (100, 4000), (300, 2000), (1_000, 2000), (10_000, 200)):
        for percent in (97, 99):
            share = np.mean(
                [is_read_in_full(count, cells_for(count, percent)) for _ in range(trials)]
            )
            name = f"{count:,} keys read in full, of {trials:,} tables for {percent}%"
            rows.append(BenchmarkRow(name, 100 * share, "%", percent, 100 * share / percent))
    for name, cell in _CELLS.items():
        tight = tight_cell(cell, _TIGHT_CELLS)
        share = np.mean([is_read_in_full(1_000, _TIGHT_CELLS, tight) for _ in range(2_000)])
        label = f"1,000 {name} read in full, of 2,000 tight tables"
        rows.append(BenchmarkRow(label, 100 * share, "%", 99, 100 * share / 99))
    for name, cell in _CELLS.items():
        listed = false = 0
        for seed in range(1_000):
            found, wrong = count_false_keys(cell, seed)
            listed, false = listed + found, false + wrong
        share = 1e3 * false / listed
        rows.append(
            BenchmarkRow(f"false of 1,000 keys, {name}, 1.25 times full", share, "", 1.0, share)
        )
    return rows


_SWEEP_RNG = np.random.default_rng(1)


def is_read_in_full(count: int, cells: int, cell: CellFormat = _SPEED) -> bool:
    """Return whether a table of `cells` that holds `count` keys is read in full, and exact."""
    table = Iblt(cell, cells, _SWEEP_RNG.bytes(32))
    keys, values = random_contents(cell, count, _SWEEP_RNG)
    if cell.q:
        values = zipf_values(count, cell.total_bound, _SWEEP_RNG)
    found = decode_table(table, table.insert(keys, values))
    if found.complete:
        ours, theirs = np.lexsort(keys.T), np.lexsort(found.keys.T)
        assert (keys[ours] == found.keys[theirs]).all()
        assert (values[ours] == found.values[theirs]).all()
    return found.complete


def count_false_keys(cell: CellFormat, seed: int) -> tuple[int, int]:
    """Return how many keys a table lists that is 1.25 times full, and how many are false."""
    rng = np.random.default_rng(seed)
    table = Iblt(cell, 1_191, rng.bytes(32))
    keys, values = random_contents(cell, capacity(1_191) * 5 // 4, rng)
    held = dict(zip(map(tuple, keys.tolist()), values.tolist(), strict=True))
    found = decode_table(table, table.insert(keys, values))
    pairs = zip(map(tuple, found.keys.tolist()), found.values.tolist(), strict=True)
    return len(found.keys), sum(held.get(key) != value for key, value in pairs)


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, action="append", help="1,000, 10,000 and 100,000")
    parser.add_argument("--sweep", action="store_true", help="put the sizes to the test, too")
    parser.add_argument("--json", type=Path, help="write the rows as JSON here")
    arguments = parser.parse_args()
    rows = [compile_time()]
    for count in arguments.keys or _SIZES:
        rows += speed_rows(count)
    rows += [tight_speed(name) for name in _CELLS]
    rows += size_rows()
    if arguments.sweep:
        rows += decoding_rows()
    report(rows, "reference", arguments.json)


if __name__ == "__main__":
    main()
