"""Files that a command makes for itself are for its owner alone; results are the user's."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.demo.server_process import COMMAND_PREFIX, free_port
from client.committee.member import CommitteeMember
from client.device.device_state import DeviceState

RESULTS = {"params.json", "member.pub", "fleet.json"}


@pytest.fixture(autouse=True)
def _usual_umask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CommitteeMember, "serve", AsyncMock())
    monkeypatch.setattr("blindtally.commands.registrar._run", AsyncMock())
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def url() -> Iterator[str]:
    """Serve in a process until the end: `blindtally serve` makes its files with its own umask."""
    port = str(free_port())
    with subprocess.Popen([*COMMAND_PREFIX, "serve", "--open", "--port", port]) as process:
        late = time.monotonic() + 60
        while not Path("blindtally.db-shm").exists():
            assert process.poll() is None
            assert time.monotonic() < late
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        process.kill()


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.stderr


def test_no_file_that_a_command_makes_can_be_read_by_other_users(
    url: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    small = ("--devices", "12", "--rounds", "1", "--min-cohort", "5", "--json", "fleet.json")
    for words in (
        ("registrar", "create", "registrar.key"),
        ("registrar", "serve", "registrar.key", "--url", url),
        ("member", "member.key", "--new"),
        ("member", "member.key", "--public-key", "member.pub", "--url", url),
        ("keys", "create", "analysts", "--json", "key.json"),
        ("params", "--devices", "100", "--json", "params.json"),
        ("fleet", "--create", "--registrar", "fleet.key", "--url", url, *small),
        ("backup", "backup.db"),
        ("restore", "backup.db", "--database", "sqlite:///restored.db"),
    ):
        run(*words)
    state = DeviceState.on_disk(tmp_path / "device")
    with state.running():
        state.member_journal().close()
    modes = {
        str(path.relative_to(tmp_path)): oct(path.stat().st_mode & 0o777)
        for path in tmp_path.rglob("*")
    }
    assert {
        "blindtally.db", "blindtally.db-wal", "blindtally.db-shm", "backup.db", "registrar.key",
        "registrar.key.draws", "registrar.key.enrolments", "member.key", "member.key.journal",
        "key.json", "device", "device/secret", "device/lock", "device/committees", "fleet.key",
        "restored.db",
    } <= set(modes)  # fmt: skip
    shared = {name: mode for name, mode in modes.items() if mode not in ("0o600", "0o700")}
    assert shared == dict.fromkeys(RESULTS, "0o644")


def test_a_key_that_others_may_read_is_named() -> None:
    run("registrar", "create", "a.key")
    Path("a.key").chmod(0o644)
    warning = run("registrar", "serve", "a.key", "--url", "http://127.0.0.1:9")
    assert warning == "other users of this machine may read a.key: chmod 600 a.key\n"
