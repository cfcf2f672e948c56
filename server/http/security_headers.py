"""Headers that keep browsers from guessing media types and from caching."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


_API_CONTENT_POLICY = "default-src 'none'; frame-ancestors 'none'"  # only pages load resources


class SecurityHeaders:
    """Adds headers that keep browsers from guessing media types and from caching."""

    def __init__(self, app: ASGIApp, hsts_seconds: int = 0) -> None:
        self._app = app
        self._hsts = f"max-age={hsts_seconds}" if hsts_seconds else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if not headers.get("content-type", "").startswith("text/html"):
                    headers.setdefault("Content-Security-Policy", _API_CONTENT_POLICY)
                if self._hsts and scope["scheme"] == "https":
                    headers.setdefault("Strict-Transport-Security", self._hsts)
            await send(message)

        await self._app(scope, receive, with_headers)
