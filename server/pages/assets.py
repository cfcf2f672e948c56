"""Scripts and styles: read once, named by what they hold, kept by browsers for good.

There is no folder behind the path, only the files that were there at the start: nothing else
can be asked for, however the path is written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from fastapi import APIRouter, Response

from server.refusals import not_found

TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FOR_GOOD = "public, max-age=31536000, immutable"
router = APIRouter(prefix="/static", include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages load; `version` is the beginning of its SHA-256."""

    body: bytes
    media_type: str
    version: str


@cache
def assets() -> Mapping[str, Asset]:
    """Return what pages load, by name."""
    return dict(_found(files("server.pages") / "static"))


def _found(folder: Traversable) -> Iterator[tuple[str, Asset]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _found(entry)
        elif (media_type := TYPES.get(entry.name.rpartition(".")[2])) is not None:
            body = entry.read_bytes()
            yield entry.name, Asset(body, media_type, sha256(body).hexdigest()[:12])


def url_of(name: str) -> str:
    """Return where an asset is: another one has another address."""
    return f"/static/{name}?v={assets()[name].version}"


@router.get("/{name}")
async def asset(name: str, v: str = "") -> Response:
    """Return a script, a style or an image."""
    found = assets().get(name)
    if found is None:
        raise not_found("file")
    caching = _FOR_GOOD if v == found.version else "no-cache"
    return Response(found.body, 200, {"Cache-Control": caching}, found.media_type)
