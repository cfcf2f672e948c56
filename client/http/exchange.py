"""One HTTP exchange: its limits, its bytes, and the documents of a response.

A response may have a limited number of bytes and no content encoding, and one exchange may take as
long as its bytes take on a slow line. The limits are the same for devices and for analysts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from client.credentials import cause_without_secrets
from client.errors import MAX_JSON_VALUES, TRANSIENT_STATUSES, has_many_values, short_text
from protocol.api.messages_outside_sums import LENGTH_BYTES
from secagg.errors import UnsafeRequestError

CONNECT_SECONDS: Final = 10.0
RESPONSE_TIMEOUT_SECONDS: Final = 30.0  # in addition to the wait of a long poll
MIN_BYTES_PER_SECOND: Final = 2**14  # of the slowest line
MAX_SHOWN_FAULTS: Final = 10  # of a document; the text of thousands takes longer than reading it


@dataclass(frozen=True, slots=True)
class ExchangeLimit:
    """Bytes that the service may send, and seconds for them."""

    max_bytes: int
    seconds: float


@dataclass(slots=True)
class Traffic:
    """Bytes of HTTP sent and received: bodies, and headers in the format of HTTP/1.1."""

    sent: int = 0
    received: int = 0

    def add_exchange(self, response: httpx.Response) -> None:
        """Add a request, and the headers of its response."""
        request = response.request
        line = len(request.method) + len(request.url.raw_path) + len("  HTTP/1.1\r\n\r\n")
        self.sent += line + _header_bytes(request.headers) + len(request.content)
        status = len("HTTP/1.1 200 \r\n\r\n") + len(response.reason_phrase)
        self.received += status + _header_bytes(response.headers)


def _header_bytes(headers: httpx.Headers) -> int:
    return sum(len(name) + len(value) + len(": \r\n") for name, value in headers.raw)


@asynccontextmanager
async def exchange(seconds: float) -> AsyncIterator[None]:
    """Limit an exchange to `seconds`, and raise each error of it as an httpx.HTTPError."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no response within {seconds:.0f} s") from error
    except (ValueError, httpx.InvalidURL, httpx.StreamError) as error:
        # A malformed header, or a response that was closed.
        raise httpx.RemoteProtocolError(f"malformed response: {error}") from error


class Body:
    """The body of `response` as it arrives, of at most `max_bytes`."""

    def __init__(
        self, response: httpx.Response, max_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_encoding(response)
        self._content = bytearray()
        self._max_bytes = max_bytes
        self._clock, self._start = clock, clock()

    def add(self, chunk: bytes) -> None:
        """Add bytes that have arrived.

        Raises:
            UnsafeRequestError: if the body is too long.
            httpx.ReadTimeout: if it is slower than any line.
        """
        self._content += chunk
        if len(self._content) > self._max_bytes:
            raise UnsafeRequestError(f"sent more than {self._max_bytes} bytes")
        seconds = self._clock() - self._start
        if seconds > RESPONSE_TIMEOUT_SECONDS + len(self._content) / MIN_BYTES_PER_SECOND:
            raise httpx.ReadTimeout(f"only {len(self._content)} bytes within {seconds:.0f} s")

    @property
    def content(self) -> bytes:
        return bytes(self._content)


async def read_body(response: httpx.Response, max_bytes: int) -> bytes:
    """Return the body as it was sent; raises UnsafeRequestError if it is too long or encoded."""
    if response.status_code in TRANSIENT_STATUSES:
        return b""  # of a proxy, perhaps: the status and its headers suffice to try again
    body = Body(response, max_bytes)
    async for chunk in response.aiter_raw():
        body.add(chunk)
    return body.content


def whole_response(response: httpx.Response, content: bytes) -> httpx.Response:
    """Return `response` with its body."""
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        content=content,
        extensions=response.extensions,
        request=response.request,
    )


def check_encoding(response: httpx.Response) -> None:
    """Check that a body has no content encoding; raises UnsafeRequestError."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise UnsafeRequestError("sent an encoded body, which could grow without limit")


class DocumentStream:
    """Documents that follow in the response to a message, each within its one of `limits`."""

    def __init__(
        self, response: httpx.Response, traffic: Traffic, limits: Sequence[ExchangeLimit]
    ) -> None:
        self._response = response
        self._traffic = traffic
        self._limits = list(limits)
        self._chunks: AsyncIterator[bytes] = response.aiter_raw()
        self._buffer = bytearray()

    async def next(self) -> bytes | None:
        """Return the next document, or None if the device must ask for it.

        Raises:
            UnsafeRequestError: if it is too long or encoded, or more than the expected documents
                follow.
        """
        try:
            return await self.read_next()
        except httpx.HTTPError:
            await self.close()
            return None

    async def read_next(self) -> bytes | None:
        """Return the next document, or None at the end.

        Raises:
            UnsafeRequestError: as `next`.
            httpx.HTTPError: if the connection is lost, or too slow.
        """
        if not self._limits:
            return None
        limit = self._limits.pop(0)
        async with exchange(limit.seconds):
            check_encoding(self._response)
            length = await self._read(LENGTH_BYTES)
            if not length:
                return None
            size = int.from_bytes(length, "big")
            if size > limit.max_bytes:
                raise UnsafeRequestError(f"sent more than {limit.max_bytes} bytes")
            document = await self._read(size)
            if len(document) < size or len(length) < LENGTH_BYTES:
                raise httpx.RemoteProtocolError("the response ended in a document")
            if not self._limits and await self._read(1):
                raise UnsafeRequestError("sent more than the documents that follow")
            return document

    async def _read(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the end."""
        while len(self._buffer) < size:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                break
            self._traffic.received += len(chunk)
            self._buffer += chunk
        read = bytes(self._buffer[:size])
        del self._buffer[:size]
        return read

    async def close(self) -> None:
        """Read no more, so that the connection can be used."""
        self._limits.clear()
        await self._response.aclose()


M = TypeVar("M", bound=BaseModel)


def parse_document(model: type[M], body: bytes) -> M:
    """Return the document in the JSON of an answer.

    Raises:
        UnsafeRequestError: if it is malformed, or has more than `MAX_JSON_VALUES` values.
    """
    if has_many_values(body):
        raise UnsafeRequestError(f"sent a document of more than {MAX_JSON_VALUES:,} values")
    with refusing_malformed():
        return model.model_validate_json(body)


@contextmanager
def refusing_malformed() -> Iterator[None]:
    """Raise UnsafeRequestError instead of the ValueError of a malformed answer."""
    try:
        yield
    except ValueError as error:  # pydantic's ValidationError is one
        text = short_text(f"sent a malformed answer: {_faults(error)}")
        raise UnsafeRequestError(text) from cause_without_secrets(error)


def _faults(error: ValueError) -> str:
    """Return the faults of a document without its values, of which pydantic shows parts."""
    if not isinstance(error, ValidationError):
        return str(error)
    if error.error_count() > MAX_SHOWN_FAULTS:
        return f"{error.error_count():,} faults"
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    texts = ((".".join(map(str, fault["loc"])), fault["msg"]) for fault in faults)
    return "; ".join(": ".join(filter(None, text)) for text in texts)
