"""Response to a message of a device: an acknowledgement, and the documents that follow.

The headers are sent once the message is committed, so they acknowledge it. Each document that the
device receives next is in the body as soon as it exists. The body ends early if the wait is over or
a document is refused. Then the device asks for the document itself, and learns the reason.
"""

from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TypeAlias

from fastapi import Response
from starlette.types import Receive, Scope, Send

from protocol.api.messages_outside_sums import frame_document, frame_length
from server.api.dependencies import PendingError
from server.db.database_errors import UNAVAILABLE_ERRORS
from server.errors import ProblemError
from server.http.request_bodies import OCTET_STREAM

_MAX_COPIED_BYTES = 2**14
DocumentReader: TypeAlias = Callable[[float], Awaitable[bytes]]  # takes the seconds to wait


class DocumentStream(Response):
    """Response with the documents `known`, and those that `readers` return within `wait` seconds.

    A reader raises PendingError or ProblemError if a GET would not return its document.
    """

    # Without a length, which is unknown; nginx passes each document on as it comes.
    _HEADERS = ((b"content-type", OCTET_STREAM.encode()), (b"x-accel-buffering", b"no"))

    def __init__(
        self,
        known: Sequence[bytes],
        readers: Sequence[DocumentReader],
        wait: float,
        status_code: int = 200,
    ) -> None:
        self.status_code = status_code
        self._known, self._readers, self._wait = known, readers, wait

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        start = {"status": self.status_code, "headers": self._HEADERS}
        await send({"type": "http.response.start", **start})
        deadline, body = monotonic() + self._wait, b"".join(map(frame_document, self._known))

        async def send_part(part: bytes) -> None:
            if part:
                await send({"type": "http.response.body", "body": part, "more_body": True})

        for place, read in enumerate(self._readers):
            # Documents that exist at the same time are sent together.
            document = await _read(read, 0.0) if place else None
            if document is None:
                await send_part(body)
                body, document = b"", await _read(read, deadline - monotonic())
            if document is None:
                break
            if len(document) <= _MAX_COPIED_BYTES:
                body += frame_document(document)
                continue
            # All devices of a cohort receive one roster, of which none needs a copy.
            await send_part(body + frame_length(document))
            await send_part(document)
            body = b""
        await send({"type": "http.response.body", "body": body})


async def _read(read: DocumentReader, wait: float) -> bytes | None:
    """Return a document, or None if a GET would not return it within `wait` seconds."""
    try:
        return await read(max(0.0, wait))
    except (PendingError, ProblemError, *UNAVAILABLE_ERRORS):
        return None
