"""Every command has a help that suffices, with an example in it that could be typed."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from blindtally.cli import COMMANDS, app, load_command


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command and group with the words that lead to it."""
    yield path, command
    for name in getattr(command, "list_commands", lambda _: [])(None):
        found = command.get_command(None, name) if path else load_command(name)
        yield from walk(found, (*path, name))


ALL = dict(walk(typer.main.get_command(app)))


def examples(command: Any) -> list[str]:
    """Return the lines of a help's block of examples."""
    _, _, block = command.help.partition("Example:\n")
    return [line.strip() for line in block.split("\n\n")[0].splitlines() if line.strip()]


def test_the_walk_finds_commands_of_commands() -> None:
    assert {("simulate",), ("keys", "create"), ("doctor",)} <= ALL.keys()
    assert len(ALL) > 15


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_command_says_first(name: str) -> None:
    assert ALL[name,].help.split("\n\n")[0] == COMMANDS[name][1]


def test_the_list_of_commands_imports_none_of_them() -> None:
    asked = "import sys; from blindtally.cli import app; app(['--help'], standalone_mode=False)"
    told = f"{asked}; print({{'numpy', 'fastapi', 'scipy'}} & sys.modules.keys())"
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, check=True, text=True)
    assert said.stdout.endswith("set()\n")


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_help_has_an_example_that_parses(path: tuple[str, ...]) -> None:
    lines = examples(ALL[path])
    assert any(line.startswith(" ".join(("blindtally", *path))) for line in lines)
    for line in lines:
        name, *words = shlex.split(line)
        assert name == "blindtally"
        deeper, command = (), ALL[()]
        while hasattr(command, "list_commands") and words:
            deeper = (*deeper, words[0])
            command, words = ALL[deeper], words[1:]
        command.make_context(" ".join(deeper), words).close()  # raises if an option is not one


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_help_fits_80_columns_and_says_what_each_option_is(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = CliRunner().invoke(app, [*path, "--help"])
    assert told.exit_code == 0
    assert max(map(len, told.stdout.splitlines())) <= 80
    assert "…" not in told.stdout
    for line in examples(ALL[path]):
        assert line in told.stdout  # not broken in two
    for option in ALL[path].params:
        assert option.help or option.name == "help", option.name
        # What is in brackets must not be taken for markup, and lost.
        assert not re.search(r"\[(?!/)[a-z ]+\]", option.help or ""), option.help


def test_a_wrong_word_is_met_with_the_right_one() -> None:
    told = CliRunner().invoke(app, ["simulat"])
    assert told.exit_code == 2
    assert "simulate" in told.stderr
