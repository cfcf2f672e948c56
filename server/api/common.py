"""Parameters, media types and documentation that several routes share."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Query, Request
from fastapi import Path as InPath

from server.errors import not_found
from server.http.request_bodies import OCTET_STREAM, check_media_type
from server.telemetry.logs import bind_log_fields

T = TypeVar("T")
_MAX_ID_CHARS = 64
MAX_WAIT_SECONDS: Final = 30
WaitSeconds = Annotated[
    float,
    Query(
        ge=0,
        le=MAX_WAIT_SECONDS,
        description="Seconds to wait for the answer if it does not exist yet.",
    ),
]
AfterRound = Annotated[
    int, Query(ge=0, le=2**31 - 1, description="Number of the last known round.")
]
RoundNumber = Annotated[int, InPath(ge=1, le=2**31 - 1)]
CohortNumber = Annotated[int, InPath(ge=0, le=2**31 - 1)]


def is_id(text: str) -> bool:
    return len(text) <= _MAX_ID_CHARS and text.isascii() and text.isalnum()


async def read_study(study: str) -> str:
    """Return the study's id; refuse a text that cannot be an id without a query."""
    if not is_id(study):
        raise not_found("study")
    bind_log_fields(study=study)
    return study


StudyId = Annotated[str, Depends(read_study)]


def paginate(rows: Sequence[T], limit: int) -> tuple[tuple[T, ...], T | None]:
    """Return the first `limit` rows, and the last of them if more rows follow, otherwise None."""
    page = tuple(rows[:limit])
    return page, page[-1] if len(rows) > limit else None


async def json_only(request: Request) -> None:
    """Refuse a body whose media type is not JSON."""
    check_media_type(request, "application/json")


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI documentation of a route that may refuse with `statuses`."""
    timeout = (408,) if 413 in statuses else ()  # of routes that read a body
    return {
        status: {"description": _DESCRIPTIONS[status]} for status in (*statuses, *timeout, 500, 503)
    }


_DESCRIPTIONS = {
    400: "The body is not JSON, or ended too early.",
    401: "The credential is missing or belongs to another participant.",
    403: "The registrar did not sign this identity, or the identity is barred from the study.",
    404: "No such study, round, cohort or participant.",
    408: "The body did not arrive in time.",
    409: "Not possible in this phase or state, or in conflict with an earlier message: see `type`.",
    410: "The cohort failed or went on without this participant.",
    413: "The body is too large.",
    415: "The body has the wrong media type.",
    422: "Malformed: `errors` lists every fault of a document.",
    429: "Too many requests, or too many refused requests: try again after Retry-After.",
    431: "The headers or the address are too large.",
    500: "A fault of the service.",
    503: "The database is busy or unavailable. Nothing was changed; try again after Retry-After.",
}

OCTET_STREAM_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {OCTET_STREAM: {"schema": {"type": "string", "format": "binary"}}},
    }
}
OCTET_STREAM_RESPONSE: dict[str, Any] = {
    "content": {OCTET_STREAM: {"schema": {"type": "string", "format": "binary"}}}
}
