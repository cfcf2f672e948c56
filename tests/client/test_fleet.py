"""A fleet plays whole studies through ASGI; its seed decides who is lost, and when."""

from collections import Counter
from unittest.mock import AsyncMock, call

import pytest

from client.crew import Crew, Played, Standing, losable, lost_in, select
from client.fleet import Connect, Fleet, NobodyEnteredError
from client.part import End
from client.participation import Step
from client.policy import Policy
from protocol.messages import StudyView
from protocol.round import Phase
from secagg.keys import Identity
from secagg.parameters import Mode

HOLDINGS = [{"common": 1, f"rare {index % 3}": 2} for index in range(30)]


def crew(**changes: object) -> Crew:
    asked = {"devices": 10, "dropout": 0.2, "seed": 7, "policy": Policy(min_cohort=5)} | changes
    return Crew(**asked)  # type: ignore[arg-type]


async def play(connect: Connect, study: StudyView, crew: Crew) -> list[Played]:
    return [one async for one in Fleet(connect, study, HOLDINGS, crew).play()]


async def test_a_fleet_plays_every_round_of_a_study(connect: Connect, study: StudyView) -> None:
    standings: list[Standing] = []
    fleet = Fleet(connect, study, HOLDINGS, crew(), standings.append)
    played = [one async for one in fleet.play()]
    assert [one.view.number for one in played] == [1, 2]
    for one in played:
        (cohort,) = one.view.cohorts
        assert cohort.phase is Phase.SUMMED
        ends = Counter(entry.end for entry in one.entries)
        assert ends == {End.FINISHED: 8, End.VANISHED: 2}
        assert sum(one.losses().values()) == 2
        assert {entry.slot for entry in one.in_sum(cohort)} == set(cohort.survivors)
    assert standings[-1].done[Step.REVEALED] == 8
    assert standings[-1].gone == 2


async def test_a_fleet_plays_a_study_that_trusts_its_server(
    connect: Connect, trusting: StudyView
) -> None:
    willing = Policy(min_cohort=5, modes=frozenset({"semi-honest"}))
    for one in await play(connect, trusting, crew(policy=willing)):
        assert one.view.cohorts[0].phase is Phase.SUMMED
        assert Phase.CONFIRMING not in one.losses()
        assert Step.CONFIRMED not in {entry.last for entry in one.entries}


async def test_a_registrar_enrols_a_fleet(
    connect: Connect, enrolled: StudyView, registrar: Identity
) -> None:
    pinned = Policy(min_cohort=5, registrar=registrar.public)
    for one in await play(connect, enrolled, crew(policy=pinned, registrar=registrar)):
        assert one.view.cohorts[0].phase is Phase.SUMMED


async def test_a_fleet_of_another_registrar_refuses(connect: Connect, enrolled: StudyView) -> None:
    other = Identity.of(bytes(32))
    with pytest.raises(NobodyEnteredError, match="did not enrol me"):
        await play(connect, enrolled, crew(registrar=other))


async def test_no_device_gives_two_vectors(connect: Connect, study: StudyView) -> None:
    played = await play(connect, study, crew())
    given = [entry.device for one in played for entry in one.entries if entry.vector is not None]
    assert len(given) == len(set(given))


async def test_a_fleet_smaller_than_the_study_comes_again_with_whoever_gave_nothing(
    connect: Connect, study: StudyView
) -> None:
    few = HOLDINGS[:18]  # two rounds of ten: those lost before they masked are needed
    fleet = Fleet(connect, study, few, crew(seed=1))
    first, second = [one async for one in fleet.play()]
    empty = {entry.device for entry in first.entries if entry.vector is None}
    assert empty
    assert empty <= {entry.device for entry in second.entries}


async def test_a_device_whose_cohort_failed_after_it_gave_is_not_used_again(
    connect: Connect, study: StudyView
) -> None:
    # Six of ten vanish, three of them before they mask: a quorum of seven gave and confirmed.
    first, second = await play(connect, study, crew(dropout=0.6))
    assert first.view.state == "failed"
    gave = {entry.device for entry in first.entries if entry.vector is not None}
    assert len(gave) == 7
    assert not gave & {entry.device for entry in second.entries}


async def test_a_fleet_that_finds_a_round_full_waits_for_the_next(
    connect: Connect, study: StudyView
) -> None:
    early, late = (Fleet(connect, study, HOLDINGS, crew(seed=seed)) for seed in (1, 2))
    view = await late.next_round(0)
    assert view is not None
    await early.enter(view)
    late.next_round = AsyncMock(side_effect=[view, None])  # type: ignore[method-assign]
    assert [one async for one in late.play()] == []
    assert late.next_round.await_args_list == [call(0), call(1)]


async def test_devices_refuse_and_the_fleet_says_why(connect: Connect, study: StudyView) -> None:
    careful = crew(policy=Policy(min_cohort=11))
    with pytest.raises(NobodyEnteredError, match="min_cohort"):
        await play(connect, study, careful)


async def test_devices_refuse_a_server_that_asks_for_trust(
    connect: Connect, trusting: StudyView
) -> None:
    with pytest.raises(NobodyEnteredError, match="semi-honest mode where active is wanted"):
        await play(connect, trusting, crew())


@pytest.mark.parametrize("devices", [10, 1000])
def test_the_seed_decides_who_is_lost_and_when(devices: int) -> None:
    free = range(devices + 5)
    chosen, leaving = select(crew(devices=devices), 1, "active", free)
    assert (chosen, leaving) == select(crew(devices=devices), 1, "active", free)
    assert (chosen, leaving) != select(crew(devices=devices, seed=8), 1, "active", free)
    assert (chosen, leaving) != select(crew(devices=devices), 2, "active", free)
    assert len(set(chosen)) == devices
    assert len(leaving) == devices // 5
    assert leaving.keys() <= set(chosen)


def test_devices_vanish_before_each_phase_alike() -> None:
    _, leaving = select(crew(devices=3000, dropout=0.5), 1, "active", range(3000))
    shares = Counter(leaving.values())
    assert set(shares) == set(losable("active"))
    assert all(290 < count < 460 for count in shares.values())  # 375 and 5 sd; the seed is fixed


@pytest.mark.parametrize(
    ("mode", "last", "phase"),
    [
        ("active", None, Phase.ENROLLING),
        ("active", Step.MASKED, Phase.CONFIRMING),
        ("active", Step.CONFIRMED, Phase.UNMASKING),
        ("semi-honest", Step.MASKED, Phase.UNMASKING),
    ],
)
def test_a_device_is_missed_in_the_phase_after_its_last_step(
    mode: Mode, last: Step | None, phase: Phase
) -> None:
    assert lost_in(mode)[last] is phase
    assert Step.REVEALED not in lost_in(mode)
