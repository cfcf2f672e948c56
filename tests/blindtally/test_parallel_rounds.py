"""Whoever plays a simulation, and however its work is cut: the result is that of one process."""

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

from blindtally import parallel
from blindtally.cli import app
from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.datasets.item_counts import ItemCounts
from blindtally.parallel import LOCAL_CLUSTER, ParallelExecutor, map_bounded, open_workers
from blindtally.simulate import reports, sums
from protocol.domains.strings import Alphabet
from protocol.mechanisms.registry import REPORT_MECHANISMS, SUM_MECHANISMS, parse_question
from protocol.simulation.chunks import RoundDevices
from protocol.simulation.executor import (
    LOCAL_EXECUTOR,
    RoundExecutor,
)
from protocol.simulation.reports import ReportRoundSpec, run_report_round
from protocol.simulation.study import run_study
from protocol.study import Terms
from protocol.study_state import EMPTY_STATE

TERMS = Terms(cohort_size=12, minimum=6, cohorts=4, corrupt=0.1, dropout=0.25)
COINS = {"epsilon": 40, "delta": 0.95, "theta": 1, "probability": 0.2}
COINS |= {"join_probability": 0.9, "contribution": 1}
NOISE = {"epsilon": 1, "delta": 1e-6, "mode": "noise"}
HELD = tuple(
    dict(Counter(random.Random(n).choices(["ab", "cd", "ef"], k=n % 7))) for n in range(99)
)
FLEETS = [DeviceHistograms.of(HELD), ItemCounts(("ab", "cd", "ab"), np.array([5, 6, 7]))]
TINY = 1e-9  # seconds: all work is worth handing out


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with open_workers(2, None) as (executor, workers):
        assert executor is not None
        assert workers == 2
        yield executor


def played(fleet: Any, hands: RoundExecutor, stretch: int | None = 7, **options: Any) -> list[Any]:
    """Return the outcomes of a study in which devices clip, vanish and sample."""
    how = options.pop("how", {})
    asked = {"mechanism": "triehh" if how else "adaptive-iblt", "threshold": 5, "words": 3000}
    domain = Alphabet(characters="abcdef", length=2)
    question = parse_question(asked | {"contribution": 3, "domain": domain} | how)
    rounds = fleet.rounds(2, 36, question.contribution, np.random.default_rng(1), 9, stretch)
    rounds = options.pop("changed", iter)(rounds)
    options = {"planned": 2, "dropout": 0.2, "executor": hands} | options
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
        assert played(fleet, ParallelExecutor(processes, workers, TINY), how=how) == alone


def test_a_fleet_of_one_stretch_draws_as_one_of_none() -> None:
    for fleet in FLEETS:
        assert played(fleet, LOCAL_EXECUTOR, 36) == played(fleet, LOCAL_EXECUTOR, None)
        assert played(fleet, LOCAL_EXECUTOR, 7) != played(fleet, LOCAL_EXECUTOR, None)


def test_secure_cohorts_are_summed_by_workers(processes: Executor) -> None:
    (fleet, _), hands = FLEETS, ParallelExecutor(processes, 2)
    alone = played(fleet, LOCAL_EXECUTOR, secure=True)
    assert {outcome.answer is not None for outcome in alone} == {True}
    assert played(fleet, hands, secure=True) == alone
    plain, secure = (played(fleet, LOCAL_EXECUTOR, secure=s, dropout=0.0) for s in (False, True))
    assert [one.answer for one in plain] == [one.answer for one in secure]


def reported(
    name: str,
    fleet: Any,
    hands: RoundExecutor,
    changed: Callable[[Any], Any] = lambda people: people,
) -> tuple[Any, Any]:
    """Return what devices report in a round, and what they hold."""
    domain: Any = {"kind": "listed", "items": ["ab", "cd", "ef"]}
    domain = {"kind": "utf8", "max_bytes": 2} if name == "prefix-extension" else domain
    asked = {"mechanism": name, "threshold": 5, "domain": domain, "epsilon": 4.0}
    plan = REPORT_MECHANISMS[name].first_plan(parse_question(asked), TERMS, "simulation", 1, rng())
    chance = np.random.default_rng(1)
    people = changed(next(fleet.rounds(1, 90, 1, chance, 9, 9)))
    said = run_report_round(
        ReportRoundSpec(REPORT_MECHANISMS[name], plan, 1), people, chance, hands
    )
    return REPORT_MECHANISMS[name].decode(plan, said.aggregate, EMPTY_STATE), said.truth


@pytest.mark.parametrize("name", ["krr", "hadamard", "glps-hh", "prefix-extension"])
@pytest.mark.parametrize("fleet", FLEETS, ids=["devices", "counts"])
def test_reports_are_the_same_on_any_number_of_workers(
    fleet: Any, name: str, processes: Executor
) -> None:
    alone = reported(name, fleet, LOCAL_EXECUTOR)
    for workers in (1, 2, 4):
        assert reported(name, fleet, ParallelExecutor(processes, workers, TINY)) == alone


@pytest.mark.parametrize("mechanism", ["ocms", "prefix-extension"])
def test_simulate_has_workers_report(
    mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = list[int]()

    def spied(*args: Any) -> Iterator[Any]:
        for result in map_bounded(*args):
            pieces.append(1)
            yield result

    monkeypatch.setattr(reports, "CHUNK_DEVICES", 100)
    monkeypatch.setattr(reports, "_MIN_TASK_SECONDS", TINY)
    monkeypatch.setattr(parallel, "map_bounded", spied)
    data = tmp_path / "words.csv"
    data.write_text("word,count\n" + "".join(f"w{n:02},{900 // n}\n" for n in range(10, 99)))
    asked = ["simulate", mechanism, "--data", data, "--clients", 900, "--epsilon", 4, "--json", "-"]
    found = []
    for workers, expected in ((1, 0), (2, 6), (4, 4)):  # of nine stretches two stay here
        pieces.clear()
        told = CliRunner().invoke(app, [*map(str, asked), "--workers", str(workers)])
        assert told.exit_code == 0, told.stderr
        found.append(json.loads(told.stdout))
        assert len(pieces) == expected
    assert found[0] == found[1] == found[2]


def die_once(folder: Path, blocks: Callable[[], Iterable[Any]]) -> Iterable[Any]:
    """Kill the worker that plays this stretch first."""
    if not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return blocks()


@pytest.mark.parametrize("dask", [None, LOCAL_CLUSTER], ids=["processes", "dask"])
def test_a_worker_that_is_killed_in_mid_round_costs_no_result(
    tmp_path: Path, dask: str | None
) -> None:
    def changed(rounds: Iterable[RoundDevices[Any]]) -> Iterator[RoundDevices[Any]]:
        for one in rounds:  # the third stretch: one is played here, to see how long it takes
            later = [
                one.later_chunks[0],
                partial(die_once, tmp_path, one.later_chunks[1]),
                *one.later_chunks[2:],
            ]
            yield RoundDevices(one.first_batches, later)

    with open_workers(2, dask) as (executor, workers):
        assert executor is not None
        hands = ParallelExecutor(executor, workers, TINY)
        assert played(FLEETS[0], hands, changed=changed) == played(FLEETS[0], LOCAL_EXECUTOR)
        assert (tmp_path / "died").exists()
        (tmp_path / "died").unlink()
        dying = reported("krr", FLEETS[0], hands, lambda one: next(changed([one])))
        assert dying == reported("krr", FLEETS[0], LOCAL_EXECUTOR)
    assert (tmp_path / "died").exists()


def test_what_is_done_in_less_than_half_a_second_is_not_handed_out() -> None:
    nobody: Any = None  # who would fail if it were asked
    clock = partial(next, count())  # each stretch that is played here takes a second
    hands = ParallelExecutor(
        nobody, 2, min_task_seconds=3.0, clock=clock
    )  # four stretches are left
    assert played(FLEETS[0], hands) == played(FLEETS[0], LOCAL_EXECUTOR)
    with pytest.raises(AttributeError, match="submit"):
        played(FLEETS[0], ParallelExecutor(nobody, 2, min_task_seconds=2.0, clock=clock))


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


def test_whoever_stops_waits_for_nothing() -> None:
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


def test_ctrl_c_keeps_what_was_found_and_says_that_it_is_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "words.csv"
    data.write_text("word,count\n" + "".join(f"w{n:02},{900 // n}\n" for n in range(10, 99)))
    asked = ["simulate", "adaptive-iblt", "--data", str(data), "--rounds", "5", "--clients", "900"]

    def run(rounds: int) -> Any:
        def stopped(*args: Any, **options: Any) -> Iterator[Any]:
            study = run_study(*args, **options)
            yield from (next(study) for _ in range(rounds))
            raise KeyboardInterrupt

        monkeypatch.setattr(sums, "run_study", stopped)
        return CliRunner().invoke(app, [*asked, "--json", str(tmp_path / "out.json")])

    told = run(2)
    assert told.exit_code == 130
    assert "stopped; the result is partial: 2 rounds of 5" in told.stderr
    assert "partial" in told.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["partial"], len(found["thresholds"]), found["devices"]) == (True, 2, 1800)
    (tmp_path / "out.json").unlink()
    assert run(0).exit_code == 130
    assert not (tmp_path / "out.json").exists()
