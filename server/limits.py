"""What is refused before it is read, what every answer carries, and what is cut off.

A body larger than its kind may be is refused by its Content-Length, or, without one, at the
first chunk that goes too far; nothing is buffered here. Routes that know the exact size of
what they expect read with `read_body`, which stops as early. One that falls silent, or takes too
long in all, is refused as well, and its connection closed. Heads are bounded in `connection.py`.
"""

import asyncio
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.messages import ProblemType
from server.problems import respond
from server.refusals import Refusal, malformed

OCTETS = "application/octet-stream"
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NO_PAGE = "default-src 'none'; frame-ancestors 'none'"  # what is no page loads nothing
_SLOW = "the body of the request took too long"


def _too_large(most: int) -> str:
    return f"a body of at most {most} bytes is accepted here"


class BodyLimit:
    """Refuses bodies above `most_octets` (binary, of a PUT) or `most_json` (all others) bytes."""

    def __init__(
        self,
        app: ASGIApp,
        most_octets: int,
        most_json: int,
        silence: float = 20.0,
        seconds: float = 300.0,
    ) -> None:
        self._app = app
        self._most_octets = most_octets
        self._most_json = most_json
        self._silence = silence  # seconds between two pieces of a body, at most
        self._seconds = seconds  # for all of it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting what it sends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # Other methods read documents, whole and before they look at the media type.
        is_binary = scope["method"] == "PUT" and _media_type(headers) == OCTETS
        most = self._most_octets if is_binary else self._most_json
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > most:
            answer = respond(Refusal(ProblemType.TOO_LARGE, _too_large(most)))
            await answer(scope, receive, send)
            return
        seen, is_whole, loop = 0, False, asyncio.get_running_loop()
        last = loop.time() + self._seconds

        async def counted() -> Message:
            nonlocal seen, is_whole
            if is_whole:  # what is awaited now is the client's leaving, which has no end
                return await receive()
            try:
                async with asyncio.timeout_at(min(last, loop.time() + self._silence)):
                    message = await receive()
            except TimeoutError:  # an HTTPException passes through whoever reads the body
                raise HTTPException(408, _SLOW, headers={"Connection": "close"}) from None
            seen += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if seen > most:
                raise HTTPException(413, _too_large(most))
            return message

        await self._app(scope, counted, send)


class SafeHeaders:
    """Adds to every answer the headers that keep browsers from guessing and keeping."""

    def __init__(self, app: ASGIApp, hsts_seconds: int = 0) -> None:
        self._app = app
        self._hsts = f"max-age={hsts_seconds}" if hsts_seconds else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and the answer back with its headers."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE.items():
                    headers.setdefault(name, value)
                if not headers.get("content-type", "").startswith("text/html"):
                    headers.setdefault("Content-Security-Policy", _NO_PAGE)
                if self._hsts and scope["scheme"] == "https":
                    headers.setdefault("Strict-Transport-Security", self._hsts)
            await send(message)

        await self._app(scope, receive, with_headers)


class LastWord:
    """Answers whom a shutdown cuts off, with a refusal that says to come again."""

    def __init__(self, app: ASGIApp, is_stopping: Callable[[], bool]) -> None:
        self._app = app
        self._is_stopping = is_stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; answer it if it is cancelled before it has an answer."""
        is_open = scope["type"] == "http"

        async def noting(message: Message) -> None:
            nonlocal is_open
            is_open = False
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            if not (is_open and self._is_stopping()):
                raise
            refusal = Refusal(ProblemType.UNAVAILABLE, "the service is stopping: try again")
            await respond(refusal)(scope, receive, send)


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def check_media_type(request: Request, expected: str) -> None:
    """Refuse a body that does not say it is of the `expected` type.

    Raises:
        Refusal: if it does not.
    """
    media_type = _media_type(request.headers)
    if media_type != expected:
        detail = f"{expected} expected, got {media_type or 'no content-type'}"
        raise Refusal(ProblemType.WRONG_MEDIA_TYPE, detail)


async def read_body(request: Request, least: int, most: int) -> bytes:
    """Return a binary body of `least` to `most` bytes, reading no more than that.

    Raises:
        Refusal: if it is of another media type or size.
    """
    check_media_type(request, OCTETS)
    wanted = f"{most}" if least == most else f"{least} to {most}"
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and not least <= int(declared) <= most:
        raise malformed(f"{wanted} bytes expected, got {declared}")
    chunks, size = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            raise malformed(f"{wanted} bytes expected, got more")
    if size < least:
        raise malformed(f"{wanted} bytes expected, got {size}")
    return b"".join(chunks)
