"""`blindtally simulate number-sums`: means of a data file, by segment if its items have one."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from blindtally.cli import app


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["simulate", "number-sums", *args])
    return result.exit_code, result.stderr if result.exit_code else result.stdout


def document_of(*args: str) -> dict[str, Any]:
    code, text = run(*args, "--json", "-")
    assert code == 0, text
    document: dict[str, Any] = json.loads(text)
    return document


def test_the_mean_of_a_file_is_in_its_interval() -> None:
    """The seed is fixed; of all seeds, one in twenty fails."""
    document = document_of("--data", "ages", "--rounds", "3", "--devices", "2000")
    (row,) = document["numbers"]
    assert (row["segment"], row["devices"], document["devices"]) == (None, 6000, 6000)
    assert row["mean_low"] < row["true_mean"] < row["mean_high"]
    assert row["mean_high"] - row["mean_low"] < 1
    low, high = row["standard_deviation_low"], row["standard_deviation_high"]
    assert low < row["true_deviation"] < high


def test_secure_sums_with_dropouts_give_means_per_segment(tmp_path: Path) -> None:
    path = tmp_path / "rents.csv"
    path.write_text("item,count\nnorth:3,500\nnorth:9,100\nsouth:7,50\nsouth:x,3\nsouth:99,1\n")
    asked = [
        "--data",
        str(path),
        "--rounds",
        "2",
        "--devices",
        "60",
        "--set",
        "low=0",
        "--set",
        "high=10",
    ]
    document = document_of(
        *asked, "--set", "sum=pairwise", "--set", "dropout=0.05", "--set", "alpha=8"
    )
    assert document["question"]["domain"]["segments"] == ["north", "south"]
    assert document["question"]["domain"]["inner"]["alpha"] == 8
    assert document["items_outside_domain"] == 2
    assert document["devices"] < 120
    assert [row["segment"] for row in document["numbers"]][:2] == [None, "north"]
    code, text = run(*asked)
    assert code == 0
    assert "north" in text
    assert "rounding" in text


def test_the_row_of_all_segments_states_that_small_ones_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rents.csv"
    path.write_text("item,count\nnorth:2,970\nnorth:3,970\nsouth:9,30\n")
    asked = ["--data", str(path), "--rounds", "1", "--devices", "100", "--threshold", "20"]
    row, north = document_of(*asked, "--set", "low=0", "--set", "high=10")["numbers"]
    assert row["devices"] == north["devices"] > 90
    assert row["true_mean"] == north["true_mean"] == 2.5
    _, text = run(*asked, "--set", "low=0", "--set", "high=10")
    assert "all shown" in text
    assert "fewer than the threshold are in no row" in " ".join(text.split())


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--data", "words"], "there are no numbers"),
        (["--data", "ages", "--set", "low=500", "--set", "high=600"], "is between 500 and 600"),
        (["--data", "ages", "--epsilon", "2"], "takes no --epsilon"),
        (["--data", "ages", "--levels", "9"], "use fewer digits"),
    ],
)
def test_studies_without_an_answer_are_refused(args: list[str], reason: str) -> None:
    code, text = run(*args)
    assert code != 0
    assert reason in text
