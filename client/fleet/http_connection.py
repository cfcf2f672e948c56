"""HTTP client of a simulated device: one connection, by h11 on the streams of asyncio.

A request of httpx passes a pool, a backend for several event loops, and code for authentication and
redirects, none of which a device uses. Half of a fleet's processor time went there. So a fleet has
httpx's requests and responses only, and sends them here.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import h11
import httpx

from client.http.exchange import CONNECT_SECONDS
from client.http.transport import KEEPALIVE_SECONDS, device_options, http_client
from client.http_environment import tls_context

_READ_BYTES: Final = 2**16
_MAX_HEADER_BYTES: Final = 100 * 2**10  # as of httpx


def fleet_client(url: str) -> httpx.AsyncClient:
    """Return an HTTP client of the service at `url` for one device of a fleet.

    A service behind a proxy of the environment gets a client of httpx.

    Raises:
        ValueError: if `url` is not an http or https address.
    """
    options = device_options(url)
    return http_client(url) if options["proxy"] else _FleetClient(options)


class _FleetClient(httpx.AsyncClient):
    """Client that sends requests as they are, without redirects and hooks."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._connection = _Connection()
        super().__init__(transport=self._connection, **options)

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:  # noqa: ANN401
        if self.is_closed:
            raise RuntimeError("this client is closed")
        response = await self._connection.handle_async_request(request)
        response.request = request
        if not options.get("stream"):
            await response.aread()
        return response


class _Connection(httpx.AsyncBaseTransport):
    """One connection, which is opened when a request needs it, and used again.

    Only one request is under way. A new one closes the connection if the response before was not
    read to its end, or if the service has sent anything since.
    """

    def __init__(self) -> None:
        self._http = _new_parser()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._body: _Body | None = None  # of the last response
        self._read_seconds: float | None = None  # limit of each read
        self._last_used = 0.0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return the response, whose body is read as it arrives.

        Raises:
            httpx.TransportError: if the connection is lost, or the response is not HTTP.
        """
        with _transport_errors(request):
            if not await self._is_ready():
                await self._open(request.url)
            self._read_seconds = request.extensions["timeout"]["read"]
            self._send(request)
            event = await self._next_event()
            while isinstance(event, h11.InformationalResponse):
                event = await self._next_event()
        assert isinstance(event, h11.Response)  # h11 refuses any other
        self._body = _Body(self, request)
        return httpx.Response(
            event.status_code,
            headers=event.headers.raw_items(),
            stream=self._body,
            extensions={"reason_phrase": event.reason},
        )

    async def _open(self, url: httpx.URL) -> None:
        self._drop()
        is_tls = url.scheme == "https"
        port = url.port or (443 if is_tls else 80)
        tls: ssl.SSLContext | None = tls_context() if is_tls else None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._reader, self._writer = await asyncio.open_connection(url.host, port, ssl=tls)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {CONNECT_SECONDS:g} s") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: of a name that cannot exist
            raise httpx.ConnectError(str(error)) from error
        self._http = _new_parser()

    async def _is_ready(self) -> bool:
        """Return whether the last response was read, and nothing has arrived since.

        Meanwhile other devices that are ready send too, so that their messages share a commit.
        """
        is_done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if self._reader is None or not is_done or self._http.trailing_data[0]:
            await asyncio.sleep(0)
            return False
        try:
            async with asyncio.timeout(0):
                await self._reader.read(1)
        except TimeoutError:
            self._http.start_next_cycle()
            return asyncio.get_running_loop().time() - self._last_used < KEEPALIVE_SECONDS
        except OSError:
            pass
        return False  # the end of the connection, or an answer to no request

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
            try:
                async with asyncio.timeout(self._read_seconds):
                    data = await self._reader.read(_READ_BYTES)
            except TimeoutError:
                raise httpx.ReadTimeout(f"no bytes within {self._read_seconds:g} s") from None
            self._last_used = asyncio.get_running_loop().time()
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

    def end_response(self, body: "_Body") -> None:
        """Close the connection, unless the response was read to its end, or another has begun."""
        if body is self._body and self._http.their_state is not h11.DONE:
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
        self._connection.end_response(self)


def _new_parser() -> h11.Connection:
    return h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADER_BYTES)


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
