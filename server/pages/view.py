"""Templates and what they are given: a whole page, or its live part alone when htmx asks.

Everything is escaped unless it comes from a template. No page has a script or style of its own
in it, so the policy forbids them: text that got past the escaping would still run nothing.
"""

from datetime import UTC, datetime
from typing import Any, Final

from fastapi import Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from server.pages import words
from server.pages.assets import url_of
from server.principals import ANYBODY, Principal, Right

POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    # Nobody else hears where somebody was. With no-referrer, browsers would also hide from us
    # where a form comes from (Origin: null), which is what tells our forms from others'.
    "Referrer-Policy": "same-origin",
    "Vary": "HX-Request",
}
_NOBODY = Principal("", frozenset())
_PAGES = Environment(
    loader=PackageLoader("server.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,  # a process shows pages of its own version, also while files are replaced
)
_PAGES.globals |= {"url_of": url_of, "Right": Right}
_PAGES.filters |= words.FILTERS


def is_partial(request: Request) -> bool:
    """Return whether htmx asks, for what changes on a page."""
    return "hx-request" in request.headers


def view(
    request: Request,
    template: str,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    now: datetime | None = None,
    **context: Any,  # noqa: ANN401
) -> Response:
    """Return a page from `template`; `now` is what its ages and countdowns are counted from."""
    caller: Principal = getattr(request.state, "principal", _NOBODY)
    text = _PAGES.get_template(template).render(
        layout="part.html" if is_partial(request) else "page.html",
        path=request.url.path,
        caller=caller,
        rights=caller.rights,
        is_open=caller is ANYBODY,
        now=now or datetime.now(UTC),
        **context,
    )
    body = text.encode("utf-8", "replace")  # an item may be what no encoding has
    return Response(body, status, {**HEADERS, **(headers or {})}, "text/html; charset=utf-8")
