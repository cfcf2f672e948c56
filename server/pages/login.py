"""Login: exchanges an API key, or a login at the OpenID provider, for a session in a cookie.

Scripts cannot read the cookie, and other sites cannot send it. A session ends by itself
(`server/db/repositories/access/credentials_and_audit.py`), by a logout, and with its key.
"""

from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Query, Request, Response
from starlette.responses import RedirectResponse

from protocol.api.credentials import API_KEY_PREFIX, bearer_secret
from protocol.api.messages import ProblemType
from server.api.dependencies import Caller
from server.errors import ProblemError, not_found
from server.http.auth import (
    COOKIE_NAME,
    OIDC_CALLBACK_PATH,
    OIDC_PATH,
    client_address,
    is_page,
    received_path,
    session_secret,
)
from server.http.login_attempt import ATTEMPT_LIFETIME, LoginAttempt
from server.http.openid_provider import Callback, OpenIdProvider
from server.http.path_prefix import path_prefix
from server.http.problem_details import STATUS_AND_TITLE
from server.pages.page_requests import MAX_NEXT_CHARACTERS, page_router, read_form
from server.pages.rendering import PAGE_HEADERS, render
from server.principals import Principal
from server.service import Service, ServiceDep

router = page_router()
_BAD_KEY_MESSAGE = (
    "This is not a valid API key: it is unknown, expired or revoked. An operator creates keys."
)
_NO_KEY_MESSAGE = (
    "This is not a valid API key. A key is btk_ and 43 letters, digits, - and _, with no space in "
    "it: copy all of it."
)
ATTEMPT_COOKIE_NAME = "blindtally_login"
Next = Annotated[str, Query(alias="next", max_length=MAX_NEXT_CHARACTERS)]


@router.get("/login")
async def show_login(request: Request, service: ServiceDep, next_page: Next = "") -> Response:
    """Show the form for an API key, and the link to the OpenID provider if there is one."""
    if service.authenticator.is_open:
        return RedirectResponse("/", 303, PAGE_HEADERS)
    return _login_page(request, service, _safe_redirect(next_page))


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
            client_address(request.scope), "bad credential", received_path(request.scope)
        )
        message = _NO_KEY_MESSAGE if secret is None else _BAD_KEY_MESSAGE
        return _login_page(request, service, next_page, message)
    response = RedirectResponse(next_page or "/", 303, PAGE_HEADERS)
    await _end_session(request, service)
    await _start_session(request, service, principal, response)
    return response


@router.post("/logout")
async def log_out(request: Request, service: ServiceDep, caller: Caller) -> Response:
    """End the session, and delete its cookie."""
    await _end_session(request, service)
    await service.store.access.record_audit(
        str(caller), "log out", f"address {client_address(request.scope)}"
    )
    response = RedirectResponse("/login", 303, PAGE_HEADERS)
    response.delete_cookie(COOKIE_NAME, **_cookie_options(request, service))
    return response


@router.get(OIDC_PATH)
async def start_login(request: Request, service: ServiceDep, next_page: Next = "") -> Response:
    """Send the browser to the OpenID provider, with a cookie by which it is recognised later.

    Its session ends here: the browser does not send the session's cookie with the provider's
    redirect to `finish_login`, where the new session replaces it.
    """
    provider, now = _provider_of(service), await service.store.database.read_now()
    attempt = LoginAttempt.start(service.store.access.rng, now, _safe_redirect(next_page))
    try:
        url = await provider.login_url(attempt)
    except ProblemError as problem:
        return _login_page(request, service, attempt.next_page, problem=problem)
    await _end_session(request, service)
    response = RedirectResponse(url, 303, PAGE_HEADERS)
    lifetime = int(ATTEMPT_LIFETIME.total_seconds())
    response.set_cookie(
        ATTEMPT_COOKIE_NAME, attempt.to_cookie(), lifetime, **_attempt_cookie_options(provider)
    )
    return response


@router.get(OIDC_CALLBACK_PATH)
async def finish_login(
    request: Request, service: ServiceDep, callback: Annotated[Callback, Query()]
) -> Response:
    """Start the session of the person that the OpenID provider names.

    The response is a page that leads on by itself, not a redirect: the provider's site caused this
    request, and a browser would not send the new cookie with a redirect of it (`SameSite=Strict`).
    """
    provider, now = _provider_of(service), await service.store.database.read_now()
    address = client_address(request.scope)
    attempt = LoginAttempt.from_cookie(request.cookies.get(ATTEMPT_COOKIE_NAME, ""))
    next_page = _safe_redirect(attempt.next_page) if attempt else ""
    is_begun_here = attempt is not None and attempt.may_continue(callback.state, now)
    if is_begun_here:
        service.authenticator.count_login(address)
    try:
        person = await provider.log_in(attempt, callback, now)
    except ProblemError as problem:
        if problem.kind is not ProblemType.UNAVAILABLE:
            await service.authenticator.record_failure(address, "refused login", problem.detail)
        response = _login_page(request, service, next_page, problem=problem)
    else:
        response = render(request, "logged_in.html", next_page=next_page or "/")
        await _start_session(request, service, person, response)
    if is_begun_here:  # otherwise the cookie may be that of a later attempt in another tab
        response.delete_cookie(ATTEMPT_COOKIE_NAME, **_attempt_cookie_options(provider))
    return response


def _provider_of(service: Service) -> OpenIdProvider:
    if service.openid_provider is None:
        raise not_found("page")
    return service.openid_provider


async def _end_session(request: Request, service: Service) -> None:
    """End the session of a browser, if it has one."""
    session = session_secret(request.headers)
    if session is not None:
        await service.authenticator.end_session(session)


async def _start_session(
    request: Request, service: Service, principal: Principal, response: Response
) -> None:
    """Start a session, record it in the audit trail, and set its cookie in `response`."""
    origin = f"address {client_address(request.scope)}"
    await service.store.access.record_audit(str(principal), "log in", origin)
    session = await service.store.access.start_session(principal)
    response.set_cookie(COOKIE_NAME, session, **_cookie_options(request, service))


def _login_page(
    request: Request,
    service: Service,
    next_page: str,
    key_error: str | None = None,
    problem: ProblemError | None = None,
) -> Response:
    """Return the page with the form for a key; `problem` is that of a login at the provider."""
    status = 401 if key_error else STATUS_AND_TITLE[problem.kind][0] if problem else 200
    return render(
        request,
        "login.html",
        status=status,
        next_page=next_page,
        error=key_error,
        problem=problem,
        provider=service.openid_provider,
        oidc_path=OIDC_PATH,
    )


def _cookie_options(request: Request, service: Service) -> dict[str, Any]:
    """Return the cookie's options; a browser deletes a cookie only if the options are equal.

    Requests to the public address came by TLS, even if their proxy does not state it.
    """
    public = urlsplit(service.settings.public_url or "")
    is_public = (public.scheme, public.netloc) == ("https", request.headers.get("host"))
    is_secure = request.url.scheme == "https" or is_public
    return {"path": "/", "secure": is_secure, "httponly": True, "samesite": "strict"}


def _attempt_cookie_options(provider: OpenIdProvider) -> dict[str, Any]:
    """Return the options of the cookie of an attempt, which the provider's redirect may send."""
    is_secure = provider.redirect_uri.startswith("https:")
    path = path_prefix() + OIDC_PATH
    return {"path": path, "secure": is_secure, "httponly": True, "samesite": "lax"}


def _safe_redirect(url: str) -> str:
    """Return `url` if it is a page of this service, otherwise nothing: // leads to other hosts."""
    path = url.partition("?")[0]
    is_ours = is_page(path) and not url.startswith(("//", "/\\")) and url.isprintable()
    return url if is_ours else ""
