"""Group commit: writes that arrive during a commit share the next one.

A commit waits for the disk, so a transaction per write is slow, and costs the processor more than
its statements. The first write starts a transaction at once; those that arrive meanwhile form the
next group, together with those of requests that the event loop has received but not yet run. No
write waits for a timer, and each is acknowledged only after its commit. Sums of small cohorts use
the same queue to be read in one transaction, and computed in one thread.

INSERT statements of tables with a row for each message or device are compiled once: for each row
that it inserts SQLAlchemy takes several times as long as SQLite. Here only the types of the columns
convert the values, and the driver gets all rows at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from sqlalchemy import Connection, Dialect, Table, insert
from sqlalchemy.exc import IntegrityError

from server.db.database_errors import UNAVAILABLE_ERRORS

T = TypeVar("T")
R = TypeVar("R")
MAX_GROUP_WRITES: Final = 256
_YIELDS: Final = 2  # steps of the event loop: one receives requests, the next one runs them
_MAX_GROUP_BYTES: Final = 16 * 2**20  # of bodies, which the transaction holds in memory


class GroupCommit(Generic[T, R]):
    """Queue of writes, of which `commit` stores a group in one transaction.

    `commit` returns one result for each write, in order: an exception refuses that write alone, and
    the transaction must not have stored anything of it. If the transaction fails while the database
    is available, its halves are repeated, so that no write fails because of another one. A single
    write is repeated once if a key exists already. If the database is unavailable, the writes that
    have waited for the transaction fail with it. `nbytes` is the size of a write. A group is sorted
    by `order`, so that two groups of different processes lock rows in one order.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[T]], Awaitable[Sequence[R | Exception]]],
        nbytes: Callable[[T], int] = lambda _: 0,
        order: Callable[[T], str] = lambda _: "",
    ) -> None:
        self.commit = commit
        self._nbytes = nbytes
        self._order = order
        self._running: list[tuple[T, asyncio.Future[R]]] = []
        self.waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, write: T) -> R:
        """Return the result of `write` after its commit.

        A caller that is cancelled does not withdraw its write.
        """
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.waiting.append((write, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="group commit")
            self._task.add_done_callback(self._on_end)
        return await future

    @property
    def is_idle(self) -> bool:
        """Return whether no write waits."""
        return not self._running and not self.waiting

    async def settled(self) -> None:
        """Wait until the writes that have arrived are committed or refused.

        Those of cancelled callers are left out.
        """
        arrived = (future for _, future in (*self._running, *self.waiting))
        if unsettled := [future for future in arrived if not future.done()]:
            await asyncio.wait(unsettled)

    async def _run(self) -> None:
        while self.waiting:
            for _ in range(_YIELDS):
                await asyncio.sleep(0)
            size = self._next_group_size()
            group, self.waiting = self.waiting[:size], self.waiting[size:]
            self._running, older = group, len(self.waiting)
            group.sort(key=lambda write: self._order(write[0]))
            try:
                results = await self._results([write for write, _ in group])
            except BaseException:  # a cancellation, or a fault that ends the task
                for _, future in group:
                    future.cancel()
                raise
            finally:
                self._running = []  # what is in the writes may be secret, or large
            if all(isinstance(result, UNAVAILABLE_ERRORS) for result in results):
                # They have waited as long, and another attempt may take as long again.
                group, self.waiting = group + self.waiting[:older], self.waiting[older:]
                results = [*results, *(results[-1] for _ in range(older))]
            for (_, future), result in zip(group, results, strict=True):
                if future.cancelled():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """End the callers that still wait, because the task was cancelled."""
        if task is self._task:  # no other one has followed it
            for _, future in self.waiting:
                future.cancel()
            self.waiting = []

    def _next_group_size(self) -> int:
        size = nbytes = 0
        for write, _ in self.waiting[:MAX_GROUP_WRITES]:
            nbytes += self._nbytes(write)
            if size and nbytes > _MAX_GROUP_BYTES:
                break
            size += 1
        return size

    async def _results(
        self, writes: Sequence[T], *, is_repetition: bool = False
    ) -> Sequence[R | Exception]:
        try:
            return await self.commit(writes)
        except UNAVAILABLE_ERRORS as error:
            return [error] * len(writes)
        except Exception as error:  # of one of them; nothing was stored
            # Another process may have stored the same message: the repetition finds it.
            may_succeed = isinstance(error, IntegrityError) and not is_repetition
            if len(writes) == 1 and not may_succeed:
                return [error]
        # One by one, the last ones of a large group would be stored seconds later.
        middle, results = len(writes) // 2, list[R | Exception]()
        for half in filter(None, (writes[:middle], writes[middle:])):
            results += await self._results(half, is_repetition=len(writes) == 1)
        return results


_Convert: TypeAlias = Callable[[Any], Any]


class PreparedInsert:
    """INSERT into the table of `row_class`, with a value for each of its columns."""

    def __init__(self, row_class: Any) -> None:  # noqa: ANN401 - a class of the schema
        self._table = cast("Table", row_class.__table__)
        self._compiled: dict[str, tuple[str, list[str], dict[str, _Convert]]] = {}  # by dialect

    def __call__(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Insert `rows`; raises IntegrityError if one of them exists.

        The transaction must then be rolled back.
        """
        dialect = connection.dialect
        if dialect.name not in self._compiled:
            self._compiled[dialect.name] = self._compile(dialect)
        statement, names, conversions = self._compiled[dialect.name]
        converted = [
            row | {name: convert(row[name]) for name, convert in conversions.items()}
            for row in rows
        ]
        if dialect.positional:
            tuples = [tuple(map(row.__getitem__, names)) for row in converted]
            connection.exec_driver_sql(statement, tuples)
        else:
            connection.exec_driver_sql(statement, converted)

    def _compile(self, dialect: Dialect) -> tuple[str, list[str], dict[str, _Convert]]:
        columns = self._table.columns
        names = columns.keys()
        compiled = insert(self._table).compile(dialect=dialect, column_keys=names)
        conversions: dict[str, _Convert] = {
            column.key: convert
            for column in columns
            if (convert := column.type.dialect_impl(dialect).bind_processor(dialect)) is not None
        }
        return str(compiled), names, conversions
