"""A transport to an application in memory that passes each part of a response on as it is sent.

httpx.ASGITransport returns a response once it is complete.
"""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx
from fastapi import FastAPI


class StreamingAsgiTransport(httpx.AsyncBaseTransport):
    """Transport to `app`, whose task is cancelled if its client closes a response early."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        sent: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        assert isinstance(request.stream, httpx.AsyncByteStream)
        chunks = aiter(request.stream)
        is_received = False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal is_received
            if is_received:
                await asyncio.Future()  # the disconnect, for which no server waits here
            chunk = await anext(chunks, None)
            is_received = chunk is None
            return {"type": "http.request", "body": chunk or b"", "more_body": not is_received}

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "server": (request.url.host, request.url.port),
            "client": ("127.0.0.1", 123),
            "root_path": "",
        }
        running = asyncio.create_task(self._app(scope, receive, sent.put))
        running.add_done_callback(lambda _: sent.put_nowait({"type": "end"}))
        start = await sent.get()
        if start["type"] == "end":
            await running  # raises its error
        return httpx.Response(
            start["status"], headers=start["headers"], stream=_Body(sent, running)
        )


class _Body(httpx.AsyncByteStream):
    def __init__(
        self, sent: asyncio.Queue[MutableMapping[str, Any]], running: asyncio.Task[None]
    ) -> None:
        self._sent, self._running = sent, running

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._sent.get())["type"] != "end":
            if body := message.get("body"):
                yield body

    async def aclose(self) -> None:
        self._running.cancel()  # as a server may do when the connection is lost
