"""A registrar's key is made once, for its owner alone, and never shown."""

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from blindtally.cli import app
from blindtally.fleet_run.registrar_key_files import (
    KeyFileError,
    create_key_file,
    load_key_file,
    load_registrar_of,
)
from protocol.api.messages import StudyView
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.registry import parse_question
from protocol.question_and_plan import Terms
from tests.support.views import study_document


def registrar(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["registrar", *map(str, arguments)])


def test_a_key_is_made_and_its_public_half_is_shown_for_a_studys_terms(tmp_path: Path) -> None:
    path = tmp_path / "registrar.key"
    run = registrar("create", path)
    assert run.exit_code == 0, run.output
    public = run.stdout.strip()
    assert Terms(cohort_size=10, minimum=8, registrar=public).registrar == public
    assert load_key_file(path).public.hex() == public
    assert registrar("show", path).stdout.strip() == public


def test_the_secret_half_is_in_the_file_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "registrar.key"
    before = os.umask(0)
    try:
        run = registrar("create", path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    secret = path.read_text().split()[-1]
    assert len(secret) == 64
    assert secret not in run.output
    assert secret not in repr(load_key_file(path))


def test_a_full_disk_leaves_no_part_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "registrar.key"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(KeyFileError, match="No space"):
            create_key_file(path)
    assert not path.exists()
    create_key_file(path)


def test_a_process_that_may_open_no_more_files_leaves_a_key_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux refuses for this reason before it notices that the file exists."""

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    path = tmp_path / "registrar.key"
    made = create_key_file(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(KeyFileError, match="Too many"):
            create_key_file(path)
    assert load_key_file(path).public == made.public


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "registrar.key"
    create_key_file(path)
    before = path.read_bytes()
    run = registrar("create", path)
    assert run.exit_code == 2
    assert "not overwritten" in run.stderr
    assert path.read_bytes() == before


def test_a_key_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    run = registrar("create", tmp_path / "missing" / "registrar.key")
    assert run.exit_code == 2
    assert "cannot make" in run.stderr


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"blindtally registrar v1 \n",
        b"blindtally registrar v1 " + b"ab" * 31,
        b"blindtally registrar v2 " + b"ab" * 32,
        b"ab" * 32,
        b"\xff\xfe",
    ],
)
def test_a_file_without_a_key_is_reported_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "registrar.key"
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match="holds no registrar's key") as refused:
        load_key_file(path)
    assert "abab" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_study_of_reports_needs_no_registrar_and_a_sum_does(tmp_path: Path) -> None:
    asked = {"mechanism": "krr", "threshold": 9, "domain": {"kind": "listed", "items": ["a", "b"]}}
    terms = Terms(cohort_size=20, minimum=10)
    reports, missing = parse_question(asked | {"epsilon": 1.0}), tmp_path / "nowhere"
    study = StudyView.model_validate(study_document(reports, terms))
    assert load_registrar_of(study, missing) is None
    sums = AdaptiveIbltQuestion(
        threshold=9, contribution=2, domain=Utf8(max_bytes=6), message_bytes=4394
    )
    study = StudyView.model_validate(study_document(sums, terms))
    with pytest.raises(KeyFileError, match="names no registrar"):
        load_registrar_of(study, missing)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    run = registrar("show", tmp_path / "nowhere")
    assert run.exit_code == 2
    assert "nowhere" in run.stderr
