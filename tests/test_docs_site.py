"""The documentation's site builds strictly, has all pages, and loads nothing from other sites."""

import re
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from playwright.sync_api import Browser, expect

import blindtally
from tools.docs_hooks import ADDED_PAGES, notebook_markdown

ROOT = Path(__file__).parents[1]
LOADED_FROM_ELSEWHERE = re.compile(r'<(?:script|link|img)\b[^>]*(?:src|href)="(\w+://[^"]*)')
# What people type, and the recipe that they should see first.
WORDS = "refuse", "delete", "restore", "tls", "quantiles", "upgrade the server", "tell users"
RECIPES = "refusals", "delete-data", "back-up", "nginx", "quantiles", "upgrade", "explain"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once, with three broken links: warnings are counted after the last page."""
    folder = tmp_path_factory.mktemp("documentation")
    docs, site = folder / "docs", folder / "site"
    shutil.copytree(ROOT / "docs", docs)
    with (docs / "access.md").open("a") as page:
        page.write("\n[x](nowhere.md) [x](sdk.md#nowhere) [x](#nowhere)\n")
    config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(site))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        with pytest.raises(Abort, match="Aborted with 3 warnings"):
            build(config)
    return site


def test_the_site_has_each_page_and_its_build_stops_at_broken_links_only(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/**/*.md")}
    for path in pages | set(map(Path, ADDED_PAGES.values())):
        name = "index.html" if path.name == "README.md" else f"{path.stem}.html"
        assert (site / path.with_name(name)).exists(), path
    for path in site.rglob("*.html"):
        assert LOADED_FROM_ELSEWHERE.findall(path.read_text()) == [], path
    index = (site / "search" / "search_index.json").read_text()
    assert "threat-model.html" in index
    assert not re.search(r'"location":"(research/|security-proof)', index)
    start = (site / "index.html").read_text()
    assert 'src="dashboard.png"' in start
    assert 'href="sdk.html#take-part"' in start
    assert 'href="first-study.html"' in start
    commands = (site / "reference-commands.html").read_text()
    assert "--threshold" in commands
    assert "BLINDTALLY_KEEP_AUDIT_DAYS" in commands
    assert "heavy-hitters" in (site / "reference-http.html").read_text()
    assert "blindtally_jobs" in (site / "reference-metrics.html").read_text()
    python = (site / "reference-python.html").read_text()
    headings = set(re.findall(r"<h2[^>]*>(?:<[^>]*>|\s)*(\w+)", python))
    assert headings >= set(blindtally.__all__)
    assert "keyboard_words.py" in (site / "examples.html").read_text()


def test_the_search_finds_the_words_that_people_type(site: Path, browser: Browser) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        field = page.get_by_role("textbox", name="Search")
        for words, recipe in zip(WORDS, RECIPES, strict=True):
            field.clear()
            field.press_sequentially(words)
            first = page.locator(".md-search-result__item a").first
            expect(first).to_have_attribute("href", re.compile(f"/recipes/{recipe}.html"))
        page.close()
        server.shutdown()


def test_a_notebook_becomes_its_cells_and_outputs() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# A\n", "text"]},
        {
            "cell_type": "code",
            "source": ["1 + 1"],
            "outputs": [{"data": {"text/plain": ["2"]}}, {"text": ["shown\n"]}, {"data": {}}],
        },
    ]
    assert notebook_markdown({"cells": cells}) == (
        "# A\ntext\n\n```python\n1 + 1\n```\n\n```text\n2\n```\n\n```text\nshown\n```\n"
    )
