"""Group commit: who shares a commit, and that no write suffers from another one."""

import asyncio
import weakref
from collections.abc import Sequence

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from server.db.group_commit import GroupCommit


class Commits:
    """Commits that record their groups; writes of 13 are refused, those of `broken` fail."""

    def __init__(self, broken: type[Exception] | None = None) -> None:
        self.groups: list[list[int]] = []
        self.broken = broken

    async def __call__(self, writes: Sequence[int]) -> list[int | Exception]:
        self.groups.append([*writes])
        await asyncio.sleep(0)
        if self.broken is IntegrityError and 7 in writes:
            raise IntegrityError("INSERT", None, Exception("unique"))
        if self.broken is ArithmeticError and 7 in writes:
            raise ArithmeticError("a fault of this program")
        if self.broken is OperationalError:
            raise OperationalError("INSERT", None, Exception("locked"))
        return [ValueError("refused") if write == 13 else -write for write in writes]


async def test_writes_that_arrive_during_a_commit_share_the_next_one() -> None:
    commits = Commits()
    store = GroupCommit(commits)
    first = asyncio.create_task(store(1))
    for _ in range(4):
        await asyncio.sleep(0)
    assert commits.groups == [[1]]  # its commit has begun
    assert await asyncio.gather(*(store(n) for n in (2, 3, 4))) == [-2, -3, -4]
    assert await first == -1
    assert commits.groups == [[1], [2, 3, 4]]


async def test_a_request_that_has_arrived_before_a_commit_shares_it() -> None:
    commits = Commits()
    store = GroupCommit(commits)
    first = asyncio.create_task(store(1))
    await asyncio.sleep(0)  # its commit is next
    assert await store(2) == -2
    assert await first == -1
    assert commits.groups == [[1, 2]]


async def test_nothing_of_a_write_is_kept_after_its_commit() -> None:
    class Write:
        pass

    async def commit(writes: Sequence[Write]) -> list[None]:
        return [None] * len(writes)

    store, write = GroupCommit(commit), Write()
    alive = weakref.ref(write)
    await store(write)
    del write
    assert alive() is None


async def test_a_commit_that_ends_its_task_ends_the_callers_that_wait() -> None:
    class ProgramEnd(BaseException):
        pass

    async def commit(_writes: Sequence[int]) -> list[None]:
        await asyncio.sleep(0)
        raise ProgramEnd

    store = GroupCommit(commit)
    async with asyncio.timeout(10):
        results = await asyncio.gather(*(store(n) for n in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 3


async def test_a_refusal_reaches_its_caller_only() -> None:
    results = await asyncio.gather(*map(GroupCommit(Commits()), (1, 13, 2)), return_exceptions=True)
    assert results[::2] == [-1, -2]
    assert isinstance(results[1], ValueError)


@pytest.mark.parametrize("error", [IntegrityError, ArithmeticError])
async def test_a_write_that_makes_its_transaction_fail_fails_alone(error: type[Exception]) -> None:
    commits = Commits(error)
    results = await asyncio.gather(*map(GroupCommit(commits), (6, 7, 8)), return_exceptions=True)
    assert results[::2] == [-6, -8]
    assert isinstance(results[1], error)
    repeated = [[7]] if error is IntegrityError else []  # another process may have stored it
    assert commits.groups[1:] == [[6], [7, 8], [7], *repeated, [8]]


async def test_a_single_write_whose_key_another_process_has_stored_is_repeated() -> None:
    attempts = list[int]()

    async def commit(writes: Sequence[int]) -> list[int | Exception]:
        attempts.append(len(writes))
        if len(attempts) == 1:
            raise IntegrityError("INSERT", None, Exception("unique"))
        return [-write for write in writes]

    assert await GroupCommit(commit)(5) == -5
    assert attempts == [1, 1]


async def test_one_fault_among_many_writes_repeats_few_transactions() -> None:
    commits = Commits(ArithmeticError)
    results = await asyncio.gather(*map(GroupCommit(commits), range(200, 455)))
    assert results == [-n for n in range(200, 455)]
    store = GroupCommit(commits)
    results = await asyncio.gather(*map(store, range(256)), return_exceptions=True)
    assert [n for n, result in enumerate(results) if result != -n and n != 13] == [7]
    assert len(commits.groups) == 1 + 17  # two for each of eight halvings


async def test_an_unavailable_database_fails_the_whole_group_at_once() -> None:
    commits = Commits(OperationalError)
    results = await asyncio.gather(*map(GroupCommit(commits), (1, 2)), return_exceptions=True)
    assert [type(result) for result in results] == [OperationalError] * 2
    assert commits.groups == [[1, 2]]


async def test_an_unavailable_database_fails_what_has_waited_for_it() -> None:
    """Otherwise each of many groups would wait for the database, one after the other."""
    commits = Commits(OperationalError)
    groups = GroupCommit(commits, lambda _: 2**24)
    results = await asyncio.gather(*map(groups, range(5)), return_exceptions=True)
    assert {type(result) for result in results} == {OperationalError}
    assert commits.groups == [[0]]


async def test_a_group_holds_a_limited_number_of_bytes() -> None:
    commits = Commits()
    await asyncio.gather(*map(GroupCommit(commits, lambda _: 6 * 2**20), range(5)))
    assert commits.groups == [[0, 1], [2, 3], [4]]


def cancel_commits() -> None:
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "group commit")
    task.cancel()


async def test_callers_end_when_the_commits_are_cancelled() -> None:
    store: GroupCommit[int, int] = GroupCommit(Commits())
    callers = [asyncio.create_task(store(n)) for n in (1, 2)]
    await asyncio.sleep(0)
    cancel_commits()
    async with asyncio.timeout(10):
        results = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2
    assert await store(3) == -3


async def test_a_caller_that_comes_with_the_cancellation_leaves_no_other_waiting() -> None:
    gate = asyncio.Event()

    async def commit(writes: Sequence[int]) -> list[int | Exception]:
        await gate.wait()
        return [*writes]

    store: GroupCommit[int, int] = GroupCommit(commit)
    first = asyncio.create_task(store(1))
    for _ in range(4):
        await asyncio.sleep(0)
    cancel_commits()
    second = asyncio.create_task(store(2))
    gate.set()
    async with asyncio.timeout(10):
        await asyncio.gather(first, second, return_exceptions=True)
    assert first.cancelled()


async def test_a_group_is_stored_in_one_order_and_each_caller_gets_its_result() -> None:
    commits = Commits()
    store = GroupCommit(commits, order=lambda write: f"{write:03}")
    assert await asyncio.gather(*map(store, (9, 2, 40, 5))) == [-9, -2, -40, -5]
    assert commits.groups == [[2, 5, 9, 40]]


async def test_a_caller_that_is_cancelled_withdraws_nothing() -> None:
    commits = Commits()
    store = GroupCommit(commits)
    first, second = (asyncio.create_task(store(n)) for n in (1, 2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second == -2
    assert 1 in commits.groups[0]
