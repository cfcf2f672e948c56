"""The notebook that a new user follows runs from end to end, and shows what is kept in it."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "first-study.ipynb"


def texts(notebook: Any) -> list[str]:
    """Return what each cell of code printed or showed, but for ids, bytes and moments."""
    shown = [
        "".join(one.get("text", "") or one.get("data", {}).get("text/plain", "") for one in outputs)
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
    for is_now, was in zip(texts(ran), texts(kept), strict=True):
        assert is_now == was
    assert "lunch" in "".join(texts(ran))


def test_the_notebook_points_at_what_is_there() -> None:
    cells = nbformat.read(NOTEBOOK, nbformat.NO_CONVERT).cells
    prose = "".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", prose)
    assert len(links) > 4
    assert all((NOTEBOOK.parent / link).exists() for link in links)
