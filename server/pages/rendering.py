"""Rendering of pages: templates with their context, and the scripts and styles that pages load.

A page is whole, or only its live part for a request of htmx. All text is escaped unless it comes
from a template, and the content security policy forbids scripts and styles in pages.

Scripts, styles and images are read once, addressed by a hash of their content, and cached by
browsers forever. No path, however it is written, reaches a file that was not read at the start.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from hashlib import sha256
from inspect import getmembers, isfunction
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from fastapi import APIRouter, Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from protocol.api.events import EventKind
from protocol.printable import escape_hidden
from server.db.store import Store
from server.errors import not_found
from server.http.auth import SHARED_PREFIX
from server.http.path_prefix import path_prefix
from server.http.response_headers import accepted_ranges
from server.pages import formatting
from server.pages.charts.drawing import Chart
from server.principals import ANONYMOUS, VISITOR, Permission, Principal

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
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_IMMUTABLE = "public, max-age=31536000, immutable"
router = APIRouter(prefix="/static", include_in_schema=False)
_MAX_LOGGED_FAULTS: Final = 1000  # charts whose faults are not logged again
_log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages load; `packed` is its Brotli form, if the folder has one."""

    body: bytes
    packed: bytes | None
    media_type: str
    digest: bytes  # SHA-256

    @property
    def version(self) -> str:
        return self.digest.hex()[:12]


@cache
def assets() -> Mapping[str, Asset]:
    """Return the files that pages load, by name."""
    by_name = {}
    for file in (Path(__file__).parent / "static").rglob("*"):
        if (media_type := MEDIA_TYPES.get(file.suffix)) is not None:
            body, packed = file.read_bytes(), Path(f"{file}.br")
            brotli = packed.read_bytes() if packed.exists() else None
            by_name[file.name] = Asset(body, brotli, media_type, sha256(body).digest())
    return by_name


def url_of(name: str) -> str:
    """Return the address of an asset; new content has a new address."""
    return f"{path_prefix()}/static/{name}?v={assets()[name].version}"


@router.api_route("/{name}", methods=["GET", "HEAD"])
async def get_asset(name: str, request: Request, v: str = "") -> Response:
    """Return a script, a style or an image, packed if it is stored so and the client accepts it."""
    asset = assets().get(name)
    if asset is None:
        raise not_found("file")
    headers = {"Cache-Control": _IMMUTABLE if v == asset.version else "no-cache"}
    headers |= {"Vary": "Accept-Encoding"} if asset.packed else {}
    if asset.packed and accepted_ranges(request.scope, b"accept-encoding").get("br"):
        headers |= {"Content-Encoding": "br"}
        return Response(asset.packed, 200, headers, asset.media_type)
    return Response(asset.body, 200, headers, asset.media_type)


_TEMPLATES = Environment(
    loader=PackageLoader("server.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,  # a process shows its own version, also while files are replaced
)
_TEMPLATES.globals |= {"url_of": url_of, "root": path_prefix, "Permission": Permission}
_TEMPLATES.filters |= dict(getmembers(formatting, isfunction)) | {"escape_hidden": escape_hidden}


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
    caller: Principal = getattr(request.state, "principal", VISITOR)
    text = _TEMPLATES.get_template(template).render(
        layout="partial.html" if is_partial(request) else "page.html",
        path=path_prefix() + request.url.path,
        caller=caller,
        permissions=caller.permissions,
        is_open=caller is ANONYMOUS,
        now=now or datetime.now(UTC),
        **context,
    )
    body = text.encode("utf-8", "replace")  # an item may have characters that UTF-8 cannot encode
    sent = {**PAGE_HEADERS, **(headers or {})}
    if request.url.path.startswith(SHARED_PREFIX):  # the address has a token, and no form posts
        sent["Referrer-Policy"] = "no-referrer"
    return Response(body, status, sent, "text/html; charset=utf-8")


def drawn(study: str, title: str, draw: Callable[[], T], *, otherwise: T) -> T:
    """Return the result of `draw`, or `otherwise` if it fails: a chart never costs its page.

    A page that follows its study draws every chart again and again, so a fault is logged once.
    """
    try:
        return draw()
    except Exception as error:
        log_chart_fault(study, title, type(error).__name__)
        return otherwise


@lru_cache(_MAX_LOGGED_FAULTS)
def log_chart_fault(study: str, title: str, error: str) -> None:
    _log.exception("chart not drawn", study=study, chart=title, error=error)


@dataclass(frozen=True, slots=True)
class DrawnChart:
    """A chart as its HTML in a page; `chart` is None if it is faulty."""

    html: str
    chart: Chart | None

    def __html__(self) -> str:
        return self.html


def draw_chart(study: str, title: str, make: Callable[[], Chart | None]) -> DrawnChart | None:
    """Return a chart, None if there is none; the HTML of a faulty one says so."""
    macros: Any = _TEMPLATES.get_template("macros.html").module
    html_of: Callable[[Chart], str] = macros.chart

    def draw() -> DrawnChart | None:
        chart = make()
        return None if chart is None else DrawnChart(html_of(chart), chart)

    faulty: DrawnChart | None = DrawnChart(macros.undrawn_chart(title), None)
    return drawn(study, title, draw, otherwise=faulty)


def render_svg(template: str, **context: Any) -> Response:  # noqa: ANN401
    """Return a drawing of its own, with its colours, from `template`."""
    text = _TEMPLATES.get_template(template).render(**context)
    return Response(text.encode("utf-8", "replace"), 200, PAGE_HEADERS, MEDIA_TYPES[".svg"])


async def event_context(store: Store, study: str) -> dict[str, Any]:
    """Return the event stream's parameters for a page of `study`.

    Call this before reading anything else of the study, so that the page misses no event.
    """
    last = await store.events.last_numbers((study,))
    return {"event_kinds": " ".join(EventKind), "last_event": last.get(study, 0)}
