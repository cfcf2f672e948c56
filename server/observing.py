"""What is kept of a request: an id, one line of the log, how long it took and how many bytes.

Of its address only the route is kept, as it is written in the code: paths hold names of devices,
and query strings items. Headers and bodies are never looked at, but for the id.
"""

import re
from dataclasses import dataclass
from time import perf_counter
from uuid import uuid4

import structlog
from opentelemetry import trace
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.messages import ProblemType
from server.logs import BOUND, concerning
from server.metrics import Metrics
from server.problems import respond
from server.refusals import Refusal

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_NONE = "none"  # the route of an unknown path, the status of a request that was cut off
_HIDDEN = {"url.path": "REDACTED", "url.query": "REDACTED"}  # `http.route` says enough
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Seen:
    """What went by of one request."""

    status: int | None = None
    received: int = 0
    sent: int = 0


class Observed:
    """Gives every request an id, and keeps how it went; answers what breaks with a problem."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and keep how it went."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen, started = _Seen(), perf_counter()
        request_id = _request_id(scope)

        async def counted() -> Message:
            message = await receive()
            seen.received += len(message.get("body", b""))
            return message

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            seen.sent += len(message.get("body", b""))
            await send(message)

        trace.get_current_span().set_attributes(_HIDDEN)
        structlog.contextvars.unbind_contextvars(*BOUND)  # of a refusal on no request's behalf
        concerning(request_id=request_id)
        try:
            await self._answer(scope, counted, noted, seen)
        finally:
            self._keep(scope, seen, perf_counter() - started)
            structlog.contextvars.unbind_contextvars(*BOUND)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, seen: _Seen) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception:
            _log.exception("unexpected")
            if seen.status is not None:  # too late to say so: the connection is cut
                raise
            refusal = Refusal(ProblemType.INTERNAL, "a fault of the service; it was logged")
            await respond(refusal)(scope, receive, send)

    def _keep(self, scope: Scope, seen: _Seen, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        route = getattr(scope.get("route"), "path", _NONE)
        status = _NONE if seen.status is None else str(seen.status)
        self._metrics.requests.labels(method, route, status).observe(seconds)
        self._metrics.received.labels(route).inc(seen.received)
        self._metrics.sent.labels(route).inc(seen.sent)
        known = structlog.contextvars.get_contextvars()
        if "problem" in known:
            self._metrics.refusals.labels(known["problem"]).inc()
        number = scope.get("path_params", {}).get("number", "")
        if re.fullmatch(r"[0-9]{1,10}", number):
            concerning(round=int(number))
        facts = {"method": method, "route": route, "status": seen.status}
        sizes = {"seconds": round(seconds, 4), "received": seen.received, "sent": seen.sent}
        _say(seen.status)("request", **facts, **sizes)


def _say(status: int | None) -> structlog.typing.WrappedLogger:
    """Return at which level to speak of a request that was answered so."""
    if status is None:
        return _log.info
    if status >= 500:
        return _log.warning
    return _log.info if status >= 400 else _log.debug


def _request_id(scope: Scope) -> str:
    """Return the id that a proxy or client gave, if it is a plain one; else a new one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid4().hex
