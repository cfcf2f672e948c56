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
        child = command.get_command(None, name) if path else load_command(name)
        yield from walk(child, (*path, name))


ALL_COMMANDS = dict(walk(typer.main.get_command(app)))


def examples(command: Any) -> list[str]:
    """Return the lines of a help's block of examples."""
    _, _, block = command.help.partition("Example:\n")
    return [line.strip() for line in block.split("\n\n")[0].splitlines() if line.strip()]


def test_the_walk_finds_commands_of_commands() -> None:
    assert {("simulate",), ("keys", "create"), ("doctor",)} <= ALL_COMMANDS.keys()
    assert len(ALL_COMMANDS) > 15


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each_help(name: str) -> None:
    assert ALL_COMMANDS[name,].help.split("\n\n")[0] == COMMANDS[name]


@pytest.mark.parametrize("path", ["params", "keys list", "serve"])
def test_the_examples_in_a_help_are_indented(path: str) -> None:
    output = CliRunner().invoke(app, [*path.split(), "--help"]).output
    assert re.search(rf"^ Example: *\n   blindtally {path}", output, re.MULTILINE)


def test_no_help_waits_for_what_its_command_needs() -> None:
    program = """
import sys
from blindtally.cli import COMMANDS, app
for command in [[], *([name] for name in COMMANDS)]:
    app([*command, "--help"], standalone_mode=False)
print({"numpy", "httpx", "cryptography", "client", "fastapi", "sqlalchemy"} & sys.modules.keys())
"""
    listed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert listed.stdout.endswith("set()\n")


@pytest.mark.parametrize("path", ALL_COMMANDS, ids=" ".join)
def test_a_help_has_an_example_that_parses(path: tuple[str, ...]) -> None:
    lines = examples(ALL_COMMANDS[path])
    assert any(line.startswith(" ".join(("blindtally", *path))) for line in lines)
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        name, *words = shlex.split(line)
        assert name == "blindtally"
        deeper, command = (), ALL_COMMANDS[()]
        while hasattr(command, "list_commands") and words:
            deeper = (*deeper, words[0])
            command, words = ALL_COMMANDS[deeper], words[1:]
        command.make_context(" ".join(deeper), words).close()  # raises if an option is not one


@pytest.mark.parametrize("path", ALL_COMMANDS, ids=" ".join)
def test_a_help_fits_80_columns_and_describes_each_option(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout
    for line in examples(ALL_COMMANDS[path]):
        assert line in result.stdout  # not broken in two
    for option in ALL_COMMANDS[path].params:
        assert option.help or option.name == "help", option.name
        # The terminal takes what is in brackets for markup, and removes it.
        assert "[" not in (option.help or ""), option.help


def test_a_wrong_word_is_met_with_the_right_one() -> None:
    result = CliRunner().invoke(app, ["simulat"])
    assert result.exit_code == 2
    assert "simulate" in result.stderr
