"""A flood of requests without a credential: CPU of a refusal, and what requests with a key wait.

    python -m benchmarks.refusals [--connections N] [--requests N] [--json PATH]

A `blindtally serve` with SQLite gets requests with a key, one after the other: a read of the list
of studies, and a change that is committed. First they are alone, and then N connections (80) repeat
requests without a key at once. The first refusals of a minute have status 401. The others have 429,
and are sent half a second late or later. All come from one address, which is also that of the key.
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
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from benchmarks.harness import BenchmarkRow, argument_parser, report
from benchmarks.secure_sums.meters import CostMeter, ReplicaProcess

_READ = ("GET", "/v1/studies", None)
_CHANGE = ("PUT", "/v1/populations/phones", "{}")
_WARM_UP_SECONDS = 1.0


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


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--connections", type=int, default=80, help="Connections of the flood.")
    parser.add_argument("--requests", type=int, default=1000, help="Requests with a key, per row.")
    parser.add_argument("--seconds", type=float, default=40, help="Length of the first flood.")
    options = parser.parse_args()
    os.environ["BLINDTALLY_MAX_REQUESTS"] = "1000000"  # a key may send more here than by default
    rows = list[BenchmarkRow]()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/load.db"
        with ReplicaProcess(Path(folder), url, is_open=False) as server:
            requests = {"a read with a key": _READ, "a change with a key": _CHANGE}
            alone = {
                name: latencies(server, request, options.requests)
                for name, request in requests.items()
            }
            spent = refusal_seconds(server, options.connections, options.seconds)
            rows.append(BenchmarkRow("server CPU of a refusal", 1e3 * spent, "ms"))
            with flood(server.port, options.connections):
                for name, request in requests.items():
                    in_flood = latencies(server, request, options.requests)
                    for percent in (50, 99):
                        value, reference = (
                            1e3 * float(np.percentile(seconds, percent))
                            for seconds in (in_flood, alone[name])
                        )
                        rows.append(BenchmarkRow(f"{name}, p{percent}", value, "ms", reference))
    report(rows, "alone", options.json)


if __name__ == "__main__":
    main()
