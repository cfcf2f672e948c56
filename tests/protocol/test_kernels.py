"""Compiled modules do what their references do, let other threads go on, and stay in arrays."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from protocol.numerics.finite_fields import finite_field
from protocol.oracles import numpy_report_counting
from protocol.sketches.iblt import numpy_peeling, peeling
from protocol.sketches.iblt.decoding import decode_table
from protocol.sketches.iblt.layout import capacity
from protocol.sketches.iblt.peeling import Peeling
from protocol.sketches.iblt.table import CellFormat, Iblt
from secagg.oneshot.moduli import PAIRWISE, Moduli
from tests.protocol.conftest import PEELING, use
from tests.protocol.sketches.iblt.tables import garbage

peeling_kernel = pytest.importorskip("protocol.sketches.iblt.peeling_kernel")
kernel = pytest.importorskip("protocol.oracles.report_counting_kernel")
assert peeling_kernel.INTERFACE == numpy_peeling.INTERFACE, "compile again: pip install -e ."

RNG = np.random.default_rng(1)
CELL = CellFormat(1, 2**24, 10**6, 10**6)


def count_by_hashes() -> Callable[[], object]:
    seeds, symbols = RNG.integers(0, 2**40, (2, 100), np.uint64)
    return partial(kernel.count_hashed, np.zeros(10**6, np.uint32), seeds, symbols % 7, 7)


def count_by_lines() -> Callable[[], object]:
    a, b, y = RNG.integers(1, [[10**6], [10**6], [2]], (3, 300))
    return partial(kernel.count_preimages, np.zeros(1_000_003, np.uint32), a, b, y, 2)


def count_by_fields() -> Callable[[], object]:
    r, y = RNG.integers(0, [[3**13], [3]], (2, 100))
    products = np.outer(np.arange(3), np.arange(3)) % 3
    scratch = np.zeros(3 + 3**11, np.int64)
    return partial(
        kernel.count_solutions, np.zeros(3**13, np.uint32), r, y, products, scratch, binary=False
    )


def peel_cells() -> Callable[[], object]:
    table = Iblt(CELL, 300_000, bytes(32))
    keys = RNG.permutation(2**24)[:240_000].astype(np.uint64)[:, np.newaxis]
    peeling = Peeling(table, table.insert(keys, RNG.integers(1, 8, len(keys))))
    given = peeling.rows, peeling.parameters, peeling.state, np.empty(2, np.uint64)
    return partial(peeling_kernel.peel, *given, strict=True)


@pytest.mark.parametrize(
    "kernel",
    [count_by_hashes, count_by_lines, count_by_fields, peel_cells],
    ids=["hashes", "lines", "fields", "cells"],
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


@pytest.mark.parametrize("load", [0.9, 1.1, 1.3])
@pytest.mark.parametrize("spoiled", [False, True])
def test_the_reference_lists_the_same_items(load: float, spoiled: bool) -> None:
    rng = np.random.default_rng(int(100 * load))
    pairwise, one_shot = (10**6, 120, PAIRWISE), (6_000, 120, Moduli(13))  # two parts
    for chunks, cells, lanes in ((2, 300, pairwise), (2, 60, one_shot), (1, 1_191, one_shot)):
        cell = CellFormat(chunks, 2**18, 6_000, *lanes)
        table = Iblt(cell, cells, rng.bytes(32))
        drawn = rng.integers(0, 2**18, (int(load * capacity(cells)), chunks), np.uint64)
        keys = np.unique(drawn, axis=0)
        total = table.insert(keys, np.minimum(rng.zipf(1.7, len(keys)), 3_000))
        if spoiled:
            total = tuple(
                np.where(rng.random(len(part)) < 0.02, noise, part)
                for part, noise in zip(total, garbage(table, rng), strict=True)
            )
        listed = []
        for module in (peeling_kernel, numpy_peeling):
            for _ in use(PEELING, peeling, module):
                decoded = decode_table(table, total, keys[::3])
                order = np.lexsort(decoded.keys.T)
                rows = np.column_stack((decoded.keys[order], decoded.values[order]))
                listed.append((decoded.complete, rows.tolist()))
        assert listed[0] == listed[1]


def both_count(name: str, counters: int, *arguments: object) -> None:
    results = []
    for module in (kernel, numpy_report_counting):
        counted = np.zeros(counters, np.uint32)
        results.append((getattr(module, name)(counted, *arguments), counted.tolist()))
    assert results[0] == results[1]


def test_the_reference_counts_the_same_votes() -> None:
    rng = np.random.default_rng(1)
    for prime, m in ((101, 3), (101, 99), (10_007, 2)):
        a, b = rng.integers(0, prime, (2, 300))
        a[:3] = 0
        both_count("count_preimages", prime, a, b, rng.integers(0, m, 300), m)
        both_count("count_preimages", prime, a[:0], b[:0], a[:0], m)
    for q, length in ((2, 1), (2, 9), (3, 4), (4, 3), (5, 2), (8, 3), (11, 1)):
        field, counters = finite_field(q), max(q, q**length - q)
        r, y = rng.integers(0, [[q**length], [q]], (2, 200))
        r[:5] -= r[:5] % q
        scratch = np.zeros(q + counters // q, np.int64)
        given = r, y, field.products.astype(np.int64), scratch, field.is_binary
        both_count("count_solutions", counters, *given)
    seeds, symbols = rng.integers(0, 2**40, (2, 30), np.uint64)
    both_count("count_hashed", 1_000, seeds, symbols % 7, 7)


GARBAGE_PROGRAM = """
import numpy as np

from protocol.sketches.iblt.decoding import decode_table
from protocol.sketches.iblt.table import CellFormat, Iblt
from secagg.oneshot.moduli import PAIRWISE, Moduli

rng = np.random.default_rng(1)
for number in range(24):  # each size twice
    chunks, cells = number % 3 + 1, (4, 60, 300, 1206)[number % 4]
    bounds = int(rng.choice([200, 2**18])), int(rng.choice([7, 10_000])), 20_000
    lanes = PAIRWISE, Moduli(13), Moduli(13).fixed(20_029)
    cell = CellFormat(chunks, *bounds, int(rng.choice([1, 120])), lanes[rng.integers(3)])
    table = Iblt(cell, cells, rng.bytes(32))
    keys = np.unique(rng.integers(0, bounds[0], (cells, chunks), np.uint64), axis=0)
    vector = table.insert(keys, np.minimum(rng.zipf(1.7, len(keys)), bounds[1]))
    random = (rng.integers(0, lane.q, lane.length).astype(lane.dtype) for lane in table.ring.lanes)
    vector = tuple(
        np.where(rng.random(len(noise)) < number / 24, noise, part)
        for part, noise in zip(vector, random)
    )
    decode_table(table, vector, keys[::2])
"""
SHORT_ARRAY_PROGRAM = """
import numpy as np
from protocol.oracles.report_counting_kernel import count_hashed

count_hashed(np.zeros(100, np.uint32), np.zeros(5000, np.uint64), np.zeros(10, np.uint64), 7)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="only gcc names its libraries")
def test_no_sum_makes_the_decoder_leave_its_arrays(tmp_path: Path) -> None:
    """AddressSanitizer ends a program that reads or writes outside of an array."""
    root = Path(__file__).parents[2]
    for package in ("protocol", "secagg"):
        made = shutil.ignore_patterns("__pycache__", "*.so", "*.c")
        shutil.copytree(root / package, tmp_path / package, ignore=made)
    shutil.copy(root / "setup.py", tmp_path)
    check = "-fsanitize=address,undefined"
    flags = {"CC": "gcc", "CFLAGS": f"-O0 {check} -fno-sanitize=alignment", "LDFLAGS": check}
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True, env=os.environ | flags)
    libraries = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python leaves some at its end
        "UBSAN_OPTIONS": "halt_on_error=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(tmp_path),
    }

    def errors_of(program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
            env=environment,
        )
        return done.stderr

    assert "AddressSanitizer: heap-buffer-overflow" in errors_of(SHORT_ARRAY_PROGRAM)
    assert errors_of(GARBAGE_PROGRAM) == ""
