"""Studies in which devices take part in every round, hidden by noise or by coins, through ASGI."""

import json
from collections import Counter
from typing import Any

import httpx
import pytest

from client.fleet import Connect, Crew, Fleet, NobodyEnteredError, Played
from client.journal import MemoryJournal
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


async def create(connect: Connect, **own: Any) -> StudyView:
    asked = {"threshold": 4, "contribution": 1, "domain": DOMAIN, "words": 400}
    question = TrieHhQuestion.model_validate(asked | {"epsilon": 8, "delta": 1e-3} | own)
    request = StudyRequest(
        name="words",
        question=question,
        terms=TERMS,
        rounds=4,
        timeouts=Timeouts(patience=0.4),
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
