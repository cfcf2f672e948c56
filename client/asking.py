"""Two ways to send what `client.calls` describes: waiting in a thread, or in an event loop.

Whatever passes by itself (a service that is out of reach, busy, or behind a proxy without it) is
asked again, for up to `patience` seconds. A stream of events that breaks off is opened again where
it did.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx
import stamina
from httpx_sse import EventSource, ServerSentEvent, aconnect_sse, connect_sse

from client.calls import Call, Listing, Page
from client.problems import WrongStateError, accept, worth_repeating
from client.tables import Table
from protocol.events import Event, EventKind
from protocol.messages import RETRY_SECONDS, RoundView

OVER: Final = ("finished", "stopped")
PATIENCE: Final = 30.0  # seconds
_ANSWER_SECONDS: Final = 30.0
_PAUSE: Final = 0.2  # seconds, before a stream that broke off is opened again
_attempts = partial(stamina.retry_context, worth_repeating, attempts=None, wait_max=RETRY_SECONDS)

T = TypeVar("T")


class Changes:
    """Tells which rounds of a study have changed since they were looked at last."""

    def __init__(self) -> None:
        self.settled = 0  # the last round that is over: no round before it changes any more
        self._last: RoundView | None = None

    def is_new(self, view: RoundView) -> bool:
        """Return whether a round is not as it was; `view` comes in order, first to last."""
        is_new = view != self._last
        self._last = view
        if view.state != "running":
            self.settled = view.number
        return is_new


class Events:
    """The events of a study, from the one after number `after` on: where a stream is resumed."""

    def __init__(self, study: str, after: int = 0) -> None:
        self.path = f"/studies/{quote(study, safe='')}/events"
        self.after = after

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that ask for the rest."""
        return {"Last-Event-ID": str(self.after)}

    def heard(self, said: ServerSentEvent) -> Event | None:
        """Return the event that was heard; None if it only said how soon to come back."""
        if not said.data:
            return None
        event = Event.model_validate_json(said.data)
        self.after = event.id
        return event


class Asking:
    """Requests to the service at `url`, each of which blocks until it is answered."""

    def __init__(
        self, url: str, key: str | None, patience: float, transport: httpx.BaseTransport | None
    ) -> None:
        self._http = httpx.Client(transport=transport, **_settings(url, key))
        self._patience = patience

    def ask(self, call: Call[T]) -> T:
        """Return the answer to a call.

        Raises:
            ServiceError: if the service refuses it.
            httpx.TransportError: if it is out of reach for as long as our patience.
        """
        for attempt in _attempts(timeout=self._patience):
            with attempt:
                return call.read(self._http.request(**_request(call)))
        raise AssertionError("the last attempt returns or raises")

    def walk(self, listing: Listing[T]) -> Iterator[T]:
        """Yield the rows of a list, page by page."""
        call: Call[Page[T]] | None = listing.first
        while call is not None:
            page = self.ask(call)
            yield from page.rows
            call = page.next

    def table(self, listing: Listing[T]) -> Table[T]:
        """Return all rows of a list."""
        return Table(self.walk(listing), listing.columns)

    def listen(self, events: Events) -> Iterator[Event]:
        """Yield what happens, as it happens, until the study ends.

        Raises:
            NotFoundError: if there is no such study.
            httpx.TransportError: if the service is out of reach for as long as our patience.
        """
        while True:
            with ExitStack() as stack:
                try:
                    source = self._open(stack, events)
                except WrongStateError:  # it is over, and has told everything
                    return
                with suppress(httpx.TransportError):  # it broke off: what is retried is opening it
                    for said in source.iter_sse():
                        if (event := events.heard(said)) is not None:
                            yield event
                            if event.kind is EventKind.STUDY_ENDED:
                                return
            time.sleep(_PAUSE)

    def _open(self, stack: ExitStack, events: Events) -> EventSource:
        """Return the stream of what is to be heard; it ends with `stack`."""
        for attempt in _attempts(timeout=self._patience):
            with attempt:
                opened = connect_sse(self._http, "GET", events.path, headers=events.headers)
                source = stack.enter_context(opened)
                if not source.response.is_success:
                    source.response.read()
                accept(source.response)
                return source
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncAsking:
    """What `Asking` is, in an event loop that goes on meanwhile."""

    def __init__(
        self,
        url: str,
        key: str | None,
        patience: float,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        self._http = httpx.AsyncClient(transport=transport, **_settings(url, key))
        self._patience = patience

    async def ask(self, call: Call[T]) -> T:
        """As `Asking.ask`."""
        async for attempt in _attempts(timeout=self._patience):
            with attempt:
                return call.read(await self._http.request(**_request(call)))
        raise AssertionError("the last attempt returns or raises")

    async def walk(self, listing: Listing[T]) -> AsyncIterator[T]:
        """As `Asking.walk`."""
        call: Call[Page[T]] | None = listing.first
        while call is not None:
            page = await self.ask(call)
            for row in page.rows:
                yield row
            call = page.next

    async def table(self, listing: Listing[T]) -> Table[T]:
        """As `Asking.table`."""
        return Table([row async for row in self.walk(listing)], listing.columns)

    async def listen(self, events: Events) -> AsyncIterator[Event]:
        """As `Asking.listen`."""
        while True:
            async with AsyncExitStack() as stack:
                try:
                    source = await self._open(stack, events)
                except WrongStateError:
                    return
                with suppress(httpx.TransportError):
                    async for said in source.aiter_sse():
                        if (event := events.heard(said)) is not None:
                            yield event
                            if event.kind is EventKind.STUDY_ENDED:
                                return
            await asyncio.sleep(_PAUSE)

    async def _open(self, stack: AsyncExitStack, events: Events) -> EventSource:
        async for attempt in _attempts(timeout=self._patience):
            with attempt:
                opened = aconnect_sse(self._http, "GET", events.path, headers=events.headers)
                source = await stack.enter_async_context(opened)
                if not source.response.is_success:
                    await source.response.aread()
                accept(source.response)
                return source
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _settings(url: str, key: str | None) -> dict[str, Any]:
    return {
        "base_url": url.rstrip("/") + "/v1",
        "timeout": _ANSWER_SECONDS,
        "headers": {"authorization": f"Bearer {key}"} if key else None,
    }


def _request(call: Call[Any]) -> dict[str, Any]:
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params,
        "content": call.content,
        "headers": call.headers,
    }
