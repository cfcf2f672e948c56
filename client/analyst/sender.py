# Generated from async_sender.py by `make generate`; do not edit.
"""Sends an analyst's requests in a thread, and repeats those that fail for the moment."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import ParamSpec, TypeVar

import httpx
from httpx_sse import EventSource, connect_sse

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


class Sender:
    """Sends requests to the service at `url`, with an API key unless the service is open."""

    def __init__(
        self, url: str, key: str | None, patience: float, transport: httpx.BaseTransport | None
    ) -> None:
        self._http = httpx.Client(transport=transport, **client_options(url, key))
        self.shown_url = shown_url(url)
        self._patience = check_patience(patience)

    def send(self, request: ApiRequest[T]) -> T:
        """Return the answer to a request.

        Raises:
            AnalystClosedError: after `close`.
            ServiceError: if the service refuses it.
            ServiceUnreachableError: if the service is out of reach for too long.
        """
        self._check_open()
        with http_errors_as_unreachable():
            return self._repeated(self._send_once)(request)

    def _repeated(self, function: Callable[P, T]) -> Callable[P, T]:
        return repeated(function, self._patience, announced=self.shown_url)

    def _send_once(self, request: ApiRequest[T]) -> T:
        return request.read(self._http.request(**request.arguments))

    def rows(self, listing: PagedRequest[T]) -> Iterator[T]:
        after = listing.after
        while True:
            rows, after = self.send(listing.page(after))
            yield from rows
            if after is None:
                return

    def table(self, listing: PagedRequest[T]) -> ResultTable[T]:
        rows = list(self.rows(listing))
        return ResultTable(rows, listing.columns, listing.threshold, listing.row_type)

    def events(self, cursor: EventCursor) -> Iterator[Event]:
        """Yield events as they happen, until the study ends.

        Raises:
            AnalystClosedError: after `close`.
            NotFoundError: if the study does not exist.
            ServiceUnreachableError: if the service is out of reach for too long.
        """
        while True:
            self._check_open()
            with ExitStack() as stack:
                try:
                    with http_errors_as_unreachable():
                        source = self._repeated(self._open_stream)(stack, cursor)
                except WrongStateError:  # the study has ended, and all its events were received
                    return
                with suppress(httpx.TransportError):  # a broken stream is opened again below
                    for message in source.iter_sse():
                        if (event := cursor.parse(message)) is not None:
                            yield event
                            if event.kind is EventKind.STUDY_ENDED:
                                return
            time.sleep(RECONNECT_SECONDS)

    def _open_stream(self, stack: ExitStack, cursor: EventCursor) -> EventSource:
        """Return the stream of the events after `cursor`; `stack` closes it."""
        stream = connect_sse(self._http, "GET", cursor.path, headers=cursor.headers)
        source = stack.enter_context(stream)
        if not source.response.is_success:
            source.response.read()
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

    def close(self) -> None:
        self._http.close()
