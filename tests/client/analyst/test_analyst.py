"""Requests of the blocking analyst to a service that answers by a script.

Its class is generated from the asynchronous one, and its sender waits for the asynchronous one.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from threading import Event
from typing import Any

import httpx
import pytest
import stamina
from pydantic import ValidationError

from blindtally import QualityGoal, Tracked
from blindtally.planning import recommended_size
from client.analyst import study_creation
from client.analyst.analyst import Analyst
from client.device.device_state import DeviceState
from client.device.take_part import take_part
from client.errors import AnalystClosedError, BadRequestError, NotFoundError
from client.extras_installation import install_command
from protocol.api.events import EndCause
from protocol.api.messages import PROBLEM_TYPE_PREFIX, ProblemType
from protocol.committee_terms import VolunteerTerms
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.question_and_plan import Terms
from secagg.keys import Identity
from tests.support.views import NOON, round_document, study_document
from tools import unasync

QUESTION = AdaptiveIbltQuestion(
    threshold=5, contribution=4, domain=Utf8(max_bytes=6), message_bytes=4394
)
REGISTRAR = Identity.of(bytes(range(32))).public.hex()
MEMBERS = [Identity.of(bytes([n]) * 32).public.hex() for n in range(1, 8)]
VOLUNTEERS = VolunteerTerms(volunteers=60, size=30)
TERMS = Terms(cohort_size=10, minimum=8, corrupt=0.1, dropout=0.3)


@pytest.fixture(autouse=True)
def _without_waiting() -> Iterator[None]:
    with stamina.set_testing(True, attempts=5):
        yield


def study(state: str = "running", number: int = 1) -> dict[str, object]:
    return study_document(QUESTION, TERMS, state=state, round=number)


def a_round(number: int, state: str) -> dict[str, object]:
    plan = {
        "mechanism": "adaptive-iblt",
        "study": "s1",
        "round": number,
        "terms": TERMS.model_dump(),
        "seed": "00" * 32,
        "question": QUESTION.model_dump(),
        "rounds": 3,
        "t": 2.0,
        "cells": 60,
    }
    return round_document(plan, number=number, state=state)


def asking(answer: Callable[[httpx.Request], httpx.Response]) -> Analyst:
    """Return an analyst at a service that answers by `answer`."""
    return Analyst("http://service", transport=httpx.MockTransport(answer))


def page(name: str, rows: list[dict[str, object]], after: object) -> httpx.Response:
    rounds = {"summed_rounds": 3, "decoded_rounds": 2} if name == "heavy_hitters" else {}
    return httpx.Response(200, json={name: rows, "next": after} | rounds)


def refusal(problem: ProblemType, status: int) -> httpx.Response:
    document = {"type": PROBLEM_TYPE_PREFIX + problem, "title": "", "status": status, "detail": ""}
    return httpx.Response(status, json=document)


def test_a_study_is_created_and_started_in_one_call() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        assert request.url.path == "/v1/studies"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["authorization"] == "Bearer btk_mine"
        assert (asked["name"], asked["rounds"], asked["start"]) == ("words", 2, True)
        assert asked["terms"] == TERMS.model_dump()
        return httpx.Response(201, json=study())

    transport = httpx.MockTransport(answer)
    analyst = Analyst("http://service/", "btk_mine", transport=transport)
    made = analyst.create("words", QUESTION, TERMS, rounds=2)
    assert (made.id, made.state, made.view.rounds) == ("s1", "running", 2)
    assert made.size_reason == ""
    assert "s1 'words', running" in repr(made)
    analyst.close()


def test_a_closed_analyst_refuses_calls_with_the_remedy() -> None:
    with asking(lambda _request: httpx.Response(200, json=study())) as analyst:
        made = analyst.study("s1")
        assert repr(analyst) == "<Analyst at http://service>"
    assert repr(analyst) == "<Analyst at http://service, closed>"
    for call in (
        made.refresh,
        lambda: analyst.study("s1"),
        lambda: list(analyst.studies()),
        lambda: list(made.events()),
    ):
        with pytest.raises(AnalystClosedError, match="move the call into its `with` block"):
            call()


def test_a_repr_shows_no_secret() -> None:
    analyst = Analyst("http://user:a-password@service", "btk_a-key")
    assert repr(analyst) == "<Analyst at http://service>"
    analyst.close()


def test_the_words_auto_are_chosen_when_the_study_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        recommended_size,
        "choose_size",
        lambda asked, terms, rounds: (asked.contribution + terms.max_devices + rounds, "reason"),
    )

    def answer(request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        assert sent["question"]["message_bytes"] == 4 + 10 + 2
        return httpx.Response(201, json=study() | {"question": sent["question"]})

    question = Tracked(threshold=5, contribution=4, domain=Utf8(max_bytes=6), message_bytes="auto")
    with asking(answer) as analyst:
        made = analyst.create("words", question, TERMS, rounds=2)
    assert (made.view.question.message_bytes, made.size_reason) == (16, "reason")


def test_without_the_simulation_it_advises_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose_size(*_asked: object) -> None:
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(recommended_size, "choose_size", choose_size)
    question = Tracked(threshold=5, contribution=4, domain=Utf8(max_bytes=6), message_bytes="auto")
    with asking(lambda _request: httpx.Response(500)) as analyst:
        text = f"needs scipy, which an extra brings: {install_command('simulate')}"
        with pytest.raises(ModuleNotFoundError, match=re.escape(text)):
            analyst.create("words", question, TERMS)


def test_a_study_with_a_goal_states_the_reason_of_its_end() -> None:
    goal = {"precision": 0.95, "recall": 0.9}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            assert json.loads(request.content)["stop_at"] == goal
            return httpx.Response(201, json=study() | {"stop_at": goal})
        if request.url.path.endswith("/rounds"):
            return page("rounds", [a_round(1, "decoded")], None)
        ended = {"rounds": 7, "stop_at": goal, "end_cause": "goal"}
        return httpx.Response(200, json=study("finished", 1) | ended)

    with asking(answer) as analyst:
        stop_at = QualityGoal(**goal)
        made = analyst.create("words", QUESTION, TERMS, rounds=7, stop_at=stop_at)
        assert (made.view.stop_at, made.view.end_reason) == (stop_at, None)
        view = made.wait()
    assert (view.state, view.end_cause) == ("finished", EndCause.GOAL)
    assert "reached the goal in round 1 of at most 7." in view.end_reason


@pytest.mark.parametrize(
    ("asked", "terms"),
    [
        ({"devices": 160}, {"cohort_size": 160, "minimum": 80, "cohorts": 1}),
        ({"devices": 2001}, {"cohort_size": 667, "minimum": 333, "cohorts": 3}),
        ({"devices": 300, "cohorts": 2}, {"cohort_size": 150, "minimum": 75, "cohorts": 2}),
        ({"devices": 20, "registrar": REGISTRAR}, {"cohort_size": 20, "minimum": 10}),
        (
            {"devices": 3000, "committee": MEMBERS},
            {"cohort_size": 3000, "minimum": 1500, "committee": {"members": MEMBERS}},
        ),
        (
            {"devices": 300, "registrar": REGISTRAR, "committee": VOLUNTEERS},
            {"cohort_size": 300, "minimum": 150, "committee": VOLUNTEERS.model_dump()},
        ),
    ],
)
def test_a_number_of_devices_gives_the_terms(asked: dict[str, Any], terms: dict[str, Any]) -> None:
    kind = {"sum": "one-shot"} if "committee" in asked else {}
    terms |= {"registrar": asked.get("registrar")} | kind
    given = {"terms": None, "devices": None, "cohorts": None, "registrar": None} | asked
    assert study_creation.study_terms(**given) == Terms.model_validate(terms)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "pass `devices`"),
        ({"cohorts": 2}, "pass `devices`"),
        ({"terms": TERMS, "devices": 10}, "leave out"),
        ({"terms": TERMS, "cohorts": 2}, "leave out"),
        ({"terms": TERMS, "registrar": REGISTRAR}, "leave out"),
        ({"terms": TERMS, "committee": MEMBERS}, "leave out"),
        ({"devices": 3000, "committee": MEMBERS, "cohorts": 2}, "has one cohort"),
        ({"devices": 300, "committee": VOLUNTEERS}, "needs a registrar"),
        ({"devices": 0}, "devices"),
        ({"devices": 2}, "devices: must be from 3 to"),
        ({"devices": "200"}, "devices: must be a whole number from 1, not '200'"),
        ({"devices": 10, "cohorts": 0}, "cohorts"),
        ({"devices": 10, "registrar": "abc"}, "registrar: must be 64 hexadecimal digits"),
    ],
)
def test_no_or_two_numbers_of_devices_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        study_creation.study_terms(
            **({"terms": None, "devices": None, "cohorts": None, "registrar": None} | arguments)
        )


def test_a_field_of_a_wrong_type_is_refused_in_plain_words() -> None:
    with pytest.raises(ValueError, match=r"^question: must be an object") as wrong:
        study_creation.create_study(
            None, timeouts=None, name="x", question="tracked", terms=TERMS, rounds=1
        )
    assert not isinstance(wrong.value, ValidationError)


def test_the_answer_is_collected_over_all_pages() -> None:
    rows = [
        {"item": item, "estimate": 9.0, "standard_error": 1.5, "low": 6.3, "high": 12.4}
        | {"share": 0.25, "share_low": 0.2, "share_high": 0.3, "probability": 0.9}
        for item in ("a", "b", "c")
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/heavy-hitters"):
            return httpx.Response(200, json=study())
        if "after" not in request.url.params:
            return page("heavy_hitters", rows[:2], "b")
        assert request.url.params["after"] == "b"
        return page("heavy_hitters", rows[2:], None)

    with asking(answer) as analyst:
        table = analyst.study("s1").heavy_hitters()
    absent = {"cohort_p_value": None, "top_probability": None}
    assert [row.model_dump() for row in table] == [row | absent for row in rows]
    assert table.to_pandas().to_dict("records") == rows


def test_a_query_sends_all_its_arguments() -> None:
    rows = [{"at": 0.5, "value": 3.0, "low": 2.0, "high": 4.0}]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/masses"):
            params = request.url.params
            assert (params.get_list("low"), params.get_list("high")) == (["0", "2"], ["1", "3"])
            assert (params["estimator"], params["beta"]) == ("plain", "0.1")
            return httpx.Response(200, json={"estimator": "plain", "beta": 0.1, "results": rows})
        return httpx.Response(200, json=study())

    with asking(answer) as analyst:
        asked = analyst.study("s1").masses([(0, 1), (2, 3)], estimator="plain", beta=0.1)
        assert [row.model_dump() for row in asked] == rows


def test_changes_and_comparisons_send_ranges_and_the_false_discovery_rate() -> None:
    document = {"changes": [], "before": [1, 2], "after": [4, 5], "tested": 3, "changed": 0}
    document |= {"false_discovery_rate": 0.1, "interval_level": 0.9}
    requested: list[dict[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/studies/s1")
        if not path:
            return httpx.Response(200, json=study())
        assert path in ("/changes", "/compare/s2")
        requested.append(dict(request.url.params))
        return httpx.Response(200, json=document)

    with asking(answer) as analyst:
        asked = analyst.study("s1")
        asked.changes()
        changed = asked.changes((1, 2), (4, 5), false_discovery_rate=0.1)
        asked.compare("s2", false_discovery_rate=0.1)
    assert changed.after == (4, 5)
    assert requested == [
        {"false_discovery_rate": "0.05", "limit": "1000"},
        {"before": "1-2", "after": "4-5", "false_discovery_rate": "0.1", "limit": "1000"},
        {"false_discovery_rate": "0.1", "limit": "1000"},
    ]


def test_watching_yields_each_changed_round_until_the_study_is_over() -> None:
    looks = iter(
        [
            ("running", []),  # when the study is looked up
            ("running", [a_round(1, "running")]),
            ("running", [a_round(1, "running")]),  # nothing new
            ("running", [a_round(1, "decoded"), a_round(2, "running")]),
            ("finished", [a_round(2, "failed")]),
        ]
    )
    rounds: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/rounds"):
            return page("rounds", rounds, None)
        state, rounds[:] = next(looks)
        return httpx.Response(200, json=study(state))

    with asking(answer) as analyst:
        watched = analyst.study("s1")
        seen = [(view.number, view.state) for view in watched.watch(every=0)]
        assert watched.state == "finished"
    assert seen == [(1, "running"), (1, "decoded"), (2, "running"), (2, "failed")]


def test_waiting_reports_every_change_and_rounds_become_a_data_frame() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/rounds"):
            return page("rounds", [a_round(1, "decoded"), a_round(2, "failed")], None)
        return httpx.Response(200, json=study("finished", 2))

    seen: list[int] = []
    with asking(answer) as analyst:
        waited = analyst.study("s1").wait(lambda view: seen.append(view.number))
        assert waited.state == "finished"
        frame = analyst.study("s1").rounds().to_pandas()
    assert seen == [1, 2]
    assert list(frame["number"]) == [1, 2]
    assert list(frame["state"]) == ["decoded", "failed"]


def test_all_studies_are_handles_newest_first() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if "after" not in request.url.params:
            return page("studies", [study() | {"id": "s2"}], "s2")
        return page("studies", [study()], None)

    with asking(answer) as analyst:
        assert [each.id for each in analyst.studies()] == ["s2", "s1"]


def test_a_service_that_is_away_for_a_moment_is_asked_again() -> None:
    answers = iter(
        [
            httpx.Response(200, json=study()),
            httpx.Response(503),
            httpx.Response(200, json=study("stopped")),
        ]
    )
    with asking(lambda _: next(answers)) as analyst:
        stopped = analyst.study("s1")
        assert stopped.stop().state == "stopped"
        assert stopped.state == "stopped"


@pytest.mark.parametrize("part", ["", ".", "..", "\ud800"])
def test_an_id_that_makes_another_path_is_refused_before_any_request(part: str) -> None:
    with asking(lambda _request: httpx.Response(307)) as analyst:
        for call in (analyst.study, analyst.population_privacy, analyst.create_population):
            with pytest.raises(ValueError, match="an id or a name"):
                call(part)
    with pytest.raises(ValueError, match="an id or a name"):
        asyncio.run(
            take_part("http://service", [], study=part, device_state=DeviceState.in_memory())
        )


def test_the_sum_of_a_number_is_refused_in_words() -> None:
    with (
        asking(lambda _request: httpx.Response(200, json=study())) as analyst,
        pytest.raises(TypeError, match=r"takes a round, such as study.round\(1\), not 1"),
    ):
        analyst.study("s1").cohort_sum(1)


def test_a_study_is_deleted_also_if_the_answer_was_lost() -> None:
    gone = refusal(ProblemType.NOT_FOUND, 404)
    deletions = iter([httpx.Response(204), httpx.ReadError("reset by peer"), gone, gone])

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/studies/s1"
        if request.method == "GET":
            return httpx.Response(200, json=study())
        assert request.method == "DELETE"
        result = next(deletions)
        if isinstance(result, Exception):
            raise result
        return result

    with asking(answer) as analyst:
        for _ in range(2):
            analyst.study("s1").delete()
        with pytest.raises(NotFoundError):
            analyst.study("s1").delete()


@pytest.mark.parametrize(
    ("status", "problem", "error", "advice"),
    [
        (404, ProblemType.NOT_FOUND, NotFoundError, "lists all studies"),
        (422, ProblemType.MALFORMED, BadRequestError, "fix the request"),
    ],
)
def test_an_error_advises_what_to_do_next(
    status: int, problem: ProblemType, error: type[Exception], advice: str
) -> None:
    with asking(lambda _: refusal(problem, status)) as analyst, pytest.raises(error, match=advice):
        analyst.study("s1")


@pytest.mark.parametrize("hitch", [httpx.ReadError("cut"), None])
def test_a_study_whose_answer_was_lost_is_asked_for_again_by_the_same_key(
    hitch: Exception | None,
) -> None:
    """An answer that the service or a proxy lost does not show whether the study exists."""
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) % 2 == 0:
            return httpx.Response(201, json=study())
        if hitch is not None:
            raise hitch
        return httpx.Response(502)

    with asking(answer) as analyst:
        for key in (None, None, "mine"):
            made = analyst.create("words", QUESTION, TERMS, rounds=2, key=key)
            assert made.id == "s1"
    assert keys[0::2] == keys[1::2]
    assert len(set(keys)) == 3
    assert keys[-1] == "mine"


def event(number: int, what: str, **facts: object) -> str:
    data = {"id": number, "study": "s1", "kind": what, "at": NOON} | facts
    return f"event: {what}\ndata: {json.dumps(data)}\nid: {number}\n\n"


class Broken(httpx.AsyncByteStream):
    """A stream that sends a text and breaks off."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.closed = Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.text.encode()
        raise httpx.ReadError("reset by peer")

    async def aclose(self) -> None:
        self.closed.set()


def test_a_loop_that_wants_no_more_events_closes_their_stream() -> None:
    stream = Broken(event(1, "study-created"))

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json=study())
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)

    with Analyst("http://service", transport=httpx.MockTransport(answer)) as analyst:
        for each in analyst.study("s1").events():
            assert each.id == 1
            break
        assert stream.closed.wait(5)


def test_events_continue_a_broken_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.analyst.async_sender.RECONNECT_SECONDS", 0)
    asked: list[str] = []
    streaming = {"content-type": "text/event-stream"}
    opened, started = event(1, "study-created"), event(2, "study-started")
    first = "retry: 2000\n\n" + opened + ": ping\n\n" + started
    half = event(3, "round-opened", round=1, sampling_threshold=2.5) + event(4, "study-ended")[:30]

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json=study())
        assert request.url.path == "/v1/studies/s1/events"
        asked.append(request.headers["last-event-id"])
        if len(asked) == 1:
            return httpx.Response(200, headers=streaming, stream=Broken(first))
        if len(asked) == 2:
            return httpx.Response(200, headers=streaming, text=half)  # a server that stops
        if len(asked) == 3:
            return httpx.Response(503, text="no server behind this proxy")
        text = event(4, "study-ended", state="finished")
        return httpx.Response(200, headers=streaming, text=text)

    with asking(answer) as analyst:
        events = list(analyst.study("s1").events())
    assert [each.id for each in events] == [1, 2, 3, 4]
    assert asked == ["0", "2", "3", "3"]
    assert (events[2].round, events[2].sampling_threshold) == (1, 2.5)
    assert events[3].state == "finished"


@pytest.mark.parametrize(
    ("problem", "status"), [(ProblemType.WRONG_STATE, 409), (ProblemType.NOT_FOUND, 404)]
)
def test_events_of_a_study_that_has_ended_are_none_and_of_one_that_is_gone_an_error(
    problem: ProblemType, status: int
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json=study())
        assert request.headers["last-event-id"] == "9"
        return refusal(problem, status)

    with asking(answer) as analyst:
        asked = analyst.study("s1")
        if problem is ProblemType.WRONG_STATE:
            assert list(asked.events(after=9)) == []
        else:
            with pytest.raises(NotFoundError):
                list(asked.events(after=9))


def test_the_blocking_classes_are_generated_from_the_asynchronous_ones() -> None:
    assert unasync.GENERATED.read_text() == unasync.blocking(), "run `make generate`"
