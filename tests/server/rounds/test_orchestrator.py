"""The orchestrator: an error of one cohort affects no other, and its only state is rows."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any, NoReturn
from unittest.mock import AsyncMock

import pytest
import structlog
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from protocol.api.messages import StudyRequest
from protocol.estimation.estimates import Estimate
from protocol.mechanism import Answer
from server.db import migrations
from server.db.channels import cohort_channel
from server.db.database import Database, SteadyClock
from server.db.database_errors import BusyError, ClockJumpError
from server.db.repositories.leases import Lease
from server.db.repositories.rounds.cohorts import CohortRepository
from server.db.repositories.rounds.pending_cohorts import CohortSelection, PendingCohort
from server.db.repositories.rounds.rounds import ClosedRound
from server.db.store import Store
from server.first_plan import DeviceLimits
from server.notify.notifier import Notifier
from server.rounds.cohort_sums import CohortSums, SummedCohort
from server.rounds.orchestrator import Orchestrator
from tests.server.conftest import Serve
from tests.server.false_messages import false_shares
from tests.server.harness import (
    NOON,
    STEPS,
    Clock,
    Served,
    play,
    study_request,
    sum_of,
    together,
    until_summed,
)


def explode(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise ArithmeticError("the secret is 42")


async def until_forgotten(served: Served) -> None:
    for _ in range(200):
        if not await served.store.cohorts.finished_with_bodies():
            return
        await served.tick()
    raise AssertionError("bodies of a cohort that is over are still there")


async def test_a_fault_while_summing_fails_that_cohort_and_no_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, other = await served.create(), await served.create()
    monkeypatch.setattr("server.rounds.cohort_sums.unmask", explode)
    await play(served, study)
    view = await served.until_closed(study)
    assert view.state == "failed"
    assert view.cohorts[0].failure == "an internal error of the service, which was logged"
    monkeypatch.undo()
    devices = await play(served, other)
    await until_summed(served, other, devices)


def replace_snapshot(
    monkeypatch: pytest.MonkeyPatch, served: Served, snapshot: Callable[..., Awaitable[Any]]
) -> None:
    """Replace the snapshot of one service; those of other tests' threads poll meanwhile."""
    original = CohortRepository.snapshot

    async def choose(self: CohortRepository, *select: Any) -> Any:
        return await (snapshot if self is served.store.cohorts else original)(self, *select)

    monkeypatch.setattr(CohortRepository, "snapshot", choose)


async def test_news_that_arrives_while_a_thread_selects_cohorts_is_not_lost(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop reports a channel, and a transaction's thread selects in the midst of it."""
    orchestrator, selections = served.service.orchestrator, list[CohortSelection | None]()
    snapshot = CohortRepository.snapshot

    async def snapshot_amid_a_report(self: CohortRepository, select: Any) -> Any:
        def channels(now: datetime) -> Iterator[str]:
            selections.append(select(now))
            yield cohort_channel(7)

        def select_amid_a_report(now: datetime) -> CohortSelection | None:
            orchestrator.on_notification(channels(now))  # type: ignore[arg-type]
            return selections[-1]

        return await snapshot(self, select_amid_a_report)

    replace_snapshot(monkeypatch, served, snapshot_amid_a_report)
    for _ in range(2):
        await orchestrator.poll()
    assert selections[1] is not None
    assert 7 in selections[1].cohorts


async def test_a_fault_while_decoding_fails_the_round_and_the_study_goes_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = await served.create(rounds=2)
    monkeypatch.setattr("server.rounds.decoding.decode_cohorts", explode)
    await play(served, study)
    assert (await served.until_closed(study)).state == "failed"
    monkeypatch.undo()
    await play(served, study, after=1)
    assert (await served.until_closed(study, 2)).state == "decoded"


async def test_a_fault_while_planning_keeps_the_plan(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = await served.create(rounds=2)
    monkeypatch.setattr("server.rounds.jobs.plan_next", explode)
    await play(served, study)
    assert (await served.until_closed(study)).state == "decoded"
    rounds = served.store.rounds
    first, second = await rounds.plan(study, 1), await rounds.plan(study, 2)
    assert second.seed != first.seed
    assert second.model_copy(update={"round": 1, "seed": first.seed}) == first
    await play(served, study, after=1)
    assert (await served.until_closed(study, 2)).state == "decoded"


async def test_a_study_state_that_cannot_be_read_stops_its_study_and_no_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, other = await served.create(rounds=2), await served.create()
    answers = type(served.store.answers)
    monkeypatch.setattr(
        answers, "study_state", AsyncMock(side_effect=ValueError("of another version"))
    )
    await play(served, study)
    assert (await served.until_closed(study)).state == "failed"
    monkeypatch.undo()
    assert (await served.client.get(f"/v1/studies/{study}")).json()["state"] == "stopped"
    await play(served, other)
    assert (await served.until_closed(other)).state == "decoded"


async def test_bodies_are_forgotten_once_a_cohort_is_over(served: Served) -> None:
    study = await served.create()
    await play(served, study, lost=((), (), (2,), (), ()))
    await served.until_closed(study)
    await until_forgotten(served)
    query = text("SELECT kind FROM messages")
    database = served.store.database
    kinds = await database.read(lambda session: session.scalars(query).all())
    assert Counter(kinds) == {
        "key-shares": 6, "complaints": 6, "masked-input": 5, "input-signature": 5,
        "confirmation": 5, "unmasking-shares": 5,
    }  # fmt: skip
    bodies = text("SELECT count(*) FROM bodies")
    assert await database.read(lambda session: session.scalar(bodies)) == 0


async def test_a_device_leaves_at_most_three_kilobytes_in_the_file_after_its_round(
    served: Served,
) -> None:
    """SQLite uses the pages of deleted rows again, but not the space of values set to null."""
    used = text("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count")
    pages, rounds, devices = list[int](), 2, 30
    for _ in range(rounds):
        study = await served.create(terms={"cohort_size": devices, "minimum": 3})
        await play(served, study, count=devices)
        await served.until_closed(study)
        await until_forgotten(served)
        pages.append(await served.store.database.read(lambda s: s.execute(used).scalar_one()))
    assert 32768 * (pages[-1] - pages[0]) <= 3_000 * devices * (rounds - 1)


async def test_a_deadline_without_a_server_is_extended(
    serve: Serve, clock: Clock, database_url: str
) -> None:
    """Restarted with time left, a cohort has at least its patience; without, all of it."""
    async with serve(database_url) as served:
        await served.create(timeouts={"enrolling": 600, "idle": 5})
    database = Database(database_url, clock=clock)
    store = Store(database, Random(1))

    async def seconds_after(pause: float) -> float:
        clock.advance(pause)
        await Orchestrator(store, Notifier(), Random(1)).resume()
        (due,) = await store.cohorts.pending()
        return (due.phase_status.deadline - clock()).total_seconds()

    assert await seconds_after(500) == 100
    assert await seconds_after(98) == 5
    assert await seconds_after(5) == 600
    assert await seconds_after(-7200) == 600  # the system's clock was set back
    (due,) = await store.cohorts.pending()
    assert due.phase_status.last_received <= clock()
    await database.close()


async def test_the_clock_follows_the_systems_jumps_only_while_no_round_is_open(
    sqlite_url: str,
) -> None:
    system = NOON
    database = Database(sqlite_url)
    database.clock = SteadyClock(lambda: system)
    await migrations.upgrade(database)
    store = Store(database, Random(1))
    orchestrator = Orchestrator(store, Notifier(), Random(1))
    await orchestrator.resume()

    async def lag() -> timedelta:
        await orchestrator.poll()
        orchestrator.on_notification(None)  # as in a full read, once in a while
        await orchestrator.poll()
        return system - await database.read_now()

    hour, moment = timedelta(hours=1), timedelta(minutes=1)
    system += hour
    assert abs(await lag()) < moment
    request = StudyRequest.model_validate(study_request())
    view, _ = await store.studies.create(request, DeviceLimits(2**26, 16.0, 1e-3))
    study = view.id
    system += hour
    assert abs(await lag() - hour) < moment
    await store.studies.stop(study)
    assert abs(await lag()) < moment
    await database.close()


async def test_a_study_that_is_stopped_while_it_is_summed_has_no_sum_and_no_fault(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = await served.create()
    service, unmask = served.service, CohortSums.unmask

    async def stop_first(sums: CohortSums, number: int) -> SummedCohort:
        if not stopped:
            stopped.append(await served.client.post(f"/v1/studies/{study}/stop"))
            await service.store.cohorts.delete_bodies([number])
        return await unmask(sums, number)

    stopped: list[object] = []
    monkeypatch.setattr(CohortSums, "unmask", stop_first)
    with structlog.testing.capture_logs() as logs:
        await play(served, study)
        for _ in range(20):
            await served.tick()
    assert stopped
    (cohort,) = (await served.show_round(study)).cohorts
    assert (cohort.phase, cohort.failure) == ("failed", "the study was stopped")
    assert [entry for entry in logs if entry["log_level"] in ("error", "warning")] == []


async def test_a_sum_that_could_not_be_kept_is_made_again_with_the_same_blame(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is away for a moment between naming the culprit and keeping the sum."""
    study = await served.create()
    cohorts = type(served.store.cohorts)
    finish, tries = cohorts.save_sum, []

    async def fail_once(
        self: CohortRepository, cohort: PendingCohort, total: bytes, lease: Lease
    ) -> bool:
        tries.append(total)
        if len(tries) == 1:
            raise OperationalError("", None, Exception("away"))
        return await finish(self, cohort, total, lease)

    monkeypatch.setattr(cohorts, "save_sum", fail_once)
    liar, *honest = devices = await served.join(study, 6)
    with false_shares(2):
        await liar.share()
    await together(honest, "share")
    await together(devices, *STEPS[1:])
    view = await served.until_closed(study)
    assert len(tries) == 2
    assert list(view.cohorts[0].blamed) == [0]
    assert await served.read_sum(study) == sum_of(devices)


async def test_the_time_of_a_restart_does_not_count_as_silence(
    served: Served, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is unavailable for an hour while leases are released: no message arrives."""
    service = served.service

    async def release_slowly(*_: object) -> None:
        clock.advance(3600)

    monkeypatch.setattr(type(service.store.leases), "release_others", release_slowly)
    heartbeat = service.orchestrator.heartbeat
    await heartbeat.start()
    assert heartbeat.receiving_since == clock()


async def test_time_without_a_database_costs_no_cohort_its_round(
    served: Served, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deadlines and patience do not count the time in which no message could arrive."""
    study, other = await served.create(), await served.create()
    await together((await served.join(study, 6))[:1], "share")
    await together((await served.join(other, 6))[:5], "share")
    away = OperationalError("", None, Exception("away"))
    replace_snapshot(monkeypatch, served, AsyncMock(side_effect=away))
    for _ in range(10):
        await served.tick()
    clock.advance(3600)
    monkeypatch.undo()
    for _ in range(10):
        await served.tick()
    for each in (study, other):
        assert (await served.show_round(each)).cohorts[0].phase == "sharing"


@pytest.mark.parametrize("error", [ArithmeticError(), OperationalError("", None, Exception())])
async def test_a_poll_that_fails_is_repeated_ever_more_slowly_despite_news(
    served: Served, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing = AsyncMock(side_effect=error)
    replace_snapshot(monkeypatch, served, failing)
    with structlog.testing.capture_logs() as lines:
        for _ in range(60):
            await served.tick()
        assert 2 <= failing.call_count <= 5
    monkeypatch.undo()
    shown = [line["event"] for line in lines if line["log_level"] != "debug"]
    assert shown == (["poll failed"] if isinstance(error, ArithmeticError) else [])
    study = await served.create()
    await served.join(study, 6)
    await served.until_phase(study, "sharing")


async def test_an_answer_that_cannot_be_kept_leaves_no_study_stuck(
    serve: Serve, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL has no index entry of 3 kB; a mechanism to come may forget that."""
    item = "".join(chr(0x4E00 + number) for number in Random(1).choices(range(4096), k=1024))
    answer = Answer(decoded=True, distinct=1)
    outcome = ClosedRound("decoded", 6, answer, heavy_hitters=(Estimate(item, 6, 0),))
    decoded = AsyncMock(return_value=outcome)
    monkeypatch.setattr("server.rounds.jobs.decode_round", decoded)
    async with serve(postgres_url) as served:
        study = await served.create()
        await play(served, study)
        assert (await served.until_closed(study)).state == "failed"
        assert (await served.client.get(f"/v1/studies/{study}")).json()["state"] == "finished"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("server.rounds.jobs.decode_round", MemoryError()),
        ("server.rounds.cohort_sums.CohortSums.unmask", ImportError("failed to map segment")),
    ],
)
async def test_a_sum_is_read_again_after_a_passing_lack_of_memory(
    served: Served, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    failing = AsyncMock(side_effect=error)
    monkeypatch.setattr(name, failing)
    study = await served.create()
    devices = await play(served, study)
    while not failing.call_count:
        await served.tick()
    monkeypatch.undo()
    await until_summed(served, study, devices)


async def test_the_longest_item_there_can_be_is_kept(each_served: Served) -> None:
    characters = "".join(chr(0x20000 + number) for number in range(2048))  # 4 bytes each
    item = "".join(Random(1).choices(characters, k=256))
    question = {
        "mechanism": "adaptive-iblt",
        "threshold": 1,
        "contribution": 2,
        "domain": {"kind": "alphabet", "characters": characters, "length": 256},
        "message_bytes": 61_784,
    }
    study = await each_served.create(question=question)
    devices = await each_served.join(study, 6)
    for device in devices:
        device.histogram = {item: 1}
    await together(devices, *STEPS)
    assert (await each_served.until_closed(study)).state == "decoded"
    rows = (await each_served.client.get(f"/v1/studies/{study}/heavy-hitters")).json()
    assert [row["item"] for row in rows["heavy_hitters"]] == [item]


async def test_a_decision_that_waited_too_long_is_dropped(served: Served, clock: Clock) -> None:
    """A message that arrived while the database was locked is behind the decision in the queue."""
    study = await served.create()
    await served.join(study, 6)
    await served.until_phase(study, "sharing")
    (due,) = await served.store.cohorts.pending()
    database = served.store.database
    cohorts = served.store.cohorts
    locked = asyncio.create_task(database.write(lambda _: clock.advance(10)))
    with pytest.raises(BusyError, match="stale"):
        await asyncio.gather(locked, cohorts.fail(due, "late", due.phase_status.received))
    (still,) = await served.store.cohorts.pending()
    assert still.phase_status.phase is due.phase_status.phase


@pytest.mark.parametrize("jump", [timedelta(hours=9), timedelta(hours=-9)])
async def test_no_phase_ends_by_a_jump_of_the_databases_clock(
    serve: Serve, clock: Clock, postgres_url: str, jump: timedelta
) -> None:
    """Two processes are alive, and each one reads the clock first in turn."""
    async with serve(postgres_url) as served:
        await served.create(timeouts={"enrolling": 600, "idle": 5})
    databases = [Database(postgres_url, clock=clock) for _ in range(2)]
    stores = [Store(database, Random(1)) for database in databases]
    processes = [Orchestrator(store, Notifier(), Random(1)) for store in stores]
    for process in processes:
        await process.resume()

    async def poll() -> PendingCohort:
        for process in [*processes, *processes]:
            process.on_notification(None)
            await process.step()
            clock.advance(1)
            await process.heartbeat.beat()
        (due,) = await stores[0].cohorts.pending()
        return due

    before = await poll()
    for database in databases:
        database.clock = lambda: clock() + jump
    with pytest.raises(ClockJumpError):
        await stores[0].database.read_now()  # of a request; the poll after it sees no jump
    after = await poll()
    assert after.phase_status.phase is before.phase_status.phase
    left = (after.phase_status.deadline - clock() - jump).total_seconds()
    assert 500 < left <= 600
    assert [database.clock_jumps.count for database in databases] == [1, 1]
    for database in databases:
        await database.close()
