"""Heartbeat of a server process: deadlines and patience only count while a server can receive.

A process that starts, or whose database accepts writes again, first checks whether another process
is alive. If so, phases continue as they are. Otherwise pending cohorts get the time back in which
no server could receive. A process that was killed a moment ago leaves the same row as a living one,
so the check waits until the row is written again or is too old. SQLite has one process.

After a jump of the database's clock, each process that notices it extends deadlines, whether
another one is alive or not: the jump is the same for all.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic

import structlog

from protocol.api.messages import MAX_RETRY_SECONDS
from server.db.database_errors import UNAVAILABLE_ERRORS, loggable_reason
from server.db.repositories.leases import ALIVE_WITHIN
from server.db.store import Store

_HEARTBEAT_SECONDS = 1.0
_CHECK_SECONDS = 0.1  # between two checks of the other processes
_log = structlog.get_logger(__name__)


@dataclass
class Heartbeat:
    """State of this process: connected to its database or not, and since when.

    Attributes:
        receiving_since: the time from which patience counts, as far as this process knows.
    """

    store: Store
    name: str
    receiving_since: datetime | None = field(default=None, init=False)
    handled_jumps: int = field(default=0, init=False)

    @property
    def is_disconnected(self) -> bool:
        """True if there was an outage of the database: `start` must run again."""
        return self.store.database.has_lost_time

    async def start(self) -> None:
        """Extend deadlines if no server could receive for a time; then write a heartbeat."""
        jumps = self.store.database.clock_jumps.count
        if jumps > self.handled_jumps:
            resumed = await self.store.cohorts.extend_deadlines()
            _log.info("the database's clock jumped: deadlines extended", cohorts=resumed)
        elif await self._is_another_alive():
            _log.info("another process is alive: phases continue")
        else:
            await self.store.leases.release_others(self.name)
            resumed = await self.store.cohorts.extend_deadlines()
            if resumed and not self.store.database.outage.is_open:  # whose end is logged
                _log.info("no other process is alive: deadlines extended", cohorts=resumed)
        # At the end: the steps above may last as long as an outage, which is not silence.
        now = await self.store.database.read_now()
        if await self.store.cohorts.pending():
            # Devices that could not connect retry within this time, which is not silence either.
            now += timedelta(seconds=MAX_RETRY_SECONDS)
        self.receiving_since = now
        await self.beat()
        self.handled_jumps = jumps
        self.store.database.has_lost_time = self.store.database.clock_jumps.count > jumps

    async def run(self) -> None:
        """Write heartbeats until cancelled; become disconnected if that fails."""
        while not self.store.database.is_sqlite:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            if self.is_disconnected:
                continue
            try:
                await self.beat()
            except UNAVAILABLE_ERRORS:
                self.store.database.has_lost_time = True

    async def stop(self) -> None:
        """Remove this process, so that others see at once that it has stopped."""
        try:
            await self.store.processes.remove(self.name)
        except UNAVAILABLE_ERRORS as error:  # others see it when the heartbeat is too old
            _log.debug("database unavailable", error=loggable_reason(error))

    async def beat(self) -> None:
        if self.receiving_since is not None and not self.store.database.is_sqlite:
            await self.store.processes.beat(self.name, self.receiving_since)

    async def _is_another_alive(self) -> bool:
        if self.store.database.is_sqlite:
            return False
        before = await self.store.processes.other_heartbeats(self.name)
        deadline = monotonic() + ALIVE_WITHIN.total_seconds()
        while before and monotonic() < deadline:
            await asyncio.sleep(_CHECK_SECONDS)
            now = await self.store.processes.other_heartbeats(self.name)
            if any(before.get(name) != heartbeats for name, heartbeats in now.items()):
                return True
            before = now
        return False
