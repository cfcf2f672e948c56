"""Request bodies: their limits of size, time and media type.

A body that is too large is refused by its Content-Length or, without one, at the first chunk beyond
the limit; this module buffers nothing. `connection_limits.py` limits the headers of requests.
"""

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.api.messages import ProblemType
from server.errors import ProblemError, malformed
from server.http.problem_details import problem_response
from server.settings import Settings

OCTET_STREAM = "application/octet-stream"
_TIMEOUT_DETAIL = "the body of the request took too long"


def _too_large(max_bytes: int) -> str:
    return f"a body of at most {max_bytes} bytes is accepted here"


class BodyLimit:
    """Refuses bodies that are too large or too slow.

    The limit in bytes is `max_upload_bytes` for binary bodies of a PUT, `max_json_bytes` for all
    others. A body may pause for `body_idle_seconds` and take `body_seconds`.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, settings = Headers(scope=scope), self._settings
        # Routes with other methods read a whole document before they check its media type.
        is_binary = scope["method"] == "PUT" and _media_type(headers) == OCTET_STREAM
        max_bytes = settings.max_upload_bytes if is_binary else settings.max_json_bytes
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > max_bytes:
            problem = ProblemError(ProblemType.TOO_LARGE, _too_large(max_bytes))
            await problem_response(problem)(scope, receive, send)
            return
        received, is_complete, loop = 0, False, asyncio.get_running_loop()
        deadline = loop.time() + settings.body_seconds

        async def limited_receive() -> Message:
            nonlocal received, is_complete
            if is_complete:  # the next message is the client's disconnect, for which nothing waits
                return await receive()
            try:
                pause_end = loop.time() + settings.body_idle_seconds
                async with asyncio.timeout_at(min(deadline, pause_end)):
                    message = await receive()
            except TimeoutError:  # readers of a body let an HTTPException pass
                raise HTTPException(408, _TIMEOUT_DETAIL, headers={"Connection": "close"}) from None
            received += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if received > max_bytes:
                raise HTTPException(413, _too_large(max_bytes))
            return message

        await self._app(scope, limited_receive, send)


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def check_media_type(request: Request, expected: str) -> None:
    """Raise ProblemError if the media type of the body is not `expected`."""
    media_type = _media_type(request.headers)
    if media_type != expected:
        detail = f"{expected} expected, got {media_type or 'no content-type'}"
        raise ProblemError(ProblemType.WRONG_MEDIA_TYPE, detail)


async def read_body(request: Request, minimum: int, maximum: int) -> bytes:
    """Return a binary body of `minimum` to `maximum` bytes; read at most one chunk beyond that.

    Raises:
        ProblemError: if the body has another media type or size.
    """
    check_media_type(request, OCTET_STREAM)
    expected = f"{maximum}" if minimum == maximum else f"{minimum} to {maximum}"
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and not minimum <= int(declared) <= maximum:
        raise malformed(f"{expected} bytes expected, got {declared}")
    chunks, size = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > maximum:
            raise malformed(f"{expected} bytes expected, got more")
    if size < minimum:
        raise malformed(f"{expected} bytes expected, got {size}")
    return b"".join(chunks)
