"""Rounds of many small cohorts: they share transactions, and a fault of one is its own."""

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import delete, event, func, select

from protocol.api.events import FailureCause
from protocol.api.messages import RoundView
from protocol.api.phases import MessageKind, Phase
from secagg.aggregator import UnmaskingRequest
from secagg.errors import RecoveryError
from secagg.unmasking import RecoveredSecrets, UnmaskedSum, Unmasking, unmask
from server.db.channels import notify_on_commit
from server.db.repositories.cohort_phases import enter_phase
from server.db.repositories.leases import Lease, StaleLeaseError, sum_job
from server.db.repositories.messages.sum_messages import ClosingCohort
from server.db.schema import BodyRow, CohortRow, MessageRow
from server.errors import ProblemError
from server.rounds.cohort_sums import read_masked_sum
from tests.server.conftest import Serve
from tests.server.device import Device
from tests.server.harness import STEPS, Served, sum_of, together

COHORTS, SIZE = 4, 3
TERMS = {"cohort_size": SIZE, "minimum": SIZE, "cohorts": COHORTS}
TERMS |= {"corrupt": 0.0, "dropout": 0.0}


QUIET = {"poll_seconds": 60, "min_poll_seconds": 10}


@pytest.fixture
async def quiet(serve: Serve, sqlite_url: str) -> AsyncIterator[Served]:
    """Yield a service that polls only when a test does."""
    async with serve(sqlite_url, **QUIET) as served:
        yield served


@pytest.fixture
async def each_quiet(serve: Serve, database_url: str) -> AsyncIterator[Served]:
    """Yield such a service on each kind of database, in turn."""
    async with serve(database_url, **QUIET) as served:
        yield served


@pytest.fixture
def transactions(each_quiet: Served, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of transactions so far, by the name of what they do."""
    counts, database = Counter[str](), each_quiet.store.database

    def counted(run: Callable[..., Any]) -> Callable[..., Any]:
        async def count(action: Callable[..., Any], **options: Any) -> Any:
            contents = [cell.cell_contents for cell in getattr(action, "__closure__", None) or ()]
            names = [content.__qualname__ for content in contents if callable(content)]
            counts.update(names[:1])
            return await run(action, **options)

        return count

    for name in ("read", "write"):
        monkeypatch.setattr(database, name, counted(getattr(database, name)))
    return counts


async def poll(served: Served) -> None:
    await served.service.orchestrator.poll()


async def join(served: Served) -> tuple[str, list[Device]]:
    """Return a study and its devices; those of each cohort hold other items."""
    study = await served.create(terms=TERMS)
    devices = await served.join(study, COHORTS * SIZE)
    for number, device in enumerate(devices):
        device.histogram = {f"{chr(ord('a') + number // SIZE)}{number % SIZE}": 1}
    return study, devices


async def play(served: Served, devices: Sequence[Device], *steps: str) -> None:
    for step in steps:
        await poll(served)
        await together(devices, step)
    await poll(served)


async def until_closed(served: Served, study: str) -> RoundView:
    for _ in range(1000):
        view = await served.show_round(study)
        if view.state != "running" and not await served.store.cohorts.finished_with_bodies():
            return view
        await poll(served)
        await asyncio.sleep(0.01)
    raise AssertionError("the round did not close")


async def check_sums(served: Served, study: str, devices: Sequence[Device]) -> None:
    """Check that each cohort has the exact sum of its members, and no two have the same one."""
    view = await until_closed(served, study)
    assert (view.state, view.participants) == ("decoded", len(devices))
    assert [cohort.phase for cohort in view.cohorts] == [Phase.SUMMED] * COHORTS
    path, sums = f"/v1/studies/{study}/rounds/1/cohorts", set()
    for cohort in view.cohorts:
        members = [device for device in devices if device.seat.cohort == cohort.number]
        response = await served.client.get(f"{path}/{cohort.number}/sum")
        assert response.content == sum_of(members)
        sums.add(response.content)
    assert len(sums) == COHORTS


async def test_the_cohorts_of_a_round_share_transactions_and_each_sum_is_exact(
    each_quiet: Served, transactions: Counter[str]
) -> None:
    study, devices = await join(each_quiet)
    await play(each_quiet, devices, *STEPS)
    await check_sums(each_quiet, study, devices)
    # Four phases end at once, and checking after a read of each cohort.
    assert transactions["CohortRepository._change"] <= 4 + COHORTS
    claims = transactions["LeaseRepository._claim"]
    assert claims <= 5  # the sums, the deletion of bodies perhaps repeated, and the round
    assert transactions["CohortRepository.delete_bodies"] <= claims
    assert transactions["MessageRepository._closing_cohorts"] <= 2
    assert transactions["CohortRepository._save_results"] <= 2


async def test_cohorts_that_are_not_small_are_read_in_batches_and_two_summed_at_the_same_time(
    each_quiet: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = 0, 0

    async def read_slowly(*arguments: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return await read_masked_sum(*arguments)

    monkeypatch.setattr("server.rounds.cohort_sums.read_masked_sum", read_slowly)
    monkeypatch.setattr("server.db.repositories.messages.sum_messages._MAX_SMALL_DEVICES", 0)
    monkeypatch.setattr("server.db.repositories.messages.sum_messages._VECTORS_PER_BATCH", 2)
    study, devices = await join(each_quiet)
    await play(each_quiet, devices, *STEPS)
    await check_sums(each_quiet, study, devices)
    assert most == 2


@pytest.mark.parametrize("is_recovered", [True, False])
async def test_no_secret_of_a_sum_is_kept_when_it_has_ended(
    quiet: Served, monkeypatch: pytest.MonkeyPatch, is_recovered: bool
) -> None:
    def fail(_unmasking: Unmasking, slot: int) -> None:
        raise RecoveryError(slot, "no shares", {})

    if not is_recovered:
        monkeypatch.setattr(Unmasking, "remove_self_mask", fail)
    study, devices = await join(quiet)
    await play(quiet, devices, *STEPS)
    phase = Phase.SUMMED if is_recovered else Phase.FAILED
    view = await until_closed(quiet, study)
    assert [cohort.phase for cohort in view.cohorts] == [phase] * COHORTS
    gc.collect()
    kept = [each for each in gc.get_objects() if type(each) in (ClosingCohort, RecoveredSecrets)]
    assert kept == []


async def test_a_roster_that_is_read_during_the_last_join_is_complete_or_refused(
    each_quiet: Served,
) -> None:
    """On PostgreSQL each statement of the reading transaction sees the joins before it."""
    study = await each_quiet.create(terms=TERMS | {"cohort_size": 6, "cohorts": 1})
    await each_quiet.join(study, 5)
    (pending,) = await each_quiet.store.cohorts.pending()
    has_read, go_on = threading.Event(), threading.Event()

    def hold(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT") and not has_read.is_set():
            has_read.set()
            assert go_on.wait(20)

    event.listen(each_quiet.store.database.engine, "after_cursor_execute", hold)
    reading = asyncio.create_task(each_quiet.store.messages.enrolled_cohort(pending.id))
    assert await asyncio.to_thread(has_read.wait, 20)
    await each_quiet.join(study, 1, first=5)
    await poll(each_quiet)
    go_on.set()
    with pytest.raises(ProblemError, match="still enrolling"):
        await reading
    assert (await each_quiet.store.messages.enrolled_cohort(pending.id)).session.n == 6


async def test_a_fault_in_a_shared_transaction_fails_one_cohort(
    each_quiet: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enter(session: Any, row: CohortRow, phase: Phase, *args: Any, **options: Any) -> None:
        if row.number == 2 and phase is not Phase.FAILED:
            raise ArithmeticError("a row of another version")
        enter_phase(session, row, phase, *args, **options)

    study, _ = await join(each_quiet)
    monkeypatch.setattr("server.db.repositories.rounds.cohorts.enter_phase", enter)
    await poll(each_quiet)
    phases = [cohort.phase for cohort in (await each_quiet.show_round(study)).cohorts]
    assert phases.pop(2) is Phase.FAILED
    assert set(phases) == {Phase.SHARING}


async def test_a_cohort_that_cannot_even_fail_holds_up_no_deletion_of_bodies(
    quiet: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enter(session: Any, row: CohortRow, phase: Phase, *args: Any, **options: Any) -> None:
        if row.number == 2 and phase is not Phase.SHARING and row.study == broken:
            raise ArithmeticError("a row of another version")
        enter_phase(session, row, phase, *args, **options)

    broken, broken_devices = await join(quiet)
    monkeypatch.setattr("server.db.repositories.rounds.cohorts.enter_phase", enter)
    await poll(quiet)
    await together(broken_devices, "share")  # cohort 2 can neither go on nor fail
    study, devices = await join(quiet)
    with pytest.raises(ArithmeticError):
        await poll(quiet)
    await together(devices, "share")
    await quiet.client.post(f"/v1/studies/{study}/stop")
    for _ in range(1000):
        if not await quiet.store.cohorts.finished_with_bodies():
            return
        with suppress(ArithmeticError):
            await poll(quiet)
        await asyncio.sleep(0.01)
    raise AssertionError("the bodies were not deleted")


async def test_no_body_of_a_pending_cohort_is_deleted(quiet: Served) -> None:
    _, devices = await join(quiet)
    await play(quiet, devices, "share", "check")
    pending = [each.id for each in await quiet.store.cohorts.pending()]
    assert await quiet.store.cohorts.delete_bodies(pending) == pending
    count = select(func.count()).select_from(BodyRow)
    messages = COHORTS * SIZE * 2
    assert await quiet.store.database.read(lambda session: session.scalar(count)) == messages


async def test_a_fault_in_one_of_the_sums_that_are_made_together_fails_one_cohort(
    quiet: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_third(request: UnmaskingRequest, *args: Any) -> UnmaskedSum:
        if request.transcript.session.cohort_number == 2:
            raise ArithmeticError("the secret is 42")
        return unmask(request, *args)

    monkeypatch.setattr("server.rounds.cohort_sums.unmask", fail_third)
    study, devices = await join(quiet)
    await play(quiet, devices, *STEPS)
    phases = [cohort.phase for cohort in (await until_closed(quiet, study)).cohorts]
    assert phases.pop(2) is Phase.FAILED
    assert set(phases) == {Phase.SUMMED}


async def test_a_cohort_without_messages_fails_none_of_those_that_are_read_with_it(
    each_quiet: Served,
) -> None:
    _, devices = await join(each_quiet)
    await play(each_quiet, devices, "share")
    messages, (first, second, *_) = (
        each_quiet.store.messages,
        await each_quiet.store.cohorts.pending(),
    )
    deleted = delete(BodyRow).where(BodyRow.cohort == first.id)
    await each_quiet.store.database.write(lambda session: session.execute(deleted))
    missing, unknown, whole = await asyncio.gather(
        messages.closing_cohort(first.id),
        messages.closing_cohort(1_000_000),
        messages.closing_cohort(second.id),
        return_exceptions=True,
    )
    assert isinstance(missing, ProblemError)
    assert "deleted" in str(missing)
    assert isinstance(unknown, ProblemError)
    assert isinstance(whole, ClosingCohort)
    assert whole.bodies is not None
    assert len(whole.bodies[MessageKind.KEY_SHARES]) == SIZE


async def test_a_change_that_was_decided_from_an_old_row_is_refused_alone(
    each_quiet: Served,
) -> None:
    await join(each_quiet)
    cohorts = each_quiet.store.cohorts
    pending = await cohorts.pending()
    assert await cohorts.fail(pending[3], "for a test", pending[3].phase_status.received)
    moved = await asyncio.gather(*map(cohorts.fix_devices, pending))
    assert [place for place, has_moved in enumerate(moved) if not has_moved] == [3]


async def test_a_result_of_a_stale_lease_is_refused_alone(quiet: Served) -> None:
    _, devices = await join(quiet)
    await play(quiet, devices, "share", "check", "mask", "confirm")
    cohorts, leases = quiet.store.cohorts, quiet.store.leases
    pending = await cohorts.pending()
    assert {each.phase_status.phase for each in pending} == {Phase.UNMASKING}
    held = [await leases.claim(sum_job(each.id), "one", 60) for each in pending]
    claims = [lease for lease in held if lease is not None]
    claims[3] = Lease(claims[3].job, "an earlier holder", 0)
    saves = (
        cohorts.fail_unmasking(each, "for a test", FailureCause.INTERNAL, lease)
        for each, lease in zip(pending, claims, strict=True)
    )
    results = await asyncio.gather(*saves, return_exceptions=True)
    assert isinstance(results.pop(3), StaleLeaseError)
    assert results == [True] * (COHORTS - 1)


async def test_bodies_are_deleted_in_bounded_transactions_and_of_all_cohorts(
    each_quiet: Served, transactions: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.db.repositories.rounds.cohorts._BODIES_PER_TRANSACTION", 13)
    study, devices = await join(each_quiet)
    await play(each_quiet, devices, "share", "check")
    transactions.clear()
    await each_quiet.client.post(f"/v1/studies/{study}/stop")
    await until_closed(each_quiet, study)
    per_transaction = 13 // (2 * SIZE)  # cohorts
    assert transactions["CohortRepository.delete_bodies"] == COHORTS // per_transaction
    for row, count in ((BodyRow, 0), (MessageRow, COHORTS * SIZE * 2)):
        number = select(func.count()).select_from(row)
        assert await each_quiet.store.database.read(lambda s, n=number: s.scalar(n)) == count


async def test_bodies_that_a_killed_server_left_are_deleted_after_its_restart(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url, **QUIET) as served:
        study, devices = await join(served)
        await play(served, devices, "share", "check")
        await served.client.post(f"/v1/studies/{study}/stop")  # and no poll follows
        assert len(await served.store.cohorts.finished_with_bodies()) == COHORTS
    async with serve(sqlite_url) as again:
        await until_closed(again, study)


async def test_a_transaction_may_notify_more_channels_than_a_payload_holds(
    serve: Serve, postgres_url: str
) -> None:
    async with serve(postgres_url) as served:
        received, notifier = set[str](), served.service.notifier
        while not notifier.is_complete:  # noqa: ASYNC110  (there is no notification)
            await asyncio.sleep(0.01)
        database = served.store.database
        database.on_announcement = lambda _channels: None  # only what PostgreSQL sends
        notifier.observe(lambda names: received.update(names or ()))
        channels = {f"cohort {number}" for number in range(10**6, 10**6 + 2_000)}
        await database.write(lambda session: notify_on_commit(session, *sorted(channels)))
        async with asyncio.timeout(30):
            while not channels <= received:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
