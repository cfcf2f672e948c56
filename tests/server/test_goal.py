"""A study ends in the round in which its list reaches its goal, and states the reason."""

from typing import Any

import pytest

from protocol.api.events import EndCause, Event, EventKind, end_sentence
from protocol.api.messages import StudyView
from protocol.estimation.estimates import ListQuality
from protocol.mechanism import Answer
from protocol.privacy.ledger import Statement
from server.db.database_errors import BusyError
from server.db.repositories.leases import close_round_job
from server.db.repositories.rounds.rounds import ClosedRound
from tests.server.cohort import refused
from tests.server.harness import Served, histogram_request, play, study_request

GOAL = {"precision": 0.9, "recall": 0.8}
# In each round 6 of 6 devices hold "ab" and 2 of them each other item: none reaches 7 in round 1.
REQUEST: dict[str, Any] = {
    "question": study_request()["question"] | {"threshold": 7},
    "rounds": 5,
    "stop_at": GOAL,
}
QUALITY = ListQuality(expected_precision=0.95, expected_recall=0.85, expected_missed=1)


async def show(served: Served, study: str) -> StudyView:
    response = await served.client.get(f"/v1/studies/{study}")
    return StudyView.model_validate_json(response.content)


async def last_event(served: Served, study: str) -> Event:
    return (await served.store.events.after(study, 0))[-1]


async def close(served: Served, study: str, state: str, quality: ListQuality | None) -> StudyView:
    """Close the study's round with a result of this state and quality; return the study."""
    store, number = served.store, (await show(served, study)).round
    plan = (await served.show_round(study, number)).plan
    following = plan.model_copy(update={"round": number + 1, "seed": f"{number:064x}"})
    answer = None if state == "failed" else Answer(state == "decoded", 1)
    outcome = ClosedRound(state, 6, answer, (), quality)  # type: ignore[arg-type]
    lease = await store.leases.claim(close_round_job(study, number), "test", 60)
    assert lease is not None
    await store.rounds.close(study, number, outcome, following, lease)
    return await show(served, study)


async def test_a_study_ends_in_the_round_that_reaches_its_goal(served: Served) -> None:
    """The list of the first round is empty. Waiting devices get the answer of any ended study."""
    study = await served.create(**REQUEST)
    assert (await show(served, study)).stop_at is not None
    await play(served, study)
    assert (await served.until_closed(study)).state == "decoded"
    running = await show(served, study)
    assert (running.state, running.round, running.end_cause) == ("running", 2, None)
    assert running.end_reason is None
    await play(served, study, after=1)
    assert (await served.until_closed(study, 2)).state == "decoded"
    ended = await show(served, study)
    assert (ended.state, ended.round, ended.end_cause) == ("finished", 2, EndCause.GOAL)
    assert ended.end_reason == (
        "The expected precision and recall of the list reached the goal in round 2 of at most 5. "
        "They are expectations: the true values can be lower, above all if the list is short."
    )
    event = await last_event(served, study)
    assert (event.kind, event.state) == (EventKind.STUDY_ENDED, "finished")
    assert (event.end_cause, event.round) == (EndCause.GOAL, 2)
    path = f"/v1/studies/{study}/rounds"
    refused(await served.client.get(f"{path}/open?after=2"), 409, "wrong-state")
    refused(await served.client.get(f"{path}/3"), 404, "not-found")


async def test_a_goal_is_checked_in_the_transaction_that_closes_the_round(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies before the commit leaves a running round, and the next one ends it."""
    study = await served.create(**REQUEST | {"question": study_request()["question"]})
    states = []

    def die(_session: Any, row: Any, *_args: Any) -> None:
        states.append(row.state)
        raise BusyError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("server.db.repositories.rounds.rounds.end_study", die)
        await play(served, study)
        while not states:
            await served.tick()
        view = await show(served, study)
        assert (view.state, view.round, view.end_cause) == ("running", 1, None)
        assert (await served.show_round(study)).state == "running"
        assert await served.heavy_hitters(study) == ()
    assert (await served.until_closed(study)).state == "decoded"
    view = await show(served, study)
    assert (view.state, view.round, view.end_cause) == ("finished", 1, EndCause.GOAL)
    ends = [each for each in await served.store.events.after(study, 0) if each.end_cause]
    assert len(ends) == 1


async def test_a_result_that_cannot_be_stored_ends_no_study(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round fails, and the next one opens."""
    study = await served.create(**REQUEST | {"question": study_request()["question"]})
    with monkeypatch.context() as patch:
        patch.setattr("server.db.repositories.rounds.rounds.save_study_state", lambda *_args: 1 / 0)
        await play(served, study)
        assert (await served.until_closed(study)).state == "failed"
    view = await show(served, study)
    assert (view.state, view.round) == ("running", 2)


@pytest.mark.parametrize("state", ["undecoded", "failed"])
async def test_a_round_that_was_not_decoded_ends_no_study(served: Served, state: str) -> None:
    study = await served.create(**REQUEST)
    view = await close(served, study, state, QUALITY)
    assert (view.state, view.round) == ("running", 2)
    view = await close(served, study, "decoded", QUALITY)
    assert (view.state, view.end_cause) == ("finished", EndCause.GOAL)


@pytest.mark.parametrize(
    "quality",
    [
        None,
        QUALITY.model_copy(update={"expected_precision": 0.89}),
        QUALITY.model_copy(update={"expected_recall": 0.79}),
    ],
)
async def test_a_study_below_its_goal_runs_all_rounds(
    served: Served, quality: ListQuality | None
) -> None:
    study = await served.create(**REQUEST | {"rounds": 2})
    assert (await close(served, study, "decoded", quality)).state == "running"
    view = await close(served, study, "decoded", quality)
    assert (view.state, view.end_cause) == ("finished", EndCause.LAST_ROUND)
    assert view.end_reason == "Both rounds are over, and the list has not reached the goal."


async def test_a_goal_that_is_reached_in_the_last_round_is_the_cause(served: Served) -> None:
    study = await served.create(**REQUEST | {"rounds": 1})
    assert (await close(served, study, "decoded", QUALITY)).end_cause is EndCause.GOAL


async def test_each_study_that_has_ended_has_a_cause(served: Served) -> None:
    study = await served.create(rounds=3)
    for _ in range(2):
        assert (await close(served, study, "decoded", QUALITY)).state == "running"
    view = await close(served, study, "decoded", QUALITY)
    assert (view.end_cause, view.end_reason) == (EndCause.LAST_ROUND, "All 3 rounds are over.")
    sentence = end_sentence(EndCause.LAST_ROUND, 1, 1, has_goal=False)
    assert sentence == "The one round is over."
    stopped = await served.create(rounds=3)
    await served.client.post(f"/v1/studies/{stopped}/stop")
    view = await show(served, stopped)
    assert view.end_cause is EndCause.STOPPED
    assert view.end_reason == "The study was stopped in round 1 of at most 3."
    assert (await last_event(served, stopped)).end_cause is EndCause.STOPPED


@pytest.mark.parametrize("states", [("failed",), ("failed", "undecoded")])
async def test_a_study_whose_rounds_have_no_answer_has_failed(
    each_served: Served, states: tuple[str, ...]
) -> None:
    study = await each_served.create(rounds=len(states))
    for state in states:
        view = await close(each_served, study, state, None)
    assert (view.state, view.end_cause, view.outcome) == (
        "finished", EndCause.NO_ANSWER, "failed",
    )  # fmt: skip
    assert view.end_reason is not None
    assert view.end_reason.endswith("over, without an answer.")
    listed = (await each_served.client.get("/v1/studies")).json()["studies"]
    assert [each["end_cause"] for each in listed] == ["no-answer"]
    for page in ("/", f"/studies/{study}"):
        assert 'state failed">failed' in (await each_served.client.get(page)).text


async def test_one_decoded_round_is_an_answer(served: Served) -> None:
    study = await served.create(rounds=3)
    for state in ("failed", "decoded", "failed"):
        view = await close(served, study, state, None)
    assert (view.outcome, view.end_cause) == ("finished", EndCause.LAST_ROUND)


async def test_a_mechanism_that_does_not_estimate_its_errors_takes_no_goal(served: Served) -> None:
    request = study_request(**histogram_request(), stop_at=GOAL)
    response = await served.client.post("/v1/studies", json=request)
    refused(response, 422, "malformed")
    (fault,) = response.json()["errors"]
    assert fault["location"] == "body.stop_at"
    assert "hierarchical-histogram does not estimate the precision and recall" in fault["detail"]
    assert "use one of tracked, adaptive-iblt, subsampled-iblt" in fault["detail"]


@pytest.mark.parametrize("goal", [{"precision": 0.9}, {"precision": 1.2, "recall": 0.5}, 0.9])
async def test_a_malformed_goal_is_refused(served: Served, goal: Any) -> None:
    response = await served.client.post("/v1/studies", json=study_request(stop_at=goal))
    refused(response, 422, "malformed")
    assert response.json()["errors"][0]["location"].startswith("body.stop_at")


async def test_an_early_end_charges_its_population_as_any_end_does(served: Served) -> None:
    """Exact sums have no budget to give back: no other study starts within the period."""
    await served.client.put("/v1/populations/phones", json={"budget": None})
    question = study_request()["question"]
    study = await served.create(**REQUEST | {"question": question, "population": "phones"})
    await play(served, study)
    await served.until_closed(study)
    assert (await show(served, study)).end_cause is EndCause.GOAL
    answer = await served.client.get("/v1/populations/phones/privacy")
    statement = Statement.model_validate_json(answer.content)
    assert [party.epsilon for party in statement.parties if party.party == "server"] == [None]
    again = study_request(population="phones")
    refused(await served.client.post("/v1/studies", json=again), 409, "budget-spent")
