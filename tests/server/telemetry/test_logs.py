"""A JSON log is JSON throughout, also where the interpreter writes."""

import json
import subprocess
import sys

PROGRAM = """
import logging, sys, threading, warnings
from server.telemetry import logs
logs.configure(as_json=True)
warnings.warn("old")
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
