"""Completions that a shell receives."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindtally.cli import app


def proposed(line: str) -> list[str]:
    """Return the completions of bash at the end of `line`."""
    words = line.split(" ")
    result = CliRunner().invoke(
        app,
        env={
            "_BLINDTALLY_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
        },
        prog_name="blindtally",
    )
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "proposals"),
    [
        ("blindtally si", ["simulate"]),
        ("blindtally doc", ["doctor"]),
        ("blindtally simulate ocms-", ["ocms-gf", "ocms-mixture"]),
        ("blindtally simulate tracked --goal w", ["worst-mse"]),
        ("blindtally simulate tracked --data link", ["link_user_domains"]),
        ("blindtally simulate tracked --data wor", ["words", "words.csv"]),
        ("blindtally simulate tracked --data da", ["data/"]),
        ("blindtally simulate tracked --data data/", ["data/more.txt.gz"]),
        ("blindtally keys cr", ["create"]),
        ("blindtally plan reports --goal w", ["worst-mse"]),
        ("blindtally simulate tracked --data nowhere/", []),
    ],
)
def test_words_are_completed(
    line: str, proposals: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("words.csv", "words.db", ".hidden.csv", "data/more.txt.gz"):
        (tmp_path / name).touch()
    assert proposed(line) == proposals


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    result = CliRunner().invoke(
        app, env={"_BLINDTALLY_COMPLETE": f"source_{shell}"}, prog_name="blindtally"
    )
    assert result.exit_code == 0
    assert f"_BLINDTALLY_COMPLETE=complete_{shell}" in result.stdout
