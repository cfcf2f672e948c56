"""What the paths have in common: parameters, media types, and their documentation."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request
from fastapi import Path as InPath

from server.limits import OCTETS, check_media_type
from server.logs import concerning
from server.refusals import not_found

T = TypeVar("T")
_LONGEST_ID = 64
Wait = Annotated[
    float,
    Query(ge=0, le=30, description="Seconds to wait for the answer if there is none yet."),
]
RoundNumber = Annotated[int, InPath(ge=1, le=2**31 - 1)]
CohortNumber = Annotated[int, InPath(ge=0, le=2**31 - 1)]


def _is_id(text: str) -> bool:
    return len(text) <= _LONGEST_ID and text.isascii() and text.isalnum()


async def _study(study: str) -> str:
    """Return the study's id if it could be one: what never was one is not looked up."""
    if not _is_id(study):
        raise not_found("study")
    concerning(study=study)
    return study


async def _participant(participant: str) -> str:
    if not _is_id(participant):
        raise not_found("participant")
    return participant


StudyId = Annotated[str, Depends(_study)]
ParticipantId = Annotated[str, Depends(_participant)]


def first_of(found: Sequence[T], limit: int) -> tuple[tuple[T, ...], T | None]:
    """Return a page, and where the next begins: after its last, or None if nothing is left."""
    shown = tuple(found[:limit])
    return shown, shown[-1] if len(found) > limit else None


async def json_only(request: Request) -> None:
    """Refuse a body that does not say it is JSON."""
    check_media_type(request, "application/json")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of a path that may refuse with `statuses`."""
    slow = (408,) if 413 in statuses else ()  # whatever reads a body
    every = (*statuses, *slow, 500, 503)
    return {status: {"description": _MEANING[status]} for status in every}


_MEANING = {
    429: "Too many requests, or too many refused ones: come back after Retry-After.",
    400: "The body is not JSON, or ended too early.",
    401: "The ticket is missing or not this participant's.",
    403: "The registrar did not sign this identity, or it is barred from the study.",
    404: "No such study, round, cohort or participant.",
    408: "The body did not come to its end in time.",
    409: "Not now: another phase or state, or other content than before. See `type`.",
    410: "The cohort failed or went on without this participant.",
    413: "The body is too large.",
    415: "The body is of another media type.",
    422: "Malformed: `errors` lists every fault of a document.",
    500: "A fault of the service.",
    503: "The database is busy or away: nothing was changed; try again after Retry-After.",
}

OCTETS_IN: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}},
    }
}
OCTETS_OUT: dict[str, Any] = {
    "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}}
}
