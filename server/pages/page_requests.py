"""Routes of pages: errors are shown as pages, and forms are accepted from our own pages only.

An open service requires no cookie, so `SameSite` does not protect it: each post must name this
service in the Origin header, which no script can forge.
"""

from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import URL
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.types import Scope

from protocol.api.messages import ProblemType
from protocol.validation_errors import describe_fault
from server.api.dependencies import require
from server.errors import ProblemError, malformed, malformed_fields, not_found
from server.http.auth import AUTH_RETRY_AFTER, SHARED_PREFIX, session_secret, shows_page
from server.http.problem_details import (
    STATUS_AND_TITLE,
    error_response,
    field_error,
    problem_of,
    problem_response,
)
from server.http.request_limits import check_media_type
from server.pages.rendering import PAGE_HEADERS, is_partial, render
from server.principals import Permission
from server.telemetry.logs import bind_log_fields

_FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
MAX_NEXT_CHARACTERS = 2000  # of the page that follows a login
_MAX_FIELDS = 100


class PageRoute(APIRoute):
    """Route whose errors are pages, and which accepts posts from our own pages only.

    HEAD is answered as GET; the HTTP server sends no body.
    """

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 (of `APIRoute`)
        super().__init__(*args, **options)
        methods = self.methods or set()
        self.methods = methods | {"HEAD"} if "GET" in methods else methods

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                if request.method not in ("GET", "HEAD"):
                    check_origin(request)
                return await handle(request)
            except RequestValidationError as error:
                faults = error.errors()
                errors = [field_error(each["loc"], describe_fault(each, {})) for each in faults]
                return error_page(request, malformed_fields(errors))
            except Exception as error:
                return error_page(request, problem_of(error))

        return answer


def page_router(*permissions: Permission, prefix: str = "") -> APIRouter:
    """Return a router of pages for callers with `permissions`."""
    dependencies = [require(permission) for permission in permissions]
    return APIRouter(
        prefix=prefix, route_class=PageRoute, include_in_schema=False, dependencies=dependencies
    )


def check_origin(request: Request) -> None:
    """Raise ProblemError for a post that does not come from a page of this service."""
    scheme, _, netloc = request.headers.get("origin", "").partition("://")
    is_ours = scheme in ("http", "https") and netloc == request.headers.get("host")
    if not is_ours or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        detail = "this form was not sent from a page of this service: open the page and try again"
        raise ProblemError(ProblemType.FORBIDDEN, detail)


async def read_form(request: Request) -> dict[str, str]:
    """Return the last value of each field of a form; raises ProblemError if it is not a form."""
    check_media_type(request, _FORM_MEDIA_TYPE)
    body = await request.body()
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS,
            errors="strict",
        )  # fmt: skip
    except ValueError:
        raise malformed("the body is not a form") from None
    return dict(fields)


def error_page(
    request: Request, problem: ProblemError, headers: Mapping[str, str] | None = None
) -> Response:
    bind_log_fields(problem=problem.kind.value)
    status, title = STATUS_AND_TITLE[problem.kind]
    status = problem.status or status
    waiting = {"Retry-After": AUTH_RETRY_AFTER} if status in (429, 503) else {}
    return render(
        request,
        "error.html",
        status=status,
        headers=waiting | dict(headers or {}),
        title=title,
        problem=problem,
    )


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer an error outside of a route, for people by a page, for programs by JSON."""
    if not shows_page(request.scope):
        return await error_response(request, error)
    if not isinstance(error, HTTPException):
        return error_page(request, problem_of(error))
    is_unknown = error.status_code == HTTPStatus.NOT_FOUND
    problem = not_found("page") if is_unknown else problem_of(error)
    return error_page(request, problem, error.headers)


def unauthenticated_response(scope: Scope, problem: ProblemError) -> Response:
    """Return the response to a caller that is not authenticated: for pages, a redirect to login."""
    if not shows_page(scope):
        is_passing = problem.kind is ProblemType.UNAVAILABLE
        return problem_response(problem, None if is_passing else {"Retry-After": AUTH_RETRY_AFTER})
    request = Request(scope)
    # A reader without a session at an address of many strangers still finds the login.
    has_session = session_secret(request.headers) is not None
    if scope["path"].startswith(SHARED_PREFIX):
        return error_page(request, problem)
    if problem.kind is not ProblemType.NOT_AUTHORISED and (
        has_session or problem.kind is not ProblemType.TOO_MANY
    ):
        return error_page(request, problem)
    # A shared link on a wrong path has its secret in the query.
    address = URL(scope=scope).remove_query_params("token")
    page = str(address.replace(scheme="", netloc="")) if scope["method"] == "GET" else ""
    is_kept = page not in ("", "/") and len(page) <= MAX_NEXT_CHARACTERS
    login = "/login" + (f"?next={quote(page, safe='/')}" if is_kept else "")
    if is_partial(request):  # a page that was open when its key was revoked
        return Response(status_code=401, headers={**PAGE_HEADERS, "HX-Redirect": login})
    return RedirectResponse(login, 303, PAGE_HEADERS)
