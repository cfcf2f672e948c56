"""Journal of a committee's member: its messages of each sum, on the disk before they are sent.

    key -> committee -> complaints -> attempt to agree -> signature -> sum (erases the key)

A member has one key for one sum, binds it to one committee, and agrees on one set of messages. If
it was killed after it began to agree, and before it signed, it may sign this set and no other. Each
value is written once, so that a process that runs twice by mistake signs no second set either.

A key whose sum was never opened is erased once the service shows that the round is over, or two
readings of the clock agree that the key is a month old (`protocol/clock_readings.py`).
"""

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from client.committee.private_database import open_private_database
from protocol.clock_readings import DAY_SECONDS, ClockReadings

_SCHEMA: Final = """
PRAGMA synchronous = FULL;
PRAGMA secure_delete = ON;
CREATE TABLE IF NOT EXISTS sums (
    plan BLOB PRIMARY KEY, secret BLOB, committee BLOB, complaints BLOB, attempt BLOB,
    signature BLOB, sum BLOB, made INTEGER, study TEXT, round INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS clock (
    id INTEGER PRIMARY KEY CHECK (id = 1), latest REAL NOT NULL, confirmed REAL NOT NULL
);
"""
KEEP_KEYS_SECONDS: Final = 30 * DAY_SECONDS
_COLUMNS: Final = ("secret", "committee", "complaints", "attempt", "signature", "sum")


@dataclass(frozen=True, slots=True)
class KeptKey:
    """A key that was not used up: the digest of its plan, and its round."""

    plan: bytes
    study: str
    round: int


class MemberJournalError(RuntimeError):
    """The journal has another value, or is not a journal, so nothing may be sent."""


class UnwritableJournalError(RuntimeError):
    """The journal cannot be written now, for example on a full disk, so nothing may be sent yet."""


@dataclass(frozen=True, slots=True)
class MemberEntry:
    """Values that a member has made for a sum; None: not yet, or erased.

    `attempt` is the digest of the one set that it may sign.
    """

    secret: bytes | None = field(default=None, repr=False)
    committee: bytes | None = None
    complaints: bytes | None = None
    attempt: bytes | None = None
    signature: bytes | None = None
    sum: bytes | None = field(default=None, repr=False)


class MemberJournal:
    """Journal in the SQLite file at `path`, which only its owner may read.

    Without a path it ends with the process.

    Raises:
        MemberJournalError: if the file cannot be used.
    """

    def __init__(self, path: Path | None = None) -> None:
        try:
            self._connection = open_private_database(self, path, _SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise MemberJournalError(f"cannot use the journal {path}: {error}") from None

    def entry(self, plan: bytes) -> MemberEntry:
        """Return the values that were made for the sum of the plan with this digest."""
        query = f"SELECT {', '.join(_COLUMNS)} FROM sums WHERE plan = ?"  # noqa: S608 - constants
        row = self._execute(query, plan).fetchone()
        return MemberEntry() if row is None else MemberEntry(*row)

    def key(self, kept: KeptKey, fresh: bytes, now: float) -> bytes:
        """Return the secret half of the key for a sum: `fresh`, unless the journal has one.

        `now` is in seconds since 1970.

        Raises:
            MemberJournalError: if the key was erased.
        """
        columns = "plan, secret, made, study, round"
        query = f"INSERT OR IGNORE INTO sums ({columns}) VALUES (?, ?, ?, ?, ?)"  # noqa: S608
        self._execute(query, kept.plan, fresh, int(now), kept.study, kept.round)
        secret = self.entry(kept.plan).secret
        if secret is None:
            raise MemberJournalError("the key of this sum was erased")
        return secret

    def bind(self, plan: bytes, committee: bytes) -> None:
        """Use the key in the committee with this digest, and in no other."""
        self._write_once("committee", plan, committee)

    def complain(self, plan: bytes, body: bytes) -> None:
        """Record the complaints, which may then be sent."""
        self._write_once("complaints", plan, body)

    def attempt(self, plan: bytes, set_digest: bytes) -> None:
        """Record the one set of messages that may be signed, before it is checked."""
        self._write_once("attempt", plan, set_digest)

    def sign(self, plan: bytes, signature: bytes) -> None:
        """Record the signature over the set, which may then be sent."""
        self._write_once("signature", plan, signature)

    def release(self, plan: bytes, body: bytes) -> None:
        """Record the sum of the shares, which may then be sent, and erase the key."""
        self._write_once("sum", plan, body)
        self.erase_key(plan)

    def kept_keys(self) -> list[KeptKey]:
        """Return the keys of the sums that this member has not opened."""
        query = "SELECT plan, study, round FROM sums WHERE secret IS NOT NULL"
        return [KeptKey(*row) for row in self._execute(query)]

    def erase_key(self, plan: bytes) -> None:
        """Erase the key of a sum that is open, or whose round is over."""
        self._execute("UPDATE sums SET secret = NULL WHERE plan = ?", plan)

    def erase_old_keys(self, now: float) -> None:
        """Read the clock, and erase the keys that are certainly a month old.

        Otherwise a stolen journal would open messages that a server has kept. `now` is in seconds
        since 1970. A clock that is wrong for less than a day erases no key.
        """
        row = self._execute("SELECT latest, confirmed FROM clock").fetchone()
        readings = ClockReadings(now) if row is None else ClockReadings(*row).after(now)
        query = "INSERT OR REPLACE INTO clock (id, latest, confirmed) VALUES (1, ?, ?)"
        self._execute(query, readings.latest, readings.confirmed)
        query = "UPDATE sums SET secret = NULL WHERE made < ?"
        self._execute(query, readings.confirmed - KEEP_KEYS_SECONDS)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _write_once(self, column: str, plan: bytes, value: bytes) -> None:
        """Write a value of a sum; raises MemberJournalError if it has another, or no key."""
        query = f"UPDATE sums SET {column} = ? WHERE plan = ? AND {column} IS NULL"  # noqa: S608
        self._execute(query, value, plan)
        if getattr(self.entry(plan), column) != value:
            raise MemberJournalError(f"the journal has another {column} for this sum, or no key")

    def _execute(self, query: str, *parameters: bytes | float | str) -> sqlite3.Cursor:
        try:
            return self._connection.execute(query, parameters)
        except sqlite3.Error as error:
            raise UnwritableJournalError(f"the journal cannot be written: {error}") from None
