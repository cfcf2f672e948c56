"""Fleets in whole studies through ASGI; the seed determines the dropouts."""

import resource
import sqlite3
from collections import Counter
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import AsyncMock, call

import httpx
import pytest
from fastapi import FastAPI

from client.device.device import DeviceStep
from client.device.driver import EndState
from client.fleet import devices
from client.fleet.behaviour import FleetBehaviour
from client.fleet.config_and_results import (
    DeviceResult,
    FleetConfig,
    FleetProgress,
    FleetRound,
    droppable_steps,
    missed_phases,
    select_devices,
)
from client.fleet.devices import ClientFactory
from client.fleet.fleet import Fleet
from client.process_files import OpenFilesError
from protocol.api.messages import RoundView, StudyView
from protocol.api.phases import Phase
from protocol.device_policy.policy import Policy
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.simulation.study import run_study
from secagg.keys import Identity
from tests.client.conftest import connect_to, create, serving
from tests.support.policies import trusting_policy

HOLDINGS = [{"common": 1, f"rare {index % 3}": 2} for index in range(30)]

POLICY = trusting_policy(min_cohort=5)


def config(**changes: object) -> FleetConfig:
    options = {"devices": 10, "dropout": 0.2, "seed": 7, "policy": POLICY} | changes
    return FleetConfig(**options)  # type: ignore[arg-type]


async def play(
    connect: ClientFactory, study: StudyView, fleet_config: FleetConfig
) -> list[FleetRound]:
    return [each async for each in Fleet(connect, study, HOLDINGS, fleet_config).run()]


async def test_a_fleet_takes_part_in_every_round(connect: ClientFactory, study: StudyView) -> None:
    reports: list[FleetProgress] = []
    fleet = Fleet(connect, study, HOLDINGS, config(), reports.append)
    played = [each async for each in fleet.run()]
    assert [each.view.number for each in played] == [1, 2]
    for each in played:
        (cohort,) = each.view.cohorts
        assert cohort.phase is Phase.SUMMED
        ends = Counter(entry.state for entry in each.results)
        assert ends == {EndState.FINISHED: 8, EndState.DROPPED_OUT: 2}
        assert sum(each.dropouts_by_phase().values()) == 2
        assert {entry.slot for entry in each.results_in_sum(cohort)} == set(cohort.survivors)
    given = [entry.device for each in played for entry in each.results if entry.vector is not None]
    assert len(given) == len(set(given))
    assert reports[-1].steps_taken[DeviceStep.UNMASKED] == 8
    assert reports[-1].dropped_out == 2


async def test_devices_of_fleets_and_simulations_count_an_item_as_often_as_a_policy_allows(
    connect: ClientFactory, study: StudyView
) -> None:
    assert POLICY.min_threshold == study.question.threshold
    held = [{"mine": 3, "yours": 1}] * 10
    (played,) = [each async for each in Fleet(connect, study, held, config(dropout=0)).run()]
    for result in played.results:
        assert result.contribution.histogram == {"mine": 1, "yours": 1}
        assert [(each.count, each.items) for each in result.contribution.left_out] == [
            (2, ("mine",))
        ]
    mechanism, terms = SUM_MECHANISMS[study.question.mechanism], study.terms
    (outcome,) = run_study(mechanism, study.question, terms, [[held]], Random(1), planned=2)
    assert (outcome.truth, outcome.copies_left_out) == ({"mine": 10, "yours": 10}, 20)


async def test_a_fleet_smaller_than_the_study_reuses_devices_that_sent_no_vector(
    connect: ClientFactory, study: StudyView
) -> None:
    few = HOLDINGS[:18]  # two rounds of ten: dropouts that did not mask are needed again
    fleet = Fleet(connect, study, few, config(seed=1))
    first, second = [each async for each in fleet.run()]
    empty = {entry.device for entry in first.results if entry.vector is None}
    assert empty
    assert empty <= {entry.device for entry in second.results}


async def test_a_fleet_waits_for_the_next_round(connect: ClientFactory, study: StudyView) -> None:
    early, late = (Fleet(connect, study, HOLDINGS, config(seed=seed)) for seed in (1, 2))
    view = await late.next_round(0)
    assert view is not None
    await early.run_round(view)
    late.next_round = AsyncMock(side_effect=[view, None])  # type: ignore[method-assign]
    assert [each async for each in late.run()] == []
    assert late.next_round.await_args_list == [call(0), call(1)]


@pytest.mark.parametrize("restored_while", ["waiting", "in a round"])
async def test_a_fleet_goes_on_after_the_service_was_restored_to_an_earlier_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored_while: str
) -> None:
    """The copy is made in round 2, and restored when the fleet has seen its end."""
    monkeypatch.setattr("client.fleet.fleet._RESTORED_CHECK_SECONDS", 0.3)
    apps = list[FastAPI]()

    def current() -> httpx.AsyncClient:
        return connect_to(apps[-1])()

    async with AsyncExitStack() as stack:
        apps.append(await stack.enter_async_context(serving(tmp_path / "service.db")))
        study = await create(current, rounds=3, cohort_size=6, minimum=5)
        policy = trusting_policy(min_cohort=4)
        fleet = Fleet(current, study, HOLDINGS, config(devices=6, dropout=0, policy=policy))

        async def restore() -> None:
            await stack.aclose()
            apps.append(await stack.enter_async_context(serving(tmp_path / "copy.db")))

        run_round, played = fleet.run_round, list[FleetRound]()

        async def run_and_restore(view: RoundView) -> tuple[DeviceResult, ...]:
            results = await run_round(view)
            if view.number == 3 and len(apps) == 1:
                await restore()
            return results

        if restored_while == "in a round":
            monkeypatch.setattr(fleet, "run_round", run_and_restore)
        async for each in fleet.run():
            played.append(each)
            if len(played) == 1:
                copy_database(tmp_path / "service.db", tmp_path / "copy.db")
            if len(played) == 2 and restored_while == "waiting":
                await restore()
        assert [each.view.number for each in played] == [1, 2, 2, 3]
        assert all(each.view.cohorts[0].phase is Phase.SUMMED for each in played)
        sent = [
            entry.device for each in played for entry in each.results if entry.vector is not None
        ]
        assert len(sent) == len(set(sent))


def copy_database(file: Path, copy: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("VACUUM INTO ?", [str(copy)])


async def test_a_fleet_with_the_key_of_its_registrar_seats_its_rounds(
    connect: ClientFactory, registrar: Identity
) -> None:
    # One slot stays free, so a round opens until its deadline.
    terms = {"registrar": registrar.public.hex(), "cohorts": 2, "minimum": 7}
    study = await create(connect, enrolling=2.5, **terms)
    policy = Policy(min_cohort=5, registrar=registrar.public)
    fleet_config = config(devices=15, dropout=0, registrar=registrar, policy=policy)
    played = await play(connect, study, fleet_config)
    for each in played:
        assert [cohort.enrolled for cohort in each.view.cohorts] == [8, 7]
        for cohort in each.view.cohorts:
            assert len(each.results_in_sum(cohort)) == cohort.enrolled
    assert len(played) == 2


async def test_a_fleet_with_the_keys_of_operators_opens_its_one_shot_sums(
    connect: ClientFactory,
) -> None:
    operators = tuple(Identity.of(bytes([n]) * 32) for n in range(1, 8))
    members = [operator.public.hex() for operator in operators]
    terms = {"sum": "one-shot", "committee": {"members": members}, "cohort_size": 8, "minimum": 5}
    study = await create(connect, rounds=1, **terms)
    policy = replace(POLICY, committee=frozenset(operator.public for operator in operators))
    played = await play(connect, study, config(policy=policy, operators=operators))
    assert len(played) == 1
    for each in played:  # two of ten drop out, and send nothing
        assert (each.view.state, each.view.participants) == ("decoded", 8)
        assert len(each.results_in_sum(each.view.cohorts[0])) == 8
        assert each.dropouts_by_phase() == {Phase.COLLECTING: 2}
        assert {result.state for result in each.results} == {
            EndState.FINISHED,
            EndState.DROPPED_OUT,
        }


async def test_devices_of_a_fleet_volunteer_for_the_committees_of_its_rounds(
    connect: ClientFactory, registrar: Identity
) -> None:
    """One of twelve volunteers leaves after it has registered a key; most often it is drawn."""
    committee = {"volunteers": 12, "size": 9}
    terms = {"registrar": registrar.public.hex(), "sum": "one-shot", "committee": committee}
    study = await create(connect, rounds=1, cohort_size=10, minimum=5, **terms)
    policy = Policy(min_cohort=5, registrar=registrar.public, min_volunteers=12)
    fleet_config = config(dropout=0, registrar=registrar, policy=policy, committee_dropout=0.08)
    played = await play(connect, study, fleet_config)
    assert len(played) == 1
    for each in played:
        assert (each.view.state, each.view.participants) == ("decoded", 10)


async def test_a_fleet_too_small_for_its_committee_is_refused(
    connect: ClientFactory, registrar: Identity
) -> None:
    committee = {"volunteers": 40, "size": 40}
    terms = {"registrar": registrar.public.hex(), "sum": "one-shot", "committee": committee}
    study = await create(connect, cohort_size=10, minimum=5, **terms)
    with pytest.raises(ValueError, match="drawn from 40 devices, and this fleet has"):
        await play(connect, study, config(registrar=registrar))


async def test_more_devices_than_open_files_are_refused_before_one_has_joined(
    connect: ClientFactory, study: StudyView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (59, 59))
    with pytest.raises(
        OpenFilesError, match=r"10 devices .* need 60 open files, and it may have 59"
    ):
        await play(connect, study, config())
    async with connect() as http:
        rounds = (await http.get(f"/studies/{study.id}/rounds/1")).json()
    assert rounds["cohorts"][0]["history"][0]["received"] == 0


async def test_devices_that_wait_for_no_other_take_turns_over_few_connections(
    connect: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "MAX_TURNS", 3)
    operators = tuple(Identity.of(bytes([n]) * 32) for n in range(1, 8))
    members = [operator.public.hex() for operator in operators]
    terms = {"sum": "one-shot", "committee": {"members": members}, "cohort_size": 8, "minimum": 5}
    study = await create(connect, **terms)
    policy = replace(POLICY, committee=frozenset(operator.public for operator in operators))
    clients = list[httpx.AsyncClient]()

    def counting() -> httpx.AsyncClient:
        clients.append(connect())
        return clients[-1]

    fleet_config = config(
        policy=policy,
        dropout=0,
        behaviour=FleetBehaviour(slow_fraction=0.5, mean_pause_seconds=0.01),
    )
    fleet = Fleet(connect, study, HOLDINGS, replace(fleet_config, operators=operators))
    async with fleet.serving_committee():
        view = await fleet.next_round(0)
        assert view is not None
        fleet.devices.connect = counting
        results = await fleet.run_round(view)
    assert Counter(result.state for result in results) == {EndState.FINISHED: 8, EndState.LATE: 2}
    assert len(clients) == 3
    assert all(client.is_closed for client in clients)


@pytest.mark.parametrize("devices", [10, 1000])
def test_the_seed_determines_the_dropouts_and_their_last_steps(devices: int) -> None:
    free = range(devices + 5)
    selected, last_steps = select_devices(config(devices=devices), 1, "pairwise", free)
    assert (selected, last_steps) == select_devices(config(devices=devices), 1, "pairwise", free)
    assert (selected, last_steps) != select_devices(
        config(devices=devices, seed=8), 1, "pairwise", free
    )
    assert (selected, last_steps) != select_devices(config(devices=devices), 2, "pairwise", free)
    assert len(set(selected)) == devices
    assert len(last_steps) == devices // 5
    assert last_steps.keys() <= set(selected)


def test_devices_drop_out_before_each_phase_alike() -> None:
    _, last_steps = select_devices(config(devices=3000, dropout=0.5), 1, "pairwise", range(3000))
    shares = Counter(last_steps.values())
    assert set(shares) == set(droppable_steps("pairwise"))
    assert all(220 < count < 380 for count in shares.values())  # 300 and 5 sd; the seed is fixed


@pytest.mark.parametrize(
    ("last", "phase"),
    [
        (None, Phase.ENROLLING),
        (DeviceStep.MASKED, Phase.CONFIRMING),
        (DeviceStep.CONFIRMED, Phase.UNMASKING),
    ],
)
def test_a_device_is_missed_after_its_last_step(last: DeviceStep | None, phase: Phase) -> None:
    assert missed_phases("pairwise")[last] is phase
    assert DeviceStep.UNMASKED not in missed_phases("pairwise")
