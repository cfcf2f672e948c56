"""CPU of devices of a fleet, of their server, and of the whole demo, compared with primitives.

    python -m benchmarks.fleet_and_demo [--devices N] [--words W] [--json PATH]

A fleet in one process plays rounds of one cohort before a server on SQLite, on the default terms
of a study and without dropouts; the rounds after the first are measured. The reference of a device
is the work of its primitives alone: masks, key agreements, checks of signatures, hashes. The fleet
checks each signature once, and computes each agreement once for both of its devices. The reference
of the server is what the primitives take there (`harness.py`). Both are measured in
the same run. The server's requests, JSON and database are in its value only.

The demo is `blindtally demo` as a user starts it, with the start of all its processes, the study
and its files. Its reference is the primitives of its devices and of their server.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, aclosing
from functools import partial
from pathlib import Path
from random import SystemRandom

from benchmarks.harness import (
    BenchmarkRow,
    Floors,
    argument_parser,
    device_primitives,
    report,
    server_primitives,
)
from benchmarks.meters import CostMeter, ReplicaProcess
from blindtally.garbage_collection import collect_rarely
from client.analyst.analyst import Analyst
from client.fleet.config_and_results import FleetConfig
from client.fleet.fleet import Fleet
from client.http.transport import http_client
from protocol.device_policy.policy import Policy
from protocol.domains.strings import Utf8
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from secagg.keys import Identity
from secagg.parameters import choose_parameters

_ROUNDS = 3  # the first is not measured: it imports modules and fills caches
_BURSTS = 20  # of the primitives, between the rounds
_MILLI = 1e3
_ITEMS = 50
_DEMO_WORDS = 1_900  # 32-bit words with the bytes of its vector


def fleet_rows(devices: int, words: int) -> list[BenchmarkRow]:
    """Return the CPU of a device and of the server for it, with that of their primitives."""
    registrar = Identity.generate(SystemRandom())
    terms = Terms(cohort_size=devices, minimum=devices // 2, registrar=registrar.public.hex())
    question = TrackedQuestion(
        threshold=max(5, devices / 10),
        contribution=1,
        domain=Utf8(max_bytes=8),
        message_bytes=2 * words + 2**14,
    )
    policy = Policy(
        registrar=registrar.public, accept_exact_estimates=True, min_cohort=devices // 3
    )
    holdings = [{f"item {index % _ITEMS}": 1} for index in range(_ROUNDS * devices)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(ReplicaProcess(folder, f"sqlite:///{folder}/fleet.db"))
        analyst = stack.enter_context(Analyst(server.url))
        study = analyst.create("fleet", question, terms, rounds=_ROUNDS)
        config = FleetConfig(devices, policy=policy, registrar=registrar)
        fleet = Fleet(partial(http_client, server.url), study.view, holdings, config)
        plan = study.round(1).plan
        ring = SUM_MECHANISMS[plan.mechanism].ring(plan)
        floors = Floors(ring.nbytes // 4)
        own, of_server = asyncio.run(_measured_rounds(fleet, server, floors))
    count = devices * (_ROUNDS - 1)
    name = f"fleet of {devices}, {ring.nbytes:,} bytes"
    floor = device_primitives(terms.assumptions, devices, floors)
    server_floor = server_primitives(terms.assumptions, devices, ring.nbytes, floors)
    return [
        BenchmarkRow(f"{name}: CPU of a device", own / count * _MILLI, "ms", floor * _MILLI),
        BenchmarkRow(
            f"{name}: CPU of the server for it",
            of_server / count * _MILLI,
            "ms",
            server_floor * _MILLI,
        ),
    ]


async def _measured_rounds(
    fleet: Fleet, server: ReplicaProcess, floors: Floors
) -> tuple[float, float]:
    """Play the rounds; return the CPU seconds of the fleet and of the server after the first."""
    meter, own, before = CostMeter([server.process], None), 0.0, 0.0
    started = time.process_time()
    async with aclosing(fleet.run()) as rounds:
        async for played in rounds:
            if played.view.state != "decoded":
                raise SystemExit(f"round {played.view.number} is {played.view.state}")
            if played.view.number == 1:
                before = meter.server_seconds()
            else:
                own += time.process_time() - started
            floors.measure(_BURSTS)
            started = time.process_time()
    return own, meter.server_seconds() - before


def demo_rows() -> list[BenchmarkRow]:
    """Return the CPU of `blindtally demo`, with that of its primitives, and its seconds."""
    floors = Floors(_DEMO_WORDS)
    floors.measure(_BURSTS)
    with tempfile.TemporaryDirectory() as folder:
        results, spent, start = Path(folder) / "demo.json", _children_seconds(), time.monotonic()
        command = [sys.executable, "-m", "blindtally", "demo", "--out", f"{folder}/demo"]
        command += ["--json", str(results)]
        subprocess.run(  # noqa: S603 - our own program
            command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        seconds, cpu = time.monotonic() - start, _children_seconds() - spent
        study = json.loads(results.read_text())
    floors.measure(_BURSTS)
    n, rounds = study["settings"]["devices"], study["rounds"]
    assumptions = Terms(cohort_size=n, minimum=n // 2).assumptions
    nbytes = study["bytes_per_device"]["vector"]
    if choose_parameters(n, assumptions).holders != rounds[0]["holders"]:
        raise SystemExit("the demo's rounds have other terms than this floor")
    each = device_primitives(assumptions, n, floors)
    each += server_primitives(assumptions, n, nbytes, floors)
    floor = each * sum(played["participants"] for played in rounds)
    return [
        BenchmarkRow("demo: CPU of all its processes", cpu, "s", floor),
        BenchmarkRow("demo: from its start to its end", seconds, "s"),
        BenchmarkRow("demo: of which its rounds", study["seconds"], "s"),
    ]


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--devices", type=int, default=100, help="Devices of the fleet.")
    parser.add_argument("--words", type=int, default=2000, help="Words of the fleet's table.")
    options = parser.parse_args()
    collect_rarely()
    rows = fleet_rows(options.devices, options.words)
    report(rows + demo_rows(), "primitives", options.json)


if __name__ == "__main__":
    main()
