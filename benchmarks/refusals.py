"""A flood of requests without a credential: CPU of a refusal, and what requests with a key wait.

    python -m benchmarks.refusals [--connections N] [--requests N] [--json PATH]

A `blindtally serve` with SQLite gets requests of an analyst with a key, one after the other: a read
of the list of studies, and a change that is committed. Then the devices of a round upload masked
vectors of 40 kB, one after the other. First these requests are alone, and then N connections (80)
repeat requests without a key at once. The first refusals of a minute have status 401. The others
have 429, and are sent half a second late or later. All requests come from one address.
The CPU of a refusal, with its share of the new connections, is measured while nobody else sends
requests; that of an idle server is subtracted.
"""

import http.client
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from random import SystemRandom

import numpy as np

from benchmarks.harness import BenchmarkRow, argument_parser, report
from benchmarks.load_generator import LoadRound, request_json
from benchmarks.meters import CostMeter, ReplicaProcess
from benchmarks.service import study_request
from protocol.api.messages import RoundView

_READ = ("GET", "/v1/studies", None)
_CHANGE = ("PUT", "/v1/populations/phones", "{}")
_WARM_UP_SECONDS = 1.0
_WORDS = 10_000  # 32-bit words of a masked vector


@contextmanager
def flood(port: int, connections: int) -> Iterator[Counter[int]]:
    """Repeat requests without a key in another process; count the statuses of the responses.

    The counts are complete at the end.
    """
    context, statuses = get_context("spawn"), Counter[int]()
    is_over, results = context.Event(), context.SimpleQueue()
    process = context.Process(target=_repeat_all, args=(port, connections, is_over, results))
    process.start()
    time.sleep(_WARM_UP_SECONDS)
    try:
        yield statuses
    finally:
        is_over.set()
        process.join()
    if process.exitcode:
        raise SystemExit("the flood ended early")
    statuses.update(results.get())


def _repeat_all(
    port: int, connections: int, is_over: Event, results: SimpleQueue[Counter[int]]
) -> None:
    with ThreadPoolExecutor(connections) as threads:
        parts = list(threads.map(lambda _: _repeat(port, is_over), range(connections)))
    results.put(sum(parts, Counter[int]()))


def _repeat(port: int, is_over: Event) -> Counter[int]:
    connection, statuses = http.client.HTTPConnection("127.0.0.1", port), Counter[int]()
    while not is_over.is_set():
        connection.request("GET", "/v1/studies")
        response = connection.getresponse()
        response.read()
        statuses[response.status] += 1
    connection.close()
    return statuses


def refusal_seconds(server: ReplicaProcess, connections: int, seconds: float) -> float:
    """Return the server's CPU seconds for a refusal, in a flood of this length.

    What the server spends in the same time without requests is subtracted.
    """
    meter = CostMeter([server.process], None)
    start, before = time.monotonic(), meter.server_seconds()
    with flood(server.port, connections) as statuses:
        time.sleep(seconds)
    if not set(statuses) <= {401, 429}:
        raise SystemExit(f"requests without a key were not refused: {statuses}")
    middle = meter.server_seconds()
    time.sleep(time.monotonic() - start)
    return (2 * middle - before - meter.server_seconds()) / statuses.total()


def latencies(
    server: ReplicaProcess, request: tuple[str, str, str | None], count: int
) -> list[float]:
    """Return the seconds of `count` requests with a key; all must succeed."""
    method, path, body = request
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    connection, seconds = http.client.HTTPConnection("127.0.0.1", server.port), list[float]()
    for _ in range(count):
        start = time.perf_counter()
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read()
        seconds.append(time.perf_counter() - start)
        if response.status not in (200, 201):
            raise SystemExit(f"a request with a key was refused: {text[:300]!r}")
        time.sleep(0.005)
    connection.close()
    return seconds


def upload_latencies(server: ReplicaProcess, devices: int) -> list[float]:
    """Return the seconds in which masked vectors of the devices of a round are acknowledged."""
    meter = CostMeter([server.process], None)
    port, key, one_cohort = server.port, server.key, devices
    request = study_request(devices, _WORDS, one_cohort, 0.0)
    study = str(request_json(port, "POST", "/v1/studies", request, key=key)["id"])
    document = request_json(port, "GET", f"/v1/studies/{study}/rounds/1", key=key)
    load = LoadRound(devices, [port], meter.around, SystemRandom(), 1, server.token)
    load.play(study, RoundView.model_validate(document))
    while document["state"] == "running":  # the server adds up the vectors
        time.sleep(0.1)
        document = request_json(port, "GET", f"/v1/studies/{study}/rounds/1", key=key)
    return meter.latencies["send masked-input"]


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--connections", type=int, default=80, help="Connections of the flood.")
    parser.add_argument(
        "--requests", type=int, default=1000, help="Requests of each kind with a key."
    )
    parser.add_argument("--uploads", type=int, default=1000, help="Devices that upload a vector.")
    parser.add_argument("--seconds", type=float, default=40, help="Length of the first flood.")
    options = parser.parse_args()
    for limit in ("MAX_REQUESTS", "MAX_JOINS"):  # a key and an address may send more than usual
        os.environ[f"BLINDTALLY_{limit}"] = "1000000"
    rows = list[BenchmarkRow]()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/load.db"
        with ReplicaProcess(Path(folder), url, is_open=False) as server:
            kinds = {
                "a read with a key": partial(latencies, server, _READ, options.requests),
                "a change with a key": partial(latencies, server, _CHANGE, options.requests),
                "a device's upload": partial(upload_latencies, server, options.uploads),
            }
            alone = {name: measure() for name, measure in kinds.items()}
            spent = refusal_seconds(server, options.connections, options.seconds)
            rows.append(BenchmarkRow("server CPU of a refusal", 1e3 * spent, "ms"))
            with flood(server.port, options.connections):
                for name, measure in kinds.items():
                    in_flood = measure()
                    for percent in (50, 99):
                        value, reference = (
                            1e3 * float(np.percentile(seconds, percent))
                            for seconds in (in_flood, alone[name])
                        )
                        rows.append(BenchmarkRow(f"{name}, p{percent}", value, "ms", reference))
    report(rows, "alone", options.json)


if __name__ == "__main__":
    main()
