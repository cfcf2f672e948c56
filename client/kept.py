"""What a device keeps from round to round: one secret, and a journal of what it gave.

From the secret it makes its identity in each study, so that it is the same one whenever the device
comes again, and nobody who sees two of them can tell that they are one device's:

    HMAC-SHA256(secret, what, service, study), each for one purpose

All studies that ask for reports meet one identity, since what it spends is added up by it: then
`study` is None, which no server can call a study. `service` is where it runs, so that another that
names the same study meets a stranger. HMAC-SHA256 is a pseudorandom function [RFC 2104;
Bellare06]: without the secret all of this is noise.

Whoever loses the secret is a new device; whoever loses the journal as well may give twice. So they
lie side by side, and one folder is one device.
"""

import hmac
import json
import os
from contextlib import suppress
from pathlib import Path
from random import Random, SystemRandom
from tempfile import NamedTemporaryFile
from typing import Final, Self

import numpy as np
from platformdirs import user_state_path

from client.journal import FileJournal, Journal, JournalError, MemoryJournal
from protocol.credentials import text_of
from secagg.keys import KEY_BYTES, Identity

_MARK: Final = "blindtally device v1"  # so that nothing else passes for such a secret


class Kept:
    """A device's `secret` of 32 bytes, and its `journal`."""

    def __init__(self, secret: bytes, journal: Journal) -> None:
        self.journal = journal
        self._secret = secret

    @classmethod
    def in_memory(cls, secrets: Random | None = None) -> Self:
        """Return a new device's, which ends with its process: for simulations."""
        return cls((secrets or SystemRandom()).randbytes(KEY_BYTES), MemoryJournal())

    @classmethod
    def on_disk(cls, folder: Path | None = None, secrets: Random | None = None) -> Self:
        """Return what the device of `folder` keeps; a new device's if there is none yet.

        Without a folder it is the one that this user's programs have for their state.

        Raises:
            JournalError: if it cannot be read or made.
        """
        place = folder or user_state_path("blindtally") / "device"
        path = place / "secret"
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists():
                _make(path, (secrets or SystemRandom()).randbytes(KEY_BYTES))
            said = path.read_text(encoding="ascii", errors="replace")
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}") from None
        return cls(_parsed(path, said), FileJournal(place / "journal"))

    def identity(self, service: str, study: str | None) -> Identity:
        """Return who the device is in `study` at `service`; of None, wherever it reports."""
        return Identity.of(self._derive("identity", service, study))

    def credential(self, service: str, study: str | None) -> str:
        """Return what that identity shows to be let in."""
        return text_of(self._derive("credential", service, study))

    def choices(self, service: str, study: str | None) -> np.random.Generator:
        """Return the chance by which it chooses what to give: whenever it is asked, the same."""
        seed = self._derive("choices", service, study)
        return np.random.default_rng(int.from_bytes(seed, "big"))

    def _derive(self, what: str, service: str, study: str | None) -> bytes:
        purpose = json.dumps([what, service, study]).encode()  # no two read alike
        return hmac.digest(self._secret, purpose, "sha256")


def _make(path: Path, secret: bytes) -> None:
    """Write a secret to `path`, whole or not at all; one that another process made stays."""
    with NamedTemporaryFile("w", dir=path.parent, encoding="ascii") as file:  # its owner's alone
        file.write(f"{_MARK} {secret.hex()}\n")
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _parsed(path: Path, said: str) -> bytes:
    mark, _, text = said.strip().rpartition(" ")
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if mark != _MARK or len(secret) != KEY_BYTES:
        raise JournalError(f"{path} holds no device's secret")
    return secret
