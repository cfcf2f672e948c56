"""Column types of the tables, and the base class that maps Python's types to them."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, DateTime, Dialect, Enum, LargeBinary, MetaData
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

from protocol.api.phases import Phase

# Constraints need names so that SQLite's batch mode can drop them in a later migration.
_CONSTRAINT_NAMES = {
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}
_PHASE_TYPE = Enum(
    Phase, native_enum=False, length=16, values_callable=lambda phases: [p.value for p in phases]
)


class UtcDateTime(TypeDecorator[datetime]):
    """Instant: timezone-aware in Python, UTC in the database (SQLite has no time zones)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Utf8Bytes(TypeDecorator[str]):
    """Text stored as its UTF-8 bytes.

    PostgreSQL's text type refuses NUL, and its order depends on a locale. Bytes take every
    character, and have the same order in every database.
    """

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> bytes | None:
        return None if value is None else value.encode("utf-8", "surrogatepass")

    def process_result_value(self, value: bytes | None, _dialect: Dialect) -> str | None:
        return None if value is None else bytes(value).decode("utf-8", "surrogatepass")


class Base(DeclarativeBase):
    """Base class of all tables."""

    metadata = MetaData(naming_convention=_CONSTRAINT_NAMES)
    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy requires a plain class attribute)
        datetime: UtcDateTime(),
        bytes: LargeBinary(),
        dict[str, Any]: JSON(),
        list[dict[str, Any]]: JSON(),
        list[str]: JSON(),
        list[int]: JSON(),
        Phase: _PHASE_TYPE,
    }
