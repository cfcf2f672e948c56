"""The documentation's site builds strictly, has all pages, and loads nothing from other sites."""

import re
import shutil
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

import blindtally
from tools.docs_hooks import ADDED_PAGES, notebook_markdown

ROOT = Path(__file__).parents[1]
LOADED_FROM_ELSEWHERE = re.compile(r'<(?:script|link|img)\b[^>]*(?:src|href)="(\w+://[^"]*)')


def test_the_site_has_each_page_and_its_build_stops_at_broken_links_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build the site once, with three broken links: warnings are counted after the last page."""
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    docs, site = tmp_path / "docs", tmp_path / "site"
    shutil.copytree(ROOT / "docs", docs)
    with (docs / "access.md").open("a") as page:
        page.write("\n[x](nowhere.md) [x](sdk.md#nowhere) [x](#nowhere)\n")
    config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(site))
    with pytest.raises(Abort, match="Aborted with 3 warnings"):
        build(config)
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
