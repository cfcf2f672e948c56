"""Limits of HTTP connections: their number, and time, bytes and fields of a request's headers.

uvicorn only limits how long a connection may be idle after a response, and httptools accepts
headers of any size. Here the time for the headers counts from their first byte, or from the start
of a new connection. A body that is not read, because its request was answered before, may take
`body_seconds`.

A body in chunks of a few bytes costs the parser a call for each of them, so the bytes around the
chunks may only be a few times those of the body.

A client may send requests before it has the responses to earlier ones (pipelining). uvicorn stores
any number of them, and reads more after each response. Here the next ones are read after the last
response. A connection with too many is closed, and so is one whose waiting requests have together
more header fields than one request may have: a field of 5 bytes takes 130 bytes of memory. A client
that reads nothing of a response for a minute is disconnected: asyncio waits for ever, also to close
the connection.

Each connection takes a file descriptor. Without any left, a process can neither accept connections
nor open its database, and cannot even log that. So there is a largest number of connections, and of
those of one address, so that one program cannot take them all. Others are closed at once.
"""

import fcntl
import termios
from asyncio import BaseTransport, TimerHandle, Transport
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from time import monotonic
from typing import Any, cast

import structlog
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from protocol.api.messages import ProblemType
from server.errors import ProblemError
from server.http.auth import rate_limit_key
from server.http.problem_details import problem_response
from server.http.security_headers import SECURITY_HEADERS
from server.telemetry.metrics import Metrics

_MAX_PIPELINED_REQUESTS = 32  # of a connection, which wait for the response to an earlier one
_MAX_CHUNKED_SIZE = 4  # bytes received for each byte of a body, and a few more
_FREE_CHUNKED_BYTES = 2**16
_UNREAD_SECONDS = 60.0  # in which a client that reads receives something, also through a proxy
_SOURCE_BITS = 64  # of the IPv6 network that counts as one address: that of a household
_INT = Struct("i")
_log = structlog.get_logger(__name__)


class ConnectionCounter:
    """Numbers of open connections, of which there are at most `maximum`, and half of one address.

    An IPv6 network counts as one address, because its owner can use any address in it. A proxy has
    the connections of many clients, so its address may have them all. When four fifths are open,
    and when connections are closed, the log has a warning a minute.
    """

    _LOG_SECONDS = 60.0

    def __init__(self, maximum: int, is_proxy: Callable[[str], bool], metrics: Metrics) -> None:
        self._maximum = maximum
        self._is_proxy = is_proxy
        self.metrics = metrics
        metrics.connections_limit.set(maximum)
        self._open = 0
        self._by_source = Counter[str]()
        self._next_log = 0.0

    def add(self, address: str) -> bool:
        """Count a connection, unless there are too many; return whether it was counted."""
        limit = self._maximum if self._is_proxy(address) else self._maximum // 2
        source = rate_limit_key(address, _SOURCE_BITS)
        is_counted = self._open < self._maximum and self._by_source[source] < limit
        if is_counted:
            self._open += 1
            self._by_source[source] += 1
            self.metrics.connections.set(self._open)
        else:
            self.metrics.refused_connections.inc()
        if (not is_counted or self._open > 0.8 * self._maximum) and monotonic() >= self._next_log:
            self._next_log = monotonic() + self._LOG_SECONDS
            event = "many connections" if is_counted else "connections closed: too many"
            _log.warning(event, open=self._open, maximum=self._maximum, address=address)
        return is_counted

    def remove(self, address: str) -> None:
        """Count a connection that was counted as closed."""
        source = rate_limit_key(address, _SOURCE_BITS)
        self._open -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]
        self.metrics.connections.set(self._open)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the headers, seconds for a body that is not read, and the open connections."""

    header_seconds: float
    body_seconds: float
    max_header_bytes: int
    max_header_fields: int
    counter: ConnectionCounter


class _LimitError(Exception):
    """Stops the parser, whose caller does not get the reason."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 within `limits`: refuses larger requests and closes the connection."""

    def __init__(self, *, limits: ConnectionLimits, **uvicorn_arguments: Any) -> None:  # noqa: ANN401
        super().__init__(**uvicorn_arguments)
        self._limits = limits
        self._timer: TimerHandle | None = None
        self._unread_timer: TimerHandle | None = None
        self._is_in_headers = True  # or between two requests
        self._received_bytes = self._parsed_bytes = self._fields = self._body_bytes = 0
        self.counted_address: str | None = None  # set before, if the connection counts already
        self._answered: RequestResponseCycle | None = None  # the first without a whole response

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", transport))
        address = str(self.client[0]) if self.client else ""
        if self.counted_address is None and self._limits.counter.add(address):
            self.counted_address = address
        if self.counted_address is None:
            self.transport.abort()
        else:
            self._start_timer(self._limits.header_seconds)

    @property
    def is_connected(self) -> bool:
        """Return whether `connection_made` was called."""
        return self.transport is not None

    def count_as_closed(self) -> None:
        """Count the connection as closed, once."""
        if self.counted_address is not None:
            self._limits.counter.remove(self.counted_address)
            self.counted_address = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_unread_timer()
        self.count_as_closed()
        super().connection_lost(exc)
        self.pipeline.clear()  # a request that still runs would keep them
        # uvicorn lets only the last request know, and an endless response would go on for ever.
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        if self._is_in_headers and self._timer is None:
            self._start_timer(self._limits.header_seconds)
        super().data_received(data)
        if self._is_in_headers:
            if self._received_bytes > self._limits.max_header_bytes:
                self._refuse_large()
        elif self._received_bytes > _MAX_CHUNKED_SIZE * self._body_bytes + _FREE_CHUNKED_BYTES:
            detail = "a body may not come in chunks of a few bytes"
            self._refuse(ProblemError(ProblemType.MALFORMED, detail, status=400))

    def on_message_begin(self) -> None:
        self._parsed_bytes = self._fields = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field; trailers after a body count as well."""
        self._fields += 1
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the timer; the reader of the body has its own."""
        self._stop_timer()
        self._is_in_headers = False
        self._received_bytes = self._body_bytes = 0
        super().on_headers_complete()
        if self._has_too_many_waiting():
            raise _LimitError

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._is_in_headers, self._received_bytes = True, 0
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:  # uvicorn stops its own timer
            self._start_timer(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """Limit the time for the rest of a body that is not read."""
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()
        if self.transport.is_closing():
            self._limit_unread()
        if not self._is_in_headers and not self.transport.is_closing():
            self._start_timer(self._limits.body_seconds)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_unread_timer()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._limit_unread()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        if self._is_too_large():
            self._refuse_large()
        else:
            self._refuse(ProblemError(ProblemType.MALFORMED, msg, status=400))

    def _has_too_many_waiting(self) -> bool:
        fields = sum(1 for cycle, _ in self.pipeline for _ in cycle.scope["headers"])
        is_many = len(self.pipeline) > _MAX_PIPELINED_REQUESTS
        return is_many or fields > self._limits.max_header_fields

    def _count(self, nbytes: int) -> None:
        self._parsed_bytes += nbytes
        if self._is_too_large():
            raise _LimitError

    def _is_too_large(self) -> bool:
        limits = self._limits
        return (
            self._parsed_bytes > limits.max_header_bytes or self._fields > limits.max_header_fields
        )

    def _refuse_large(self) -> None:
        limits = self._limits
        size = f"{limits.max_header_fields} fields and {limits.max_header_bytes} bytes"
        detail = f"headers of at most {size} are accepted here"
        self._refuse(ProblemError(ProblemType.HEADERS_TOO_LARGE, detail))

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _limit_unread(self) -> None:
        """Disconnect a client that has read nothing of what was sent before the timer ends."""
        if self.transport.get_write_buffer_size() and self._unread_timer is None:
            unread = _unread_bytes(self.transport)
            self._unread_timer = self.loop.call_later(_UNREAD_SECONDS, self._check_unread, unread)

    def _check_unread(self, before: int) -> None:
        self._unread_timer = None
        if _unread_bytes(self.transport) >= before:
            self.transport.abort()
        else:
            self._limit_unread()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_timer(
                self._limits.header_seconds
            )  # a response is being sent: check again later
        elif self._is_in_headers and self._received_bytes:
            self._refuse(
                ProblemError(ProblemType.TOO_SLOW, "the headers of the request took too long")
            )
        else:
            self.transport.close()
            self._limit_unread()

    def _can_respond(self) -> bool:
        """Return whether a response now would be the response to the last request."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        is_in_body = not self._is_in_headers and not self.pipeline
        return is_in_body and not cycle.response_started

    def _refuse(self, problem: ProblemError) -> None:
        """Send `problem`, unless a response is being sent, and close the connection."""
        self._stop_timer()
        self._limits.counter.metrics.problems.labels(problem.kind.value).inc()
        if self.transport.is_closing():
            return
        if self._can_respond():
            response = problem_response(problem)
            headers = {**SECURITY_HEADERS, **response.headers, "connection": "close"}
            fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            head = STATUS_LINE[response.status_code] + fields.encode("latin-1") + b"\r\n"
            self.transport.write(head + bytes(response.body))
        self.transport.close()
        self._limit_unread()


def _unread_bytes(transport: Transport) -> int:
    """Return the number of bytes that the client has not received, also of those in the kernel.

    The kernel takes more from the transport only when a third of its megabytes are free, so that of
    a slow client the transport alone shows nothing for minutes.
    """
    connection, waiting = transport.get_extra_info("socket"), bytearray(_INT.size)
    with suppress(OSError):  # another system than Linux, or a connection that is lost
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, waiting)
    return transport.get_write_buffer_size() + int(_INT.unpack(waiting)[0])
