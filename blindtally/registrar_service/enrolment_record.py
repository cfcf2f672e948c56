"""Record of a registrar: its tokens, the studies it signs for, and the identities it enrolled.

It is a SQLite file next to the key. A *person* is the SHA-256 of what a device proves to have: a
token, an account, or a name that the operator's command gives. A person gets one identity in a
study, and the same answer for the same request. A token has 256 random bits, so its hash reveals
nothing.

Each change has the next number, which is also in a file in the user's cache folder, where backups
do not reach. So a registrar notices that its record is an older copy, in which spent tokens are
unspent and revoked ones valid.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from threading import Lock
from typing import Final, NamedTuple

from platformdirs import user_cache_path

from client.committee.private_database import open_private_database
from client.process_files import make_private_file
from protocol.api.credentials import REGISTRAR_TOKEN_PREFIX, new_secret
from protocol.api.messages import ProblemType
from server.db.database_url import file_identity
from server.errors import ProblemError

_SCHEMA: Final = """
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS changes (number INTEGER NOT NULL);
INSERT INTO changes SELECT 0 WHERE NOT EXISTS (SELECT * FROM changes);
CREATE TABLE IF NOT EXISTS tokens
    (digest BLOB PRIMARY KEY, is_once INTEGER NOT NULL, expires REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS studies (id TEXT PRIMARY KEY, scope BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS enrolments
    (person BLOB, scope BLOB, identity BLOB NOT NULL, at REAL NOT NULL, PRIMARY KEY (person, scope))
    WITHOUT ROWID;
"""


class OlderCopyError(ValueError):
    """The file is an older copy of the record, so that tokens could be spent twice."""


class Person(NamedTuple):
    """A party that has proved to be real; with `is_once` it is enrolled in one study only."""

    digest: bytes
    is_once: bool = False


def person_of(text: str) -> Person:
    return Person(sha256(text.encode()).digest())


class EnrolmentRecord:
    """The record in the file at `path`, of the registrar with the key `public`.

    Raises:
        OlderCopyError: if the file is older than the last one that this user's registrar had.
        OSError, sqlite3.Error: if it cannot be used.
    """

    def __init__(self, path: Path, public: bytes) -> None:
        self._path = path
        self._lock = Lock()
        self._connection = open_private_database(self, path, _SCHEMA)
        self._identity = file_identity(path)
        folder = user_cache_path("blindtally") / "registrars"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._last_number = folder / public.hex()[:32]
        make_private_file(self._last_number)
        self._check_age()

    def check(self) -> None:
        """Check that the file can be written and was not replaced; raises sqlite3.Error."""
        if file_identity(self._path) != self._identity:
            raise sqlite3.OperationalError("the file was removed or replaced")
        if not os.access(self._path, os.W_OK):
            raise sqlite3.OperationalError("the file cannot be written")
        with self._change():
            pass

    def add_tokens(
        self, count: int, secrets: Random, expires: float | None, *, is_once: bool
    ) -> list[str]:
        """Return `count` new tokens, of which the record has the hashes."""
        tokens = [new_secret(secrets, REGISTRAR_TOKEN_PREFIX) for _ in range(count)]
        rows = ((person_of(token).digest, is_once, expires) for token in tokens)
        with self._change():
            self._connection.executemany("INSERT INTO tokens VALUES (?, ?, ?)", rows)
        return tokens

    def revoke(self, token: str) -> bool:
        """Refuse `token` from now on; return whether there is such a token."""
        with self._change() as execute:
            digest = person_of(token).digest
            return execute("DELETE FROM tokens WHERE digest = ?", (digest,)).rowcount == 1

    def holder(self, token: str, now: float) -> Person | None:
        """Return the holder of `token`; None if it is unknown, expired or revoked."""
        digest = person_of(token).digest
        statement = "SELECT is_once FROM tokens WHERE digest = ? AND coalesce(expires > ?, TRUE)"
        with self._lock:
            row = self._connection.execute(statement, (digest, now)).fetchone()
        return None if row is None else Person(digest, bool(row[0]))

    def allow(self, study: str, scope: bytes) -> bool:
        """Sign for `study` from now on; return False if it has another `scope` already."""
        with self._change() as execute:
            execute("INSERT OR IGNORE INTO studies VALUES (?, ?)", (study, scope))
            (known,) = execute("SELECT scope FROM studies WHERE id = ?", (study,)).fetchone()
            return bool(known == scope)

    def enrol(self, person: Person, scope: bytes, identity: bytes, now: float) -> bool:
        """Record `identity` as the one of `person` in `scope`; return whether it is new.

        Raises:
            ProblemError: if the person has another identity there, or no study has this scope.
        """
        with self._change() as execute:
            if execute("SELECT 1 FROM studies WHERE scope = ?", (scope,)).fetchone() is None:
                raise _refused("the operator has not allowed this study with these terms")
            rows = execute("SELECT scope, identity FROM enrolments WHERE person = ?", person[:1])
            identities = dict(rows)
            if scope in identities:
                if identities[scope] != identity:
                    raise _refused("this proof has enrolled another identity in the study")
                return False
            if identities and person.is_once:
                raise _refused("this one-time token is spent")
            row = person.digest, scope, identity, now
            execute("INSERT INTO enrolments VALUES (?, ?, ?, ?)", row)
            return True

    @contextmanager
    def _change(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Run a transaction, and give it a number if it changes something."""
        execute = self._connection.execute
        with self._lock:
            execute("BEGIN IMMEDIATE")  # another process may make tokens
            try:
                self._check_age()
                before = self._connection.total_changes
                yield execute
                if is_changed := self._connection.total_changes > before:
                    execute("UPDATE changes SET number = number + 1")
                execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite itself ends it on a full disk
                    execute("ROLLBACK")
                raise
            if is_changed:
                self._write_number(self._check_age())

    def _check_age(self) -> int:
        """Return the number of changes; raises OlderCopyError."""
        (number,) = self._connection.execute("SELECT number FROM changes").fetchone()
        last = self._last_number.read_text(encoding="ascii").strip()
        if last.isdecimal() and int(last) > number:
            raise OlderCopyError(
                f"{self._path} is an older copy: it has {number:,} changes, and the registrar has "
                f"made {int(last):,}. Tokens could be spent twice. Make another registrar, and "
                "name its key in new studies"
            )
        return int(number)

    def _write_number(self, number: int) -> None:
        with self._last_number.open("r+", encoding="ascii") as file:
            file.write(f"{number}\n")  # never shorter than the last one
            file.flush()
            os.fsync(file.fileno())


def _refused(reason: str) -> ProblemError:
    return ProblemError(ProblemType.NOT_ENROLLED, reason)
