"""A device of a fleet uses one connection, and sees its errors as those of httpx."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest

from client.fleet.http_connection import fleet_client

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED_ANSWER = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"
)
TRUNCATED_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"


@asynccontextmanager
async def listening(answer: Handler) -> AsyncIterator[str]:
    """Yield the URL of a server that runs `answer` for each connection, and then closes it."""
    tasks = list[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server, asyncio.timeout(20):
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"
        await asyncio.gather(*tasks)  # each client has closed its connections


@asynccontextmanager
async def serving(*connections: Sequence[bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Yield a URL and the requests there; each connection gives its responses, and then closes."""
    requests, left = list[bytes](), list(connections)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for response in left.pop(0):
            head = await reader.readuntil(b"\r\n\r\n")
            requests.append(head + (await reader.readexactly(3) if b"PUT" in head else b""))
            writer.write(response)
            await writer.drain()

    async with listening(answer) as url:
        yield url, requests
    assert not left


async def test_requests_share_a_connection() -> None:
    async with serving((ANSWER, CHUNKED_ANSWER)) as (url, requests), fleet_client(url) as http:
        first = await http.put("/a", content=b"abc")
        second = await http.get("/b")
    assert [first.content, second.content] == [b"ok", b"ok"]
    assert [request.partition(b" HTTP")[0] for request in requests] == [b"PUT /v1/a", b"GET /v1/b"]
    assert requests[0].endswith(b"\r\n\r\nabc")


async def test_a_connection_that_the_service_has_closed_is_opened_again() -> None:
    closing = ANSWER.replace(b"OK\r\n", b"OK\r\nconnection: close\r\n")
    async with serving((ANSWER,), (closing,), (ANSWER,)) as (url, _), fleet_client(url) as http:
        for _ in range(3):
            assert (await http.get("/")).content == b"ok"
            await asyncio.sleep(0.05)  # until the end of the connection has arrived


async def test_a_response_that_is_not_read_ends_its_connection() -> None:
    async with serving((TRUNCATED_ANSWER,), (ANSWER,)) as (url, _), fleet_client(url) as http:
        response = await http.send(http.build_request("GET", "/"), stream=True)
        await response.aclose()
        assert (await http.get("/")).content == b"ok"


async def test_a_body_is_read_as_it_arrives() -> None:
    async with serving((TRUNCATED_ANSWER,)) as (url, _), fleet_client(url) as http:
        response = await http.send(http.build_request("GET", "/"), stream=True)
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"ok"
        with pytest.raises(httpx.RemoteProtocolError, match="received 2 bytes"):
            await anext(chunks)


async def test_a_response_that_is_closed_late_does_not_end_the_next_one() -> None:
    async with serving((TRUNCATED_ANSWER,), (ANSWER,)) as (url, _), fleet_client(url) as http:
        first = await http.send(http.build_request("GET", "/"), stream=True)
        second = await http.send(http.build_request("GET", "/"), stream=True)
        await first.aclose()
        assert await second.aread() == b"ok"


@pytest.mark.parametrize("pause", [0.0, 0.05])
async def test_bytes_after_a_response_do_not_answer_the_next_request(pause: float) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        await asyncio.sleep(pause)
        writer.write(ANSWER.replace(b"ok", b"no"))
        await reader.read()

    async with listening(answer) as url, fleet_client(url) as http:
        for _ in range(3):
            assert (await http.get("/")).content == b"ok"
            await asyncio.sleep(2 * pause)


async def test_a_connection_that_was_idle_for_long_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("client.fleet.http_connection.KEEPALIVE_SECONDS", 0)
    async with serving((ANSWER, b""), (ANSWER,)) as (url, _), fleet_client(url) as http:
        for _ in range(2):
            assert (await http.get("/")).content == b"ok"


async def test_a_silent_connection_is_an_error_after_the_read_timeout() -> None:
    async def is_silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(is_silent) as url, fleet_client(url) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.get("/", timeout=0.05)


async def test_headers_may_be_as_long_as_with_httpx() -> None:
    long = ANSWER.replace(b"OK\r\n", b"OK\r\nx: " + b"a" * 60_000 + b"\r\n")
    async with serving((long,)) as (url, _), fleet_client(url) as http:
        assert (await http.get("/")).content == b"ok"


async def test_a_closed_client_opens_no_connection() -> None:
    http = fleet_client("http://127.0.0.1:1")
    await http.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await http.get("/")


async def test_informational_responses_are_skipped() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    async with serving((hints + hints + ANSWER,)) as (url, _), fleet_client(url) as http:
        assert (await http.get("/")).content == b"ok"


@pytest.mark.parametrize("response", [b"", b"no HTTP at all\r\n\r\n"])
async def test_an_answer_that_is_not_http_is_an_error_with_its_request(response: bytes) -> None:
    async with serving((response,)) as (url, _), fleet_client(url) as http:
        with pytest.raises(httpx.RemoteProtocolError) as lost:
            await http.get("/")
        assert str(lost.value.request.url) == f"{url}/v1/"


async def test_a_service_that_is_away_is_an_error_with_its_request() -> None:
    async with fleet_client("http://127.0.0.1:1") as http:
        with pytest.raises(httpx.ConnectError) as away:
            await http.get("/")
        assert away.value.request.url.port == 1


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
def test_a_proxy_of_the_environment_is_used(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert type(fleet_client("http://service")) is httpx.AsyncClient
    assert type(fleet_client("http://127.0.0.1")) is not httpx.AsyncClient
