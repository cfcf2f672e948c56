"""`blindtally keys`, `tokens` and `audit` in the database of a service."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindtally.cli import app


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "command", [("keys", "revoke", "3f2a"), ("keys", "list"), ("tokens", "list"), ("audit",)]
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


def test_a_key_of_a_study_that_does_not_exist_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("keys", "create", "guest", "--scope", "read")[0] == 0
    code, output = run("keys", "create", "guest", "--study", "3f2a")
    assert (code, output) == (1, "error: there is no such study\n")
