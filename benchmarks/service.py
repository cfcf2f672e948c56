"""A service under load: real servers, a real database, devices that upload 400 kB each.

    python -m benchmarks.service [--devices N ...] [--words W] [--replicas R]
                                 [--database postgresql|sqlite] [--cohort N] [--rate G]
                                 [--open-studies N] [--json PATH]

Each replica is a `blindtally serve` on an address of this machine (SQLite has one). Devices come in
cohorts of 1,000 at most (`--cohort`) and take part in one round, phase by phase; the messages of a
phase are made beforehand and are in no figure. To keep that cheap the devices assume no corruption
and no dropouts: ten holders each, so an upload is the 400 kB of its vector, and a message of shares
has a kilobyte. `--rate` sets the rates of corrupt devices and of dropouts that they assume, which
determine the number of holders. Each device has one connection, and 64 requests are sent at a time,
since the devices of a cohort send when its phase begins.

A time to send is one until the service has acknowledged the message, and a time to receive is one
until the document has followed; the first devices that receive wait for the end of the phase. The
load generator runs on the same processors (its share has a row). Server CPU is that of the server
processes alone, PostgreSQL has its own rows. One row has all the servers' work, also closing phases
and summing. The floor of an upload, measured in the same run: SHA-256 of the body, an Ed25519
verification, and a bare insert of 400 kB, each committed. The sum is compared with its true value.

With `--open-studies` the same servers play further rounds, whose costs are compared with those of
the first: one with that round in the history, one in cohorts of 20, and one next to open studies,
each with ten cohorts that wait for devices; without any device these take the idle CPU.
"""

import sys
import tempfile
import time
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import httpx
import numpy as np

from benchmarks.harness import BenchmarkRow, argument_parser, report
from benchmarks.load_generator import LoadRound, request_json
from benchmarks.meters import (
    CostMeter,
    ReplicaProcess,
    UploadFloor,
    measure_floor,
    postgres,
    probing,
)
from protocol.api.messages import RoundView, Timeouts
from protocol.mechanisms.registry import SUM_MECHANISMS, parse_question
from protocol.question_and_plan import Terms

_MAX_COHORT_SIZE = 1_000  # devices
_MAX_CLOSING_SECONDS = 600.0  # seconds that a round may take to close
_DAY_SECONDS = 24 * 3600
_SMALL_COHORT_SIZE = 20  # devices
_OPEN_COHORTS = 10  # of an open study
_IDLE_SECONDS = 10.0
_POLL_SECONDS = 0.05  # between two checks whether a round is over
_MAX_BLOCK_MS = 200.0  # milliseconds for which nothing may hold the event loop
_CLOSING_ROW = "from the last message to the answer"


def study_request(devices: int, words: int, max_cohort_size: int, rate: float) -> dict[str, Any]:
    """Return a study of vectors of `words` 32-bit words.

    `rate` is the fraction of corrupt devices, and that of dropouts, that it assumes.
    """
    cohorts = -(-devices // max_cohort_size)
    size = -(-devices // cohorts)
    assert (size * cohorts).bit_length() < 32
    question = {
        "mechanism": "count-median",
        "threshold": 1,
        "contribution": 1,
        "domain": {"kind": "alphabet", "characters": "ab", "length": 2},
        "message_bytes": 4 * words + 2**16,
        "rows": 1,
    }
    terms = {
        "cohort_size": size,
        "minimum": 3,
        "cohorts": cohorts,
        "corrupt": rate,
        "dropout": rate,
    }
    return {
        "name": f"{devices} devices",
        "question": question,
        "terms": terms,
        "rounds": 1,
        "timeouts": dict.fromkeys(Timeouts.model_fields, _DAY_SECONDS),
        "start": True,
    }


def check_words(words: int, devices: int) -> None:
    """Check that a vector has a number for each device; raises ValueError."""
    request = study_request(devices, words, devices, 0.0)
    question, terms = parse_question(request["question"]), Terms.model_validate(request["terms"])
    mechanism = SUM_MECHANISMS[question.mechanism]
    (lane,) = mechanism.ring(mechanism.first_plan(question, terms, "s", 1, Random(1))).lanes
    if lane.length < devices:
        raise ValueError(
            f"--words {words:,} gives vectors of {lane.length:,} numbers, and each of "
            f"{devices:,} devices adds one to another number: use more words"
        )


def measure_round(
    study_document: dict[str, object], replicas: list[ReplicaProcess], meter: CostMeter
) -> tuple[float, int]:
    """Play a round; return the seconds that it took to close, and the bytes of a vector."""
    port = replicas[0].port
    study = str(request_json(port, "POST", "/v1/studies", study_document)["id"])
    path = f"/v1/studies/{study}/rounds/1"
    view = RoundView.model_validate(request_json(port, "GET", path))
    devices = view.plan.terms.max_devices
    ports = [replica.port for replica in replicas]
    before = meter.server_seconds()
    with meter.watching(), probing(ports) as meter.longest_answers:
        load = LoadRound(devices, ports, meter.around, SystemRandom())
        load.play(study, view)
        start = time.monotonic()
        is_running = True
        while is_running and time.monotonic() < start + _MAX_CLOSING_SECONDS:
            time.sleep(_POLL_SECONDS)
            # Not of the round, whose document has all cohorts.
            state = request_json(port, "GET", f"/v1/studies/{study}")["state"]
            is_running = state == "running"
        closing = time.monotonic() - start
    view = RoundView.model_validate(request_json(port, "GET", path))
    meter.whole, meter.requests = meter.server_seconds() - before, load.requests
    if (view.state, view.participants) != ("decoded", devices):
        raise SystemExit(f"the round is {view.state}, with {view.participants} of {devices}")
    ring = SUM_MECHANISMS[view.plan.mechanism].ring(view.plan)
    total = ring.zero()
    for cohort in view.cohorts:
        url = f"{replicas[0].url}{path}/cohorts/{cohort.number}/sum"
        ring.add_packed(total, httpx.get(url).raise_for_status().content)
    if not np.array_equal(np.flatnonzero(total[0]), np.arange(devices)) or total[0].max() != 1:
        raise SystemExit("the sum is wrong")
    return closing, ring.nbytes


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """CPU seconds of the servers for each device, and the seconds that a round took to close."""

    requests: float
    whole: float
    closing: float

    @classmethod
    def of(cls, meter: CostMeter, devices: int, closing: float) -> "RoundCosts":
        return cls(sum(meter.spent.values()) / devices, meter.whole / devices, closing)

    def rows(self, name: str, reference: "RoundCosts") -> list[BenchmarkRow]:
        """Return the costs as rows, with those of `reference`."""
        return [
            BenchmarkRow(f"{name}: {figure}", scale * value, unit, scale * compared)
            for figure, scale, unit, value, compared in (
                ("server CPU per device, all phases", 1e3, "ms", self.requests, reference.requests),
                ("the same, and between phases", 1e3, "ms", self.whole, reference.whole),
                (_CLOSING_ROW, 1.0, "s", self.closing, reference.closing),
            )
        ]


def comparison_rows(
    name: str, devices: int, options: Namespace, servers: list[ReplicaProcess], first: RoundCosts
) -> list[BenchmarkRow]:
    """Play further rounds on the servers; return their costs next to those of the first round."""
    processes, rows = [server.process for server in servers], list[BenchmarkRow]()

    def play(case: str, cohort: int) -> None:
        print(f"{name}, {case}", file=sys.stderr)
        meter = CostMeter(processes, None)
        request = study_request(devices, options.words, cohort, options.rate)
        closing, _ = measure_round(request, servers, meter)
        rows.extend(RoundCosts.of(meter, devices, closing).rows(f"{name}, {case}", first))

    play("a round in the history", options.cohort)
    play(f"cohorts of {_SMALL_COHORT_SIZE}", _SMALL_COHORT_SIZE)
    many = _OPEN_COHORTS * options.cohort
    waiting = study_request(many, options.words, options.cohort, options.rate)
    for _ in range(options.open_studies):
        request_json(servers[0].port, "POST", "/v1/studies", waiting)
    meter = CostMeter(processes, None)
    before = meter.server_seconds()
    time.sleep(_IDLE_SECONDS)
    share = (meter.server_seconds() - before) / _IDLE_SECONDS
    case = f"{options.open_studies:,} open studies of {_OPEN_COHORTS} cohorts"
    rows.append(BenchmarkRow(f"{name}, {case}: idle, of a core", 100 * share, "%"))
    play(case, options.cohort)
    return rows


def round_rows(
    name: str, devices: int, meter: CostMeter, closing: float, floor: UploadFloor
) -> list[BenchmarkRow]:
    """Return the figures of a round."""
    rows = []

    def add(figure: str, value: float, unit: str, reference: float | None = None) -> None:
        rows.append(BenchmarkRow(f"{name}: {figure}", value, unit, reference))

    for phase, seconds in meter.latencies.items():
        for percent in (50, 99):
            add(f"{phase}, p{percent}", 1e3 * float(np.percentile(seconds, percent)), "ms")
        add(f"{phase}, server CPU", 1e3 * meter.spent[phase] / len(seconds), "ms")
    upload = "send masked-input"
    count = len(meter.latencies[upload])
    add("uploads", count / meter.elapsed[upload], "1/s", 1 / floor.elapsed)
    spent = 1e3 * meter.spent[upload] / count
    add("server CPU per upload", spent, "ms", 1e3 * floor.seconds)
    if floor.database:
        spent = 1e3 * meter.spent_by_database[upload] / count
        add("PostgreSQL CPU per upload", spent, "ms", 1e3 * floor.database)
    add("load generator CPU per upload", 1e3 * meter.spent_by_load[upload] / count, "ms")
    add("devices through all phases", devices / sum(meter.elapsed.values()), "1/s")
    add("requests per device", meter.requests / devices, "")
    all_phases = "CPU per device, all phases"
    add(f"server {all_phases}", 1e3 * sum(meter.spent.values()) / devices, "ms")
    add("the same, and between phases", 1e3 * meter.whole / devices, "ms")
    if floor.database:
        spent = 1e3 * sum(meter.spent_by_database.values()) / devices
        add(f"PostgreSQL {all_phases}", spent, "ms")
    add(_CLOSING_ROW, closing, "s")
    for path, longest in meter.longest_answers.items():
        add(f"longest answer of {path}", 1e3 * longest, "ms", _MAX_BLOCK_MS)
    return rows


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--devices", type=int, action="append", help="200, 1,000 and 5,000")
    parser.add_argument("--words", type=int, default=100_000, help="32-bit words of a vector.")
    parser.add_argument(
        "--cohort", type=int, default=_MAX_COHORT_SIZE, help="Devices in a cohort, at most."
    )
    parser.add_argument(
        "--rate", type=float, default=0.0, help="Rates of corruption and of dropouts."
    )
    parser.add_argument("--open-studies", type=int, help="Plays further rounds; such as 1000.")
    parser.add_argument("--replicas", type=int, help="2, with SQLite 1")
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    options = parser.parse_args()
    is_sqlite = options.database == "sqlite"
    count = options.replicas or (1 if is_sqlite else 2)
    rows, first_peak = list[BenchmarkRow](), None
    sizes = options.devices or [200, 1_000, 5_000]
    try:
        check_words(options.words, max(sizes))
    except ValueError as error:
        parser.error(str(error))
    for devices in sizes:
        name = f"{devices:,} devices, {count} on {options.database}"
        if options.rate:
            name += f", rates {options.rate:g}"
        print(name, file=sys.stderr)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url, backend = f"sqlite:///{folder}/load.db", None
            if not is_sqlite:
                url, backend = stack.enter_context(postgres(folder / "postgres"))
            servers = [stack.enter_context(ReplicaProcess(folder, url)) for _ in range(count)]
            meter = CostMeter([server.process for server in servers], backend)
            request = study_request(devices, options.words, options.cohort, options.rate)
            closing, nbytes = measure_round(request, servers, meter)
            floor = measure_floor(url, nbytes, backend)
            rows += round_rows(name, devices, meter, closing, floor)
            if options.open_studies is not None:
                first = RoundCosts.of(meter, devices, closing)
                rows += comparison_rows(name, devices, options, servers, first)
        peak = meter.peak / 2**20
        first_peak = first_peak or peak
        rows.append(BenchmarkRow(f"{name}: peak memory of a server", peak, "MiB", first_peak))
    print("reference of memory: that of the first number of devices", file=sys.stderr)
    report(rows, "floor", options.json)


if __name__ == "__main__":
    main()
