"""A whole secure sum in memory, everybody's half of it, beside the floor of its primitives.

What a device does and what its server does for it stand in one figure, as `simulate --secagg`
plays them: n devices in one cohort, k and the rest as computed from gamma and delta, nobody lost.
The floor, measured in the same run (`benchmarks.floors`), of each device:

    its own     a keystream with each partner and one of its own, agreements with partners, holders
                and those whose shares it holds, signatures of holders and witnesses checked, its
                vector hashed, three times k envelopes
    server's    its signature checked three times (once if semi-honest), and once under its deal,
                its vector hashed and added, its own mask taken off, deals hashed

Two processes are compared with one on the same cohorts, and beside it stands what two gain that
do nothing but the primitives: cores that are threads of one core, or are lent to others, give less
than twice as much to any program.
"""

import gc
import time
from dataclasses import dataclass
from multiprocessing import active_children
from random import Random

import numpy as np
import psutil

from benchmarks.floors import Floors, device_floor, sealing_floor
from benchmarks.rows import BenchmarkRow
from benchmarks.server_work import deals_floor
from blindtally.parallel import open_round_executor
from blindtally.process_pool import RetryingProcessPool
from protocol.domains.strings import Alphabet
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.simulation.executor import (
    LOCAL_EXECUTOR,
    RoundExecutor,
    SecureCohort,
)
from protocol.study import Plan, Terms
from secagg.parameters import choose_parameters
from secagg.ring import Lane, Ring

FLOOR_BURSTS = 10  # of floors, before and after each cohort
_PRIMITIVE_BURSTS = (
    600  # bursts of primitives that a process does alone, and beside another: a second
)
GOAL = 1.5  # times the floor


@dataclass(frozen=True, slots=True)
class SecureSumCase:
    """Cohorts of `n` devices with `words` of 32 bits each, corrupt and lost at `rate` at most."""

    n: int
    words: int
    dropout_and_corrupt_share: float

    @property
    def name(self) -> str:
        """Return what this is, for the rows."""
        p = choose_parameters(self.n, self.terms.assumptions)
        return (
            f"whole protocol, n={self.n:,}, {self.words:,} words, "
            f"{self.dropout_and_corrupt_share:g} each, k={p.holders}"
        )

    @property
    def terms(self) -> Terms:
        """Return the terms of one cohort."""
        return Terms(
            cohort_size=self.n,
            minimum=self.n // 2,
            corrupt=self.dropout_and_corrupt_share,
            dropout=self.dropout_and_corrupt_share,
        )

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
        """Return a plan with these terms; what it asks matters to nobody here."""
        domain = Alphabet(characters="ab", length=2)
        question = AdaptiveIbltQuestion(threshold=5, contribution=1, domain=domain, words=1000)
        return AdaptiveIblt().first_plan(question, self.terms, "whole", 1, Random(1))


def primitive_seconds(asked: SecureSumCase, floors: Floors) -> float:
    """Return the CPU seconds of a device's primitives and its server's for it."""
    p, n = choose_parameters(asked.n, asked.terms.assumptions), asked.n
    met = {of: 2 * of - of**2 / (n - 1) for of in (p.neighbours, p.holders)}  # picked, or picked by
    checked = p.holders + p.spot_checks
    own = device_floor(floors, met[p.neighbours], met[p.holders], checked)
    own += sealing_floor(floors, p.holders)
    server = 4 * floors["verification"] + floors["arrival"] + floors["mask"]
    return own + server + deals_floor(floors, n, n, p.holders, asked.ring.nbytes) / n


def time_cohorts(asked: SecureSumCase, by: RoundExecutor, cohorts: int) -> tuple[float, float]:
    """Return seconds of the clock, and of processors, that so many cohorts took; check sums."""
    gc.collect()
    own, others = time.process_time(), _children_cpu_seconds()
    start = time.perf_counter()
    for summed in by.sum_cohorts(map(asked.cohort, range(cohorts))):
        if summed is None or summed[0][0][0] != asked.n * (asked.n - 1) // 2:
            raise SystemExit(f"{asked.name}: the sum is wrong")
    seconds = time.perf_counter() - start
    return seconds, time.process_time() - own + _children_cpu_seconds() - others


def _children_cpu_seconds() -> float:
    times = [psutil.Process(child.pid).cpu_times() for child in active_children()]
    return sum(one.user + one.system for one in times)


def _run_primitives(words: int) -> None:
    Floors(words).measure(_PRIMITIVE_BURSTS)


def primitive_speedup(words: int) -> float:
    """Return how many times as fast two processes do primitives as one of them."""
    with RetryingProcessPool(2) as pool:
        seconds = []
        for count in (2, 1, 2):  # once to warm up
            start = time.perf_counter()
            list(pool.map(_run_primitives, [words] * count))
            seconds.append((time.perf_counter() - start) / count)
    return seconds[1] / seconds[2]


def secure_sum_rows(n: int, words: int, rates: list[float], cohorts: int = 2) -> list[BenchmarkRow]:
    """Return the figures of one process, and of the last rate those of two."""
    found = []
    for rate in rates:
        asked, floors = SecureSumCase(n, words, rate), Floors(words)
        time_cohorts(SecureSumCase(30, words, rate), LOCAL_EXECUTOR, 1)  # imports, tables, caches
        floors.measure(FLOOR_BURSTS)
        _, cpu = time_cohorts(asked, LOCAL_EXECUTOR, 1)
        floors.measure(FLOOR_BURSTS)
        least = primitive_seconds(asked, floors)
        found.append(
            BenchmarkRow(f"{asked.name}: CPU", 1e3 * cpu / n, "ms", 1e3 * least, cpu / n / least)
        )
        each = (1 / least, cpu / n / least)
        found.append(BenchmarkRow(f"{asked.name}: devices of a core", n / cpu, "1/s", *each))
    asked = SecureSumCase(n, words, rates[-1])
    one = time_cohorts(asked, LOCAL_EXECUTOR, cohorts)
    with open_round_executor(2, None) as by:
        time_cohorts(SecureSumCase(30, words, rates[-1]), by, 4)
        two = time_cohorts(asked, by, cohorts)
    name = f"{cohorts} cohorts, {asked.name}"
    speed = [cohorts * n / clock for clock, _ in (one, two)]
    found.append(
        BenchmarkRow(
            f"{name}: clock, beside one process", speed[1], "1/s", speed[0], speed[1] / speed[0]
        )
    )
    ours, theirs = speed[1] / speed[0], primitive_speedup(words)
    what = f"{name}: gain of two processes, beside that of primitives"
    found.append(BenchmarkRow(what, ours, "", theirs, ours / theirs))
    cpu = [1e3 * spent / cohorts / n for _, spent in (one, two)]
    found.append(
        BenchmarkRow(f"{name}: CPU, beside one process", cpu[1], "ms", cpu[0], cpu[1] / cpu[0])
    )
    return found
