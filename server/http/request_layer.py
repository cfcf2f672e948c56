"""The one layer around all routes, which each request passes once.

    request   id and log fields, authentication, limits of its body
    route     of a device directly, of all others by FastAPI; problem details for every error
    response  id and security headers
    record    log line and metrics

The log contains the route as it is written in the code, and not the path: paths contain names of
devices, and query strings contain items. Of the headers only the id is recorded, and no body.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from itertools import count
from math import ceil
from secrets import token_hex
from time import perf_counter
from typing import TypeAlias

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from opentelemetry import trace
from starlette.types import Message, Receive, Scope, Send

from protocol.api.messages import ProblemType
from server.db.database_errors import UNAVAILABLE_ERRORS
from server.errors import ProblemError
from server.http.auth import client_address, is_public, rate_limit_key
from server.http.path_prefix import prefix_of, with_prefix, without_prefix
from server.http.problem_details import problem_of, problem_response
from server.http.request_limits import BodyMemory, LimitedBody, RateLimit, header, largest_body
from server.http.response_headers import SecurityHeaders
from server.notify.notifier import Turns
from server.settings import Settings
from server.telemetry.logs import LogFields, bind_log_fields, logs_debug_lines, start_log_fields
from server.telemetry.metrics import Metrics

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
TOO_MANY_DELAY_SECONDS, _MAX_TOO_MANY_DELAY_SECONDS = 0.5, 5.0  # of each 429
_MAX_TOO_MANY_RATE = 50.0  # sent in a second by a process, unless hundreds wait
_TOO_MANY_BATCH_SECONDS = 0.4  # between batches: each wakes the process, and holds up the others
_MAX_REFUSAL_LINES = 600  # of the log in a minute: about 180 MB a day, which strangers can cause
_MAX_PIECE_BYTES = 2**16
_UNKNOWN = "none"  # the route of an unknown path, the status of an aborted request
_REDACTED_ATTRIBUTES = {"url.path": "REDACTED", "url.query": "REDACTED"}  # `http.route` remains
_log = structlog.get_logger(__name__)


class RequestLayer:
    """Layer between the HTTP server and the routes of `app`.

    `find_endpoint` returns the endpoint of a request that needs nothing of FastAPI, otherwise None;
    `refuse` returns the response to a caller that is not authenticated, and `answer_error` that to
    an error outside of a route, such as an unknown path.
    """

    def __init__(
        self,
        app: FastAPI,
        settings: Settings,
        metrics: Metrics,
        find_endpoint: Callable[[Scope], Endpoint | None],
        refuse: Callable[[Scope, ProblemError], Response],
        answer_error: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        self._state = app.state
        self._router = AsyncExitStackMiddleware(app.router)  # closes the files of forms
        self._settings, self._prefix = settings, prefix_of(settings.public_url)
        self._metrics = metrics
        self._find_endpoint = find_endpoint
        self._refuse = refuse
        self._answer_error = answer_error
        self._security_headers = SecurityHeaders(settings.hsts_seconds)
        # Unique and no secret: random digits for each request would take longer than the log line.
        self._id_prefix, self._id_counter = token_hex(12).encode(), count()
        self.body_memory = BodyMemory(largest_body(settings), _sender_of)
        self._refusals = RefusalQueue()
        self._turns = Turns()  # of requests that begin, and of large bodies that are sent
        self._refusal_lines, self._not_logged = RateLimit(_MAX_REFUSAL_LINES), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        request_id = _sent_id(scope) or self._id_prefix + b"%08x" % next(self._id_counter)
        send = with_prefix(send, self._prefix)
        body = LimitedBody(scope, receive, self._settings, self.body_memory)
        wait = partial(self._refusals.wait, body)
        reply = _Reply(scope, send, self._security_headers, request_id, wait, self._turns)
        fields = start_log_fields(request_id=request_id.decode())
        if reply.is_head:  # all routes of GET answer it; the HTTP server keeps its own scope
            scope = {**scope, "method": "GET"}
        scope = without_prefix(scope, self._prefix)
        try:
            if not is_public(scope["path"]):  # probes of the health wait for no crowd of devices
                await self._turns.wait()
            await self._respond(scope, body, reply)
        except Exception as error:
            body.release()  # the refusal may wait
            if reply.status is not None:  # too late for another response: the connection is closed
                raise
            response = await self._answer_error(Request(scope), error)
            await response(scope, body.receive, reply.send)
        except asyncio.CancelledError:
            if reply.status is not None or not self._state.service.notifier.is_shutting_down:
                raise
            problem = ProblemError(ProblemType.UNAVAILABLE, "the service is stopping: try again")
            await problem_response(problem)(scope, body.receive, reply.send)
        finally:
            body.release()
            self._record(scope, body.received, reply, fields)

    async def _respond(self, scope: Scope, body: LimitedBody, reply: "_Reply") -> None:
        if not is_public(scope["path"]):
            state = scope.setdefault("state", {})
            try:
                state["principal"] = await self._state.service.authenticator.principal_of(scope)
            except (ProblemError, *UNAVAILABLE_ERRORS) as error:
                problem = problem_of(error)
                if problem.kind is ProblemType.TOO_MANY:  # pages may redirect to the login
                    await reply.delay()
                refusal = self._refuse(scope, problem)
                await refusal(scope, body.receive, reply.send)
                return
        body.admit()
        endpoint = self._find_endpoint(scope)
        if endpoint is None:
            await self._router(scope, body.receive, reply.send)
        else:
            response = await endpoint(Request(scope, body.receive))
            body.release()  # the response may wait for other devices
            await response(scope, body.receive, reply.send)

    def _record(self, scope: Scope, received: int, reply: "_Reply", fields: LogFields) -> None:
        method = "HEAD" if reply.is_head else scope["method"]
        method = method if method in _METHODS else "OTHER"
        route = getattr(scope.get("route"), "path", _UNKNOWN)
        status, ended = reply.status, perf_counter()
        self._metrics.count_request(
            (method, route, _UNKNOWN if status is None else str(status)),
            (reply.acknowledged or ended) - reply.started,
            received,
            reply.sent,
        )
        if "problem" in fields:
            self._metrics.problems.labels(fields["problem"]).inc()
        number = scope.get("path_params", {}).get("number")
        if number is not None and re.fullmatch(r"[0-9]{1,10}", number):
            bind_log_fields(round=int(number))
        level = _log_level(status)
        if level == "info" and not self._refusal_lines.hit():
            level = "debug"
            self._not_logged += not logs_debug_lines()
        if level == "debug" and not logs_debug_lines():
            return
        facts = {"method": method, "route": route, "status": status, "received": received}
        if level == "info" and self._not_logged:
            facts["not_logged"], self._not_logged = self._not_logged, 0  # since the last such line
        seconds = round(ended - reply.started, 4)
        getattr(_log, level)("request", **facts, sent=reply.sent, seconds=seconds)


class RefusalQueue:
    """Delay of 429s: clients that repeat refused requests at once would take the time of others.

    They are sent in small batches at a limited rate, so the more there are, the longer each waits,
    unless its client disconnects: nothing would limit how many requests of closed connections are
    kept. Meanwhile nothing is stored of their bodies.
    """

    def __init__(self) -> None:
        self._last_due = 0.0

    async def wait(self, body: LimitedBody) -> None:
        now = asyncio.get_running_loop().time()
        due = max(now + TOO_MANY_DELAY_SECONDS, self._last_due + 1 / _MAX_TOO_MANY_RATE)
        self._last_due = min(due, now + _MAX_TOO_MANY_DELAY_SECONDS)
        batch = ceil(self._last_due / _TOO_MANY_BATCH_SECONDS)
        try:
            async with asyncio.timeout_at(batch * _TOO_MANY_BATCH_SECONDS):
                await body.discard()
        except TimeoutError:
            pass


class _Reply:
    """Response to a request, its time and its size in bytes, while it is sent.

    A response to HEAD ends after its headers, and what its route sends later is discarded. Large
    bodies are sent in pieces: a connection has few pieces in its buffer, and all take turns.
    """

    __slots__ = (
        "_id",
        "_is_delayed",
        "_scope",
        "_security",
        "_send",
        "_turns",
        "_wait_to_refuse",
        "acknowledged",
        "is_head",
        "sent",
        "started",
        "status",
    )

    def __init__(
        self,
        scope: Scope,
        send: Send,
        security: SecurityHeaders,
        request_id: bytes,
        wait_to_refuse: Callable[[], Awaitable[None]],
        turns: Turns,
    ) -> None:
        self._turns = turns
        self._scope, self._send, self._security, self._id = scope, send, security, request_id
        self._wait_to_refuse = wait_to_refuse
        self._is_delayed = False
        self.is_head = scope["method"] == "HEAD"
        self.started = perf_counter()
        self.acknowledged: float | None = None  # time of the headers
        self.status: int | None = None
        self.sent = 0
        if (span := trace.get_current_span()) is not trace.INVALID_SPAN:
            span.set_attributes(_REDACTED_ATTRIBUTES)

    async def delay(self) -> None:
        """Wait before a refusal, once; the time does not count as that of the response."""
        if not self._is_delayed:
            self._is_delayed = True
            since = perf_counter()
            await self._wait_to_refuse()
            self.started += perf_counter() - since

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if message["status"] == HTTPStatus.TOO_MANY_REQUESTS:
                await self.delay()
            self.status, self.acknowledged = message["status"], perf_counter()
            headers = message["headers"]
            added = self._security.added_to(headers, self._scope["scheme"])
            message["headers"] = [*headers, (b"x-request-id", self._id), *added]
            await self._pass_on(message)
            if self.is_head:
                await self._pass_on({"type": "http.response.body", "body": b""})
        elif not self.is_head:
            await self._send_pieces(message)

    async def _send_pieces(self, message: Message) -> None:
        """Send a body; each piece waits until the connection has sent most of those before."""
        body = message.get("body", b"")
        self.sent += len(body)
        if len(body) > _MAX_PIECE_BYTES:
            rest = memoryview(body)
            while len(rest) > _MAX_PIECE_BYTES:
                piece, rest = rest[:_MAX_PIECE_BYTES], rest[_MAX_PIECE_BYTES:]
                await self._pass_on({**message, "body": piece, "more_body": True})
                await self._turns.wait()
            message = {**message, "body": rest}
        await self._pass_on(message)

    async def _pass_on(self, message: Message) -> None:
        try:
            await self._send(message)
        except RuntimeError as error:
            # The client has reset the connection, and uvicorn notices it a moment later.
            if not str(error).endswith("the handler is closed"):  # uvloop has no type for it
                raise


def _sender_of(scope: Scope) -> str:
    """Return the credential of a request, which its route has checked, or else its address."""
    return header(scope, b"authorization") or rate_limit_key(client_address(scope))


def _sent_id(scope: Scope) -> bytes | None:
    """Return the id that a proxy or the client gave to a request, if it is a plain one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return bytes(value) if _REQUEST_ID.fullmatch(value) else None
    return None


def _log_level(status: int | None) -> str:
    if status is None:
        return "info"
    # By the thousand in an outage or a flood, of which the database or the audit trail has a line.
    if status in (429, 503):
        return "debug"
    if status >= 500:
        return "warning"
    return "info" if status >= 400 else "debug"
