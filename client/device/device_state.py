"""State that a device keeps from round to round: one secret, and a journal of what it has sent.

The secret determines the device's identity in each study. So the device has the same identity
whenever it returns to a study, and nobody can link its identities in two studies:

    HMAC-SHA256(secret, purpose, service, study)

All studies that ask for reports see one identity, because the service adds up the epsilon that it
spends; `study` is then None, which cannot be the id of a study. `service` is the URL, so a second
service with a study of the same id sees another identity. HMAC-SHA256 is a pseudorandom function
[RFC 2104; Bellare06]: without the secret its outputs look like noise.

A device that loses its folder becomes a new device. A device that loses its journal but not its
secret may contribute twice. So both are in one folder, and one folder is one device
(`client.device.folder_lock`).
"""

import hmac
import json
import os
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from tempfile import TemporaryDirectory
from typing import Final, Self

from platformdirs import user_state_path

from client.committee.member_journal import MemberJournal, MemberJournalError
from client.device.folder_lock import locked_folder, record_journal
from client.device.journal import FileJournal, Journal, JournalError, MemoryJournal
from client.process_files import open_private_file, sync_folder
from protocol.api.credentials import encode_secret
from protocol.randomness import RandomWords, keyed_words
from secagg.keys import KEY_BYTES, Identity

_FILE_HEADER: Final = "blindtally device v1"  # marks the file as a device's secret


class DeviceState:
    """The `secret` of a device, 32 bytes, and its `journal`."""

    def __init__(self, secret: bytes, journal: Journal, folder: Path | None = None) -> None:
        self.journal = journal
        self._secret = secret
        self._folder = folder

    @classmethod
    def in_memory(cls, secrets: Random | None = None) -> Self:
        """Return the state of a new device that ends with its process: for simulations."""
        return cls((secrets or SystemRandom()).randbytes(KEY_BYTES), MemoryJournal())

    @classmethod
    def on_disk(
        cls, folder: str | os.PathLike[str] | None = None, secrets: Random | None = None
    ) -> Self:
        """Return the state of the device in `folder`, which is created if it does not exist.

        The default folder is in the state folder of the current user.

        Raises:
            JournalError: if the state cannot be read or created.
        """
        default = user_state_path("blindtally") / "device"
        folder = default if folder is None else Path(folder)
        path = folder / "secret"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (folder / "lock").exists() and not path.exists():  # it is written before `lock`
                _write_secret(path, (secrets or SystemRandom()).randbytes(KEY_BYTES))
            text = path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            text = f"{path} is missing: restore it, or delete the folder to begin as a new device"
            raise JournalError(text) from None
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}") from None
        secret = _parse_secret(path, text)
        journal = FileJournal(folder / "journal", partial(record_journal, folder, secret))
        return cls(secret, journal, folder)

    def running(self) -> AbstractContextManager[None]:
        """Return the lock that the device holds while it runs; none in memory.

        Raises:
            DeviceInUseError: on entering, if another process runs it.
            JournalError: on entering, if its folder is an older copy.
        """
        return locked_folder(self._folder, self._secret) if self._folder else nullcontext()

    def member_journal(self) -> MemberJournal:
        """Return the journal of the committees that the device serves on; close it afterwards.

        It has no keys any more of sums that are a month old, see `MemberJournal`.

        Raises:
            JournalError: if the file cannot be used.
        """
        try:
            journal = MemberJournal(self._folder and self._folder / "committees")
            journal.erase_old_keys(time.time())
        except MemberJournalError as error:
            raise JournalError(str(error)) from None
        return journal

    def identity(self, service: str, study: str | None) -> Identity:
        """Return the device's identity in `study`; None stands for all studies of reports."""
        return Identity.of(self._derive("identity", service, study))

    def credential(self, service: str, study: str | None) -> str:
        """Return the credential with which that identity is registered."""
        return encode_secret(self._derive("credential", service, study))

    def choices(self, service: str, study: str | None) -> RandomWords:
        """Return the words that select the device's contribution, always the same ones."""
        return keyed_words(self._derive("choices", service, study))

    def _derive(self, purpose: str, service: str, study: str | None) -> bytes:
        message = json.dumps([purpose, service, study]).encode()  # an injective encoding
        return hmac.digest(self._secret, message, "sha256")


def _write_secret(path: Path, secret: bytes) -> None:
    """Write a secret to `path` atomically; the file of a faster process stays."""
    with TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder, path.name)
        with open(open_private_file(part), "w", encoding="ascii") as file:
            file.write(f"{_FILE_HEADER} {secret.hex()}\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(part, path)
    sync_folder(path.parent)


def _parse_secret(path: Path, text: str) -> bytes:
    header, _, digits = text.strip().rpartition(" ")
    try:
        secret = bytes.fromhex(digits)
    except ValueError:
        secret = b""
    if header != _FILE_HEADER or len(secret) != KEY_BYTES:
        raise JournalError(f"{path} does not contain the secret of a device")
    return secret
