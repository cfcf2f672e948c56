"""Devices that a simulation plays per second, its memory, and the speed at which tables fill.

    python -m benchmarks.scale [--devices N ...] [--rounds R] [--json PATH]
                               [--shared N] [--secure N [--rates G ...]]

Each N is a run of `blindtally simulate adaptive-iblt` in its own process, from its start to its
result on disk: devices with one word each, 5,000 16-bit words to send, no dropouts. Words are made
up, with frequencies like those of real ones.

    devices x rounds   per second of the clock; the reference is 10^8 in a minute
    CPU                all CPU of the process, per device and round
    memory             the largest resident size; the reference is that of the first N
    encode             one core: items into the lanes of one table, at threshold 1, so that none is
                       sampled away. Of devices, as the simulation does it; and of different keys,
                       each of which is hashed. The references are 10^6 items per second

    two processes      with --shared, N devices over R rounds by one process, and by two that share
                       each round; the reference is one process. Rounds of fewer than about 3 x 10^7
                       devices are not shared, since a chunk takes half a second or more

    whole protocol     with --secure, cohorts of N devices with all work of devices and server, as
                       `simulate` plays them: k and the rest as computed from gamma and delta, no
                       dropouts. The references are the work of primitives, and for two processes
                       that of one; it needs minutes

The clock exceeds the CPU by the machine's other work. The floor of the whole protocol, measured in
the same run (`harness.py`), per device:

    device's    a keystream per neighbour and one for its own mask, agreements with neighbours,
                holders and dealers, signature checks for holders and for spot checks, its
                vector hashed, four times k envelopes
    server's    three checks of its signature, and one of its key shares, its vector hashed and
                added, its own mask removed, its shares hashed

Two processes are compared with one on the same cohorts, next to the gain of two processes that run
only the primitives: cores that are threads of one core, or are lent to others, give less than twice
the speed to any program.
"""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from random import Random
from resource import struct_rusage
from tempfile import TemporaryDirectory

import numpy as np
import psutil

from benchmarks.harness import (
    BenchmarkRow,
    Floors,
    argument_parser,
    device_primitives,
    fastest_cpu_seconds,
    report,
    server_primitives,
)
from benchmarks.sketches import random_contents
from blindtally.datasets.item_counts import ItemCounts
from blindtally.process_pool import RetryingProcessPool
from blindtally.workers import open_round_executor
from protocol.domains.strings import Alphabet, smallest_domain
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.question_and_plan import Plan, Terms
from protocol.randomness import seeded_words
from protocol.simulation.rounds import LOCAL_EXECUTOR, RoundExecutor, SecureCohort
from protocol.sketches.iblt.layout import cells_for
from protocol.sketches.iblt.table import CellFormat, Iblt
from secagg.parameters import choose_parameters
from secagg.ring import Lane, Ring
from tests.support.words_of_devices import frequencies

_VECTOR_WORDS = 5_000
_THRESHOLD_SHARE = 5e-5  # of all devices
_TOTAL_COUNT = 10**9
_GOAL_DEVICES_PER_SECOND = 10**8 / 60  # devices and rounds a second
_ENCODED_ITEMS = 10**6
_SECURE_VECTOR_WORDS = 10_000
_FLOOR_BURSTS = 10  # before and after each cohort
_PRIMITIVE_BURSTS = 600  # of primitives alone in a process: a second


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
        threshold=1, contribution=1, domain=smallest_domain(population.items), message_bytes=2**21
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


@dataclass(frozen=True, slots=True)
class SecureSumCase:
    """Cohorts of `n` devices with `words` 32-bit words each, and `rate` as gamma and delta."""

    n: int
    words: int
    rate: float

    @property
    def name(self) -> str:
        """Return the name for the rows."""
        holders = choose_parameters(self.n, self.terms.assumptions).holders
        return (
            f"whole protocol, n={self.n:,}, {self.words:,} words, {self.rate:g} each, k={holders}"
        )

    @property
    def terms(self) -> Terms:
        """Return the terms of one cohort."""
        return Terms(cohort_size=self.n, minimum=self.n // 2, corrupt=self.rate, dropout=self.rate)

    @property
    def ring(self) -> Ring:
        """Return the ring of the vectors."""
        return Ring((Lane(2**32, self.words),))

    def cohort(self, number: int) -> SecureCohort:
        """Return a cohort, each of whose devices has its slot in every word."""
        vectors = [self.ring.vector([np.full(self.words, slot)]) for slot in range(self.n)]
        return SecureCohort(self.plan, number, self.ring, range(self.n), vectors, {}, number)

    @property
    def plan(self) -> Plan:
        """Return a plan with these terms; its question is not used."""
        domain = Alphabet(characters="ab", length=2)
        question = AdaptiveIbltQuestion(
            threshold=5, contribution=1, domain=domain, message_bytes=2**17
        )
        return AdaptiveIblt().first_plan(question, self.terms, "whole", 1, Random(1))


def primitive_seconds(case: SecureSumCase, floors: Floors) -> float:
    """Return the CPU seconds of a device's primitives and its server's for it."""
    assumptions, n = case.terms.assumptions, case.n
    server = server_primitives(assumptions, n, case.ring.nbytes, floors)
    return device_primitives(assumptions, n, floors) + server


def time_cohorts(case: SecureSumCase, executor: RoundExecutor, cohorts: int) -> tuple[float, float]:
    """Return seconds of the clock and of processors for `cohorts`; check their sums."""
    gc.collect()
    cpu, start = _cpu_seconds_with_children(), time.perf_counter()
    for total in executor.sum_cohorts(map(case.cohort, range(cohorts))):
        if total is None or total[0][0][0] != case.n * (case.n - 1) // 2:
            raise SystemExit(f"{case.name}: the sum is wrong")
    return time.perf_counter() - start, _cpu_seconds_with_children() - cpu


def _cpu_seconds_with_children() -> float:
    times = [psutil.Process(child.pid).cpu_times() for child in active_children()]
    return time.process_time() + sum(float(spent.user + spent.system) for spent in times)


def _run_primitives(words: int) -> None:
    Floors(words).measure(_PRIMITIVE_BURSTS)


def primitive_speedup(words: int) -> float:
    """Return the speed of two processes at primitives, divided by that of one."""
    with RetryingProcessPool(2) as pool:
        seconds = []
        for count in (2, 1, 2):  # once to warm up
            start = time.perf_counter()
            list(pool.map(_run_primitives, [words] * count))
            seconds.append((time.perf_counter() - start) / count)
    return seconds[1] / seconds[2]


def secure_sum_rows(n: int, words: int, rates: list[float], cohorts: int = 2) -> list[BenchmarkRow]:
    """Return the figures of one process, and of the last rate those of two processes."""
    rows = []
    for rate in rates:
        case, floors = SecureSumCase(n, words, rate), Floors(words)
        time_cohorts(SecureSumCase(30, words, rate), LOCAL_EXECUTOR, 1)  # imports, tables, caches
        floors.measure(_FLOOR_BURSTS)
        _, cpu = time_cohorts(case, LOCAL_EXECUTOR, 1)
        floors.measure(_FLOOR_BURSTS)
        floor = primitive_seconds(case, floors)
        rows.append(BenchmarkRow(f"{case.name}: CPU", 1e3 * cpu / n, "ms", 1e3 * floor))
        rows.append(BenchmarkRow(f"{case.name}: devices per core", n / cpu, "1/s", 1 / floor))
    case = SecureSumCase(n, words, rates[-1])
    clock, cpu = time_cohorts(case, LOCAL_EXECUTOR, cohorts)
    with open_round_executor(2, None) as executor:
        time_cohorts(SecureSumCase(30, words, rates[-1]), executor, 4)
        parallel_clock, parallel_cpu = time_cohorts(case, executor, cohorts)
    name, devices = f"{cohorts} cohorts, {case.name}", cohorts * n
    gain, primitives_gain = clock / parallel_clock, primitive_speedup(words)
    return [
        *rows,
        BenchmarkRow(
            f"{name}: clock of two processes", devices / parallel_clock, "1/s", devices / clock
        ),
        BenchmarkRow(f"{name}: gain of two, compared with primitives'", gain, "", primitives_gain),
        BenchmarkRow(
            f"{name}: CPU of two processes", 1e3 * parallel_cpu / devices, "ms", 1e3 * cpu / devices
        ),
    ]


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--devices", type=int, nargs="*", default=[10**5, 10**6])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--shared", type=int, help="Devices of a round, such as 40000000.")
    parser.add_argument("--secure", type=int, help="Devices in a cohort, such as 1000.")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.05, 0.2])
    options = parser.parse_args()
    words, shares = frequencies()
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
