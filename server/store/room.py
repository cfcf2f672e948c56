"""Room on the database's disk: found out by being refused for lack of it, and by trying again.

Rows that fit into pages which are there can be written long after an upload cannot, so a process
that was refused one tries with a row of that size before it says that it can serve.
"""

import asyncio
from base64 import b64encode
from dataclasses import dataclass, field
from secrets import token_bytes, token_hex

from sqlalchemy import delete
from sqlalchemy.orm import Session

from server.database import UNAVAILABLE, Database, writing
from server.schema import IdempotencyKey

_BYTES = 2**20
_SCOPE = "room"  # of rows that nobody asks for; what a killed process leaves is swept like others


@dataclass(frozen=True, slots=True)
class Room:
    """The book of what fits into the database."""

    database: Database
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def is_there(self) -> bool:
        """Return whether rows can be added, as far as this process was not told otherwise.

        Anybody may ask, so one who asks tries at a time; the others hear that there is none.
        """
        if not self.database.is_full:
            return True
        if self._turn.locked():
            return False
        async with self._turn:
            key = token_hex(16)
            try:
                await self._fill(key)
                await self._free(key)
            except UNAVAILABLE:
                return False
            self.database.is_full = False
        return True

    @writing
    def _fill(self, session: Session, key: str) -> None:
        answer = {"room": b64encode(token_bytes(_BYTES)).decode()}  # nothing that shrinks
        now = self.database.now(session)
        session.add(IdempotencyKey(scope=_SCOPE, key=key, digest=b"", answer=answer, created=now))

    @writing
    def _free(self, session: Session, key: str) -> None:
        row = (IdempotencyKey.scope == _SCOPE, IdempotencyKey.key == key)
        session.execute(delete(IdempotencyKey).where(*row))
