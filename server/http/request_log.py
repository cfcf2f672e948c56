"""Log line, metrics and id of each request.

The log contains the route as it is written in the code, and not the path: paths contain names of
devices, and query strings contain items. No header is read except the id, and no body.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from time import perf_counter

import structlog
from opentelemetry import trace
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.api.messages import ProblemType
from server.errors import ProblemError
from server.http.problem_details import problem_of, problem_response
from server.telemetry.logs import LOG_FIELDS, bind_log_fields
from server.telemetry.metrics import Metrics

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_UNKNOWN = "none"  # the route of an unknown path, the status of an aborted request
_REDACTED_ATTRIBUTES = {"url.path": "REDACTED", "url.query": "REDACTED"}  # `http.route` remains
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _RequestStats:
    """Status and time of the response, and sizes of the bodies in bytes."""

    status: int | None = None
    acknowledged: float | None = None  # time of the headers of the response
    received: int = 0
    sent: int = 0


class RequestLogMiddleware:
    """Gives each request an id, records it, and answers unexpected errors and shutdowns."""

    def __init__(self, app: ASGIApp, metrics: Metrics, is_stopping: Callable[[], bool]) -> None:
        self._app = app
        self._metrics = metrics
        self._is_stopping = is_stopping
        # Unique and no secret: random digits for each request would take longer than the log line.
        self._id_prefix, self._id_counter = token_hex(12), count()

    def _new_id(self) -> str:
        return f"{self._id_prefix}{next(self._id_counter):08x}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stats, started = _RequestStats(), perf_counter()
        request_id = _sent_id(scope) or self._new_id()
        id_header = b"x-request-id", request_id.encode()

        async def counting_receive() -> Message:
            message = await receive()
            stats.received += len(message.get("body", b""))
            return message

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                stats.status, stats.acknowledged = message["status"], perf_counter()
                message["headers"] = [*message["headers"], id_header]
            stats.sent += len(message.get("body", b""))
            await send(message)

        trace.get_current_span().set_attributes(_REDACTED_ATTRIBUTES)
        structlog.contextvars.unbind_contextvars(*LOG_FIELDS)  # left by a refusal without a request
        bind_log_fields(request_id=request_id)
        try:
            await self._app(scope, counting_receive, counting_send)
        except Exception as error:
            problem = problem_of(error)
            if stats.status is not None:  # too late for another response: the connection is closed
                raise
            await problem_response(problem)(scope, counting_receive, counting_send)
        except asyncio.CancelledError:  # by a shutdown
            if stats.status is not None or not self._is_stopping():
                raise
            problem = ProblemError(ProblemType.UNAVAILABLE, "the service is stopping: try again")
            await problem_response(problem)(scope, counting_receive, counting_send)
        finally:
            self._record(scope, stats, started)
            structlog.contextvars.unbind_contextvars(*LOG_FIELDS)

    def _record(self, scope: Scope, stats: _RequestStats, started: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        route = getattr(scope.get("route"), "path", _UNKNOWN)
        status = _UNKNOWN if stats.status is None else str(stats.status)
        ended = perf_counter()
        self._metrics.count_request(
            (method, route, status),
            (stats.acknowledged or ended) - started,
            stats.received,
            stats.sent,
        )
        fields = structlog.contextvars.get_contextvars()
        if "problem" in fields:
            self._metrics.problems.labels(fields["problem"]).inc()
        number = scope.get("path_params", {}).get("number", "")
        if re.fullmatch(r"[0-9]{1,10}", number):
            bind_log_fields(round=int(number))
        facts = {"method": method, "route": route, "status": stats.status}
        sizes = {
            "seconds": round(ended - started, 4),
            "received": stats.received,
            "sent": stats.sent,
        }
        _log_method(stats.status)("request", **facts, **sizes)


def _sent_id(scope: Scope) -> str | None:
    """Return the id that a proxy or the client gave to a request, if it is a plain one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return value.decode() if _REQUEST_ID.fullmatch(value) else None
    return None


def _log_method(status: int | None) -> structlog.typing.WrappedLogger:
    if status is None:
        return _log.info
    if status == 503:  # by the thousand in an outage, which the database has logged
        return _log.debug
    if status >= 500:
        return _log.warning
    return _log.info if status >= 400 else _log.debug
