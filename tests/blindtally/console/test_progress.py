"""A terminal shows when a kernel is compiled, and nothing when it is in the cache."""

import sys

import pytest
from numba import njit

from blindtally.console.progress import announce_compilation

NOTICE = "compiling the decoder, once after an installation"


def test_a_terminal_shows_the_first_compilation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    announce_compilation()
    assert capsys.readouterr().err == ""
    kernel = njit(lambda number: number + 1)
    assert kernel(1) == 2
    assert capsys.readouterr().err.count(NOTICE) == 1
    assert kernel(1.0) == 2
    assert capsys.readouterr().err == ""


def test_a_file_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    announce_compilation()
    assert njit(lambda number: number + 2)(1) == 3
    assert capsys.readouterr().err == ""
