"""Encoding and decoding tables beside the memory floor, and their sizes beside what others reach.

    python -m benchmarks.sketches [--keys N ...] [--sweep] [--json PATH]

Speeds are keys a second of one thread's CPU time, the best of several runs; those of the
decoder are for all of `list_entries`, once it is compiled, which has a row of its own. The
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

from benchmarks.rows import Row, report
from protocol.sketches.capacity import capacity, cells_for
from protocol.sketches.iblt import Cell, Iblt, Keys, Values
from protocol.sketches.tight import tight_cell

# Keys a second at 1,000, 10,000 and 100,000 keys: TensorFlow Federated's decoder, and riblt's
# in Go, which cannot be summed.
_PEERS = {"TFF": (1_040, 1_280, 950), "riblt": (2.3e6, 1.9e6, 1.05e6)}
_SIZES = 1_000, 10_000, 100_000
_CELLS_A_KEY = {100: 1.55, 1_000: 1.21, 10_000: 1.13, 100_000: 1.11}  # what prototypes reached
_BITS_A_KEY = {"36-bit keys": 69.0, "three of 46 characters": 45.0}
_CELLS = {
    "36-bit keys": Cell(2, 2**18, 10_000, 10_000),
    "three of 46 characters": Cell(1, 97_336, 10_000, 10_000),
}
_SPEED = Cell(1, 2**24, 10_000, 10**6)
_TIGHT_BITS_A_KEY = {"36-bit keys": 52.0, "three of 46 characters": 29.0}
_TIGHT_CELLS = 1_206  # 1,000 keys: 1% more than the default mode


def best(work: Callable[[], object], seconds: float = 1.0) -> float:
    """Return the least CPU seconds that `work` takes, of as many runs as fit in `seconds`."""
    times, end = list[float](), time.process_time() + seconds
    while len(times) < 3 or time.process_time() < end:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


@njit
def update(table: NDArray[np.int64], cells: NDArray[np.int64]) -> None:
    """Add 1 to all of each cell."""
    for cell in cells:
        for column in range(8):
            table[cell, column] += 1


def contents(cell: Cell, count: int, rng: np.random.Generator) -> tuple[Keys, Values]:
    """Return `count` distinct random keys with values from 1 to 7."""
    drawn = rng.integers(0, cell.key_bound, (count + count // 5 + 8, cell.chunks))
    keys = rng.permutation(np.unique(drawn.astype(np.uint64), axis=0))[:count]
    return keys, rng.integers(1, 8, count)


def speeds(count: int) -> list[Row]:
    """Return the rows of encoding and decoding `count` keys."""
    rng = np.random.default_rng(count)
    table = Iblt(_SPEED, cells_for(count, 99), rng.bytes(32))
    keys, values = contents(_SPEED, count, rng)
    total = table.insert(keys, values)
    assert table.list_entries(total).complete  # a fixed seed of which it is
    memory = np.zeros((table.cells, 8), np.int64)
    cells = rng.integers(0, table.cells, 3 * count)
    update(memory, cells)
    floor = count / best(lambda: update(memory, cells)) / 1e6
    encode = count / best(lambda: table.insert(keys, values)) / 1e6
    decode = count / best(lambda: table.list_entries(total)) / 1e6
    rows = [
        Row(f"floor: three random 64-byte cells, {count:,} keys", floor, "M keys/s"),
        Row(f"encode {count:,} keys", encode, "M keys/s", floor, encode / floor),
        Row(f"decode {count:,} keys", decode, "M keys/s", floor, decode / floor),
    ]
    for peer, figures in _PEERS.items():
        if count in _SIZES:
            figure = figures[_SIZES.index(count)] / 1e6
            name = f"decode {count:,} keys, beside {peer}"
            rows.append(Row(name, decode, "M keys/s", figure, decode / figure))
    return rows


def tight_speed(name: str) -> Row:
    """Return the row of decoding 1,000 keys from a tight table; their values are Zipf's."""
    rng = np.random.default_rng(1)
    table = Iblt(tight_cell(_CELLS[name], _TIGHT_CELLS), _TIGHT_CELLS, rng.bytes(32))
    keys, _ = contents(table.cell, 1_000, rng)
    total = table.insert(keys, zipf(1_000, 10_000, rng))
    assert table.list_entries(total).complete  # a fixed seed of which it is
    decode = 1_000 / best(lambda: table.list_entries(total)) / 1e6
    return Row(f"decode 1,000 {name}, tight", decode, "M keys/s", 1.0, decode)


def zipf(count: int, total: int, rng: np.random.Generator) -> Values:
    """Return `count` values from 1 up that add up to `total`: the first are the largest."""
    shares = 1 / np.arange(1, count + 1)
    return 1 + rng.multinomial(total - count, shares / shares.sum())


def compile_time() -> Row:
    """Return the seconds of the first decoding, or of loading what was compiled before."""
    table = Iblt(_SPEED, 40, bytes(32))
    start = time.process_time()
    table.list_entries(table.ring.zero())
    return Row("first decode: compile, or load from the cache", time.process_time() - start, "s")


def sizes() -> list[Row]:
    """Return the rows of cells and bits a key."""
    rows = []
    for keys, known in _CELLS_A_KEY.items():
        cells = cells_for(keys, 99) / keys
        rows.append(Row(f"cells a key, {keys:,} keys", cells, "cells", known, cells / known))
    for name, known in _BITS_A_KEY.items():
        bits = 8 * _CELLS[name].ring(cells_for(1_000, 99)).nbytes / 1_000
        rows.append(Row(f"bits a key, 1,000 {name}", bits, "bits", known, bits / known))
    for name, known in _TIGHT_BITS_A_KEY.items():
        tight = tight_cell(_CELLS[name], _TIGHT_CELLS)
        bits = 8 * tight.ring(_TIGHT_CELLS).nbytes / 1_000
        rows.append(Row(f"bits a key, 1,000 {name}, tight", bits, "bits", known, bits / known))
    return rows


def sweep() -> list[Row]:
    """Return the shares of tables read in full, and of false keys."""
    rows = []
    for count, trials in ((30, 4000), (100, 4000), (300, 2000), (1_000, 2000), (10_000, 200)):
        for percent in (97, 99):
            share = np.mean([read(count, cells_for(count, percent)) for _ in range(trials)])
            name = f"{count:,} keys read in full, of {trials:,} tables for {percent}%"
            rows.append(Row(name, 100 * share, "%", percent, 100 * share / percent))
    for name, cell in _CELLS.items():
        tight = tight_cell(cell, _TIGHT_CELLS)
        share = np.mean([read(1_000, _TIGHT_CELLS, tight) for _ in range(2_000)])
        label = f"1,000 {name} read in full, of 2,000 tight tables"
        rows.append(Row(label, 100 * share, "%", 99, 100 * share / 99))
    for name, cell in _CELLS.items():
        listed = false = 0
        for seed in range(1_000):
            found, wrong = too_full(cell, seed)
            listed, false = listed + found, false + wrong
        share = 1e3 * false / listed
        rows.append(Row(f"false of 1,000 keys, {name}, 1.25 times full", share, "", 1.0, share))
    return rows


_SWEEP = np.random.default_rng(1)


def read(count: int, cells: int, cell: Cell = _SPEED) -> bool:
    """Return whether a table of `cells` that holds `count` keys is read in full, and exact."""
    table = Iblt(cell, cells, _SWEEP.bytes(32))
    keys, values = contents(cell, count, _SWEEP)
    if cell.q:
        values = zipf(count, cell.total_bound, _SWEEP)
    found = table.list_entries(table.insert(keys, values))
    if found.complete:
        ours, theirs = np.lexsort(keys.T), np.lexsort(found.keys.T)
        assert (keys[ours] == found.keys[theirs]).all()
        assert (values[ours] == found.values[theirs]).all()
    return found.complete


def too_full(cell: Cell, seed: int) -> tuple[int, int]:
    """Return how many keys a table lists that is 1.25 times full, and how many are false."""
    rng = np.random.default_rng(seed)
    table = Iblt(cell, 1_191, rng.bytes(32))
    keys, values = contents(cell, capacity(1_191) * 5 // 4, rng)
    held = dict(zip(map(tuple, keys.tolist()), values.tolist(), strict=True))
    found = table.list_entries(table.insert(keys, values))
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
        rows += speeds(count)
    rows += [tight_speed(name) for name in _CELLS]
    rows += sizes()
    if arguments.sweep:
        rows += sweep()
    report(rows, "reference", arguments.json)


if __name__ == "__main__":
    main()
