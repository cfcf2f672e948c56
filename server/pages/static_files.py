"""Static files that pages load: scripts, styles and images.

They are read once, addressed by a hash of their content, and cached by browsers forever. No path,
however it is written, reaches a file that was not read at the start.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Response

from server.errors import not_found

MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_IMMUTABLE = "public, max-age=31536000, immutable"
router = APIRouter(prefix="/static", include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages load; `version` is the beginning of its SHA-256."""

    body: bytes
    media_type: str
    version: str


@cache
def assets() -> Mapping[str, Asset]:
    """Return the files that pages load, by name."""
    by_name = {}
    for file in (Path(__file__).parent / "static").rglob("*"):
        if (media_type := MEDIA_TYPES.get(file.suffix)) is not None:
            body = file.read_bytes()
            by_name[file.name] = Asset(body, media_type, sha256(body).hexdigest()[:12])
    return by_name


def url_of(name: str) -> str:
    """Return the address of an asset; new content has a new address."""
    return f"/static/{name}?v={assets()[name].version}"


@router.get("/{name}")
async def get_asset(name: str, v: str = "") -> Response:
    """Return a script, a style or an image."""
    asset = assets().get(name)
    if asset is None:
        raise not_found("file")
    caching = _IMMUTABLE if v == asset.version else "no-cache"
    return Response(asset.body, 200, {"Cache-Control": caching}, asset.media_type)
