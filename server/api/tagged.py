"""Entity tags where clients poll: who has a document already is told so, and not sent it again.

A tag is strong, the SHA-256 of the very bytes, so it is right whatever a document is made of;
next to making it, hashing is nothing. What is saved is the way: 100 cohorts are 60 kB a look.
"""

from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

Documented = dict[int | str, dict[str, Any]]
_ETAG = {
    "ETag": {
        "schema": {"type": "string"},
        "description": "Send it back as If-None-Match, and hear only of what is new.",
    }
}


def tagged(responses: Documented) -> Documented:
    """Return the documentation of `responses` of a tagged route."""
    found = responses.get(200, {}) | {"headers": _ETAG}
    same = {"description": "As it was: If-None-Match has its tag.", "headers": _ETAG}
    return {**responses, 200: found, 304: same}


class Tagged(APIRoute):
    """A route whose answers to GET have an entity tag, and are not repeated to who has them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, its answers tagged."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            response = await handle(request)
            if request.method != "GET" or response.status_code != 200:
                return response
            tag = f'"{sha256(bytes(response.body)).hexdigest()[:32]}"'
            headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
            if _matches(request.headers.getlist("if-none-match"), tag):
                return Response(status_code=304, headers=headers)
            response.headers.update(headers)
            return response

        return answer


def _matches(fields: list[str], tag: str) -> bool:
    """Return whether one of the tags is `tag`, by weak comparison, as RFC 9110 has it here."""
    given = [each.strip().removeprefix("W/") for field in fields for each in field.split(",")]
    return tag in given or "*" in given
