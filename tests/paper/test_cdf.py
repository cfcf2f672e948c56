"""The figure of a distribution: true, and released in three ways."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from paper.commands import app


def test_a_figure_shows_the_distribution(numbers: str, tmp_path: Path) -> None:
    drawn = tmp_path / "cdf.svg"
    words = ["cdf", "--data", numbers, "--devices", "5000", "--epsilon", "2"]
    files = ["--out", str(drawn), "--json", str(tmp_path / "cdf.json")]
    result = CliRunner().invoke(app, words + files)
    assert result.exit_code == 0, result.output
    assert drawn.read_text().startswith("<?xml")
    methods = json.loads((tmp_path / "cdf.json").read_text())
    for name in ("histogram, in noise", "trie, in noise", "trie, sampled"):
        row = methods[name]
        assert row["true"][0] == 0
        assert row["true"][-1] == 1
        off = np.abs(np.array(row["ranks"]) - row["true"])
        assert off.max() < 0.1
        assert (np.array(row["low"]) <= row["ranks"]).all()
    assert methods["histogram, in noise"]["max_error"] < methods["trie, sampled"]["max_error"]


@pytest.mark.parametrize(
    ("args", "reason"),
    [(["--out", "cdf.gif"], "ends in"), (["--low", "9", "--high", "1"], "below")],
)
def test_a_figure_that_cannot_be_drawn_has_a_reason(
    numbers: str, args: list[str], reason: str
) -> None:
    result = CliRunner().invoke(app, ["cdf", "--data", numbers, *args])
    assert (result.exit_code, reason in result.output) == (2, True)
