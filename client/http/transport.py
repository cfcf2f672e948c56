"""Transport of a device: HTTP that survives lost connections and restarts of the service.

A request without an answer, or with one that means "not now", is repeated, with random and growing
waits, until `patience` has passed. If the service has no answer yet, it returns 202 after its own
wait (a long poll). The device then asks again until `Policy.max_round_seconds` have passed, because
deadlines are the service's task.

The response to a message acknowledges it with its headers, and has the documents that follow in its
body. If the body ends before a document, the device asks for it by a long poll. A response beyond
its limits (`client.http.exchange`) ends the device's part in the study.

A peer that sends a byte of its headers from time to time never exceeds the limit of one read. So
a whole call has a deadline, too.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

import httpx

from client.credentials import bearer_headers, cause_without_secrets
from client.errors import (
    check_response,
    http_errors_as_unreachable,
    retry_after_seconds,
    short_text,
)
from client.http.address_and_retries import http_options, repeated, service_url, shown_url
from client.http.exchange import (
    CONNECT_SECONDS,
    MIN_BYTES_PER_SECOND,
    RESPONSE_TIMEOUT_SECONDS,
    DocumentStream,
    ExchangeLimit,
    Traffic,
    exchange,
    read_body,
    whole_response,
)
from protocol.api.messages import MAX_RETRY_SECONDS
from secagg.errors import UnsafeRequestError

POLL_SECONDS: Final = 25.0  # wait of a long poll; the service allows 30
MIN_POLL_INTERVAL_SECONDS: Final = 0.2  # between two polls, even if the service does not wait
KEEPALIVE_SECONDS: Final = 60.0  # of a connection, between two phases
MAX_DOCUMENT_BYTES: Final = 4 * 2**20  # of JSON: a plan of `tracked` lists thousands of items


def http_client(url: str) -> httpx.AsyncClient:
    """Return an HTTP client of the service at `url`, for one device.

    Devices in one process need a client each: httpx scans all connections of a client twice
    whenever it takes or returns one. With a pool of 160 connections that takes seconds.

    Raises:
        ValueError: if `url` is not an http or https address, or has a user or a password.
    """
    options = http_options(url)
    if options["auth"] is not None:
        shown = shown_url(service_url(url))
        raise ValueError(f"{shown} must have no user or password: devices show credentials instead")
    return httpx.AsyncClient(
        limits=httpx.Limits(max_connections=1, keepalive_expiry=KEEPALIVE_SECONDS),
        timeout=httpx.Timeout(RESPONSE_TIMEOUT_SECONDS, connect=CONNECT_SECONDS, pool=None),
        **options,
    )


class Transport:
    """Requests of one device, each repeated for up to `patience` seconds."""

    def __init__(self, client: httpx.AsyncClient, patience: float = 120.0) -> None:
        self.traffic = Traffic()
        self._client = client
        self._exchange = repeated(self._send_once, patience, jitter=0.5)
        self._exchange_message = repeated(self._open_stream, patience, jitter=0.5)
        self._exchange_post = repeated(self._open_answer, patience, jitter=0.5)

    def with_patience(self, patience: float) -> "Transport":
        """Return a transport of the same device that repeats each request for `patience` seconds.

        Its traffic is counted together with that of this one.
        """
        other = Transport(self._client, patience)
        other.traffic = self.traffic
        return other

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        ticket: str | None = None,
        wait: float = 0.0,
        params: Mapping[str, int | str] | None = None,
        max_bytes: int = MAX_DOCUMENT_BYTES,
    ) -> httpx.Response:
        """Return the response to one request; `content` is JSON in a POST, otherwise raw bytes.

        Raises:
            ServiceError: if the service refuses the request.
            UnsafeRequestError: if the response has more than `max_bytes` or a content encoding, or
                if the service gave out an id that is too long for a URL.
            ServiceUnreachableError: if the service is out of reach for too long.
            ValueError: if the `ticket` cannot be a credential.
        """
        request = self._request(method, path, content, ticket, wait, params)
        limit = _limit(max_bytes, len(content or b""), wait)
        with http_errors_as_unreachable():
            return await self._exchange(request, limit)

    async def send_message(
        self, path: str, content: bytes, ticket: str, max_bytes: Sequence[int]
    ) -> DocumentStream:
        """Send a message until it is accepted; return the documents that follow.

        `max_bytes` has the limit of each of them.

        Raises:
            ServiceError, UnsafeRequestError, ServiceUnreachableError: as `send`.
        """
        request = self._request("PUT", path, content, ticket, POLL_SECONDS if max_bytes else 0.0)
        limit = _limit(MAX_DOCUMENT_BYTES, len(content))
        with http_errors_as_unreachable():
            return await self._exchange_message(request, limit, _waiting_limits(max_bytes))

    async def post(
        self, path: str, content: bytes, ticket: str, max_bytes: Sequence[int]
    ) -> tuple[bytes, DocumentStream]:
        """Send JSON until it is accepted; return the first document, and those that follow.

        Raises:
            ServiceError, UnsafeRequestError, ServiceUnreachableError: as `send`.
        """
        request = self._request("POST", path, content, ticket, POLL_SECONDS)
        with http_errors_as_unreachable():
            return await self._exchange_post(request, _waiting_limits(max_bytes))

    def _request(
        self,
        method: str,
        path: str,
        content: bytes | None,
        ticket: str | None,
        wait: float,
        params: Mapping[str, int | str] | None = None,
    ) -> httpx.Request:
        kind = "application/json" if method == "POST" else "application/octet-stream"
        headers = {"content-type": kind} if content is not None else {}
        headers |= bearer_headers(ticket)
        query = urlencode({**(params or {}), **({"wait": wait} if wait else {})})
        silence = wait if method == "GET" else 0.0  # the headers acknowledge a message at once
        base = self._client.base_url
        try:
            return self._client.build_request(
                method,
                # Made at once: httpx parses a URL when it joins a path, and when it adds a query.
                base.copy_with(
                    path=base.raw_path.decode() + path.removeprefix("/"),
                    query=query.encode() or None,
                ),
                content=content,
                headers=headers,
                timeout=httpx.Timeout(
                    RESPONSE_TIMEOUT_SECONDS + silence, connect=CONNECT_SECONDS, pool=None
                ),
            )
        except httpx.InvalidURL as error:
            text = short_text(f"gave out an id that makes no URL: {error}")
            raise UnsafeRequestError(text) from cause_without_secrets(error)

    async def _send_once(self, request: httpx.Request, limit: ExchangeLimit) -> httpx.Response:
        async with exchange(limit.seconds):
            response = await self._client.send(request, stream=True)
            return await self._read_whole(response, limit.max_bytes)

    async def _open_stream(
        self, request: httpx.Request, limit: ExchangeLimit, limits: Sequence[ExchangeLimit]
    ) -> DocumentStream:
        """Return the documents of an accepting response, each within its one of `limits`.

        A response without documents, which may be a refusal, is read within `limit`.
        """
        async with exchange(limit.seconds):
            response = await self._client.send(request, stream=True)
            if limits and response.is_success:
                self.traffic.add_exchange(response)
            else:
                await self._read_whole(response, limit.max_bytes)
        return DocumentStream(response, self.traffic, limits)

    async def _open_answer(
        self, request: httpx.Request, limits: Sequence[ExchangeLimit]
    ) -> tuple[bytes, DocumentStream]:
        stream = await self._open_stream(request, _limit(MAX_DOCUMENT_BYTES), limits)
        try:
            answer = await stream.read_next()
        except BaseException:
            await stream.close()
            raise
        if answer is None:
            raise httpx.RemoteProtocolError("the response ended before its first document")
        return answer, stream

    async def _read_whole(self, response: httpx.Response, max_bytes: int) -> httpx.Response:
        try:
            body = await read_body(response, max_bytes)
        finally:
            await response.aclose()
        self.traffic.add_exchange(response)
        self.traffic.received += len(body)
        return check_response(whole_response(response, body))

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


def _limit(max_bytes: int, sent_bytes: int = 0, wait: float = 0.0) -> ExchangeLimit:
    """Return the limit of an exchange that the service may let wait."""
    line_seconds = (sent_bytes + max_bytes) / MIN_BYTES_PER_SECOND
    return ExchangeLimit(max_bytes, RESPONSE_TIMEOUT_SECONDS + wait + line_seconds)


def _waiting_limits(max_bytes: Sequence[int]) -> list[ExchangeLimit]:
    return [_limit(each, wait=POLL_SECONDS) for each in max_bytes]
