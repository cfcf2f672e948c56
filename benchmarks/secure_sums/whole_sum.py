"""A whole secure sum in memory, with clients and server, compared with its primitives' floor.

One figure has the work of a device and of its server for it, as `simulate --secagg` plays them:
n devices in one cohort, k and the rest as computed from gamma and delta, no dropouts.
The floor, measured in the same run (`floors.py`), per device:

    device's    a keystream per neighbour and one for its own mask, agreements with neighbours,
                holders and dealers, checks of the signatures of holders and of spot checks, its
                vector hashed, four times k envelopes
    server's    three checks of its signature, and one of its key shares, its vector hashed and
                added, its own mask removed, its shares hashed

Two processes are compared with one on the same cohorts, next to the gain of two processes that run
only the primitives: cores that are threads of one core, or are lent to others, give less than twice
the speed to any program.
"""

import gc
import time
from dataclasses import dataclass
from multiprocessing import active_children
from random import Random

import numpy as np
import psutil

from benchmarks.harness import BenchmarkRow
from benchmarks.secure_sums.floors import Floors, device_floor, sealing_floor
from benchmarks.secure_sums.server_work import shares_floor
from blindtally.process_pool import RetryingProcessPool
from blindtally.workers import open_round_executor
from protocol.domains.strings import Alphabet
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.question_and_plan import Plan, Terms
from protocol.simulation.rounds import LOCAL_EXECUTOR, RoundExecutor, SecureCohort
from secagg.parameters import Assumptions, choose_parameters
from secagg.ring import Lane, Ring

FLOOR_BURSTS = 10  # before and after each cohort
_PRIMITIVE_BURSTS = 600  # of primitives alone in a process: a second


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
        question = AdaptiveIbltQuestion(threshold=5, contribution=1, domain=domain, words=1000)
        return AdaptiveIblt().first_plan(question, self.terms, "whole", 1, Random(1))


def device_primitives(assumptions: Assumptions, n: int, floors: Floors) -> float:
    """Return the CPU seconds of the primitives of a device in a cohort of `n`."""
    p = choose_parameters(n, assumptions)
    neighbours = 2 * p.holders - p.holders**2 / (n - 1)  # selected by it, or selecting it
    device = device_floor(floors, neighbours, neighbours, p.holders + p.spot_checks)
    return device + sealing_floor(floors, p.holders)


def server_primitives(assumptions: Assumptions, n: int, nbytes: int, floors: Floors) -> float:
    """Return the CPU seconds of its server's primitives for one device with `nbytes` of vector."""
    server = 4 * floors["verification"] + floors["arrival"] + floors["mask"]
    holders = choose_parameters(n, assumptions).holders
    return server + shares_floor(floors, n, holders, nbytes) / n


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
        floors.measure(FLOOR_BURSTS)
        _, cpu = time_cohorts(case, LOCAL_EXECUTOR, 1)
        floors.measure(FLOOR_BURSTS)
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
