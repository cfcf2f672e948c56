"""Installations that lack modules: one line names them, before a file or folder is made."""

import subprocess
import sys
from pathlib import Path

import pytest

# A program that hides modules and then runs the command line, or a device.
HIDING = """
import asyncio
import sys
hidden, command = sys.argv[1].split(","), sys.argv[2:]
class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hiding())
for name in hidden:
    sys.modules.pop(name, None)
if command[0] == "take_part":
    from blindtally import Policy, take_part
    asyncio.run(take_part("http://127.0.0.1:9", ["item"], Policy()))
else:
    from blindtally.cli import app
    sys.argv = ["blindtally", *command]
    app()
"""
POSIX = "fcntl,grp,pwd,resource,termios"
NOT_SUPPORTED = f"({sys.platform}) is not supported yet"
DEMO = ["demo", "--out", "made"]
SERVE = ["serve", "--open", "--database", "sqlite:///made.db"]
SIMULATE = ["simulate", "tracked", "--data", "words", "--devices", "20", "--rounds", "1"]
FLEET = ["fleet", "--study", "0123456789abcdef", "--url", "http://127.0.0.1:9", "--devices", "0"]


@pytest.mark.parametrize(
    ("hidden", "command", "reason"),
    [
        (POSIX, DEMO, NOT_SUPPORTED),
        (POSIX, SERVE, NOT_SUPPORTED),
        (POSIX, ["take_part"], NOT_SUPPORTED),
        (POSIX, SIMULATE, None),
        (POSIX, FLEET, None),
        (POSIX, ["member", "made.key", "--new"], None),
    ],
)
def test_a_missing_module_is_named_before_anything_is_made(
    tmp_path: Path, hidden: str, command: list[str], reason: str | None
) -> None:
    program = [sys.executable, "-c", HIDING, hidden, *command]
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "PATH": ""}
    ended = subprocess.run(
        program, cwd=tmp_path, env=home, capture_output=True, text=True, timeout=150, check=False
    )
    text = " ".join(ended.stderr.split())
    assert "an extra brings" not in text
    assert "No module named" not in text
    if reason is None:
        return
    assert ended.returncode != 0
    assert reason in text
    assert not list(tmp_path.iterdir())
    assert command[0] == "take_part" or ended.stderr.count("\n") == 1
