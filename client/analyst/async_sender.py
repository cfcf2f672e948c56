"""Sends an analyst's requests in an event loop, and repeats those that fail for the moment."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, ParamSpec, TypeVar

import httpx
from httpx_sse import EventSource

from client.analyst.requests import (
    HEAD_SECONDS,
    MAX_ANSWER_BYTES,
    MAX_LIST_ROWS,
    RECONNECT_SECONDS,
    ApiRequest,
    EventCursor,
    EventLimit,
    PagedRequest,
    client_options,
    refusing_unreadable,
)
from client.analyst.result_table import ResultTable
from client.errors import (
    AnalystClosedError,
    NotFoundError,
    UnreadableAnswerError,
    WrongStateError,
    check_response,
    http_errors_as_unreachable,
)
from client.http.address_and_retries import check_patience, repeated, shown_url
from client.http.exchange import Body, check_encoding, exchange, whole_response
from protocol.api.events import Event, EventKind

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSender:
    """Sends requests to the service at `url`, with an API key unless the service is open."""

    def __init__(
        self,
        url: str,
        key: str | None,
        patience: float,
        transport: httpx.AsyncBaseTransport | None,
        *,
        has_answered: bool = False,
    ) -> None:
        options = client_options(url, key, has_transport=transport is not None)
        self._http = httpx.AsyncClient(transport=transport, **options)
        self.shown_url = shown_url(url)
        self._patience = check_patience(patience)
        self.has_answered = has_answered  # before that, the address may be wrong

    async def send(self, request: ApiRequest[T]) -> T:
        """Return the answer to a request.

        Raises:
            AnalystClosedError: after `close`.
            ServiceError: if the service refuses it.
            ServiceUnreachableError: if the service is out of reach for too long.
        """
        self._check_open()
        tries = 0

        async def send_again(request: ApiRequest[T]) -> T:
            nonlocal tries
            tries += 1
            try:
                return await self._send_once(request)
            except NotFoundError:
                if request.method == "DELETE" and tries > 1:  # the answer before was lost
                    return request.parse(b"")
                raise

        with http_errors_as_unreachable():
            return await self._repeated(send_again)(request)

    def _repeated(self, function: Callable[P, T]) -> Callable[P, T]:
        return repeated(
            function, self._patience, announced=self.shown_url, is_known=lambda: self.has_answered
        )

    async def _send_once(self, request: ApiRequest[T]) -> T:
        response = await self._open(**request.arguments)
        with refusing_unreadable(response):
            return request.read(await self._read_whole(response))

    async def _open(self, **arguments: Any) -> httpx.Response:  # noqa: ANN401 - those of httpx
        """Return a response, whose body is not read yet."""
        request = self._http.build_request(**arguments)
        async with exchange(HEAD_SECONDS):
            response = await self._http.send(request, stream=True)
        self.has_answered = True
        return response

    async def _read_whole(self, response: httpx.Response) -> httpx.Response:
        async with aclosing(response):
            body = Body(response, MAX_ANSWER_BYTES)
            async for chunk in _chunks(response):
                body.add(chunk)
        return whole_response(response, body.content)

    async def rows(self, listing: PagedRequest[T]) -> AsyncIterator[T]:
        after, count = listing.after, 0
        while True:
            before = after
            rows, after = await self.send(listing.page(before))
            count += len(rows)
            if count > MAX_LIST_ROWS:
                reason = f"more than {MAX_LIST_ROWS:,} rows"
                raise UnreadableAnswerError.at(listing.path, reason=reason)
            for row in rows:
                yield row
            if listing.next_page(rows, before, after) is None:
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
                # A broken stream is opened again below.
                with suppress(httpx.TransportError), refusing_unreadable(source.response):
                    async for message in source.aiter_sse():
                        if (event := cursor.parse(message)) is not None:
                            yield event
                            if event.kind is EventKind.STUDY_ENDED:
                                return
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _open_stream(self, stack: AsyncExitStack, cursor: EventCursor) -> EventSource:
        """Return the stream of the events after `cursor`; `stack` closes it."""
        response = await self._open(method="GET", url=cursor.path, headers=cursor.headers)
        await stack.enter_async_context(aclosing(response))
        with refusing_unreadable(response):
            if not response.is_success:
                check_response(await self._read_whole(response))
            check_encoding(response)
        if "text/event-stream" not in response.headers.get("content-type", ""):
            raise UnreadableAnswerError.at(response.url)
        events, status = _within_limit(response), response.status_code
        headers, request = response.headers, response.request
        return EventSource(httpx.Response(status, headers=headers, request=request, content=events))

    @property
    def is_closed(self) -> bool:
        return self._http.is_closed

    def _check_open(self) -> None:
        if self.is_closed:
            raise AnalystClosedError

    async def close(self) -> None:
        await self._http.aclose()


async def _within_limit(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the bytes of a stream of events, none of which is too long."""
    limit = EventLimit()
    async for chunk in _chunks(response):
        limit.add(chunk)
        yield chunk


async def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the bytes of a body as they arrive; of a test's transport, they may all be here."""
    if response.is_closed:
        yield response.content
        return
    async for chunk in response.aiter_raw():
        yield chunk
