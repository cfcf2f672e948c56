"""The transport of devices behaves as that of httpx, over one connection that it uses again."""

import asyncio
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from client.http_connection import OneConnectionTransport
from client.transport import http_client

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"
KEEPALIVE = 60.0


class Server:
    """A server that reads the head of each request and calls `answer`, or sends these bytes."""

    def __init__(self, answer: Answer | bytes) -> None:
        self.answer = answer
        self.connections = 0
        self.open: list[asyncio.StreamWriter] = []
        self.has_request = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.has_request.set()
                if isinstance(self.answer, bytes):
                    writer.write(self.answer)
                    await writer.drain()
                else:
                    await self.answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def serving(
    answer: Answer | bytes, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    service = Server(answer)
    async with await asyncio.start_server(service.serve, "127.0.0.1", 0, ssl=tls) as server:
        scheme = "https" if tls else "http"
        service.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(30):
            yield service


def client(keepalive: float = KEEPALIVE, tls: ssl.SSLContext | None = None) -> httpx.AsyncClient:
    transport = OneConnectionTransport(tls or ssl.create_default_context(), keepalive)
    return httpx.AsyncClient(transport=transport)


def sending(response: bytes) -> Answer:
    """Return an answer of these bytes, after which the connection closes."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        await writer.drain()
        writer.close()

    return answer


async def exchange_with(http: httpx.AsyncClient, url: str) -> object:
    """Return the response to a request, or the type of its error."""
    try:
        response = await http.post(url, content=b"question")
    except httpx.HTTPError as error:
        return type(error)
    extensions = response.extensions
    shown = extensions["http_version"], extensions["reason_phrase"]
    return response.status_code, response.headers.raw, response.content, *shown


RESPONSES = {
    "whole": HELLO,
    "empty": EMPTY,
    "until the end": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "chunks": CHUNKED + b"\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"\r\n1\r\nx\r\n0\r\nA: b\r\n\r\n",
    "no body": b"HTTP/1.1 204 No Content\r\nX-A: 1\r\nx-a: 2\r\n\r\n",
    "more than its length": HELLO + b"HTTP/1.1 500 No\r\n\r\n",
    "after hints": b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + HELLO,
    "after hints without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 3,
    "too short": HELLO[:-1],
    "no end of chunks": CHUNKED + b"\r\n3\r\nhel\r\n",
    "a false chunk": CHUNKED + b"\r\n-1\r\nx\r\n0\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "nothing": b"",
    "mail": b"220 mail.example.org ready\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
    "a false length": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nx",
    "both lengths": CHUNKED + b"content-length: 9\r\n\r\n0\r\n\r\n",
    "a folded header": b"HTTP/1.1 200 OK\r\nx: 1\r\n 2\r\ncontent-length: 0\r\n\r\n",
    "a header without a colon": b"HTTP/1.1 200 OK\r\nnothing\r\n\r\n",
    "a control code": b"HTTP/1.1 200 OK\r\nx: \x00\r\ncontent-length: 0\r\n\r\n",
    "a long head": b"HTTP/1.1 200 OK\r\nx: " + b"x" * 2**18 + b"\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
}


@pytest.mark.parametrize("response", RESPONSES.values(), ids=RESPONSES)
async def test_responses_are_read_as_by_httpx(response: bytes) -> None:
    async with serving(sending(response)) as server:
        async with httpx.AsyncClient() as theirs:
            expected = await exchange_with(theirs, server.url)
        async with client() as ours:
            assert await exchange_with(ours, server.url) == expected


@pytest.mark.parametrize("tls", [False, True])
async def test_a_connection_that_the_service_keeps_is_used_again(
    *, tls: bool, certificate: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    ours, theirs = certificate
    async with serving(HELLO, theirs if tls else None) as server, client(tls=ours) as http:
        for _ in range(3):
            assert (await http.get(server.url)).content == b"hello"
        assert server.connections == 1


@pytest.fixture(scope="module")
def certificate(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of a client and a server, whose certificate the client trusts."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=True
        )
        .sign(key, hashes.SHA256())
    )
    folder: Path = tmp_path_factory.mktemp("tls")
    (folder / "cert").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    (folder / "key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    ours = ssl.create_default_context(cafile=folder / "cert")
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(folder / "cert", folder / "key")
    return ours, theirs


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    certificate: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with serving(HELLO, certificate[1]) as server, http_client(server.url) as http:
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await http.get("/studies")


async def test_a_certificate_of_another_host_is_refused(
    certificate: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    ours, theirs = certificate
    async with serving(HELLO, theirs) as server, client(tls=ours) as http:
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await http.get(server.url.replace("127.0.0.1", "localhost"))


async def test_a_connection_that_the_service_closed_is_replaced() -> None:
    async with serving(HELLO) as server, client() as http:
        for count in range(1, 4):
            assert (await http.get(server.url)).content == b"hello"
            assert server.connections == count
            server.open[-1].transport.abort()
            await asyncio.sleep(0.05)


async def test_bytes_after_a_response_are_not_the_next_response() -> None:
    """A proxy may send 408 over an idle connection, and a service anything."""
    async with serving(HELLO) as server, client() as http:
        assert (await http.get(server.url)).content == b"hello"
        server.open[-1].write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await asyncio.sleep(0.05)
        assert (await http.get(server.url)).status_code == 200
        assert server.connections == 2


async def test_an_idle_connection_ends_after_its_time() -> None:
    async with serving(HELLO) as server, client(keepalive=0.01) as http:
        for count in (1, 2):
            assert (await http.get(server.url)).content == b"hello"
            assert server.connections == count
            await asyncio.sleep(0.02)


async def test_another_host_has_another_connection() -> None:
    async with serving(HELLO) as first, serving(EMPTY) as other, client() as http:
        contents = [(await http.get(each.url)).content for each in (first, other, first)]
        assert contents == [b"hello", b"", b"hello"]
        assert (first.connections, other.connections) == (2, 1)


async def test_a_response_that_is_left_costs_its_connection_only() -> None:
    async with serving(HELLO) as server, client() as http:
        async with http.stream("GET", server.url):
            pass  # its body is not read
        assert (await http.get(server.url)).content == b"hello"
        assert server.connections == 2


async def silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def test_a_cancelled_request_leaves_the_client_usable() -> None:
    async with serving(silent) as server, client() as http:
        waiting = asyncio.create_task(http.get(server.url))
        await server.has_request.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        server.answer = HELLO
        assert (await http.get(server.url)).content == b"hello"


async def test_requests_take_turns() -> None:
    async with serving(HELLO) as server, client() as http:
        responses = await asyncio.gather(*(http.get(server.url) for _ in range(5)))
        assert [response.content for response in responses] == [b"hello"] * 5
        assert server.connections == 1


async def half(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HELLO[:-2])
    await asyncio.sleep(60)


@pytest.mark.parametrize("answer", [silent, half])
async def test_a_service_that_sends_nothing_more_is_left(answer: Answer) -> None:
    async with serving(answer) as server, client() as http:
        with pytest.raises(httpx.ReadTimeout, match=r"for 0\.05 s"):
            await http.get(server.url, timeout=httpx.Timeout(5, read=0.05))


async def test_a_service_that_reads_nothing_is_left() -> None:
    async with serving(silent) as server, client() as http:
        with pytest.raises(httpx.WriteTimeout):
            await http.post(server.url, content=bytes(2**25), timeout=httpx.Timeout(5, write=0.05))


async def read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = await reader.readexactly(2**22)
    text = str(len(body)).encode()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))


async def test_a_long_request_arrives() -> None:
    async with serving(read_all) as server, client() as http:
        for _ in range(2):
            assert (await http.post(server.url, content=bytes(2**22))).content == b"4194304"
        assert server.connections == 1


async def test_a_refusal_of_a_request_that_is_not_read_arrives() -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(refusal)
        await writer.drain()
        writer.write_eof()
        await reader.read()

    async with serving(refuse) as server, client() as http:
        assert (await http.post(server.url, content=bytes(2**22))).status_code == 413


async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not writer.is_closing():
        writer.write(bytes(2**16))
        await writer.drain()


async def test_a_response_that_is_not_read_takes_little_memory() -> None:
    async with serving(endless) as server, client() as http:
        tracemalloc.start()
        try:
            async with http.stream("GET", server.url) as response:
                await asyncio.sleep(0.3)
                assert tracemalloc.get_traced_memory()[1] < 2**22
                chunks = response.aiter_raw()
                received = 0
                while received < 2**24:
                    received += len(await anext(chunks))
                assert tracemalloc.get_traced_memory()[1] < 2**22
        finally:
            tracemalloc.stop()


async def test_a_request_that_is_not_http_is_the_callers_mistake() -> None:
    async with serving(HELLO) as server, client() as http:
        with pytest.raises(httpx.LocalProtocolError):
            await http.get(server.url, headers={"x": "two\r\nlines"})
        assert (await http.get(server.url)).content == b"hello"


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY"])
async def test_a_proxy_is_left_to_httpx(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_client("http://service") as http:
        assert isinstance(http._transport, OneConnectionTransport)
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with http_client("http://service") as http:
        assert not isinstance(http._transport, OneConnectionTransport)


def test_another_event_loop_is_left_to_httpx() -> None:
    """uvloop, for example, cannot try a host's addresses at the same time."""
    uvloop = pytest.importorskip("uvloop")

    async def request() -> None:
        async with serving(HELLO) as server, http_client(server.url) as http:
            assert not isinstance(http._transport, OneConnectionTransport)
            assert (await http.get("/studies")).content == b"hello"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(request())


async def test_a_proxy_receives_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(HELLO) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        async with http_client("http://service.invalid") as http:
            assert (await http.get("/studies")).content == b"hello"
