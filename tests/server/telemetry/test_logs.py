"""A JSON log is JSON throughout, and no line that cannot be written stops what it describes."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.terminal_codes import FORBIDDEN

PROGRAM = """
import logging, sys, threading, warnings
from server.telemetry import logs
logs.configure(as_json=True)
warnings.warn("old")
for driver in ("psycopg", "sqlalchemy.pool"):
    logging.getLogger(driver).error("a transaction failed, which the service logs itself")
logging.getLogger("uvicorn.error").error("closed", exc_info=ValueError("seen"))
thread = threading.Thread(target=lambda: {}["thread"])
thread.start(); thread.join()
class Unraisable:
    def __del__(self): {}["unraisable"]
Unraisable()
raise KeyError("main")
"""


def test_warnings_and_tracebacks_are_json() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert "UserWarning: old" in events[0]["event"]
    errors = [event["exception"].splitlines()[-1] for event in events[1:]]
    assert errors == [
        "ValueError: seen",
        "KeyError: 'thread'",
        "KeyError: 'unraisable'",
        "KeyError: 'main'",
    ]
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("as_json", [True, False])
def test_a_line_that_cannot_be_written_is_lost_and_the_work_goes_on(as_json: bool) -> None:
    """A round stood still for ever when the disk of the log was full, while `/readyz` was 200."""
    program = f"""
import os, structlog
from server.telemetry import logs
logs.configure(as_json={as_json})
log = structlog.get_logger()
log.info("lost")
os.dup2(1, 2)
log.info("written")
os.close(2)
log.info("lost, too")
"""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", program]
    with os.fdopen(writer, "wb") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert done.returncode in {0, 120}  # Python 3.13 could not write the rest at its end
    assert "written" in done.stdout
    assert done.stdout.count("\n") <= 2


def test_a_line_for_people_is_one_line_and_has_no_codes_of_strangers() -> None:
    program = """
import logging, structlog
from server.telemetry import logs
from tests.support.terminal_codes import HOSTILE
logs.configure(as_json=False)
log = structlog.get_logger()
log.info(HOSTILE, path=HOSTILE)
logging.getLogger("library").error(HOSTILE)
try:
    raise ValueError(HOSTILE)
except ValueError:
    log.exception("a crash")
    logging.getLogger("library").exception("a crash")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    output = done.stderr.decode()
    assert not set(output) & (FORBIDDEN | {"\x1b"}) - {"\n"}
    lines = [line for line in output.splitlines() if not line.startswith("    ")]
    assert len(lines) == 4
    assert output.count("]0;title") == 5
