"""One-shot sum of many devices over the service: a server process, a fleet and seven operators.

`benchmarks.oneshot --service N` runs it. Devices are those of `blindtally fleet`: each makes its
message, records it and sends it to a server on SQLite or PostgreSQL. They take turns over 64 HTTP
connections of each process, as behind a proxy. Time is wall-clock time from the start of the fleet
to the answer. The sum is compared with the plain vectors.

Devices of the fleet share one request for the open round. A real device makes its own: its costs
are measured in the second round, and added.
"""

import asyncio
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import SystemRandom
from statistics import fmean
from typing import Final

from benchmarks.harness import BenchmarkRow
from benchmarks.secure_sums.meters import CostMeter, ReplicaProcess, postgres
from blindtally.fleet_run.results import verify_sum
from client.analyst.analyst import Analyst, Study
from client.device.policy import Policy
from client.fleet.config_and_results import FleetConfig, FleetRound
from client.fleet.fleet import Fleet
from client.fleet.shards import ShardPool
from client.transport import http_client
from protocol.api.messages import Timeouts
from protocol.committee_terms import CommitteeTerms
from protocol.domains.strings import Utf8
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from secagg.keys import Identity

OPERATORS: Final = 7
ITEMS: Final = 200
MILLI: Final = 1e3
_READS: Final = 500  # of the open round


def service_rows(
    devices: int, workers: int, words: int = 367, database: str = "sqlite"
) -> list[BenchmarkRow]:
    """Return the figures of one sum of `devices` devices, in `workers` processes.

    A device's table has `words` 16-bit words.

    Raises:
        SystemExit: if the round has no sum of all devices.
    """
    rng = SystemRandom()
    registrar = Identity.generate(rng)
    operators = tuple(Identity.generate(rng) for _ in range(OPERATORS))
    terms = Terms(
        cohort_size=devices,
        minimum=devices // 2,
        registrar=registrar.public.hex(),
        sum="one-shot",
        committee=CommitteeTerms(members=tuple(each.public.hex() for each in operators)),
    )
    question = TrackedQuestion(
        threshold=devices / 50, contribution=1, domain=Utf8(max_bytes=8), words=words
    )
    timeouts = Timeouts(collecting=1200, checking=300, agreeing=300, releasing=300, idle=60)
    policy = Policy(
        registrar=registrar.public,
        committee=frozenset(operator.public for operator in operators),
        accept_exact_estimates=True,
    )
    config = FleetConfig(devices, 0.0, 1, policy, registrar=registrar, operators=operators)
    holdings = [{f"item {index % ITEMS}": 1} for index in range(devices)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url, backend = f"sqlite:///{folder}/load.db", None
        if database == "postgresql":
            url, backend = stack.enter_context(postgres(folder / "postgres"))
        server = stack.enter_context(ReplicaProcess(folder, url))
        shards = stack.enter_context(_shard_pool(workers))
        analyst = stack.enter_context(Analyst(server.url))
        meter = CostMeter([server.process], backend)
        study = analyst.create("benchmark", question, terms, rounds=2, timeouts=timeouts)
        connect = partial(http_client, server.url)
        fleet = Fleet(connect, study.view, holdings, config, workers=shards)
        costs = asyncio.run(_first_round(fleet, meter))
        _verify(study, costs.played, devices)
        traffic = [result.traffic for result in costs.played.results]
    name = f"service on {database}: sum of {devices:,} devices, {OPERATORS} operators"
    rows = [
        BenchmarkRow(name, costs.seconds, "s"),
        BenchmarkRow(f"{name}, server CPU per device", costs.per_device[0] * MILLI, "ms"),
        BenchmarkRow(f"{name}, sent by a device", fmean(each.sent for each in traffic), "B"),
        BenchmarkRow(f"{name}, size of the open round", costs.open_round_bytes, "B"),
    ]
    if backend is not None:
        figure = f"{name}, PostgreSQL CPU per device"
        rows.append(BenchmarkRow(figure, costs.per_device[1] * MILLI, "ms"))
    return rows


@dataclass(frozen=True, slots=True)
class _RoundCosts:
    """Costs of a round: its seconds, and CPU seconds of server and database for each device."""

    played: FleetRound
    seconds: float
    per_device: tuple[float, float]
    open_round_bytes: int


async def _first_round(fleet: Fleet, meter: CostMeter) -> _RoundCosts:
    start, before = time.monotonic(), _spent(meter)
    async for played in fleet.run():
        seconds, after_round = time.monotonic() - start, _spent(meter)
        await fleet.next_round(played.view.number)
        before_reads = _spent(meter)
        async with fleet.connect() as http:
            path = f"/studies/{fleet.study.id}/rounds/open"
            for _ in range(_READS):
                answer = await http.get(path, params={"after": played.view.number})
                answer.raise_for_status()
        after_reads = _spent(meter)
        per_device = tuple(
            (b - a) / len(played.results) + (d - c) / _READS
            for a, b, c, d in zip(before, after_round, before_reads, after_reads, strict=True)
        )
        return _RoundCosts(played, seconds, (per_device[0], per_device[1]), len(answer.content))
    raise SystemExit("the study had no round")


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
