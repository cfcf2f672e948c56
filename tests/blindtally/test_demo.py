"""The demo, small and whole: a real server process, a fleet over HTTP, files in the end."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.demo.server_process import ServerDownError, ServerProcess, StoppedBySignalError
from blindtally.fleet_run.fleet_setup import DataFile, build_setup
from blindtally.fleet_run.results import (
    InexactSumError,
    summarize_round,
    summarize_study,
    true_counts,
    verify_sum,
)
from blindtally.fleet_run.screen import Screen, print_results
from client.device.device import DeviceStep
from client.device.driver import EndState
from client.device.encoding import Contribution
from client.fleet.config_and_results import DeviceResult, FleetRound
from client.http.exchange import Traffic
from protocol.api.messages import CohortView, HeavyHitter, RoundView, StudyView
from protocol.api.phases import PAIRWISE_SUM
from protocol.mechanisms.registry import MECHANISMS
from protocol.randomness import seeded_words
from secagg.keys import Identity
from secagg.ring import Vector
from tests.support.views import NOON, cohort_document, round_document, study_document

SETUP_OPTIONS: dict[str, Any] = {"devices": 12, "rounds": 1, "dropout": 0.1, "seed": 1}
SETUP_OPTIONS |= {"threshold": 3, "contribution": 2, "message_bytes": None}
SMALL_DEMO_OPTIONS = ["--devices", "12", "--rounds", "2", "--seed", "3"]


@pytest.fixture
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_usual_umask")
def test_the_demo_finds_heavy_hitters_and_writes_everything_down(tmp_path: Path) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy.json"
    options = [*SMALL_DEMO_OPTIONS, "--contribution", "1", "--out", str(out), "--json", str(copy)]
    run = CliRunner().invoke(app, ["demo", *options])
    assert run.exit_code == 0, run.output
    lines = run.output.strip().splitlines()
    assert re.match(r"Starting a server: http://127.0.0.1:\d+/ shows", lines[0])
    assert any(re.search(r"page: http://127.0.0.1:\d+/studies/\w+$", line) for line in lines[1:3])
    text = " ".join(lines)
    assert re.search(
        r"counted at \d+ or more of 22 devices; github.com at (about )?\d+ of them", text
    )
    assert "it could not see what any one device holds" in text
    again = lines[0].split("/")[2].replace("127.0.0.1:", "serve --open --port ")
    assert f"{again} --database sqlite:///{out}/blindtally.db" in lines[-1]
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in out.iterdir()}
    private = dict.fromkeys(["blindtally.db", "results.json", "server.log"], "0o600")
    assert (out.stat().st_mode & 0o777, modes) == (0o700, private)
    results = json.loads(copy.read_text())
    assert results == json.loads((out / "results.json").read_text())
    assert results["sums_exact"] is True
    assert len(results["thresholds"]) == 2
    assert {"f1", "precision", "recall", "rounds_decoded"} <= results.keys()
    assert results["sum"] == "pairwise"
    assert sum(results["dropouts"].values()) == 2  # one of twelve in each round
    for result in results["rounds"]:
        assert list(result["seconds"]) == list(PAIRWISE_SUM.phases)
        assert result["violations"] == []
    assert results["bytes_per_device"]["sent"] > results["bytes_per_device"]["vector"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--dropout", "0.4"], "corrupt + 2 dropout is 1.10"),
        (["--devices", "8000", "--rounds", "2"], "the data has 8,812"),
        (["--message-bytes", "20"], "message_bytes 20 are too few"),
        (["--message-bytes", "8000000"], "the devices of this demo would refuse"),
        (["--out", "."], "not empty"),
    ],
)
def test_an_impossible_study_leaves_nothing_behind(
    arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "occupied").touch()
    run = CliRunner().invoke(app, ["demo", *SMALL_DEMO_OPTIONS, *arguments])
    assert run.exit_code == 2
    assert why in run.output
    assert [path.name for path in tmp_path.iterdir()] == ["occupied"]


def test_ctrl_c_stops_the_server_and_names_the_files_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "blindtally", "demo", "--devices", "100", "--out", "out"]
    demo = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    log = tmp_path / "out" / "server.log"
    deadline = time.monotonic() + 100
    while not (log.exists() and "serves" in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(demo.pid, signal.SIGINT)
    _, errors = demo.communicate(timeout=30)
    assert (demo.returncode, b"Kept: out/blindtally.db" in errors) == (130, True), errors
    (served,) = [line for line in log.read_text().splitlines() if "serves" in line]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(served.rsplit(":", 1)[1])), timeout=1)


def test_a_signal_that_would_leave_the_server_alone_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr("blindtally.demo.server_process.COMMAND_PREFIX", endless)
    service = ServerProcess(tmp_path, is_open=True)
    before = signal.getsignal(signal.SIGTERM)

    def is_ready(_client: object) -> bool:  # asked once the server runs
        os.kill(os.getpid(), signal.SIGTERM)
        return False

    monkeypatch.setattr(service, "_is_ready", is_ready)
    processes: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda *args, **how: processes.append(start(*args, **how)) or processes[0],
    )
    with pytest.raises(StoppedBySignalError) as stopped, service.handling_signals(), service:
        pass
    assert stopped.value.code == 143
    assert processes[0].poll() == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_server_that_ends_shows_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = (sys.executable, "-c", "print('what went wrong'); raise SystemExit(3)")
    monkeypatch.setattr("blindtally.demo.server_process.COMMAND_PREFIX", failing)
    with pytest.raises(ServerDownError, match=r"(?s)code 3.*what went wrong"):
        ServerProcess(tmp_path).start()


def test_a_study_is_enrolled_and_its_devices_ask_for_no_less() -> None:
    registrar = Identity.of(bytes(32))
    setup = build_setup(DataFile(), **SETUP_OPTIONS, registrar=registrar)
    assert setup.terms.registrar == registrar.public.hex()
    assert setup.fleet_config.policy.registrar == registrar.public
    assert setup.fleet_config.registrar is registrar


SETUP = build_setup(DataFile(), **SETUP_OPTIONS)
MECHANISM = MECHANISMS[SETUP.question.mechanism]


def played(count: int = 3) -> tuple[FleetRound, CohortView, Vector]:
    """Return a round in which `count` devices are in the sum, and their sum."""
    plan = MECHANISM.first_plan(SETUP.question, SETUP.terms, "study", 7, Random(1))
    given = Contribution({"example.org": 2})
    vectors = [
        MECHANISM.encode(plan, given.histogram, seeded_words(np.random.default_rng(slot)))
        for slot in range(count)
    ]
    total = MECHANISM.ring(plan).zero()
    for vector in vectors:
        MECHANISM.ring(plan).add(total, vector)
    cohort = CohortView.model_validate(
        cohort_document(
            "summed", enrolled=count + 1, holders=3, threshold=2, survivors=range(count)
        )
    )
    view = RoundView.model_validate(
        round_document(plan, state="decoded", participants=count, distinct=1.0, closed=NOON)
    ).model_copy(update={"cohorts": (cohort,)})
    entries = [
        DeviceResult(
            7 + slot, EndState.FINISHED, DeviceStep.UNMASKED, 0, slot, Traffic(), given, vector
        )
        for slot, vector in enumerate(vectors)
    ]
    lost = DeviceResult(
        99, EndState.DROPPED_OUT, DeviceStep.JOINED, 0, count, Traffic(), given, None
    )
    return FleetRound(view, (*entries, lost)), cohort, total


def test_a_sum_that_is_its_survivors_vectors_passes_and_counts_as_truth() -> None:
    finished, cohort, total = played()
    verify_sum(finished, cohort, total)
    assert true_counts([finished]) == {"example.org": 6}  # without the two of the dropout


def test_blamed_participants_are_named() -> None:
    finished, cohort, _ = played()
    blamed = cohort.model_copy(update={"blamed": {2: "shared false secrets"}})
    view = finished.view.model_copy(update={"cohorts": (blamed,)})
    result = summarize_round(replace(finished, view=view), exact=True)
    assert result.violations == ("cohort 0, participant 2 shared false secrets",)
    study = StudyView.model_validate(study_document(SETUP.question, SETUP.terms))
    screen = Console(record=True, width=80, file=io.StringIO())
    rows = [HeavyHitter(item="example.org", estimate=8, standard_error=0.5, low=7, high=9)]
    results = summarize_study(study, rows, [finished], rounds=[result], seconds=1, settings={})
    print_results(screen, results)
    text = screen.export_text()
    assert "blamed in round 1: cohort 0, participant 2 shared false secrets" in text
    assert "about 1 of 20 intervals misses" in text  # the true count is 6
    print_results(screen, replace(results, people=1))
    assert "intervals misses" not in screen.export_text()


def test_a_round_without_a_sum_has_a_reason() -> None:
    finished, _, _ = played()
    failure = "3 of 10 sent their vectors in time, where 7 are needed"
    times = (NOON, "2026-11-21T11:00:00Z")  # the database's clock went back
    history = [{"phase": "sharing", "entered": time, "received": 3} for time in times]
    failed = CohortView.model_validate(cohort_document("failed", failure=failure, history=history))
    view = finished.view.model_copy(
        update={"state": "failed", "cohorts": (failed,), "distinct": None, "participants": 0}
    )
    shown = Console(record=True, width=200, file=io.StringIO())
    Screen(shown, 1).show_round(summarize_round(replace(finished, view=view), exact=False))
    text = shown.export_text()
    assert f"no sum, failed: {failure}, 0.0 s" in text
    assert "nothing" not in text


def test_a_sum_that_is_off_by_one_bit_or_has_a_stranger_is_an_error() -> None:
    finished, cohort, total = played()
    with pytest.raises(InexactSumError, match="1 unknown"):
        verify_sum(replace(finished, results=finished.results[1:]), cohort, total)
    total[0][0] ^= 1
    with pytest.raises(InexactSumError, match="is not the sum of its 3 vectors"):
        verify_sum(finished, cohort, total)
