"""The documentation's site builds strictly, has all pages, and loads nothing from other sites."""

import re
import shutil
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

import blindtally
from tools import docs_reference
from tools.docs_hooks import ADDED_PAGES, notebook_markdown

ROOT = Path(__file__).parents[1]
LOADED_FROM_ELSEWHERE = re.compile(r'<(?:script|link|img)\b[^>]*(?:src|href)="(\w+://[^"]*)')


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")


def build_site(folder: Path, docs: Path = ROOT / "docs") -> Path:
    """Return the folder of the built site; raises Abort if a link or an anchor is broken."""
    site = folder / "site"
    config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(site))
    build(config)
    return site


def test_the_site_has_each_page_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = build_site(tmp_path)
    pages = {path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/**/*.md")}
    for page in pages | set(map(Path, ADDED_PAGES.values())):
        name = "index.html" if page.name == "README.md" else f"{page.stem}.html"
        assert (site / page.with_name(name)).exists(), page
    for path in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)\b[^>]*(?:src|href)="(\w+://[^"]*)', path.read_text()
        )
        assert loaded == [], path
    start = (site / "start.html").read_text()
    assert 'src="dashboard.png"' in start
    assert 'href="sdk.html#take-part"' in start
    assert 'href="first-study.html"' in start
    assert "--threshold" in (site / "reference-commands.html").read_text()
    assert "heavy-hitters" in (site / "reference-http.html").read_text()
    python = (site / "reference-python.html").read_text()
    headings = set(re.findall(r"<h2[^>]*>(?:<[^>]*>|\s)*(\w+)", python))
    assert headings >= set(blindtally.__all__)
    assert "keyboard_words.py" in (site / "examples.html").read_text()


def test_broken_links_and_anchors_stop_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = dict.fromkeys(docs_reference.reference_pages(), "# Short\n")
    monkeypatch.setattr(docs_reference, "reference_pages", lambda: pages)
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", docs)
    with (docs / "access.md").open("a") as page:
        page.write("\n[x](nowhere.md) [x](sdk.md#nowhere) [x](#nowhere)\n")
    with pytest.raises(Abort, match="Aborted with 3 warnings"):
        build_site(tmp_path, docs)


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
