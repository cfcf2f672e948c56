"""One folder is one device: it runs once at a time, and an older copy is refused."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from client.device.device_state import DeviceState
from client.device.folder_lock import DeviceInUseError
from client.device.journal import JournalError
from tests.support.journals import vector_entry


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file with the machine's id, of a user with an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("client.device.folder_lock._MACHINE_ID", tmp_path / "machine-id")
    (tmp_path / "machine-id").write_text("this machine\n")
    return tmp_path / "machine-id"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "device"


def run(folder: Path, study: str = "", *, is_killed: bool = False) -> None:
    """Run the device, which sends a vector to `study` if it is given."""
    state = DeviceState.on_disk(folder, Random(1))
    with state.running():
        if study:
            state.journal.record(vector_entry(study))
        if is_killed:
            raise KeyboardInterrupt


def test_one_process_at_a_time_runs_a_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DeviceState.on_disk(folder).running(), monkeypatch.context() as other_process:
        other_process.setattr("client.device.folder_lock.os.getpid", lambda: 0)
        with pytest.raises(DeviceInUseError):
            run(folder)
    run(folder)
    with DeviceState.in_memory().running():
        pass


def test_the_runs_of_one_process_share_the_lock_until_the_last_one_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that keeps one run waiting locks the device out of no other service."""
    first, second = (DeviceState.on_disk(folder).running() for _ in range(2))
    with second:
        with first:
            run(folder, "study-1")
        with monkeypatch.context() as other_process:
            other_process.setattr("client.device.folder_lock.os.getpid", lambda: 0)
            with pytest.raises(DeviceInUseError):
                run(folder)
    monkeypatch.setattr("client.device.folder_lock.os.getpid", lambda: 0)
    run(folder)


def test_a_copy_does_not_run_with_the_device(folder: Path) -> None:
    run(folder)
    shutil.copytree(folder, folder.with_name("copy"))
    with DeviceState.on_disk(folder).running(), pytest.raises(DeviceInUseError):
        run(folder.with_name("copy"))


@pytest.mark.parametrize("study", ["", "s1"])
def test_an_older_copy_is_refused_in_any_folder(folder: Path, study: str) -> None:
    run(folder)
    older = shutil.copytree(folder, folder.with_name("older"))
    run(folder, study)
    with pytest.raises(JournalError, match=f"older copy of a device that ran later in {folder}"):
        run(older)
    shutil.copytree(older, folder, dirs_exist_ok=True)  # a restored backup, in the same files
    with pytest.raises(JournalError, match="older copy"):
        run(folder)


def test_of_two_equal_copies_the_first_goes_on(folder: Path) -> None:
    run(folder)
    copy = shutil.copytree(folder, folder.with_name("copy"))
    run(copy, "s1")
    with pytest.raises(JournalError, match=f"ran later in {copy}"):
        run(folder, "s1")
    run(copy, "s2")


def test_a_folder_may_move(folder: Path) -> None:
    run(folder, "s1")
    run(folder.rename(folder.with_name("moved")), "s2")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_folder_whose_journal_or_secret_was_lost_is_refused(
    folder: Path, damage: Callable[[Path], Any]
) -> None:
    run(folder, "s1")
    damage(folder / "journal")
    with pytest.raises(JournalError, match="is older than its device"):
        run(folder)
    (folder / "secret").unlink()
    with pytest.raises(JournalError, match="secret is missing: restore it, or delete the folder"):
        run(folder)


def test_an_incomplete_line_of_the_journal_does_not_count(folder: Path) -> None:
    run(folder, "s1")
    whole = (folder / "journal").read_bytes()
    (folder / "journal").write_bytes(whole + b'{"study": "s')
    run(folder)
    (folder / "journal").write_bytes(whole)
    run(folder)


def test_a_folder_of_another_machine_is_refused_until_a_person_decides(
    folder: Path, machine: Path
) -> None:
    run(folder, "s1")
    shutil.rmtree(folder.with_name("cache"))
    machine.write_text("another machine\n")
    with pytest.raises(JournalError, match="copied from another machine"):
        run(folder)
    machine.unlink()  # a system without such an id
    run(folder)
    machine.write_text("another machine\n")
    (folder / "lock").unlink()
    shutil.rmtree(folder.with_name("cache"))
    run(folder)


@pytest.mark.parametrize("unusable", ["cache", "cache/blindtally/devices"])
def test_a_user_without_a_cache_folder_has_the_record_of_the_folder(
    folder: Path, unusable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder.parent / unusable
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file")
    run(folder, "s1")
    with DeviceState.on_disk(folder).running(), monkeypatch.context() as other_process:
        other_process.setattr("client.device.folder_lock.os.getpid", lambda: 0)
        with pytest.raises(DeviceInUseError):
            run(folder)
    (folder / "journal").unlink()
    with pytest.raises(JournalError, match="is older than its device"):
        run(folder)


def test_an_older_journal_is_refused_however_the_last_run_ended(folder: Path) -> None:
    """The length of the journal is on the disk before a message is sent."""
    run(folder)
    with pytest.raises(KeyboardInterrupt):
        run(folder, "s1", is_killed=True)
    nbytes = (folder / "journal").stat().st_size
    assert f'"journal_bytes": {nbytes}' in (folder / "lock").read_text()
    run(folder)
    (folder / "journal").unlink()
    with pytest.raises(JournalError, match="is older than its device"):
        run(folder)


def test_a_device_that_has_sent_nothing_starts_again(folder: Path) -> None:
    run(folder)
    assert DeviceState.on_disk(folder).journal.epsilon_spent() == 0  # which creates an empty file
    assert (folder / "journal").stat().st_size == 0
    run(folder)


def test_a_message_whose_record_cannot_be_written_is_not_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = DeviceState.on_disk(folder, Random(1))
    with state.running(), monkeypatch.context() as full_disk:
        error = OSError(errno.ENOSPC, "No space left on device")
        full_disk.setattr("client.device.folder_lock.os.write", Mock(side_effect=error))
        with pytest.raises(JournalError, match="No space left"):
            state.journal.record(vector_entry("s1"))


@pytest.mark.parametrize("call", range(1, 9))
def test_a_start_that_is_cut_short_anywhere_stops_no_later_one(
    folder: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine stops at one of the system calls that change files; nothing after it happens."""
    calls = 0

    def stop(real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= call:
                raise KeyboardInterrupt
            return real(*arguments)

        return counted

    with monkeypatch.context() as patch:
        for name in ("write", "fsync", "link"):
            patch.setattr(os, name, stop(getattr(os, name)))
        with pytest.raises(KeyboardInterrupt):
            [run(folder) for _ in range(3)]
    run(folder)


@pytest.mark.parametrize("content", [b"", bytes(99)])
def test_a_record_that_was_lost_is_made_again_unless_the_journal_is_older(
    folder: Path, content: bytes
) -> None:
    """A power cut can empty the file `lock` of a device that has run for years."""
    for study in ("s1", "s2"):
        run(folder, study)
    journal = (folder / "journal").read_bytes()
    (folder / "lock").write_bytes(content)
    run(folder, "s3")
    (folder / "lock").write_bytes(content)
    (folder / "journal").write_bytes(journal)
    with pytest.raises(JournalError, match="is older than its device"):
        run(folder)
    copy = shutil.copytree(folder, folder.with_name("copy"))
    with pytest.raises(JournalError, match="older"):
        run(copy)


@pytest.mark.parametrize("content", [b"", bytes(99)])
def test_a_record_that_never_reached_the_disk_is_none(folder: Path, content: bytes) -> None:
    DeviceState.on_disk(folder)
    (folder / "lock").write_bytes(content)
    run(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"{}x",
        b"7",
        b'{"generation": 1, "more": 2}',
        b'{"generation": "1"}',
        b'{"machine": ["a"]}',
        b"[" * 16_000,
    ],
)
def test_another_programs_file_is_refused(folder: Path, content: bytes) -> None:
    DeviceState.on_disk(folder)
    (folder / "lock").write_bytes(content)
    with pytest.raises(JournalError, match="not the record of a device"):
        run(folder)


def test_a_start_writes_records_that_last_and_are_the_users_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("client.device.folder_lock.sync_folder", synced.append)
    run(folder)
    assert synced[-1] == folder  # the name of the new file `lock`
    (record,) = (tmp_path / "cache" / "blindtally" / "devices").iterdir()
    assert record.parent.stat().st_mode & 0o777 == 0o700
    for file in (record, folder / "lock"):
        assert json.loads(file.read_bytes())["generation"] == 1
        assert file.stat().st_mode & 0o777 == 0o600
    run(folder)
    assert json.loads(record.read_bytes())["generation"] == 2


def test_records_contain_no_secret(folder: Path, machine: Path) -> None:
    run(folder)
    secret = (folder / "secret").read_text().split()[-1]
    (record,) = (folder.with_name("cache") / "blindtally" / "devices").iterdir()
    for path in (record, folder / "lock"):
        assert secret not in path.read_text() + path.name
        assert machine.read_text().strip() not in path.read_text()
        assert path.stat().st_mode & 0o077 == 0
