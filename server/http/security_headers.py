"""Headers that keep browsers from guessing media types and from caching."""

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
        self._headers = _packed(SECURITY_HEADERS)
        self._content_policy = _packed({"Content-Security-Policy": _API_CONTENT_POLICY})
        hsts = {"Strict-Transport-Security": f"max-age={hsts_seconds}"} if hsts_seconds else {}
        self._hsts = _packed(hsts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"]]
                own = dict(headers)
                added = self._headers
                if not own.get(b"content-type", b"").startswith(b"text/html"):
                    added = added + self._content_policy
                if scope["scheme"] == "https":
                    added = added + self._hsts
                headers += [header for header in added if header[0] not in own]
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, with_headers)


def _packed(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
