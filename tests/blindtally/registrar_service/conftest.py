"""A registrar's service in memory, with its record in a file."""

from pathlib import Path
from random import Random

import pytest

from blindtally.registrar_service.enrolment_record import EnrolmentRecord
from tests.client.cohort import REGISTRAR


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "registrar.key.enrolments"


@pytest.fixture
def record(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EnrolmentRecord:
    """Return the record of a registrar that signs for two studies, a and b."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = EnrolmentRecord(file, REGISTRAR.public)
    assert made.allow("a", bytes(32))
    assert made.allow("b", bytes(31) + b"\1")
    return made


@pytest.fixture
def token(record: EnrolmentRecord) -> str:
    (made,) = record.add_tokens(1, Random(1), None, is_once=False)
    return made
