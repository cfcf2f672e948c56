"""The analyst's calls against a service that answers from a script, page by page."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from client.analyst import Analyst
from client.problems import NotFoundError, RejectedError
from protocol.domain import Utf8
from protocol.mechanism import Terms
from protocol.mechanisms.adaptive_iblt import AdaptiveIbltQuestion
from protocol.messages import PROBLEM, ProblemType

QUESTION = AdaptiveIbltQuestion(threshold=5, contribution=4, domain=Utf8(max_bytes=6), words=1500)
TERMS = Terms(cohort_size=10, minimum=8, corrupt=0.1, dropout=0.3)
NOON = "2026-11-21T12:00:00Z"


def study(state: str = "running", number: int = 1) -> dict[str, object]:
    return {
        "id": "s1",
        "name": "words",
        "state": state,
        "question": QUESTION.model_dump(),
        "terms": TERMS.model_dump(),
        "rounds": 2,
        "timeouts": {},
        "round": number,
        "created": NOON,
    }


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
    return {
        "number": number,
        "state": state,
        "plan": plan,
        "cohorts": [],
        "participants": None,
        "distinct": None,
        "opened": NOON,
        "closed": None,
    }


def analyst(answer: Callable[[httpx.Request], httpx.Response], patience: float = 0.2) -> Analyst:
    return Analyst("http://service", patience=patience, transport=httpx.MockTransport(answer))


def page(rows: str, found: list[dict[str, object]], after: object) -> httpx.Response:
    return httpx.Response(200, json={rows: found, "next": after})


def test_a_study_is_created_and_started_in_one_call() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        assert request.url.path == "/v1/studies"
        assert request.headers["content-type"] == "application/json"
        assert (asked["name"], asked["rounds"], asked["start"]) == ("words", 2, True)
        return httpx.Response(201, json=study())

    with analyst(answer) as asking:
        assert asking.create("words", QUESTION, TERMS, rounds=2).id == "s1"


def test_the_answer_is_collected_over_all_pages() -> None:
    rows = [
        {"item": item, "estimate": 9.0, "standard_error": 1.5, "low": 6.3, "high": 12.4}
        for item in ("a", "b", "c")
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        if "after" not in request.url.params:
            return page("heavy_hitters", rows[:2], "b")
        assert request.url.params["after"] == "b"
        return page("heavy_hitters", rows[2:], None)

    with analyst(answer) as asking:
        assert [row.item for row in asking.heavy_hitters("s1")] == ["a", "b", "c"]


def test_watching_yields_each_round_whenever_it_has_changed_until_the_study_is_over() -> None:
    looks = iter(
        [
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

    with analyst(answer) as asking:
        seen = [(view.number, view.state) for view in asking.watch("s1", every=0)]
    assert seen == [(1, "running"), (1, "decoded"), (2, "running"), (2, "failed")]


def test_a_service_that_is_away_for_a_moment_is_asked_again() -> None:
    answers = iter([httpx.Response(503), httpx.Response(200, json=study("stopped"))])
    with analyst(lambda _: next(answers)) as asking:
        assert asking.stop("s1").state == "stopped"


@pytest.mark.parametrize(
    ("status", "kind", "error", "advice"),
    [
        (404, ProblemType.NOT_FOUND, NotFoundError, "lists the studies"),
        (422, ProblemType.MALFORMED, RejectedError, "mend the request"),
    ],
)
def test_an_error_says_what_to_do_next(
    status: int, kind: ProblemType, error: type[Exception], advice: str
) -> None:
    said = {"type": PROBLEM + kind, "title": kind, "status": status, "detail": "no"}
    asking = analyst(lambda _: httpx.Response(status, json=said))
    with asking, pytest.raises(error, match=advice):
        asking.study("s1")


@pytest.mark.parametrize("hitch", [httpx.ReadError("cut"), httpx.Response(502)])
def test_a_study_whose_answer_was_lost_is_asked_for_again_by_the_same_key(
    hitch: httpx.Response | Exception,
) -> None:
    """An answer that was lost, by the service or a proxy, does not tell what was done."""
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) % 2 == 0:
            return httpx.Response(201, json=study())
        if isinstance(hitch, Exception):
            raise hitch
        return hitch

    with analyst(answer, patience=10) as asking:
        for key in (None, None, "mine"):
            assert asking.create("words", QUESTION, TERMS, rounds=2, key=key).id == "s1"
    assert keys[0::2] == keys[1::2]
    assert len(set(keys)) == 3
    assert keys[-1] == "mine"


def test_a_study_is_created_once_the_service_is_there() -> None:
    busy = {"type": f"{PROBLEM}unavailable", "title": "", "status": 503, "detail": ""}
    script: list[httpx.Response | Exception] = [
        httpx.ConnectError("refused"),
        httpx.Response(503, json=busy),
        httpx.Response(201, json=study()),
    ]

    def answer(_request: httpx.Request) -> httpx.Response:
        said = script.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    with analyst(answer, patience=10) as waiting:
        assert waiting.create("words", QUESTION, TERMS, rounds=2).id == "s1"


def said(number: int, kind: str, **facts: object) -> str:
    event = {"id": number, "study": "s1", "kind": kind, "at": NOON} | facts
    return f"event: {kind}\ndata: {json.dumps(event)}\nid: {number}\n\n"


class Broken(httpx.SyncByteStream):
    """A stream that says something and breaks off."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __iter__(self) -> Iterator[bytes]:
        yield self.text.encode()
        raise httpx.ReadError("reset by peer")


def test_events_go_on_where_a_stream_broke_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.analyst._PAUSE", 0)
    asked: list[str] = []
    streaming = {"content-type": "text/event-stream"}
    first = "retry: 2000\n\n" + said(1, "study-created") + ": ping\n\n" + said(2, "study-started")
    half = said(3, "round-opened", round=1, threshold=2.5) + said(4, "study-ended")[:30]

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/studies/s1/events"
        asked.append(request.headers["last-event-id"])
        if len(asked) == 1:
            return httpx.Response(200, headers=streaming, stream=Broken(first))
        if len(asked) == 2:
            return httpx.Response(200, headers=streaming, text=half)  # a server that stops
        if len(asked) == 3:
            return httpx.Response(503, text="no server behind this proxy")
        text = said(4, "study-ended", state="finished")
        return httpx.Response(200, headers=streaming, text=text)

    with analyst(answer, patience=5) as asking:
        events = list(asking.events("s1"))
    assert [event.id for event in events] == [1, 2, 3, 4]
    assert asked == ["0", "2", "3", "3"]
    assert (events[2].round, events[2].threshold) == (1, 2.5)
    assert events[3].state == "finished"


def test_events_of_a_study_that_told_everything_are_none() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["last-event-id"] == "9"
        problem = {"type": PROBLEM + ProblemType.WRONG_STATE, "title": "", "status": 409}
        return httpx.Response(409, json=problem | {"detail": "the study is finished"})

    with analyst(answer) as asking:
        assert list(asking.events("s1", after=9)) == []


def test_events_of_a_study_that_nobody_knows_are_an_error() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        problem = {"type": PROBLEM + ProblemType.NOT_FOUND, "title": "", "status": 404}
        return httpx.Response(404, json=problem | {"detail": "there is no such study"})

    with analyst(answer) as asking, pytest.raises(NotFoundError):
        list(asking.events("s1"))
