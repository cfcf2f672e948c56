"""A plan predicts the results of runs, and reports impossible requests."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from blindtally.cli import app
from blindtally.planning import study_forecast
from blindtally.planning.bracketing_populations import zipf_population
from blindtally.planning.f1_by_words import F1Curve, F1Point
from blindtally.planning.lying_devices import equal_cohorts
from protocol.domains.hashed import Hashed
from protocol.domains.strings import Alphabet
from protocol.mechanisms.central.compared_releases import best_designs
from protocol.mechanisms.registry import parse_question
from protocol.mechanisms.reports.dictionary import DictionaryQuestion
from protocol.mechanisms.reports.prefix_extension import PrefixQuestion
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.oracles.registry import oracle_for
from protocol.round_sizes import message_bytes_of
from tests.protocol.test_report_advice import recommend

LETTERS = "abcdefgh"
SIZE = {"devices": 600, "rounds": 8, "threshold": 40, "words": 150, "runs": 2}


def plan(**options: Any) -> Result:
    given = [part for name, value in (SIZE | options).items() for part in (f"--{name}", str(value))]
    return CliRunner().invoke(app, ["plan", "sum", *given])


def parsed(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def as_json(**options: Any) -> dict[str, Any]:
    return parsed(plan(**options, json="-"))


def mean_f1(mechanism: str, data: Path, *options: object) -> float:
    """Return the mean F1 of two studies by `simulate`."""
    asked = [*("simulate", mechanism, "--data", data, "--rounds", 8, "--devices", 600), *options]
    asked += ["--threshold", 40, "--words", 150, "--json", "-", "--seed"]
    runs = [CliRunner().invoke(app, [*map(str, asked), str(seed)]) for seed in (1, 2)]
    return float(np.mean([parsed(run)["f1"] for run in runs]))


@pytest.fixture
def words(tmp_path: Path) -> Path:
    counts = 1e6 / np.arange(1, 301) ** 1.1
    items = [LETTERS[n // 64] + LETTERS[n // 8 % 8] + LETTERS[n % 8] for n in range(300)]
    rows = [f"{item},{int(count)}" for item, count in zip(items, counts, strict=True)]
    path = tmp_path / "words.csv"
    path.write_text("\n".join(["word,count", *rows]) + "\n")
    return path


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the search for words, which takes most of the time of a plan."""
    curve = F1Curve("tracked", (F1Point(60, (1.0,)),))
    monkeypatch.setattr(study_forecast, "f1_over_sizes", lambda *_: curve)


@pytest.mark.usefixtures("no_search")
def test_predictions_agree_with_simulated_studies(words: Path) -> None:
    """Compare two studies each; their F1 has a standard deviation of some 0.03."""
    document = as_json(data=words)
    predicted = {row["mechanism"]: row["f1"] for row in document["predictions"]}
    for mechanism in ("tracked", "adaptive-iblt"):
        assert predicted[mechanism] == pytest.approx(mean_f1(mechanism, words), abs=0.1)


def test_the_question_is_the_one_that_finds_most(words: Path) -> None:
    document = as_json(data=words)
    best = max(document["predictions"], key=lambda row: row["f1"])
    question = parse_question(document["question"])
    assert question.mechanism == best["mechanism"]
    assert isinstance(question, TrackedQuestion)
    assert question.message_bytes == message_bytes_of(equal_cohorts(600), 300)
    assert best["upload_bytes"] <= 300
    sizes = [document["words"][goal] for goal in ("0.8", "0.9", "0.95")]
    assert sizes == sorted(sizes)
    liars = [(row["liars"], row["lift"], row["lost_share"]) for row in document["lying_devices"]]
    assert liars == [(1, 600, 1), (10, 600, 1)]


@pytest.mark.usefixtures("no_search")
def test_strings_are_hashed_and_only_tracked_fetches_them() -> None:
    document = as_json(domain="strings", items=500, **{"max-bytes": 200})
    assert [row["mechanism"] for row in document["predictions"]] == ["tracked"]
    assert document["question"]["domain"] == Hashed(max_bytes=200).model_dump()


@pytest.mark.usefixtures("no_search")
def test_the_range_is_from_long_strings_of_flat_counts_to_short_ones_of_steep_counts() -> None:
    document = as_json(domain="strings", runs=1, words=300, items=5000, **{"max-bytes": 100})
    (row,) = document["predictions"]
    by_population = document["f1_by_population"]
    assert len(by_population) == 5  # as assumed, and short and long of flat and steep
    f1 = {name: row["tracked"] for name, row in by_population.items()}
    assert (row["f1_low"], row["f1_high"]) == (min(f1.values()), max(f1.values()))
    assert row["f1_low_population"].startswith("long strings, flat")
    assert "long" not in row["f1_high_population"]
    assert row["f1_low"] < row["f1_high"] - 0.2
    assert row["f1"] == f1[next(name for name in f1 if name.startswith("as assumed"))]


@pytest.mark.usefixtures("no_search")
def test_assumptions_that_are_given_hold_in_the_whole_range() -> None:
    of_alphabet = as_json(domain="alphabet", items=400, runs=1)["f1_by_population"]
    assert [name.split(":")[0] for name in of_alphabet] == ["as assumed", "flat", "steep"]
    given = as_json(domain="strings", items=400, zipf=1.2, runs=1)["f1_by_population"]
    assert all("400 items" in name and "rank^-1.2" in name for name in given)
    assert [name.split(",")[0].split(":")[0] for name in given] == [
        "as assumed",
        "short strings",
        "long strings",
    ]


@pytest.mark.usefixtures("no_search")
def test_the_users_of_a_file_are_simulated_themselves(tmp_path: Path) -> None:
    """Compare two studies each; their F1 has a standard deviation of some 0.04."""
    rng = np.random.default_rng(1)
    items = np.minimum(rng.zipf(1.6, (5000, 4)), 400)
    path = tmp_path / "users.txt"
    path.write_text("".join(" ".join(f"w{n}" for n in row) + "\n" for row in items))
    out = tmp_path / "plan.json"
    shown = plan(data=path, contribution=2, json=out).stdout
    document = json.loads(out.read_text())
    predicted = {row["mechanism"]: row for row in document["predictions"]}["tracked"]
    assert predicted["f1_low"] is predicted["f1_high"] is None
    assert document["reading"]["form"] == "baskets without a header"
    scores = mean_f1("tracked", path, "--set", "contribution=2")
    assert predicted["f1"] == pytest.approx(scores, abs=0.12)
    assert "Simulated with the items of" in shown


@pytest.mark.usefixtures("no_search")
def test_a_first_answer_is_printed_before_the_rest_is_simulated() -> None:
    first, *others = plan(domain="alphabet", items=400, runs=1).stderr.splitlines()
    assert first.startswith("F1 about ")
    assert any("in other data" in line for line in others)


@pytest.mark.usefixtures("no_search")
def test_the_table_names_the_words_for_each_goal_and_the_question() -> None:
    result = plan(domain="alphabet", items=400)
    assert result.exit_code == 0, result.stderr
    for text in ("An F1 of 0.95 takes about", "tracked", "adaptive-iblt", '"threshold": 40.0'):
        assert text in result.stdout
    assert "Effects of lying devices on a round, at worst" in result.stdout
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("10 ")]
    assert line.split() == ["10", "600", "100%", "100%"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"words": 5}, "5 words are too few for any mechanism"),
        ({"threshold": 4000}, "no item reaches 4000 in a simulated study"),
        ({"data": "no.csv"}, "no such file"),
        ({"domain": "alphabet", "length": 2}, "assume fewer --items"),
        ({"max-bytes": 4}, "allow longer ones"),
        ({"cohorts": 301}, "301 cohorts of 600 devices have 1 each"),
    ],
)
def test_impossible_plans_are_reported(options: dict[str, Any], why: str) -> None:
    result = plan(**options)
    assert result.exit_code == 2
    assert why in result.stderr


@pytest.mark.parametrize(
    ("options", "family"),
    [
        (["--mechanism", "triehh", "--devices", "5", "--epsilon", "1"], "from 10 to"),
        (["--devices", "5", "--epsilon=1", "--goal", "l2"], "--goal must be heavy"),
        (["--devices", "5", "--rounds", "1"], "--threshold"),
        (["--help"], "reports"),
    ],
)
def test_without_a_family_the_options_decide(options: list[str], family: str) -> None:
    assert family in CliRunner().invoke(app, ["plan", *options]).output


def test_assumed_items_differ_and_are_in_their_domain() -> None:
    for domain in (Alphabet(characters=LETTERS, length=3), Hashed(max_bytes=20)):
        people = zipf_population(domain, 500, 1.0)
        assert len(set(people.items)) == 500
        assert all(item in domain for item in people.items)
        assert people.shares[0] == pytest.approx(2 * people.shares[1])


def reports(*options: object) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, options)])


@pytest.mark.parametrize("goal", ["worst-mse", "l2", "heavy"])
def test_reports_are_planned_for_a_goal(goal: str) -> None:
    options = ["--devices", 100_000, "--domain", 100_000, "--epsilon", 2, "--goal", goal]
    result = reports(*options, "--json", "-")
    document = parsed(result)
    best = recommend(100_000, 100_001, 2, goal)  # type: ignore[arg-type]
    assert document["works"]
    assert document["error"] == best.error
    assert document["bytes"] == best.oracle.nbytes
    assert 0 < document["seconds"] < 10
    asked = {"threshold": 1, "domain": {"kind": "listed", "items": ["a", "b"]}}
    question = parse_question(asked | document["question"])
    assert isinstance(question, DictionaryQuestion)
    made = oracle_for(question.mechanism, question.epsilon, 100_001, question.goal)
    assert made == best.oracle  # the service selects the oracle that is predicted
    assert document["question"].get("goal", goal) == ("l2" if goal == "heavy" else goal)
    assert document["mechanism"] in reports(*options).stdout


def test_if_no_oracle_works_the_necessary_users_are_reported() -> None:
    options = ["--domain", 1000, "--epsilon", 0.1, "--goal", "l2", "--json", "-"]
    result = reports("--devices", 1000, *options)
    assert result.exit_code == 1
    assert "nothing works: it takes 401,408 users" in result.stderr
    document = json.loads(result.stdout)
    assert not document["works"]
    enough = reports("--devices", document["users_needed"], *options)
    assert enough.exit_code == 0
    assert json.loads(enough.stdout)["works"]


def test_strings_without_a_dictionary_take_prefix_extension() -> None:
    options = ["--epsilon", 4, "--goal", "heavy", "--max-bytes", 8]
    result = reports("--devices", 100_000, *options, "--json", "-")
    document = parsed(result)
    question = parse_question(document["question"] | {"threshold": 1})
    assert isinstance(question, PrefixQuestion)
    assert document["error"] == pytest.approx(0.06, abs=0.02)  # with probability 95%
    assert (document["bytes"], document["parameters"]["oracle"]) == (4, "hadamard")
    few = reports("--devices", 50, *options)
    assert few.exit_code == 1
    assert "nothing works" in few.stderr


def test_if_no_oracle_works_the_one_with_the_fewest_users_is_reported() -> None:
    common = ["--domain", 100_000, "--epsilon", 1, "--goal", "heavy", "--json", "-"]
    result = reports("--devices", 100, *common)
    assert result.exit_code == 1
    assert "items that less than half of all users hold" in result.stderr
    document = json.loads(result.stdout)
    assert document["error"] is None
    assert document["mechanism"] == "ocms-gf"
    assert 300 < document["users_needed"] < 2000
    assert json.loads(reports("--devices", document["users_needed"], *common).stdout)["works"]
    never = reports("--devices", 9, "--domain", 2**20, "--epsilon", 1e-6, "--goal", "l1")
    assert "it takes more than 10^15 users" in never.stderr


def test_the_bytes_on_the_wire_are_shown_with_those_of_the_report() -> None:
    common = ["--devices", 100_000, "--domain", 100_000, "--epsilon", 2, "--goal", "l2"]
    document = json.loads(reports(*common, "--json", "-").stdout)
    assert (document["bytes"], document["bytes_signed"], document["bytes_enrolled"]) == (3, 99, 163)
    shown = reports(*common).stdout.replace("\n", " ")
    assert "3 bytes, 99 with digest and signature (163 with a registrar's)" in shown


def test_a_known_bound_on_shares_is_planned_with_and_can_be_asked() -> None:
    common = ["--devices", 100_000, "--domain", 10_000, "--epsilon", 3, "--goal", "worst-mse"]
    every, bounded = (
        json.loads(reports(*common, *more, "--json", "-").stdout) for more in ([], ["--most", 0.01])
    )
    assert bounded["error"] < 0.7 * every["error"]
    asked = {"threshold": 1, "domain": {"kind": "listed", "items": ["a", "b"]}}
    question = parse_question(asked | bounded["question"])
    assert isinstance(question, DictionaryQuestion)
    made = oracle_for(question.mechanism, 3, 10_001, question.goal, question.max_frequency)
    assert made.parameters == {"oracle": made.name, **bounded["parameters"]}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--devices", 100], "Missing option"),
        (
            ["--devices", 100, "--rounds", 5, "--words", 60, "--threshold", 1001],
            "contribute at most 500 items in 5 rounds",
        ),
        (["--devices", 100, "--epsilon", -1], "epsilon: must be from"),
        (["--devices", 100, "--epsilon", 1, "--domain", "alphabet"], "must be a number"),
        (["--devices", 100, "--epsilon", 1, "--domain", 1], "a dictionary has 2 to"),
        (["--devices", 100, "--epsilon", 0, "--domain", 9], "epsilon must be from"),
        (["--devices", 100, "--epsilon", "nan", "--domain", 9], "epsilon must be from"),
        (["--devices", 10**10, "--epsilon", 1, "--domain", 9], "--devices must be from"),
        (["--devices", 100, "--epsilon", 1, "--domain", 9, "--goal", "best"], "--goal must be one"),
        (["--devices", 100, "--epsilon", 1, "--goal", "l2"], "--goal must be heavy"),
        (
            ["--devices", 9, "--epsilon", 1, "--domain", 2**20 + 1],
            "a dictionary has 2 to 1,048,576 values",
        ),
        (["--devices", 9, "--epsilon", 1, "--goal", "heavy", "--max-bytes", 600], "not 600"),
        (
            ["--devices", 9, "--epsilon", 99, "--goal", "heavy"],
            "epsilon: must be from 1e-06 to 32, not 99",
        ),
        (
            ["--devices", 9, "--epsilon", 1, "--domain", 9, "--data", "x.csv", "--delta", 0],
            "No such option",
        ),
        (["--devices", 9, "--epsilon", 1, "--domain", 9, "--max-bytes", 9], "takes no --max-bytes"),
        (["--devices", 9, "--epsilon", 1, "--domain", 9, "--most", 0.1], "goes with --goal worst"),
        (
            ["--devices", 9, "--rounds", 1, "--threshold", 2, "--words", 9, "--goal", "l2"],
            "No such option: --goal",
        ),
        (["--devices", 5, "--rounds", 1, "--threshold", 2, "--words", 9], "--devices must be"),
        (
            ["--devices", 50, "--rounds", 1, "--threshold", 2, "--words", 9, "--domain", 9],
            "domain: must be 'strings' or 'alphabet'",
        ),
    ],
)
def test_options_that_do_not_go_together_are_reported(options: list[object], why: str) -> None:
    result = reports(*options)
    assert result.exit_code == 2
    assert why in result.stderr


def test_ways_to_release_counts_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    asked = ["plan", "release", "--devices", "1000000", "--epsilon", "1", "--levels", "10"]
    result = CliRunner().invoke(app, [*asked, "--json", str(path)])
    assert result.exit_code == 0, result.output
    document, shown = json.loads(path.read_text()), result.output
    assert document["theta"] / document["m"] <= 8.3e-5
    assert document["invited"] == math.ceil(document["m"] + 10 * document["m"] ** 0.5) / 10**6
    joined = document["expected_participants"]
    assert joined == document["invited"] * 10**6 < document["seats"] < 1.03 * joined
    sampled, noisy, both = document["designs"]
    assert [design["epsilon"] <= 1 for design in (sampled, noisy, both)] == [True] * 3
    assert sampled["epsilon_server"] is None
    assert noisy["epsilon_server"] == pytest.approx(1, abs=1e-3)
    assert sampled["epsilon_kl"] > sampled["epsilon_replace_one"] > sampled["epsilon"]
    assert both["sigma"] < noisy["sigma"]
    assert "shows the rarest prefixes" in shown
    text = " ".join(shown.split())
    assert "sample-threshold with invited 0.1499: each user joins a level by its own coin" in text
    assert "This saves 87% of all bytes, 5.84 GB" in text
    invited, none, invited_both = (design["invitation"] for design in document["designs"])
    assert none is None
    assert document["saved_bytes"] == invited["saved_bytes"]
    assert invited["epsilon_devices"] is invited["epsilon_server"] is None
    assert invited_both["epsilon_server"] == pytest.approx(1, abs=1e-3)
    assert invited_both["epsilon_devices"] == invited_both["epsilon_server"]


def test_all_users_join_if_all_are_needed() -> None:
    (design,) = (best for best in best_designs(12, 1.0, 1e-6, 10) if best.mode == "both")
    assert design.invitation is None


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--devices", "100"], "Missing option"),
        (["--devices", "5", "--epsilon", "1"], "--devices must be"),
        (["--devices", "100", "--epsilon", "0"], "epsilon"),
        (["--devices", "100", "--epsilon", "1", "--levels", "300"], "--levels must be"),
        (["--devices", "100", "--epsilon", "1", "--delta", "2"], "delta"),
    ],
)
def test_impossible_releases_have_a_reason(args: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, ["plan", "release", *args])
    assert (result.exit_code, reason in result.output) == (2, True)
