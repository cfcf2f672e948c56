"""Compiled modules release Python's lock, so that a server answers requests while it decodes."""

import sys
import time
from collections.abc import Callable
from functools import partial
from threading import Thread

import numpy as np
import pytest

from protocol.oracles.report_counting_kernel import count_hashed, count_preimages, count_solutions
from protocol.sketches.iblt.peeling import Peeling
from protocol.sketches.iblt.table import CellFormat, Iblt
from protocol.sketches.iblt.tight import tight_cell

RNG = np.random.default_rng(1)


def count_by_hashes() -> Callable[[], object]:
    seeds, symbols = RNG.integers(0, 2**40, (2, 100), np.uint64)
    return partial(count_hashed, np.zeros(10**6, np.uint32), seeds, symbols % 7, 7)


def count_by_lines() -> Callable[[], object]:
    a, b, y = RNG.integers(1, [[10**6], [10**6], [2]], (3, 300))
    return partial(count_preimages, np.zeros(1_000_003, np.uint32), a, b, y, 2)


def count_by_fields() -> Callable[[], object]:
    r, y = RNG.integers(0, [[3**13], [3]], (2, 100))
    products = np.outer(np.arange(3), np.arange(3)) % 3
    scratch = np.zeros(3 + 3**11, np.int64)
    return partial(
        count_solutions, np.zeros(3**13, np.uint32), r, y, products, scratch, binary=False
    )


def peel_table(*, tight: bool) -> Callable[[], object]:
    cell = CellFormat(1, 2**24, 10**6, 10**6)
    table = Iblt(tight_cell(cell, 300_000) if tight else cell, 300_000, bytes(32))
    keys = RNG.permutation(2**24)[:240_000].astype(np.uint64)[:, np.newaxis]
    return Peeling(table, table.insert(keys, RNG.integers(1, 8, len(keys)))).run


@pytest.mark.parametrize(
    "kernel",
    [
        count_by_hashes,
        count_by_lines,
        count_by_fields,
        partial(peel_table, tight=False),
        partial(peel_table, tight=True),
    ],
    ids=["hashes", "lines", "fields", "cells", "stages"],
)
def test_other_threads_go_on_meanwhile(kernel: Callable[[], Callable[[], object]]) -> None:
    """Nobody else runs while a thread holds the lock, because nobody takes it away here."""
    call, steps, seen = kernel(), [0], list[int]()

    def run() -> None:
        before = steps[0]
        call()
        seen.append(steps[0] - before)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = Thread(target=run)
        thread.start()
        while thread.is_alive():
            steps[0] += 1
            time.sleep(0.0005)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert seen[0] > 0
