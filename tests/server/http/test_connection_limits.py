"""Slow, too large or invalid requests get an error and a closed connection."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
import structlog
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from uvicorn.server import ServerState

from protocol.api.messages import PROBLEM_TYPE_PREFIX, Problem, ProblemType
from server.http import connection_limits
from server.http.connection_limits import ConnectionCounter, ConnectionLimits, LimitedHttpProtocol
from server.telemetry.metrics import Metrics
from tests.server.conftest import Serve
from tests.server.party import refused

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
JSON = {"Content-Type": "application/json"}
OCTETS = {"Content-Type": "application/octet-stream"}
METRICS = Metrics()
LIMITS = ConnectionLimits(30, 30, 4096, 20, ConnectionCounter(1000, lambda _: False, METRICS))
Talk = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(app: FastAPI, **changes: Any) -> AsyncIterator[Talk]:
    """Yield a connection to `app` within small bounds."""
    limits = replace(LIMITS, **changes)
    config = uvicorn.Config(app, ws="none", log_config=None, timeout_keep_alive=30)
    state, loop = ServerState(), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: LimitedHttpProtocol(limits=limits, config=config, server_state=state, app_state={}),
        "127.0.0.1",
        0,
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        await asyncio.sleep(0)


@pytest.fixture
def app() -> FastAPI:
    made = FastAPI()

    @made.get("/")
    async def root() -> dict[str, str]:
        return {"it": "is"}

    return made


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Return status and kind of the last answer of a connection that was closed after it."""
    response = await asyncio.wait_for(reader.read(), 20)
    head, _, body = response.rpartition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    assert b"X-Content-Type-Options: nosniff" in head
    problem = Problem.model_validate_json(body)
    assert head.startswith(b"HTTP/1.1 %d " % problem.status)
    return problem.status, problem.type.removeprefix(PROBLEM_TYPE_PREFIX)


async def test_a_head_that_does_not_end_is_refused(app: FastAPI) -> None:
    async with listening(app, header_seconds=0.2) as (reader, writer):

        async def drip() -> None:
            writer.write(b"GET / HTTP/1.1\r\nX-Slow: ")
            while True:
                writer.write(b"a")
                await asyncio.sleep(0.15)  # rare, so that the refusal is read before the next

        dripping = asyncio.create_task(drip())
        assert await answer(reader) == (408, ProblemType.TOO_SLOW)
        dripping.cancel()


async def test_a_connection_that_sends_nothing_is_closed(app: FastAPI) -> None:
    async with listening(app, header_seconds=0.05) as (reader, _):
        assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_a_second_head_that_does_not_end_is_refused(app: FastAPI) -> None:
    async with listening(app, header_seconds=0.2) as (reader, writer):
        writer.write(GET + b"\r\n")
        assert (await reader.readuntil(b'{"it":"is"}')).startswith(b"HTTP/1.1 200")
        writer.write(b"\r\nGET ")
        assert (await answer(reader))[0] == 408


async def test_a_body_that_is_not_read_is_limited_in_time(app: FastAPI) -> None:
    async with listening(app, body_seconds=0.1) as (reader, writer):
        writer.write(GET + b"Content-Length: 1000\r\n\r\nx")
        response = await asyncio.wait_for(reader.read(), 20)
        assert response.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("size", "status"), [(1, 400), (1000, 200)])
async def test_a_body_in_chunks_of_a_few_bytes_is_refused(
    app: FastAPI, size: int, status: int
) -> None:
    """The response has come before, so that nothing reads the body."""
    chunk = b"%x\r\n%s\r\n" % (size, size * b"x")
    async with listening(app) as (reader, writer):
        writer.write(GET + b"Transfer-Encoding: chunked\r\n\r\n" + chunk)
        assert (await reader.readuntil(b'{"it":"is"}')).startswith(b"HTTP/1.1 200")
        writer.write(chunk * (250_000 // len(chunk)))
        await writer.drain()
        await asyncio.sleep(0.1)
        if status == 200:
            writer.write(b"0\r\n\r\n" + GET + b"\r\n")
        line = await asyncio.wait_for(reader.readline(), 20)
        assert line.startswith(b"HTTP/1.1 %d " % status)


async def test_a_head_that_is_too_large_is_refused(app: FastAPI) -> None:
    for head in (
        GET + b"X: " + b"a" * 5000 + b"\r\n\r\n",
        GET + b"X: " + b"a" * 5000,  # it never ends
        GET + b"X: a\r\n" * 20 + b"\r\n",
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /" + b"a" * 5000,
    ):
        async with listening(app) as (reader, writer):
            writer.write(head)
            assert await answer(reader) == (431, ProblemType.HEADERS_TOO_LARGE)


async def test_garbage_is_malformed(app: FastAPI) -> None:
    for garbage in (b"\x16\x03\x01\x02", b"<html>\r\n\r\n", GET + b"a b: c\r\n\r\n"):
        async with listening(app) as (reader, writer):
            writer.write(garbage)
            assert await answer(reader) == (400, ProblemType.MALFORMED)


@pytest.mark.parametrize(
    "head", [b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", b"Transfer-Encoding: gzip\r\n\r\nx"]
)
async def test_a_garbled_body_is_malformed(head: bytes) -> None:
    """The error is sent at once, before the reader of the body is notified."""
    app = FastAPI()

    @app.post("/")
    async def wait(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    async with listening(app) as (reader, writer):
        writer.write(GET.replace(b"GET", b"POST") + head)
        assert await answer(reader) == (400, ProblemType.MALFORMED)
        assert not await reader.read()


async def test_requests_behind_one_another_are_answered_in_their_order(app: FastAPI) -> None:
    """Each request is within the limits, all of them together are not."""
    async with listening(app, max_header_bytes=200) as (reader, writer):
        writer.write((GET + b"\r\n") * 20)
        for _ in range(20):
            await asyncio.wait_for(reader.readuntil(b'{"it":"is"}'), 20)


async def test_a_connection_with_too_many_requests_behind_one_another_is_closed() -> None:
    """Uvicorn stored them all, so that one connection took the memory of the process."""
    app, answered = FastAPI(), 0

    @app.get("/")
    async def wait() -> None:
        nonlocal answered
        await asyncio.sleep(0.05)
        answered += 1

    async with listening(app) as (reader, writer):
        writer.write((GET + b"\r\n") * 1000)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        await asyncio.sleep(0.2)
        assert answered <= 1


@pytest.mark.parametrize(("waiting", "is_answered"), [(2, True), (3, False)])
async def test_requests_that_wait_have_together_at_most_the_fields_of_one(
    waiting: int, is_answered: bool
) -> None:
    """20 kB of requests with small fields took 0.46 MB; 800 connections took 360 MB."""
    app = FastAPI()

    @app.get("/")
    async def root() -> dict[str, str]:
        await asyncio.sleep(0.05)
        return {"it": "is"}

    async with listening(app, max_header_fields=20) as (reader, writer):
        writer.write(GET + b"\r\n" + (GET + b"a:b\r\n" * 8 + b"\r\n") * waiting)
        if is_answered:
            for _ in range(1 + waiting):
                await asyncio.wait_for(reader.readuntil(b'{"it":"is"}'), 20)
        else:
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_more_requests_are_read_after_the_responses_to_those_before() -> None:
    app, may_answer = FastAPI(), asyncio.Semaphore(0)

    @app.get("/")
    async def root() -> dict[str, str]:
        await may_answer.acquire()
        return {"it": "is"}

    async with listening(app) as (reader, writer):
        for _ in range(2):
            writer.write((GET + b"\r\n") * 20)
            await asyncio.sleep(0.05)
            may_answer.release()
            await asyncio.wait_for(reader.readuntil(b'{"it":"is"}'), 20)
        for _ in range(38):
            may_answer.release()
            await asyncio.wait_for(reader.readuntil(b'{"it":"is"}'), 20)


async def test_an_endless_response_ends_with_its_connection_also_before_other_requests() -> None:
    app, is_disconnected = FastAPI(), asyncio.Event()

    @app.get("/")
    async def stream() -> StreamingResponse:
        async def forever() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"a"
                    await asyncio.sleep(0.01)
            finally:
                is_disconnected.set()

        return StreamingResponse(forever())

    async with listening(app) as (reader, writer):
        writer.write((GET + b"\r\n") * 2)
        await asyncio.wait_for(reader.readuntil(b"a\r\n"), 20)
        writer.close()
        await asyncio.wait_for(is_disconnected.wait(), 20)


def large_response(size: int, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """Return an application whose clients must read something of `size` bytes in 0.3 seconds."""
    monkeypatch.setattr(connection_limits, "_UNREAD_SECONDS", 0.3)
    app, body = FastAPI(), bytes(size)

    @app.get("/")
    async def root() -> Response:
        return Response(body)

    return app


@pytest.mark.parametrize("fields", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("reads", [False, True])
async def test_a_client_that_reads_nothing_of_a_response_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, fields: bytes, reads: bool
) -> None:
    """A slow one is not. Otherwise a client keeps connections for ever, and sends nothing."""
    app, metrics = large_response(2**26, monkeypatch), Metrics()
    counter = ConnectionCounter(10, lambda _: False, metrics)
    async with listening(app, counter=counter) as (reader, writer):
        writer.write(GET + fields + b"\r\n")
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        if reads:
            for _ in range(64):
                await asyncio.wait_for(reader.readexactly(2**20), 20)
                await asyncio.sleep(0.01)
        else:
            for _ in range(100):
                if not metrics.registry.get_sample_value("blindtally_connections"):
                    break
                await asyncio.sleep(0.1)
            assert metrics.registry.get_sample_value("blindtally_connections") == 0
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asyncio.wait_for(reader.readexactly(2**26), 20)


async def test_a_client_that_reads_slowly_is_not_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel had sent less than a third of its buffer after a minute of 10 kB a second."""
    app, metrics = large_response(2**25, monkeypatch), Metrics()
    counter = ConnectionCounter(10, lambda _: False, metrics)
    async with listening(app, counter=counter) as (_, writer):
        loop, address = asyncio.get_running_loop(), writer.get_extra_info("peername")
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14)
            slow.setblocking(False)
            await loop.sock_connect(slow, address)
            await loop.sock_sendall(slow, GET + b"\r\n")
            for _ in range(50):
                assert await loop.sock_recv(slow, 2**13)
                await asyncio.sleep(0.02)
            assert metrics.registry.get_sample_value("blindtally_connections") == 2


def test_the_addresses_of_an_ipv6_network_count_as_one() -> None:
    counter = ConnectionCounter(10, lambda address: address == "2001:db8::9", METRICS)
    accepted = [counter.add(f"2001:db8::{number}") for number in range(7)]
    assert accepted == [True] * 5 + [False] * 2
    assert counter.add("2001:db8::9")
    assert counter.add("2001:db8:0:1::1")
    counter.remove("2001:db8::3")
    counter.remove("2001:db8::9")
    assert counter.add("2001:db8::7")


class Body(httpx.AsyncByteStream):
    """A body that falls silent after its first pieces, or goes on in small ones for ever."""

    def __init__(self, pause: Callable[[], Awaitable[object]]) -> None:
        self._pause = pause

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await self._pause()


@pytest.mark.parametrize(
    ("bounds", "pause"),
    [
        ({"body_idle_seconds": 0.05}, asyncio.Event().wait),
        ({"body_seconds": 0.2}, lambda: asyncio.sleep(0.01)),
    ],
)
async def test_a_body_that_takes_too_long_is_refused_and_its_connection_closed(
    serve: Serve, sqlite_url: str, bounds: dict[str, float], pause: Callable[[], Awaitable[object]]
) -> None:
    async with serve(sqlite_url, **bounds) as served:
        study = await served.create()
        device, *_ = await served.join(study, 6)
        await served.until_phase(study, "sharing")
        for method, path, headers in (
            ("POST", "/v1/studies", JSON),
            ("PUT", f"{device.path}/key-shares", device.headers | OCTETS),
        ):
            request = served.client.build_request(method, path, headers=headers)
            request.headers.pop("content-length", None)
            request.stream = Body(pause)
            response = await asyncio.wait_for(served.client.send(request), 20)
            refused(response, 408, "too-slow")
            assert response.headers["connection"] == "close"
        assert len((await served.client.get("/v1/studies")).json()["studies"]) == 1


async def test_requests_that_are_not_http_are_counted(app: FastAPI) -> None:
    malformed = METRICS.problems.labels(ProblemType.MALFORMED.value)
    before = malformed._value.get()
    async with listening(app) as (reader, writer):
        writer.write(b"\x16\x03\x01\r\n\r\n")
        assert await answer(reader) == (400, ProblemType.MALFORMED)
    assert malformed._value.get() == before + 1


@pytest.mark.parametrize(("is_proxy", "accepted"), [(False, 5), (True, 10)])
async def test_of_too_many_connections_the_last_are_closed(
    app: FastAPI, is_proxy: bool, accepted: int
) -> None:
    """One address may have five of ten, unless it is a proxy; a closed one makes room."""
    metrics = Metrics()
    counter = ConnectionCounter(10, lambda _: is_proxy, metrics)
    async with listening(app, counter=counter) as (reader, writer):
        address = writer.get_extra_info("peername")
        others = [await asyncio.open_connection(*address[:2]) for _ in range(accepted - 1)]
        with structlog.testing.capture_logs() as lines:
            late, late_writer = await asyncio.open_connection(*address[:2])
            with suppress(ConnectionError):
                assert await asyncio.wait_for(late.read(), 20) == b""
            late_writer.close()
        assert metrics.registry.get_sample_value("blindtally_connections") == accepted
        refused_total = "blindtally_connections_refused_total"
        assert metrics.registry.get_sample_value(refused_total) == 1
        # The proxy's were announced when four fifths were open.
        expected = [] if is_proxy else ["connections closed: too many"]
        assert [line["event"] for line in lines] == expected
        others[0][1].close()
        await others[0][1].wait_closed()
        for _ in range(1000):
            if metrics.registry.get_sample_value("blindtally_connections") != accepted:
                break
            await asyncio.sleep(0.01)
        again, again_writer = await asyncio.open_connection(*address[:2])
        for stream, other in ((reader, writer), (again, again_writer)):
            other.write(GET + b"\r\n")
            assert (await asyncio.wait_for(stream.readline(), 20)).startswith(b"HTTP/1.1 200")
        for _, other in (*others[1:], (again, again_writer)):
            other.close()
