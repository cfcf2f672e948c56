"""Event streams: whole, in order, resumed without loss, and in nobody's way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from unittest.mock import AsyncMock

import pytest
from sqlalchemy.exc import OperationalError

from protocol.events import Event, EventKind, FailureCause
from protocol.phases import Phase
from tests.server.conftest import Serve
from tests.server.harness import Served, play, together
from tests.server.listener import Listener, listening
from tests.server.party import refused

CREATED, STARTED, OPENED = "study-created", "study-started", "round-opened"
MOVED, CLOSED, ENDED = "cohort-phase-changed", "round-closed", "study-ended"
ONE_ROUND = [OPENED, MOVED, MOVED, MOVED, MOVED, MOVED, CLOSED]


def kinds(events: list[Event]) -> list[str]:
    return [event.kind.value for event in events]


async def test_a_stream_tells_a_study_from_its_creation_to_its_end(
    serve: Serve, postgres_url: str
) -> None:
    async with serve(postgres_url) as served:
        study = await served.create(rounds=2)
        async with listening(served, study) as listener:
            await play(served, study, lost=((), (1,), (), ()))
            await served.until_closed(study)
            await play(served, study, after=1)
            events = await listener.until_over()
    assert listener.headers["content-type"].startswith("text/event-stream")
    assert listener.text.startswith("retry: 2000\n\n")
    assert kinds(events) == [CREATED, STARTED, *ONE_ROUND, *ONE_ROUND, ENDED]
    assert [event.id for event in events] == list(range(1, 18))
    assert {event.study for event in events} == {study}
    masking = events[5]
    assert (masking.previous_phase, masking.phase) == (Phase.MASKING, Phase.CONFIRMING)
    assert (masking.received, masking.expected, masking.cohort) == (5, 6, 0)
    assert masking.seconds is not None
    assert masking.seconds >= 5  # the patience with the one that was lost
    closed = events[8]
    assert (closed.round, closed.state, closed.participants) == (1, "decoded", 5)
    assert (closed.sampling_threshold, closed.heavy_hitters) == (events[2].sampling_threshold, 1)
    assert events[-1].state == "finished"


async def test_a_stream_goes_on_after_the_last_event_that_is_known(served: Served) -> None:
    study = await served.create()
    await served.join(study, 6)
    await served.until_phase(study, "sharing")
    async with listening(served, study) as first:
        known = (await first.until(4))[-1].id
    await served.client.post(f"/v1/studies/{study}/stop")
    async with listening(served, study, known) as second:
        events = await second.until_over()
    assert [event.id for event in events] == [known + 1, known + 2, known + 3]
    path = f"/v1/studies/{study}/events?after={known + 2}"
    by_query = await served.client.get(path)  # it ends at once, so httpx can read it
    assert by_query.text.count("\ndata: ") == 1
    both = await served.client.get(path, headers={"Last-Event-ID": str(known)})
    assert both.text.count("\ndata: ") == 3


async def test_a_stop_tells_what_it_ends(served: Served) -> None:
    study = await served.create()
    await served.join(study, 3)
    await served.client.post(f"/v1/studies/{study}/stop")
    async with listening(served, study, 3) as listener:
        failed, closed, ended = await listener.until_over()
    assert (failed.kind, failed.cause) == (EventKind.COHORT_FAILED, FailureCause.STOPPED)
    assert (failed.reason, failed.received) == ("the study was stopped", 3)
    assert (closed.kind, closed.state) == (EventKind.ROUND_CLOSED, "failed")
    assert (ended.kind, ended.state) == (EventKind.STUDY_ENDED, "stopped")


async def test_a_cohort_that_fails_is_told_with_its_reason(served: Served) -> None:
    study = await served.create()
    devices = await served.join(study, 6)
    async with listening(served, study, 4) as listener:
        await together(devices[:3], "share")
        assert await served.pass_phase(study) is Phase.FAILED
        event = (await listener.until(1))[0]
    assert (event.kind, event.cause) == (EventKind.COHORT_FAILED, FailureCause.TOO_FEW)
    assert event.reason == "3 of 6 shared their secrets in time, where 4 are needed"


async def test_a_stream_tells_what_another_server_wrote(serve: Serve, postgres_url: str) -> None:
    async with serve(postgres_url) as one, serve(postgres_url) as other:
        study = await one.create(start=False)
        async with listening(other, study) as listener:
            await listener.until(1)
            await one.client.post(f"/v1/studies/{study}/start")
            await listener.until(3)
            await play(one, study)
            events = await listener.until_over()
    assert kinds(events) == [CREATED, STARTED, *ONE_ROUND, ENDED]


async def test_nothing_is_told_of_what_was_taken_back(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("", None, Exception("away"))

    study = await served.create(start=False)
    monkeypatch.setattr("server.db.repositories.studies.insert_round", fail)
    assert (await served.client.post(f"/v1/studies/{study}/start")).status_code == 503
    monkeypatch.undo()
    await served.client.post(f"/v1/studies/{study}/stop")
    async with listening(served, study) as listener:
        assert kinds(await listener.until_over()) == [CREATED, ENDED]
    counted = served.app.state.service.metrics.registry.get_sample_value
    assert counted("blindtally_events_total", {"kind": STARTED}) is None


@pytest.mark.parametrize(
    ("path", "headers", "status", "kind"),
    [
        ("/v1/studies/nobody/events", {}, 404, "not-found"),
        ("/v1/studies/{study}/events", {"Last-Event-ID": "-1"}, 422, "malformed"),
        ("/v1/studies/{study}/events", {"Last-Event-ID": "first"}, 422, "malformed"),
        ("/v1/studies/{study}/events?after=99999999999", {}, 422, "malformed"),
        ("/v1/studies/{study}/events", {"Last-Event-ID": "2"}, 409, "wrong-state"),
    ],
)
async def test_a_stream_that_cannot_be_is_refused(
    served: Served, path: str, headers: dict[str, str], status: int, kind: str
) -> None:
    study = await served.create(start=False)
    await served.client.post(f"/v1/studies/{study}/stop")
    refused(await served.client.get(path.format(study=study), headers=headers), status, kind)
    assert served.app.state.service.event_streams._followers.total() == 0


async def test_more_streams_than_there_is_room_for_are_told_to_come_again(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url, max_event_streams=2) as served:
        study = await served.create()
        async with listening(served, study) as one, listening(served, study) as two:
            await asyncio.gather(one.until(3), two.until(3))
            answer = await served.client.get(f"/v1/studies/{study}/events")
            refused(answer, 503, "unavailable")
            assert answer.headers["retry-after"]
            await one.leave()
            async with listening(served, study) as three:
                assert await three.until(3)


@pytest.fixture
async def crowd(served: Served) -> AsyncIterator[list[Listener]]:
    """Yield 300 listeners to one study, who have heard all there is."""
    study = await served.create()
    async with AsyncExitStack() as stack:
        many = [await stack.enter_async_context(listening(served, study)) for _ in range(300)]
        await asyncio.gather(*(listener.until(3) for listener in many))
        yield many


async def test_streams_that_wait_hold_no_connection_to_the_database(
    served: Served, crowd: list[Listener]
) -> None:
    database = served.app.state.service.store.database
    async with asyncio.timeout(60):
        while database.engine.pool.checkedout():  # noqa: ASYNC110  (nothing tells of it)
            await asyncio.sleep(0.01)
    assert not any(listener.task.done() for listener in crowd)


async def test_streams_end_when_the_server_stops(served: Served, crowd: list[Listener]) -> None:
    served.app.state.service.notifier.shut_down()
    for listener in crowd:
        assert len(await listener.until_over()) == 3
    assert served.app.state.service.event_streams._followers.total() == 0


async def test_a_stream_ends_when_the_database_is_away(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = await served.create()
    async with listening(served, study) as listener:
        await listener.until(3)
        away = AsyncMock(side_effect=OperationalError("", None, Exception("away")))
        monkeypatch.setattr("server.db.repositories.events.EventRepository.after", away)
        await served.join(study, 6)
        assert len(await listener.until_over()) == 3


async def test_a_stream_without_news_says_that_it_lives(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.02)
    study = await served.create()
    async with listening(served, study) as listener:
        await listener.until(3, text=": ping\n\n: ping\n\n")


async def test_a_study_that_is_cancelled_twice_is_stopped_once_and_tells_it_once(
    serve: Serve, database_url: str
) -> None:
    """One behind the other, and both at the same time."""
    async with serve(database_url) as served:
        for at_once in (False, True):
            study = await served.create()
            stop = [served.client.post(f"/v1/studies/{study}/stop") for _ in range(2)]
            answers = await asyncio.gather(*stop) if at_once else [await one for one in stop]
            assert [answer.status_code for answer in answers] == [200, 200]
            assert {answer.json()["state"] for answer in answers} == {"stopped"}
            async with listening(served, study) as listener:
                told = kinds(await listener.until_over())
            failed = EventKind.COHORT_FAILED.value
            assert told == [CREATED, STARTED, OPENED, failed, CLOSED, ENDED]
