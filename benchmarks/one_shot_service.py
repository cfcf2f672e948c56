"""One-shot sum of many devices over the service: a server process, a fleet and a committee.

`benchmarks.oneshot --service N` runs it. The committee has seven operators. With `--volunteers M`
it has M of the devices instead, of which a tenth leaves after it has registered a key, and the
server is killed twice in the round: while devices send, and while the committee opens the sum.

Devices are those of `blindtally fleet`: each makes its message, records it and sends it to a server
on SQLite or PostgreSQL. They take turns over 64 HTTP connections of each process, as behind a
proxy. Time is wall-clock time from the start of the fleet to the answer. The sum is compared with
the plain vectors.

The CPU of the server is that of the second round. Its messages are made before, and are sent over
64 connections as fast as the server accepts them, each after a request for the open round. One row
has the server's work until all are sent, and one all of it, also for the committee.
"""

import asyncio
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from random import SystemRandom
from statistics import fmean
from typing import Final

import httpx

from benchmarks.harness import BenchmarkRow
from benchmarks.load_generator import DeviceConnection, HttpRequest
from benchmarks.meters import CostMeter, ReplicaProcess, postgres
from blindtally.fleet_run.fleet_setup import OPERATORS, new_operators
from blindtally.fleet_run.results import verify_sum
from client.analyst.analyst import Analyst, Study
from client.device.encoding import Contribution, encode
from client.fleet.config_and_results import FleetConfig, FleetRound
from client.fleet.fleet import Fleet
from client.fleet.shards import ShardPool
from client.http.transport import http_client
from protocol.api.messages import CohortView, RoundView, Timeouts
from protocol.api.one_shot import OneShotRound
from protocol.api.phases import Phase
from protocol.committee_terms import CommitteeTerms, VolunteerTerms
from protocol.device_policy.policy import Policy
from protocol.domains.strings import Utf8
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from protocol.randomness import system_words
from protocol.round_sizes import WORD_BYTES, message_bytes_of
from secagg.keys import Identity
from secagg.oneshot.committee import Committee
from secagg.oneshot.message import make_message
from secagg.oneshot.moduli import joined
from secagg.ring import Vector

MEMBERS_AWAY: Final = 0.1  # fraction of the volunteers
KILLS: Final = 2
ITEMS: Final = 200
MILLI: Final = 1e3
_CONNECTIONS: Final = 64


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
            threshold=max(5, self.devices / 50),
            contribution=1,
            domain=Utf8(max_bytes=8),
            message_bytes=message_bytes_of(terms, WORD_BYTES * self.words),
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
            min_cohort=self.devices // 2,
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
        config = study.fleet_config()
        fleet = Fleet(connect, created.view, holdings, config, None, shards)
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
        meter = CostMeter([server.process], backend)
        costs = asyncio.run(_two_rounds(fleet, created, server, meter))
        traffic = [result.traffic for result in costs.played.results]
    rows = [
        BenchmarkRow(name, costs.seconds, "s"),
        BenchmarkRow(f"{name}, sent by a device", fmean(each.sent for each in traffic), "B"),
        BenchmarkRow(f"{name}, size of the open round", costs.open_round_bytes, "B"),
    ]
    of_servers, of_database = zip(costs.sending, costs.whole, strict=True)
    for program, (sending, whole) in (("server", of_servers), ("PostgreSQL", of_database)):
        if whole:
            figure = f"{name}, {program} CPU per device"
            rows.append(BenchmarkRow(figure, whole / study.devices * MILLI, "ms"))
            figure += ", until all sent"
            rows.append(BenchmarkRow(figure, sending / study.devices * MILLI, "ms"))
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


@dataclass(frozen=True, slots=True)
class _Costs:
    """The first round and its seconds, and CPU seconds of server and database in the second.

    `sending` has those until all messages are in, `whole` those until the sum is known.
    """

    played: FleetRound
    seconds: float
    sending: tuple[float, float]
    whole: tuple[float, float]
    open_round_bytes: int


async def _two_rounds(
    fleet: Fleet, study: Study, server: ReplicaProcess, meter: CostMeter
) -> _Costs:
    start = time.monotonic()
    async with aclosing(fleet.run()) as rounds:
        async for played in rounds:
            seconds = time.monotonic() - start
            _verify(study, played, len(played.results))
            view = await fleet.next_round(played.view.number)
            assert view is not None  # the study has two rounds
            # The committee serves in this event loop meanwhile.
            second = await asyncio.to_thread(_Burst.of, view, fleet.config, len(played.results))
            before = _spent(meter)
            nbytes = await asyncio.to_thread(second.send, server.port)
            sending = _difference(before, _spent(meter))
            while (view := study.round(view.number)).state == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            whole = _difference(before, _spent(meter))
            second.verify(study.cohort_sum(view))
            return _Costs(played, seconds, sending, whole, nbytes)
    raise SystemExit("the study had no round")


@dataclass(frozen=True, slots=True)
class _Burst:
    """Messages of new devices to a round, by identity; all have the same vector."""

    view: RoundView
    messages: Mapping[str, bytes]
    vector: Vector

    @classmethod
    def of(cls, view: RoundView, config: FleetConfig, devices: int) -> "_Burst":
        """Make messages of `devices` devices."""
        plan, rng = view.plan, SystemRandom()
        committee = Committee.unpack(bytes.fromhex(view.cohorts[0].committee or ""))
        facts = OneShotRound.of(plan, plan.digest(), committee)
        vector = encode(plan, Contribution({"item 0": 1}), plan.terms.minimum, system_words)
        messages = {}
        for _ in range(devices):
            identity, enrolment = Identity.generate(rng), b""
            if plan.registry is not None and config.registrar is not None:
                statement = plan.registry.enrolment_statement(identity.public)
                enrolment = config.registrar.sign(statement)
            message = make_message(facts.session, identity, enrolment, joined(vector), rng)
            messages[identity.public.hex()] = message.pack()
        return cls(view, messages, vector)

    def send(self, port: int) -> int:
        """Send all messages, each after a request for the open round; return its bytes."""
        path = f"/v1/studies/{self.view.plan.study}/rounds"
        reading = HttpRequest("GET", f"{path}/open?after={self.view.number - 1}", {})
        headers = {"Content-Type": "application/octet-stream"}
        connections = SimpleQueue[DeviceConnection]()
        for _ in range(_CONNECTIONS):
            connections.put(DeviceConnection(port))

        def send(identity: str) -> int:
            target = f"{path}/{self.view.number}/devices/{identity}/message"
            connection = connections.get()
            opened = connection.send(reading)
            answer = connection.send(HttpRequest("PUT", target, headers, self.messages[identity]))
            connections.put(connection)
            if (opened.status, answer.status) != (200, 204):
                raise SystemExit(f"a message was refused: {answer.body[:300]!r}")
            return len(opened.body)

        with ThreadPoolExecutor(_CONNECTIONS) as threads:
            return max(threads.map(send, self.messages))

    def verify(self, total: Vector) -> None:
        """Exit if `total` is not the sum of the messages' vectors."""
        ring = SUM_MECHANISMS[self.view.plan.mechanism].ring(self.view.plan)
        expected = ring.zero()
        for _ in self.messages:
            ring.add(expected, self.vector)
        if ring.pack(expected) != ring.pack(total):
            raise SystemExit("the sum is wrong")


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
