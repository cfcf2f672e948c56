"""The result of a simulation does not depend on workers, chunks and tasks."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import count
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.datasets.item_counts import ItemCounts
from blindtally.simulate import round_schedule, study
from blindtally.workers import (
    LOCAL_CLUSTER,
    ParallelExecutor,
    map_bounded,
    open_round_executor,
    open_workers,
)
from protocol.domains.strings import Alphabet
from protocol.mechanisms.registry import REPORT_MECHANISMS, SUM_MECHANISMS, parse_question
from protocol.question_and_plan import Terms
from protocol.simulation.rounds import LOCAL_EXECUTOR, RoundDevices, RoundExecutor
from protocol.simulation.study import run_round, run_study

TERMS = Terms(cohort_size=12, minimum=6, cohorts=4, corrupt=0.1, dropout=0.25)
COINS = {"epsilon": 40, "delta": 0.95, "theta": 1, "probability": 0.2}
COINS |= {"join_probability": 0.9, "contribution": 1}
NOISE = {"epsilon": 1, "delta": 1e-6, "mode": "noise"}
HISTOGRAMS = tuple(
    dict(Counter(random.Random(n).choices(["ab", "cd", "ef"], k=n % 7))) for n in range(99)
)
FLEETS = [DeviceHistograms.of(HISTOGRAMS), ItemCounts(("ab", "cd", "ab"), np.array([5, 6, 7]))]
MIN_TASK_SECONDS = 1e-9  # all work is worth sending to workers


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with open_workers(2, None) as (executor, workers):
        assert executor is not None
        assert workers == 2
        yield executor


def played(fleet: Any, executor: RoundExecutor, chunk: int | None = 7, **options: Any) -> list[Any]:
    """Return the outcomes of a study in which devices clip, drop out and sample."""
    how = options.pop("how", {})
    asked = {
        "mechanism": "triehh" if how else "adaptive-iblt",
        "threshold": 5,
        "message_bytes": 7524,
    }
    domain = Alphabet(characters="abcdef", length=2)
    question = parse_question(asked | {"contribution": 3, "domain": domain} | how)
    rounds = fleet.rounds([36] * 2, question.contribution, np.random.default_rng(1), 9, chunk)
    rounds = options.pop("changed", iter)(rounds)
    options = {"planned": 2, "dropout": 0.2, "executor": executor} | options
    return list(
        run_study(SUM_MECHANISMS[question.mechanism], question, TERMS, rounds, rng(), **options)
    )


def rng() -> random.Random:
    return random.Random(1)


@pytest.mark.parametrize("how", [{}, COINS, NOISE], ids=["exact", "coins", "noise"])
@pytest.mark.parametrize("fleet", FLEETS, ids=["devices", "counts"])
def test_a_study_is_the_same_on_any_number_of_workers(
    fleet: Any, how: Any, processes: Executor
) -> None:
    alone = played(fleet, LOCAL_EXECUTOR, how=how)
    assert {0 < outcome.devices < 36 for outcome in alone} == {True}
    for workers in (1, 2, 4):
        assert (
            played(fleet, ParallelExecutor(processes, workers, MIN_TASK_SECONDS), how=how) == alone
        )


def test_a_fleet_of_one_chunk_draws_as_one_without_chunks() -> None:
    for fleet in FLEETS:
        assert played(fleet, LOCAL_EXECUTOR, 36) == played(fleet, LOCAL_EXECUTOR, None)
        assert played(fleet, LOCAL_EXECUTOR, 7) != played(fleet, LOCAL_EXECUTOR, None)


def test_secure_cohorts_are_summed_by_workers(processes: Executor) -> None:
    (fleet, _), executor = FLEETS, ParallelExecutor(processes, 2)
    alone = played(fleet, LOCAL_EXECUTOR, secure=True)
    assert {outcome.answer is not None for outcome in alone} == {True}
    assert played(fleet, executor, secure=True) == alone
    plain, secure = (played(fleet, LOCAL_EXECUTOR, secure=s, dropout=0.0) for s in (False, True))
    assert [done.answer for done in plain] == [done.answer for done in secure]


def reported(
    name: str,
    fleet: Any,
    executor: RoundExecutor,
    changed: Callable[[Any], Any] = lambda people: people,
) -> tuple[Any, Any]:
    """Return the answer from the reports of a round, and the true counts."""
    domain: Any = {"kind": "listed", "items": ["ab", "cd", "ef"]}
    domain = {"kind": "utf8", "max_bytes": 2} if name == "prefix-extension" else domain
    asked = {"mechanism": name, "threshold": 5, "domain": domain, "epsilon": 4.0}
    plan = REPORT_MECHANISMS[name].first_plan(parse_question(asked), TERMS, "simulation", 1, rng())
    people = changed(next(fleet.rounds([90], 1, np.random.default_rng(1), 9, 9)))
    how: Any = {"clipping_seed": 2, "executor": executor}
    outcome = run_round(REPORT_MECHANISMS[name], plan, people, rng(), **how)
    assert outcome.devices == 90
    return outcome.answer, outcome.truth


@pytest.mark.parametrize("name", ["krr", "hadamard", "glps-hh", "prefix-extension"])
@pytest.mark.parametrize("fleet", FLEETS, ids=["devices", "counts"])
def test_reports_are_the_same_on_any_number_of_workers(
    fleet: Any, name: str, processes: Executor
) -> None:
    alone = reported(name, fleet, LOCAL_EXECUTOR)
    for workers in (1, 2, 4):
        assert (
            reported(name, fleet, ParallelExecutor(processes, workers, MIN_TASK_SECONDS)) == alone
        )


def test_simulate_has_workers_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = list[int]()

    def spied(*args: Any) -> Iterator[Any]:
        for result in map_bounded(*args):
            pieces.append(1)
            yield result

    monkeypatch.setattr(round_schedule, "CHUNK_DEVICES", 100)
    executor = partial(open_round_executor, min_task_seconds=MIN_TASK_SECONDS)
    monkeypatch.setattr(study, "open_round_executor", executor)
    monkeypatch.setattr("blindtally.workers.map_bounded", spied)
    data = tmp_path / "words.csv"
    data.write_text("word,count\n" + "".join(f"w{n:02},{900 // n}\n" for n in range(10, 99)))
    asked = ["simulate", "ocms", "--data", data, "--devices", 900, "--epsilon", 4, "--json", "-"]
    documents = []
    for workers, expected in ((1, 0), (2, 6)):  # of nine chunks some stay here
        pieces.clear()
        result = CliRunner().invoke(app, [*map(str, asked), "--workers", str(workers)])
        assert result.exit_code == 0, result.stderr
        documents.append(json.loads(result.stdout))
        assert len(pieces) == expected
    assert documents[0] == documents[1]


def die_once(folder: Path, blocks: Callable[[], Iterable[Any]]) -> Iterable[Any]:
    """Kill the worker that runs this chunk first."""
    if not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return blocks()


@pytest.mark.parametrize("dask", [None, LOCAL_CLUSTER], ids=["processes", "dask"])
def test_a_worker_that_is_killed_in_mid_round_costs_no_result(
    tmp_path: Path, dask: str | None
) -> None:
    def changed(rounds: Iterable[RoundDevices[Any]]) -> Iterator[RoundDevices[Any]]:
        for devices in rounds:  # the third chunk: the first runs here, to measure its time
            first, second, *others = devices.later_chunks
            later = [first, partial(die_once, tmp_path, second), *others]
            yield RoundDevices(devices.first_batches, later)

    with open_workers(2, dask) as (executor, workers):
        assert executor is not None
        parallel_executor = ParallelExecutor(executor, workers, MIN_TASK_SECONDS)
        assert played(FLEETS[0], parallel_executor, changed=changed) == played(
            FLEETS[0], LOCAL_EXECUTOR
        )
        assert (tmp_path / "died").exists()
        (tmp_path / "died").unlink()
        dying = reported(
            "krr", FLEETS[0], parallel_executor, lambda people: next(changed([people]))
        )
        assert dying == reported("krr", FLEETS[0], LOCAL_EXECUTOR)
    assert (tmp_path / "died").exists()


def test_short_work_is_not_sent_to_workers() -> None:
    missing: Any = None  # fails if it is used
    clock = partial(next, count())  # each chunk that runs here takes a second
    executor = ParallelExecutor(missing, 2, min_task_seconds=3.0, clock=clock)  # for four chunks
    assert played(FLEETS[0], executor) == played(FLEETS[0], LOCAL_EXECUTOR)
    with pytest.raises(AttributeError, match="submit"):
        played(FLEETS[0], ParallelExecutor(missing, 2, min_task_seconds=2.0, clock=clock))


def test_pieces_are_made_when_there_is_room_for_them(processes: Executor) -> None:
    made = []

    def pieces() -> Iterator[int]:
        for number in range(9):
            made.append(number)
            yield number

    results = map_bounded(processes, abs, pieces(), 3)
    assert next(results) == 0
    assert made == [0, 1, 2]
    assert list(results) == list(range(1, 9))


def test_a_stop_does_not_wait_for_tasks() -> None:
    before, began = set(active_children()), time.monotonic()

    def stop() -> None:
        with open_workers(2, None) as (executor, _):
            assert executor is not None
            executor.submit(time.sleep, 600)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert set(active_children()) == before
    assert time.monotonic() < began + 300  # ten minutes otherwise


def test_ctrl_c_keeps_a_partial_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "words.csv"
    data.write_text("word,count\n" + "".join(f"w{n:02},{900 // n}\n" for n in range(10, 99)))
    asked = ["simulate", "adaptive-iblt", "--data", str(data), "--rounds", "5", "--devices", "900"]

    def run(rounds: int) -> Any:
        def stopped(*args: Any, **options: Any) -> Iterator[Any]:
            outcomes = run_study(*args, **options)
            yield from (next(outcomes) for _ in range(rounds))
            raise KeyboardInterrupt

        monkeypatch.setattr(study, "run_study", stopped)
        return CliRunner().invoke(app, [*asked, "--json", str(tmp_path / "out.json")])

    result = run(2)
    assert result.exit_code == 130
    assert "stopped; the result is partial: 2 rounds of 5" in result.stderr
    assert "partial" in result.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["partial"], len(document["thresholds"]), document["devices"]) == (
        True,
        2,
        1800,
    )
    (tmp_path / "out.json").unlink()
    assert run(0).exit_code == 130
    assert not (tmp_path / "out.json").exists()
