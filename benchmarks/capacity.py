"""What a service of so many devices takes: a model of measured costs, and a simulation beside it.

    python -m benchmarks.capacity [--devices N ...] [--seconds T] [--cohort n] [--words W]
                                  [--cores S] [--json PATH]

The *model* is arithmetic over what one device, one byte and one cohort cost (`Costs`, measured by
`benchmarks.service` and `benchmarks.secagg`):

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

from benchmarks.rows import Row, report
from secagg.parameters import Assumptions, Parameters, parameters

PHASES = ("sharing", "masking", "confirming", "unmasking")  # after enrolling
BUSY = 0.6  # of the servers, at the daily peak: beyond, queues grow
_SECONDS = 400.0  # of a simulation: many times what an answer takes
PEAK = 3  # times the mean, of a day's arrivals


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured: seconds of a core, and bytes."""

    join: float  # a server's CPU for a device that enrols
    message: float  # and for each later phase: a question, its answer, a small message
    message_member: float  # more of each, by device in the cohort: what everybody is told
    byte: float  # and by byte that a device sends
    database: float  # PostgreSQL's CPU for a device
    database_byte: float
    mask: float  # to take off one mask
    mask_word: float  # and by word of 32 bits
    agreement: float  # to agree on a key with a lost device's partner
    holder_bytes: float  # that a device sends for each of its holders, in all messages
    told_member: float  # and is told for each device in its cohort
    told_holder: float  # and for each whose shares it holds


# November 2026, two cores that others used, too: `benchmarks.service` with PostgreSQL, 200 and
# 1,000 devices, 10,000 and 100,000 words (a request 4 ms, joining 6; of four phases nine
# requests); `benchmarks.floors` times 1.3, which is what `benchmarks.secagg` finds beside them.
MEASURED = Costs(
    join=6e-3,
    message=9e-3,
    message_member=0.0,  # none to be seen between cohorts of 200 and of 1,000
    byte=3e-9,
    database=9e-3,
    database_byte=7e-9,
    mask=6e-6,
    mask_word=1e-9,
    agreement=5e-5,
    holder_bytes=217.0,
    told_member=296.0,
    told_holder=104.0,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is asked of whom: cohorts of `n` on `cores`, of whom a share is `lost`.

    As many are corrupt, or lost, as `assumed`: that decides how many hold a device's shares, and
    mask with it.
    """

    n: int
    words: int  # of 32 bits
    cores: int
    per_second: float  # devices
    lost: float = 0.05
    assumed: float = 0.1
    think: float = 2.0  # seconds a device takes to answer, half of it to half more
    patience: float = 5.0

    @property
    def sent(self) -> float:
        """Return the bytes that a device sends, to be kept while its round lasts."""
        return 4 * self.words + MEASURED.holder_bytes * self.holders

    @property
    def holders(self) -> int:
        """Return how many hold a device's shares (k)."""
        return self._parameters.holders

    @property
    def partners(self) -> float:
        """Return with how many a device masks: those it picked, or was picked by."""
        picked = self._parameters.partners
        return 2 * picked - picked**2 / (self.n - 1)

    @property
    def _parameters(self) -> Parameters:
        return parameters(self.n, Assumptions(self.assumed, self.assumed))


@dataclass(frozen=True, slots=True)
class Found:
    """What a service is like under a load."""

    load: float  # of the cores
    answer: float  # seconds from a full cohort to its sum


def phase_cpu(costs: Costs, setting: Setting, phase: str) -> float:
    """Return a server's CPU for a device in a phase."""
    upload = costs.byte * setting.sent if phase == "masking" else 0.0
    return costs.message + costs.message_member * setting.n + upload


def cohort_cpu(costs: Costs, setting: Setting) -> float:
    """Return a server's CPU to unmask a sum: all losses are before the last phase."""
    lost = setting.lost * setting.n
    pairs = lost * setting.partners * (1 - setting.lost)
    masks = setting.n - lost + pairs
    return masks * (costs.mask + costs.mask_word * setting.words) + pairs * costs.agreement


def device_cpu(costs: Costs, setting: Setting) -> float:
    """Return a server's CPU for a device in all phases, and its part of its cohort."""
    said = sum(phase_cpu(costs, setting, phase) for phase in PHASES) * (1 - setting.lost)
    return costs.join + said + cohort_cpu(costs, setting) / setting.n


def modelled(costs: Costs, setting: Setting) -> Found:
    """Return what the model says."""
    load = setting.per_second * device_cpu(costs, setting) / setting.cores
    # Cohorts that fill one after the other keep out of each other's way: what is always under way
    # beside a phase is who joins the next ones.
    free = setting.cores - setting.per_second * costs.join
    answer = cohort_cpu(costs, setting)
    for phase in PHASES:
        each = phase_cpu(costs, setting, phase)
        drained = setting.n * (1 - setting.lost) * each / free
        answer += setting.think / 2 + max(setting.think, drained) + each
        answer += setting.patience if setting.lost else 0.0
    return Found(load, answer)


def simulated(costs: Costs, setting: Setting, seconds: float, rng: Random) -> Found:
    """Return what a simulation of so many seconds finds in their second half."""
    service = _Service(costs, setting, seconds, rng)
    return service.run()


class _Service:
    """Devices that come, in cohorts, and the cores that they queue for."""

    def __init__(self, costs: Costs, setting: Setting, seconds: float, rng: Random) -> None:
        self._costs, self._setting, self._seconds, self._rng = costs, setting, seconds, rng
        self._world = simpy.Environment()
        self._cores = simpy.Resource(self._world, setting.cores)
        self._busy, self._answers = 0.0, list[float]()

    def run(self) -> Found:
        self._world.process(self._arrivals())
        self._world.run()
        busy = self._busy / (self._seconds / 2 * self._setting.cores)
        return Found(busy, fmean(self._answers))

    def _arrivals(self) -> Iterator[Any]:
        while self._world.now < self._seconds:
            joining = []
            for _ in range(self._setting.n):
                yield self._world.timeout(self._rng.expovariate(self._setting.per_second))
                joining.append(self._world.process(self._work(self._costs.join)))
            self._world.process(self._cohort(joining))

    def _cohort(self, joining: list[Any]) -> Iterator[Any]:
        setting, full = self._setting, self._world.now
        yield simpy.AllOf(self._world, joining)
        for phase in PHASES:
            cpu = phase_cpu(self._costs, setting, phase)
            heard = round(setting.n * (1 - setting.lost))
            said = [self._world.process(self._say(cpu)) for _ in range(heard)]
            yield simpy.AllOf(self._world, said)
            if setting.lost:
                yield self._world.timeout(setting.patience)
        yield from self._work(cohort_cpu(self._costs, setting))
        if full >= self._seconds / 2:
            self._answers.append(self._world.now - full)

    def _say(self, cpu: float) -> Iterator[Any]:
        yield self._world.timeout(self._setting.think * self._rng.uniform(0.5, 1.5))
        yield from self._work(cpu)

    def _work(self, cpu: float) -> Iterator[Any]:
        with self._cores.request() as turn:
            yield turn
            yield self._world.timeout(cpu)
        if self._seconds / 2 <= self._world.now < self._seconds:
            self._busy += cpu


def plan(costs: Costs, setting: Setting, devices: float, seconds: float) -> list[Row]:
    """Return what so many devices in so many seconds take, with a peak of `PEAK` times the mean."""
    rate = PEAK * devices / seconds
    each = device_cpu(costs, setting)
    database = costs.database + costs.database_byte * setting.sent
    told = costs.told_member * setting.n + costs.told_holder * setting.holders
    name = f"{devices:,.0f} devices in {seconds / 3600:g} h"
    return [
        Row(f"{name}: devices a second, peak", rate, "1/s"),
        Row(f"{name}: server CPU a device", 1e3 * each, "ms"),
        Row(f"{name}: cores of servers, {BUSY:.0%} busy at the peak", rate * each / BUSY, ""),
        Row(f"{name}: cores of databases", rate * database / BUSY, ""),
        Row(f"{name}: written", rate * setting.sent / 1e6, "MB/s"),
        Row(f"{name}: received from devices", rate * setting.sent * 8 / 1e9, "Gbit/s"),
        Row(f"{name}: sent to devices", rate * told * 8 / 1e9, "Gbit/s"),
    ]


def checks(costs: Costs, setting: Setting, loads: list[float], seed: int = 1) -> list[Row]:
    """Return rows of the simulation beside the model, under some loads."""
    rows = []
    for load in loads:
        rate = load * setting.cores / device_cpu(costs, setting)
        one = replace(setting, per_second=rate)
        model, found = modelled(costs, one), simulated(costs, one, _SECONDS, Random(seed))
        name = f"load {load:g}, {rate:,.1f} devices a second:"
        both = {"load": ("", model.load, found.load), "answer": ("s", model.answer, found.answer)}
        rows += [Row(f"{name} {what}", b, unit, a, b / a) for what, (unit, a, b) in both.items()]
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
    setting = Setting(asked.cohort, asked.words, asked.cores, 1.0)
    rows = [row for n in asked.devices for row in plan(MEASURED, setting, n, asked.seconds)]
    rows += checks(MEASURED, setting, [0.3, 0.5, 0.7])
    report(rows, "model", asked.json)


if __name__ == "__main__":
    main()
