"""Hooks of the documentation's site: pages from outside `docs/`, and links to them.

The Markdown files are written for a reader of the repository. The site has the same pages: the
README, the page of examples and the notebook become pages too, and links to any of them
are rewritten. A link to a file that the site does not have, such as a program, becomes its text. A
comment `<!-- on the site` appears there. Reference pages are made from the program. Search leaves
research out.
"""

import json
import os.path
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.budget import is_research
from tools.docs_reference import reference_pages

ROOT: Final = Path(__file__).parents[1]
ADDED_PAGES: Final = {  # source in the repository, and its page
    "README.md": "index.md",
    "docs/README.md": "all-pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
    "js/README.md": "javascript.md",
    "docs/first-study.ipynb": "first-study.md",
}
_SOURCES: Final = {page: source for source, page in ADDED_PAGES.items()}
_LINK: Final = re.compile(
    r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\]\([^()]*\))*)\]\(([^()#\s]*)(#[^()\s]*)?\)"
)
_SITE_ONLY: Final = re.compile(r"^<!-- on the site\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
_CODE_BLOCK: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside `docs/`; leave out the files that they are made of."""
    for source, page in ADDED_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        content = notebook_markdown(json.loads(text)) if source.endswith(".ipynb") else text
        files.append(File.generated(config, page, content=content))
    for page, content in reference_pages().items():
        files.append(File.generated(config, page, content=content))
    for name in ("first-study.ipynb", "README.md"):
        if file := files.get_file_from_path(name):
            files.remove(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the Markdown of a page with the links of the site."""
    del config
    if is_research(page.file.src_uri):
        page.meta["search"] = {"exclude": True}
    if page.file.src_uri.startswith("reference-"):
        page.meta["search"] = {"boost": 0.1}  # an answer is in a guide, if there is one
    source = _SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    known = {file.src_uri for file in files}
    parts = _CODE_BLOCK.split(_SITE_ONLY.sub(r"\1", markdown))
    parts[::2] = [_with_site_links(part, source, page.file.src_uri, known) for part in parts[::2]]
    return "".join(parts)


def notebook_markdown(notebook: dict[str, Any]) -> str:
    """Return the cells of a notebook and their printed outputs as Markdown."""
    blocks = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(text)
            continue
        blocks.append(f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            printed = output.get("text") or output.get("data", {}).get("text/plain", [])
            if printed:
                blocks.append(f"```text\n{''.join(printed).rstrip()}\n```")
    return "\n\n".join(blocks) + "\n"


def _with_site_links(text: str, source: str, page: str, known: set[str]) -> str:
    """Return `text` of the file `source`, which is `page` of the site, with the site's links."""

    def site_link(match: re.Match[str]) -> str:
        image, label, target, anchor = match.groups(default="")
        if "[" in label:  # a picture with a link
            label = _LINK.sub(site_link, label)
        if not target or "://" in target or target.startswith("mailto:"):
            return f"{image}[{label}]({target}{anchor})"
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        address = ADDED_PAGES.get(path, path.removeprefix("docs/"))
        if address not in known and (ROOT / path).exists():
            return label  # the site does not have this file
        relative = os.path.relpath(address, os.path.dirname(page) or ".")
        return f"{image}[{label}]({relative}{anchor})"

    return _LINK.sub(site_link, text)
