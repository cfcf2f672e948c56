"""`blindtally simulate` of released counts: words by a trie, numbers by a trie and a histogram."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from blindtally.cli import app

LETTERS = "abcdefgh"


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["simulate", *args])
    return result.exit_code, result.stderr if result.exit_code else result.stdout


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a file of 2,000 words whose shares fall as 1 / rank."""
    rng = np.random.default_rng(1)
    made = {"".join(rng.choice(list(LETTERS), rng.integers(2, 7))) for _ in range(4000)}
    rows = [f"{word},{10**7 // rank}" for rank, word in enumerate(sorted(made)[:2000], 1)]
    path = tmp_path_factory.mktemp("data") / "words.csv"
    path.write_text("\n".join(["word,count", *rows, "averylongword,5000000"]))
    return str(path)


def deviations_of_first(document: dict[str, Any]) -> list[float]:
    """Return the errors of the first 40 heavy hitters, in standard errors."""
    hitters = document["heavy_hitters"][:40]
    return [(hit["estimate"] - hit["true_count"]) / hit["standard_error"] for hit in hitters]


def test_a_trie_that_finds_nothing_names_the_votes_that_epsilon_needs(words: str) -> None:
    code, text = run("triehh", "--data", words, "--devices", "300", "--levels", "6")
    output = " ".join(text.split())
    assert code == 0, text
    assert "Heavy hitters" not in text
    assert "rounds complete is listed. One is listed from a count of about" in output
    assert "votes in a level, and a device votes with probability" in output
    assert "such devices list it" in output
    assert "use a lower threshold" not in output


@pytest.mark.parametrize("release", ["sample-threshold", "noise", "both"])
def test_a_trie_finds_the_most_common_words(words: str, release: str) -> None:
    asked = ["--devices", "100000", "--levels", "6", "--set", f"mode={release}"]
    code, text = run("triehh", "--data", words, *asked, "--json", "-")
    assert code == 0, text
    document = json.loads(text)
    assert document["mode"] == release
    assert document["recall_at"]["50"] == 1
    assert document["f1_at"]["50"] > 0.9
    assert 0.9 < document["epsilon"] <= 1
    assert (document["epsilon_by_party"]["server"] is None) == (release == "sample-threshold")
    assert document["m"] == pytest.approx(document["probability"] * 100_000, abs=1)
    assert document["levels"] == 6
    assert document["items_truncated"] == 1
    assert "averyl" in {hitter["item"] for hitter in document["heavy_hitters"]}  # of six symbols
    deviations = deviations_of_first(document)
    assert abs(np.mean(deviations)) < 0.8  # 5 deviations of a mean of 40
    assert np.abs(deviations).max() < 5


def test_a_trie_of_devices_that_join_by_coins_finds_the_same_words(
    words: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    asked = ["--devices", "100000", "--levels", "6", "--set", "join_probability=0.2", "--seed", "2"]
    code, text = run("triehh", "--data", words, *asked, "--json", str(out))
    assert code == 0, text
    assert "invited 0.2" in " ".join(text.split())
    document = json.loads(out.read_text())
    assert document["invited"] == document["question"]["join_probability"] == 0.2
    assert abs(document["max_participants"] - 20_000) < 5 * (100_000 * 0.16) ** 0.5
    assert document["recall_at"]["50"] == 1
    sights = document["epsilon_by_party"]
    assert 0.9 < sights["analyst"] == sights["public"] <= 1
    assert sights["server"] is sights["devices"] is None
    assert abs(np.mean(deviations_of_first(document))) < 0.8  # 5 deviations of a mean of 40


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["triehh", "--set", "join_probability=0.1"], "above the probability"),
        (["triehh", "--set", "join_probability=NaN"], "finite number"),
        (
            ["triehh", "--set", "mode=noise", "--set", "join_probability=0.5"],
            "leave join_probability at 1",
        ),
    ],
)
def test_impossible_invitations_have_a_reason(words: str, args: list[str], why: str) -> None:
    code, text = run(*args, "--data", words, "--devices", "100", "--levels", "3")
    assert code == 2
    assert why in " ".join(text.split())


def test_the_same_seed_gives_the_same_and_dropouts_lower_the_counts(words: str) -> None:
    asked = ["triehh", "--data", words, "--devices", "9000", "--levels", "3", "--json", "-"]
    (_, first), (_, same), (_, fewer) = (
        run(*asked),
        run(*asked),
        run(*asked, "--set", "dropout=0.3"),
    )
    assert json.loads(first) == json.loads(same)
    counts = [json.loads(text)["heavy_hitters"][0]["estimate"] for text in (first, fewer)]
    assert counts[1] == pytest.approx(0.7 * counts[0], rel=0.25)


def test_devices_of_several_items_vote_for_each_prefix_once(tmp_path: Path) -> None:
    rows = [f"user{user},{item},1" for user in range(3000) for item in ("abc", "abd", "b")]
    path = tmp_path / "users.csv"
    path.write_text("\n".join(["user,item,count", *rows]))
    asked = ["--data", str(path), "--levels", "3", "--set", "contribution=3", "--set", "mode=noise"]
    code, text = run("triehh", *asked, "--devices", "3000", "--epsilon", "4", "--json", "-")
    assert code == 0, text
    document = {hitter["item"]: hitter["estimate"] for hitter in json.loads(text)["heavy_hitters"]}
    assert document == {item: pytest.approx(3000, abs=200) for item in ("abc", "abd", "b")}


@pytest.mark.parametrize(
    ("mechanism", "most"), [("hierarchical-histogram", 0.004), ("triehh", 0.03)]
)
def test_numbers_have_quantiles(numbers: str, mechanism: str, most: float) -> None:
    """Half a thousandth of the ranks of a histogram, a hundredth of a trie is usual."""
    asked = ["--data", numbers, "--set", "low=0", "--set", "high=256", "--devices", "20000"]
    code, text = run(mechanism, *asked, "--epsilon", "2", "--json", "-")
    assert code == 0, text
    document = json.loads(text)
    assert document["rank_error_mean"] <= document["rank_error_max"] < most
    assert document["items_outside_domain"] == 1
    assert document["epsilon"] <= 2
    for row in document["quantiles"]:
        assert row["low"] <= row["true"] <= row["high"]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--epsilon", "0"], "epsilon"),
        (["--delta", "1e-15"], "delta"),
        (["--set", "theta=2", "--set", "probability=0.3"], "costs epsilon"),
        (["--set", "theta=2"], "or neither"),
        (["--words", "2"], "are too few"),
        (["--set", "stride=9"], "stride"),
        (["--set", "low=0"], "no numbers"),
        (["--set", "alphabet=xyz"], "none of its items"),
        (["--set", "dropout=1"], "dropout"),
        (["--set", "drift=late"], "each round asks the same devices"),
    ],
)
def test_impossible_studies_have_a_reason(words: str, args: list[str], reason: str) -> None:
    code, text = run("triehh", "--data", words, "--devices", "2000", "--levels", "3", *args)
    assert code == 2
    assert reason in text
