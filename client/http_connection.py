"""Transport of httpx over one connection of HTTP/1.1: a device needs no more.

httpx's own transport selects a connection of a pool, a version of HTTP and an event loop's library
for each read and write. That takes almost three times the CPU of this one, which joins the same
parser (h11) with a connection of asyncio, TLS included. Responses and errors are the same. It has
no proxies, and needs asyncio's own event loop.

A connection is used again if the service left it open after a whole response and sent nothing
since. Reads pause while the parser has `_MAX_UNREAD_BYTES`, so that a long response takes little
memory.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeAlias

import h11
import httpx

_MAX_HEAD_BYTES: Final = 100 * 1024  # of a response: its status and headers
_MAX_UNREAD_BYTES: Final = 2**16
_WRITE_BYTES: Final = 2**16  # of a request, within one timeout
_NEXT_ADDRESS_SECONDS: Final = 0.25  # until a host's next address is tried as well (RFC 8305)

Origin: TypeAlias = tuple[bytes, bytes, int | None]  # scheme, host, port


class OneConnectionTransport(httpx.AsyncBaseTransport):
    """Requests over one connection, one after the other; unused for `keepalive` seconds, it ends.

    A request begins when the response to the one before is closed.
    """

    def __init__(self, tls: ssl.SSLContext, keepalive: float) -> None:
        self._tls = tls
        self._keepalive = keepalive
        self._turn = asyncio.Lock()  # held from a request to the end of its response
        self._connection: _Connection | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the response to a request, whose body is still to be read.

        Raises:
            httpx.TransportError: as httpx's own transport does.
        """
        await self._turn.acquire()
        try:
            timeouts = request.extensions.get("timeout", {})
            connection = await self._connect(request.url, timeouts.get("connect"))
            # Other devices of this process that are ready compute first, and all of them send
            # together: a server then stores their messages in shared transactions.
            await asyncio.sleep(0)
            await connection.send(request, timeouts.get("write"))
            head = await connection.receive_head(timeouts.get("read"))
        except BaseException:
            self._end_exchange()
            raise
        return httpx.Response(
            head.status_code,
            headers=head.headers.raw_items(),
            stream=_Body(connection, timeouts.get("read"), self._end_exchange),
            extensions={"http_version": b"HTTP/" + head.http_version, "reason_phrase": head.reason},
        )

    async def _connect(self, url: httpx.URL, seconds: float | None) -> "_Connection":
        """Return the connection to a URL's origin, a new one if there is none to use again."""
        origin, kept = (url.raw_scheme, url.raw_host, url.port), self._connection
        if kept is not None and kept.origin == origin and kept.restart(self._keepalive):
            return kept
        self._close()
        self._connection = await _Connection.open(origin, self._tls, seconds)
        return self._connection

    def _end_exchange(self) -> None:
        """Let the next request begin, over another connection if this one is in use."""
        if self._connection is not None and not self._connection.is_idle:
            self._close()
        self._turn.release()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def aclose(self) -> None:
        self._close()


class _Body(httpx.AsyncByteStream):
    """Body of a response; it must be closed before the transport sends another request."""

    def __init__(
        self, connection: "_Connection", seconds: float | None, on_close: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._seconds = seconds
        self._on_close = on_close
        self._is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while data := await self._connection.receive_data(self._seconds):
                yield data
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._on_close()


class _Connection(asyncio.Protocol):
    """A connection to `origin`: events of h11 from and to the bytes of a socket."""

    _socket: asyncio.Transport

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._loop = asyncio.get_running_loop()
        self._change: asyncio.Future[None] | None = None  # done when data or room for it arrives
        self._unread = 0  # bytes that the parser received since it last asked for some
        self._is_reading = self._can_write = True
        self._is_lost = False
        self._error: Exception | None = None  # by which the connection was lost
        self._idle_since = 0.0

    @classmethod
    async def open(
        cls, origin: Origin, tls: ssl.SSLContext, seconds: float | None
    ) -> "_Connection":
        """Return a new connection; raises httpx.ConnectError or httpx.ConnectTimeout."""
        scheme, host, port = origin
        is_secure = scheme == b"https"
        name = host.decode()
        try:
            async with asyncio.timeout(seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: cls(origin),
                    name,
                    port or (443 if is_secure else 80),
                    ssl=tls if is_secure else None,
                    happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS,
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:  # of TLS, too
            raise httpx.ConnectError(str(error)) from error
        return connection

    @property
    def is_idle(self) -> bool:
        """Return whether the last exchange is complete, and may be followed by another."""
        return (
            self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        ) and not self._is_lost

    def restart(self, keepalive: float) -> bool:
        """Return whether a request may be sent now, over a connection `is_idle` before."""
        is_old = self._loop.time() - self._idle_since > keepalive
        if is_old or self._is_lost or self._http.trailing_data != (b"", False):
            return False
        self._http.start_next_cycle()
        return True

    async def send(self, request: httpx.Request, seconds: float | None) -> None:
        """Send a request, or as much of it as the service reads before it closes the connection.

        Raises:
            httpx.LocalProtocolError: if the request is not HTTP.
            httpx.WriteTimeout: if a part of it takes longer than `seconds`.
        """
        content = await request.aread()
        try:
            head = self._http.send(
                h11.Request(
                    method=request.method, target=request.url.raw_path, headers=request.headers.raw
                )
            )
            body = self._http.send(h11.Data(content)) if content else b""
            end = self._http.send(h11.EndOfMessage())
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        message = memoryview(b"".join((head, body, end)))
        for start in range(0, len(message), _WRITE_BYTES):
            self._socket.write(message[start : start + _WRITE_BYTES])
            while not (self._can_write or self._is_lost):
                await self._wait(seconds, httpx.WriteTimeout)
            if self._is_lost:  # the service may have refused what it has not read
                return

    async def receive_head(self, seconds: float | None) -> h11.Response:
        """Return the status and the headers of the response.

        Raises:
            httpx.RemoteProtocolError: if it is not HTTP, or ends too early.
            httpx.ReadError: if the connection is lost.
            httpx.ReadTimeout: if nothing arrives for `seconds`.
        """
        while True:
            event = await self._next_event(seconds)
            if isinstance(event, h11.Response):
                return event

    async def receive_data(self, seconds: float | None) -> bytes:
        """Return the next part of the response's body, empty at its end; raises as above."""
        event = await self._next_event(seconds)
        if isinstance(event, h11.Data):
            return bytes(event.data)
        self._idle_since = self._loop.time()
        return b""

    async def _next_event(self, seconds: float | None) -> object:
        while True:
            has_begun = self._http.their_state is not h11.SEND_RESPONSE
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise self._failure(error, has_begun=has_begun) from error
            if event is not h11.NEED_DATA:
                return event
            self._unread = 0
            if not self._is_reading:
                self._is_reading = True
                self._socket.resume_reading()
            await self._wait(seconds, httpx.ReadTimeout)

    def _failure(self, error: h11.RemoteProtocolError, *, has_begun: bool) -> httpx.TransportError:
        if self._error is not None:
            return httpx.ReadError(str(self._error))
        if not has_begun and self._http.trailing_data == (b"", True):
            return httpx.RemoteProtocolError("the connection was closed without a response")
        return httpx.RemoteProtocolError(str(error))

    async def _wait(self, seconds: float | None, kind: type[httpx.TimeoutException]) -> None:
        """Wait until the connection changes; raises `kind` after `seconds`."""
        self._change = self._loop.create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._change
        except TimeoutError as error:
            raise kind(f"nothing was sent or received for {seconds:g} s") from error

    def _wake(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    def close(self) -> None:
        if not self._is_lost:
            self._socket.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "of TCP or TLS"
        transport.set_write_buffer_limits(0)  # a timeout of writing counts from the last progress
        self._socket = transport

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._unread += len(data)
        if self._is_reading and self._unread > _MAX_UNREAD_BYTES:
            self._is_reading = False
            self._socket.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._http.receive_data(b"")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost, self._error = True, exc
        self.eof_received()

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self._wake()
