"""`blindtally registrar`: the key that says which devices may take part in a study.

Against a server that invents devices of its own no cryptography among devices helps: somebody
else must say who is real. That is the *registrar*. It signs the identity of each device for
one study, and its public key stands in the study's terms, where no server can change it. Its
secret key is a file that only its owner may read, and that is never overwritten.
"""

import os
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Final

import typer

from blindtally.console.output import JsonOption, exit_with_error, write_json
from secagg.keys import KEY_BYTES, Identity

_KEY_FILE_HEADER: Final = "blindtally registrar v1 "  # so that nothing else passes for such a key


class KeyFileError(ValueError):
    """A key file cannot be made or used; the message names it, and never what is in it."""


def registrar(
    path: Annotated[Path, typer.Argument(help="The file of the key, for its owner alone.")],
    show: Annotated[
        bool, typer.Option("--show", help="Show the public key of a file that is there.")
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
        typer.echo(f"its secret half is in {path}: keep it, and keep it from the server", err=True)


def create_key_file(path: Path) -> Identity:
    """Return a fresh registrar, kept in a new file at `path` that its owner alone may read.

    Raises:
        KeyFileError: if there is such a file already, or none can be made.
    """
    secret = SystemRandom().randbytes(KEY_BYTES)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with open(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
            file.write(f"{_KEY_FILE_HEADER}{secret.hex()}\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        what = "exists and is not overwritten; --show prints a key's public half"
        raise KeyFileError(f"{path} {what}") from None
    except OSError as error:
        raise KeyFileError(f"cannot make {path}: {error.strerror}") from None
    return Identity.of(secret)


def load_key_file(path: Path) -> Identity:
    """Return the registrar whose key is in the file at `path`.

    Raises:
        KeyFileError: if there is none.
    """
    try:
        mark, secret = path.read_text(encoding="ascii").strip().rsplit(" ", 1)
        if mark == _KEY_FILE_HEADER.strip():
            return Identity.of(bytes.fromhex(secret))
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:  # not ASCII, not two words, not 32 bytes: and its text is nobody's
        pass
    raise KeyFileError(f"{path} holds no registrar's key") from None
