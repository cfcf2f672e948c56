"""A real server that is killed in each phase finishes its round exactly."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

from blindtally.demo.server_process import ServerProcess
from blindtally.fleet_run.results import verify_sum
from client.analyst.analyst import Analyst, Study
from client.device.device import STEP_OF_PHASE, DeviceStep, StudyDevice
from client.device.driver import EndState
from client.device.encoding import make_contribution
from client.device.journal import MemoryJournal
from client.device.participation import SumParticipation
from client.fleet.config_and_results import DeviceResult, FleetRound, missed_phases
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
QUESTION = AdaptiveIbltQuestion(
    threshold=5, contribution=3, domain=Utf8(max_bytes=6), message_bytes=4784
)
TERMS = Terms(cohort_size=N, minimum=N, corrupt=0.1, dropout=0.2)  # two of twelve may drop out
TIMEOUTS = Timeouts(enrolling=60, idle=0.5)
POLICY = trusting_policy(min_cohort=10)
# The step after which half of the devices wait, so that the server is in the middle of a phase.
STEP_BEFORE_PHASE = {phase: step for step, phase in missed_phases(TERMS.sum).items()}


def create(analyst: Analyst) -> Study:
    return analyst.create("killed", QUESTION, TERMS, rounds=1, timeouts=TIMEOUTS)


class Half:
    """One round whose devices pause in the middle of each of `phases` until the server was killed.

    Device 0 drops out after it has shared, so that there is always a mask key to recover.
    """

    def __init__(
        self, service: ServerProcess, study: StudyView, view: RoundView, phases: Sequence[Phase]
    ) -> None:
        self.service, self.study, self.view = service, study, view
        self.restarted = {phase: asyncio.Event() for phase in phases}
        self.received = Counter[Phase]()

    async def play(self) -> list[DeviceResult]:
        """Let every device take part."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._device(index)) for index in range(N)]
        return [task.result() for task in tasks]

    async def _device(self, index: int) -> DeviceResult:
        held = {"common": 1, f"of {index % 4}": 2}
        given = make_contribution(QUESTION, held, system_words)
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
        for phase, restarted in self.restarted.items():
            if step is STEP_BEFORE_PHASE[phase] and index >= N // 2:
                await restarted.wait()

    async def _count(self, step: DeviceStep) -> None:
        """Fail once every device that does not wait has sent its message of a phase."""
        for phase in self.restarted:
            if step is STEP_OF_PHASE[phase]:
                self.received[phase] += 1
                dropouts = phase not in (Phase.ENROLLING, Phase.SHARING)
                if self.received[phase] == N // 2 - dropouts:
                    await self.fail(phase)

    async def fail(self, phase: Phase) -> None:
        """Kill the server, start another one, and let the other devices go on."""
        await asyncio.to_thread(self.service.kill)
        await asyncio.to_thread(self.service.start)
        self.restarted[phase].set()


def test_a_server_killed_in_the_middle_of_each_phase_finishes_with_an_exact_sum(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path, is_open=True) as service, Analyst(service.url) as analyst:
        study = create(analyst)
        half = Half(service, study.view, first_round(study), tuple(STEP_BEFORE_PHASE))
        check(study, asyncio.run(half.play()), survivors=N - 1)
        assert all(restarted.is_set() for restarted in half.restarted.values())
        assert study.wait().state == "finished"
        assert study.heavy_hitters()[0].item == "common"


def first_round(study: Study) -> RoundView:
    return next(iter(study.watch(every=0.05)))


def check(study: Study, entries: list[DeviceResult], survivors: int) -> None:
    """Compare a round's sum with the vectors of its survivors."""
    for view in study.watch(every=0.05):
        if view.state != "running":
            break
    (cohort,) = view.cohorts
    assert cohort.phase is Phase.SUMMED, cohort.failure
    assert len(cohort.survivors) >= survivors
    verify_sum(FleetRound(view, tuple(entries)), cohort, study.cohort_sum(view))
