"""Being there: deadlines and silence count only while some process could hear.

Each process says every second that it is there (`server/store/processes.py`). One that starts,
or has its database back, asks first whether another one is: if so nothing was missed, and
phases that the other kept hearing go on as they are. If not, what waits gets the time back in
which nobody was heard, and silence counts from when devices may have come back.

A row says when its process was seen last, not that it lives: one that was killed a moment ago
left the same row. So whoever asks watches until the row is written again, or too old. SQLite
has one process, which need not ask.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic

import structlog

from protocol.messages import RETRY_SECONDS
from server.database import UNAVAILABLE, reason
from server.store import Store
from server.store.processes import FRESH

_BEAT = 1.0  # seconds
_LOOK = 0.1  # seconds between two looks at who else is there
_log = structlog.get_logger(__name__)


@dataclass
class Presence:
    """Whether this process hears, and since when.

    Attributes:
        since: from when on silence counts, as far as this process knows.
        is_deaf: whether the database was away, so that `arrive` is to be done.
    """

    store: Store
    name: str
    since: datetime | None = field(default=None, init=False)
    is_deaf: bool = field(default=True, init=False)

    async def arrive(self) -> None:
        """Give back the time in which nobody was heard, if that is so; then be seen."""
        if await self._is_another_there():
            _log.info("another process is there: phases go on as they are")
        else:
            await self.store.leases.release_others(self.name)
            resumed = await self.store.cohorts.resume()
            _log.info("no other process is there: what waits gets its time back", cohorts=resumed)
        # Last of all: what comes before may take as long as an outage, and that is no silence.
        now = await self.store.database.read(self.store.database.now)
        if await self.store.cohorts.waiting():
            # Devices that found no service come back within this time: that is no silence.
            now += timedelta(seconds=RETRY_SECONDS)
        self.since = now
        await self._beat()
        self.is_deaf = False

    async def run(self) -> None:
        """Be seen until cancelled; go deaf where that cannot be written."""
        while not self.store.database.is_sqlite:
            await asyncio.sleep(_BEAT)
            if self.is_deaf:
                continue
            try:
                await self._beat()
            except UNAVAILABLE:
                self.is_deaf = True

    async def leave(self) -> None:
        """Be no longer there, for others to know at once."""
        try:
            await self.store.processes.leave(self.name)
        except UNAVAILABLE as error:  # they know in a moment
            _log.warning("database unavailable", error=reason(error))

    async def _beat(self) -> None:
        if self.since is not None and not self.store.database.is_sqlite:
            await self.store.processes.beat(self.name, self.since)

    async def _is_another_there(self) -> bool:
        if self.store.database.is_sqlite:
            return False
        before = await self.store.processes.others(self.name)
        late = monotonic() + FRESH.total_seconds()
        while before and monotonic() < late:
            await asyncio.sleep(_LOOK)
            now = await self.store.processes.others(self.name)
            if any(before.get(name) != beats for name, beats in now.items()):
                return True
            before = now
        return False
