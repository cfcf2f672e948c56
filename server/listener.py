"""Changes between processes: PostgreSQL says in which cohort or study something moved.

`announce` is part of the transaction that moves, so nobody hears of what is taken back, and
whoever hears reads what is committed. Each process listens on a connection of its own, rings
the bells that are named (`server/watch.py`) and wakes its orchestrator, for there is another
deadline now. Uploads are not announced: the process that took one looks itself, and NOTIFY
lets transactions that use it commit one after the other.

Without the connection nothing is lost but speed: looking every `poll` seconds goes on, and is
all that SQLite has. It is made again with growing pauses, and then every bell rings once, for
what was said meanwhile.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import stamina
import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.database import Database
from server.watch import Watch

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_CHANNEL = "blindtally"
_MOST_BYTES = 7000  # of names in one notice; PostgreSQL takes 8000 bytes
_MOST_PAUSE = 10.0  # seconds between two tries to connect
_log = structlog.get_logger(__name__)


def announce(session: Session, *bells: str) -> None:
    """Tell every process, once this transaction is committed, that these bells ring."""
    if session.get_bind().dialect.name == "postgresql":
        for notice in _notices(bells):
            session.execute(select(func.pg_notify(_CHANNEL, notice)))


def _notices(bells: tuple[str, ...]) -> Iterator[str]:
    """Yield the names in lines, so many at a time as one notice takes."""
    lines: list[str] = []
    for bell in bells:
        if lines and sum(len(line.encode()) + 1 for line in (*lines, bell)) > _MOST_BYTES:
            yield "\n".join(lines)
            lines = []
        lines.append(bell)
    if lines:
        yield "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Listener:
    """The ear of one process."""

    database: Database
    watch: Watch
    wake: Callable[[], None]

    async def run(self) -> None:
        """Listen until cancelled; return at once if the database has nothing to listen to."""
        if self.database.is_sqlite:
            return
        import psycopg  # noqa: PLC0415  (an extra: whoever uses SQLite need not have it)

        while True:
            connection = await self._connect()
            try:
                async for notice in connection.notifies():
                    self.watch.ring(*notice.payload.split("\n"))
                    self.wake()
            except psycopg.Error as error:
                _log.warning("listener lost its connection", error=type(error).__name__)
            finally:
                await connection.close()

    async def _connect(self) -> "AsyncConnection":
        """Return a connection that listens, however long it takes to get one."""
        import psycopg  # noqa: PLC0415

        url, dialect = self.database.url, self.database.engine.dialect
        _, how = dialect.create_connect_args(url)
        forever = stamina.retry_context(
            on=psycopg.Error, attempts=None, timeout=None, wait_max=_MOST_PAUSE
        )
        async for attempt in forever:
            with attempt:
                connection = await psycopg.AsyncConnection.connect(
                    **how, **self.database.connecting, autocommit=True
                )
                try:
                    await connection.execute(f"LISTEN {_CHANNEL}")
                except BaseException:
                    await connection.close()
                    raise
        self.watch.ring_all()
        self.wake()
        _log.info("listener hears other processes")
        return connection
