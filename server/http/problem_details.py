"""Problem details [RFC 9457] for every error response, with a status and a type for programs.

Errors of the layers below (`ProblemError`), of frameworks and of databases get the same form. A
detail describes the request and never the inside of the service.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import structlog
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from protocol.api.messages import MAX_PROBLEM_ERRORS, PROBLEM_TYPE_PREFIX, Problem, ProblemType
from protocol.api.phases import Phase
from protocol.validation_errors import describe_fault
from server.db.database_errors import UNAVAILABLE_ERRORS, loggable_reason
from server.errors import INTERNAL_FAULT, FieldError, ProblemError, malformed_fields
from server.telemetry.logs import bind_log_fields

MEDIA_TYPE = "application/problem+json"
DEFAULT_RETRY_SECONDS = 1
_MAX_LOCATION_CHARS = 100
_log = structlog.get_logger(__name__)

STATUS_AND_TITLE = {
    ProblemType.NOT_FOUND: (404, "Not found"),
    ProblemType.NOT_AUTHORISED: (401, "Not authorised"),
    ProblemType.FORBIDDEN: (403, "Forbidden"),
    ProblemType.TOO_MANY: (429, "Too many requests"),
    ProblemType.MALFORMED: (422, "Malformed"),
    ProblemType.WRONG_MEDIA_TYPE: (415, "Wrong media type"),
    ProblemType.METHOD_NOT_ALLOWED: (405, "Method not allowed"),
    ProblemType.TOO_LARGE: (413, "Too large"),
    ProblemType.TOO_SLOW: (408, "Too slow"),
    ProblemType.WRONG_PHASE: (409, "Wrong phase"),
    ProblemType.CONFLICT: (409, "Conflict"),
    ProblemType.IDEMPOTENCY_KEY_REUSED: (409, "Idempotency key reused"),
    ProblemType.WRONG_STATE: (409, "Wrong state"),
    ProblemType.NO_ROUND: (409, "No round takes devices"),
    ProblemType.ALREADY_COUNTED: (409, "Already counted"),
    ProblemType.POISONED_COHORT: (409, "Poisoned cohort"),
    ProblemType.PLAN_MISMATCH: (409, "Another plan"),
    ProblemType.BUDGET_SPENT: (409, "Privacy budget spent"),
    ProblemType.NOT_ENROLLED: (403, "Not enrolled"),
    ProblemType.BARRED: (403, "Barred"),
    ProblemType.COHORT_FAILED: (410, "The cohort failed"),
    ProblemType.DROPPED_OUT: (410, "Dropped out"),
    ProblemType.UNAVAILABLE: (503, "Unavailable"),
    ProblemType.INTERNAL: (500, "Internal error"),
}
_TYPE_OF_STATUS = {400: ProblemType.MALFORMED} | {
    status: kind
    for kind, (status, _) in STATUS_AND_TITLE.items()
    if status in (404, 405, 408, 413, 415, 429)
}
_RETRYABLE = frozenset({ProblemType.UNAVAILABLE, ProblemType.NO_ROUND, ProblemType.TOO_MANY})


def problem_of(error: Exception) -> ProblemError:
    """Return the refusal that answers `error`, and log errors of the service itself."""
    match error:
        case ProblemError():
            return error
        case HTTPException():  # of the framework: an unknown path, a method, an unreadable body
            kind = _TYPE_OF_STATUS.get(error.status_code, ProblemType.INTERNAL)
            return ProblemError(kind, error.detail, status=error.status_code)
        case ClientDisconnect():
            return ProblemError(ProblemType.MALFORMED, "the body ended too early", status=400)
        case DataError():
            return ProblemError(ProblemType.MALFORMED, "the database cannot store such a value")
        case _ if isinstance(error, UNAVAILABLE_ERRORS):
            _log.debug("database unavailable", error=loggable_reason(error))
            detail = "the database is busy or unreachable: nothing was changed, try again"
            return ProblemError(ProblemType.UNAVAILABLE, detail)
    _log.error("unexpected error", exc_info=error)
    return ProblemError(ProblemType.INTERNAL, INTERNAL_FAULT)


def problem_response(
    problem: ProblemError,
    headers: Mapping[str, str] | None = None,
    retry_after: int = DEFAULT_RETRY_SECONDS,
) -> Response:
    """Return `problem` as a response; a temporary one has `retry_after` seconds as Retry-After."""
    bind_log_fields(problem=problem.kind.value)
    status = problem.status or STATUS_AND_TITLE[problem.kind][0]
    if problem.errors is None:
        body = _document_without_errors(problem.kind, status, problem.detail, problem.phase)
    else:
        body = _document(problem.kind, status, problem.detail, problem.phase, problem.errors)
    all_headers = dict(headers or {})
    if problem.kind is ProblemType.NOT_AUTHORISED:
        all_headers["WWW-Authenticate"] = "Bearer"
    if problem.kind in _RETRYABLE:
        all_headers.setdefault("Retry-After", str(retry_after))
    return Response(body, status, all_headers, MEDIA_TYPE)


def _document(
    kind: ProblemType,
    status: int,
    detail: str,
    phase: Phase | None,
    errors: Sequence[FieldError] | None = None,
) -> str:
    problem = Problem(
        type=PROBLEM_TYPE_PREFIX + kind,
        title=STATUS_AND_TITLE[kind][1],
        status=status,
        detail=detail,
        phase=phase,
        errors=None
        if errors is None
        else tuple(dict(**error) for error in errors[:MAX_PROBLEM_ERRORS]),
    )
    return problem.model_dump_json(exclude_none=True)


_document_without_errors = lru_cache(128)(_document)  # those of a flood are all the same


async def error_response(request: Request, error: Exception) -> Response:
    """Answer any error; a temporary one with a Retry-After that spreads all waiting clients."""
    if isinstance(error, RequestValidationError):
        return await _validation_response(request, error.errors())
    problem = problem_of(error)
    headers = error.headers if isinstance(error, HTTPException) else None
    if problem.kind is ProblemType.METHOD_NOT_ALLOWED:
        headers = {"Allow": ", ".join(sorted(_methods(request)))}
    if problem.kind not in _RETRYABLE:
        return problem_response(problem, headers)
    return problem_response(problem, headers, request.app.state.service.retry_after())


def _methods(request: Request) -> set[str]:
    """Return the methods of all routes at the path of a request; the framework names one's."""
    methods = {
        method
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        for route in request.app.routes
        if route.matches({**request.scope, "method": method})[0] is Match.FULL
    }
    return methods | ({"HEAD"} if "GET" in methods else set())


async def _validation_response(request: Request, faults: Sequence[Any]) -> Response:
    for fault in faults:
        if fault["type"] == "json_invalid":
            invalid = field_error(fault["loc"], f"not JSON: {fault['ctx']['error']}")
            return problem_response(malformed_fields([invalid], 400))
    # In a thread, because the first call takes a quarter of a second.
    schema = await asyncio.to_thread(_request_schema, request)
    faults = faults[:MAX_PROBLEM_ERRORS]
    errors = [field_error(fault["loc"], describe_fault(fault, schema)) for fault in faults]
    return problem_response(malformed_fields(errors, 422))


def field_error(location: Iterable[int | str], detail: str) -> FieldError:
    """Return an error of a document at `location`, the path of a field."""
    return {"location": ".".join(_truncated(part) for part in location), "detail": detail}


def _truncated(part: int | str) -> str:
    """Return a part of a location, truncated because clients choose the names of unknown fields."""
    text = str(part)
    return text if len(text) <= _MAX_LOCATION_CHARS else f"{text[:_MAX_LOCATION_CHARS]}..."


def _request_schema(request: Request) -> dict[str, Any]:
    document = request.app.openapi()
    route = document["paths"].get(request.scope["route"].path_format, {})
    operation = route.get(request.method.lower(), {})
    parts: dict[str, Any] = {}
    for parameter in operation.get("parameters", ()):
        part = parts.setdefault(parameter["in"], {"properties": {}})
        part["properties"][parameter["name"]] = parameter["schema"]
    content = operation.get("requestBody", {}).get("content", {})
    parts["body"] = content.get("application/json", {}).get("schema", {})
    return {"properties": parts, "components": document["components"]}
