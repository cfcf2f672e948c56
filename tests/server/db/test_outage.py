"""Outage of a database: when it begins and ends, and what the log has of it."""

import sqlite3

import structlog
from sqlalchemy.exc import OperationalError

from server.db.database_errors import BusyError, Outage


class FakeClock:
    """Seconds, which a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def full(message: str = "database or disk is full") -> OperationalError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
    return OperationalError("a secret", {}, error)


def away() -> OperationalError:
    return OperationalError("", None, Exception("password=secret"))


def test_an_outage_ends_with_the_first_try_after_its_last_failure() -> None:
    clock = FakeClock()
    outage = Outage(clock)
    outage.on_failure(BusyError("a queue of this process"))
    assert not outage.is_open
    outage.on_failure(full())
    outage.on_success()
    assert (outage.is_open, outage.is_full, outage.code) == (True, True, "SQLITE_FULL")
    assert not outage.end(0.0)  # began before the failure
    clock.now = 1.0
    assert outage.end(0.5)
    assert not outage.is_open


def test_an_outage_that_returns_ends_only_after_a_time_without_failures() -> None:
    clock = FakeClock()
    outage = Outage(clock)
    outage.on_failure(away())
    clock.now = 1.0
    assert outage.end(0.5)
    for seconds in (2.0, 3.0, 4.0):
        clock.now = seconds
        outage.on_failure(away())
        clock.now = seconds + 0.5
        assert not outage.end(clock.now)
    clock.now = 9.5
    assert outage.end(9.0)


def test_the_log_has_each_cause_of_an_outage_once_and_its_end() -> None:
    """An outage comes and goes: of 1,000 transactions each tenth succeeds."""
    clock = FakeClock()
    outage = Outage(clock)
    with structlog.testing.capture_logs() as lines:
        outage.on_success()
        for number in range(1000):
            clock.now = number * 0.06
            if number % 10:
                outage.on_failure(full() if number > 500 else away())
            else:
                outage.end(clock.now)
                outage.on_success()
        outage.on_failure(full("the same cause in other words"))
        clock.now += 5.1
        outage.end(clock.now)
        outage.on_success()
        outage.on_success()
    assert [(line["event"], line.get("error")) for line in lines] == [
        ("database unavailable", "OperationalError"),
        ("database unavailable", "OperationalError SQLITE_FULL: database or disk is full"),
        ("database available again", None),
    ]
    assert (lines[2]["seconds"], lines[2]["failed_transactions"]) == (59.9, 901)
    assert "secret" not in str(lines)
