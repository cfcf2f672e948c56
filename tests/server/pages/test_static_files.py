"""Vendored files equal those of npm, byte for byte, and all assets are small."""

import tomllib
from hashlib import sha256
from importlib.resources import files

import pytest

from server.pages.rendering import assets, url_of
from tests.server.harness import Served

VENDORED = files("server.pages") / "static" / "vendored"
PAGE_OF_DEVICE = ("blindtally-device.js", "join.css", "join.js")  # one page loads them
VENDORED_FILES = tomllib.loads((VENDORED / "vendored.toml").read_text())["file"]


@pytest.mark.parametrize("entry", VENDORED_FILES, ids=lambda entry: str(entry["path"]))
def test_a_vendored_file_equals_its_entry(entry: dict[str, str]) -> None:
    body = (VENDORED / entry["path"]).read_bytes()
    assert sha256(body).hexdigest() == entry["sha256"]
    assert entry["version"] in entry["source"]
    assert entry["integrity"].startswith("sha512-")
    assert entry["licence"] in ("0BSD", "MIT")
    assert (VENDORED / entry["text"]).read_text().strip()


def test_every_vendored_file_has_an_entry() -> None:
    known = {entry[key] for entry in VENDORED_FILES for key in ("path", "text")}
    assert {file.name for file in VENDORED.iterdir()} == known | {"vendored.toml"}


def test_all_that_pages_load_is_small() -> None:
    loaded = [asset for name, asset in assets().items() if name not in PAGE_OF_DEVICE]
    assert sum(len(asset.body) for asset in loaded) < 78_000


async def test_browsers_cache_an_asset_forever_under_its_address(served: Served) -> None:
    for name, asset in assets().items():
        response = await served.client.get(url_of(name))
        assert (response.status_code, response.content) == (200, asset.body)
        assert "content-encoding" not in response.headers
        assert "immutable" in response.headers["cache-control"]
        assert response.headers["x-content-type-options"] == "nosniff"
    old = await served.client.get("/static/app.js?v=before")
    assert old.headers["cache-control"] == "no-cache"


async def test_who_accepts_brotli_receives_the_packed_bundle(served: Served) -> None:
    url, packed = url_of("blindtally-device.js"), assets()["blindtally-device.js"].packed
    for accepted, encoding in {"gzip, br": "br", "br;q=0, *": None, "gzip": None}.items():
        response = await served.client.get(url, headers={"Accept-Encoding": accepted})
        assert response.headers.get("content-encoding") == encoding
        assert response.headers["vary"] == "Accept-Encoding"
        assert (response.content == packed) == (encoding == "br")


async def test_no_other_file_is_served(served: Served) -> None:
    files = "vendored.toml", "LICENSE.htmx.txt", "..%2Frendering.py", "blindtally-device.js.br"
    for name in (*files, "%2Fetc%2Fpasswd", "none.js"):
        assert (await served.client.get(f"/static/{name}")).status_code == 404
