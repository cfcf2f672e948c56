"""The page of terms has each place that another page links to."""

import re
from pathlib import Path

import server.pages
from server.pages.forms.fields import QUESTION_FORMS
from tests.server.harness import Served
from tests.server.pages.browsing import page_of

SOURCES = [
    path
    for ending in ("py", "html")
    for path in Path(server.pages.__path__[0]).rglob(f"*.{ending}")
]
ANCHOR = re.compile(r'(?:macros\.help\(|help_anchor=)"([\w-]+)"')


async def test_each_help_link_leads_to_its_term(served: Served) -> None:
    page = await page_of(served, "/help")
    anchors = {anchor for path in SOURCES for anchor in ANCHOR.findall(path.read_text())}
    assert {"privacy", "phases", "sampling"} <= anchors
    missing = {anchor for anchor in anchors | QUESTION_FORMS.keys() if f'id="{anchor}"' not in page}
    assert missing == set()
    assert 'href="/help" aria-current="page"' in page
