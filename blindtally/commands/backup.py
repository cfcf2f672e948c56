"""`blindtally backup` and `restore`: copies of a SQLite database, in files of their owner.

PostgreSQL has its own programs for this.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from blindtally.commands.credentials_and_audit import DEFAULT_DATABASE, DatabaseOption
from blindtally.console.errors import exit_with_error
from blindtally.console.terminal import print_line

if TYPE_CHECKING:
    from server.db.sqlite_backup import BackupContent


def backup(
    file: Annotated[Path, Argument(help="New file for the backup.")],
    database: DatabaseOption = DEFAULT_DATABASE,
) -> None:
    """Save a SQLite database in a new file, while it is served or not.

    A backup is as secret as the database: only its owner may read it. It has every message that was
    acknowledged before. For PostgreSQL use pg_dump (docs/operations.md).

    Example:
      blindtally backup 2026-11-28.db
    """
    from server.db.sqlite_backup import BackupError, back_up

    if str(file) == "-":
        raise exit_with_error("a backup is a file, not standard output: name a new file")
    try:
        content = back_up(_sqlite_file(database, "pg_dump"), file)
    except BackupError as error:
        raise exit_with_error(error, code=1) from None
    _report(f"saved in {file}", content)


def restore(
    file: Annotated[Path, Argument(help="File that `blindtally backup` has made.")],
    database: DatabaseOption = DEFAULT_DATABASE,
    replace: Annotated[
        bool, Option("--replace", help="Replace the content of a database that exists.")
    ] = False,
) -> None:
    """Restore a SQLite database from a backup, while no service has it.

    Everything after the backup is lost (docs/operations.md). Without --replace the database must
    not exist.

    Example:
      blindtally restore 2026-11-28.db --replace
    """
    from server.db.sqlite_backup import BackupError, restore
    from server.db.sqlite_lock import DatabaseInUseError

    target = _sqlite_file(database, "pg_restore")
    try:
        content = restore(file, target, replaces=replace)
    except (BackupError, DatabaseInUseError) as error:
        raise exit_with_error(error, code=1) from None
    _report(f"restored in {target}", content)


def _sqlite_file(url: str, program: str) -> Path:
    from server.db.database_url import parse_url

    try:
        parsed = parse_url(url)
    except ValueError as error:
        raise exit_with_error(f"--database: {error}") from None
    if parsed.get_backend_name() != "sqlite":
        raise exit_with_error(f"this is for SQLite: use {program} for PostgreSQL")
    return Path(parsed.database or "")


def _report(done: str, content: "BackupContent") -> None:
    print_line(
        f"{done} (studies: {content.studies:,}, rounds: {content.rounds:,}, "
        f"size: {content.nbytes / 1e6:,.1f} MB)"
    )
