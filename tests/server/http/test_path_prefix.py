"""Below a path of a proxy, every link of every page leads to a page below it."""

import re
from html import unescape

import pytest

from server.settings import Settings
from tests.server.conftest import Serve
from tests.server.harness import Served, play
from tests.server.pages.browsing import SAME_ORIGIN

PREFIX = "/our/statistics"
PUBLIC = {"public_url": f"https://example.org{PREFIX}/"}
LINK = re.compile(r'(href|action|src|hx-get|hx-post|data-events)="([^"#]+)')


async def crawl(served: Served, first: str) -> set[str]:
    """Return the addresses of ours that the pages behind `first` link to, each once."""
    pages, seen = [first], set[str]()
    while pages:
        response = await served.client.get(pages.pop())
        assert response.status_code == 200, response.url
        if not response.headers["content-type"].startswith("text/html"):
            continue
        for kind, link in LINK.findall(response.text):
            # Forms are sent by POST, and a stream of events does not end.
            if kind in ("href", "src") and link not in seen and link.startswith(PREFIX):
                pages.append(unescape(link))
            seen.add(link)
    return seen


@pytest.mark.parametrize("is_removed", [False, True], ids=["kept", "removed by the proxy"])
async def test_every_link_leads_below_the_prefix(
    serve: Serve, sqlite_url: str, *, is_removed: bool
) -> None:
    async with serve(sqlite_url, **PUBLIC) as served:
        study = await served.create(rounds=2)
        await play(served, study)
        await served.until_closed(study)
        asked = f"/studies/{study}" if is_removed else f"{PREFIX}/studies/{study}"
        links = await crawl(served, asked)
        ours = (f"{PREFIX}/", "https:")
        assert not [link for link in links if not link.startswith(ours)]
        pages = {re.sub(r"\?.*", "", link.removeprefix(PREFIX)) for link in links}
        assert {"/", "/help", "/operations", f"/studies/{study}/rounds/1"} <= pages
        stopped = await served.client.post(f"{asked}/stop", headers=SAME_ORIGIN)
        assert stopped.headers["location"] == f"{PREFIX}/studies/{study}"
        assert (await served.client.get(PREFIX)).status_code == 200
        waiting = await served.client.get(f"{PREFIX}/studies/{await served.create()}")
        assert f"--url https://example.org{PREFIX} " in waiting.text


async def test_without_a_prefix_its_path_is_unknown(served: Served) -> None:
    assert (await served.client.get(f"{PREFIX}/help")).status_code == 404


@pytest.mark.parametrize("path", ["//evil.example", "/a b", "/a%2f", "/%22", "/a/../b\n"])
def test_a_prefix_needs_no_escape(path: str) -> None:
    with pytest.raises(ValueError, match="public_url"):
        Settings(public_url=f"https://example.org{path}")
