"""A fleet plays whole studies through ASGI; its seed decides who is lost, and when."""

from collections import Counter
from unittest.mock import AsyncMock, call

import pytest

from client.fleet import (
    LOSABLE,
    Connect,
    Crew,
    End,
    Fleet,
    NobodyEnteredError,
    Played,
    Standing,
    select,
)
from client.participation import Step
from client.policy import Policy
from protocol.messages import StudyView
from protocol.round import Phase

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


async def test_no_device_is_in_two_sums(connect: Connect, study: StudyView) -> None:
    played = await play(connect, study, crew())
    counted = [
        entry.device
        for one in played
        for cohort in one.view.cohorts
        for entry in one.in_sum(cohort)
    ]
    assert len(counted) == len(set(counted))


async def test_a_fleet_smaller_than_the_study_comes_again_with_whoever_was_lost(
    connect: Connect, study: StudyView
) -> None:
    few = HOLDINGS[:18]  # two rounds of ten: the two that are lost in the first are needed
    fleet = Fleet(connect, study, few, crew(seed=1))
    first, second = [one async for one in fleet.play()]
    lost = {entry.device for entry in first.entries} - {
        entry.device for entry in first.in_sum(first.view.cohorts[0])
    }
    assert lost <= {entry.device for entry in second.entries}


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


@pytest.mark.parametrize("devices", [10, 1000])
def test_the_seed_decides_who_is_lost_and_when(devices: int) -> None:
    free = range(devices + 5)
    chosen, leaving = select(crew(devices=devices), 1, free)
    assert (chosen, leaving) == select(crew(devices=devices), 1, free)
    assert (chosen, leaving) != select(crew(devices=devices, seed=8), 1, free)
    assert (chosen, leaving) != select(crew(devices=devices), 2, free)
    assert len(set(chosen)) == devices
    assert len(leaving) == devices // 5
    assert leaving.keys() <= set(chosen)


def test_devices_vanish_before_each_phase_alike() -> None:
    _, leaving = select(crew(devices=3000, dropout=0.5), 1, range(3000))
    shares = Counter(leaving.values())
    assert set(shares) == set(LOSABLE)
    assert all(400 < count < 600 for count in shares.values())  # 500 and 5 sd; the seed is fixed
