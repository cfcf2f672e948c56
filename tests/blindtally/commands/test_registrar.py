"""`blindtally registrar` makes tokens, reports what it seats, and refuses others' files."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from blindtally import status_page
from blindtally.cli import app
from blindtally.fleet_run.registrar_key_files import create_key_file
from blindtally.registrar_service.app import RegistrarService
from client.committee.registrar import Registrar
from client.committee.round_poller import RoundReporter
from protocol.api.messages import PendingSeating, StudyView
from protocol.question_and_plan import Terms
from tests.blindtally.registrar_service.test_app import asked, post
from tests.client.cohort import QUESTION, TERMS
from tests.server.fake_provider import FakeProvider, on_a_port
from tests.support.views import study_document

RUN = CliRunner()


def registrar(*words: object) -> Result:
    return RUN.invoke(app, ["registrar", *map(str, words)])


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "registrar.key"
    create_key_file(path)
    return path


def test_tokens_are_printed_once_or_written_for_the_owner_alone(key: Path) -> None:
    printed = registrar("tokens", key, "--count", 3).stdout.split()
    assert [token[:4] for token in printed] == ["btr_"] * 3
    file = key.with_name("tokens.json")
    result = registrar("tokens", key, "--count", 2, "--once", "--days", 1, "--json", file)
    assert result.exit_code == 0, result.output
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text())["tokens"] == result.stdout.split()
    assert registrar("tokens", key, "--revoke", printed[0]).stdout == "the token is revoked\n"
    unknown = registrar("tokens", key, "--revoke", "btr_unknown")
    assert (unknown.exit_code, unknown.stderr) == (1, "error: the registrar has no such token\n")


def test_an_older_copy_of_the_record_makes_and_spends_no_tokens(key: Path) -> None:
    record = key.with_name("registrar.key.enrolments")
    registrar("tokens", key)
    shutil.copy(record, record.with_suffix(".backup"))
    registrar("tokens", key)
    shutil.copy(record.with_suffix(".backup"), record)
    for words in (("tokens", key), ("serve", key), ("tokens", key, "--revoke", "btr_1")):
        result = registrar(*words)
        assert (result.exit_code, "is an older copy" in result.stderr) == (1, True)


def test_each_round_is_reported_and_the_draws_are_next_to_the_key(
    key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(
        self: Registrar, _at: Any, api_key: str, report: RoundReporter[PendingSeating]
    ) -> None:
        assert (api_key, self.identity.public.hex()) == ("btk_1", public)
        now = datetime(2026, 1, 1, tzinfo=UTC)
        report(PendingSeating(study="abc", round=2, joiners=2000, deadline=now), "")
        report(PendingSeating(study="abd", round=1, joiners=2, deadline=now), "too few")

    public = registrar("show", key).stdout.strip()
    monkeypatch.setattr(Registrar, "serve", serve)
    monkeypatch.setattr(status_page, "page_server", lambda *_, **__: None)
    result = registrar("serve", key, "--url", "http://service", "--key", "btk_1")
    assert result.exit_code == 0, result.output
    assert f"registrar {public} signs at http://127.0.0.1:8100" in result.stdout
    assert "seated 2,000 devices in round 2 of study abc" in result.stdout
    assert "round 1 of study abd is not seated: too few" in result.stderr
    assert key.with_name("registrar.key.draws").exists()


@pytest.mark.parametrize("way", ["command", "provider"])
def test_devices_are_enrolled_by_a_command_or_an_account(
    key: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    answers = list[int]()

    async def run(service: RegistrarService, *_: object) -> None:
        for proof in (good, "invented"):
            answers.append((await post(service, request, proof)).status_code)

    terms = TERMS.model_copy(update={"registrar": registrar("show", key).stdout.strip()})
    study = StudyView.model_validate(study_document(QUESTION, terms))
    request = asked().model_copy(update={"terms": terms, "study": study.id, "rounds": study.rounds})
    file = key.with_name("study.json")
    file.write_text(study.model_dump_json())
    assert registrar("allow", key, file).exit_code == 0
    monkeypatch.setattr("blindtally.commands.registrar._run", run)
    provider = FakeProvider(lambda: datetime.now(UTC), claims={"aud": "phones"})
    with on_a_port(provider):
        good, options = (
            provider.id_token("-"),
            ["--issuer", provider.issuer, "--audience", "phones"],
        )
        if way == "command":
            command = key.with_name("is-real")
            command.write_text("#!/bin/sh\ngrep -q certificate\n")
            command.chmod(0o700)
            good, options = "certificate-1", ["--check", str(command)]
        assert registrar("serve", key, *options).exit_code == 0
    assert answers == [200, 403]


def test_a_missing_key_and_files_that_hold_no_records_are_named(key: Path) -> None:
    missing = registrar("serve", key.with_name("other.key"))
    assert (missing.exit_code, "other.key" in missing.stderr) == (2, True)
    for suffix, words in ((".draws", ["--url", "http://service"]), (".enrolments", [])):
        key.with_name(key.name + suffix).write_text("not a record, but a much longer text" * 9)
        broken = registrar("serve", key, *words)
        assert (broken.exit_code, f"{key.name}{suffix}" in broken.stderr) == (1, True)


def test_a_study_is_allowed_by_its_document(key: Path) -> None:
    public, file = registrar("show", key).stdout.strip(), key.with_name("study.json")
    terms = Terms(cohort_size=9, minimum=8, registrar=public)
    study = study_document(QUESTION, terms)
    other = study_document(QUESTION, Terms(cohort_size=9, minimum=8))
    for document, reason in (([], "has no study"), ({}, "has no study"), (other, "or none")):
        file.write_text(json.dumps(document))
        refused = registrar("allow", key, file)
        assert (refused.exit_code, reason in refused.stderr) == (2, True)
    for document in (study, {"study": study}):
        file.write_text(json.dumps(document))
        allowed = registrar("allow", key, file).stdout
        assert "2 rounds of 8 to 9 devices in 1 cohorts" in " ".join(allowed.split())
    file.write_text(json.dumps(study | {"rounds": 3}))
    changed = registrar("allow", key, file)
    assert (changed.exit_code, "with other terms" in changed.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--host", "0.0.0.0"], "put a proxy with TLS in front"),  # noqa: S104
        (["--issuer", "https://a.example.org"], "--audience"),
        (["--check", "/bin/true", "--issuer", "https://a.example.org", "--audience", "r"], "none"),
        (["--issuer", "http://a.example.org", "--audience", "r"], "https://"),
        (["--check", "/etc/passwd"], "can be executed"),
        (["--check", "/bin"], "can be executed"),
    ],
)
def test_options_that_protect_nothing_are_refused(key: Path, words: list[str], reason: str) -> None:
    result = registrar("serve", key, *words)
    assert (result.exit_code, reason in " ".join(result.stderr.split())) == (2, True), result.stderr
