"""A device's way to the service: HTTP that survives lost connections and restarts.

Any request may get no answer, or an answer that says "not now". It is then repeated, with
waits that grow and scatter, until `patience` has passed: a service that is killed and
started again in the middle of a phase costs its devices time and nothing else. Where the
service has nothing to say yet it answers 202 when its own wait is over (a long poll), and
the question is asked again, for as long as it takes: deadlines are the service's business.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass
from functools import cache
from typing import Final

import httpx
import stamina

from client.problems import accept, retry_after, worth_repeating
from protocol.messages import RETRY_SECONDS

POLL_SECONDS: Final = 25.0  # how long the service may hold a question; it allows 30
LEAST_SECONDS: Final = 0.2  # between two questions, should the service hold none
ANSWER_SECONDS: Final = 30.0  # for an answer, beyond what the service was asked to wait
KEEP_SECONDS: Final = 60.0  # a connection, between two phases


def connect(url: str) -> httpx.AsyncClient:
    """Return one device's client of the service at `url`.

    Many devices in one process take a client each: httpx looks at every connection of a
    client, twice, whenever one is wanted or done with, which takes a pool of 160 seconds.
    """
    return httpx.AsyncClient(
        base_url=url.rstrip("/") + "/v1",
        verify=_trust(),
        limits=httpx.Limits(max_connections=1, keepalive_expiry=KEEP_SECONDS),
        timeout=httpx.Timeout(ANSWER_SECONDS, connect=10.0, pool=None),
        headers={"user-agent": "blindtally"},
    )


@cache
def _trust() -> ssl.SSLContext:
    """Return whom to trust: 20 ms to read, the same for all."""
    return httpx.create_ssl_context()


@dataclass(slots=True)
class Traffic:
    """Bytes of HTTP sent and received: bodies, and heads as HTTP/1.1 writes them."""

    sent: int = 0
    received: int = 0

    def add(self, response: httpx.Response) -> None:
        """Count an answer and the request that it answers."""
        request = response.request
        line = len(request.method) + len(request.url.raw_path) + len("  HTTP/1.1\r\n\r\n")
        self.sent += line + _head(request.headers) + len(request.content)
        status = len("HTTP/1.1 200 \r\n\r\n") + len(response.reason_phrase)
        self.received += status + _head(response.headers) + len(response.content)


def _head(headers: httpx.Headers) -> int:
    return sum(len(name) + len(value) + len(": \r\n") for name, value in headers.raw)


class Transport:
    """Requests of one device, repeated for up to `patience` seconds each."""

    def __init__(self, client: httpx.AsyncClient, patience: float = 120.0) -> None:
        self.traffic = Traffic()
        self._client = client
        self._patience = patience

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        ticket: str | None = None,
        wait: float = 0.0,
        params: dict[str, int] | None = None,
    ) -> httpx.Response:
        """Return the answer to one request; `content` is JSON for a POST, else raw bytes.

        Raises:
            ServiceError: if the service refuses it.
            httpx.TransportError: if there was no connection for as long as our patience.
        """
        kind = "application/json" if method == "POST" else "application/octet-stream"
        headers = {"content-type": kind} if content is not None else {}
        if ticket is not None:
            headers["authorization"] = f"Bearer {ticket}"
        request = self._client.build_request(
            method,
            path,
            content=content,
            headers=headers,
            params=dict(params or {}) | ({"wait": wait} if wait else {}),
            timeout=httpx.Timeout(ANSWER_SECONDS + wait, connect=10.0, pool=None),
        )
        async for attempt in stamina.retry_context(
            worth_repeating,
            attempts=None,
            timeout=self._patience,
            wait_max=RETRY_SECONDS,
            wait_jitter=0.5,
        ):
            with attempt:
                response = await self._client.send(request)
                self.traffic.add(response)
                return accept(response)
        raise AssertionError("the last attempt returns or raises")

    async def poll(self, path: str, ticket: str) -> httpx.Response:
        """Return the answer at `path` once there is one; while there is none it is a 202.

        Raises:
            ServiceError: if the service refuses the question.
            httpx.TransportError: if there was no connection for as long as our patience.
        """
        while True:
            asked = time.monotonic()
            response = await self.send("GET", path, ticket=ticket, wait=POLL_SECONDS)
            if response.status_code != httpx.codes.ACCEPTED:
                return response
            told = retry_after(response) or 0.0  # whole seconds, of which thousands have few
            soon = asked + LEAST_SECONDS - time.monotonic()
            await asyncio.sleep(max(soon, min(told, RETRY_SECONDS)))
