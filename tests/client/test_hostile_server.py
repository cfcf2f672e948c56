"""A server that sends too much, or without end, costs a device one study and nothing else."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from client.device.device_state import DeviceState
from client.device.driver import EndState
from client.device.take_part import ParticipationOutcome, take_part
from client.transport import MAX_DOCUMENT_BYTES

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
            writer.close()

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
    monkeypatch.setattr("client.transport.RESPONSE_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr("client.transport.MIN_BYTES_PER_SECOND", 2.0**30)
    outcome = await outcome_at(answer)
    assert outcome.state is EndState.DISCONNECTED
    assert "no response within" in outcome.error


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
    detail = r"\u001b]0;owned\u0007\u001b[2Jfine\r\nround 3: finished"
    kind = "urn:blindtally:problem:not-found"
    body = f'{{"type": "{kind}", "title": "x", "status": 404, "detail": "{detail}"}}'.encode()
    writer.write(head(404, Content_Length=len(body)) + body)


async def test_an_error_contains_no_control_characters() -> None:
    outcome = await outcome_at(terminal_codes)
    assert outcome.state is EndState.REJECTED
    assert "fine" in outcome.error
    assert outcome.error.isprintable()
