"""The service as a process, stopped with Ctrl-C and by its supervisor."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import httpx
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from blindtally.cli import app
from protocol.api.messages import ProblemType
from protocol.api.messages_outside_sums import frame_document
from tests.server.harness import Clock, Served


@dataclass
class Process:
    """A running `blindtally serve`."""

    popen: subprocess.Popen[str]
    url: str


@contextmanager
def running(database_url: str, *flags: str, is_open: bool = True) -> Iterator[Process]:
    command = [
        sys.executable,
        "-m",
        "blindtally",
        "serve",
        *(["--open"] if is_open else []),
        "--port",
        "0",
        "--log-level",
        "warning",
    ]
    popen = subprocess.Popen(
        [*command, "--database", database_url, *flags], stdout=subprocess.PIPE, text=True
    )
    assert popen.stdout is not None
    try:
        line = popen.stdout.readline()
        assert re.match("blindtally serves https?://127.0.0.1:", line), line
        yield Process(popen, line.split()[-1])
    finally:
        popen.kill()
        popen.wait()
        popen.stdout.close()


async def test_a_stopped_service_ends_waits_and_streams_and_asks_uploads_to_retry(
    sqlite_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(sqlite_url) as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=20) as client:
            served = Served(FastAPI(), client, Clock())
            study = await served.create()
            (device,) = await served.join(study, 1)
            waiting = asyncio.create_task(device.get("roster", wait=30))
            path = f"/v1/studies/{study}/rounds/1/participants?wait=30"
            request = {"json": device.join_request().model_dump(), "headers": device.headers}
            joining = asyncio.create_task(client.post(path, **request))
            reader, writer = await cut_off_upload(process)
            async with client.stream("GET", f"/v1/studies/{study}/events") as stream:
                lines = stream.aiter_lines()
                async for line in lines:
                    if line == "event: round-opened":
                        break
                started = monotonic()
                process.popen.send_signal(signal.SIGTERM)
                rest = [line async for line in lines]  # to a proper end
            assert rest[-1] == ""
            assert (await waiting).status_code == 202
            joined = await joining  # again, and without the roster
            document = frame_document(device.seat.model_dump_json().encode())
            assert (joined.status_code, joined.content) == (200, document)
            answer = (await reader.read()).decode()
            writer.close()
            assert answer.startswith("HTTP/1.1 503 ")
            assert "retry-after: 1" in answer
            assert ProblemType.UNAVAILABLE in answer
            assert await asyncio.to_thread(process.popen.wait, 20) == 0
            assert monotonic() - started < 20  # far below the 30 seconds of a wait
    assert "Traceback" not in capfd.readouterr().err


async def cut_off_upload(process: Process) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection on which the service reads a body of 100 bytes, of which 1 arrived."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(process.url).port)
    head = "POST /v1/studies HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Expect: 100-continue\r\nContent-Length: 100\r\n\r\n".encode())
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"{")
    return reader, writer


def guesses(process: Process) -> tuple[int, int]:
    """Return how many of six guesses, from as many stated addresses, are answered and refused.

    Counts of the minute before are rounded down: one guess more if a minute begins meanwhile.
    """
    statuses = [
        httpx.get(
            f"{process.url}/v1/studies",
            headers={"authorization": "Bearer guess", "x-forwarded-for": f"10.0.0.{number}"},
        ).status_code
        for number in range(6)
    ]
    return statuses.count(401), statuses.count(429)


def test_strangers_fill_no_log_state_no_address_and_a_second_signal_changes_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Requests that are not HTTP, or want another protocol, once filled the disk of the log."""
    monkeypatch.setenv("BLINDTALLY_MAX_AUTH_FAILURES", "3")
    upgrade = (
        "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    )
    with running(sqlite_url, is_open=False) as process:
        assert "no key exists yet" in capfd.readouterr().err
        for text, status in (("no HTTP\r\n\r\n", b"400"), (upgrade, b"200")):
            with socket.create_connection(
                ("127.0.0.1", httpx.URL(process.url).port or 0)
            ) as client:
                client.sendall(text.encode())
                assert client.recv(12) == b"HTTP/1.1 " + status
        assert guesses(process) in [(3, 3), (4, 2)]
        assert capfd.readouterr().err == ""
        for how in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            process.popen.send_signal(how)
        assert process.popen.wait(20) == 0
    assert capfd.readouterr().err == "stopping; the rounds go on after the next start\n"


def test_a_proxy_that_is_named_states_the_address_of_a_client(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLINDTALLY_MAX_AUTH_FAILURES", "3")
    flags = ("--forwarded-allow-ips", "127.0.0.1")
    with running(sqlite_url, *flags, is_open=False) as process:
        assert guesses(process) == (6, 0)


@pytest.mark.parametrize(
    ("flag", "code", "why"),
    [
        (None, 2, "--behind-proxy"),
        ("--behind-proxy", 1, "cannot listen on"),  # it is an address of nobody
        ("--accept-unlimited-connections", 1, "cannot listen on"),
    ],
)
def test_other_machines_are_served_behind_a_proxy_or_knowingly_without_limits(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, flag: str | None, code: int, why: str
) -> None:
    monkeypatch.setattr("server.telemetry.logs.configure", lambda **_: None)
    command = ["serve", "--database", sqlite_url, "--host", "192.0.2.1", "--port", "0"]
    result = CliRunner().invoke(app, [*command, *([flag] if flag else [])])
    assert result.exit_code == code
    assert why in result.stderr


@pytest.mark.parametrize("flags", [("--open", "--port", "0"), ("--host", "::", "--open")])
def test_each_line_of_a_json_log_is_json(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.setenv("BLINDTALLY_MAX_UPLOAD_BYTE", "2000")
    command = [sys.executable, "-m", "blindtally", "serve", "--log", "json", *flags]
    with subprocess.Popen(
        [*command, "--database", sqlite_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as popen:
        assert popen.stdout is not None
        events = []
        for line in popen.stdout:
            events.append(json.loads(line))
            if events[-1]["event"].startswith("blindtally serves http://127.0.0.1:"):
                popen.send_signal(signal.SIGINT)
    assert events[0]["did_you_mean"] == "BLINDTALLY_MAX_UPLOAD_BYTES"
    assert (popen.returncode, events[-1]["level"]) in [(0, "info"), (2, "error")]
