"""A plan predicts what runs find, and says what cannot be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from blindtally.cli import app
from blindtally.plan import assumed
from protocol.domain import Alphabet
from protocol.hashed import Hashed
from protocol.mechanisms import parse_question
from protocol.mechanisms.tracked import TrackedQuestion

LETTERS = "abcdefgh"
SIZE = {"devices": 600, "rounds": 8, "threshold": 40, "words": 150, "runs": 2}


def plan(**options: Any) -> Result:
    given = [part for name, value in (SIZE | options).items() for part in (f"--{name}", str(value))]
    return CliRunner().invoke(app, ["plan", *given])


def as_json(**options: Any) -> dict[str, Any]:
    told = plan(**options, json="-")
    assert told.exit_code == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    return found


@pytest.fixture
def words(tmp_path: Path) -> Path:
    counts = 1e6 / np.arange(1, 301) ** 1.1
    items = [LETTERS[n // 64] + LETTERS[n // 8 % 8] + LETTERS[n % 8] for n in range(300)]
    rows = [f"{item},{int(count)}" for item, count in zip(items, counts, strict=True)]
    path = tmp_path / "words.csv"
    path.write_text("\n".join(["word,count", *rows]) + "\n")
    return path


def test_what_is_predicted_is_what_devices_give(words: Path) -> None:
    """Of two studies each; their F1 has a standard deviation of some 0.03."""
    found = as_json(data=words)
    predicted = {one["mechanism"]: one["f1"] for one in found["predictions"]}
    for mechanism in ("tracked", "adaptive-iblt"):
        scores = []
        for seed in (1, 2):
            command = ["simulate", mechanism, "--data", words, "--rounds", 8, "--clients", 600]
            command += ["--threshold", 40, "--words", 150, "--seed", seed, "--json", "-"]
            told = CliRunner().invoke(app, [*map(str, command)])
            assert told.exit_code == 0, told.stderr
            scores.append(json.loads(told.stdout)["f1"])
        assert predicted[mechanism] == pytest.approx(np.mean(scores), abs=0.1)


def test_the_question_is_the_one_that_finds_most(words: Path) -> None:
    found = as_json(data=words)
    best = max(found["predictions"], key=lambda one: one["f1"])
    question = parse_question(found["question"])
    assert question.mechanism == best["mechanism"]
    assert isinstance(question, TrackedQuestion)
    assert question.words == 150
    assert best["upload"] <= question.nbytes
    sizes = [found["words"][goal] for goal in ("0.8", "0.9", "0.95")]
    assert sizes == sorted(sizes)


def test_strings_are_hashed_and_only_tracked_fetches_them() -> None:
    found = as_json(domain="strings", items=500, **{"max-bytes": 200})
    assert [one["mechanism"] for one in found["predictions"]] == ["tracked"]
    assert found["question"]["domain"] == Hashed(max_bytes=200).model_dump()


def test_the_table_names_the_words_for_each_goal_and_the_question() -> None:
    told = plan(domain="alphabet", items=400)
    assert told.exit_code == 0, told.stderr
    for text in ("An F1 of 0.95 takes about", "tracked", "adaptive-iblt", '"threshold": 40.0'):
        assert text in told.stdout


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"words": 5}, "5 words are too few for any mechanism"),
        ({"data": "no.csv"}, "no such file"),
        ({"domain": "alphabet", "length": 2}, "assume no more --items"),
        ({"max-bytes": 5}, "allow longer ones"),
    ],
)
def test_what_cannot_be_planned_is_told(options: dict[str, Any], why: str) -> None:
    told = plan(**options)
    assert told.exit_code == 2
    assert why in told.stderr


def test_assumed_items_differ_and_are_in_their_domain() -> None:
    for domain in (Alphabet(characters=LETTERS, length=3), Hashed(max_bytes=20)):
        people = assumed(domain, 500, 1.0)
        assert len(set(people.items)) == 500
        assert all(item in domain for item in people.items)
        assert people.shares[0] == pytest.approx(2 * people.shares[1])
