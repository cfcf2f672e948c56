"""A database URL is given our driver, and errors show only its host, its port and its name."""

from collections.abc import Callable

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from blindtally.doctor_checks import check_database
from server.db.database import Database
from server.db.database_url import hide_url_in_errors, parse_url, shown_url

SECRET = "not-a-real-secret"
# Nobody listens at port 1.
_ADDRESS = "127.0.0.1:1/name"


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("sqlite:///x.db", "sqlite+pysqlite"),
        ("postgresql://u:p@h/x", "postgresql+psycopg"),
        ("postgres://u:p@h/x", "postgresql+psycopg"),
        ("postgresql+psycopg://u:p@h/x", "postgresql+psycopg"),
    ],
)
def test_a_url_is_given_the_driver_that_is_used(given: str, driver: str) -> None:
    assert parse_url(given).drivername == driver


@pytest.mark.parametrize("given", ["", "x.db", "mysql://h/x", "sqlite://", "sqlite:///:memory:"])
def test_a_url_of_no_usable_database_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"expected|file|database URL"):
        parse_url(given)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (f"postgresql://me:{SECRET}@host:1/name", "postgresql+psycopg://host:1/name"),
        (f"postgresql://{SECRET}@host/name", "postgresql+psycopg://host/name"),
        (f"postgresql://host/name?user=me&password={SECRET}", "postgresql+psycopg://host/name"),
        (f"postgresql:///name?host=/run&passfile={SECRET}", "postgresql+psycopg:///name"),
        (f"sqlite:///name.db?key={SECRET}", "sqlite+pysqlite:///name.db"),
    ],
)
def test_only_the_driver_the_host_the_port_and_the_name_are_shown(given: str, shown: str) -> None:
    assert shown_url(parse_url(given)) == shown


def _shown_by_doctor(url: str) -> str:
    [check] = check_database(url)
    return f"{check.detail} {check.advice}"


def _shown_by_engine(url: str) -> str:
    database = Database(url, timeout_seconds=1)
    with pytest.raises(SQLAlchemyError) as refusal:
        database.engine.connect()
    database.engine.dispose()
    return f"{refusal.value} {refusal.value.__cause__!r}"


@pytest.mark.parametrize("shown_by", [_shown_by_doctor, _shown_by_engine])
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@{_ADDRESS}",
        f"postgresql://{SECRET}@{_ADDRESS}",
        f"postgresql://{_ADDRESS}?user=me&password={SECRET}",
        f"postgresql://{_ADDRESS}?sslmode={SECRET}",
        f"postgresql://{_ADDRESS}?options=x&target_session_attrs={SECRET}",
    ],
)
def test_an_error_of_a_connection_shows_no_other_part(
    url: str, shown_by: Callable[[str], str]
) -> None:
    """The driver quotes options that it does not accept."""
    shown = shown_by(url)
    assert "127.0.0.1" in shown or "..." in shown
    assert SECRET not in shown


def test_the_refusal_of_a_server_does_not_name_the_user(postgres_url: str) -> None:
    url = parse_url(postgres_url).set(username=SECRET, password=SECRET)
    engine = create_engine(url)
    hide_url_in_errors(engine)
    with pytest.raises(SQLAlchemyError, match="\\.\\.\\.") as refusal:
        engine.connect()
    engine.dispose()
    assert SECRET not in str(refusal.value)
