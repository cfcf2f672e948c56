"""A registrar that seats rounds at a service that asks for more than it should."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import current_thread, main_thread
from typing import Any

import httpx
import pytest
import stamina

from client.committee.registrar import DrawRecord, Registrar, SeatingRefusedError, seating_rounds
from client.errors import ForbiddenError, NotAuthorisedError
from client.http.transport import Transport
from protocol.api.messages import (
    PROBLEM_TYPE_PREFIX,
    PendingSeating,
    Problem,
    ProblemType,
    SeatingPage,
    SeatingView,
)
from secagg.keys import Identity
from secagg.seating import MAX_DRAWS
from tests.client.cohort import EVERY_ROUND_QUESTION, view_of
from tests.client.mock_transport import MockTransport

REGISTRAR, SERVER = Identity.of(bytes(range(32))), Identity.of(bytes(range(1, 33)))
JOINERS = [Identity.of(number.to_bytes(32, "big")).public for number in range(1, 21)]
TERMS = {"cohorts": 2, "minimum": 8, "cohort_size": 10, "registrar": REGISTRAR.public.hex()}
SCOPE = bytes(32)
DRAW_AND_DIE = """
import os, signal, sys
from pathlib import Path
from random import Random
from typing import Any
from client.committee.registrar import DrawRecord
seats = DrawRecord(Path(sys.argv[1])).draw(bytes(32), b"plan 3", [b"a", b"b", b"c"], 3, Random(3))
print(seats, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass
class Service:
    """A service with one round that waits for its seats; `received` has the body of each PUT."""

    view: SeatingView
    rows: Sequence[bytes]
    received: list[bytes] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)  # of the next requests
    seated: asyncio.Event = field(default_factory=asyncio.Event)
    number: int = 1  # of the round that waits

    def client(self) -> httpx.AsyncClient:
        transport = MockTransport(self.answer)
        return httpx.AsyncClient(transport=transport, base_url="http://service/v1")

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.failures:
            raise self.failures.pop()
        name = request.url.path.rsplit("/", 1)[-1]
        if request.method == "PUT":
            self.received.append(request.content)
            self.seated.set()
            return httpx.Response(204)
        if name == "joiners":
            after = int(request.url.params["after"])
            return httpx.Response(200, content=b"".join(self.rows[after : after + 7]))
        if name == "seatings":
            return waiting_rounds("study-1", number=self.number)
        return httpx.Response(200, content=self.view.model_dump_json())


def waiting_rounds(*studies: str, number: int = 1) -> httpx.Response:
    """Return the answer that round `number` of each of `studies` waits for its seats."""
    deadline = "2030-01-01T00:00:00Z"
    rounds = tuple(
        PendingSeating(study=study, round=number, joiners=20, deadline=deadline)
        for study in studies
    )
    return httpx.Response(200, content=SeatingPage(rounds=rounds).model_dump_json())


def service(number: int = 1, **terms: object) -> Service:
    plan = view_of(number, **(TERMS | terms)).plan
    assert plan.registry is not None
    signed = [REGISTRAR.sign(plan.registry.enrolment_statement(joiner)) for joiner in JOINERS]
    rows = [joiner + signature for joiner, signature in zip(JOINERS, signed, strict=True)]
    return Service(SeatingView(plan=plan, joiners=len(rows)), rows)


async def asked(at: Service, registrar: Registrar | None = None) -> list[str]:
    """Let the registrar look once; return its refusals, "" for a seated round."""
    refusals: list[str] = []
    registrar = registrar or Registrar(REGISTRAR, DrawRecord(), Random(1))
    async with at.client() as http:
        transport = Transport(http, patience=1)
        await registrar.act(transport, None, lambda _round, text: refusals.append(text))
    return refusals


def cohorts_of(at: Service) -> list[list[bytes]]:
    """Return the identities of both cohorts in the last seats, whose signatures are checked."""
    body = at.received[-1]
    numbers = [int.from_bytes(body[i : i + 4], "big") for i in range(128, len(body), 4)]
    identities = [at.rows[number][:32] for number in numbers]
    parts = [identities[:10], identities[10:]]
    seated_round = at.view.plan.seated_round(20)
    for cohort, part in enumerate(parts):
        signed = seated_round.sign(REGISTRAR, cohort, b"".join(part))
        assert signed.signature == body[64 * cohort : 64 * cohort + 64]
    return parts


async def test_every_joiner_has_a_seat_by_the_randomness_of_the_registrar() -> None:
    first, second = service(), service()
    for at, seed in ((first, 1), (second, 2)):
        assert await asked(at, Registrar(REGISTRAR, DrawRecord(), Random(seed))) == [""]
        parts = cohorts_of(at)
        assert sorted(parts[0] + parts[1]) == sorted(JOINERS)
    assert cohorts_of(first) != cohorts_of(second)


async def test_the_same_question_has_the_same_answer_in_any_order_of_joiners() -> None:
    registrar, at = Registrar(REGISTRAR, DrawRecord(), Random(1)), service()
    assert await asked(at, registrar) == [""]
    before = cohorts_of(at)
    at.rows = at.rows[::-1]
    assert await asked(at, registrar) == [""]
    assert cohorts_of(at) == before


async def test_a_registrar_goes_on_after_its_service_was_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, seated = service(), asyncio.Event()
    delays, sleep = list[float](), asyncio.sleep

    async def noted(seconds: float) -> None:
        if current_thread() is main_thread():  # servers of other tests have threads
            delays.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", noted)
    at.failures = [httpx.ConnectError("refused")]
    registrar = Registrar(REGISTRAR, DrawRecord())
    with stamina.set_testing(True, attempts=1):
        async with at.client() as http, asyncio.timeout(20):
            serving = asyncio.create_task(
                registrar.serve(Transport(http), None, lambda *_: seated.set(), poll_seconds=1e-3)
            )
            waiting = asyncio.create_task(seated.wait())
            await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
            assert seated.is_set(), serving.exception()
            serving.cancel()
    assert len(set(at.received)) == 1
    assert delays[0] == 1e-3  # it does not ask without a pause


async def test_a_draw_that_a_full_disk_refuses_is_drawn_later() -> None:
    class FullOnce(DrawRecord):
        is_full = True

        def draw(self, *args: Any) -> list[int]:
            if self.is_full:
                self.is_full = False
                raise sqlite3.OperationalError("database or disk is full")
            return super().draw(*args)

    registrar, at = Registrar(REGISTRAR, FullOnce(), Random(1)), service()
    assert await asked(at, registrar) == ["database or disk is full (it is tried again)"]
    assert await asked(at, registrar) == [""]


async def test_a_round_with_malformed_answers_keeps_no_other_round_waiting() -> None:
    at, answers = service(), iter([b"{}", b"{}", b'{"joiners": 1}'])

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/seatings"):
            return waiting_rounds("broken", "study-1")
        if "/broken/" in request.url.path:
            return httpx.Response(200, content=next(answers))
        return at.answer(request)

    reported: list[tuple[str, str]] = []
    registrar = Registrar(REGISTRAR, DrawRecord(), Random(1))
    client = httpx.AsyncClient(transport=MockTransport(answer), base_url="http://service/v1")
    async with client as http:
        for _ in range(3):
            await registrar.act(
                Transport(http), None, lambda each, text: reported.append((each.study, text[:34]))
            )
    malformed, seated = ("broken", "the server sent a malformed answer"), ("study-1", "")
    assert reported == [malformed, seated, seated, malformed, seated]  # once for each reason
    assert len(at.received) == 3


async def test_a_registrar_of_one_study_passes_over_a_round_of_another() -> None:
    at, reported = service(), list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/seatings"):
            return waiting_rounds("another", "study-1")
        return at.answer(request)

    registrar = Registrar(REGISTRAR, DrawRecord(), Random(1), study="study-1")
    client = httpx.AsyncClient(transport=MockTransport(answer), base_url="http://service/v1")
    async with client as http:
        await registrar.act(Transport(http), None, lambda each, _text: reported.append(each.study))
    assert (reported, len(at.received)) == (["study-1"], 1)


async def test_a_program_that_is_the_registrar_seats_in_the_background_until_it_ends() -> None:
    at, before = service(), asyncio.all_tasks()
    async with asyncio.timeout(20):
        async with seating_rounds(at.client, Registrar(REGISTRAR, DrawRecord())):
            assert len(at.received) == 1  # what waited
            seated = at.seated = asyncio.Event()
            await seated.wait()
        assert asyncio.all_tasks() == before


async def test_a_program_whose_key_may_not_seat_does_not_begin() -> None:
    title = ProblemType.FORBIDDEN
    problem = Problem(type=PROBLEM_TYPE_PREFIX + title, title="", status=403, detail="the key")

    def client() -> httpx.AsyncClient:
        transport = MockTransport(lambda _: httpx.Response(403, content=problem.model_dump_json()))
        return httpx.AsyncClient(transport=transport, base_url="http://service/v1")

    with pytest.raises(ForbiddenError):
        async with seating_rounds(client, Registrar(REGISTRAR, DrawRecord())):
            pytest.fail("the program must not begin")


@pytest.mark.parametrize(
    ("kind", "status"), [(ProblemType.NOT_AUTHORISED, 401), (ProblemType.FORBIDDEN, 403)]
)
async def test_a_key_that_may_not_seat_ends_the_registrar(kind: ProblemType, status: int) -> None:
    problem = Problem(type=PROBLEM_TYPE_PREFIX + kind, title="", status=status, detail="the key")

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/seating"):
            return httpx.Response(status, content=problem.model_dump_json())
        return service().answer(request)

    client = httpx.AsyncClient(transport=MockTransport(answer), base_url="http://service/v1")
    async with client as http, asyncio.timeout(20):
        with pytest.raises((NotAuthorisedError, ForbiddenError)):
            await Registrar(REGISTRAR, DrawRecord()).serve(Transport(http))


async def test_a_server_that_drops_a_joiner_gets_no_other_draw_for_the_plan() -> None:
    registrar, at = Registrar(REGISTRAR, DrawRecord(), Random(1)), service()
    assert await asked(at, registrar) == [""]
    at.rows, at.view = at.rows[1:], at.view.model_copy(update={"joiners": 19})
    assert await asked(at, registrar) == ["other joiners were seated for the same plan before"]
    assert len(at.received) == 1
    assert await asked(at, registrar) == []  # a refusal is reported once


def changed_plan(**changes: object) -> Callable[[Service], None]:
    def change(at: Service) -> None:
        at.view = at.view.model_copy(update={"plan": view_of(**changes).plan})  # type: ignore[arg-type]

    return change


def changed_rows(change: Callable[[list[bytes]], object]) -> Callable[[Service], None]:
    def apply(at: Service) -> None:
        rows = list(at.rows)
        change(rows)
        at.rows = rows

    return apply


def few(at: Service) -> None:
    at.rows, at.view = at.rows[:15], at.view.model_copy(update={"joiners": 15})


def beyond_the_last(at: Service) -> None:
    plan = at.view.plan.model_copy(update={"round": 2, "rounds": 1})
    at.number, at.view = 2, at.view.model_copy(update={"plan": plan})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (beyond_the_last, "no honest study has this plan: it asks in round 2 of 1"),
        (lambda at: setattr(at, "rows", [*at.rows, *at.rows[:1]]), "20 joined, and 21 are shown"),
        (few, "15 joined, and a round has 16 to 20"),
        (changed_plan(number=2, **TERMS), "the plan of another round"),
        (changed_plan(study="other", **TERMS), "the plan of another round"),
        (changed_plan(**TERMS | {"cohorts": 1}), "does not ask this registrar"),
        (changed_plan(**TERMS | {"registrar": SERVER.public.hex()}), "names another registrar"),
        (changed_rows(lambda rows: rows.__setitem__(0, rows[1])), "two seats"),
        (changed_rows(lambda rows: rows.__setitem__(0, SERVER.public + rows[0][32:])), "enrolled"),
        (changed_rows(lambda rows: rows.__setitem__(0, rows[0][1:])), "96 bytes each"),
        (changed_rows(lambda rows: rows.__delitem__(slice(7, None))), "96 bytes each, got 0"),
    ],
)
async def test_a_registrar_refuses_rounds_that_would_not_protect_their_devices(
    change: Callable[[Service], None], reason: str
) -> None:
    at = service()
    change(at)
    (refusal,) = await asked(at)
    assert reason in refusal
    assert at.received == []


def test_a_fourth_draw_of_a_device_is_refused_under_any_plan() -> None:
    record, rng = DrawRecord(), Random(1)
    for number in range(MAX_DRAWS):
        record.draw(SCOPE, b"plan %d" % number, JOINERS, MAX_DRAWS, rng)
    with pytest.raises(SeatingRefusedError, match="20 of 20 devices were seated 3 times"):
        record.draw(SCOPE, b"plan 3", JOINERS, MAX_DRAWS, rng)
    others = [bytes(32), *JOINERS[1:]]
    for _ in range(MAX_DRAWS):
        with pytest.raises(SeatingRefusedError, match="19 of 20"):
            record.draw(SCOPE, b"plan 4", others, MAX_DRAWS, rng)
    record.draw(SCOPE, b"plan 5", others[:1], MAX_DRAWS, rng)  # a refused draw counts for nobody
    assert sorted(record.draw(SCOPE, b"plan 6", JOINERS, MAX_DRAWS + 5, rng)) == list(range(20))


def test_draws_of_another_study_do_not_count() -> None:
    """Otherwise a device that uses its identity in three studies stops each round of a fourth."""
    record, rng = DrawRecord(), Random(1)
    for number in range(MAX_DRAWS):
        record.draw(SCOPE, b"plan %d" % number, JOINERS, MAX_DRAWS, rng)
    assert len(record.draw(bytes(31) + b"1", b"plan 3", JOINERS, MAX_DRAWS, rng)) == len(JOINERS)


def test_draws_count_after_kill_9(tmp_path: Path) -> None:
    path, abc = tmp_path / "registrar.key.draws", [b"a", b"b", b"c"]
    DrawRecord(path).draw(SCOPE, b"plan 1", abc, MAX_DRAWS, Random(1))
    DrawRecord(path).draw(SCOPE, b"plan 2", abc, MAX_DRAWS, Random(2))
    killed = subprocess.run(
        [sys.executable, "-c", DRAW_AND_DIE, str(path)], capture_output=True, text=True, check=False
    )
    record = DrawRecord(path)
    assert str(record.draw(SCOPE, b"plan 3", abc, MAX_DRAWS, Random(9))) == killed.stdout.strip()
    with pytest.raises(SeatingRefusedError, match="3 times"):
        record.draw(SCOPE, b"plan 4", abc, MAX_DRAWS, Random(4))


def test_a_study_that_asks_every_round_has_a_draw_more_for_each() -> None:
    plan = service().view.plan
    assert (plan.max_draws, plan.rounds) == (MAX_DRAWS, 9)
    assert view_of(question=EVERY_ROUND_QUESTION).plan.max_draws == MAX_DRAWS + 9


def test_a_record_that_is_freed_closes_its_file() -> None:
    """Python 3.13 warns otherwise."""
    record = DrawRecord()
    connection = record._connection
    del record
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
