"""A real server that is killed in each phase and while it sums finishes all rounds exactly."""

import asyncio
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random, SystemRandom

import numpy as np
import pytest

from blindtally.demo.server_process import ServerProcess
from blindtally.fleet_run.results import verify_sum
from client.analyst.analyst import Analyst, Study
from client.device.device import STEP_OF_PHASE, DeviceStep, StudyDevice
from client.device.driver import EndState
from client.device.encoding import make_contribution
from client.device.journal import MemoryJournal
from client.device.participation import SumParticipation
from client.fleet.config_and_results import DeviceResult, FleetConfig, FleetRound, missed_phases
from client.fleet.fleet import Fleet
from client.http.transport import Transport, http_client
from protocol.api.messages import RoundView, StudyView, Timeouts
from protocol.api.phases import Phase
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.question_and_plan import Terms
from protocol.randomness import system_words
from secagg.keys import Identity
from tests.support.policies import trusting_policy

N = 12
QUESTION = AdaptiveIbltQuestion(threshold=5, contribution=3, domain=Utf8(max_bytes=6), words=1500)
TERMS = Terms(cohort_size=N, minimum=N, corrupt=0.1, dropout=0.2)  # two of twelve may drop out
TIMEOUTS = Timeouts(enrolling=60, idle=0.5)
POLICY = trusting_policy(min_cohort=10)
# The step after which half of the devices wait, so that the server is in the middle of a phase.
STEP_BEFORE_PHASE = {phase: step for step, phase in missed_phases(TERMS.sum).items()}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, is_open=True) as running:
        yield running


def create(analyst: Analyst, rounds: int) -> Study:
    return analyst.create("killed", QUESTION, TERMS, rounds=rounds, timeouts=TIMEOUTS)


def histogram(index: int) -> dict[str, int]:
    return {"common": 1, f"of {index % 4}": 2}


class Half:
    """One round whose devices pause in the middle of `phase` until the server was killed.

    Device 0 drops out after it has shared, so that there is always a mask key to recover.
    """

    def __init__(
        self, service: ServerProcess, study: StudyView, view: RoundView, phase: Phase
    ) -> None:
        self.service, self.study, self.view, self.phase = service, study, view, phase
        self.restarted = asyncio.Event()
        self.received = 0

    async def play(self) -> list[DeviceResult]:
        """Let every device take part."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._device(index)) for index in range(N)]
        return [task.result() for task in tasks]

    async def _device(self, index: int) -> DeviceResult:
        rng = np.random.default_rng([self.view.number, index])
        given = make_contribution(QUESTION, histogram(index), rng)
        device = StudyDevice(Identity.generate(SystemRandom()), given, MemoryJournal())
        async with http_client(self.service.url) as http:
            transport = Transport(http)
            part = SumParticipation(
                transport,
                self.view,
                device,
                policy=POLICY,
                secrets=SystemRandom(),
                chance=system_words,
            )
            await self._wait(index, None)
            end, last = EndState.FINISHED, None
            async for step in part.steps(self.study.id):
                last = step
                await self._count(step)
                if index == 0 and step is DeviceStep.SHARED:
                    end = EndState.DROPPED_OUT
                    break
                await self._wait(index, step)
            assert part.assignment is not None
            seat = part.assignment
            return DeviceResult(
                index, end, last, seat.cohort, seat.slot, transport.traffic, given, part.vector
            )

    async def _wait(self, index: int, step: DeviceStep | None) -> None:
        if step is STEP_BEFORE_PHASE[self.phase] and index >= N // 2:
            await self.restarted.wait()

    async def _count(self, step: DeviceStep) -> None:
        """Kill the server once every device that does not wait has sent its message."""
        if step is not STEP_OF_PHASE[self.phase]:
            return
        self.received += 1
        dropouts = self.phase not in (Phase.ENROLLING, Phase.SHARING)
        if self.received == N // 2 - dropouts:
            await asyncio.to_thread(self.service.kill)
            await asyncio.to_thread(self.service.start)
            self.restarted.set()


def test_a_server_killed_in_the_middle_of_each_phase_finishes_with_exact_sums(
    service: ServerProcess,
) -> None:
    with Analyst(service.url) as analyst:
        study = create(analyst, rounds=len(STEP_BEFORE_PHASE))
        for number, phase in enumerate(STEP_BEFORE_PHASE, start=1):
            view = wait_for_round(study, number)
            entries = asyncio.run(Half(service, study.view, view, phase).play())
            check(study, number, entries, survivors=N - 1)
        assert study.wait().state == "finished"
        assert study.heavy_hitters()[0].item == "common"


def test_a_server_killed_at_any_moment_finishes_with_exact_sums(service: ServerProcess) -> None:
    async def trouble(playing: asyncio.Event) -> None:
        moments = Random(9)
        for _ in range(2):
            await asyncio.sleep(moments.uniform(0.1, 0.8))
            if playing.is_set():
                return
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)

    async def play(study: StudyView) -> list[FleetRound]:
        holdings = [histogram(index) for index in range(N)]
        config = FleetConfig(devices=N, dropout=0.1, seed=3, policy=POLICY)
        fleet = Fleet(lambda: http_client(service.url), study, holdings, config)
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(trouble(over))
            played = [result async for result in fleet.run()]
            over.set()
        return played

    with Analyst(service.url) as analyst:
        study = create(analyst, rounds=1)
        for result in asyncio.run(play(study.view)):
            check(study, result.view.number, list(result.results), survivors=N - 2)
        assert study.wait().state == "finished"


def test_a_server_killed_while_it_computes_a_sum_computes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it reads messages for the sum, and when it has not yet published the sum."""
    held = (sys.executable, "-m", "tests.held_sums", str(tmp_path))
    monkeypatch.setattr("blindtally.demo.server_process.COMMAND_PREFIX", held)
    holds = {1: tmp_path / "1 before", 2: tmp_path / "2 after"}  # by cohort
    for hold in holds.values():
        hold.touch()

    async def trouble(service: ServerProcess) -> None:
        for cohort, hold in holds.items():
            await asyncio.to_thread(wait_for_file, tmp_path / "held")
            await asyncio.to_thread(service.kill)
            assert row_of(service, cohort) == ("unmasking", None, 1), "it was killed too late"
            hold.unlink()
            (tmp_path / "held").unlink()
            await asyncio.to_thread(service.start)

    async def play(service: ServerProcess, study: StudyView) -> list[FleetRound]:
        config = FleetConfig(devices=N, dropout=0.0, seed=3, policy=POLICY)
        holdings = [histogram(index) for index in range(2 * N)]
        fleet = Fleet(lambda: http_client(service.url), study, holdings, config)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(trouble(service))
            return [result async for result in fleet.run()]

    with ServerProcess(tmp_path, is_open=True) as service, Analyst(service.url) as analyst:
        study = create(analyst, rounds=len(holds))
        for result in asyncio.run(play(service, study.view)):
            check(study, result.view.number, list(result.results), survivors=N)
        assert study.wait().state == "finished"
        for cohort in holds:
            phase, total, claims = row_of(service, cohort)
            assert (phase, total is None, claims) == ("summed", False, 2)


def wait_for_file(path: Path) -> None:
    last = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < last, f"no {path.name}"
        time.sleep(0.02)


def row_of(service: ServerProcess, cohort: int) -> tuple[str, bytes | None, int]:
    """Return the phase and the sum of a cohort, and how often the sum was claimed."""
    query = (
        "SELECT phase, sum, version FROM cohorts JOIN leases"
        " ON job = 'sum-cohort ' || id WHERE id = ?"
    )
    with closing(sqlite3.connect(service.database)) as connection:
        (row,) = connection.execute(query, [cohort])
    phase, total, claims = row
    return phase, total, claims


def wait_for_round(study: Study, number: int) -> RoundView:
    for view in study.watch(every=0.05):
        if view.number == number:
            return view
    raise AssertionError(f"the study is over before round {number}")


def check(study: Study, number: int, entries: list[DeviceResult], survivors: int) -> None:
    """Compare a round's sum with the vectors of its survivors."""
    for view in study.watch(every=0.05):
        if view.number == number and view.state != "running":
            break
    (cohort,) = view.cohorts
    assert cohort.phase is Phase.SUMMED, cohort.failure
    assert len(cohort.survivors) >= survivors
    verify_sum(FleetRound(view, tuple(entries)), cohort, study.cohort_sum(view))
