"""Every refusal as problem+json (RFC 9457), with a status and a type to act on.

The parts below the API raise `Refusal`, which knows no HTTP; here each type gets its status
and title. What frameworks refuse on their own (paths, methods, documents) and what breaks
(a locked database, a fault of ours) is put in the same words. Details name what was wrong
with the request and never what is inside the service.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, cast

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from protocol.faults import worded
from protocol.messages import PROBLEM, Problem, ProblemType
from server.database import UNAVAILABLE, reason
from server.logs import concerning
from server.refusals import Fault, Refusal, malformed_all

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = 1
_MOST_SHOWN = 100  # characters
_log = structlog.get_logger(__name__)

STATUS = {
    ProblemType.NOT_FOUND: (404, "Not found"),
    ProblemType.NOT_AUTHORISED: (401, "Not authorised"),
    ProblemType.FORBIDDEN: (403, "Forbidden"),
    ProblemType.TOO_MANY: (429, "Too many requests"),
    ProblemType.MALFORMED: (422, "Malformed"),
    ProblemType.WRONG_MEDIA_TYPE: (415, "Wrong media type"),
    ProblemType.METHOD_NOT_ALLOWED: (405, "Method not allowed"),
    ProblemType.TOO_LARGE: (413, "Too large"),
    ProblemType.HEADERS_TOO_LARGE: (431, "Headers too large"),
    ProblemType.TOO_SLOW: (408, "Too slow"),
    ProblemType.WRONG_PHASE: (409, "Wrong phase"),
    ProblemType.CONFLICT: (409, "Conflict"),
    ProblemType.KEY_REUSED: (409, "Idempotency key reused"),
    ProblemType.WRONG_STATE: (409, "Wrong state"),
    ProblemType.NO_ROUND: (409, "No round takes devices"),
    ProblemType.ALREADY_COUNTED: (409, "Already counted"),
    ProblemType.OTHER_PLAN: (409, "Another plan"),
    ProblemType.BUDGET_SPENT: (409, "Privacy budget spent"),
    ProblemType.NOT_ENROLLED: (403, "Not enrolled"),
    ProblemType.BARRED: (403, "Barred"),
    ProblemType.COHORT_FAILED: (410, "The cohort failed"),
    ProblemType.LEFT_OUT: (410, "Left out"),
    ProblemType.UNAVAILABLE: (503, "Unavailable"),
    ProblemType.INTERNAL: (500, "Internal error"),
}
_OF_STATUS = {
    400: ProblemType.MALFORMED,
    404: ProblemType.NOT_FOUND,
    405: ProblemType.METHOD_NOT_ALLOWED,
    408: ProblemType.TOO_SLOW,
    413: ProblemType.TOO_LARGE,
    415: ProblemType.WRONG_MEDIA_TYPE,
}


_PASSING = frozenset({ProblemType.UNAVAILABLE, ProblemType.NO_ROUND, ProblemType.TOO_MANY})


def respond(
    refusal: Refusal, headers: Mapping[str, str] | None = None, retry_after: int = RETRY_AFTER
) -> Response:
    """Return `refusal` as a response; what passes by itself names `retry_after` seconds."""
    concerning(problem=refusal.kind.value)
    status, title = STATUS[refusal.kind]
    status = refusal.status or status
    problem = Problem(
        type=PROBLEM + refusal.kind,
        title=title,
        status=status,
        detail=refusal.detail,
        phase=refusal.phase,
        errors=None if refusal.errors is None else tuple(dict(**e) for e in refusal.errors),
    )
    all_headers = dict(headers or {})
    if refusal.kind is ProblemType.NOT_AUTHORISED:
        all_headers["WWW-Authenticate"] = "Bearer"
    if refusal.kind in _PASSING:
        all_headers.setdefault("Retry-After", str(retry_after))
    body = problem.model_dump_json(exclude_none=True)
    return Response(body, status, all_headers, MEDIA_TYPE)


def _passing(request: Request, refusal: Refusal) -> Response:
    """Return a refusal that may pass, and tells when: in the time that all who wait may need."""
    if refusal.kind not in _PASSING:
        return respond(refusal)
    return respond(refusal, retry_after=request.app.state.service.retry_after())


async def _refused(request: Request, error: Exception) -> Response:
    return _passing(request, cast("Refusal", error))


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer a document or parameter of the wrong form: every fault with its place."""
    faults = cast("RequestValidationError", error).errors()
    for fault in faults:
        if fault["type"] == "json_invalid":
            wrong = fault_at(fault["loc"], f"not JSON: {fault['ctx']['error']}")
            return respond(malformed_all([wrong], 400))
    asked = await asyncio.to_thread(_asked, request)  # the first time, it takes a quarter second
    return respond(
        malformed_all([fault_at(each["loc"], worded(each, asked)) for each in faults], 422)
    )


def fault_at(where: Iterable[int | str], what: str) -> Fault:
    """Return what is wrong with a document, and where."""
    return {"at": ".".join(_shown(part) for part in where), "fault": what}


def _shown(part: int | str) -> str:
    """Return a part of a place, cut: fields that nobody knows are named by whoever sends them."""
    text = str(part)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _asked(request: Request) -> dict[str, Any]:
    """Return the JSON Schema of all that may be in a request: of its body, its query, its path."""
    document = request.app.openapi()
    route = document["paths"].get(request.scope["route"].path_format, {})
    operation = route.get(request.method.lower(), {})
    parts: dict[str, Any] = {}
    for each in operation.get("parameters", ()):
        part = parts.setdefault(each["in"], {"properties": {}})
        part["properties"][each["name"]] = each["schema"]
    content = operation.get("requestBody", {}).get("content", {})
    parts["body"] = content.get("application/json", {}).get("schema", {})
    return {"properties": parts, "components": document["components"]}


async def _http(_request: Request, error: Exception) -> Response:
    """Answer what the framework refused: an unknown path, a method, an unreadable body."""
    known = cast("HTTPException", error)
    kind = _OF_STATUS.get(known.status_code, ProblemType.INTERNAL)
    return respond(Refusal(kind, known.detail, status=known.status_code), known.headers)


async def _unavailable(request: Request, error: Exception) -> Response:
    return _passing(request, unavailable(error))


def unavailable(error: Exception) -> Refusal:
    """Return the refusal when the database is locked or away: nothing was changed, it will pass."""
    _log.warning("database unavailable", error=reason(error))
    detail = "the database is busy or away: nothing was changed, try again"
    return Refusal(ProblemType.UNAVAILABLE, detail)


async def _unstorable(_request: Request, _error: Exception) -> Response:
    return respond(Refusal(ProblemType.MALFORMED, "the database cannot keep such a value"))


async def _vanished(_request: Request, _error: Exception) -> Response:
    return respond(Refusal(ProblemType.MALFORMED, "the body ended too early", status=400))


async def _broken(_request: Request, error: Exception) -> Response:
    _log.error("unexpected", error=type(error).__name__)
    return respond(Refusal(ProblemType.INTERNAL, "a fault of the service; it was logged"))


def install(app: FastAPI) -> None:
    """Make `app` answer every error in this form."""
    handlers = {
        Refusal: _refused,
        RequestValidationError: _invalid,
        HTTPException: _http,
        ClientDisconnect: _vanished,
        DataError: _unstorable,
        Exception: _broken,
        **dict.fromkeys(UNAVAILABLE, _unavailable),
    }
    for error, handler in handlers.items():
        app.add_exception_handler(error, handler)
