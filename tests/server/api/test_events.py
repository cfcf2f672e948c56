"""Event streams are complete, in order and resumed without loss, and block no other request."""

import asyncio
from contextlib import AsyncExitStack
from unittest.mock import AsyncMock

import pytest
from sqlalchemy.exc import OperationalError

from protocol.api.events import Event, EventKind, FailureCause
from protocol.api.phases import Phase
from server.db.repositories.events import EventRepository
from server.notify import event_streams
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.harness import Served, play
from tests.server.listener import listening

STUDY_CREATED, STUDY_STARTED = "study-created", "study-started"
ROUND_OPENED, PHASE_CHANGED = "round-opened", "cohort-phase-changed"
ROUND_CLOSED, STUDY_ENDED = "round-closed", "study-ended"
ONE_ROUND = [ROUND_OPENED, *[PHASE_CHANGED] * 6, ROUND_CLOSED]


def kinds(events: list[Event]) -> list[str]:
    return [event.kind.value for event in events]


async def test_a_stream_covers_a_study_from_its_creation_to_its_end(served: Served) -> None:
    study = await served.create(rounds=2)
    async with listening(served, study) as listener:
        await play(served, study, lost=((), (), (1,), (), ()))
        await served.until_closed(study)
        await play(served, study, after=1)
        events = await listener.until_over()
    assert listener.headers["content-type"].startswith("text/event-stream")
    assert listener.text.startswith("retry: 2000\n\n")
    assert kinds(events) == [STUDY_CREATED, STUDY_STARTED, *ONE_ROUND, *ONE_ROUND, STUDY_ENDED]
    assert [event.id for event in events] == list(range(1, 20))
    assert {event.study for event in events} == {study}
    masking = events[6]
    assert (masking.previous_phase, masking.phase) == (Phase.MASKING, Phase.CONFIRMING)
    assert (masking.received, masking.expected, masking.cohort) == (5, 6, 0)
    assert masking.seconds is not None
    assert masking.seconds >= 5  # waiting for the dropout
    closed = events[9]
    assert (closed.round, closed.state, closed.participants) == (1, "decoded", 5)
    assert (closed.sampling_threshold, closed.heavy_hitters) == (events[2].sampling_threshold, 1)
    assert events[-1].state == "finished"


async def test_a_stream_resumes_after_the_last_known_event(served: Served) -> None:
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


async def test_a_stop_reports_the_cohort_round_and_study_that_end(served: Served) -> None:
    study = await served.create()
    await served.join(study, 3)
    await served.client.post(f"/v1/studies/{study}/stop")
    async with listening(served, study, 3) as listener:
        failed, closed, ended = await listener.until_over()
    assert (failed.kind, failed.cause) == (EventKind.COHORT_FAILED, FailureCause.STOPPED)
    assert (failed.reason, failed.received) == ("the study was stopped", 3)
    assert (closed.kind, closed.state) == (EventKind.ROUND_CLOSED, "failed")
    assert (ended.kind, ended.state) == (EventKind.STUDY_ENDED, "stopped")


async def test_a_stream_reports_events_that_another_server_wrote(
    serve: Serve, postgres_url: str
) -> None:
    async with serve(postgres_url) as first, serve(postgres_url) as second:
        study = await first.create(start=False)
        async with listening(second, study) as listener:
            await listener.until(1)
            await first.client.post(f"/v1/studies/{study}/start")
            await listener.until(3)
            await play(first, study)
            events = await listener.until_over()
    assert kinds(events) == [STUDY_CREATED, STUDY_STARTED, *ONE_ROUND, STUDY_ENDED]


async def test_events_of_a_rolled_back_change_are_not_reported(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("", None, Exception("away"))

    study = await served.create(start=False)
    monkeypatch.setattr("server.db.repositories.studies.studies.insert_round", fail)
    assert (await served.client.post(f"/v1/studies/{study}/start")).status_code == 503
    monkeypatch.undo()
    await served.client.post(f"/v1/studies/{study}/stop")
    async with listening(served, study) as listener:
        assert kinds(await listener.until_over()) == [STUDY_CREATED, STUDY_ENDED]
    counted = served.service.metrics.registry.get_sample_value
    assert counted("blindtally_events_total", {"kind": STUDY_STARTED}) is None


async def test_a_stream_ends_when_its_study_is_deleted(each_served: Served) -> None:
    """Deletion may follow the end of the study before a stream has read its last event."""
    draft = await each_served.create(start=False)
    async with listening(each_served, draft) as listener:
        await listener.until(1)
        assert (await each_served.client.delete(f"/v1/studies/{draft}")).status_code == 204
        assert kinds(await listener.until_over()) == [STUDY_CREATED]
    refused(await each_served.client.get(f"/v1/studies/{draft}/events"), 404, "not-found")


async def test_an_impossible_stream_is_refused(served: Served) -> None:
    study = await served.create(start=False)
    await served.client.post(f"/v1/studies/{study}/stop")
    for path, headers, status, kind in (
        ("/v1/studies/nobody/events", {}, 404, "not-found"),
        ("/v1/studies/{study}/events", {"Last-Event-ID": "-1"}, 422, "malformed"),
        ("/v1/studies/{study}/events", {"Last-Event-ID": "first"}, 422, "malformed"),
        ("/v1/studies/{study}/events?after=99999999999", {}, 422, "malformed"),
        ("/v1/studies/{study}/events", {"Last-Event-ID": "2"}, 409, "wrong-state"),
    ):
        refused(await served.client.get(path.format(study=study), headers=headers), status, kind)
        assert served.service.event_streams.count == 0


async def test_one_stream_above_the_limit_is_refused_with_a_time_to_retry(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "MAX_STREAMS", 2)
    async with serve(sqlite_url) as served:
        study = await served.create()
        async with listening(served, study) as first, listening(served, study) as second:
            await asyncio.gather(first.until(3), second.until(3))
            answer = await served.client.get(f"/v1/studies/{study}/events")
            refused(answer, 503, "unavailable")
            assert answer.headers["retry-after"]
            await first.leave()
            async with listening(served, study) as third:
                assert await third.until(3)


async def test_many_streams_hold_no_connection_and_end_when_the_server_stops(
    served: Served,
) -> None:
    study, database = await served.create(), served.store.database
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(listening(served, study)) for _ in range(60)]
        await asyncio.gather(*(listener.until(3) for listener in crowd))
        async with asyncio.timeout(60):
            # SQLite keeps one connection open, which holds its files in place.
            while database.engine.pool.checkedout() > 1:  # noqa: ASYNC110  (no event reports it)
                await asyncio.sleep(0.01)
        assert not any(listener.task.done() for listener in crowd)
        served.service.notifier.shut_down()
        for listener in crowd:
            assert len(await listener.until_over()) == 3
    assert served.service.event_streams.count == 0


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


async def test_a_study_that_is_stopped_twice_is_reported_once(each_served: Served) -> None:
    """Two requests in sequence, and two at the same time."""
    for at_once in (False, True):
        study = await each_served.create()
        stops = [each_served.client.post(f"/v1/studies/{study}/stop") for _ in range(2)]
        answers = await asyncio.gather(*stops) if at_once else [await stop for stop in stops]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert {answer.json()["state"] for answer in answers} == {"stopped"}
        async with listening(each_served, study) as listener:
            reported = kinds(await listener.until_over())
        failed = EventKind.COHORT_FAILED.value
        assert reported == [
            STUDY_CREATED,
            STUDY_STARTED,
            ROUND_OPENED,
            failed,
            ROUND_CLOSED,
            STUDY_ENDED,
        ]


async def test_the_reads_of_many_streams_leave_the_database_to_other_requests(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """560 streams at once delayed /readyz by seconds: their reads filled the readers' queue."""
    events = served.store.events
    running, most = 0, 0

    async def after(_events: EventRepository, study: str, last: int) -> tuple[Event, ...]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await read(events, study, last)
        finally:
            running -= 1

    read = EventRepository.after
    monkeypatch.setattr(EventRepository, "after", after)
    study = await served.create()
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(listening(served, study)) for _ in range(40)]
        await asyncio.gather(*(stream.until(3) for stream in streams))
    assert 1 <= most <= 2
