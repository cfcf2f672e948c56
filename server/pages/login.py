"""Login: exchanges an API key for a session in a cookie.

Scripts cannot read the cookie, and other sites cannot send it. A session ends by itself
(`server/db/repositories/credentials_and_audit.py`), by a logout, and with its key.
"""

from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.responses import RedirectResponse

from protocol.api.credentials import API_KEY_PREFIX, bearer_secret
from server.api.dependencies import Caller
from server.http.auth import COOKIE_NAME, client_address, is_page, session_secret
from server.pages.page_requests import page_router, read_form
from server.pages.rendering import PAGE_HEADERS, render
from server.service import ServiceDep

router = page_router()
_BAD_KEY_MESSAGE = (
    "This is not a valid API key. Keys begin with btk_, and an operator creates them."
)
Next = Annotated[str, Query(alias="next", max_length=2000)]


@router.get("/login")
async def show_login(request: Request, service: ServiceDep, next_page: Next = "") -> Response:
    """Show the form for an API key."""
    if service.authenticator.is_open:
        return RedirectResponse("/", 303, PAGE_HEADERS)
    return render(request, "login.html", next_page=_safe_redirect(next_page), error=None)


@router.post("/login")
async def log_in(request: Request, service: ServiceDep) -> Response:
    """Set the cookie if the key is valid, and redirect to the page that was requested first."""
    if service.authenticator.is_open:
        return RedirectResponse("/", 303, PAGE_HEADERS)
    form = await read_form(request)
    next_page = _safe_redirect(form.get("next", ""))
    secret = bearer_secret(f"Bearer {form.get('key', '').strip()}", API_KEY_PREFIX)
    service.authenticator.check_address(client_address(request.scope), secret)
    principal = await service.authenticator.authenticate(secret)
    if principal is None or secret is None:
        await service.authenticator.record_failure(
            client_address(request.scope), "bad credential", request.url.path
        )
        return render(
            request, "login.html", status=401, next_page=next_page, error=_BAD_KEY_MESSAGE
        )
    origin = f"address {client_address(request.scope)}"
    await service.store.access.record_audit(str(principal), "log in", origin)
    response = RedirectResponse(next_page or "/", 303, PAGE_HEADERS)
    session = await service.store.access.start_session(principal.name)
    response.set_cookie(COOKIE_NAME, session, **_cookie_options(request))
    return response


@router.post("/logout")
async def log_out(request: Request, service: ServiceDep, caller: Caller) -> Response:
    """End the session, and delete its cookie."""
    session = session_secret(request.headers)
    if session is not None:
        await service.authenticator.end_session(session)
    await service.store.access.record_audit(
        str(caller), "log out", f"address {client_address(request.scope)}"
    )
    response = RedirectResponse("/login", 303, PAGE_HEADERS)
    response.delete_cookie(COOKIE_NAME, **_cookie_options(request))
    return response


def _cookie_options(request: Request) -> dict[str, Any]:
    """Return the cookie's options; a browser deletes a cookie only if the options are equal."""
    is_secure = request.url.scheme == "https"
    return {"path": "/", "secure": is_secure, "httponly": True, "samesite": "strict"}


def _safe_redirect(url: str) -> str:
    """Return `url` if it is a page of this service, otherwise nothing: // leads to other hosts."""
    path = url.partition("?")[0]
    is_ours = is_page(path) and not url.startswith(("//", "/\\")) and url.isprintable()
    return url if is_ours else ""
