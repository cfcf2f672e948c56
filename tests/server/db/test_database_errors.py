"""Classes of errors: a fault of one request fails it alone, and an outage fails nothing."""

import errno
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from psycopg import errors as psycopg_errors
from sqlalchemy import create_engine, exc, insert, text
from sqlalchemy.orm import Session

from server.db.columns import Base
from server.db.database import Database
from server.db.database_errors import (
    UNAVAILABLE_ERRORS,
    BusyError,
    error_code,
    is_full,
    is_outage,
    loggable_reason,
    needs_new_connections,
)
from server.db.schema import PopulationRow

# Conditions of PostgreSQL that a person must repair or wait for, as PostgreSQL names them.
OUTAGE_STATES = {
    "08006": "connection_failure",
    "0A000": "cached plan must not change result type",
    "25006": "read_only_sql_transaction",
    "26000": "invalid_sql_statement_name",
    "28P01": "invalid_password",
    "3D000": "invalid_catalog_name",
    "3F000": "invalid_schema_name",
    "42501": "insufficient_privilege",
    "42703": "undefined_column",
    "42804": "datatype_mismatch",
    "42883": "undefined_function",
    "42P01": "undefined_table",
    "42P10": "no constraint for ON CONFLICT",
    "53100": "disk_full",
    "53200": "out_of_memory",
    "53300": "too_many_connections",
    "55000": "object_not_in_prerequisite_state",
    "55P03": "lock_not_available",
    "57014": "query_canceled, by statement_timeout",
    "57P01": "admin_shutdown",
    "57P03": "cannot_connect_now",
    "58030": "io_error",
    "P0001": "raise_exception, of a trigger",
    "XX001": "data_corrupted",
    "XX002": "index_corrupted",
}
OWN_STATES = {
    "21000": "cardinality_violation",
    "22001": "string_data_right_truncation",
    "22P05": "untranslatable_character",
    "23502": "not_null_violation",
    "23503": "foreign_key_violation",
    "23505": "unique_violation",
    "23514": "check_violation",
    "42601": "syntax_error",
    "54000": "program_limit_exceeded",
}
CONFLICT_STATES = {"40001": "serialization_failure", "40P01": "deadlock_detected"}
OUTAGE_CODES = (
    "SQLITE_ERROR",  # "no such table"
    "SQLITE_BUSY",
    "SQLITE_BUSY_SNAPSHOT",
    "SQLITE_LOCKED",
    "SQLITE_READONLY",
    "SQLITE_READONLY_DBMOVED",
    "SQLITE_IOERR",
    "SQLITE_IOERR_FSYNC",
    "SQLITE_CORRUPT",
    "SQLITE_FULL",
    "SQLITE_CANTOPEN",
    "SQLITE_PROTOCOL",
    "SQLITE_SCHEMA",
    "SQLITE_NOTADB",
    "SQLITE_PERM",
)
OWN_CODES = (
    "SQLITE_CONSTRAINT_UNIQUE",
    "SQLITE_CONSTRAINT_FOREIGNKEY",
    "SQLITE_MISMATCH",
    "SQLITE_TOOBIG",
    "SQLITE_RANGE",
    "SQLITE_MISUSE",
)


def wrapped(error: Exception) -> exc.DBAPIError:
    """Return an error as SQLAlchemy raises it."""
    module = sqlite3 if isinstance(error, sqlite3.Error) else psycopg
    made = exc.DBAPIError.instance("SELECT 1", None, error, module.Error)
    assert isinstance(made, exc.DBAPIError)
    return made


def of_sqlite(name: str, kind: type[sqlite3.Error] = sqlite3.DatabaseError) -> sqlite3.Error:
    error = kind("a message")
    error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, name), name
    return error


@pytest.mark.parametrize("raised", [wrapped, lambda error: error], ids=["wrapped", "raw"])
def test_each_error_is_an_outage_or_a_fault_of_its_request(
    raised: Callable[[Exception], Exception],
) -> None:
    """Also if no layer has wrapped the error of the driver."""
    states = dict.fromkeys(OUTAGE_STATES, True)
    states |= dict.fromkeys([*OWN_STATES, *CONFLICT_STATES], False)
    for state, expected in states.items():
        kind = psycopg_errors.lookup(state)
        assert is_outage(raised(kind("a message"))) is expected, state
        assert error_code(raised(kind("a message"))) == state
    codes = dict.fromkeys(OUTAGE_CODES, True) | dict.fromkeys(OWN_CODES, False)
    for code, expected in codes.items():
        assert is_outage(raised(of_sqlite(code))) is expected, code
        assert error_code(raised(of_sqlite(code))) == code
    without_code = {
        psycopg.OperationalError("connection refused"): True,
        psycopg.InterfaceError("the connection is closed"): True,
        psycopg.DatabaseError(): True,
        psycopg.ProgrammingError("the query has 2 placeholders"): False,
        sqlite3.DatabaseError(): True,
        sqlite3.ProgrammingError("Incorrect number of bindings"): False,
    }
    for error, expected in without_code.items():
        assert is_outage(raised(error)) is expected, error


def test_a_fault_of_the_system_is_an_outage_and_one_of_this_program_is_not() -> None:
    for number in (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES):
        assert is_outage(OSError(number, "a message"))
    assert is_outage(NotImplementedError("can't parse timestamptz with DateStyle"))
    own = ArithmeticError(), ValueError(), BusyError(), exc.NoResultFound(), exc.TimeoutError()
    assert not any(map(is_outage, own))


def test_what_helps_against_an_outage_follows_from_its_code() -> None:
    """A probe of a large row against a full disk, another connection against damaged pages."""
    assert all(map(is_full, (OSError(errno.ENOSPC, ""), of_sqlite("SQLITE_FULL"))))
    assert not is_full(of_sqlite("SQLITE_CORRUPT"))
    for code in ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_READONLY", "SQLITE_IOERR_READ"):
        assert needs_new_connections(wrapped(of_sqlite(code))), code
    for state, expected in {"0A000": True, "26000": True, "25006": True, "42P01": False}.items():
        error = wrapped(psycopg_errors.lookup(state)("a message"))
        assert needs_new_connections(error) is expected, state
    for code in ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CONSTRAINT_UNIQUE"):
        assert not needs_new_connections(wrapped(of_sqlite(code))), code


def test_the_log_names_the_cause_of_an_outage_and_no_value() -> None:
    denied = wrapped(of_sqlite("SQLITE_NOTADB"))
    assert loggable_reason(denied) == "DatabaseError SQLITE_NOTADB: a message"
    full = OSError(errno.ENOSPC, "No space left on device", "a secret name")
    assert loggable_reason(full) == "OSError ENOSPC: No space left on device"
    kind = psycopg_errors.lookup("42P01")
    assert loggable_reason(wrapped(kind("relation is gone"))) == (
        "ProgrammingError 42P01: relation is gone"
    )
    value = wrapped(psycopg_errors.lookup("22P02")('invalid input for integer: "a secret"'))
    assert loggable_reason(value) == "DataError"


async def test_a_transaction_of_postgresql_with_each_error(postgres_url: str) -> None:
    """PostgreSQL itself raises them."""
    for state in (*OUTAGE_STATES, *CONFLICT_STATES, *OWN_STATES):
        database = Database(postgres_url)
        database.has_lost_time = False
        raising = text(f"DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$")
        with pytest.raises(exc.SQLAlchemyError) as caught:
            await database.read(lambda session, raising=raising: session.execute(raising))
        assert isinstance(caught.value, UNAVAILABLE_ERRORS) is (state not in OWN_STATES), state
        has_begun = database.outage.is_open, database.has_lost_time
        assert has_begun == (state in OUTAGE_STATES,) * 2, state
        await database.close()


async def test_a_transaction_that_meets_the_disk_is_one_of_an_unavailable_database(
    sqlite_url: str,
) -> None:
    database = Database(sqlite_url)

    def fail(_session: Session) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(UNAVAILABLE_ERRORS):
        await database.write(fail)
    assert database.outage.code == "EIO"
    await database.close()


@pytest.mark.parametrize(
    ("code", "damage"),
    [
        ("SQLITE_CORRUPT", lambda file: file[:32768] + bytes(32768) + file[65536:]),
        ("SQLITE_CORRUPT", lambda file: file[:32768]),
        ("SQLITE_NOTADB", lambda file: bytes(100) + file[100:]),
    ],
    ids=["a page", "the end", "the header"],
)
async def test_a_damaged_file_can_be_used_again_once_it_is_repaired(
    sqlite_url: str, tmp_path: Path, code: str, damage: Callable[[bytes], bytes]
) -> None:
    """Without a restart: the connections that have read the damage are replaced."""
    database, file = Database(sqlite_url), tmp_path / "test.db"

    def run(sql: str) -> Callable[[Session], object]:
        return lambda session: session.execute(text(sql)).scalar()

    await database.write(lambda session: session.execute(text("CREATE TABLE t (x BLOB)")))
    insert = text("INSERT INTO t VALUES (zeroblob(200000))")
    await database.write(lambda session: session.execute(insert))
    await database.close()
    sound = file.read_bytes()
    database = Database(sqlite_url)
    file.write_bytes(damage(sound))
    for _ in range(2):
        with pytest.raises(UNAVAILABLE_ERRORS):
            await database.read(run("SELECT sum(length(x)) FROM t"))
    assert database.outage.code == code
    file.write_bytes(sound)
    assert await database.read(run("SELECT sum(length(x)) FROM t")) == 200000
    await database.close()


RULES = {
    "a column that must have a value": "ALTER TABLE populations ADD COLUMN extra INTEGER NOT NULL",
    "a check": "ALTER TABLE populations ADD CONSTRAINT other CHECK (name <> 'phones')",
    "a unique index": "CREATE UNIQUE INDEX other ON populations ((1))",
    "a trigger": (
        "CREATE TRIGGER other BEFORE INSERT ON populations BEGIN SELECT RAISE(ABORT, 'no'); END"
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_another_program_added_is_an_outage_and_our_own_rules_are_not(
    rule: str, database_url: str
) -> None:
    is_sqlite = database_url.startswith("sqlite")
    if is_sqlite != (rule == "a trigger"):
        pytest.skip("the other database has no such statement")
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    row = {"name": "cars", "budget": None, "created": datetime.now(UTC)}
    add = insert(PopulationRow).values(**row)
    timeless = text("INSERT INTO populations (name, budget) VALUES ('bikes', 'null')")
    try:
        Base.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(add)
        for statement in (add, timeless):
            with pytest.raises(exc.DBAPIError) as raised, engine.begin() as connection:
                connection.execute(statement)
            assert not is_outage(raised.value)
        with engine.begin() as connection:
            if rule == "a column that must have a value":
                connection.exec_driver_sql("DELETE FROM populations")
            connection.exec_driver_sql(RULES[rule])
        with pytest.raises(exc.DBAPIError) as raised, engine.begin() as connection:
            connection.execute(insert(PopulationRow).values(**row | {"name": "phones"}))
        assert is_outage(raised.value)
    finally:
        engine.dispose()
