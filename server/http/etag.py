"""Entity tags for documents that clients poll: an unchanged document is not sent again.

A tag is strong, the SHA-256 of the response body. It saves transfer: the view of a round with 100
cohorts is 60 kB.
"""

from collections.abc import Callable, Coroutine
from functools import lru_cache
from hashlib import sha256
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

_KEPT_TAGS = 256
_MAX_KEPT_BYTES = 2**14
ResponseDocs = dict[int | str, dict[str, Any]]
_ETAG = {
    "ETag": {
        "schema": {"type": "string"},
        "description": "Send the tag as If-None-Match to get 304 while the document is unchanged.",
    }
}


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
