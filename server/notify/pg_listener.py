"""Listener for the notifications of other server processes (PostgreSQL's LISTEN).

Without its connection the service is only slower, because each process still polls the database.
Meanwhile notifications of this process are not complete. After a reconnection every channel is
notified once, because notifications may have been missed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import stamina
import structlog

from server.db.channels import PG_CHANNEL
from server.db.database import Database
from server.notify.notifier import Notifier

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_MAX_RECONNECT_SECONDS = 10.0  # between two attempts to connect
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PgListener:
    """Listener of one process."""

    database: Database
    notifier: Notifier

    async def run(self) -> None:
        """Listen until cancelled; return at once if the database has no notifications."""
        if self.database.is_sqlite:
            return
        import psycopg  # noqa: PLC0415  (an extra that SQLite does not need)

        while True:
            connection = await self._connect()
            try:
                async for notification in connection.notifies():
                    self.notifier.notify(*notification.payload.split("\n"))
            except psycopg.Error as error:
                _log.warning("listener disconnected", error=type(error).__name__)
            finally:
                self.notifier.is_complete = False
                await connection.close()

    async def _connect(self) -> "AsyncConnection":
        """Return a listening connection; retry until there is one."""
        import psycopg  # noqa: PLC0415

        url, dialect = self.database.url, self.database.engine.dialect
        _, arguments = dialect.create_connect_args(url)
        attempts = stamina.retry_context(
            on=psycopg.Error, attempts=None, timeout=None, wait_max=_MAX_RECONNECT_SECONDS
        )
        async for attempt in attempts:
            with attempt:
                connection = await psycopg.AsyncConnection.connect(
                    **arguments, **self.database.connect_args, autocommit=True
                )
                try:
                    await connection.execute(f"LISTEN {PG_CHANNEL}")
                except BaseException:
                    await connection.close()
                    raise
        self.notifier.is_complete = True
        self.notifier.notify_all()
        _log.info("listener connected")
        return connection
