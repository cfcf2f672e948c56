"""A server that sends too much, or without end, costs a device one study and nothing else."""

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from client.device.device_state import DeviceState
from client.device.driver import EndState
from client.device.take_part import ParticipationOutcome, take_part
from client.errors import MAX_JSON_VALUES, ServiceError, ServiceUnreachableError, check_response
from client.http.exchange import parse_document
from client.http.transport import MAX_DOCUMENT_BYTES, Transport, http_client
from protocol.api.messages_outside_sums import Survivors, frame_document
from secagg.errors import UnsafeRequestError

pytestmark = pytest.mark.usefixtures("quick_retries")
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def head(status: int = 200, **headers: object) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    return f"HTTP/1.1 {status} X\r\n{''.join(lines)}\r\n".encode()


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """Yield the URL of a server that answers every request with `answer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await answer(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()  # also bytes that the device never reads

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def outcome_at(answer: Answer, patience: float = 0.3) -> ParticipationOutcome:
    async with serving(answer) as url, asyncio.timeout(60):
        state = DeviceState.in_memory()
        (outcome,) = await take_part(
            url, ["x"], study="s", device_state=state, patience=patience, wait=0.1
        )
    return outcome


async def compressed_zeros(writer: asyncio.StreamWriter) -> None:
    body = gzip.compress(bytes(64 * 2**20))
    writer.write(head(Content_Encoding="gzip", Content_Length=len(body)) + body)


async def endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(head(Content_Length=2**40))
    while True:
        writer.write(bytes(2**20))
        await writer.drain()


async def long_error(writer: asyncio.StreamWriter) -> None:
    writer.write(head(404, Content_Length=2**30) + b" " * (MAX_DOCUMENT_BYTES + 1))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (compressed_zeros, "encoded body"),
        (endless_body, f"more than {MAX_DOCUMENT_BYTES} bytes"),
        (long_error, f"more than {MAX_DOCUMENT_BYTES} bytes"),
    ],
)
async def test_a_response_without_a_bound_is_declined(answer: Answer, reason: str) -> None:
    outcome = await outcome_at(answer)
    assert outcome.state is EndState.DECLINED
    assert reason in outcome.error
    assert outcome.bytes_received == 0  # it was not read to its end


async def trickled_body(writer: asyncio.StreamWriter) -> None:
    writer.write(head(Content_Length=2**20))
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def endless_informational_responses(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("answer", [trickled_body, endless_informational_responses])
async def test_an_exchange_that_never_ends_is_a_lost_connection(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.http.transport.RESPONSE_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr("client.http.transport.MIN_BYTES_PER_SECOND", 2.0**30)
    outcome = await outcome_at(answer)
    assert outcome.state is EndState.DISCONNECTED
    assert "no response within" in outcome.error


async def next_document(answer: Answer, max_bytes: int = 9) -> bytes | None:
    """Return the document that follows in the response to a message."""
    async with serving(answer) as url, http_client(url) as http, asyncio.timeout(60):
        transport = Transport(http, patience=1)
        stream = await transport.send_message("/participants/p/answers", b"", "t", (max_bytes,))
        try:
            return await stream.next()
        finally:
            await stream.close()


async def endless_documents(writer: asyncio.StreamWriter) -> None:
    writer.write(head(Content_Length=2**40))
    while True:
        writer.write(frame_document(b"document"))
        await writer.drain()


async def long_document(writer: asyncio.StreamWriter) -> None:
    writer.write(head(Content_Length=2**40) + (2**32 - 1).to_bytes(4, "big"))
    while True:
        writer.write(bytes(2**20))
        await writer.drain()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (compressed_zeros, "encoded body"),
        (endless_documents, "more than the documents that follow"),
        (long_document, "more than 9 bytes"),
    ],
)
async def test_documents_without_a_bound_are_declined(answer: Answer, reason: str) -> None:
    with pytest.raises(UnsafeRequestError, match=reason):
        await next_document(answer)


async def trickled_document(writer: asyncio.StreamWriter) -> None:
    writer.write(head(Content_Length=2**20) + (2**19).to_bytes(4, "big"))
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def cut_document(writer: asyncio.StreamWriter) -> None:
    writer.write(head(Content_Length=99) + frame_document(b"document")[:6])
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("answer", [trickled_document, cut_document])
async def test_a_document_that_does_not_arrive_is_asked_for(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.http.transport.POLL_SECONDS", 0.1)
    monkeypatch.setattr("client.http.transport.RESPONSE_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr("client.http.transport.MIN_BYTES_PER_SECOND", 2.0**30)
    assert await next_document(answer, 2**20) is None


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_a_long_page_of_a_proxy_that_waits_for_its_server_is_retried(encoding: str) -> None:
    answered = 0

    async def page_then_refusal(writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        answered += 1
        body = b" " * (2 * MAX_DOCUMENT_BYTES if answered == 1 else 0)
        status = 502 if answered == 1 else 404
        length = {"Content_Length": len(body), "Content_Encoding": encoding}
        writer.write(head(status, **length, Connection="close") + body)
        await writer.drain()
        writer.close()

    outcome = await outcome_at(page_then_refusal, patience=30)
    assert answered == 2
    assert outcome.state is (EndState.REJECTED if encoding == "identity" else EndState.DECLINED)


async def long_wait(writer: asyncio.StreamWriter) -> None:
    writer.write(head(503, Retry_After="9" * 300, Content_Length=2) + b"{}")


async def test_a_wait_beyond_the_patience_of_a_device_is_not_waited_for() -> None:
    outcome = await outcome_at(long_wait)
    assert outcome.state is EndState.REJECTED


async def terminal_codes(writer: asyncio.StreamWriter) -> None:
    detail = r"\u001b]0;owned\u0007\u001b[2Jfine\r\nround 3: finished" + "!" * 10_000
    kind = "urn:blindtally:problem:not-found"
    body = f'{{"type": "{kind}", "title": "x", "status": 404, "detail": "{detail}"}}'.encode()
    writer.write(head(404, Content_Length=len(body)) + body)


async def with_a_cookie(writer: asyncio.StreamWriter) -> None:
    writer.write(head(204, Set_Cookie="device=7"))


async def test_a_device_stores_and_returns_no_cookies() -> None:
    requests: list[httpx.Request] = []

    async def note(request: httpx.Request) -> None:
        requests.append(request)

    async with serving(with_a_cookie) as url, http_client(url) as http:
        http.event_hooks = {"request": [note], "response": []}
        for _ in range(2):
            await Transport(http, patience=1).send("GET", "/studies")
        assert not list(http.cookies.jar)
    assert ["cookie" in request.headers for request in requests] == [False, False]


async def test_an_error_contains_no_control_characters() -> None:
    outcome = await outcome_at(terminal_codes)
    assert outcome.state is EndState.REJECTED
    assert "fine" in outcome.error
    assert outcome.error.isprintable()
    assert len(outcome.error) < 3_000


def test_thousands_of_faults_are_counted_and_not_listed() -> None:
    body = json.dumps({"survivors": []} | dict.fromkeys(map(str, range(1_000)))).encode()
    with pytest.raises(UnsafeRequestError, match=r"malformed answer: 1,000 faults$"):
        parse_document(Survivors, body)


@pytest.mark.parametrize(("count", "is_shown"), [(1_000, True), (1_001, False), (2**18, False)])
def test_a_problem_with_many_errors_is_shown_by_its_status(count: int, is_shown: bool) -> None:
    body = b'{"type": "x", "title": "x", "status": 422, "detail": "why", "errors": ['
    response = httpx.Response(
        422, content=body + b"{}," * (count - 1) + b"{}]}", request=httpx.Request("GET", "http://a")
    )
    tracemalloc.start()
    try:
        with pytest.raises(ServiceError) as raised:
            check_response(response)
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()
    assert (raised.value.problem.errors is not None) is is_shown
    assert raised.value.problem.status == 422


def whole(body: bytes, status: int = 200, **headers: object) -> Answer:
    """Return an answer that sends `body` and closes the connection."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head(status, **({"Content_Length": len(body)} | headers)) + body)
        await writer.drain()
        writer.close()

    return answer


async def not_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 \x1b[2J mail.example.org ready\r\n" * 9)
    await writer.drain()
    writer.close()


# The type of the exception of a list of studies, and the end of a device's part in one study.
CONNECTION_ERROR = ServiceUnreachableError, EndState.DISCONNECTED
ANSWER_ERROR = UnsafeRequestError, EndState.DECLINED
STATUS_ERROR = ServiceError, EndState.REJECTED
MANY_VALUES = b'{"studies": [], "x": [' + b"0," * MAX_JSON_VALUES + b"0]}"
UNREADABLE: list[tuple[Answer, type[Exception], EndState, str]] = [
    (not_http, *CONNECTION_ERROR, "RemoteProtocolError"),
    (whole(b"{}", Content_Length=99), *CONNECTION_ERROR, "RemoteProtocolError"),
    (whole(b"", 302, Location="http://[::1"), *CONNECTION_ERROR, "RemoteProtocolError"),
    (whole(b"", 302, Location="P:1]:99999/x"), *CONNECTION_ERROR, "malformed response"),
    (
        whole(b"", 302, Location=":http://[:http://[::1]:9/"),
        *CONNECTION_ERROR,
        "malformed response",
    ),
    (whole(b"", 307, Location="http://127.0.0.1:1/elsewhere"), *STATUS_ERROR, "answered 307"),
    (whole(b"", 204), *ANSWER_ERROR, "malformed"),
    (whole(b"<html>"), *ANSWER_ERROR, "malformed"),
    (whole(b"\xff\xfe"), *ANSWER_ERROR, "malformed"),
    (whole(b"[" * 9999 + b"]" * 9999), *ANSWER_ERROR, "malformed"),
    (whole(b'{"studies": [NaN]}'), *ANSWER_ERROR, "malformed"),
    (whole(b'{"studies": 1, "plan": 1}'), *ANSWER_ERROR, "malformed"),
    (whole(b'{"studies": [' + b"{}," * 99 + b"{}]}"), *ANSWER_ERROR, "malformed"),
    (whole(MANY_VALUES), *ANSWER_ERROR, "more than 131,072 values"),
    (whole(b'{"studies": {}}', 500), *STATUS_ERROR, "answered 500"),
    (whole(b'{"status": "no"}', 404), *STATUS_ERROR, "answered 404"),
]


@pytest.mark.parametrize(("answer", "kind", "state", "reason"), UNREADABLE)
async def test_what_cannot_be_read_is_an_error_of_this_package(
    answer: Answer, kind: type[Exception], state: EndState, reason: str
) -> None:
    outcome = await outcome_at(answer, patience=0.01)
    assert outcome.state is state
    assert reason in outcome.error
    assert outcome.error.isprintable()
    async with serving(answer) as url:
        with pytest.raises(kind, match=reason) as raised:
            await take_part(url, ["x"], device_state=DeviceState.in_memory(), patience=0.01)
    assert type(raised.value).__module__.startswith(("client.", "secagg."))


async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await not_http(writer)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_refused_connection_is_an_error_of_this_package(scheme: str) -> None:
    """Nobody listens on the port, or not by TLS."""
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    if scheme == "http":
        server.close()
        await server.wait_closed()
    state = DeviceState.in_memory()
    (outcome,) = await take_part(url, [], study="s", device_state=state, patience=0.01)
    assert outcome.state is EndState.DISCONNECTED
    with pytest.raises(ServiceUnreachableError, match=f"^{url} is out of reach: ConnectError"):
        await take_part(url, [], device_state=state, patience=0.01)
    server.close()


@pytest.mark.parametrize("url", ["", "example.org", "ftp://example.org", "http://", "http://[::1"])
async def test_a_malformed_address_is_the_callers_mistake(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        await take_part(url, [], device_state=DeviceState.in_memory())
