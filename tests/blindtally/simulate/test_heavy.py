"""`blindtally simulate` by reports that need no dictionary: items found, missed and wrong."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from blindtally.cli import app
from tests.blindtally.planning.test_plan import parsed


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Return a file of 300 words of which three are frequent."""
    path = tmp_path / "words.csv"
    heavy = "first,4000\nsecond,3000\nthird,1500\n"
    path.write_text("word,count\n" + heavy + "".join(f"w{n},5\n" for n in range(297)))
    return path


@pytest.mark.parametrize(
    ("mechanism", "threshold", "heavy", "kind"),
    [
        # A string of 6 bytes takes 6 lengths; the third's 6,000 would be 4 deviations, about.
        ("prefix-extension", 10_000, {"first", "second"}, "utf8"),
        ("jl-hh", 4000, {"first", "second", "third"}, "listed"),
        ("glps-hh", 4000, {"first", "second", "third"}, "alphabet"),
    ],
)
def test_heavy_items_are_found(
    words: Path, mechanism: str, threshold: int, heavy: set[str], kind: str
) -> None:
    options = ["--devices", 40_000, "--epsilon", 6, "--threshold", threshold, "--seed", 2]
    result = parsed(simulate(mechanism, "--data", words, *options, "--json", "-"))
    assert {hitter["item"] for hitter in result["heavy_hitters"]} == heavy
    assert (result["f1"], result["precision"], result["recall"]) == (1, 1, 1)
    assert result["missed"] == {}
    assert result["devices"] == 40_000
    assert (result["epsilon"], result["delta"], result["partial"]) == (6, 0, False)
    assert result["question"]["domain"]["kind"] == kind
    for hitter in result["heavy_hitters"]:
        assert abs(hitter["estimate"] - hitter["true_count"]) < 5 * hitter["standard_error"]


def test_missed_items_are_shown(words: Path) -> None:
    common = ["prefix-extension", "--data", words, "--devices", 2000, "--epsilon", 1]
    result = parsed(simulate(*common, "--threshold", 150, "--json", "-"))
    assert set(result["missed"]) >= {"second", "third"}
    assert result["recall"] < 1
    shown = simulate(*common, "--threshold", 150)
    assert "missed" in shown.stdout
    assert "'second'" in shown.stdout


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--set", "noise=loud"], "'paper', 'laplace'"),
        (["--set", "noise"], "--set takes NAME=VALUE"),
        (["--set", "keep=1"], "is not a known field"),
        (["--set", "epsilon=50"], "epsilon: must be from 0.01 to 32, not 50"),
        (["--words", 5], "takes no --words"),
        (["--set", "sum=pairwise"], "reports of bucket-hh have no sum"),
        (["--set", "contribution=2"], "contribution: must be 1"),
        (["--goal", "l2"], "takes no --goal"),
        (["--epsilon", 0], "epsilon: must be from 0.01 to 32, not 0"),
    ],
)
def test_impossible_options_are_reported(words: Path, options: list[object], why: str) -> None:
    shown = simulate("bucket-hh", "--data", words, *options)
    assert shown.exit_code == 2
    assert why in shown.stderr


def test_a_length_bounds_strings_and_longer_ones_are_counted(words: Path) -> None:
    words.write_text(words.read_text() + "a string of more bytes,2000\n")
    common = ["prefix-extension", "--data", words, "--devices", 5000, "--epsilon", 6]
    common += ["--levels", 6]
    shown = simulate(*common, "--threshold", 125)
    assert shown.exit_code == 0, shown.stderr
    assert "1 items outside" in shown.stdout
    assert "min detectable count" in shown.stdout
    result = parsed(simulate(*common, "--json", "-"))
    assert result["question"]["domain"]["max_bytes"] == 6
    assert result["items_outside_domain"] == 1
    assert 500 < result["threshold"] < 5000
    assert result["threshold"] == pytest.approx(result["min_detectable_count"], abs=1)
    assert {hitter["item"] for hitter in result["heavy_hitters"]} <= {"first", "second", "third"}


def test_an_alphabet_bounds_items(words: Path) -> None:
    words.write_text(words.read_text() + "Capital,2000\n")
    common = ["glps-hh", "--data", words, "--devices", 20_000, "--epsilon", 6, "--json", "-"]
    result = parsed(simulate(*common, "--set", "alphabet=abcdefghijklmnopqrstuvwxyz0123456789"))
    assert result["question"]["domain"]["kind"] == "alphabet"
    assert result["items_outside_domain"] == 1
    assert result["heavy_hitters"][0]["item"] == "first"
    result = parsed(simulate(*common, "--levels", 6))
    assert result["question"]["domain"] == {"kind": "utf8", "max_bytes": 6}
    shown = simulate("prefix-extension", "--data", words, "--set", "alphabet=abc")
    assert "is of strings of any characters" in shown.stderr


def test_the_default_threshold_is_that_of_noise(words: Path) -> None:
    common = ["--devices", 1000, "--epsilon", 1, "--json", "-"]
    result = parsed(simulate("bucket-hh", "--data", words, *common))
    assert result["found"] == 0
    assert 4 * 2.1 < result["threshold"] / 1000**0.5 < 4 * 2.4  # its deviation at epsilon 1 is 2.2


def test_a_string_of_any_length_is_found_by_its_hash(words: Path) -> None:
    words.write_text(words.read_text() + "a long string with Spaces,9000\n")
    options = ["--devices", 40_000, "--epsilon", 6, "--seed", 2, "--json", "-"]
    result = parsed(simulate("glps-hh", "--data", words, *options))
    assert result["question"]["domain"]["kind"] == "hashed"
    assert result["heavy_hitters"][0]["item"] == "a long string with Spaces"
    assert result["threshold"] > 1000


def test_precision_of_no_item_is_not_available(words: Path) -> None:
    common = ["jl-hh", "--data", words, "--devices", 500, "--epsilon", 1]
    shown = " ".join(simulate(*common, "--threshold", 499).stdout.split())
    assert "which no item has: precision and recall have no meaning" in shown
    shown = simulate(*common, "--threshold", 190).stdout
    assert "n/a (nothing was found)" in shown
