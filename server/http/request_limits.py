"""Limits of requests: size, time, memory and media type of a body, and requests in a minute.

A body that is too large is refused by its Content-Length or, without one, at the first chunk beyond
the limit; this module buffers nothing. The bodies of one sender that wait in memory, because they
are not complete or not stored yet, are together no larger than the largest body may be.
A proxy limits the headers of requests and the number of connections (`deploy/haproxy.cfg`).

A limit of requests has a key: an address, a credential or a token. It counts the events of each
clock minute. Those of the minute before count in proportion to the part of it that was less than a
minute ago, so a client gains nothing by waiting for the next minute. Counts of two minutes are
kept, and older ones forgotten all at once: looking for old ones among those of 10,000 devices takes
longer than their requests. Source: C. Desgats, "How we built rate limiting capable of scaling to
millions of domains" (Cloudflare, 2017).
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from math import inf
from time import monotonic

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope

from protocol.api.messages import ProblemType
from server.errors import ProblemError, malformed
from server.settings import Settings

OCTET_STREAM = "application/octet-stream"
# A study's document has some kilobytes. JSON is parsed in memory at several times its size.
MAX_JSON_BYTES = 256 * 2**10
# Each unknown name is an error that takes 15 microseconds of the event loop.
MAX_JSON_NAMES = 5_000
_NAME_END = re.compile(rb'"\s*:')
# A device that repeats lost packets pauses for seconds. One that is silent for longer has gone.
BODY_IDLE_SECONDS = 20.0
# The largest upload by default, 64 MiB, arrives in this time at 1.8 Mbit/s.
BODY_SECONDS = 300.0
_TIMEOUT_DETAIL = "the body of the request took too long"
_SECONDS = 60.0


class BodyMemory:
    """Bytes of the bodies of each sender that are in memory, or declared: at most `maximum`."""

    def __init__(self, maximum: int, sender_of: Callable[[Scope], str]) -> None:
        self._maximum = maximum
        self._sender_of = sender_of
        self.nbytes_by_sender = Counter[str]()

    def reserve(self, scope: Scope, nbytes: int) -> None:
        """Count bytes of the sender of a request.

        Raises:
            HTTPException: if they are too many with those of its other requests.
        """
        sender = self._sender_of(scope)
        if self.nbytes_by_sender[sender] + nbytes > self._maximum:
            self._forget_if_zero(sender)
            detail = (
                "too many requests at once: the bodies that one credential, or one address without "
                f"a credential, sends at a time have at most {self._maximum} bytes"
            )
            raise HTTPException(429, detail)
        self.nbytes_by_sender[sender] += nbytes

    def release(self, scope: Scope, nbytes: int) -> None:
        """Undo `reserve` of this number of bytes in all."""
        sender = self._sender_of(scope)
        self.nbytes_by_sender[sender] -= nbytes
        self._forget_if_zero(sender)

    def _forget_if_zero(self, sender: str) -> None:
        if not self.nbytes_by_sender[sender]:
            del self.nbytes_by_sender[sender]


class LimitedBody:
    """Body of a request, with limits of its size and its time; `received` counts its bytes.

    The limit in bytes is `max_upload_bytes` for binary bodies of a PUT, `MAX_JSON_BYTES` for all
    others. A body may pause for `BODY_IDLE_SECONDS` and take `BODY_SECONDS`. Its bytes count in
    `memory` until `release`.
    """

    def __init__(
        self, scope: Scope, receive: Receive, settings: Settings, memory: BodyMemory
    ) -> None:
        # Routes with other methods read a whole document before they check its media type.
        self._is_binary = scope["method"] == "PUT" and media_type(scope) == OCTET_STREAM
        self._max_bytes = settings.max_upload_bytes if self._is_binary else MAX_JSON_BYTES
        self._names = 0
        self._scope, self._receive = scope, receive
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + BODY_SECONDS
        self._is_complete = False
        self._memory, self._reserved = memory, 0
        self.received = 0

    def admit(self) -> None:
        """Raise an error if the declared body is too large, alone or with others of its sender."""
        declared = header(self._scope, b"content-length")
        if declared is None or not declared.isdecimal():
            return
        if int(declared) > self._max_bytes:
            raise ProblemError(ProblemType.TOO_LARGE, self._too_large)
        self._reserve(int(declared))

    def release(self) -> None:
        """Count the body no longer: it is stored, refused, or was never read."""
        if self._reserved:
            self._memory.release(self._scope, self._reserved)
            self._reserved = 0

    def _reserve(self, nbytes: int) -> None:
        if nbytes > self._reserved:
            self._memory.reserve(self._scope, nbytes - self._reserved)
            self._reserved = nbytes

    async def receive(self) -> Message:
        if self._is_complete:  # the next message is the client's disconnect: nothing waits for it
            return await self._receive()
        try:
            pause_end = self._loop.time() + BODY_IDLE_SECONDS
            async with asyncio.timeout_at(min(self._deadline, pause_end)):
                message = await self._receive()
        except TimeoutError:  # readers of a body let an HTTPException pass
            raise HTTPException(408, _TIMEOUT_DETAIL, headers={"Connection": "close"}) from None
        self.received += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self.received > self._max_bytes:
            raise HTTPException(413, self._too_large)
        if not self._is_binary:
            self._names += len(_NAME_END.findall(message.get("body", b"")))
            if self._names > MAX_JSON_NAMES:
                raise HTTPException(413, f"a body has at most {MAX_JSON_NAMES:,} names of fields")
        self._reserve(self.received)
        return message

    async def discard(self) -> None:
        """Receive the rest of the body, store nothing of it, and wait until the client is gone."""
        while (message := await self._receive())["type"] != "http.disconnect":
            self.received += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)

    @property
    def _too_large(self) -> str:
        return f"a body of at most {self._max_bytes} bytes is accepted here"


def largest_body(settings: Settings) -> int:
    """Return the bytes of the largest body of any request."""
    return max(settings.max_upload_bytes, MAX_JSON_BYTES)


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first value of a header; `name` is in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None


def media_type(scope: Scope) -> str:
    """Return the media type of the body, without parameters; "" if there is none."""
    return (header(scope, b"content-type") or "").partition(";")[0].strip().lower()


def check_media_type(request: Request, expected: str) -> None:
    """Raise ProblemError if the media type of the body is not `expected`."""
    sent = media_type(request.scope)
    if sent != expected:
        detail = f"{expected} expected, got {sent or 'no content-type'}"
        raise ProblemError(ProblemType.WRONG_MEDIA_TYPE, detail)


async def read_body(request: Request, minimum: int, maximum: int) -> bytes:
    """Return a binary body of `minimum` to `maximum` bytes; read at most one chunk beyond that.

    Raises:
        ProblemError: if the body has another media type or size.
    """
    check_media_type(request, OCTET_STREAM)
    expected = f"{maximum}" if minimum == maximum else f"{minimum} to {maximum}"
    declared = header(request.scope, b"content-length")
    if declared is not None and declared.isdecimal() and not minimum <= int(declared) <= maximum:
        raise malformed(f"{expected} bytes expected, got {declared}")
    body = await read_all(request, maximum)
    if len(body) > maximum:
        raise malformed(f"{expected} bytes expected, got more")
    if len(body) < minimum:
        raise malformed(f"{expected} bytes expected, got {len(body)}")
    return body


async def read_all(request: Request, maximum: float = inf) -> bytes:
    """Return the body of a request, or its first chunks once they are more than `maximum` bytes.

    The request, which lives as long as the response, does not keep the body.
    """
    chunks, size, is_complete = list[bytes](), 0, False
    while size <= maximum and not is_complete:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        is_complete = not message.get("more_body", False)
    return b"".join(chunks)


class RateLimit:
    """At most `maximum` events per minute and key."""

    __slots__ = ("_maximum", "_minute", "before", "counts")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._minute = 0
        self.counts, self.before = dict[str, int](), dict[str, int]()  # of it, of the one before

    def hit(self, key: str = "") -> bool:
        """Count an event and return True, unless there were too many."""
        if not self.allows(key):
            return False
        self.counts[key] = self.counts.get(key, 0) + 1
        return True

    def allows(self, key: str = "") -> bool:
        """Return whether `hit` would return True."""
        minute, seconds = divmod(monotonic(), _SECONDS)
        if minute != self._minute:
            self.before = self.counts if minute == self._minute + 1 else {}
            self.counts, self._minute = {}, int(minute)
        before = int(self.before.get(key, 0) * (1 - seconds / _SECONDS))
        return before + self.counts.get(key, 0) < self._maximum
