"""Routes of pages: what goes wrong is shown as a page, and forms are taken from our pages only.

A browser sends its cookie along with whatever another site lets it post here, were it not
`SameSite`; and an open service asks for no cookie at all. So each post must say, in the header
that no script can forge, that it comes from where it goes to.
"""

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import parse_qsl, quote

import structlog
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import URL
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.types import Scope

from protocol.messages import ProblemType
from server.database import UNAVAILABLE
from server.doorkeeper import WAIT, is_page
from server.limits import check_media_type
from server.logs import concerning
from server.pages.view import HEADERS, is_partial, view
from server.problems import STATUS, fault_at, respond, unavailable
from server.refusals import Refusal, malformed, malformed_all

_FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 100
_log = structlog.get_logger(__name__)


class Page(APIRoute):
    """A route whose errors are pages, and whose posts come from our own pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, its errors shown."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                if request.method != "GET":
                    check_origin(request)
                return await handle(request)
            except Refusal as refusal:
                return failed(request, refusal)
            except RequestValidationError as error:
                faults = [fault_at(one["loc"], one["msg"]) for one in error.errors()]
                return failed(request, malformed_all(faults))
            except HTTPException as error:
                kind = ProblemType.TOO_SLOW if error.status_code == 408 else ProblemType.TOO_LARGE
                return failed(request, Refusal(kind, error.detail, status=error.status_code))
            except UNAVAILABLE as error:
                return failed(request, unavailable(error))
            except Exception:
                _log.exception("unexpected")
                fault = "a fault of the service; it was logged"
                return failed(request, Refusal(ProblemType.INTERNAL, fault))

        return answer


def check_origin(request: Request) -> None:
    """Refuse a post that does not come from a page of this very service.

    Raises:
        Refusal: if it names another origin, or none.
    """
    scheme, _, netloc = request.headers.get("origin", "").partition("://")
    is_ours = scheme in ("http", "https") and netloc == request.headers.get("host")
    if not is_ours or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        detail = "this form was not sent from a page of this service: open the page and try again"
        raise Refusal(ProblemType.FORBIDDEN, detail)


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a posted form; of two with one name, the last.

    Raises:
        Refusal: if it is no form, or not UTF-8, or has very many fields.
    """
    check_media_type(request, _FORM)
    body = await request.body()
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS,
            errors="strict",
        )  # fmt: skip
    except ValueError:
        raise malformed("not a form") from None
    return dict(fields)


def failed(request: Request, refusal: Refusal) -> Response:
    """Return `refusal` as a page."""
    concerning(problem=refusal.kind.value)
    status, title = STATUS[refusal.kind]
    status = refusal.status or status
    headers = {"Retry-After": WAIT} if status in (429, 503) else None
    return view(
        request, "failed.html", status=status, headers=headers, title=title, refusal=refusal
    )


def turned_away(scope: Scope, refusal: Refusal) -> Response:
    """Return what the doorkeeper answers: to whoever asks for a page, where to log in."""
    if not is_page(scope["path"]):
        passes = refusal.kind is ProblemType.UNAVAILABLE
        return respond(refusal, None if passes else {"Retry-After": WAIT})
    request = Request(scope)
    if refusal.kind is not ProblemType.NOT_AUTHORISED:
        return failed(request, refusal)
    wanted = str(URL(scope=scope).replace(scheme="", netloc="")) if scope["method"] == "GET" else ""
    where = "/login" + (f"?next={quote(wanted, safe='/')}" if wanted not in ("", "/") else "")
    if is_partial(request):  # a page that was open when its key was revoked
        return Response(status_code=401, headers={**HEADERS, "HX-Redirect": where})
    return RedirectResponse(where, 303, HEADERS)
