"""One-shot sum of many devices over the service: a server process, a fleet and a committee.

`benchmarks.oneshot --service N` runs it. The committee has seven operators. With `--volunteers M`
it has M of the devices instead, of which a tenth leaves after it has registered a key, and the
server is killed twice in the round: while devices send, and while the committee opens the sum.

Devices are those of `blindtally fleet`: each makes its message, records it and sends it to a server
on SQLite or PostgreSQL. They take turns over 64 HTTP connections of each process, as behind a
proxy. Time is wall-clock time from the start of the fleet to the answer. The sum is compared with
the plain vectors.

Devices of the fleet share one request for the open round. A real device makes its own: its costs
are measured in the second round, and added.
"""

import asyncio
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import SystemRandom
from statistics import fmean
from typing import Final

import httpx

from benchmarks.harness import BenchmarkRow
from benchmarks.secure_sums.meters import CostMeter, ReplicaProcess, postgres
from blindtally.fleet_run.fleet_setup import OPERATORS, new_operators
from blindtally.fleet_run.results import verify_sum
from client.analyst.analyst import Analyst, Study
from client.device.policy import Policy
from client.fleet.config_and_results import DeviceResult, FleetConfig, FleetRound
from client.fleet.fleet import Fleet
from client.fleet.shards import ShardPool
from client.transport import http_client
from protocol.api.messages import CohortView, RoundView, Timeouts
from protocol.api.phases import Phase
from protocol.committee_terms import CommitteeTerms, VolunteerTerms
from protocol.domains.strings import Utf8
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from secagg.keys import Identity

MEMBERS_AWAY: Final = 0.1  # fraction of the volunteers
KILLS: Final = 2
ITEMS: Final = 200
MILLI: Final = 1e3
_READS: Final = 500  # of the open round


@dataclass(frozen=True, slots=True)
class OneShotStudy:
    """A study of one round: `devices` devices with tables of `words` words, and its committee.

    The committee has `volunteers` of the devices, or seven operators if that is 0.
    """

    devices: int
    words: int = 367
    volunteers: int = 0
    registrar: Identity = field(default_factory=lambda: Identity.generate(SystemRandom()))
    operators: tuple[Identity, ...] = field(default_factory=partial(new_operators, "one-shot"))

    @property
    def committee(self) -> str:
        """Return the name of the committee."""
        return f"{self.volunteers} volunteers" if self.volunteers else f"{OPERATORS} operators"

    def create(self, analyst: Analyst) -> Study:
        """Create the study."""
        terms = Terms(
            cohort_size=self.devices,
            minimum=self.devices // 2,
            registrar=self.registrar.public.hex(),
            sum="one-shot",
            committee=VolunteerTerms(volunteers=self.volunteers, size=self.volunteers)
            if self.volunteers
            else CommitteeTerms(members=tuple(each.public.hex() for each in self.operators)),
        )
        question = TrackedQuestion(
            threshold=self.devices / 50,
            contribution=1,
            domain=Utf8(max_bytes=8),
            words=self.words,
        )
        opening = dict.fromkeys(("checking", "agreeing", "releasing"), 300.0)
        timeouts = Timeouts(collecting=1200, **opening, idle=15 if self.volunteers else 60)
        return analyst.create("benchmark", question, terms, rounds=2, timeouts=timeouts)

    def fleet_config(self) -> FleetConfig:
        """Return the configuration of its fleet, without dropouts of devices."""
        policy = Policy(
            registrar=self.registrar.public,
            committee=frozenset(operator.public for operator in self.operators),
            min_volunteers=self.volunteers or None,
            accept_exact_estimates=True,
        )
        return FleetConfig(
            self.devices,
            0.0,
            1,
            policy,
            registrar=self.registrar,
            operators=() if self.volunteers else self.operators,
            committee_dropout=MEMBERS_AWAY,
        )


def service_rows(study: OneShotStudy, workers: int, database: str = "sqlite") -> list[BenchmarkRow]:
    """Return the figures of one sum of all devices, in `workers` processes.

    Raises:
        SystemExit: if the round has no exact sum of all devices.
    """
    holdings = [{f"item {index % ITEMS}": 1} for index in range(study.devices)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url, backend = f"sqlite:///{folder}/load.db", None
        if database == "postgresql":
            url, backend = stack.enter_context(postgres(folder / "postgres"))
        server = stack.enter_context(ReplicaProcess(folder, url))
        shards = stack.enter_context(_shard_pool(workers))
        analyst = stack.enter_context(Analyst(server.url))
        created = study.create(analyst)
        connect = partial(http_client, server.url)
        meter = CostMeter([server.process], backend)
        config = study.fleet_config()
        fleet = _MeteredFleet(connect, created.view, holdings, config, None, shards, meter=meter)
        name = f"service on {database}: sum of {study.devices:,} devices, {study.committee}"
        if study.volunteers:
            seconds, played = asyncio.run(_round_with_kills(fleet, server))
            _verify(created, played, study.devices)
            history = {each.phase: each for each in played.view.cohorts[0].history}
            opened = history[Phase.RELEASING].received
            return [
                BenchmarkRow(f"{name}, {KILLS} kills", seconds, "s"),
                BenchmarkRow(f"{name}, members that opened it", opened, ""),
            ]
        costs = asyncio.run(_first_round(fleet))
        _verify(created, costs.played, study.devices)
        traffic = [result.traffic for result in costs.played.results]
    rows = [
        BenchmarkRow(name, costs.seconds, "s"),
        BenchmarkRow(f"{name}, server CPU per device", costs.per_device[0] * MILLI, "ms"),
        BenchmarkRow(f"{name}, of which until all sent", costs.sending[0] * MILLI, "ms"),
        BenchmarkRow(f"{name}, sent by a device", fmean(each.sent for each in traffic), "B"),
        BenchmarkRow(f"{name}, size of the open round", costs.open_round_bytes, "B"),
    ]
    if backend is not None:
        figure = f"{name}, PostgreSQL CPU per device"
        rows.append(BenchmarkRow(figure, costs.per_device[1] * MILLI, "ms"))
        figure = f"{name}, of which until all sent, PostgreSQL"
        rows.append(BenchmarkRow(figure, costs.sending[1] * MILLI, "ms"))
    return rows


async def _round_with_kills(fleet: Fleet, server: ReplicaProcess) -> tuple[float, FleetRound]:
    """Play a round in which the server is killed while devices send and while it opens the sum."""
    start = time.monotonic()
    killing = asyncio.create_task(_kill(fleet, server))
    async with aclosing(fleet.run()) as rounds:
        async for played in rounds:
            await killing
            return time.monotonic() - start, played
    raise SystemExit("the study had no round")


async def _kill(fleet: Fleet, server: ReplicaProcess) -> None:
    """Kill the server and start it again: after a third of the messages, and after all of them."""
    path = f"/studies/{fleet.study.id}/rounds/1"
    async with fleet.connect() as http:
        for is_time in (
            lambda cohort: cohort.enrolled > fleet.config.devices // 3,
            lambda cohort: cohort.phase in (Phase.AGREEING, Phase.RELEASING),
        ):
            while not is_time(await _first_cohort(http, path)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            server.kill()
            await asyncio.to_thread(server.start)


async def _first_cohort(http: httpx.AsyncClient, path: str) -> CohortView:
    answer = await http.get(path)
    answer.raise_for_status()
    cohort = RoundView.model_validate_json(answer.content).cohorts[0]
    if cohort.phase.is_over:
        raise SystemExit("the round ended before the server was killed")
    return cohort


@dataclass
class _MeteredFleet(Fleet):
    """Fleet that notes what servers and database spend while its devices send their messages."""

    meter: CostMeter = field(kw_only=True)
    sending: tuple[float, float] = field(default=(0.0, 0.0), init=False)  # CPU seconds of both

    async def run_round(self, view: RoundView) -> tuple[DeviceResult, ...]:
        before = _spent(self.meter)
        results = await super().run_round(view)
        self.sending = _difference(before, _spent(self.meter))
        return results


@dataclass(frozen=True, slots=True)
class _RoundCosts:
    """Costs of a round: its seconds, and CPU seconds of server and database for each device.

    `sending` has those until all messages are in.
    """

    played: FleetRound
    seconds: float
    sending: tuple[float, float]
    per_device: tuple[float, float]
    open_round_bytes: int


async def _first_round(fleet: _MeteredFleet) -> _RoundCosts:
    start, before = time.monotonic(), _spent(fleet.meter)
    async with aclosing(fleet.run()) as rounds:
        async for played in rounds:
            devices, seconds = len(played.results), time.monotonic() - start
            whole, sending = _difference(before, _spent(fleet.meter)), fleet.sending
            reads, nbytes = await _costs_of_reads(fleet, played.view.number)
            return _RoundCosts(
                played,
                seconds,
                (sending[0] / devices + reads[0], sending[1] / devices + reads[1]),
                (whole[0] / devices + reads[0], whole[1] / devices + reads[1]),
                nbytes,
            )
    raise SystemExit("the study had no round")


async def _costs_of_reads(fleet: _MeteredFleet, after: int) -> tuple[tuple[float, float], int]:
    """Return the CPU seconds of one request for the open round, and the bytes of the answer."""
    await fleet.next_round(after)
    before = _spent(fleet.meter)
    async with fleet.connect() as http:
        path = f"/studies/{fleet.study.id}/rounds/open"
        for _ in range(_READS):
            answer = await http.get(path, params={"after": after})
            answer.raise_for_status()
    spent = _difference(before, _spent(fleet.meter))
    return (spent[0] / _READS, spent[1] / _READS), len(answer.content)


def _difference(before: tuple[float, float], after: tuple[float, float]) -> tuple[float, float]:
    return after[0] - before[0], after[1] - before[1]


def _spent(meter: CostMeter) -> tuple[float, float]:
    return meter.server_seconds(), meter.database_seconds()


def _verify(study: Study, played: FleetRound, devices: int) -> None:
    if played.view.participants != devices:
        failure = played.view.cohorts[0].failure
        raise SystemExit(f"{played.view.participants} of {devices} devices are in it: {failure}")
    verify_sum(played, played.view.cohorts[0], study.cohort_sum(played.view))


@contextmanager
def _shard_pool(workers: int) -> Iterator[ShardPool | None]:
    if workers == 1:
        yield None
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2**16)), hard))
    with ProcessPoolExecutor(workers, get_context("spawn")) as executor:
        yield ShardPool(executor, workers)
