"""Output files of commands: JSON for scripts, and files that are written whole or not at all.

A file that a command makes for itself (a database, a key, a journal, a log) is for its owner alone.
Results that were asked for, such as those of --json, have the mode that the user's umask gives.
"""

import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from blindtally.console.errors import exit_with_error
from blindtally.console.terminal import print_line
from protocol.printable import printable

_PRIVATE_UMASK = 0o077
_user_umask = ContextVar[int | None]("user_umask", default=None)


@contextmanager
def private_files() -> Iterator[None]:
    """Let only the owner read what this process makes meanwhile, except results.

    This holds from the first byte, and for files of libraries and of child processes as well.
    """
    before = os.umask(_PRIVATE_UMASK)
    token = _user_umask.set(before)
    try:
        yield
    finally:
        _user_umask.reset(token)
        os.umask(before)


def warn_of_readers(*files: Path) -> None:
    """Print the names of those `files` that other users of this machine may read."""
    for file in files:
        if os.name == "posix" and file.exists() and file.stat().st_mode & _PRIVATE_UMASK:
            print_line(f"other users of this machine may read {file}: chmod 600 {file}", err=True)


def check_output_path(path: str | None) -> str | None:
    """Return `path`, if it can be written, so that a long run does not end without its results.

    Raises:
        typer.BadParameter: if it cannot, or is the next option because the user gave no path.
    """
    # A shell closes standard output by >&-.
    if path == "-" and sys.stdout is None:
        raise typer.BadParameter("cannot write -: standard output is closed")
    if path is None or path == "-":
        return path
    if not path or path.startswith("--"):
        place = f" before {path}" if path else ""
        raise typer.BadParameter(f"there is no path{place}; - is stdout")
    # A loop of links raises no error here, unlike in `resolve`.
    target = Path(os.path.realpath(path))
    if target.is_dir() or path.endswith("/"):
        raise typer.BadParameter(f"cannot write {path}: it is a folder")
    if not target.parent.is_dir():
        raise typer.BadParameter(f"cannot write {path}: there is no folder {target.parent}")
    # A file is replaced by a new one in its folder; a pipe is written itself.
    if not os.access(target.parent if target.is_file() or not target.exists() else target, os.W_OK):
        raise typer.BadParameter(f"cannot write {path}: permission denied")
    return path


TableFormat: TypeAlias = Literal["csv", "ndjson", "parquet"]
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
        with atomic_write(Path(path), is_secret=is_secret) as file:
            file.write_text(text, encoding="utf-8")


def write_csv(path: str, rows: Iterable[Sequence[object]]) -> None:
    """Write `rows` to the file at `path`, or to stdout if that is `-`.

    Texts are quoted, because spreadsheets may separate cells by semicolons. A file has each text as
    it is; on a terminal, hidden characters are escaped.

    Raises:
        typer.Exit: if the file cannot be written.
    """
    style: dict[str, Any] = {"lineterminator": "\n", "quoting": csv.QUOTE_NONNUMERIC}
    if path == "-":
        if sys.stdout.isatty():
            rows = [
                [printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
            ]
        csv.writer(sys.stdout, **style).writerows(rows)
        return
    with atomic_write(Path(path)) as file, file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, **style).writerows(rows)


@contextmanager
def atomic_write(path: Path, *, is_secret: bool = False) -> Iterator[Path]:
    """Yield a temporary file to write, which replaces `path` at the end.

    Only the owner may read a file that `is_secret`.

    Raises:
        typer.Exit: if the file cannot be written.
    """
    # The file is written where a link leads, so the link is kept.
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    if target.exists() and not target.is_file():  # a pipe, which cannot be replaced, or a folder
        part = target
    umask = _user_umask.get()
    try:
        if is_secret and part != target:
            part.touch(0o600)
        yield part
        if not is_secret and part != target and umask is not None:
            part.chmod(0o666 & ~umask)
        os.replace(part, target)
    except OSError as error:
        raise exit_with_error(f"cannot write {path}: {error.strerror}") from None
    finally:
        if part != target:  # after an error or a stop; otherwise it does not exist any more
            part.unlink(missing_ok=True)
