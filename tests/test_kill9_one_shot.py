"""A real server that is killed in each phase of a one-shot sum finishes it exactly."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import httpx

from blindtally.demo.server_process import ServerProcess
from blindtally.fleet_run.results import verify_sum
from client.analyst.analyst import Analyst
from client.committee.member import CommitteeMember, MemberPolicy
from client.committee.member_journal import MemberJournal
from client.fleet.config_and_results import FleetConfig, FleetRound
from client.fleet.fleet import Fleet
from client.http.transport import Transport, http_client
from protocol.api.messages import RoundView, StudyView, Timeouts
from protocol.api.phases import ONE_SHOT_SUM, Phase
from protocol.committee_terms import CommitteeTerms
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.question_and_plan import Terms
from secagg.keys import Identity
from tests.support.policies import trusting_policy

N = 12
QUESTION = AdaptiveIbltQuestion(
    threshold=5, contribution=3, domain=Utf8(max_bytes=6), message_bytes=4784
)
OPERATORS = tuple(Identity.of(bytes([n]) * 32) for n in range(1, 8))
TERMS = Terms(
    cohort_size=N,
    minimum=10,
    sum="one-shot",
    committee=CommitteeTerms(members=tuple(each.public.hex() for each in OPERATORS)),
)
POLICY = replace(
    trusting_policy(min_cohort=10), committee=frozenset(each.public for each in OPERATORS)
)
MEMBER_POLICY = MemberPolicy(min_devices=10, serve_unverified=True)
TIMEOUTS = Timeouts(collecting=60, idle=30)


class KilledInEachPhase:
    """Members of a committee that kill the server in each phase of a round, and go on.

    Three parties have sent their message by then, so that the server is in the middle of a phase.
    """

    def __init__(self, service: ServerProcess, study: StudyView) -> None:
        self.service, self.study, self.kills = service, study, 0
        self._messages, self._is_killed_in_collecting = 0, asyncio.Event()

    def device_client(self) -> httpx.AsyncClient:
        """Return a device's client, which waits with its message for the kill in collecting."""
        client = http_client(self.service.url)
        client.event_hooks["request"].append(self._hold_message)
        return client

    async def _hold_message(self, request: httpx.Request) -> None:
        if request.url.path.endswith("/message"):
            self._messages += 1
            if self._messages > 3:
                await self._is_killed_in_collecting.wait()

    async def run(self) -> None:
        """Take all steps until cancelled."""
        members = [CommitteeMember(each, MemberJournal(), MEMBER_POLICY) for each in OPERATORS]
        async with AsyncExitStack() as stack:
            clients = [http_client(self.service.url) for _ in members]
            transports = [Transport(await stack.enter_async_context(each)) for each in clients]
            while True:
                for member, transport in zip(members, transports, strict=True):
                    # Before each step, because the seventh one ends a phase.
                    await self._kill_if_due(await self._phase(transport), members, transports)
                    await member.act(transport)
                await asyncio.sleep(0.02)

    async def _kill_if_due(
        self, phase: Phase, members: list[CommitteeMember], transports: list[Transport]
    ) -> None:
        if self.kills == len(ONE_SHOT_SUM.phases) or phase is not ONE_SHOT_SUM.phases[self.kills]:
            return
        for member, transport in list(zip(members, transports, strict=True))[:3]:
            await member.act(transport)
        await asyncio.to_thread(self.service.kill)
        await asyncio.to_thread(self.service.start)
        self.kills += 1
        if phase is Phase.COLLECTING:
            self._is_killed_in_collecting.set()

    async def _phase(self, transport: Transport) -> Phase:
        answer = await transport.send("GET", f"/studies/{self.study.id}/rounds/1")
        return RoundView.model_validate_json(answer.content).cohorts[0].phase


async def collect(fleet: Fleet) -> list[FleetRound]:
    return [result async for result in fleet.run()]


async def play(service: ServerProcess, study: StudyView) -> tuple[list[FleetRound], int]:
    holdings = [{"common": 1, f"of {index % 4}": 2} for index in range(N)]
    config = FleetConfig(devices=N, seed=3, policy=POLICY)
    members = KilledInEachPhase(service, study)
    fleet = Fleet(members.device_client, study, holdings, config)
    serving = asyncio.create_task(members.run())
    try:
        async with asyncio.timeout(240):
            playing = asyncio.create_task(collect(fleet))
            await asyncio.wait((playing, serving), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()  # raises its error; it does not end otherwise
            return await playing, members.kills
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def test_a_server_killed_in_each_phase_of_a_one_shot_sum_finishes_with_the_exact_sum(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path, is_open=True) as service, Analyst(service.url) as analyst:
        study = analyst.create("killed", QUESTION, TERMS, rounds=1, timeouts=TIMEOUTS)
        played, kills = asyncio.run(play(service, study.view))
        assert kills == len(ONE_SHOT_SUM.phases)
        (each,) = played
        assert (each.view.state, each.view.participants) == ("decoded", N)
        verify_sum(each, each.view.cohorts[0], study.cohort_sum(each.view))
        assert study.wait().state == "finished"
        assert study.heavy_hitters()[0].item == "common"
