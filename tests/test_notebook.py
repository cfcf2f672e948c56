"""The notebook for new users runs from end to end, and its stored outputs are current."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "first-study.ipynb"


def texts(notebook: Any) -> list[str]:
    """Return the outputs of each cell of code, without identifiers, bytes and times."""
    shown = [
        "".join(o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in outputs)
        for outputs in (cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    ]
    return [
        re.sub(r"[\d,]+ bytes sent, [\d,]+ received|<Study \w+|\d running None\n", "", text)
        for text in shown
    ]


def test_the_notebook_runs_and_shows_what_is_kept_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    kept = nbformat.read(NOTEBOOK, nbformat.NO_CONVERT)
    ran = nbformat.read(NOTEBOOK, nbformat.NO_CONVERT)
    NotebookClient(ran, timeout=120, resources={"metadata": {"path": str(ROOT)}}).execute()
    assert texts(ran) == texts(kept)
    assert "lunch" in "".join(texts(ran))


def test_links_of_the_notebook_lead_to_files() -> None:
    cells = nbformat.read(NOTEBOOK, nbformat.NO_CONVERT).cells
    prose = "".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", prose)
    assert len(links) > 4
    assert all((NOTEBOOK.parent / link).exists() for link in links)
