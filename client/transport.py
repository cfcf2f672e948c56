"""Transport of a device: HTTP that survives lost connections and restarts of the service.

A request without an answer, or with one that means "not now", is repeated, with random and growing
waits, until `patience` has passed. If the service has no answer yet, it returns 202 after its own
wait (a long poll). The device then asks again until `Policy.max_round_seconds` have passed, because
deadlines are the service's task.

A response may have `max_bytes` and no content encoding, and one exchange may take as long as its
bytes take on a slow line. A response beyond that ends the device's part in the study.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass
from functools import cache
from http.cookiejar import CookieJar
from typing import Final

import httpx

from client.connection import repeated, service_url
from client.errors import (
    TRANSIENT_STATUSES,
    check_response,
    http_errors_as_unreachable,
    retry_after_seconds,
)
from protocol.api.messages import MAX_RETRY_SECONDS
from secagg.errors import UnsafeRequestError

POLL_SECONDS: Final = 25.0  # wait of a long poll; the service allows 30
MIN_POLL_INTERVAL_SECONDS: Final = 0.2  # between two polls, even if the service does not wait
RESPONSE_TIMEOUT_SECONDS: Final = 30.0  # in addition to the wait of a long poll
KEEPALIVE_SECONDS: Final = 60.0  # of a connection, between two phases
MAX_DOCUMENT_BYTES: Final = 4 * 2**20  # of JSON: a plan of `tracked` lists thousands of items
MIN_BYTES_PER_SECOND: Final = 2**14  # of the slowest line that a device may have


class _NoCookies(CookieJar):
    """A jar that stores nothing: a service could fill it, and recognise a device by it."""

    def extract_cookies(self, response: object, request: object) -> None:
        """Ignore the cookies of a response."""


def http_client(url: str) -> httpx.AsyncClient:
    """Return an HTTP client of the service at `url`, for one device.

    Devices in one process need a client each: httpx scans all connections of a client twice
    whenever it takes or returns one. With a pool of 160 connections that takes seconds.

    Raises:
        ValueError: if `url` is not an http or https address.
    """
    return httpx.AsyncClient(
        base_url=service_url(url) + "/v1",
        verify=_tls_context(),
        limits=httpx.Limits(max_connections=1, keepalive_expiry=KEEPALIVE_SECONDS),
        timeout=httpx.Timeout(RESPONSE_TIMEOUT_SECONDS, connect=10.0, pool=None),
        headers={"user-agent": "blindtally", "accept-encoding": "identity"},
        cookies=_NoCookies(),
    )


@cache
def _tls_context() -> ssl.SSLContext:
    """Return the trusted certificates, which all clients share: reading them takes 20 ms."""
    return httpx.create_ssl_context()


@dataclass(slots=True)
class Traffic:
    """Bytes of HTTP sent and received: bodies, and headers in the format of HTTP/1.1."""

    sent: int = 0
    received: int = 0

    def add(self, response: httpx.Response) -> None:
        request = response.request
        line = len(request.method) + len(request.url.raw_path) + len("  HTTP/1.1\r\n\r\n")
        self.sent += line + _header_bytes(request.headers) + len(request.content)
        status = len("HTTP/1.1 200 \r\n\r\n") + len(response.reason_phrase)
        self.received += status + _header_bytes(response.headers) + len(response.content)


def _header_bytes(headers: httpx.Headers) -> int:
    return sum(len(name) + len(value) + len(": \r\n") for name, value in headers.raw)


class Transport:
    """Requests of one device, each repeated for up to `patience` seconds."""

    def __init__(self, client: httpx.AsyncClient, patience: float = 120.0) -> None:
        self.traffic = Traffic()
        self._client = client
        self._exchange = repeated(self._send_once, patience, jitter=0.5)

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        ticket: str | None = None,
        wait: float = 0.0,
        params: dict[str, int] | None = None,
        max_bytes: int = MAX_DOCUMENT_BYTES,
    ) -> httpx.Response:
        """Return the response to one request; `content` is JSON in a POST, otherwise raw bytes.

        Raises:
            ServiceError: if the service refuses the request.
            UnsafeRequestError: if the response has more than `max_bytes` or a content encoding, or
                if the service gave out an id that is too long for a URL.
            ServiceUnreachableError: if the service is out of reach for too long.
        """
        kind = "application/json" if method == "POST" else "application/octet-stream"
        headers = {"content-type": kind} if content is not None else {}
        if ticket is not None:
            headers["authorization"] = f"Bearer {ticket}"
        seconds = RESPONSE_TIMEOUT_SECONDS + wait
        try:
            request = self._client.build_request(
                method,
                path,
                content=content,
                headers=headers,
                params=dict(params or {}) | ({"wait": wait} if wait else {}),
                timeout=httpx.Timeout(seconds, connect=10.0, pool=None),
            )
        except httpx.InvalidURL as error:
            raise UnsafeRequestError(f"gave out an id that makes no URL: {error}") from error
        seconds += (len(content or b"") + max_bytes) / MIN_BYTES_PER_SECOND
        with http_errors_as_unreachable():
            return await self._exchange(request, max_bytes, seconds)

    async def _send_once(
        self, request: httpx.Request, max_bytes: int, seconds: float
    ) -> httpx.Response:
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.send(request, stream=True)
                try:
                    body = await _read_body(response, max_bytes)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no response within {seconds:.0f} s") from error
        except (ValueError, httpx.InvalidURL) as error:  # of a header that the library parses
            raise httpx.RemoteProtocolError(f"malformed response: {error}") from error
        whole = httpx.Response(
            response.status_code,
            headers=response.headers,
            content=body,
            extensions=response.extensions,
            request=request,
        )
        self.traffic.add(whole)
        return check_response(whole)

    async def poll(
        self, path: str, ticket: str, max_bytes: int = MAX_DOCUMENT_BYTES
    ) -> httpx.Response:
        """Return the response at `path`, repeating the request while the service returns 202.

        Raises:
            ServiceError, UnsafeRequestError, ServiceUnreachableError: as `send`.
        """
        while True:
            start = time.monotonic()
            response = await self.send(
                "GET", path, ticket=ticket, wait=POLL_SECONDS, max_bytes=max_bytes
            )
            if response.status_code != httpx.codes.ACCEPTED:
                return response
            retry_after = retry_after_seconds(response) or 0.0
            earliest = start + MIN_POLL_INTERVAL_SECONDS - time.monotonic()
            await asyncio.sleep(max(earliest, min(retry_after, MAX_RETRY_SECONDS)))


async def _read_body(response: httpx.Response, max_bytes: int) -> bytes:
    """Return the body as it was sent; raises UnsafeRequestError if it is too long or encoded."""
    if response.status_code in TRANSIENT_STATUSES:
        return b""  # of a proxy, perhaps: the status and its headers suffice to try again
    if response.headers.get("content-encoding", "identity") != "identity":
        raise UnsafeRequestError("sent an encoded body, which could grow without limit")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > max_bytes:
            raise UnsafeRequestError(f"sent more than {max_bytes} bytes")
    return bytes(body)
