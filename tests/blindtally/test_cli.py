"""The command line lists its commands, and imports one only when it is called."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

import blindtally
from blindtally.cli import app
from client.extras_installation import install_command


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["simulate", "ocms", "--data", "x", "--threshold", "0"], "from 1 to 1,000,000,000,000"),
        (["simulate", "ocms", "--data", "x", "--devices", "x"], "3 or more"),
        (["plan", "--devices", "0"], "must be 1 or more"),
        (["params", "--devices", "0"], "from 2 to"),
    ],
)
def test_a_number_out_of_its_range_is_reported_with_the_range(command: list[str], why: str) -> None:
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert why in result.stderr


def test_a_narrow_terminal_shows_items_of_any_script(tmp_path: Path) -> None:
    baskets = tmp_path / "baskets.txt"
    baskets.write_text("świat 世界\n" * 300, encoding="utf-8")
    program = "from blindtally.cli import app; app()"
    command = ["simulate", "adaptive-iblt", "--data", str(baskets), "--rounds", "2"]
    done = subprocess.run(
        [sys.executable, "-c", program, *command],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0
    assert b"\\u4e16" in done.stdout


def test_the_version_is_shown() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.strip() == metadata.version("blindtally") == blindtally.__version__


def test_the_id_of_a_key_is_shown_whole_so_that_it_can_be_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    here = ["--database", f"sqlite:///{tmp_path}/keys.db"]
    made = CliRunner().invoke(
        app, ["keys", "create", "a name of some length", "--days", "9", *here]
    )
    (name,) = re.findall("key ([0-9a-f]{12}):", made.stderr)
    assert CliRunner().invoke(app, ["keys", "revoke", name, *here]).exit_code == 0
    for command in (["keys", "list"], ["audit"]):
        shown = CliRunner().invoke(app, [*command, *here]).stdout
        assert name in shown
        assert "…" not in shown


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        ("serve --port 0", "structlog", "server"),
        ("plan --devices 100 --rounds 2 --threshold 5 --words 1000", "scipy", "simulate"),
        ("demo --out demo-files", "sqlalchemy", "demo"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    arguments: str, module: str, extra: str, tmp_path: Path
) -> None:
    program = f"import sys; sys.modules[{module!r}] = None; from blindtally.cli import app; app()"
    run = [sys.executable, "-c", program, *arguments.split()]
    result = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"needs {module}" in result.stderr
    assert result.stderr.strip().endswith(install_command(extra))


def test_a_command_succeeds_without_an_output() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m blindtally mechanisms >&-"], check=False
    )
    assert done.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has this device")
@pytest.mark.parametrize("argument", ["mechanisms", "--help"])
def test_a_full_disk_is_an_error_in_one_line(argument: str) -> None:
    command = [sys.executable, "-m", "blindtally", argument]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"error: cannot write the output: No space left on device\n"
