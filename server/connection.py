"""What one connection may hold up: a head that does not end, or is too large, or is none.

uvicorn bounds how long a connection may idle after an answer, and nothing else: whoever sends
one byte of a head a minute keeps a connection for good, and httptools takes a head of any size.
Here a head has so many seconds from its first byte on (a new connection, from its beginning),
so many bytes and so many fields. A body is bounded where it is read (`limits.py`); one that
nobody reads, because its request was answered before, may go on for as long as one that is.
"""

from asyncio import BaseTransport, TimerHandle, Transport
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from protocol.messages import ProblemType
from server.limits import SAFE
from server.problems import respond
from server.refusals import Refusal


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds that a head may take, and an unread body; bytes and fields that a head may have."""

    head_seconds: float
    body_seconds: float
    head_bytes: int
    fields: int


class _HeadTooLargeError(Exception):
    """Stops the parser, which does not say why to its caller."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 within `bounds`: whoever goes beyond is told, and cut off."""

    def __init__(self, *, bounds: Bounds, **of_uvicorn: Any) -> None:  # noqa: ANN401
        super().__init__(**of_uvicorn)
        self._bounds = bounds
        self._timer: TimerHandle | None = None
        self._is_in_head = True  # or between two requests
        self._bytes = self._parsed = self._fields = 0

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin to wait for the first head."""
        super().connection_made(cast("Transport", transport))
        self._wait(self._bounds.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, as long as it may become a head or is of a body."""
        if self._is_in_head:
            self._bytes += len(data)
            if self._timer is None:
                self._wait(self._bounds.head_seconds)
        super().data_received(data)
        if self._is_in_head and self._bytes > self._bounds.head_bytes:
            self._refuse_large()

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._parsed = self._fields = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field; those behind a body count as well."""
        self._fields += 1
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Leave time to the body: whoever reads it counts it."""
        self._stop()
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Be ready for the next head."""
        self._stop()
        self._is_in_head, self._bytes = True, 0
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:  # uvicorn waits no more
            self._wait(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """Bound how long the rest of a body may come that nobody reads."""
        super().on_response_complete()
        if not self._is_in_head and not self.transport.is_closing():
            self._wait(self._bounds.body_seconds)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        bounds = self._bounds
        if self._parsed > bounds.head_bytes or self._fields > bounds.fields:
            self._refuse_large()
        else:
            self._refuse(Refusal(ProblemType.MALFORMED, msg, status=400))

    def _count(self, nbytes: int) -> None:
        self._parsed += nbytes
        if self._parsed > self._bounds.head_bytes or self._fields > self._bounds.fields:
            raise _HeadTooLargeError

    def _refuse_large(self) -> None:
        most = f"{self._bounds.fields} fields and {self._bounds.head_bytes} bytes"
        detail = f"a head of at most {most} is accepted here"
        self._refuse(Refusal(ProblemType.HEADERS_TOO_LARGE, detail))

    def _wait(self, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait(self._bounds.head_seconds)  # an answer is on its way: not now
        elif self._is_in_head and self._bytes:
            self._refuse(Refusal(ProblemType.TOO_SLOW, "the head of the request took too long"))
        else:
            self.transport.close()

    def _is_next_to_answer(self) -> bool:
        """Return whether what is said now would be taken for the answer to what came last."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        in_its_body = not self._is_in_head and not self.pipeline
        return in_its_body and not cycle.response_started

    def _refuse(self, refusal: Refusal) -> None:
        """Say why, and close the connection; only close it if an answer is on its way."""
        self._stop()
        if self.transport.is_closing():
            return
        if self._is_next_to_answer():
            answer = respond(refusal)
            named = {**SAFE, **answer.headers, "connection": "close"}
            fields = "".join(f"{name}: {value}\r\n" for name, value in named.items())
            head = STATUS_LINE[answer.status_code] + fields.encode("latin-1") + b"\r\n"
            self.transport.write(head + bytes(answer.body))
        self.transport.close()
