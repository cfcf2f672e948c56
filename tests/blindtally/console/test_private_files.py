"""Files that a command makes for itself are for its owner alone; results are the user's."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from blindtally.demo.server_process import free_port
from client.device.device_state import DeviceState

RESULTS = {"params.json", "member.pub", "fleet.json"}
PUBLIC = ("--public-key", "member.pub")


@pytest.fixture
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "blindtally", *words]


def run(folder: Path, *words: str) -> None:
    done = subprocess.run(command(*words), check=False, cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr


@contextmanager
def running(folder: Path, words: Sequence[str], made: str) -> Iterator[None]:
    """Run a command in `folder` that does not end, once it has made a file."""
    with subprocess.Popen(command(*words), cwd=folder) as process:
        late = time.monotonic() + 60
        while not (folder / made).exists():
            assert process.poll() is None
            assert time.monotonic() < late
            time.sleep(0.05)
        yield
        process.kill()


@pytest.mark.usefixtures("_usual_umask")
def test_no_file_that_a_command_makes_can_be_read_by_other_users(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    for words in (
        ("registrar", "create", "registrar.key"),
        ("member", "member.key", "--new"),
        ("keys", "create", "analysts", "--json", "key.json"),
        ("params", "--devices", "100", "--json", "params.json"),
        ("demo", "--devices", "12", "--rounds", "1", "--out", "demo"),
    ):
        run(tmp_path, *words)
    state = DeviceState.on_disk(tmp_path / "device")
    with state.running():
        state.member_journal().close()
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    with (
        running(tmp_path, ("serve", "--open", "--port", port), "blindtally.db-shm"),
        running(
            tmp_path, ("registrar", "serve", "registrar.key", "--url", url), "registrar.key.draws"
        ),
        running(tmp_path, ("member", "member.key", *PUBLIC, "--url", url), "member.pub"),
    ):
        small = ("--devices", "12", "--rounds", "1", "--min-cohort", "5", "--json", "fleet.json")
        run(tmp_path, "fleet", "--create", "--registrar", "fleet.key", "--url", url, *small)
        run(tmp_path, "backup", "backup.db")
        run(tmp_path, "restore", "backup.db", "--database", "sqlite:///restored.db")
        modes = {
            str(path.relative_to(tmp_path)): oct(path.stat().st_mode & 0o777)
            for path in tmp_path.rglob("*")
        }
    assert {
        "blindtally.db", "blindtally.db-wal", "blindtally.db-shm", "backup.db", "registrar.key",
        "registrar.key.draws", "registrar.key.enrolments", "member.key", "member.key.journal",
        "key.json", "device", "device/secret", "device/lock", "device/committees", "demo",
        "demo/blindtally.db", "demo/server.log", "demo/results.json", "fleet.key", "restored.db",
    } <= set(modes)  # fmt: skip
    shared = {name: mode for name, mode in modes.items() if mode not in ("0o600", "0o700")}
    assert shared == dict.fromkeys(RESULTS, "0o644")


@pytest.mark.usefixtures("_usual_umask")
def test_a_key_that_others_may_read_is_named(tmp_path: Path) -> None:
    subprocess.run(
        command("registrar", "create", "a.key"), cwd=tmp_path, check=True, capture_output=True
    )
    (tmp_path / "a.key").chmod(0o644)
    with subprocess.Popen(
        command("registrar", "serve", "a.key", "--url", "http://127.0.0.1:9"),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        process.kill()
    assert line == "other users of this machine may read a.key: chmod 600 a.key\n"
