"""Devices that a simulation plays per second, its memory, and the speed at which tables fill.

    python -m benchmarks.scale [--devices N ...] [--rounds R] [--words PATH] [--json PATH]
                               [--shared N] [--secure N [--rates G ...]]

Each N is a run of `blindtally simulate adaptive-iblt` in its own process, from its start to its
result on disk: devices with one word each, 5,000 16-bit words to send, no dropouts. Words and
counts are those in PATH, lines of "word,count", or made up, with frequencies like real ones.

    devices x rounds   per second of the clock; the reference is 10^8 in a minute
    CPU                all CPU of the process, per device and round
    memory             the largest resident size; the reference is that of the first N
    encode             one core: items into the lanes of one table, at threshold 1, so that none is
                       sampled away. Of devices, as the simulation does it; and of different keys,
                       each of which is hashed. The references are 10^6 items per second

    two processes      with --shared, N devices over R rounds by one process, and by two that share
                       each round; the reference is one process. Rounds of fewer than about 3 x 10^7
                       devices are not shared, since a chunk takes half a second or more

    whole protocol     with --secure, cohorts of N devices with all work of devices and server: see
                       `secure_sums/whole_sum.py`. The references are the work of primitives, and
                       for two processes that of one; it needs minutes

The clock exceeds the CPU by the machine's other work.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from resource import struct_rusage
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.harness import BenchmarkRow, argument_parser, fastest_cpu_seconds, report
from benchmarks.secure_sums.whole_sum import secure_sum_rows
from benchmarks.sketches import random_contents
from benchmarks.triehh import frequencies
from blindtally.datasets.item_counts import ItemCounts
from protocol.domains.strings import smallest_domain
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.question_and_plan import Terms
from protocol.randomness import seeded_words
from protocol.sketches.iblt.layout import cells_for
from protocol.sketches.iblt.table import CellFormat, Iblt

_VECTOR_WORDS = 5_000
_THRESHOLD_SHARE = 5e-5  # of all devices
_TOTAL_COUNT = 10**9
_GOAL_DEVICES_PER_SECOND = 10**8 / 60  # devices and rounds a second
_ENCODED_ITEMS = 10**6
_SECURE_VECTOR_WORDS = 10_000


def run_simulation(
    devices: int, rounds: int, data: Path, workers: int = 1
) -> tuple[float, struct_rusage, float]:
    """Return the seconds of a simulation, its use of resources, and its F1."""
    result = data.with_name("result.json")
    options = {
        "--data": data,
        "--devices": devices,
        "--rounds": rounds,
        "--threshold": max(1, devices * rounds * _THRESHOLD_SHARE),
        "--words": _VECTOR_WORDS,
        "--workers": workers,
        "--json": result,
    }
    command = [sys.executable, "-m", "blindtally", "simulate", "adaptive-iblt"]
    command += [str(part) for pair in options.items() for part in pair]
    started = time.perf_counter()
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603 (our own)
    _, status, used = os.wait4(running.pid, 0)
    seconds = time.perf_counter() - started
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {running.returncode}")
    document = json.loads(result.read_text())
    assert document["devices"] == devices * rounds
    return seconds, used, float(document["f1"])


def simulation_rows(fleets: list[int], rounds: int, data: Path) -> Iterator[BenchmarkRow]:
    """Yield the rows of a simulation for each number of devices."""
    first = None
    for devices in fleets:
        seconds, used, f1 = run_simulation(devices, rounds, data)
        played, cpu = devices * rounds, used.ru_utime + used.ru_stime
        memory = used.ru_maxrss / 1024
        first = first or memory
        name, speed = f"{devices:,} devices, {rounds} rounds:", played / seconds
        yield BenchmarkRow(f"{name} clock", seconds, "s")
        goal = _GOAL_DEVICES_PER_SECOND / 1e6
        yield BenchmarkRow(f"{name} devices x rounds", speed / 1e6, "M/s", goal)
        yield BenchmarkRow(f"{name} CPU, each", 1e6 * cpu / played, "us")
        yield BenchmarkRow(f"{name} memory", memory, "MiB", first)
        yield BenchmarkRow(f"{name} F1", f1, "F1")


def parallel_rows(devices: int, rounds: int, data: Path) -> Iterator[BenchmarkRow]:
    """Yield the rows of two processes that share each round, compared with one."""
    speeds, costs, scores = [], [], []
    played = devices * rounds
    for workers in (1, 2):
        seconds, used, f1 = run_simulation(devices, rounds, data, workers)
        speeds.append(played / seconds / 1e6)
        costs.append(1e6 * (used.ru_utime + used.ru_stime) / played)
        scores.append(f1)
    assert scores[0] == scores[1]
    name = f"{devices:,} devices, {rounds} rounds, two processes:"
    yield BenchmarkRow(f"{name} devices x rounds", speeds[1], "M/s", speeds[0])
    yield BenchmarkRow(f"{name} CPU, each", costs[1], "us", costs[0])


def encoding_rows(population: ItemCounts) -> Iterator[BenchmarkRow]:
    """Yield the rows of encoding a million items on one core."""
    mechanism, rng = AdaptiveIblt(), np.random.default_rng(1)
    question = AdaptiveIbltQuestion(
        threshold=1, contribution=1, domain=smallest_domain(population.items), words=10**6
    )
    terms = Terms(cohort_size=1000, minimum=500, cohorts=_ENCODED_ITEMS // 1000)
    plan = mechanism.first_plan(question, terms, "scale", 1, Random(1)).model_copy(update={"t": 1})
    blocks = list(next(population.rounds([_ENCODED_ITEMS], 1, rng)))
    ring, chance = mechanism.ring(plan), seeded_words(rng)

    def devices() -> None:
        total = ring.zero()
        for block in blocks:
            ring.add(total, mechanism.encode_sum(plan, block, chance))

    cell = CellFormat(1, 2**24, 10_000, 10**6)
    keys, values = random_contents(cell, _ENCODED_ITEMS, rng)
    table = Iblt(cell, cells_for(_ENCODED_ITEMS), rng.bytes(32))
    for name, work in (("devices'", devices), ("different", lambda: table.insert(keys, values))):
        speed = _ENCODED_ITEMS / fastest_cpu_seconds(work) / 1e6
        yield BenchmarkRow(f"encode {_ENCODED_ITEMS:,} {name} items", speed, "M items/s", 1.0)


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--devices", type=int, nargs="*", default=[10**5, 10**6])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--shared", type=int, help="Devices of a round, such as 40000000.")
    parser.add_argument("--secure", type=int, help="Devices in a cohort, such as 1000.")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.05, 0.2])
    parser.add_argument("--words", type=Path, help="File of words and counts.")
    options = parser.parse_args()
    words, shares = frequencies(options.words)
    counts = np.maximum(1, np.round(shares * _TOTAL_COUNT)).astype(np.int64)
    population = ItemCounts(tuple(words), counts)
    # Simulations first: the memory of a process counts what it was forked from.
    with TemporaryDirectory() as folder:
        data = Path(folder) / "counts.csv"
        pairs = zip(words, counts.tolist(), strict=True)
        data.write_text("word,count\n" + "".join(f"{word},{count}\n" for word, count in pairs))
        rows = list(simulation_rows(options.devices, options.rounds, data))
        rows += parallel_rows(options.shared, options.rounds, data) if options.shared else []
    rows += encoding_rows(population)
    if options.secure:
        rows += secure_sum_rows(options.secure, _SECURE_VECTOR_WORDS, options.rates)
    report(rows, "reference", options.json)


if __name__ == "__main__":
    main()
