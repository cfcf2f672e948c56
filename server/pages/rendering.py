"""Rendering of pages: templates with their context.

A page is whole, or only its live part for a request of htmx. All text is escaped unless it comes
from a template, and the content security policy forbids scripts and styles in pages.
"""

from datetime import UTC, datetime
from inspect import getmembers, isfunction
from typing import Any, Final

from fastapi import Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from protocol.api.events import EventKind
from server.db.store import Store
from server.pages import formatting
from server.pages.static_files import url_of
from server.principals import ANONYMOUS, Permission, Principal

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'"
)
PAGE_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    # Other sites do not learn which page a reader came from. With no-referrer, browsers would
    # send Origin: null with forms, and we could not distinguish our forms from others.
    "Referrer-Policy": "same-origin",
    "Vary": "HX-Request",
}
_LOGGED_OUT = Principal("", frozenset())
_TEMPLATES = Environment(
    loader=PackageLoader("server.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,  # a process shows its own version, also while files are replaced
)
_TEMPLATES.globals |= {"url_of": url_of, "Permission": Permission}
_TEMPLATES.filters |= dict(getmembers(formatting, isfunction))


def is_partial(request: Request) -> bool:
    """Return whether htmx requests only the live part of a page."""
    return "hx-request" in request.headers


def render(
    request: Request,
    template: str,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    now: datetime | None = None,
    **context: Any,  # noqa: ANN401
) -> Response:
    """Return a page from `template`; ages and countdowns count from `now`."""
    caller: Principal = getattr(request.state, "principal", _LOGGED_OUT)
    text = _TEMPLATES.get_template(template).render(
        layout="partial.html" if is_partial(request) else "page.html",
        path=request.url.path,
        caller=caller,
        permissions=caller.permissions,
        is_open=caller is ANONYMOUS,
        now=now or datetime.now(UTC),
        **context,
    )
    body = text.encode("utf-8", "replace")  # an item may have characters that UTF-8 cannot encode
    return Response(body, status, {**PAGE_HEADERS, **(headers or {})}, "text/html; charset=utf-8")


async def event_context(store: Store, study: str) -> dict[str, Any]:
    """Return the event stream's parameters for a page of `study`.

    Call this before reading anything else of the study, so that the page misses no event.
    """
    last = await store.events.last_numbers((study,))
    return {"event_kinds": " ".join(EventKind), "last_event": last.get(study, 0)}
