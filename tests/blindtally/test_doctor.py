"""`blindtally doctor` says what is wrong and how to mend it, and changes nothing."""

import json
import socket
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.doctor import machine, service
from blindtally.doctor.checks import Check
from client.extras import install
from server import migrations


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doctor(*options: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Return its exit code, and what it says of each thing; a port is taken that is free."""
    command = ["doctor", "--port", "0", *options, "--json", "-"]
    told = CliRunner().invoke(app, command, env=environment)
    document = json.loads(told.stdout)
    states = [one["state"] for one in document["checks"]]
    assert told.exit_code == int("fault" in states)
    order = ["ok", "warning", "fault"]
    assert document["state"] == max(states, key=order.index)
    assert all(one["mend"] for one in document["checks"] if one["state"] != "ok")
    return told.exit_code, {one["name"]: one for one in document["checks"]}


def test_a_machine_is_looked_at_and_left_as_it_was(here: Path) -> None:
    _, found = doctor()
    wanted = {"python", "platform", "packages", "AES", "kernels", "secure sum", "open files"}
    assert wanted | {"clock", "disk", "settings", "database", "port"} <= found.keys()
    for name in ("python", "packages", "secure sum", "clock", "settings", "database", "port"):
        assert found[name]["state"] == "ok", found[name]
    assert "`blindtally serve` makes it" in found["database"]["found"]
    assert [*here.iterdir()] == []


def test_the_table_shows_how_to_mend_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = CliRunner().invoke(app, ["doctor", "--port", "0", "--database", "sqlite:////no/x.db"])
    assert told.exit_code == 1
    assert "fault" in told.stdout
    assert "→ make it, or name another" in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 80


def test_a_setting_that_is_wrong_or_unknown_is_named() -> None:
    code, found = doctor(BLINDTALLY_MAX_UPLOAD_BYTES="many")
    assert code == 1
    assert "BLINDTALLY_MAX_UPLOAD_BYTES" in found["settings"]["found"]
    assert "database" not in found  # of which nothing is known then
    _, found = doctor(BLINDTALLY_DATABASE="sqlite:///x.db")  # it is called ..._URL
    assert found["settings"]["state"] == "warning"
    assert "nothing reads BLINDTALLY_DATABASE" in found["settings"]["found"]


def database(url: str) -> Check:
    *_, last = service.database(url)
    return last


def made(path: Path, revision: str | None) -> str:
    """Return the URL of a database of that revision."""
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE alembic_version (version_num TEXT)")
        if revision is not None:
            file.execute("INSERT INTO alembic_version VALUES (?)", (revision,))
    file.close()
    return f"sqlite:///{path}"


@pytest.mark.parametrize(
    ("revision", "state", "what"),
    [
        (None, "ok", "is empty"),
        (migrations.head(), "ok", "the newest"),
        ("0001", "warning", "older schema 0001"),
        ("9999", "fault", "9999 of a newer blindtally"),
    ],
)
def test_a_databases_schema_is_told(
    revision: str | None, state: str, what: str, here: Path
) -> None:
    found = database(made(here / "a.db", revision))
    assert found.state == state
    assert what in found.found
    assert [path.name for path in here.iterdir()] == ["a.db"]


def test_what_is_no_database_is_told_and_not_touched(here: Path) -> None:
    (here / "a.db").write_text("word,count\n" * 100)
    found = database("sqlite:///a.db")
    assert (found.state, "not a database" in found.found) == ("fault", True)
    assert (here / "a.db").read_text() == "word,count\n" * 100


def test_a_database_out_of_reach_is_told_without_its_password() -> None:
    with socket.socket() as nobody:  # bound, and nobody listens
        nobody.bind(("127.0.0.1", 0))
        number = nobody.getsockname()[1]
        found = database(f"postgresql://me:hunter2@127.0.0.1:{number}/x")
    assert found.state == "fault"
    assert "refused" in found.found
    assert "hunter2" not in found.found + found.mend


class Answer(BaseHTTPRequestHandler):
    """Says that it is well."""

    def do_GET(self) -> None:  # noqa: D102 (the name that it looks for)
        body = b'{"status": "ok"}' if self.path == "/healthz" else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def served() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_port_that_a_service_has_is_no_fault(served: int, tmp_path: Path) -> None:
    assert service.port("127.0.0.1", served).state == "ok"
    (tmp_path / "chain.pem").write_text("-----BEGIN CERTIFICATE-----")
    assert service.port("127.0.0.1", served, tmp_path / "chain.pem").state == "fault"


def test_a_port_that_somebody_else_has_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = service.port("127.0.0.1", taken.getsockname()[1])
    assert found.state == "fault"
    assert "in use" in found.found
    assert service.port("192.0.2.1", 80).state == "fault"  # an address of somebody else


def test_packages_that_lack_are_named() -> None:
    wanted = ["numpy>=1", "typer>=999", "nobody-has-this>=1; extra == 'demo'", "nor-this"]
    first, *extras = machine.packages(wanted)
    assert first.state == "fault"
    assert "typer is" in first.found
    assert "nor-this is missing" in first.found
    assert "numpy" not in first.found
    assert "nobody-has-this" in extras[0].found
    assert install("demo") in extras[0].found


def test_a_processor_without_instructions_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu sse2\n")
    assert "no AES instructions" in machine.aes(tmp_path / "cpuinfo").found
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu aes sse2\n")
    assert "with AES instructions" in machine.aes(tmp_path / "cpuinfo").found
    assert "cannot be read" in machine.aes(tmp_path / "nowhere").found
    monkeypatch.setattr(machine, "_SLOW", 1e9)
    assert machine.aes(tmp_path / "cpuinfo").state == "warning"


def test_a_clock_before_this_program_was_made_is_a_fault() -> None:
    assert machine.clock(datetime(1970, 1, 2, tzinfo=UTC)).state == "fault"
    assert machine.clock().state == "ok"


def test_a_full_disk_and_few_connections_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.disk(Path("/nowhere/at/all"), "x").state == "fault"
    for least, state in (("_LITTLE", "warning"), ("_NEXT_TO_NOTHING", "fault")):
        monkeypatch.setattr(machine, least, 10**30)
        assert machine.disk(Path.cwd(), "x").state == state
    monkeypatch.setattr(machine, "_CONNECTIONS", 10**12)
    assert "ulimit -n" in machine.open_files().mend


def test_kernels_that_nobody_keeps_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.kernels().state == "ok"
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "NUMBA_CACHE_DIR" in machine.kernels().mend


def test_a_sum_that_is_wrong_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.SUMMING["tracked"].__class__, "conclude", lambda *_: [])
    assert machine.secure_sum().state == "fault"
