"""Headers that keep browsers from guessing media types and from caching."""

from collections.abc import Iterable
from typing import Final, TypeAlias

SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_API_CONTENT_POLICY = "default-src 'none'; frame-ancestors 'none'"  # only pages load resources
RawHeader: TypeAlias = tuple[bytes, bytes]


class SecurityHeaders:
    """The headers of all responses, packed once."""

    def __init__(self, hsts_seconds: int = 0) -> None:
        api = SECURITY_HEADERS | {"Content-Security-Policy": _API_CONTENT_POLICY}
        hsts = {"Strict-Transport-Security": f"max-age={hsts_seconds}"} if hsts_seconds else {}
        self._added = {
            (is_page, is_secure): _packed((SECURITY_HEADERS if is_page else api) | of_scheme)
            for is_page in (True, False)
            for is_secure, of_scheme in ((True, hsts), (False, {}))
        }

    def added_to(self, headers: Iterable[RawHeader], scheme: str) -> list[RawHeader]:
        """Return the headers that a response with `headers` does not set itself."""
        own = dict(headers)
        is_page = own.get(b"content-type", b"").startswith(b"text/html")
        added = self._added[is_page, scheme == "https"]
        return [header for header in added if header[0] not in own]


def _packed(headers: dict[str, str]) -> list[RawHeader]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
