"""Studies in which devices take part in every round, hidden by noise or by coins, through ASGI."""

import json
from collections import Counter
from typing import Any

import httpx
import pytest

from client.crew import Crew, Played
from client.fleet import Connect, Fleet, NobodyEnteredError
from client.journal import MemoryJournal
from client.part import End
from client.policy import Policy, rho_of
from protocol.domain import Alphabet
from protocol.mechanism import Terms
from protocol.mechanisms.triehh import TrieHhQuestion
from protocol.messages import HeavyHitterPage, StudyRequest, StudyView, Timeouts
from protocol.privacy.ledger import Statement

HELD = ["cab"] * 17 + ["ab"] * 12 + ["bc", "a", "bca"]
DOMAIN = Alphabet(characters=".abc", length=3, pad=".")
TERMS = Terms(cohort_size=32, minimum=16, corrupt=0.1, dropout=0.3)
WILLING = Policy(min_cohort=10, max_epsilon=100, repeat_exact=True)


async def create(
    connect: Connect, terms: Terms = TERMS, enrolling: float = 600, **own: Any
) -> StudyView:
    asked = {"threshold": 4, "contribution": 1, "domain": DOMAIN, "words": 400}
    question = TrieHhQuestion.model_validate(asked | {"epsilon": 8, "delta": 1e-3} | own)
    request = StudyRequest(
        name="words",
        question=question,
        terms=terms,
        rounds=4,
        timeouts=Timeouts(enrolling=enrolling, patience=0.4),
        start=True,
    )
    async with connect() as http:
        answer = await http.post("/studies", json=request.model_dump(mode="json"))
        assert answer.status_code == 201, answer.text
    return StudyView.model_validate_json(answer.content)


async def play(
    connect: Connect, study: StudyView, policy: Policy = WILLING, dropout: float = 0.1
) -> list[Played]:
    crew = Crew(devices=32, dropout=dropout, seed=3, policy=policy)
    holdings = [{item: 1} for item in HELD]
    return [one async for one in Fleet(connect, study, holdings, crew).play()]


async def get(connect: Connect, path: str) -> httpx.Response:
    async with connect() as http:
        return await http.get(path)


async def test_a_study_with_noise_and_losses_finds_what_many_hold(connect: Connect) -> None:
    """Noise has a deviation below 1, and 17 and 12 devices hold an item: odds of 1e-6 to fail."""
    study = await create(connect, mode="noise")
    played = await play(connect, study)
    assert [one.view.state for one in played] == ["decoded"] * 3  # a fourth is not asked for
    assert all(sum(one.losses().values()) == 3 for one in played)
    part = Counter(entry.device for one in played for entry in one.entries)
    assert set(part.values()) == {3}  # each device, in every round
    answer = await get(connect, f"/studies/{study.id}/heavy-hitters")
    found = HeavyHitterPage.model_validate_json(answer.content).heavy_hitters
    assert [one.item for one in found[:2]] == ["cab", "ab"]
    for one, truth in zip(found, (17, 12), strict=False):
        assert one.estimate == pytest.approx(truth, abs=3 + 5 * one.standard_error)
    shown = await get(connect, f"/studies/{study.id}")
    assert StudyView.model_validate_json(shown.content).state == "finished"
    told = await get(connect, f"/studies/{study.id}/privacy")
    statement = Statement.model_validate_json(told.content)
    # Four rounds were paid for, three opened.
    assert all(one.epsilon is not None and 6 < one.epsilon < 7.9 for one in statement.sights)


async def test_a_sampled_study_shows_no_sum_and_promises_the_server_nothing(
    connect: Connect,
) -> None:
    """A quarter of 17 coins is 4 or more with odds of 64%, so only what is shown is checked."""
    study = await create(connect, mode="sample-threshold", theta=4, probability=0.5, delta=0.5)
    played = await play(connect, study)
    assert played[0].view.state == "decoded"
    answer = await get(connect, f"/studies/{study.id}/rounds/1/cohorts/0/sum")
    assert (answer.status_code, answer.json()["type"][-11:]) == (409, "wrong-state")
    found = (await get(connect, f"/studies/{study.id}/heavy-hitters")).json()["heavy_hitters"]
    assert all(one["item"] in HELD and one["estimate"] >= 4 for one in found)
    told = await get(connect, f"/studies/{study.id}/privacy")
    sights = {one.party: one.epsilon for one in Statement.model_validate_json(told.content).sights}
    assert sights["server"] is None
    assert sights["public"] is not None
    assert sights["public"] < 8
    await check_events(connect, study)


async def check_events(connect: Connect, study: StudyView) -> None:
    """Check that a study's events tell no more than its rounds show."""
    lines = (await get(connect, f"/studies/{study.id}/events")).text.splitlines()
    said = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert set().union(*said) <= {
        "id", "study", "kind", "at", "round", "cohort", "before", "phase", "heard", "expected",
        "seconds", "cause", "reason", "state", "participants", "threshold", "found",
    }  # fmt: skip
    found = (await get(connect, f"/studies/{study.id}/heavy-hitters")).json()["heavy_hitters"]
    closed = [one for one in said if one["kind"] == "round-closed"]
    assert closed[-1]["found"] == len(found)
    for one in closed:
        shown = await get(connect, f"/studies/{study.id}/rounds/{one['round']}")
        assert shown.json()["participants"] == one["participants"]


# Devices that join by coins of their own.

MANY = [{item: 1} for item in HELD * 2]  # 64 devices
ROOM = Terms(cohort_size=60, minimum=16, corrupt=0.1, dropout=0.3)


async def play_invited(connect: Connect, study: StudyView) -> list[Played]:
    crew = Crew(devices=64, dropout=0.1, seed=3, policy=WILLING)
    return [one async for one in Fleet(connect, study, MANY, crew).play()]


def joined(played: Played) -> set[int]:
    """Return who joined; check that nobody else asked the service for anything."""
    away = [entry for entry in played.entries if entry.end is End.STAYED_AWAY]
    assert all(entry.traffic.sent == 0 and entry.last is None for entry in away)
    return {entry.device for entry in played.entries} - {entry.device for entry in away}


async def test_devices_join_by_their_coins_and_others_stay_away(connect: Connect) -> None:
    """Of 64, 20 to 57 join, and not the same twice, but for odds of 1e-5."""
    own = {"probability": 0.5, "invited": 0.6, "stride": 2}
    # It is never full, so it waits for its deadline: a larger cohort hides better.
    study = await create(connect, ROOM, enrolling=3, mode="both", **own)
    played = await play_invited(connect, study)
    assert [one.view.state for one in played] == ["decoded"] * 2
    rounds = [joined(one) for one in played]
    assert all(20 <= len(here) <= 57 for here in rounds)
    assert len(rounds[0] ^ rounds[1]) >= 12  # coins are flipped anew
    assert all(sum(one.losses().values()) >= 1 for one in played)
    sitting = [sum(entry.cohort == 0 for entry in one.entries) for one in played]
    assert [one.view.cohorts[0].enrolled for one in played] == sitting
    found = (await get(connect, f"/studies/{study.id}/heavy-hitters")).json()["heavy_hitters"]
    first = {one["item"]: one for one in found}["cab"]
    assert abs(first["estimate"] - 34) < 4 + 5 * first["standard_error"]
    told = await get(connect, f"/studies/{study.id}/privacy")
    sights = {one.party: one.epsilon for one in Statement.model_validate_json(told.content).sights}
    assert sights["server"] == sights["devices"] == sights["analyst"]
    assert sights["server"] is not None
    assert sights["public"] is not None
    assert sights["public"] < sights["server"] <= 8


async def test_nobody_learns_how_many_joined_where_their_coins_count_on_it(
    connect: Connect,
) -> None:
    own = {"theta": 4, "probability": 0.5, "invited": 0.6, "delta": 0.5, "stride": 3}
    full = ROOM.model_copy(update={"cohort_size": 18})  # so that no time is lost: some are late
    study = await create(connect, full, mode="sample-threshold", **own)
    played = await play_invited(connect, study)
    assert [one.view.state for one in played] == ["decoded"]
    for one in played:
        assert 20 <= len(joined(one)) <= 57
        assert one.view.participants is None
        (cohort,) = one.view.cohorts
        assert (cohort.enrolled, cohort.holders, cohort.threshold, cohort.survivors) == (
            0,
            0,
            0,
            (),
        )
        assert {record.heard for record in cohort.history} == {0}
    said = (await get(connect, f"/studies/{study.id}/events")).text
    assert "round-closed" in said
    assert not any(word in said for word in ("heard", "expected", "participants"))
    for path in ("", "/rounds/1"):
        async with connect() as http:
            page = await http.get(f"http://test/studies/{study.id}{path}")
        assert page.status_code == 200
        assert not any(f">{len(joined(one))}<" in page.text for one in played)
    answer = await get(connect, f"/studies/{study.id}/frequencies?prefix=c")
    assert answer.status_code == 422
    assert "nobody may learn" in answer.text
    told = await get(connect, f"/studies/{study.id}/privacy")
    sights = {one.party: one.epsilon for one in Statement.model_validate_json(told.content).sights}
    assert sights["server"] is None
    assert sights["public"] is not None


async def test_an_invitation_that_cannot_hide_is_refused(connect: Connect) -> None:
    question = {"mechanism": "triehh", "threshold": 4, "contribution": 1, "words": 400}
    question |= {"domain": DOMAIN.model_dump(), "epsilon": 8, "delta": 1e-3}
    asked = {"name": "words", "terms": ROOM.model_dump(), "rounds": 4, "start": True}
    for own, why in (
        ({"mode": "both", "invited": 0.2}, "above the odds of a vote"),
        ({"mode": "noise", "invited": 0.5}, "or ask for mode both"),
        ({"invited": 1.1}, "above 0 and at most 1"),
    ):
        async with connect() as http:
            answer = await http.post("/studies", json=asked | {"question": question | own})
        assert answer.status_code == 422
        assert why in answer.text


@pytest.mark.parametrize(
    ("own", "limit"),
    [({"mode": "sample-threshold"}, "repeat_exact"), ({"mode": "noise"}, "max_epsilon")],
)
async def test_devices_refuse_to_be_told_apart_by_the_sums_of_two_rounds(
    connect: Connect, own: dict[str, Any], limit: str
) -> None:
    study = await create(connect, **own)
    with pytest.raises(NobodyEnteredError, match=limit):
        await play(connect, study, Policy(min_cohort=10))


async def test_a_device_that_has_taken_part_in_enough_rounds_stays_away(connect: Connect) -> None:
    study = await create(connect, mode="noise")
    policy = Policy(min_cohort=10, max_epsilon=100, max_rounds=1)
    with pytest.raises(NobodyEnteredError, match="max_rounds"):
        await play(connect, study, policy, dropout=0.0)


async def test_a_device_writes_down_what_the_noise_of_each_sum_lets_through(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals: list[MemoryJournal] = []

    class Kept(MemoryJournal):
        def __init__(self) -> None:
            super().__init__()
            journals.append(self)

    monkeypatch.setattr("client.fleet.MemoryJournal", Kept)
    study = await create(connect, mode="noise")
    played = await play(connect, study, dropout=0.0)
    rho = rho_of(played[0].view.plan)
    assert rho is not None
    told = {round(journal.told(study.id) / rho, 6) for journal in journals}
    assert told == {float(len(played))}
