"""`blindtally simulate` by frequency oracles: errors, their expectation, and heavy hitters."""

import json
from pathlib import Path

import numpy as np
import pytest

from protocol.mechanisms.reports.oracle_errors import expected_max_squared_error
from tests.blindtally.simulate.test_heavy import simulate


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Return a file of 300 words of which one is frequent."""
    path = tmp_path / "words.csv"
    path.write_text("word,count\nfirst,1000\n" + "".join(f"w{n},5\n" for n in range(299)))
    return path


def test_the_greatest_square_of_normal_errors_is_as_simulated() -> None:
    """Compare with 2,000 runs each: a standard error of 1% or less."""
    rng = np.random.default_rng(1)
    for variances in (np.ones(100), np.array([4.0, *np.ones(50), 0.0]), np.array([2.0])):
        runs = rng.normal(0, np.sqrt(variances), (2000, len(variances)))
        assert expected_max_squared_error(variances) == pytest.approx(
            (runs**2).max(axis=1).mean(), rel=0.06
        )
    assert expected_max_squared_error(np.zeros(3)) == 0


@pytest.mark.parametrize("mechanism", ["ocms", "recursive-hadamard"])
def test_the_default_threshold_keeps_noise_out(words: Path, mechanism: str) -> None:
    """Check that only one item is above it; one of 299 rare items is with probability 5%."""
    common = [mechanism, "--data", words, "--devices", 4000, "--epsilon", 3]
    result = simulate(*common, "--json", "-")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert [hitter["item"] for hitter in document["heavy_hitters"]] == ["first"]
    assert document["found"] == 1
    assert document["threshold"] > 100
    assert 0.3 < document["worst_mse"] / document["worst_mse_expected"] < 3
    assert document["worst_mse_expected"] > 2 * document["worst_mse_theory"]
    shown = " ".join(simulate(*common).stdout.split())
    assert "the smallest count that noise alone rarely reaches" in shown
    assert "worst mse expected" in shown


def test_more_confidence_takes_fewer(tmp_path: Path) -> None:
    path = tmp_path / "slope.csv"
    path.write_text("word,count\n" + "".join(f"w{n},{n}\n" for n in range(1, 60)))
    common = ["ocms-gf", "--data", path, "--devices", 4000, "--epsilon", 3, "--threshold", 60]
    few, many = (
        json.loads(simulate(*common, "--set", f"confidence={level}", "--json", "-").stdout)["found"]
        for level in (0.99, 0.5)
    )
    assert 0 < few < many - 5


def test_a_known_bound_lowers_the_worst_error(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text("word,count\n" + "".join(f"w{n},5\n" for n in range(4000)))
    common = ["ocms", "--data", path, "--devices", 2000, "--epsilon", 3, "--goal", "worst-mse"]
    options = ["--threshold", 1, "--json", "-"]
    plain, bounded = (
        json.loads(simulate(*common, *more, *options).stdout)
        for more in ([], ["--set", "max_frequency=0.01"])
    )
    assert bounded["worst_mse_theory"] < 0.8 * plain["worst_mse_theory"]
    assert len(plain["heavy_hitters"]) == plain["found"] > 1000


@pytest.mark.parametrize(
    ("mechanism", "options", "why"),
    [
        ("ocms", ["--words", 3, "--delta", 0.1], "ocms takes no --delta, --words"),
        ("ocms", ["--set", "max_frequency=0.1"], "max_frequency must be 1 except for goal worst"),
        ("ocms", ["--set", "low=0"], "low, high and alpha go with numbers"),
        ("tracked", ["--epsilon", 1, "--goal", "l2"], "tracked takes no --epsilon, --goal"),
    ],
)
def test_options_of_others_are_refused(
    words: Path, mechanism: str, options: list[object], why: str
) -> None:
    result = simulate(mechanism, "--data", words, *options)
    assert result.exit_code == 2
    assert why in result.stderr


def test_an_alphabet_or_a_length_is_the_dictionary(words: Path) -> None:
    common = ["ocms", "--data", words, "--devices", 4000, "--epsilon", 3, "--json", "-"]
    result = json.loads(simulate(*common, "--set", "alphabet=firstw0123", "--levels", 5).stdout)
    assert result["domain"] == 11**5  # shorter ones are filled up
    assert result["heavy_hitters"][0]["item"] == "first"
    assert result["items_outside_domain"] > 100
    result = json.loads(simulate(*common, "--levels", 3).stdout)
    assert result["domain"] == 100
    assert result["l2"] == pytest.approx(result["l2_theory"], rel=0.6)
    assert result["items_outside_domain"] == 200
    refused = simulate(*common, "--levels", 1)
    assert "has no item of 1 bytes at most: a dictionary must have 2" in refused.stderr
    refused = simulate(*common, "--set", "alphabet=firstw", "--levels", 9)
    assert "the domain has 40,353,607 keys; 2 to 1,048,576 are possible" in refused.stderr


def test_how_small_a_dictionary_is_counts_one_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("word,count\na,5\nb,6\n")
    refused = simulate("ocms", "--data", path, "--devices", 100)
    assert "domain must be more than m = 3, not 3" in refused.stderr
    assert "(2 items, and no item)" in refused.stderr


def test_one_item_is_too_few_for_a_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("word,count\nonly,9\n")
    for mechanism in ("ocms", "jl-hh"):
        result = simulate(mechanism, "--data", path)
        assert result.exit_code == 2
        assert "one item only" in result.stderr
