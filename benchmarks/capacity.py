"""What a service of so many devices takes: a model of measured costs, and a simulation beside it.

    python -m benchmarks.capacity [--devices N ...] [--seconds T] [--cohort n] [--words W]
                                  [--cores S] [--json PATH]

The *model* is arithmetic over what one device, one byte and one cohort cost (`UnitCosts`, measured
by `benchmarks.service` and `benchmarks.secagg`):

    load       devices a second x (CPU of a device + CPU of its cohort / n) / cores
    a phase    what a device needs to answer, spread as D, and the later of the last device to
               begin and the servers to be through: D / 2 + max(D, n c / S') + c, where S' are the
               cores that devices who join leave free; with losses, `patience` more
    an answer  all phases of a cohort that is full, and the unmasking of its sum on one core

The *simulation* (simpy) has the same costs and none of these formulas: devices arrive by a Poisson
process, fill cohorts, wait for one another, think, and queue for cores, first come, first served.
Both are printed for some loads. They agree within 10% on load and 15% on the time to an
answer, up to a load of 0.7 (`tests/test_capacity.py`).
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import simpy

from benchmarks.rows import BenchmarkRow, report
from secagg.parameters import Assumptions, Parameters, choose_parameters

PHASES = ("sharing", "masking", "confirming", "unmasking")  # after enrolling
TARGET_UTILISATION = 0.6  # of the servers, at the daily peak: beyond, queues grow
_SIMULATED_SECONDS = 400.0  # of a simulation: many times what an answer takes
PEAK_TO_MEAN_RATIO = 3  # times the mean, of a day's arrivals


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Measured: seconds of a core, and bytes."""

    join: float  # a server's CPU for a device that enrols
    message: float  # and for each later phase: a question, its answer, a small message
    message_member: float  # more of each, by device in the cohort: what everybody is told
    byte: float  # and by byte that a device sends
    database: float  # PostgreSQL's CPU for a device
    database_byte: float
    mask: float  # to take off one mask
    mask_word: float  # and by word of 32 bits
    key_agreement: float  # to agree on a key with a lost device's partner
    holder_bytes: float  # that a device sends for each of its holders, in all messages
    download_bytes_per_member: float  # and is told for each device in its cohort
    download_bytes_per_holder: float  # and for each whose shares it holds


# November 2026, two cores that others used, too: `benchmarks.service` with PostgreSQL, 200 and
# 1,000 devices, 10,000 and 100,000 words (a request 4 ms, joining 6; of four phases nine
# requests); `benchmarks.floors` times 1.3, which is what `benchmarks.secagg` finds beside them.
MEASURED_COSTS = UnitCosts(
    join=6e-3,
    message=9e-3,
    message_member=0.0,  # none to be seen between cohorts of 200 and of 1,000
    byte=3e-9,
    database=9e-3,
    database_byte=7e-9,
    mask=6e-6,
    mask_word=1e-9,
    key_agreement=5e-5,
    holder_bytes=217.0,
    download_bytes_per_member=296.0,
    download_bytes_per_holder=104.0,
)


@dataclass(frozen=True, slots=True)
class LoadSetting:
    """What is asked of whom: cohorts of `n` on `cores`, of whom a share is `lost`.

    As many are corrupt, or lost, as `assumed`: that decides how many hold a device's shares, and
    mask with it.
    """

    n: int
    words: int  # of 32 bits
    cores: int
    per_second: float  # devices
    dropout: float = 0.05
    assumed: float = 0.1
    response_seconds: float = 2.0  # seconds a device takes to answer, half of it to half more
    idle_seconds: float = 5.0

    @property
    def sent_bytes(self) -> float:
        """Return the bytes that a device sends, to be kept while its round lasts."""
        return 4 * self.words + MEASURED_COSTS.holder_bytes * self.holders

    @property
    def holders(self) -> int:
        """Return how many hold a device's shares (k)."""
        return self._parameters.holders

    @property
    def neighbours(self) -> float:
        """Return with how many a device masks: those it picked, or was picked by."""
        picked = self._parameters.neighbours
        return 2 * picked - picked**2 / (self.n - 1)

    @property
    def _parameters(self) -> Parameters:
        return choose_parameters(self.n, Assumptions(self.assumed, self.assumed))


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a service is like under a load."""

    load: float  # of the cores
    answer: float  # seconds from a full cohort to its sum


def phase_cpu(costs: UnitCosts, setting: LoadSetting, phase: str) -> float:
    """Return a server's CPU for a device in a phase."""
    upload = costs.byte * setting.sent_bytes if phase == "masking" else 0.0
    return costs.message + costs.message_member * setting.n + upload


def cohort_cpu(costs: UnitCosts, setting: LoadSetting) -> float:
    """Return a server's CPU to unmask a sum: all losses are before the last phase."""
    lost = setting.dropout * setting.n
    pairs = lost * setting.neighbours * (1 - setting.dropout)
    masks = setting.n - lost + pairs
    return masks * (costs.mask + costs.mask_word * setting.words) + pairs * costs.key_agreement


def device_cpu(costs: UnitCosts, setting: LoadSetting) -> float:
    """Return a server's CPU for a device in all phases, and its part of its cohort."""
    said = sum(phase_cpu(costs, setting, phase) for phase in PHASES) * (1 - setting.dropout)
    return costs.join + said + cohort_cpu(costs, setting) / setting.n


def model_load(costs: UnitCosts, setting: LoadSetting) -> LoadResult:
    """Return what the model says."""
    load = setting.per_second * device_cpu(costs, setting) / setting.cores
    # Cohorts that fill one after the other keep out of each other's way: what is always under way
    # beside a phase is who joins the next ones.
    free = setting.cores - setting.per_second * costs.join
    answer = cohort_cpu(costs, setting)
    for phase in PHASES:
        each = phase_cpu(costs, setting, phase)
        drained = setting.n * (1 - setting.dropout) * each / free
        answer += setting.response_seconds / 2 + max(setting.response_seconds, drained) + each
        answer += setting.idle_seconds if setting.dropout else 0.0
    return LoadResult(load, answer)


def simulate_load(
    costs: UnitCosts, setting: LoadSetting, seconds: float, rng: Random
) -> LoadResult:
    """Return what a simulation of so many seconds finds in their second half."""
    service = _QueueSimulation(costs, setting, seconds, rng)
    return service.run()


class _QueueSimulation:
    """Devices that come, in cohorts, and the cores that they queue for."""

    def __init__(self, costs: UnitCosts, setting: LoadSetting, seconds: float, rng: Random) -> None:
        self._costs, self._setting, self._seconds, self._rng = costs, setting, seconds, rng
        self._environment = simpy.Environment()
        self._cores = simpy.Resource(self._environment, setting.cores)
        self._busy, self._answers = 0.0, list[float]()

    def run(self) -> LoadResult:
        self._environment.process(self._arrivals())
        self._environment.run()
        busy = self._busy / (self._seconds / 2 * self._setting.cores)
        return LoadResult(busy, fmean(self._answers))

    def _arrivals(self) -> Iterator[Any]:
        while self._environment.now < self._seconds:
            joining = []
            for _ in range(self._setting.n):
                yield self._environment.timeout(self._rng.expovariate(self._setting.per_second))
                joining.append(self._environment.process(self._work(self._costs.join)))
            self._environment.process(self._cohort(joining))

    def _cohort(self, joining: list[Any]) -> Iterator[Any]:
        setting, full = self._setting, self._environment.now
        yield simpy.AllOf(self._environment, joining)
        for phase in PHASES:
            cpu = phase_cpu(self._costs, setting, phase)
            heard = round(setting.n * (1 - setting.dropout))
            said = [self._environment.process(self._answer(cpu)) for _ in range(heard)]
            yield simpy.AllOf(self._environment, said)
            if setting.dropout:
                yield self._environment.timeout(setting.idle_seconds)
        yield from self._work(cohort_cpu(self._costs, setting))
        if full >= self._seconds / 2:
            self._answers.append(self._environment.now - full)

    def _answer(self, cpu: float) -> Iterator[Any]:
        yield self._environment.timeout(
            self._setting.response_seconds * self._rng.uniform(0.5, 1.5)
        )
        yield from self._work(cpu)

    def _work(self, cpu: float) -> Iterator[Any]:
        with self._cores.request() as turn:
            yield turn
            yield self._environment.timeout(cpu)
        if self._seconds / 2 <= self._environment.now < self._seconds:
            self._busy += cpu


def capacity_rows(
    costs: UnitCosts, setting: LoadSetting, devices: float, seconds: float
) -> list[BenchmarkRow]:
    """Return the resources of a load whose peak is `PEAK_TO_MEAN_RATIO` times its mean."""
    rate = PEAK_TO_MEAN_RATIO * devices / seconds
    each = device_cpu(costs, setting)
    database = costs.database + costs.database_byte * setting.sent_bytes
    told = (
        costs.download_bytes_per_member * setting.n
        + costs.download_bytes_per_holder * setting.holders
    )
    name = f"{devices:,.0f} devices in {seconds / 3600:g} h"
    return [
        BenchmarkRow(f"{name}: devices a second, peak", rate, "1/s"),
        BenchmarkRow(f"{name}: server CPU a device", 1e3 * each, "ms"),
        BenchmarkRow(
            f"{name}: cores of servers, {TARGET_UTILISATION:.0%} busy at the peak",
            rate * each / TARGET_UTILISATION,
            "",
        ),
        BenchmarkRow(f"{name}: cores of databases", rate * database / TARGET_UTILISATION, ""),
        BenchmarkRow(f"{name}: written", rate * setting.sent_bytes / 1e6, "MB/s"),
        BenchmarkRow(
            f"{name}: received from devices", rate * setting.sent_bytes * 8 / 1e9, "Gbit/s"
        ),
        BenchmarkRow(f"{name}: sent to devices", rate * told * 8 / 1e9, "Gbit/s"),
    ]


def validation_rows(
    costs: UnitCosts, setting: LoadSetting, loads: list[float], seed: int = 1
) -> list[BenchmarkRow]:
    """Return rows of the simulation beside the model, under some loads."""
    rows = []
    for load in loads:
        rate = load * setting.cores / device_cpu(costs, setting)
        one = replace(setting, per_second=rate)
        model, found = (
            model_load(costs, one),
            simulate_load(costs, one, _SIMULATED_SECONDS, Random(seed)),
        )
        name = f"load {load:g}, {rate:,.1f} devices a second:"
        both = {"load": ("", model.load, found.load), "answer": ("s", model.answer, found.answer)}
        rows += [
            BenchmarkRow(f"{name} {what}", b, unit, a, b / a) for what, (unit, a, b) in both.items()
        ]
    return rows


def main() -> None:
    """Print the plan and the check, and write JSON rows if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=float, nargs="+", default=[1e6, 1e9])
    parser.add_argument("--seconds", type=float, default=86_400, help="in which they come: a day")
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--words", type=int, default=10_000, help="of 32 bits, in a vector")
    parser.add_argument("--cores", type=int, default=4, help="of the simulated service")
    parser.add_argument("--json", type=Path, help="write the rows as JSON here")
    asked = parser.parse_args()
    setting = LoadSetting(asked.cohort, asked.words, asked.cores, 1.0)
    rows = [
        row
        for n in asked.devices
        for row in capacity_rows(MEASURED_COSTS, setting, n, asked.seconds)
    ]
    rows += validation_rows(MEASURED_COSTS, setting, [0.3, 0.5, 0.7])
    report(rows, "model", asked.json)


if __name__ == "__main__":
    main()
