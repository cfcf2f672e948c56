"""Files are written whole or not at all; progress is for terminals; Ctrl-C leaves no file."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer import BadParameter
from typer.testing import CliRunner, Result

from blindtally.cli import app
from blindtally.console.output_files import atomic_write, check_output_path, write_json

SMALL_STUDY_OPTIONS = [
    "--devices",
    "200",
    "--rounds",
    "3",
    "--message-bytes",
    "6000",
    "--threshold",
    "5",
]


def simulate(*options: str, colour: str | None = None) -> Result:
    command = ["simulate", "tracked", "--data", "link_user_domains", *SMALL_STUDY_OPTIONS, *options]
    return CliRunner().invoke(app, command, env={"FORCE_COLOR": colour, "COLUMNS": "80"})


def test_a_terminal_shows_progress_rate_and_time() -> None:
    run = simulate(colour="1")
    assert run.exit_code == 0, run.output
    assert "rounds" in run.stderr
    assert "3/3" in run.stderr
    assert "s each" in run.stderr or "/s" in run.stderr
    assert "━" not in run.stdout


def test_closed_standard_output_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(BadParameter, match="standard output is closed"):
        check_output_path("-")


def test_without_a_terminal_no_progress_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    run = simulate()
    assert run.exit_code == 0, run.output
    assert run.stderr == ""
    assert "\x1b" not in run.stdout
    assert run.stdout.startswith("Heavy hitters\n")


@pytest.mark.parametrize("end", [KeyboardInterrupt, ValueError])
def test_a_stopped_write_leaves_the_old_file(end: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("old")
    with pytest.raises(end), atomic_write(path) as file:  # noqa: PT012
        file.write_text("half of the n")
        raise end
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text() == "old"
    with atomic_write(path) as file:
        file.write_text("new")
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text() == "new"


def test_a_file_with_a_secret_is_its_owners_alone(tmp_path: Path) -> None:
    for is_secret in (False, True):
        write_json(str(tmp_path / f"{is_secret}.json"), {"a": 1}, is_secret=is_secret)
    assert (tmp_path / "True.json").stat().st_mode & 0o077 == 0
    assert json.loads((tmp_path / "False.json").read_text()) == {"a": 1}


def test_a_pipe_is_written_to_and_stays_one() -> None:
    write_json("/dev/null", {})
    assert not Path("/dev/null").is_file()


def test_ctrl_c_ends_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    words = "".join(f"{a}{b}c,{1000 // (1 + a + b)}\n" for a in range(10) for b in range(10))
    (tmp_path / "words.csv").write_text(f"word,count\n{words}")
    command = ["fig1", "--data", "words.csv", "--runs", "500", "--out", "fig1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "paper", *command, "--json", "fig1.json"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"FORCE_COLOR": "1"},
    )
    assert process.stderr is not None
    seen = b""
    while b"runs" not in seen:  # the bar: it is at work
        seen += os.read(process.stderr.fileno(), 4096)
        assert seen
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.rstrip().endswith(b"stopped")
    assert b"Traceback" not in errors
    assert out == b""
    assert [path.name for path in tmp_path.iterdir()] == ["words.csv"]


@pytest.mark.parametrize(
    "command", [["query", "abc", "--out", "--top"], ["studies", "list", "--json", "--open"]]
)
def test_a_missing_path_does_not_take_the_next_option_as_a_file(command: list[str]) -> None:
    run = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert run.exit_code == 2
    assert f"there is no path before {command[-1]}" in run.output


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none/x.json", "cannot write none/x.json: there is no"),
        (".", "cannot write .: it is a folder"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = simulate("--json", path)
    assert run.exit_code == 2
    assert reason in run.stderr
    assert run.stdout == ""
