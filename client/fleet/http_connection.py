"""HTTP client of a simulated device: one connection, by h11 on the streams of asyncio.

A request of httpx passes a pool, a backend for several event loops, and code for authentication and
redirects, none of which a device uses. Half of a fleet's processor time went there. So a fleet has
httpx's requests and responses only, and sends them here.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import h11
import httpx

from client.connection import service_url
from client.transport import CONNECT_SECONDS, http_client, http_options, tls_context

_READ_BYTES: Final = 2**16


def fleet_client(url: str) -> httpx.AsyncClient:
    """Return an HTTP client of the service at `url` for one device of a fleet.

    A service that needs a proxy of the environment or a password gets a client of httpx.

    Raises:
        ValueError: if `url` is not an http or https address.
    """
    address = httpx.URL(service_url(url))
    has_proxy = address.scheme in getproxies() and not proxy_bypass(address.host)
    if has_proxy or address.userinfo:
        return http_client(url)
    return _FleetClient(url)


class _FleetClient(httpx.AsyncClient):
    """Client that sends requests as they are, without redirects and hooks."""

    def __init__(self, url: str) -> None:
        self._connection = _Connection()
        super().__init__(transport=self._connection, **http_options(url))

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:  # noqa: ANN401
        response = await self._connection.handle_async_request(request)
        response.request = request
        if not options.get("stream"):
            await response.aread()
        return response


class _Connection(httpx.AsyncBaseTransport):
    """One connection, which is opened when a request needs it, and used again.

    Only one request is under way. A new one closes the connection if the response before was not
    read to its end.
    """

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return the response, whose body is read as it arrives.

        Raises:
            httpx.TransportError: if the connection is lost, or the response is not HTTP.
        """
        with _transport_errors(request):
            await asyncio.sleep(0)  # devices that are ready send together, and share a commit
            await self._open(request.url)
            self._send(request)
            event = await self._next_event()
            while isinstance(event, h11.InformationalResponse):
                event = await self._next_event()
        assert isinstance(event, h11.Response)  # h11 refuses any other
        return httpx.Response(
            event.status_code,
            headers=event.headers.raw_items(),
            stream=_Body(self, request),
            extensions={"reason_phrase": event.reason},
        )

    async def _open(self, url: httpx.URL) -> None:
        """Open the connection, unless it is open and ready for a request."""
        if self._is_ready():
            return
        self._drop()
        is_tls = url.scheme == "https"
        port = url.port or (443 if is_tls else 80)
        tls: ssl.SSLContext | None = tls_context() if is_tls else None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._reader, self._writer = await asyncio.open_connection(url.host, port, ssl=tls)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        self._http = h11.Connection(h11.CLIENT)

    def _is_ready(self) -> bool:
        """Return whether the last response was read, and the service has not closed since."""
        if self._reader is None or self._writer is None or self._reader.at_eof():
            return False
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return self._http.our_state is h11.IDLE and not self._writer.is_closing()

    def _send(self, request: httpx.Request) -> None:
        assert self._writer is not None  # `_open` has made it
        head = h11.Request(
            method=request.method, target=request.url.raw_path, headers=request.headers.raw
        )
        parts = [self._http.send(head)]
        if request.content:
            parts.append(self._http.send(h11.Data(data=request.content)))
        parts.append(self._http.send(h11.EndOfMessage()))
        self._writer.writelines(part for part in parts if part)

    async def _next_event(self) -> object:
        assert self._reader is not None  # a request was sent
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(_READ_BYTES)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise httpx.RemoteProtocolError(
                    "the service closed the connection without a response"
                )
            self._http.receive_data(data)
        return event

    async def body(self, request: httpx.Request) -> AsyncIterator[bytes]:
        """Yield the body of the response as it arrives."""
        with _transport_errors(request):
            while isinstance(event := await self._next_event(), h11.Data):
                yield bytes(event.data)

    def end_response(self) -> None:
        """Close the connection, unless the response was read to its end."""
        if self._http.their_state is not h11.DONE:
            self._drop()

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()  # a farewell of TLS would take until the service answers
        self._reader = self._writer = None

    async def aclose(self) -> None:
        self._drop()


class _Body(httpx.AsyncByteStream):
    """Body of a response."""

    def __init__(self, connection: _Connection, request: httpx.Request) -> None:
        self._connection, self._request = connection, request

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._connection.body(self._request)

    async def aclose(self) -> None:
        self._connection.end_response()


@contextmanager
def _transport_errors(request: httpx.Request) -> Iterator[None]:
    """Raise errors of the connection and of HTTP as those of httpx, with their request."""
    try:
        yield
    except httpx.TransportError as error:
        error.request = request
        raise
    except h11.LocalProtocolError as error:
        raise httpx.LocalProtocolError(str(error), request=request) from error
    except h11.RemoteProtocolError as error:
        raise httpx.RemoteProtocolError(str(error), request=request) from error
    except OSError as error:
        raise httpx.ReadError(str(error), request=request) from error
