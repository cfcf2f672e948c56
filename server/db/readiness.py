"""Reasons for which a service is not ready, from one place.

An outage is noticed when a transaction fails (`database_errors.py`). A service without requests
has none, so each request to `/readyz` also tries the database, at most once a second and without a
change: it reads the schema's revision, and names all columns of all tables. On SQLite it begins a
transaction that writes nothing, unless another one was committed within the last second. For
example another process that holds SQLite's lock is noticed after
BLINDTALLY_DATABASE_TIMEOUT_SECONDS, and a revoked right of PostgreSQL in a second.

A full disk is noticed without a write to a table, too. The system states the room on the disk of
SQLite's file, and PostgreSQL writes a temporary file of a megabyte, in 8 ms.

An outage only ends by a poll (`server/rounds/orchestrator.py`), after `try_again`. If the disk was
full, small rows can still fit into existing pages long after an upload cannot, so that one writes a
row of an upload's size.
"""

import asyncio
import errno
import os
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from secrets import token_bytes, token_hex
from time import monotonic

from sqlalchemy import Connection, Table, delete, false, insert, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql import ClauseElement

from server.db import migrations
from server.db.columns import Base
from server.db.database import Repository, read_transaction, write_transaction
from server.db.database_errors import UNAVAILABLE_ERRORS
from server.db.schema import IdempotencyKeyRow

_PERIOD_SECONDS = 1.0  # between two probes
_PROBE_BYTES = 2**20
# PostgreSQL keeps the numbers in a file of a megabyte, because they exceed its working memory. It
# makes none if a person has limited such files.
WRITE_TEMPORARY_FILE = """
SET LOCAL work_mem = '64kB';
SELECT count(*) FROM generate_series(
    1, CASE current_setting('temp_file_limit') WHEN '-1' THEN 80000 END
)
"""
_PROBE_SCOPE = "write-probe"  # rows that a killed process leaves expire like other keys


@dataclass
class _Result:
    """Result of the last probe, which holds until `until` (monotonic seconds)."""

    reason: str | None = None
    until: float = 0.0


@dataclass(frozen=True)
class Readiness(Repository):
    """Checks of one database."""

    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _last: _Result = field(default_factory=_Result, init=False)

    async def reason(self) -> str | None:
        """Return the reason for which the service is not ready, None if it is.

        Any client may call this, so one call at a time probes; the others wait for its result.
        """
        async with self._lock:
            if self.database.outage.is_open:
                return self.database.outage.description
            if monotonic() >= self._last.until:
                self._last.reason = await self._probe()
                self._last.until = monotonic() + _PERIOD_SECONDS
            return self._last.reason

    async def _probe(self) -> str | None:
        seconds = self.database.max_wait_seconds + _PERIOD_SECONDS
        try:
            async with asyncio.timeout(seconds):
                if reason := await self._schema_fault():
                    return reason
                last_commit = self.database.last_commit
                if self.database.is_sqlite and monotonic() >= last_commit + _PERIOD_SECONDS:
                    await self.write_nothing()
        except UNAVAILABLE_ERRORS:
            return self.database.outage.description
        except TimeoutError:
            return f"the database has not answered for {seconds:g} s"
        return None

    async def try_again(self) -> None:
        """Try what the service needs of the database during an outage; raises what it raises."""
        if await self._schema_fault() is None:
            await self.write_nothing()
        if self.database.outage.is_full:
            key = token_hex(16)
            await self._write_large(key)
            await self._delete_large(key)
            self.database.outage.is_full = False

    @read_transaction
    def _schema_fault(self, session: Session) -> str | None:
        """Return the fault of another program's schema, None for this program's.

        Raises:
            OperationalError: if a table, a column or a right is gone, or the disk is full.
        """
        connection = session.connection()
        self._check_room(connection)
        revision, expected = migrations.revision(connection), migrations.head_revision()
        if revision != expected:
            return f"the database has schema {revision}, not {expected}"
        for statements in self._statements:
            connection.exec_driver_sql(statements)
        return None

    def _check_room(self, connection: Connection) -> None:
        """Raise an error if the database's disk has no room for an upload."""
        if not self.database.is_sqlite:
            connection.exec_driver_sql(WRITE_TEMPORARY_FILE)
            return
        if hasattr(os, "statvfs"):  # on POSIX
            disk = os.statvfs(Path(self.database.url.database or "").absolute().parent)
            if disk.f_bavail * disk.f_frsize < _PROBE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @cached_property
    def _statements(self) -> list[str]:
        """Return statements that name each column of each table, and use each right."""
        dialect = self.database.engine.dialect
        options = {"literal_binds": True}
        statements = [
            str(statement.compile(dialect=dialect, compile_kwargs=options))
            for table in Base.metadata.sorted_tables
            for statement in _uses(table, has_rights=not self.database.is_sqlite)
        ]
        # PostgreSQL takes them at once, in 3 ms; one by one they would take 20.
        return statements if self.database.is_sqlite else ["; ".join(statements)]

    @write_transaction
    def write_nothing(self, session: Session) -> None:
        """Begin a transaction that may write, and end it."""
        session.connection()

    @write_transaction
    def _write_large(self, session: Session, key: str) -> None:
        incompressible = b64encode(token_bytes(_PROBE_BYTES)).decode()
        row = IdempotencyKeyRow(scope=_PROBE_SCOPE, key=key, request_digest=b"")
        row.response, row.created = {"probe": incompressible}, self.database.now(session)
        session.add(row)

    @write_transaction
    def _delete_large(self, session: Session, key: str) -> None:
        row = (IdempotencyKeyRow.scope == _PROBE_SCOPE, IdempotencyKeyRow.key == key)
        session.execute(delete(IdempotencyKeyRow).where(*row))


def _uses(table: Table, *, has_rights: bool) -> Iterator[ClauseElement]:
    """Yield statements that concern no row of `table`; those that change it need rights."""
    nothing = select(table).where(false())
    yield nothing
    if has_rights:
        names = table.columns.keys()
        yield insert(table).from_select(names, nothing)
        yield update(table).where(false()).values({table.c[name]: table.c[name] for name in names})
        yield delete(table).where(false())
