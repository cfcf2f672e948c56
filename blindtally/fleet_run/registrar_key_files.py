"""Key files of registrars and members, which only their owners may read; none is overwritten."""

import os
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from typing import Literal, TypeAlias

from blindtally.console.terminal import print_line
from client.process_files import open_private_file
from protocol.api.credentials import key_file_text
from protocol.api.messages import StudyView
from protocol.mechanisms.registry import REPORT_MECHANISMS
from secagg.keys import KEY_BYTES, Identity

KeyOwner: TypeAlias = Literal["registrar", "member"]


class KeyFileError(ValueError):
    """A key file cannot be made or used; the message names it, and never shows its content."""


def create_key_file(path: Path, owner: KeyOwner = "registrar") -> Identity:
    """Return a new registrar or member, whose key is in a new file that only its owner may read.

    Raises:
        KeyFileError: if the file exists, or cannot be made.
    """
    secret = SystemRandom().randbytes(KEY_BYTES)
    try:
        descriptor = open_private_file(path, os.O_EXCL)
        # Only a file that was made here is removed: without room for it, it has no whole key.
        with ExitStack() as undo, open(descriptor, "w", encoding="ascii") as file:
            undo.callback(path.unlink, missing_ok=True)
            file.write(key_file_text(owner, secret))
            file.flush()
            os.fsync(file.fileno())
            undo.pop_all()
    except FileExistsError:
        shows = "registrar show" if owner == "registrar" else "member --show"
        advice = f"`blindtally {shows}` prints its public half"
        raise KeyFileError(f"{path} exists and is not overwritten; {advice}") from None
    except OSError as error:
        raise KeyFileError(f"cannot make {path}: {error.strerror}") from None
    return Identity.of(secret)


def load_registrar_of(study: StudyView | None, path: Path) -> Identity | None:
    """Return the registrar of `study`, whose key is in the file at `path`.

    Reports need no registrar: of a study of reports that names none, return None. For a new study,
    None, make the file if it is missing.

    Raises:
        KeyFileError: if the study sums vectors and names no registrar, or if the file has no key,
            or the key of another registrar, or cannot be made.
    """
    if study is None:
        if path.exists():
            return load_key_file(path)
        identity = create_key_file(path)
        print_line(f"made {path}, the secret key of a registrar: it enrols these devices", err=True)
        return identity
    named = study.terms.registrar
    if named is None:
        if study.question.mechanism in REPORT_MECHANISMS:
            return None
        raise KeyFileError(
            f"study {study.id} names no registrar, so its server may have invented the other "
            "devices: create a study with a registrar, or use --no-registrar"
        )
    needed = f"study {study.id} names the registrar {named}: pass its key file with --registrar"
    try:
        identity = load_key_file(path)
    except KeyFileError as error:
        raise KeyFileError(f"{error}; {needed}") from None
    if identity.public.hex() != named:
        raise KeyFileError(f"{path} has the key of {identity.public.hex()}; {needed}")
    return identity


def load_key_file(path: Path, owner: KeyOwner = "registrar") -> Identity:
    """Return the registrar or member whose key is in the file at `path`.

    Raises:
        KeyFileError: if the file cannot be read or is not such a key.
    """
    try:
        text = path.read_text(encoding="ascii").strip()
        secret = bytes.fromhex(text.rsplit(" ", 1)[-1])
        if text == key_file_text(owner, secret).strip():
            return Identity.of(secret)
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:  # not ASCII, not two words or not 32 bytes; the message shows none of it
        pass
    raise KeyFileError(f"{path} holds no {owner}'s key") from None
