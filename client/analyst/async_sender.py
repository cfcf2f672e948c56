"""Sends an analyst's requests in an event loop, and repeats those that fail for the moment."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import ParamSpec, TypeVar

import httpx
from httpx_sse import EventSource, aconnect_sse

from client.analyst.requests import (
    RECONNECT_SECONDS,
    ApiRequest,
    EventCursor,
    PagedRequest,
    client_options,
)
from client.analyst.result_table import ResultTable
from client.connection import check_patience, repeated, shown_url
from client.errors import (
    AnalystClosedError,
    UnreadableAnswerError,
    WrongStateError,
    check_response,
    http_errors_as_unreachable,
)
from protocol.api.events import Event, EventKind

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSender:
    """Sends requests to the service at `url`, with an API key unless the service is open."""

    def __init__(
        self, url: str, key: str | None, patience: float, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._http = httpx.AsyncClient(transport=transport, **client_options(url, key))
        self.shown_url = shown_url(url)
        self._patience = check_patience(patience)

    async def send(self, request: ApiRequest[T]) -> T:
        """Return the answer to a request.

        Raises:
            AnalystClosedError: after `close`.
            ServiceError: if the service refuses it.
            ServiceUnreachableError: if the service is out of reach for too long.
        """
        self._check_open()
        with http_errors_as_unreachable():
            return await self._repeated(self._send_once)(request)

    def _repeated(self, function: Callable[P, T]) -> Callable[P, T]:
        return repeated(function, self._patience, announced=self.shown_url)

    async def _send_once(self, request: ApiRequest[T]) -> T:
        return request.read(await self._http.request(**request.arguments))

    async def rows(self, listing: PagedRequest[T]) -> AsyncIterator[T]:
        after = listing.after
        while True:
            rows, after = await self.send(listing.page(after))
            for row in rows:
                yield row
            if after is None:
                return

    async def table(self, listing: PagedRequest[T]) -> ResultTable[T]:
        rows = [row async for row in self.rows(listing)]
        return ResultTable(rows, listing.columns, listing.threshold, listing.row_type)

    async def events(self, cursor: EventCursor) -> AsyncIterator[Event]:
        """Yield events as they happen, until the study ends.

        Raises:
            AnalystClosedError: after `close`.
            NotFoundError: if the study does not exist.
            ServiceUnreachableError: if the service is out of reach for too long.
        """
        while True:
            self._check_open()
            async with AsyncExitStack() as stack:
                try:
                    with http_errors_as_unreachable():
                        source = await self._repeated(self._open_stream)(stack, cursor)
                except WrongStateError:  # the study has ended, and all its events were received
                    return
                with suppress(httpx.TransportError):  # a broken stream is opened again below
                    async for message in source.aiter_sse():
                        if (event := cursor.parse(message)) is not None:
                            yield event
                            if event.kind is EventKind.STUDY_ENDED:
                                return
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _open_stream(self, stack: AsyncExitStack, cursor: EventCursor) -> EventSource:
        """Return the stream of the events after `cursor`; `stack` closes it."""
        stream = aconnect_sse(self._http, "GET", cursor.path, headers=cursor.headers)
        source = await stack.enter_async_context(stream)
        if not source.response.is_success:
            await source.response.aread()
        check_response(source.response)
        if "text/event-stream" not in source.response.headers.get("content-type", ""):
            raise UnreadableAnswerError.at(source.response.url)
        return source

    @property
    def is_closed(self) -> bool:
        return self._http.is_closed

    def _check_open(self) -> None:
        if self.is_closed:
            raise AnalystClosedError

    async def close(self) -> None:
        await self._http.aclose()
