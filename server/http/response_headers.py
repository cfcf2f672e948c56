"""Headers of responses: entity tags, media types that a request accepts, and caution for browsers.

A client that polls a document names the tag of the one that it has, and an unchanged document is
not sent again. A tag is strong, the SHA-256 of the response body. It saves transfer: the view of a
round with 100 cohorts is 60 kB.

    Accept: text/csv;q=0.5, application/*, image/png;q=0

accepts CSV with weight 0.5, JSON with weight 1, and no PNG. The most specific range that matches a
type decides [RFC 9110, 12.5.1].
"""

import re
from collections.abc import Callable, Coroutine, Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, TypeAlias

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Scope

_KEPT_TAGS = 256
_MAX_KEPT_BYTES = 2**14
ResponseDocs = dict[int | str, dict[str, Any]]
_ETAG = {
    "ETag": {
        "schema": {"type": "string"},
        "description": "Send the tag as If-None-Match to get 304 while the document is unchanged.",
    }
}
SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_API_CONTENT_POLICY = "default-src 'none'; frame-ancestors 'none'"  # only pages load resources
_WEIGHT = re.compile(r"(?:0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")
_WEIGHT_PARAMETER = re.compile(r";\s*q\s*=\s*([^;]*)", re.IGNORECASE)


def etag_responses(responses: ResponseDocs) -> ResponseDocs:
    """Return the documentation `responses` with an entity tag and the 304 response."""
    ok = responses.get(200, {}) | {"headers": _ETAG}
    unchanged = {"description": "Unchanged since the tag in If-None-Match.", "headers": _ETAG}
    return {**responses, 200: ok, 304: unchanged}


def tag_response(request: Request, response: Response) -> Response:
    """Return a response to GET with its tag, or 304 if the client has this document."""
    body = bytes(response.body)
    tag = (_kept_tag if len(body) <= _MAX_KEPT_BYTES else _tag)(body)
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    fields = ",".join(request.headers.getlist("if-none-match"))
    known = [each.strip().removeprefix("W/") for each in fields.split(",")]
    if tag in known or "*" in known:  # by weak comparison [RFC 9110]
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return response


def _tag(body: bytes) -> str:
    return f'"{sha256(body).hexdigest()[:32]}"'


_kept_tag = lru_cache(_KEPT_TAGS)(_tag)  # all devices of a study request one document


class ETagRoute(APIRoute):
    """Route that tags its responses to GET and answers 304 if the client has the document."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            response = await handle(request)
            is_document = request.method == "GET" and response.status_code == 200
            return tag_response(request, response) if is_document else response

        return answer


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


def accepted_ranges(scope: Scope, header: bytes = b"accept") -> dict[str, float]:
    """Return the weight of each range, with its parameters, in a request's fields of a header.

    A weight that is not a number from 0 to 1 counts as 0. Without a field everything is accepted.
    """
    fields = b",".join(value for name, value in scope["headers"] if name == header)
    weights = dict[str, float]()
    for entry in fields.decode("latin-1").split(","):
        weight = _WEIGHT_PARAMETER.search(entry)
        text = "1" if weight is None else weight[1].strip()
        if media_range := _WEIGHT_PARAMETER.sub("", entry).strip().lower():
            weights[media_range] = float(text) if _WEIGHT.fullmatch(text) else 0.0
    return weights or {"*/*": 1.0}


def prefers(scope: Scope, media_type: str, to: str) -> bool:
    """Return whether a request gives a type without parameters more weight than the type `to`."""
    ranges = accepted_ranges(scope)
    return _weight(ranges, media_type) > _weight(ranges, to)


def _weight(ranges: dict[str, float], media_type: str) -> float:
    matching = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
    weights = {media_range.partition(";")[0].strip(): each for media_range, each in ranges.items()}
    return next((weights[each] for each in matching if each in weights), 0.0)
