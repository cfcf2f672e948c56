"""Prefix of all paths, for a proxy that serves the service below one, as at example.org/statistics.

    public URL                          request                    route          link in a page
    https://example.org                 /studies/1                 /studies/1     /help
    https://example.org/statistics      /statistics/studies/1      /studies/1     /statistics/help

The prefix is the path of `Settings.public_url`. A proxy may also remove it from the requests that
it passes on. Routes know no prefix: links of pages and redirects get it.
"""

from contextvars import ContextVar
from urllib.parse import urlsplit

from starlette.types import Message, Scope, Send

_PREFIX: ContextVar[str] = ContextVar("path prefix", default="")


def path_prefix() -> str:
    """Return the prefix of the present request's service, such as "/statistics", or ""."""
    return _PREFIX.get()


def prefix_of(public_url: str | None) -> str:
    """Return the path of the public URL, which has no slash at its end."""
    return urlsplit(public_url or "").path


def without_prefix(scope: Scope, prefix: str) -> Scope:
    """Return the scope of a request below `prefix` as routes know it; note the prefix for links."""
    _PREFIX.set(prefix)
    path = scope["path"]
    if not prefix or not path.startswith(f"{prefix}/"):
        return {**scope, "path": "/"} if prefix and path == prefix else scope
    raw = scope.get("raw_path") or path.encode()
    return {**scope, "path": path[len(prefix) :], "raw_path": raw[len(prefix) :]}


def with_prefix(send: Send, prefix: str) -> Send:
    """Return a function that sends as `send` does, with the prefix in redirects to our paths."""
    if not prefix:
        return send

    async def send_prefixed(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*map(_prefixed, message["headers"])]
        await send(message)

    def _prefixed(header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        name, value = header
        is_ours = name == b"location" and value.startswith(b"/") and not value.startswith(b"//")
        return (name, prefix.encode() + value) if is_ours else header

    return send_prefixed
