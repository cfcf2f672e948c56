"""Output files of commands: JSON for scripts, and files that are written whole or not at all."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from blindtally.console.errors import exit_with_error


def check_output_path(path: str | None) -> str | None:
    """Return `path`, if it can be written, so that a long run does not end without its results.

    Raises:
        typer.BadParameter: if it cannot, or is the next option because the user gave no path.
    """
    if path is None or path == "-":
        return path
    if not path or path.startswith("--"):
        place = f" before {path}" if path else ""
        raise typer.BadParameter(f"there is no path{place}; - is stdout")
    target = Path(path).resolve()
    if target.is_dir() or path.endswith("/"):
        raise typer.BadParameter(f"cannot write {path}: it is a folder")
    if not target.parent.is_dir():
        raise typer.BadParameter(f"cannot write {path}: there is no folder {target.parent}")
    # A file is replaced by a new one in its folder; a pipe is written itself.
    if not os.access(target.parent if target.is_file() or not target.exists() else target, os.W_OK):
        raise typer.BadParameter(f"cannot write {path}: permission denied")
    return path


JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="PATH", help="Write JSON; - is stdout.", callback=check_output_path
    ),
]


def write_json(path: str | None, document: dict[str, Any], *, is_secret: bool = False) -> None:
    """Write `document` to the file at `path`, to stdout if that is `-`, nowhere if it is None.

    Only the owner may read a file that `is_secret`.

    Raises:
        typer.Exit: if the file cannot be written.
    """
    text = json.dumps(document, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
    elif path is not None:
        with atomic_write(Path(path)) as file:
            if is_secret:
                file.touch(0o600)
            file.write_text(text, encoding="utf-8")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary file to write, which replaces `path` at the end.

    Raises:
        typer.Exit: if the file cannot be written.
    """
    target = path.resolve()  # so that a link is kept
    part = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    if target.exists() and not target.is_file():  # a pipe, which cannot be replaced, or a folder
        part = target
    try:
        yield part
        os.replace(part, target)
    except OSError as error:
        raise exit_with_error(f"cannot write {path}: {error.strerror}") from None
    finally:
        if part != target:  # after an error or a stop; otherwise it does not exist any more
            part.unlink(missing_ok=True)
