"""One-shot sum of many devices over the service: a server process, a fleet and seven operators.

`benchmarks.oneshot --service N` runs it. Devices are those of `blindtally fleet`: each makes its
message, records it and sends it to a server on SQLite. They take turns over 64 HTTP connections of
each process, as behind a proxy. Time is wall-clock time from the start of the fleet to the answer.
The sum is compared with the plain vectors.
"""

import asyncio
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import SystemRandom
from typing import Final

import psutil

from benchmarks.harness import BenchmarkRow
from blindtally.demo.server_process import ServerProcess
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


def service_rows(devices: int, workers: int) -> list[BenchmarkRow]:
    """Return the figures of one sum of `devices` devices, in `workers` processes.

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
        threshold=devices / 50, contribution=1, domain=Utf8(max_bytes=8), words=367
    )
    timeouts = Timeouts(collecting=1200, checking=300, agreeing=300, releasing=300, idle=60)
    policy = Policy(
        registrar=registrar.public,
        committee=frozenset(operator.public for operator in operators),
        accept_exact_estimates=True,
    )
    config = FleetConfig(devices, 0.0, 1, policy, registrar=registrar, operators=operators)
    holdings = [{f"item {index % ITEMS}": 1} for index in range(devices)]
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder), is_open=True) as server,
        _shard_pool(workers) as shards,
        Analyst(server.url) as analyst,
    ):
        study = analyst.create("benchmark", question, terms, rounds=1, timeouts=timeouts)
        connect = partial(http_client, server.url)
        fleet = Fleet(connect, study.view, holdings, config, workers=shards)
        before, start = _server_seconds(), time.monotonic()
        played = asyncio.run(_first_round(fleet))
        seconds, server_seconds = time.monotonic() - start, _server_seconds() - before
        _verify(study, played, devices)
        sent = [result.traffic.sent for result in played.results]
    name = f"service: sum of {devices:,} devices, {OPERATORS} operators"
    return [
        BenchmarkRow(name, seconds, "s"),
        BenchmarkRow(f"{name}, server CPU per device", server_seconds / devices * MILLI, "ms"),
        BenchmarkRow(f"{name}, sent by a device", sum(sent) / len(sent), "B"),
    ]


async def _first_round(fleet: Fleet) -> FleetRound:
    async for played in fleet.run():
        return played
    raise SystemExit("the study had no round")


def _verify(study: Study, played: FleetRound, devices: int) -> None:
    if played.view.participants != devices:
        failure = played.view.cohorts[0].failure
        raise SystemExit(f"{played.view.participants} of {devices} devices are in it: {failure}")
    verify_sum(played, played.view.cohorts[0], study.cohort_sum(played.view))


def _server_seconds() -> float:
    """Return the CPU seconds of the server, which is a child of this process."""
    servers = (
        child for child in psutil.Process().children(recursive=True) if "serve" in child.cmdline()
    )
    return sum(sum(server.cpu_times()[:2]) for server in servers)


@contextmanager
def _shard_pool(workers: int) -> Iterator[ShardPool | None]:
    if workers == 1:
        yield None
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2**16)), hard))
    with ProcessPoolExecutor(workers, get_context("spawn")) as executor:
        yield ShardPool(executor, workers)
