"""What others wrote is what npm has, byte for byte, and small."""

import tomllib
from hashlib import sha256
from importlib.resources import files

import pytest

from server.pages.assets import assets, url_of
from tests.server.harness import Served

VENDORED = files("server.pages") / "static" / "vendored"
STATED = tomllib.loads((VENDORED / "vendored.toml").read_text())["file"]


@pytest.mark.parametrize("stated", STATED, ids=lambda stated: str(stated["path"]))
def test_a_vendored_file_is_the_one_that_is_stated(stated: dict[str, str]) -> None:
    body = (VENDORED / stated["path"]).read_bytes()
    assert sha256(body).hexdigest() == stated["sha256"]
    assert stated["version"] in stated["source"]
    assert stated["integrity"].startswith("sha512-")
    assert stated["licence"] in ("0BSD", "MIT")
    assert (VENDORED / stated["text"]).read_text().strip()


def test_every_vendored_file_is_stated() -> None:
    known = {one["path"] for one in STATED} | {one["text"] for one in STATED}
    assert {one.name for one in VENDORED.iterdir()} == known | {"vendored.toml"}


def test_all_that_pages_load_is_small() -> None:
    assert sum(len(one.body) for one in assets().values()) < 120_000


async def test_an_asset_is_kept_for_good_under_the_address_that_pages_use(served: Served) -> None:
    for name, asset in assets().items():
        response = await served.client.get(url_of(name))
        assert (response.status_code, response.content) == (200, asset.body)
        assert "immutable" in response.headers["cache-control"]
        assert response.headers["x-content-type-options"] == "nosniff"
    old = await served.client.get("/static/app.js?v=before")
    assert old.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "name", ["vendored.toml", "LICENSE.uplot.txt", "..%2Fview.py", "%2Fetc%2Fpasswd", "none.js"]
)
async def test_nothing_else_can_be_asked_for(served: Served, name: str) -> None:
    assert (await served.client.get(f"/static/{name}")).status_code == 404
