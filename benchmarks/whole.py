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
from benchmarks.rows import Row
from benchmarks.server_work import deals_floor
from blindtally.pool import Pool
from blindtally.together import hands
from protocol.domain import Alphabet
from protocol.mechanism import Plan, Terms
from protocol.mechanisms.adaptive_iblt import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.simulation import ALONE, Hands, SecureCohort
from secagg.parameters import parameters
from secagg.ring import Lane, Ring

BURSTS = 10  # of floors, before and after each cohort
_GAINED = 600  # bursts of primitives that a process does alone, and beside another: a second
GOAL = 1.5  # times the floor


@dataclass(frozen=True, slots=True)
class Asked:
    """Cohorts of `n` devices with `words` of 32 bits each, corrupt and lost at `rate` at most."""

    n: int
    words: int
    rate: float

    @property
    def name(self) -> str:
        """Return what this is, for the rows."""
        p = parameters(self.n, self.terms.assumptions)
        return (
            f"whole protocol, n={self.n:,}, {self.words:,} words, {self.rate:g} each, k={p.holders}"
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
        """Return a plan with these terms; what it asks matters to nobody here."""
        domain = Alphabet(characters="ab", length=2)
        question = AdaptiveIbltQuestion(threshold=5, contribution=1, domain=domain, words=1000)
        return AdaptiveIblt().first_plan(question, self.terms, "whole", 1, Random(1))


def floor(asked: Asked, floors: Floors) -> float:
    """Return the CPU seconds of a device's primitives and its server's for it."""
    p, n = parameters(asked.n, asked.terms.assumptions), asked.n
    met = {of: 2 * of - of**2 / (n - 1) for of in (p.partners, p.holders)}  # picked, or picked by
    checked = p.holders + p.witnesses
    own = device_floor(floors, met[p.partners], met[p.holders], checked)
    own += sealing_floor(floors, p.holders)
    server = 4 * floors["verification"] + floors["arrival"] + floors["mask"]
    return own + server + deals_floor(floors, n, n, p.holders, asked.ring.nbytes) / n


def play(asked: Asked, by: Hands, cohorts: int) -> tuple[float, float]:
    """Return seconds of the clock, and of processors, that so many cohorts took; check sums."""
    gc.collect()
    own, others = time.process_time(), _spent()
    start = time.perf_counter()
    for summed in by.sum_cohorts(map(asked.cohort, range(cohorts))):
        if summed is None or summed[0][0][0] != asked.n * (asked.n - 1) // 2:
            raise SystemExit(f"{asked.name}: the sum is wrong")
    seconds = time.perf_counter() - start
    return seconds, time.process_time() - own + _spent() - others


def _spent() -> float:
    times = [psutil.Process(child.pid).cpu_times() for child in active_children()]
    return sum(one.user + one.system for one in times)


def _primitives(words: int) -> None:
    Floors(words).measure(_GAINED)


def gain(words: int) -> float:
    """Return how many times as fast two processes do primitives as one of them."""
    with Pool(2) as pool:
        seconds = []
        for count in (2, 1, 2):  # once to warm up
            start = time.perf_counter()
            list(pool.map(_primitives, [words] * count))
            seconds.append((time.perf_counter() - start) / count)
    return seconds[1] / seconds[2]


def rows(n: int, words: int, rates: list[float], cohorts: int = 2) -> list[Row]:
    """Return the figures of one process, and of the last rate those of two."""
    found = []
    for rate in rates:
        asked, floors = Asked(n, words, rate), Floors(words)
        play(Asked(30, words, rate), ALONE, 1)  # imports, tables, caches
        floors.measure(BURSTS)
        _, cpu = play(asked, ALONE, 1)
        floors.measure(BURSTS)
        least = floor(asked, floors)
        found.append(Row(f"{asked.name}: CPU", 1e3 * cpu / n, "ms", 1e3 * least, cpu / n / least))
        each = (1 / least, cpu / n / least)
        found.append(Row(f"{asked.name}: devices of a core", n / cpu, "1/s", *each))
    asked = Asked(n, words, rates[-1])
    one = play(asked, ALONE, cohorts)
    with hands(2, None) as by:
        play(Asked(30, words, rates[-1]), by, 4)
        two = play(asked, by, cohorts)
    name = f"{cohorts} cohorts, {asked.name}"
    speed = [cohorts * n / clock for clock, _ in (one, two)]
    found.append(
        Row(f"{name}: clock, beside one process", speed[1], "1/s", speed[0], speed[1] / speed[0])
    )
    ours, theirs = speed[1] / speed[0], gain(words)
    what = f"{name}: gain of two processes, beside that of primitives"
    found.append(Row(what, ours, "", theirs, ours / theirs))
    cpu = [1e3 * spent / cohorts / n for _, spent in (one, two)]
    found.append(Row(f"{name}: CPU, beside one process", cpu[1], "ms", cpu[0], cpu[1] / cpu[0]))
    return found
