"""Sends an analyst's requests for a program without an event loop: each call waits for its answer.

The asynchronous sender works in a thread that all analysts of a process share. The thread ends with
the program.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Final, TypeVar

import httpx

from client.analyst.async_sender import AsyncSender
from client.analyst.requests import ApiRequest, EventCursor, PagedRequest
from client.analyst.result_table import ResultTable
from client.background_loop import BackgroundLoop, result_of
from protocol.api.events import Event

T = TypeVar("T")

_BACKGROUND: Final = BackgroundLoop("blindtally analyst")


class Sender:
    """An `AsyncSender` whose methods wait; arguments and errors are the same."""

    def __init__(
        self,
        url: str,
        key: str | None,
        patience: float,
        transport: httpx.AsyncBaseTransport | None,
        *,
        has_answered: bool = False,
    ) -> None:
        self._sender = AsyncSender(url, key, patience, transport, has_answered=has_answered)
        self.shown_url = self._sender.shown_url

    @property
    def is_closed(self) -> bool:
        return self._sender.is_closed

    def send(self, request: ApiRequest[T]) -> T:
        return result_of(_BACKGROUND.submit(self._sender.send(request)))

    def rows(self, listing: PagedRequest[T]) -> Iterator[T]:
        return _each(self._sender.rows(listing))

    def table(self, listing: PagedRequest[T]) -> ResultTable[T]:
        return result_of(_BACKGROUND.submit(self._sender.table(listing)))

    def events(self, cursor: EventCursor) -> Iterator[Event]:
        return _each(self._sender.events(cursor))

    def close(self) -> None:
        result_of(_BACKGROUND.submit(self._sender.close()))


def _each(rows: AsyncIterator[T]) -> Iterator[T]:
    """Yield the `rows`, which the background thread closes if no more of them are wanted."""

    async def following() -> tuple[T, ...]:
        async for row in rows:
            return (row,)
        return ()

    while arrived := result_of(_BACKGROUND.submit(following())):
        yield from arrived
