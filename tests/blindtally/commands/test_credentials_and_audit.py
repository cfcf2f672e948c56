"""`blindtally keys`, `tokens`, `audit` and `clock` in the database of a service."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindtally.cli import app


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "command",
    [("keys", "revoke", "3f2a"), ("keys", "list"), ("tokens", "list"), ("audit",), ("clock",)],
)
def test_commands_in_another_folder_make_no_database(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = run(*command)
    assert code == 1
    assert "there is no file blindtally.db" in output
    assert "--database" in output
    assert not [*tmp_path.iterdir()]


def test_a_key_is_made_listed_and_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = run("keys", "create", "dashboard", "--scope", "read")
    assert code == 0, output
    name = output.split("key ")[1].partition(":")[0]
    assert name in run("keys", "list")[1]
    assert run("keys", "revoke", name) == (0, f"key {name} is revoked\n")
    unknown = "error: there is no key, token, device or logged in person 3f2a\n"
    assert run("keys", "revoke", "3f2a") == (1, unknown)


def test_a_key_has_the_fewest_rights_and_an_end_unless_others_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "scopes: read (--scope is another)\ndays until it" in run("keys", "create", "a")[1]
    monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda _stdin: True)
    asked = CliRunner().invoke(app, ["keys", "create", "b"], input="read, write\n7\n")
    assert asked.exit_code == 0, asked.output
    listed = run("keys", "list", "--json", "-")[1]
    rows = {row["name"]: row for row in json.loads(listed)["rows"]}
    ends = {"a": timedelta(days=90), "b": timedelta(days=7)}
    for name, row in rows.items():
        created, expires = (datetime.fromisoformat(row[each]) for each in ("created", "expires"))
        assert expires - created == ends[name]
    assert [rows[name]["scopes"] for name in "ab"] == ["read", "read write"]


def test_a_key_of_a_study_that_does_not_exist_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("keys", "create", "guest", "--scope", "read")[0] == 0
    code, output = run("keys", "create", "guest", "--study", "3f2a")
    assert (code, output.splitlines()[-1]) == (1, "error: there is no such study")


@pytest.mark.parametrize("kind", ["keys", "tokens"])
@pytest.mark.parametrize("code", ["\x1b[2J", "\x9b5n", "\u202e", "\n", "\u200b"])
def test_a_name_with_codes_for_terminals_is_refused(
    kind: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exit_code, output = run(kind, "create", f"a{code}b")
    assert exit_code == 2
    assert "no control or invisible characters" in " ".join(output.replace("│", "").split())
    assert not [*tmp_path.iterdir()]


def test_the_clock_is_shown_and_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("keys", "create", "dashboard")[0] == 0
    code, output = run("clock")
    assert code == 0, output
    assert "confirmed       never" in output
    assert "old rows are kept" not in output
    assert "never" not in run("clock", "--confirm")[1]
    assert "confirm clock" in run("audit")[1]
