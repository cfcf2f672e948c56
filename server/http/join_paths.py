"""Application that lets strangers take part in the studies of an open service, and do nothing else.

    https://192.168.1.5:4433/TOKEN/join/5f3a...     is answered as    /join/5f3a...

An open service is for its own machine. This application is for its other machines' browsers: it
passes on the page on which a browser becomes a device, its files, and the two requests of a device,
all below a random token. Every other request gets the same 404. What it passes on goes
through the layer of all requests, so the limits of sizes, times and memory hold.
"""

import re
from hmac import compare_digest
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

_ID: Final = "[0-9A-Za-z]{1,64}"
_ALLOWED: Final = re.compile(
    rf"(?:GET|HEAD) (?:/join/{_ID}|/static/[a-z-]+\.(?:css|js|svg)|/v1/studies/{_ID}/rounds/open)"
    rf"|PUT /v1/studies/{_ID}/rounds/[0-9]{{1,10}}/devices/[0-9a-f]{{64}}/message",
    re.ASCII,
)


class JoinPaths:
    """The paths of `app` that a browser needs to take part, below the path of a secret `token`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request."""
        assert scope["type"] == "http"  # uvicorn is told to serve no other
        token, slash, names = scope["path"].removeprefix("/").partition("/")
        path = slash + names
        is_known = compare_digest(token.encode(), self._token)
        if not is_known or not _ALLOWED.fullmatch(f"{scope['method']} {path}"):
            await Response(status_code=404)(scope, receive, send)
            return
        await self._app({**scope, "path": path, "raw_path": path.encode()}, receive, send)
