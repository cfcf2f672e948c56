"""Listener for the notifications of other server processes (PostgreSQL's LISTEN).

Without its connection the service is only slower, because each process still polls the database.
Meanwhile notifications of this process are not complete. After a reconnection every channel is
notified once, because notifications may have been missed.

PgBouncer accepts LISTEN and passes no notifications on if it shares connections by transaction. So
a process sends itself one every few seconds, and its notifications are complete while they arrive.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING

import structlog

from server.db.channels import PG_CHANNEL, notify_on_commit
from server.db.database import Database
from server.db.database_errors import UNAVAILABLE_ERRORS
from server.notify.notifier import Notifier

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_RECONNECT_SECONDS = 1.0  # between two attempts to connect
_CHECK_SECONDS = 5.0  # between two notifications to itself, and for the way of each
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PgListener:
    """Listener of one process."""

    database: Database
    notifier: Notifier
    _own_channel: str = field(default_factory=lambda: f"listener {token_hex(8)}", init=False)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Listen until cancelled; return at once if the database has no notifications."""
        if self.database.is_sqlite:
            return
        import psycopg  # noqa: PLC0415  (an extra that SQLite does not need)

        while True:
            try:
                connection = await self._connect()
            except psycopg.Error:  # an outage, which is logged once
                await asyncio.sleep(_RECONNECT_SECONDS)
                continue
            checks = asyncio.create_task(self._check())
            try:
                async for notification in connection.notifies():
                    if notification.payload == self._own_channel:
                        self._arrived.set()
                    else:
                        self.notifier.notify(*notification.payload.split("\n"))
            except psycopg.Error as error:
                _log.warning("listener disconnected", error=type(error).__name__)
            finally:
                checks.cancel()
                await asyncio.gather(checks, return_exceptions=True)
                self.notifier.is_complete = False
                await connection.close()
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _check(self) -> None:
        """Keep noting whether a notification of this process arrives, until cancelled."""
        before: bool | None = None
        while True:
            self._arrived.clear()
            with suppress(TimeoutError, *UNAVAILABLE_ERRORS):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self.database.write(
                        lambda session: notify_on_commit(session, self._own_channel)
                    )
                    await self._arrived.wait()
            self.notifier.is_complete = self._arrived.is_set()
            if self.notifier.is_complete != before:
                before = self.notifier.is_complete
                self._report(before)
            await asyncio.sleep(_CHECK_SECONDS)

    def _report(self, is_complete: bool) -> None:
        if is_complete:
            self.notifier.notify_all()
            _log.info("listener connected")
        else:
            _log.warning("no notifications arrive: what other processes change is polled")

    async def _connect(self) -> "AsyncConnection":
        """Return a new listening connection; raises psycopg.Error if there is none."""
        import psycopg  # noqa: PLC0415

        url, dialect = self.database.url, self.database.engine.dialect
        _, arguments = dialect.create_connect_args(url)
        connection = await psycopg.AsyncConnection.connect(
            **arguments, **self.database.connect_args, autocommit=True
        )
        try:
            await connection.execute(f"LISTEN {PG_CHANNEL}")
        except BaseException:
            await connection.close()
            raise
        return connection
