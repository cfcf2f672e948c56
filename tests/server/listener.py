"""A follower of an event stream over ASGI, because httpx would wait for the stream's end."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from httpx_sse._decoders import SSEDecoder

from protocol.api.events import Event
from tests.server.harness import Served

_PATIENCE = 60.0


class Listener:
    """One open request: what came so far, and how to leave."""

    def __init__(self, served: Served, path: str, headers: dict[str, str]) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.text = ""
        self._asked = False
        self._came = asyncio.Event()
        self._left = asyncio.Event()
        parts = urlsplit(path)
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "server": ("test", 80),
            "client": ("127.0.0.1", 1),
        }
        self.task = asyncio.create_task(served.app(self._scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        self.text += message.get("body", b"").decode()
        self._came.set()

    @property
    def events(self) -> list[Event]:
        """Return the events that came, each checked to have its id and kind outside too."""
        decoder, events = SSEDecoder(), []
        for line in self.text.split("\n"):
            message = decoder.decode(line)
            if message is not None and message.data:
                event = Event.model_validate(json.loads(message.data))
                assert (message.id, message.event) == (str(event.id), event.kind.value)
                events.append(event)
        return events

    async def until(self, count: int = 0, text: str = "") -> list[Event]:
        """Wait for `count` events and for `text`; return the events."""
        async with asyncio.timeout(_PATIENCE):
            while len(self.events) < count or text not in self.text or self.status is None:
                self._came.clear()
                await self._came.wait()
        return self.events

    async def until_over(self) -> list[Event]:
        """Wait until the service ends the stream; return the events."""
        async with asyncio.timeout(_PATIENCE):
            await asyncio.shield(self.task)
        return self.events

    async def leave(self) -> None:
        self._left.set()
        with suppress(asyncio.CancelledError):
            await self.task


@asynccontextmanager
async def listening(
    served: Served, study: str, after: int | None = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Listener]:
    """Yield a listener to a study's events; it hangs up at the end."""
    sent = dict(headers or {}) | ({} if after is None else {"Last-Event-ID": str(after)})
    listener = Listener(served, f"/v1/studies/{study}/events", sent)
    try:
        yield listener
    finally:
        await listener.leave()
