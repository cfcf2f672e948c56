"""A text of a stranger that reaches the terminal is one line of visible characters."""

import sys
import warnings
from collections.abc import Callable

import pytest
from rich.console import Group
from rich.text import Text

from blindtally.console.errors import exit_with_error
from blindtally.console.tables import bold_lines, fact_table, print_parts, result_table
from blindtally.console.terminal import Terminal, print_line, protect_terminal
from tests.support.terminal_codes import FORBIDDEN, HOSTILE, MARKUP

TEXT = HOSTILE + MARKUP
PRINTERS: dict[str, Callable[[], object]] = {
    "print_line": lambda: print_line(TEXT),
    "error": lambda: exit_with_error(TEXT),
    "print_parts": lambda: print_parts(TEXT, TEXT),
    "cells": lambda: print_parts(result_table([TEXT], [TEXT], [[TEXT, TEXT]], TEXT)),
    "facts": lambda: print_parts(fact_table({TEXT: TEXT, "lines": (TEXT, TEXT)})),
    "bold": lambda: print_parts(bold_lines(TEXT)),
    "console": lambda: Terminal().print(TEXT),
    "style": lambda: Terminal(stderr=True).print(TEXT, style="dim", soft_wrap=True),
    "text": lambda: Terminal().print(Group(Text(TEXT), Text.assemble(TEXT, (TEXT, "red")))),
    "warning": lambda: sys.stderr.write(warnings.formatwarning(TEXT, UserWarning, "f.py", 1)),
    "crash": lambda: sys.excepthook(ValueError, ValueError(TEXT), None),
}


@pytest.mark.long_cells
@pytest.mark.parametrize("name", PRINTERS)
def test_every_way_to_the_terminal_escapes_codes_and_reads_no_markup(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setenv("COLUMNS", "2000")
    protect_terminal()
    PRINTERS[name]()
    output = "".join(capsys.readouterr())
    assert not set(output) & (FORBIDDEN | {"\x1b"}) - {"\n"}
    assert MARKUP in output
    assert not any(line.startswith("forged") for line in output.splitlines())
    assert r"\x1b]0;title" in output


def test_rows_of_equal_looking_items_differ(capsys: pytest.CaptureFixture[str]) -> None:
    items = [
        "p\xeache",
        "pe\u0302che",
        "p\xeache ",
        "p\xeache\u200b",
        r"p\xeache",
        "a  b",
        "a \xa0b",
    ]
    print_parts(result_table(["item"], ["n"], [[item, "1"] for item in items]))
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len({row.split("  ")[0].rstrip() for row in rows}) >= len(items) - 1
    assert len({"".join(row.split()) for row in rows}) == len(items)
