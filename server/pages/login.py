"""An API key becomes a cookie that scripts cannot read and other sites cannot send.

The cookie is the key itself: the server keeps no sessions, and a key that is revoked is so for
browsers as well. It ends with the browser, or by logging out.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from protocol.credentials import API_KEY, bearer
from server.api.rights import Caller
from server.doorkeeper import COOKIE, address, is_page
from server.pages.guarding import Page, form_of
from server.pages.view import HEADERS, view
from server.service import Served

router = APIRouter(route_class=Page, include_in_schema=False)
_BAD = "That is not a key that is good here. Keys begin with btk_ and are made by the operator."
Next = Annotated[str, Query(alias="next", max_length=2000)]


@router.get("/login")
async def ask(request: Request, service: Served, wanted: Next = "") -> Response:
    """Show where to enter a key."""
    if service.keeper.is_open:
        return RedirectResponse("/", 303, HEADERS)
    return view(request, "login.html", wanted=_inside(wanted), fault=None)


@router.post("/login")
async def enter(request: Request, service: Served) -> Response:
    """Take a key, if it is good, and go where its holder wanted to go."""
    if service.keeper.is_open:
        return RedirectResponse("/", 303, HEADERS)
    service.keeper.admit(address(request.scope))
    form = await form_of(request)
    wanted = _inside(form.get("next", ""))
    secret = bearer(f"Bearer {form.get('key', '').strip()}", API_KEY)
    principal = await service.keeper.principal(secret)
    if principal is None or secret is None:
        await service.keeper.fail(address(request.scope), "bad credential", request.url.path)
        return view(request, "login.html", status=401, wanted=wanted, fault=_BAD)
    origin = f"address {address(request.scope)}"
    await service.store.access.note(str(principal), "log in", origin)
    response = RedirectResponse(wanted or "/", 303, HEADERS)
    response.set_cookie(COOKIE, secret, **_kept(request))
    return response


@router.post("/logout")
async def leave(request: Request, service: Served, caller: Caller) -> Response:
    """Have the browser forget the key."""
    await service.store.access.note(str(caller), "log out", f"address {address(request.scope)}")
    response = RedirectResponse("/login", 303, HEADERS)
    response.delete_cookie(COOKIE, **_kept(request))
    return response


def _kept(request: Request) -> dict[str, Any]:
    """Return how a browser keeps the cookie; it forgets one that is kept in the same way only."""
    is_secure = request.url.scheme == "https"
    return {"path": "/", "secure": is_secure, "httponly": True, "samesite": "strict"}


def _inside(wanted: str) -> str:
    """Return a path to go to, nothing if it is none of ours: two slashes lead elsewhere."""
    path = wanted.partition("?")[0]
    is_ours = is_page(path) and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_ours else ""
