"""The analyst's calls against a service that answers from a script, page by page.

Each is made twice, by an analyst that waits in a thread and by one that waits in an event loop.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from inspect import isawaitable, signature
from typing import Any, TypeAlias

import httpx
import pytest
import stamina

from client import calls
from client.analyst import Analyst, Study
from client.async_analyst import AsyncAnalyst, AsyncStudy
from client.problems import NotFoundError, RejectedError
from client.tables import HeavyHitter, Table
from protocol.domain import Utf8
from protocol.mechanism import Terms
from protocol.mechanisms.adaptive_iblt import AdaptiveIbltQuestion
from protocol.messages import PROBLEM, ProblemType

QUESTION = AdaptiveIbltQuestion(threshold=5, contribution=4, domain=Utf8(max_bytes=6), words=1500)
TERMS = Terms(cohort_size=10, minimum=8, corrupt=0.1, dropout=0.3)
Kind: TypeAlias = type[Analyst] | type[AsyncAnalyst]
NOON = "2026-11-21T12:00:00Z"


@pytest.fixture(autouse=True)
def _without_waiting() -> Iterator[None]:
    with stamina.set_testing(True, attempts=5):
        yield


@pytest.fixture(params=[Analyst, AsyncAnalyst])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


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


@asynccontextmanager
async def asking(
    kind: Kind, answer: Callable[[httpx.Request], httpx.Response]
) -> AsyncIterator[Any]:
    """Yield an analyst of either kind, before a service that answers so."""
    made = kind("http://service", transport=httpx.MockTransport(answer))
    if isinstance(made, AsyncAnalyst):
        async with made:
            yield made
    else:
        with made:
            yield made


async def said_by(asked: Any) -> Any:
    """Return what a call answers, awaited if it is to be."""
    return await asked if isawaitable(asked) else asked


async def all_of(rows: Any) -> list[Any]:
    """Return all that a call yields, in a loop of its kind."""
    return [one async for one in rows] if isinstance(rows, AsyncIterator) else list(rows)


def page(rows: str, found: list[dict[str, object]], after: object) -> httpx.Response:
    return httpx.Response(200, json={rows: found, "next": after})


async def of(analyst: Any) -> Any:
    """Return the study that is there."""
    return await said_by(analyst.study("s1"))


async def test_a_study_is_created_and_started_in_one_call(kind: Kind) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        assert request.url.path == "/v1/studies"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["authorization"] == "Bearer btk_mine"
        assert (asked["name"], asked["rounds"], asked["start"]) == ("words", 2, True)
        assert asked["terms"] == TERMS.model_dump()
        return httpx.Response(201, json=study())

    transport = httpx.MockTransport(answer)
    analyst: Any = kind("http://service/", "btk_mine", transport=transport)
    made = await said_by(analyst.create("words", QUESTION, TERMS, rounds=2))
    assert (made.id, made.state, made.view.rounds) == ("s1", "running", 2)
    assert "s1 'words', running" in repr(made)
    await said_by(analyst.close())


@pytest.mark.parametrize(
    ("asked", "terms"),
    [
        ({"devices": 160}, {"cohort_size": 160, "minimum": 80, "cohorts": 1}),
        ({"devices": 2001}, {"cohort_size": 667, "minimum": 333, "cohorts": 3}),
        ({"devices": 300, "cohorts": 2}, {"cohort_size": 150, "minimum": 75, "cohorts": 2}),
    ],
)
def test_an_analyst_says_how_many_devices_there_are_and_the_terms_follow(
    asked: dict[str, int], terms: dict[str, int]
) -> None:
    content = json.loads(calls.create("words", QUESTION, **asked).content or "")
    assert content["rounds"] == 5
    assert content["terms"] == Terms.model_validate(terms).model_dump()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "how many devices"),
        ({"cohorts": 2}, "how many devices"),
        ({"terms": TERMS, "devices": 10}, "leave those out"),
        ({"terms": TERMS, "cohorts": 2}, "leave those out"),
        ({"devices": 0}, "cohort_size"),
        ({"devices": 10, "cohorts": 0}, "cohorts"),
    ],
)
def test_an_analyst_who_says_too_little_or_too_much_is_told(
    asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        calls.create("words", QUESTION, **asked)


async def test_the_answer_is_collected_over_all_pages(kind: Kind) -> None:
    rows = [
        {"item": item, "estimate": 9.0, "standard_error": 1.5, "low": 6.3, "high": 12.4}
        for item in ("a", "b", "c")
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/heavy-hitters"):
            return httpx.Response(200, json=study())
        if "after" not in request.url.params:
            return page("heavy_hitters", rows[:2], "b")
        assert request.url.params["after"] == "b"
        return page("heavy_hitters", rows[2:], None)

    async with asking(kind, answer) as analyst:
        found = await said_by((await of(analyst)).heavy_hitters())
    assert [asdict(row) for row in found] == rows
    assert found.to_pandas().to_dict("records") == rows


async def test_what_a_study_tells_is_asked_with_all_that_was_said(kind: Kind) -> None:
    rows = [{"at": 0.5, "value": 3.0, "low": 2.0, "high": 4.0}]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/masses"):
            params = request.url.params
            assert (params.get_list("low"), params.get_list("high")) == (["0", "2"], ["1", "3"])
            assert (params["estimator"], params["beta"]) == ("plain", "0.1")
            return httpx.Response(200, json={"estimator": "plain", "beta": 0.1, "told": rows})
        return httpx.Response(200, json=study())

    async with asking(kind, answer) as analyst:
        asked = (await of(analyst)).masses([(0, 1), (2, 3)], estimator="plain", beta=0.1)
        assert [asdict(row) for row in await said_by(asked)] == rows


async def test_watching_yields_each_round_whenever_it_has_changed_until_the_study_is_over(
    kind: Kind,
) -> None:
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

    async with asking(kind, answer) as analyst:
        watched = await of(analyst)
        seen = [(view.number, view.state) for view in await all_of(watched.watch(every=0))]
        assert watched.state == "finished"
    assert seen == [(1, "running"), (1, "decoded"), (2, "running"), (2, "failed")]


async def test_waiting_tells_of_every_change_and_returns_the_study(kind: Kind) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/rounds"):
            return page("rounds", [a_round(1, "decoded"), a_round(2, "failed")], None)
        return httpx.Response(200, json=study("finished", 2))

    seen: list[int] = []
    async with asking(kind, answer) as analyst:
        waited = (await of(analyst)).wait(lambda view: seen.append(view.number))
        assert (await said_by(waited)).state == "finished"
    assert seen == [1, 2]


async def test_rounds_become_a_data_frame(kind: Kind) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/rounds"):
            return page("rounds", [a_round(1, "decoded"), a_round(2, "failed")], None)
        return httpx.Response(200, json=study("finished", 2))

    async with asking(kind, answer) as analyst:
        frame = (await said_by((await of(analyst)).rounds())).to_pandas()
    assert list(frame["number"]) == [1, 2]
    assert list(frame["state"]) == ["decoded", "failed"]


async def test_all_studies_are_handles_newest_first(kind: Kind) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if "after" not in request.url.params:
            return page("studies", [study() | {"id": "s2"}], "s2")
        return page("studies", [study()], None)

    async with asking(kind, answer) as analyst:
        assert [one.id for one in await all_of(analyst.studies())] == ["s2", "s1"]


async def test_a_service_that_is_away_for_a_moment_is_asked_again(kind: Kind) -> None:
    answers = iter(
        [
            httpx.Response(200, json=study()),
            httpx.Response(503),
            httpx.Response(200, json=study("stopped")),
        ]
    )
    async with asking(kind, lambda _: next(answers)) as analyst:
        stopped = await of(analyst)
        assert (await said_by(stopped.stop())).state == "stopped"
        assert stopped.state == "stopped"


@pytest.mark.parametrize(
    ("status", "problem", "error", "advice"),
    [
        (404, ProblemType.NOT_FOUND, NotFoundError, "lists the studies"),
        (422, ProblemType.MALFORMED, RejectedError, "mend the request"),
    ],
)
async def test_an_error_says_what_to_do_next(
    kind: Kind, status: int, problem: ProblemType, error: type[Exception], advice: str
) -> None:
    told = {"type": PROBLEM + problem, "title": problem, "status": status, "detail": "no"}
    async with asking(kind, lambda _: httpx.Response(status, json=told)) as analyst:
        with pytest.raises(error, match=advice):
            await of(analyst)


@pytest.mark.parametrize("hitch", [httpx.ReadError("cut"), None])
async def test_a_study_whose_answer_was_lost_is_asked_for_again_by_the_same_key(
    kind: Kind, hitch: Exception | None
) -> None:
    """An answer that was lost, by the service or a proxy, does not tell what was done."""
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) % 2 == 0:
            return httpx.Response(201, json=study())
        if hitch is not None:
            raise hitch
        return httpx.Response(502)

    async with asking(kind, answer) as analyst:
        for key in (None, "mine"):
            made = await said_by(analyst.create("words", QUESTION, TERMS, rounds=2, key=key))
            assert made.id == "s1"
    assert keys[0::2] == keys[1::2]
    assert len(set(keys)) == 2
    assert keys[-1] == "mine"


def test_without_a_key_each_creation_is_another_study() -> None:
    keys = {calls.create("words", QUESTION, TERMS).key for _ in range(3)}
    assert len(keys) == 3


async def test_a_study_is_created_once_the_service_is_there(kind: Kind) -> None:
    busy = {"type": f"{PROBLEM}unavailable", "title": "", "status": 503, "detail": ""}
    script: list[httpx.Response | Exception] = [
        httpx.ConnectError("refused"),
        httpx.Response(503, json=busy),
        httpx.Response(201, json=study()),
    ]

    def answer(_request: httpx.Request) -> httpx.Response:
        told = script.pop(0)
        if isinstance(told, Exception):
            raise told
        return told

    async with asking(kind, answer) as analyst:
        assert (await said_by(analyst.create("words", QUESTION, TERMS, rounds=2))).id == "s1"


def event(number: int, what: str, **facts: object) -> str:
    told = {"id": number, "study": "s1", "kind": what, "at": NOON} | facts
    return f"event: {what}\ndata: {json.dumps(told)}\nid: {number}\n\n"


class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream that says something and breaks off."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __iter__(self) -> Iterator[bytes]:
        yield self.text.encode()
        raise httpx.ReadError("reset by peer")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


async def test_events_go_on_where_a_stream_broke_off(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.asking._PAUSE", 0)
    asked: list[str] = []
    streaming = {"content-type": "text/event-stream"}
    opened, started = event(1, "study-created"), event(2, "study-started")
    first = "retry: 2000\n\n" + opened + ": ping\n\n" + started
    half = event(3, "round-opened", round=1, threshold=2.5) + event(4, "study-ended")[:30]

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

    async with asking(kind, answer) as analyst:
        events = await all_of((await of(analyst)).events())
    assert [one.id for one in events] == [1, 2, 3, 4]
    assert asked == ["0", "2", "3", "3"]
    assert (events[2].round, events[2].threshold) == (1, 2.5)
    assert events[3].state == "finished"


@pytest.mark.parametrize(
    ("problem", "status"), [(ProblemType.WRONG_STATE, 409), (ProblemType.NOT_FOUND, 404)]
)
async def test_events_of_a_study_that_told_everything_are_none_and_of_one_that_is_gone_an_error(
    kind: Kind, problem: ProblemType, status: int
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json=study())
        assert request.headers["last-event-id"] == "9"
        told = {"type": PROBLEM + problem, "title": "", "status": status, "detail": "it is over"}
        return httpx.Response(status, json=told)

    async with asking(kind, answer) as analyst:
        asked = await of(analyst)
        if problem is ProblemType.WRONG_STATE:
            assert await all_of(asked.events(after=9)) == []
        else:
            with pytest.raises(NotFoundError):
                await all_of(asked.events(after=9))


@pytest.mark.parametrize(("one", "other"), [(Analyst, AsyncAnalyst), (Study, AsyncStudy)])
def test_both_kinds_are_asked_alike_and_say_how(one: type, other: type) -> None:
    names = {name for name in vars(one) if not name.startswith("_")}
    assert names == {name for name in vars(other) if not name.startswith("_")}
    for name in names - {"state"}:
        assert getattr(other, name).__doc__
        mine, theirs = signature(getattr(one, name)), signature(getattr(other, name))
        assert list(mine.parameters.values()) == list(theirs.parameters.values())


def test_a_method_says_what_it_answers_and_not_how_it_is_sent() -> None:
    shown = signature(Study.heavy_hitters)
    assert (list(shown.parameters), shown.return_annotation) == (["self"], Table[HeavyHitter])
    assert signature(Analyst.create).return_annotation is Study
    assert list(signature(Analyst.create).parameters)[:3] == ["self", "name", "question"]
