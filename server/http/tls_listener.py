"""Listener for TLS connections, which count as open from the moment they are accepted.

With `create_server` nobody counts a connection before the end of its handshake, for which asyncio
waits a minute. So clients that send nothing could take all file descriptors of a process. Here a
handshake may take as long as the headers of a request.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

import structlog

from server.http.connection_limits import ConnectionLimits, LimitedHttpProtocol

_PAUSE_SECONDS = 1.0  # after no file descriptor was left
_log = structlog.get_logger(__name__)


class TlsListener:
    """Listener that accepts from `listener` until it is closed; `make_http` returns a protocol."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        limits: ConnectionLimits,
        make_http: Callable[[], LimitedHttpProtocol],
    ) -> None:
        self._listener, self._context = listener, context
        self._limits, self._make_http = limits, make_http
        listener.setblocking(False)
        self._handshakes = set[asyncio.Task[None]]()
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections, and end those whose handshake is not complete."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until all tasks have ended after `close`."""
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(self._listener)
            except OSError as error:
                _log.warning("connection not accepted", error=type(error).__name__)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if self._limits.counter.add(address):
                task = loop.create_task(self._shake_hands(connection, address))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
            else:
                connection.close()

    async def _shake_hands(self, connection: socket.socket, address: str) -> None:
        loop, http = asyncio.get_running_loop(), self._make_http()
        http.counted_address = address
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with suppress(OSError):  # also those of ssl; the connection is closed
                await loop.connect_accepted_socket(
                    lambda: http,
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=self._limits.header_seconds,
                )
        finally:
            if not http.is_connected:
                http.count_as_closed()
