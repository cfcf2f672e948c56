"""Studies whose devices are hidden by noise or by coins, through ASGI."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from client.device.driver import EndState
from client.fleet.config_and_results import FleetConfig, FleetRound
from client.fleet.devices import ClientFactory
from client.fleet.fleet import Fleet
from protocol.api.messages import StudyRequest, StudyView, Timeouts
from protocol.device_policy.policy import Policy
from protocol.domains.strings import Alphabet
from protocol.mechanisms.central.trie_plan import TrieHhQuestion
from protocol.mechanisms.registry import AnyQuestion, parse_question
from protocol.privacy.ledger import Statement
from protocol.question_and_plan import Terms
from tests.support.policies import trusting_policy

ITEMS = ["cab"] * 13 + ["ab"] * 4 + ["bc", "a", "bca"]
DOMAIN = Alphabet(characters=".abc", length=3, pad=".")
TERMS = Terms(cohort_size=20, minimum=10, corrupt=0.1, dropout=0.3)
GENEROUS_POLICY = trusting_policy(
    min_cohort=4, max_epsilon=100, max_delta=0.5, min_threshold=1, repeat_exact=True
)


async def create(
    connect: ClientFactory, terms: Terms = TERMS, enrolling: float = 600, **own: Any
) -> StudyView:
    asked = {"threshold": 4, "contribution": 1, "domain": DOMAIN, "message_bytes": 2584}
    question = TrieHhQuestion.model_validate(asked | {"epsilon": 8, "delta": 1e-3} | own)
    return await create_study(connect, question, 4, terms, enrolling)


async def create_study(
    connect: ClientFactory,
    question: AnyQuestion,
    rounds: int,
    terms: Terms = TERMS,
    enrolling: float = 600,
) -> StudyView:
    request = StudyRequest(
        name="words",
        question=question,
        terms=terms,
        rounds=rounds,
        timeouts=Timeouts(enrolling=enrolling, idle=0.4),
        start=True,
    )
    async with connect() as http:
        answer = await http.post("/studies", json=request.model_dump(mode="json"))
        assert answer.status_code == 201, answer.text
    return StudyView.model_validate_json(answer.content)


async def play(
    connect: ClientFactory, study: StudyView, policy: Policy = GENEROUS_POLICY, dropout: float = 0.1
) -> list[FleetRound]:
    config = FleetConfig(devices=20, dropout=dropout, seed=3, policy=policy)
    holdings = [{item: 1} for item in ITEMS]
    return [each async for each in Fleet(connect, study, holdings, config).run()]


async def get(connect: ClientFactory, path: str) -> httpx.Response:
    async with connect() as http:
        return await http.get(path)


async def heavy_hitters_of(connect: ClientFactory, study: StudyView) -> list[dict[str, Any]]:
    return (await get(connect, f"/studies/{study.id}/heavy-hitters")).json()["heavy_hitters"]


async def epsilons_of(connect: ClientFactory, study: StudyView) -> dict[str, float | None]:
    answer = await get(connect, f"/studies/{study.id}/privacy")
    statement = Statement.model_validate_json(answer.content)
    return {each.party: each.epsilon for each in statement.parties}


async def test_a_study_with_noise_and_losses_finds_what_many_hold(connect: ClientFactory) -> None:
    """Noise has a deviation below 1, and 11 of 13 devices stay: 1 run in 10^6 fails."""
    study = await create(connect, mode="noise")
    played = await play(connect, study)
    assert [each.view.state for each in played] == ["decoded"] * 3  # a fourth is not asked for
    assert all(sum(each.dropouts_by_phase().values()) == 2 for each in played)
    part = Counter(entry.device for each in played for entry in each.results)
    assert set(part.values()) == {3}  # each device, in every round
    heavy_hitters = await heavy_hitters_of(connect, study)
    first = heavy_hitters[0]
    assert first["item"] == "cab"
    assert first["estimate"] == pytest.approx(13, abs=2 + 5 * first["standard_error"])
    shown = await get(connect, f"/studies/{study.id}")
    assert StudyView.model_validate_json(shown.content).state == "finished"
    epsilons = (await epsilons_of(connect, study)).values()
    # The budget was reserved for four rounds; three were opened.
    assert all(epsilon is not None and 6 < epsilon < 7.9 for epsilon in epsilons)


async def test_a_sketch_with_noise_counts_and_spends_no_exact_study(connect: ClientFactory) -> None:
    """Noise has a deviation below 3, and 18 devices hold an item: 1 run in 10^5 fails."""
    asked = {"mechanism": "count-sketch", "threshold": 5, "contribution": 1, "rows": 1}
    question = parse_question(asked | {"domain": DOMAIN, "message_bytes": 2584, "epsilon": 2})
    study = await create_study(connect, question, rounds=1)
    policy = trusting_policy(min_cohort=6, max_exact_studies=0)
    config = FleetConfig(devices=20, dropout=0.1, seed=3, policy=policy)
    fleet = Fleet(connect, study, [{"cab": 1}] * 20, config)
    assert [each.view.state async for each in fleet.run()] == ["decoded"]
    heavy_hitters = await heavy_hitters_of(connect, study)
    assert "cab" in [each["item"] for each in heavy_hitters]  # and others of its only cell
    assert (await epsilons_of(connect, study))["server"] == pytest.approx(2, rel=0.01)


async def test_a_sampled_study_shows_no_sum_and_promises_nothing(connect: ClientFactory) -> None:
    """Few of 13 coins may fall for the common item, so only the answer is checked."""
    own = {"theta": 4, "probability": 0.5, "delta": 0.5, "stride": 3}
    study = await create(connect, mode="sample-threshold", **own)
    played = await play(connect, study)
    assert played[0].view.state == "decoded"
    answer = await get(connect, f"/studies/{study.id}/rounds/1/cohorts/0/sum")
    assert (answer.status_code, answer.json()["type"][-11:]) == (409, "wrong-state")
    heavy_hitters = await heavy_hitters_of(connect, study)
    assert all(each["item"] in ITEMS and each["estimate"] >= 4 for each in heavy_hitters)
    epsilons = await epsilons_of(connect, study)
    assert epsilons["server"] is None
    assert epsilons["public"] is not None
    assert epsilons["public"] < 8
    await check_events(connect, study)


async def check_events(connect: ClientFactory, study: StudyView) -> None:
    """Check that a study's events reveal no more than its rounds."""
    lines = (await get(connect, f"/studies/{study.id}/events")).text.splitlines()
    events = [
        json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")
    ]
    assert set().union(*events) <= {
        "id", "study", "kind", "at", "round", "cohort", "previous_phase", "phase", "received",
        "expected",
        "seconds", "cause", "reason", "state", "participants", "sampling_threshold",
        "heavy_hitters", "end_cause",
    }  # fmt: skip
    heavy_hitters = await heavy_hitters_of(connect, study)
    closed = [each for each in events if each["kind"] == "round-closed"]
    assert closed[-1]["heavy_hitters"] == len(heavy_hitters)
    for each in closed:
        shown = await get(connect, f"/studies/{study.id}/rounds/{each['round']}")
        assert shown.json()["participants"] == each["participants"]


# Devices that join by their own coins.

COIN_TERMS = Terms(cohort_size=38, minimum=8, corrupt=0.1, dropout=0.3)


async def play_invited(
    connect: ClientFactory, study: StudyView, items: Sequence[str]
) -> list[FleetRound]:
    config = FleetConfig(devices=len(items), dropout=0.1, seed=3, policy=GENEROUS_POLICY)
    holdings = [{item: 1} for item in items]
    return [each async for each in Fleet(connect, study, holdings, config).run()]


def joined(played: FleetRound) -> set[int]:
    """Return the devices that joined; check that the others sent nothing."""
    away = [entry for entry in played.results if entry.state is EndState.NOT_INVITED]
    assert all(entry.traffic.sent == 0 and entry.last_step is None for entry in away)
    return {entry.device for entry in played.results} - {entry.device for entry in away}


async def test_devices_join_by_their_coins_and_others_stay_away(connect: ClientFactory) -> None:
    """Expect 10 to 37 of 40 to join, and not the same twice, except with probability 1e-5."""
    own = {"probability": 0.5, "join_probability": 0.6, "stride": 2}
    # It is never full, so it waits for its deadline: a larger cohort hides better.
    study = await create(connect, COIN_TERMS, enrolling=3, mode="both", **own)
    played = await play_invited(connect, study, ITEMS * 2)
    assert [each.view.state for each in played] == ["decoded"] * 2
    rounds = [joined(each) for each in played]
    assert all(10 <= len(here) <= 37 for here in rounds)
    assert len(rounds[0] ^ rounds[1]) >= 6  # each round flips new coins
    # Coins may keep all 4 devices away that would have dropped out, in 1 of 20 runs.
    dropped = [sum(e.state is EndState.DROPPED_OUT for e in each.results) for each in played]
    assert [sum(each.dropouts_by_phase().values()) for each in played] == dropped
    sitting = [sum(entry.cohort == 0 for entry in each.results) for each in played]
    assert [each.view.cohorts[0].enrolled for each in played] == sitting
    heavy_hitters = await heavy_hitters_of(connect, study)
    first = {each["item"]: each for each in heavy_hitters}["cab"]
    assert abs(first["estimate"] - 26) < 4 + 5 * first["standard_error"]
    epsilons = await epsilons_of(connect, study)
    assert epsilons["server"] == epsilons["devices"] == epsilons["analyst"]
    assert epsilons["server"] is not None
    assert epsilons["public"] is not None
    assert epsilons["public"] < epsilons["server"] <= 8


async def numbers_shown(connect: ClientFactory, study: StudyView, path: str = "") -> Counter[int]:
    """Return the integers that are whole texts of a page of `study`, with their counts.

    The end of the axis of estimates, which follows from the highest one, is left out.
    """
    page = await get(connect, f"http://test/studies/{study.id}{path}")
    assert page.status_code == 200
    text = re.sub(r'<span class="scale">.*', "", page.text)
    return Counter(int(number) for number in re.findall(r">(\d+)<", text))


async def test_nobody_learns_how_many_joined_by_coins(connect: ClientFactory) -> None:
    own = {"theta": 4, "probability": 0.5, "join_probability": 0.6, "delta": 0.5, "stride": 3}
    full = COIN_TERMS.model_copy(
        update={"cohort_size": 18, "minimum": 16}
    )  # some are late: no time is lost
    study = await create(connect, full, mode="sample-threshold", **own)
    before = await numbers_shown(connect, study)
    played = await play_invited(connect, study, ["cab"] * 34 + ["ab"] * 24 + ["bc", "a", "bca"] * 2)
    assert [each.view.state for each in played] == ["decoded"]
    for each in played:
        assert 20 <= len(joined(each)) <= 57
        assert each.view.participants is None
        (cohort,) = each.view.cohorts
        assert (cohort.enrolled, cohort.holders, cohort.threshold) == (0, 0, 0)
        assert cohort.survivors == ()
        assert {record.received for record in cohort.history} == {0}
    events = (await get(connect, f"/studies/{study.id}/events")).text
    assert "round-closed" in events
    assert not any(word in events for word in ("received", "expected", "participants"))
    added = await numbers_shown(connect, study) + await numbers_shown(connect, study, "/rounds/1")
    answer = await heavy_hitters_of(connect, study)
    counts = Counter(round(each[name]) for each in answer for name in ("estimate", "high"))
    assert max((added - before - counts).keys()) < 20  # at least 20 of 64 joined
    refusal = await get(connect, f"/studies/{study.id}/frequencies?prefix=c")
    assert refusal.status_code == 422
    assert "nobody may learn" in refusal.text
    epsilons = await epsilons_of(connect, study)
    assert epsilons["server"] is None
    assert epsilons["public"] is not None
