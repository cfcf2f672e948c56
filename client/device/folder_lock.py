"""Lock of a device's folder, and the records by which an older copy of the folder is recognised.

A copy of the folder is the same device: without a record of what the other copy has sent, it would
give a second vector to a study. Two files hold a record each. One is in the folder; the other is in
the user's cache folder, which backups leave out. One process locks both while it runs the device. A
record has the *generation* (how often the device started), the length of the journal, which only
grows, the folder and the machine.

    a file is locked             another program runs the device, in this folder or in a copy
    the journal is shorter       it was deleted, or replaced by an older one
    a lower generation           the device ran later in another copy, or this one was restored
    another machine              the folder was copied from there

In each case the device does not start. The length is recorded with each entry of the journal,
before its message is sent, so that a process may end in any way. A process that is killed leaves no
lock. Copies of two users, or on two machines whose ids are equal or unknown, do not know of each
other.
"""

import hmac
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from filelock import lock_descriptor
from platformdirs import user_cache_path

from client.device.journal import JournalError, complete_lines
from client.process_files import open_private_file, sync_folder

_MACHINE_ID: Final = Path("/etc/machine-id")
_MAX_RECORD_BYTES: Final = 2**14
ONE_DEVICE_ADVICE: Final = (
    "All processes of a machine are one device, which takes part once. To simulate several devices "
    "in one program, pass device_state=DeviceState.in_memory()"
)


class DeviceInUseError(JournalError):
    """Another process runs the device, so this one has nothing to do."""


@dataclass(frozen=True, slots=True)
class FolderRecord:
    """State of a device's folder at its last start, with the length of its journal."""

    generation: int = 0
    journal_bytes: int = 0
    machine: str = ""  # a keyed hash of the machine's id, empty if that is unknown
    folder: str = ""

    def __post_init__(self) -> None:
        """Refuse a record that cannot be compared; raises TypeError."""
        if not all(type(number) is int for number in (self.generation, self.journal_bytes)):
            raise TypeError("a generation and a length are integers")
        if not all(isinstance(text, str) for text in (self.machine, self.folder)):
            raise TypeError("a machine and a folder are text")


@dataclass(slots=True)
class _Lock:
    """The locked files of a folder with their record, and the number of runs that share them."""

    files: Mapping[Path, int]
    record: FolderRecord
    stack: ExitStack
    runs: int = 0


# By process, because a process that was forked must not take the locks of its parent for its own.
_locks: Final[dict[tuple[int, Path, str], _Lock]] = {}
_access: Final = threading.Lock()


@contextmanager
def locked_folder(folder: Path, secret: bytes) -> Iterator[None]:
    """Lock the device in `folder`, and advance its generation.

    The runs of one process share the lock, so that a service that keeps one waiting stops no other.

    Raises:
        DeviceInUseError: if another program runs the device.
        JournalError: if the folder is an older copy or of another machine, or its files cannot be
            read or written.
    """
    key = _lock_key(folder, secret)
    with _access:
        lock = _locks.get(key) or _lock_files(folder, secret)
        _locks[key] = lock
        lock.runs += 1
    try:
        yield
    finally:
        with _access:
            lock.runs -= 1
            if not lock.runs:
                del _locks[key]
                lock.stack.close()


def record_journal(folder: Path, secret: bytes) -> None:
    """Record the length of the journal in `folder`, if this process has locked it.

    Raises:
        OSError: if a record cannot be written; the message of the last entry must not be sent.
    """
    with _access:
        lock = _locks.get(_lock_key(folder, secret))
        if lock is not None:
            nbytes = (folder / "journal").stat().st_size
            for file in lock.files.values():
                _write(file, replace(lock.record, journal_bytes=nbytes))


def _lock_key(folder: Path, secret: bytes) -> tuple[int, Path, str]:
    return os.getpid(), folder.absolute(), _device_name(secret)


def _device_name(secret: bytes) -> str:
    return hmac.digest(secret, b"device", "sha256").hex()[:32]


def _lock_files(folder: Path, secret: bytes) -> _Lock:
    files: dict[Path, int] = {}
    users = user_cache_path("blindtally") / "devices" / _device_name(secret)
    with ExitStack() as stack:
        try:
            files[folder / "lock"] = _open_locked(folder / "lock", stack)
            with suppress(OSError):  # a user without such a folder: only the device's has a record
                users.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                files[users] = _open_locked(users, stack)
            record = _next_record(folder, secret, [_read(path, files[path]) for path in files])
            for file in files.values():
                _write(file, record)
                sync_folder(folder)  # before the other record: the file `lock` may be new
        except OSError as error:
            raise JournalError(f"{folder}: {error.strerror}") from None
        return _Lock(files, record, stack.pop_all())


def _open_locked(path: Path, stack: ExitStack) -> int:
    file = open_private_file(path)
    stack.callback(os.close, file)  # which releases the lock
    if not lock_descriptor(file, blocking=False):
        text = f"{path} is locked: another process takes part as this device. {ONE_DEVICE_ADVICE}"
        raise DeviceInUseError(text)
    return file


def _read(path: Path, file: int) -> FolderRecord:
    os.lseek(file, 0, os.SEEK_SET)
    line = os.read(file, _MAX_RECORD_BYTES).split(b"\n")[0].strip(b"\0")
    if not line:  # new, or the machine stopped before the first record was on the disk
        return FolderRecord()
    try:
        return FolderRecord(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        raise JournalError(f"{path} is not the record of a device: delete it") from None


def _next_record(folder: Path, secret: bytes, records: list[FolderRecord]) -> FolderRecord:
    own, latest = records[0], max(records, key=lambda record: record.generation)
    if own == FolderRecord() and latest.folder == str(folder.absolute()):
        own = latest  # `lock` was emptied, perhaps by a power cut; the journal is compared below
    nbytes = 0
    with suppress(FileNotFoundError):
        nbytes = len(complete_lines((folder / "journal").read_bytes()))
    generation = own.generation + 1
    record = FolderRecord(generation, nbytes, _machine(secret), str(folder.absolute()))
    new_device = "or delete this folder to begin as a new device"
    if own.machine and record.machine and own.machine != record.machine:
        raise JournalError(
            f"{folder} was copied from another machine. Delete its file `lock` if the device has "
            f"moved and no copy is left, {new_device}"
        )
    if own.generation < latest.generation:
        raise JournalError(
            f"{folder} is an older copy of a device that ran later in {latest.folder}: use that, "
            f"{new_device}"
        )
    if record.journal_bytes < max(each.journal_bytes for each in records):
        raise JournalError(
            f"{folder / 'journal'} is older than its device: restore the latest one, {new_device}"
        )
    return record


def _write(file: int, record: FolderRecord) -> None:
    """Replace the record by one write, which a killed process has done or not done."""
    os.lseek(file, 0, os.SEEK_SET)
    os.write(file, json.dumps(asdict(record)).encode() + b"\n")
    os.fsync(file)


def _machine(secret: bytes) -> str:
    try:
        name = _MACHINE_ID.read_bytes().strip()
    except OSError:
        return ""
    return hmac.digest(secret, b"machine " + name, "sha256").hex()[:32] if name else ""
