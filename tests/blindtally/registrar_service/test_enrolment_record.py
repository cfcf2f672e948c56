"""A registrar's record gives a person one identity in a study, and survives what may happen."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import pytest

from blindtally.registrar_service.enrolment_record import EnrolmentRecord, OlderCopyError, person_of
from server.errors import ProblemError
from tests.client.cohort import REGISTRAR, SECOND_REGISTRAR

ANNA, BEN = person_of("Anna"), person_of("Ben")
SCOPE, OTHER_SCOPE = bytes(32), bytes(31) + b"\1"
FIRST_KEY, SECOND_KEY = b"a" * 32, b"b" * 32
ENROL_AND_DIE = """
import os, signal, sys
from pathlib import Path
from blindtally.registrar_service.enrolment_record import EnrolmentRecord, person_of
record = EnrolmentRecord(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]))
print(record.enrol(person_of("Anna"), bytes(32), b"a" * 32, 0.0), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def refused(reason: str) -> pytest.RaisesExc[ProblemError]:
    return pytest.raises(ProblemError, match=reason)


def test_a_person_gets_one_identity_in_each_study(record: EnrolmentRecord) -> None:
    assert record.enrol(ANNA, SCOPE, FIRST_KEY, 0)
    assert not record.enrol(ANNA, SCOPE, FIRST_KEY, 1)  # repeated
    with refused("another identity"):
        record.enrol(ANNA, SCOPE, SECOND_KEY, 2)
    assert record.enrol(BEN, SCOPE, SECOND_KEY, 3)
    assert record.enrol(ANNA, OTHER_SCOPE, SECOND_KEY, 4)


def test_nobody_is_enrolled_for_terms_that_the_operator_does_not_know(
    record: EnrolmentRecord,
) -> None:
    """A server could make a study of few devices around one of them."""
    with refused("has not allowed this study"):
        record.enrol(ANNA, bytes([9]) * 32, FIRST_KEY, 0)
    assert record.allow("a", SCOPE)  # again
    assert not record.allow("a", OTHER_SCOPE)


def test_a_one_time_token_is_spent_in_one_study(record: EnrolmentRecord) -> None:
    (token,) = record.add_tokens(1, Random(2), None, is_once=True)
    holder = record.holder(token, 0)
    assert holder is not None
    record.enrol(holder, SCOPE, FIRST_KEY, 0)
    assert not record.enrol(holder, SCOPE, FIRST_KEY, 1)
    with refused("one-time token is spent"):
        record.enrol(holder, OTHER_SCOPE, SECOND_KEY, 2)


def test_unknown_expired_and_revoked_tokens_have_no_holder(record: EnrolmentRecord) -> None:
    kept, revoked = record.add_tokens(2, Random(3), 100.0, is_once=False)
    assert record.revoke(revoked)
    assert not record.revoke("btr_unknown")
    assert record.holder(kept, 99.0) == person_of(kept)
    assert record.holder(kept, 100.0) is None
    assert record.holder(revoked, 0.0) is None
    assert record.holder("btr_unknown", 0.0) is None


def test_the_file_is_private_and_has_no_token(file: Path, token: str) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    assert token.encode() not in file.read_bytes()
    assert token[4:].encode() not in file.read_bytes()


def test_a_killed_registrar_keeps_what_it_has_answered(file: Path, record: EnrolmentRecord) -> None:
    words = [sys.executable, "-c", ENROL_AND_DIE, str(file), REGISTRAR.public.hex()]
    killed = subprocess.run(words, capture_output=True, check=False, text=True)
    assert (killed.stdout, killed.returncode) == ("True\n", -9), killed.stderr
    assert not record.enrol(ANNA, SCOPE, FIRST_KEY, 1)


def test_an_older_copy_is_refused_so_that_no_token_is_spent_twice(
    file: Path, record: EnrolmentRecord, token: str
) -> None:
    holder = record.holder(token, 0)
    assert holder is not None
    shutil.copy(file, file.with_suffix(".backup"))
    record.enrol(holder, SCOPE, FIRST_KEY, 0)
    EnrolmentRecord(file, REGISTRAR.public)  # a restart
    shutil.copy(file.with_suffix(".backup"), file)
    for change in (record.check, partial(record.enrol, holder, SCOPE, SECOND_KEY, 0)):
        with pytest.raises(OlderCopyError):
            change()
    with pytest.raises(OlderCopyError, match="3 changes, and the registrar has made 4"):
        EnrolmentRecord(file, REGISTRAR.public)
    file.unlink()
    with pytest.raises(OlderCopyError):
        EnrolmentRecord(file, REGISTRAR.public)
    EnrolmentRecord(file, SECOND_REGISTRAR.public)  # a new key starts with no record


def test_an_older_copy_restores_no_revoked_token(
    file: Path, record: EnrolmentRecord, token: str
) -> None:
    shutil.copy(file, file.with_suffix(".backup"))
    record.revoke(token)
    shutil.copy(file.with_suffix(".backup"), file)
    with pytest.raises(OlderCopyError):
        EnrolmentRecord(file, REGISTRAR.public)


def test_nothing_is_enrolled_that_cannot_be_written(file: Path, record: EnrolmentRecord) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        record._connection.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(sqlite3.OperationalError):
            record.enrol(ANNA, SCOPE, FIRST_KEY, 0)
        with pytest.raises(sqlite3.OperationalError):
            record.check()
    assert record.enrol(ANNA, SCOPE, FIRST_KEY, 0)
