"""`blindtally registrar`: the key with which a registrar enrols the devices of a study.

A third party must confirm which devices are real, or a server could invent devices. The public key
of this *registrar* is part of the study's terms. Its secret key is a file that only its owner may
read, and that is never overwritten.
"""

import os
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Final

import typer
from typer import Argument, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import JsonOption, write_json
from protocol.api.messages import StudyView
from protocol.mechanisms.registry import REPORT_MECHANISMS
from secagg.keys import KEY_BYTES, Identity

_KEY_FILE_HEADER: Final = "blindtally registrar v1 "  # so that no other file is taken as a key


class KeyFileError(ValueError):
    """A key file cannot be made or used; the message names it, and never shows its content."""


def registrar(
    path: Annotated[Path, Argument(help="Key file, which only its owner may read.")],
    show: Annotated[
        bool, Option("--show", help="Show the public key of an existing file.")
    ] = False,
    json_path: JsonOption = None,
) -> None:
    """Make the key of a registrar, and print its public half for a study's terms.

    Example:
      blindtally registrar registrar.key
    """
    try:
        identity = load_key_file(path) if show else create_key_file(path)
    except KeyFileError as error:
        raise exit_with_error(error, code=1) from None
    if json_path != "-":
        typer.echo(identity.public.hex())
    write_json(json_path, {"public": identity.public.hex(), "file": str(path)})
    if not show:
        typer.echo(f"the secret half is in {path}: keep it, and keep it from the server", err=True)


def create_key_file(path: Path) -> Identity:
    """Return a new registrar, whose key is in a new file that only its owner may read.

    Raises:
        KeyFileError: if the file exists, or cannot be made.
    """
    secret = SystemRandom().randbytes(KEY_BYTES)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with open(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
            file.write(f"{_KEY_FILE_HEADER}{secret.hex()}\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        advice = "--show prints a key's public half"
        raise KeyFileError(f"{path} exists and is not overwritten; {advice}") from None
    except OSError as error:
        raise KeyFileError(f"cannot make {path}: {error.strerror}") from None
    return Identity.of(secret)


def load_or_create_key_file(path: Path) -> Identity:
    """Return the registrar whose key is in the file at `path`; make the file if it is missing.

    Raises:
        KeyFileError: if the file cannot be made, or has no such key.
    """
    if path.exists():
        return load_key_file(path)
    identity = create_key_file(path)
    typer.echo(f"made {path}, the secret key of a registrar: it enrols these devices", err=True)
    return identity


def load_registrar_of(study: StudyView, path: Path) -> Identity | None:
    """Return the registrar of `study`, whose key is in the file at `path`.

    Reports need no registrar: of a study of reports that names none, return None.

    Raises:
        KeyFileError: if the study sums vectors and names no registrar, or if the file has no key,
            or the key of another registrar.
    """
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


def load_key_file(path: Path) -> Identity:
    """Return the registrar whose key is in the file at `path`.

    Raises:
        KeyFileError: if the file cannot be read or is not such a key.
    """
    try:
        header, secret = path.read_text(encoding="ascii").strip().rsplit(" ", 1)
        if header == _KEY_FILE_HEADER.strip():
            return Identity.of(bytes.fromhex(secret))
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:  # not ASCII, not two words or not 32 bytes; the message shows none of it
        pass
    raise KeyFileError(f"{path} holds no registrar's key") from None
