"""A real server whose database fails in the middle of a round finishes it with an exact sum."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg

from blindtally.demo.server_process import ServerProcess
from client.analyst.analyst import Analyst
from protocol.api.messages import RoundView, StudyView
from protocol.api.phases import Phase
from tests.test_kill9 import Half, N, check, create, first_round

MAX_LOG_LINES = 80  # of a whole round
Fault = Callable[[ServerProcess], AbstractContextManager[None]]


class ServerOnPostgres(ServerProcess):
    """A server with a database of PostgreSQL."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, is_open=True)
        self._url = url

    @property
    def database_url(self) -> str:
        return self._url


class RoundWithOutage(Half):
    """A round with an outage from when the last vectors arrive.

    Each fault holds for `seconds`, and until after the next one has begun.
    """

    def __init__(
        self,
        service: ServerProcess,
        study: StudyView,
        view: RoundView,
        faults: Sequence[Fault],
        seconds: float,
    ) -> None:
        super().__init__(service, study, view, (Phase.MASKING,))
        self._faults, self._seconds = faults, seconds
        self.answers: list[list[str]] = []  # of /readyz, for each fault

    async def fail(self, phase: Phase) -> None:
        go_on = partial(asyncio.get_running_loop().call_soon_threadsafe, self.restarted[phase].set)
        await asyncio.to_thread(self._suffer, go_on)

    def _suffer(self, go_on: Callable[[], object]) -> None:
        held = ExitStack()
        for fault in self._faults:
            following = ExitStack()
            following.enter_context(fault(self.service))
            held.close()
            held = following
            go_on()  # the others send their vectors
            self.answers.append(readiness(self.service, self._seconds))
        held.close()


def readiness(service: ServerProcess, seconds: float) -> list[str]:
    """Return the answers of `/readyz` in the next `seconds`; `/healthz` is ok all the time."""
    answers, late = [], time.monotonic() + seconds
    with httpx.Client(base_url=service.url, timeout=20, trust_env=False) as client:
        while not answers or time.monotonic() < late:
            answers.append(client.get("/readyz").text)
            assert client.get("/healthz").is_success
            time.sleep(0.1)
    return answers


def until_ready(service: ServerProcess) -> float:
    """Return the seconds until `/readyz` is ok."""
    began = time.monotonic()
    while "ok" not in readiness(service, 0)[0]:
        assert time.monotonic() < began + 10
    return time.monotonic() - began


def log_lines(service: ServerProcess, event: str) -> list[str]:
    lines = service.log.read_text().splitlines()
    assert not any("Traceback" in line for line in lines)
    assert len(lines) < MAX_LOG_LINES
    return [line for line in lines if event in line]


@contextmanager
def statements(
    owner: psycopg.Connection[Any], fault: str, repair: str, _service: ServerProcess
) -> Iterator[None]:
    owner.execute(fault)
    yield
    owner.execute(repair)


@contextmanager
def damaged_pages(service: ServerProcess) -> Iterator[None]:
    """Write zeros over the first pages of three tables."""
    with closing(sqlite3.connect(service.database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        roots = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name IN ('cohorts', 'events', 'messages')"
        ).fetchall()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with service.database.open("r+b") as file:
        sound = {}
        for (page,) in roots:
            file.seek((page - 1) * size)
            sound[page] = file.read(size)
            file.seek((page - 1) * size)
            file.write(bytes(size))
        file.flush()
        yield
        for page, content in sound.items():
            file.seek((page - 1) * size)
            file.write(content)


def play(service: ServerProcess, faults: Mapping[Fault, str], seconds: float) -> None:
    """Play a round with faults; check its sum, the codes that `/readyz` answered, and the log."""
    with Analyst(service.url) as analyst:
        study = create(analyst)
        half = RoundWithOutage(service, study.view, first_round(study), tuple(faults), seconds)
        results = asyncio.run(asyncio.wait_for(half.play(), 40))
        check(study, results, survivors=N - 1)
        assert study.wait().state == "finished"
    for code, answers in zip(faults.values(), half.answers, strict=True):
        # `/readyz` looks once a second, so a quarter may be of the fault before.
        assert sum(code in answer for answer in answers) > 0.6 * len(answers), answers
        assert code in answers[-1]
    until_ready(service)
    begins = log_lines(service, "database unavailable")
    for code, begin in zip(dict.fromkeys(faults.values()), begins, strict=True):
        assert code in begin


FAULTS_OF_POSTGRESQL = [
    (
        "REVOKE UPDATE ON event_counters FROM blindtally",
        "GRANT UPDATE ON event_counters TO blindtally",
        "42501",
    ),
    ("ALTER TABLE messages RENAME TO x", "ALTER TABLE x RENAME TO messages", "42P01"),
    (
        "ALTER TABLE cohorts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        "ALTER TABLE cohorts DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY",
        "42501",
    ),
]


def test_a_round_goes_on_after_faults_of_postgresql(
    tmp_path: Path, role_url: str, owner: psycopg.Connection[Any]
) -> None:
    faults = {
        partial(statements, owner, fault, repair): code
        for fault, repair, code in FAULTS_OF_POSTGRESQL
    }
    with ServerOnPostgres(tmp_path, role_url) as service:
        play(service, faults, 4)


def test_a_round_goes_on_after_pages_of_sqlite_were_damaged(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, is_open=True) as service:
        play(service, {damaged_pages: "SQLITE_CORRUPT"}, 4)
        time.sleep(5)  # an outage that returns is the same one
        readiness(service, 0)
        assert len(log_lines(service, "database available again")) == 1


def test_an_idle_server_whose_file_another_process_locks_is_not_ready(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, is_open=True) as service:
        with closing(sqlite3.connect(service.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            answers = readiness(service, 6)
            other.execute("ROLLBACK")
        assert "SQLITE_BUSY" in answers[-1]
        assert until_ready(service) < 10
        (line,) = log_lines(service, "database unavailable")
        assert "SQLITE_BUSY" in line
    assert service.log.read_text().splitlines()[-1].startswith("stopping")
