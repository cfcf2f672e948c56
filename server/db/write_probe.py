"""Probe of whether the database accepts writes, after it has refused one.

A database may serve reads and refuse writes: its disk is full, another process has locked it, or a
standby of PostgreSQL is not the primary yet. Small rows can still fit into existing pages long
after an upload cannot, so the probe is a row of an upload's size.
"""

import asyncio
from base64 import b64encode
from dataclasses import dataclass, field
from secrets import token_bytes, token_hex

from sqlalchemy import delete
from sqlalchemy.orm import Session

from server.db.database import Repository, write_transaction
from server.db.database_errors import UNAVAILABLE_ERRORS
from server.db.schema import IdempotencyKeyRow

_PROBE_BYTES = 2**20
_PROBE_SCOPE = "write-probe"  # rows that a killed process leaves expire like other keys


@dataclass(frozen=True, slots=True)
class WriteProbe(Repository):
    """Test of whether the database accepts writes."""

    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def accepts_writes(self) -> bool:
        """Return whether the database accepts writes, as far as this process knows.

        Any client may call this, so one call at a time probes; the others wait for its result.
        """
        if not self.database.refuses_writes:
            return True
        if self._lock.locked():
            async with self._lock:
                return not self.database.refuses_writes
        async with self._lock:
            key = token_hex(16)
            try:
                await self._write_probe(key)
                await self._delete_probe(key)
            except UNAVAILABLE_ERRORS:
                return False
            self.database.refuses_writes = False
        return True

    @write_transaction
    def _write_probe(self, session: Session, key: str) -> None:
        incompressible = b64encode(token_bytes(_PROBE_BYTES)).decode()
        row = IdempotencyKeyRow(scope=_PROBE_SCOPE, key=key, request_digest=b"")
        row.response, row.created = {"probe": incompressible}, self.database.now(session)
        session.add(row)

    @write_transaction
    def _delete_probe(self, session: Session, key: str) -> None:
        row = (IdempotencyKeyRow.scope == _PROBE_SCOPE, IdempotencyKeyRow.key == key)
        session.execute(delete(IdempotencyKeyRow).where(*row))
