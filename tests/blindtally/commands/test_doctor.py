"""`blindtally doctor` reports problems with advice, and changes nothing."""

import json
import socket
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from blindtally import doctor_checks
from blindtally.cli import app
from blindtally.doctor_checks import Check
from server.db import migrations


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doctor(*options: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the checks; the port is free."""
    command = ["doctor", "--port", "0", *options, "--json", "-"]
    result = CliRunner().invoke(app, command, env=environment)
    document = json.loads(result.stdout)
    states = [check["state"] for check in document["checks"]]
    assert result.exit_code == int("error" in states)
    order = ["ok", "warning", "error"]
    assert document["state"] == max(states, key=order.index)
    assert all(check["advice"] for check in document["checks"] if check["state"] != "ok")
    return result.exit_code, {check["name"]: check for check in document["checks"]}


def test_a_machine_is_checked_and_not_changed(here: Path) -> None:
    _, checks = doctor()
    assert {"clock", "disk", "settings", "database", "port"} <= checks.keys()
    for name in ("clock", "settings", "database", "port"):
        assert checks[name]["state"] == "ok", checks[name]
    assert "`blindtally serve` makes it" in checks["database"]["detail"]
    assert [*here.iterdir()] == []


def test_the_table_shows_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, ["doctor", "--port", "0", "--database", "sqlite:////no/x.db"])
    assert result.exit_code == 1
    assert "error" in result.stdout
    assert "→ make the folder, or name another one" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_setting_that_is_wrong_or_unknown_is_named() -> None:
    code, checks = doctor(BLINDTALLY_MAX_UPLOAD_BYTES="many")
    assert code == 1
    assert "BLINDTALLY_MAX_UPLOAD_BYTES" in checks["settings"]["detail"]
    assert "database" not in checks  # whose settings are unknown
    _, checks = doctor(BLINDTALLY_DATABASE="sqlite:///x.db")  # the variable is ..._URL
    assert checks["settings"]["state"] == "warning"
    assert (
        "unknown: BLINDTALLY_DATABASE (did you mean BLINDTALLY_DATABASE_URL?)"
        in checks["settings"]["detail"]
    )


def database(url: str) -> Check:
    *_, last = doctor_checks.check_database(url)
    return last


def made(path: Path, revision: str | None) -> str:
    """Return the URL of a database of that revision."""
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE alembic_version (version_num TEXT)")
        if revision is not None:
            file.execute("INSERT INTO alembic_version VALUES (?)", (revision,))
    file.close()
    return f"sqlite:///{path}"


@pytest.mark.parametrize(
    ("revision", "state", "what"),
    [
        (None, "ok", "is empty"),
        (migrations.head_revision(), "ok", "the newest"),
        ("0000", "warning", "older schema 0000"),
        ("9999", "error", "9999 of another version"),
    ],
)
def test_the_schema_of_a_database_is_reported(
    revision: str | None, state: str, what: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = "0000", migrations.head_revision()
    monkeypatch.setattr(migrations, "known_revisions", lambda: known)
    check = database(made(here / "a.db", revision))
    assert check.state == state
    assert what in check.detail
    assert [path.name for path in here.iterdir()] == ["a.db"]


def test_a_file_that_is_not_a_database_is_reported_and_not_changed(here: Path) -> None:
    (here / "a.db").write_text("word,count\n" * 100)
    check = database("sqlite:///a.db")
    assert (check.state, "not a database" in check.detail) == ("error", True)
    assert (here / "a.db").read_text() == "word,count\n" * 100


def test_the_error_of_an_unreachable_database_does_not_show_its_password() -> None:
    with socket.socket() as nobody:  # bound, but not listening
        nobody.bind(("127.0.0.1", 0))
        number = nobody.getsockname()[1]
        check = database(f"postgresql://me:hunter2@127.0.0.1:{number}/x")
    assert check.state == "error"
    assert "refused" in check.detail
    assert "hunter2" not in check.detail + check.advice


def test_a_port_in_use_is_a_warning_and_an_impossible_one_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        check = doctor_checks.check_port("127.0.0.1", taken.getsockname()[1])
    assert (check.state, "in use" in check.detail) == ("warning", True)
    assert doctor_checks.check_port("192.0.2.1", 80).state == "error"  # of another machine


def test_a_clock_before_the_installation_is_an_error() -> None:
    assert doctor_checks.check_clock(datetime(1970, 1, 2, tzinfo=UTC)).state == "error"
    assert doctor_checks.check_clock().state == "ok"


def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_checks.check_disk(Path("/nowhere/at/all"), "x").state == "error"
    for limit, state in (("_LOW_DISK_BYTES", "warning"), ("_CRITICAL_DISK_BYTES", "error")):
        monkeypatch.setattr(doctor_checks, limit, 10**30)
        assert doctor_checks.check_disk(Path.cwd(), "x").state == state
