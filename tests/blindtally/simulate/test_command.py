"""`blindtally simulate` as a script and as a person meets it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from blindtally.cli import app
from blindtally.simulate.answers import compare_study
from blindtally.simulate.scores import Score
from blindtally.simulate.study import gather
from protocol.estimation.estimates import Estimate, add_estimates
from protocol.mechanism import Answer
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltPlan
from protocol.simulation.study import RoundOutcome
from protocol.study_state import EMPTY_STATE, StudyState, add_devices


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", "adaptive-iblt", *map(str, arguments)])


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Return a file of 400 words, counts falling as 1 / rank."""
    path = tmp_path / "words.csv"
    rows = (f"w{rank:03},{20_000 // rank}\n" for rank in range(1, 401))
    path.write_text("word,count\n" + "".join(rows))
    return path


def documented(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_json_has_what_scripts_read(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = simulate(
        *("--data", words, "--column", "word", "--rounds", 5, "--devices", 2000),
        *("--threshold", 50, "--words", 1000, "--seed", 1, "--json", out),
    )
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    assert 0.8 < document["f1"] <= 1
    assert 0 < document["precision"] <= 1
    assert 0 < document["recall"] <= 1
    assert 900 < document["words"] <= 1000
    assert document["rounds_decoded"] == 5
    assert len(document["thresholds"]) == 5
    assert document["devices"] == 10_000
    assert document["heavy_hitters"][0]["item"] == "w001"
    assert document["parameters"]["seed"] == 1
    assert result.stdout.splitlines()[-1].split() == ["F1", f"{document['f1']:.4f}"]


def test_a_study_stops_at_its_goal_and_states_the_expectations(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = ("--data", words, "--rounds", 8, "--devices", 2000, "--words", 1000, "--json", out)
    result = simulate(*options, "--set", "stop_at=0.9,0.6")
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    assert 1 <= document["goal_round"] < 8
    assert len(document["thresholds"]) == document["rounds_decoded"] == document["goal_round"]
    assert document["expected_precision"] >= 0.9
    assert document["expected_recall"] >= 0.6
    assert document["parameters"]["stop_at"] == "0.9,0.6"
    line = next(line for line in result.stdout.splitlines() if line.startswith("goal "))
    assert (
        line.split(maxsplit=1)[1].strip()
        == f"reached in round {document['goal_round']} of at most 8"
    )
    result = simulate(*options, "--set", "stop_at=0.999,0.999")
    document = json.loads(out.read_text())
    assert (document["goal_round"], document["rounds_decoded"]) == (None, 8)
    assert "not reached" in result.stdout


@pytest.mark.parametrize(("option", "field"), [("words", "message_bytes"), ("threshold",) * 2])
def test_an_option_is_refused_that_a_field_contradicts(
    words: Path, option: str, field: str
) -> None:
    result = simulate("--data", words, f"--{option}", 100, "--set", f"{field}=9000")
    assert result.exit_code == 2
    assert f"--{option} and --set {field} contradict each other" in " ".join(result.output.split())


def test_a_goal_is_refused_where_it_cannot_be_checked(words: Path) -> None:
    for mechanism, reason in (
        ("count-sketch", "count-sketch does not estimate the precision and recall"),
        ("triehh", "triehh does not estimate the precision and recall"),
        ("ocms", "ocms does not estimate the precision and recall"),
    ):
        options = [mechanism, "--data", str(words), "--set", "stop_at=0.9,0.9"]
        result = CliRunner().invoke(app, ["simulate", *options])
        assert result.exit_code == 2
        assert reason in " ".join(result.output.split())


def test_the_same_seed_gives_the_same_result(words: Path) -> None:
    options = ["--data", words, "--rounds", 2, "--devices", 900, "--words", 300, "--json", "-"]
    first, same, other = (
        documented(simulate(*options, "--seed", seed)) | {"parameters": None} for seed in (3, 3, 4)
    )
    assert first == same
    assert first != other


def test_a_mechanisms_own_fields_can_be_set(words: Path) -> None:
    document = documented(
        CliRunner().invoke(
            app,
            [
                *("simulate", "subsampled-iblt", "--data", str(words), "--rounds", "2"),
                *("--devices", "500", "--set", "t=2.5", "--set", "rule=practical", "--json", "-"),
            ],
        )
    )
    assert document["thresholds"] == [2.5, 2.5]
    assert (document["question"]["t"], document["question"]["rule"]) == (2.5, "practical")


def test_a_study_that_read_no_table_states_what_to_try() -> None:
    arguments = "simulate subsampled-iblt --data words --devices 2000 --rounds 2 --words 300"
    result = CliRunner().invoke(app, [*arguments.split(), "--set", "t=1"])
    assert result.exit_code == 0, result.output
    assert "0 decoded of 2: no table could be read; try more --words" in result.output


def test_a_threshold_that_no_item_reaches_is_noted(words: Path) -> None:
    asked = ("--data", words, "--column", "word", "--devices", 200, "--rounds", 1)
    scores = documented(simulate(*asked, "--threshold", 1e9, "--json", "-"))
    assert [scores[name] for name in ("f1", "precision", "recall")] == [None] * 3
    result = simulate(*asked, "--threshold", 1e9)
    assert "which no item has: precision and recall have no meaning" in " ".join(
        result.stdout.split()
    )
    assert not {"precision", "expected", "1.0000"} & set(
        result.stdout.split("no meaning")[1].split()
    )


def test_devices_may_drop_out(words: Path) -> None:
    document = documented(
        simulate(
            *("--data", words, "--rounds", 2, "--devices", 40, "--words", 600, "--json", "-"),
            *("--set", "sum=pairwise", "--set", "dropout=0.1"),
        )
    )
    assert 0 < document["devices"] < 80


def test_one_shot_sums_give_the_result_of_pairwise_sums(words: Path) -> None:
    args = ("--data", words, "--rounds", 1, "--devices", 40, "--words", 600, "--json", "-")
    pairwise, one_shot = (
        documented(simulate(*args, "--set", f"sum={kind}")) for kind in ("pairwise", "one-shot")
    )
    assert one_shot["heavy_hitters"] == pairwise["heavy_hitters"]
    for document, kind in ((one_shot, "one-shot"), (pairwise, "pairwise")):
        assert document["parameters"]["sum"] == document["terms"]["sum"] == kind


def test_devices_are_taken_as_they_are(tmp_path: Path) -> None:
    baskets = tmp_path / "baskets.txt"
    baskets.write_text("one two\ntwo three\n" * 60)
    document = documented(
        simulate(
            *("--data", baskets, "--rounds", 4, "--set", "contribution=2", "--threshold", 30),
            *("--json", "-"),
        )
    )
    assert document["parameters"]["devices"] == 30
    assert document["f1"] == 1
    counts = {hitter["item"]: hitter["true_count"] for hitter in document["heavy_hitters"]}
    assert counts == {"one": 60, "two": 120, "three": 60}


@pytest.mark.parametrize(
    ("options", "kind", "left_out"),
    [
        ([], "alphabet", 0),
        (["--levels", 4], "utf8", 0),
        (["--set", "alphabet=w0123"], "alphabet", 337),  # 63 ranks of digits 0 to 3 up to 333
        (["--set", "alphabet=w0123456789", "--levels", 9], "alphabet", 0),
    ],
)
def test_the_domain_can_be_chosen(
    words: Path, options: list[object], kind: str, left_out: int
) -> None:
    document = documented(
        simulate("--data", words, "--rounds", 1, "--devices", 99, "--json", "-", *options)
    )
    assert document["question"]["domain"]["kind"] == kind
    assert document["items_outside_domain"] == left_out


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--data", "none.csv"], "none.csv: no such file"),
        (["--data", "{words}", "--column", "item"], "line 1: no column is named 'item'"),
        (["--data", "{words}", "--words", 20], "are needed"),
        (["--data", "{words}", "--set", "alphabet=xyz"], "none of its items is in the domain"),
        (["--data", "{words}", "--set", "alphabet=ww"], "a character occurs twice"),
        (["--data", "{words}", "--set", "dropout=1.5"], "dropout: must be below 0.9"),
        (["--data", "{words}", "--set", "corrupt=0.9"], "corrupt"),
        (["--data", "{words}", "--set", "contribution=99999"], "contribution: "),
        (["--data", "{words}", "--json", "/nowhere/out.json"], "cannot write /nowhere/out.json"),
        (["--data", "{words}", "--rounds", 0], "--rounds"),
        (["--data", "{words}", "--set", "t"], "--set takes NAME=VALUE"),
        (["--data", "{words}", "--set", "low=3"], "low, high and alpha go with numbers"),
        (["--data", "{words}", "--set", "drift=none", "--epsilon", 1], "takes no --epsilon"),
        (["--data", "{words}", "--workers", "many"], "--workers takes a number"),
        (["--data", "{words}", "--set", "depth=3"], "depth: is not a known field"),
        (["--data", "{words}", "--seed", -1], "--seed"),
        (["--data", "{words}", "--set", "domain=hashed"], "such as tracked"),
        (["--data", "{words}", "--set", "domain=utf8", "--set", "alphabet=w"], "not of utf8"),
        (["--data", "{words}", "--set", "lost_rounds=31,"], "lists rounds from 1 to 30"),
        (["--data", "{words}", "--set", "lost_rounds=31"], "at most the 30 rounds, got 31"),
        (["--data", "{words}", "--set", "lost_rounds=a,b"], "lost_rounds"),
        (["--data", "{words}", "--set", "devices_by_round=9"], "contradict each other"),
        ([], "--data"),
    ],
)
def test_a_mistake_is_reported_in_a_line_with_exit_code_2(
    words: Path, options: list[object], fault: str
) -> None:
    result = simulate(*("--devices", 100), *(str(option).format(words=words) for option in options))
    assert result.exit_code == 2
    assert fault in result.stderr
    assert "Traceback" not in result.output


def test_too_few_devices_for_the_rounds_are_reported(tmp_path: Path) -> None:
    baskets = tmp_path / "baskets.txt"
    baskets.write_text("1\n" * 5)
    result = simulate("--data", baskets, "--rounds", 3)
    assert result.exit_code == 2
    assert "--rounds 1 is the most" in result.stderr


def test_devices_of_a_file_have_no_drift_and_are_in_one_round(tmp_path: Path) -> None:
    baskets = tmp_path / "baskets.txt"
    baskets.write_text("1\n" * 50)
    drifting = simulate("--data", baskets, "--rounds", 3, "--set", "drift=late")
    assert drifting.exit_code == 2
    assert "its drifts are none and crowds" in drifting.stderr
    many = simulate("--data", baskets, "--rounds", 3, "--set", "devices_by_round=20,5")
    assert many.exit_code == 0, many.stderr
    too_many = simulate("--data", baskets, "--rounds", 3, "--set", "devices_by_round=20,11")
    assert "holds 50 devices, each in one round at most, and the rounds take 51" in too_many.stderr


@pytest.mark.parametrize(
    ("name", "hint"), [("trackd", "did you mean tracked?"), ("bloom", "`blindtally mechanisms`")]
)
def test_an_unknown_mechanism_is_reported_with_a_hint(name: str, hint: str) -> None:
    result = CliRunner().invoke(app, ["simulate", name, "--data", "x"])
    assert result.exit_code == 2
    assert f"there is no mechanism '{name}': {hint}" in result.stderr


def outcome(
    answer: Answer | None, truth: dict[str, int], state: StudyState = EMPTY_STATE
) -> RoundOutcome[Any]:
    plan = AdaptiveIbltPlan.model_validate(
        {
            "study": "s",
            "round": 1,
            "rounds": 2,
            "terms": {"cohort_size": 10, "minimum": 5},
            "seed": "0" * 64,
            "question": {
                "threshold": 5,
                "contribution": 1,
                "message_bytes": 7964,
                "domain": {"kind": "utf8", "max_bytes": 3},
            },
            "t": 2,
            "cells": 12,
        }
    )
    return RoundOutcome(plan, 2, answer, state, Counter(truth))


def test_measures_are_as_defined() -> None:
    estimates = (Estimate("a", 6, 0.04), Estimate("b", 4, 0.04), Estimate("x", 5, 0.01))
    state = add_devices(add_estimates(EMPTY_STATE, estimates), 9, is_read=True)
    first = outcome(Answer(True, 3, estimates, state), {"a": 5, "b": 7, "c": 1}, state)
    second = outcome(None, {"c": 3, "d": 6}, state)
    measured = gather([first, second], first.plan.question)
    # Heavy are a, b and d; found are a and x.
    compared = compare_study(measured)
    assert compared.score == Score(f1=2 * 1 / 5, precision=1 / 2, recall=1 / 3)
    assert compared.missed == {"b": 7, "d": 6}
    assert (measured.rounds_decoded, measured.devices) == (1, 4)
    # The variance per token is that of the items of five devices, 0.05 / 11.
    errors = [hitter.standard_error for hitter in compared.found_items]
    assert errors == pytest.approx([0.165, 0.151], rel=0.01)


def test_finding_nothing_where_nothing_is_heavy_is_right() -> None:
    undecoded = outcome(None, {"a": 1})
    measured = gather([undecoded], undecoded.plan.question)
    assert compare_study(measured).score == Score(1, 1, 1)


@pytest.fixture
def long_words(tmp_path: Path) -> Path:
    """Return a file of 3,000 words of 100 bytes of a large alphabet, counts falling as 1 / rank."""
    path = tmp_path / "long.csv"
    rows = (
        f"{chr(0x4E00 + rank % 200) * 30}{rank:010},{30_000 // rank}\n" for rank in range(1, 3001)
    )
    path.write_text("word,count\n" + "".join(rows))
    return path


def test_tracked_hashes_long_words_by_default_and_finds_more(long_words: Path) -> None:
    """Compare one study of each domain; another seed moves an F1 by about 0.02."""
    common = ["simulate", "tracked", "--data", long_words, "--rounds", 10, "--devices", 3000]
    common += ["--words", 2000, "--threshold", 40, "--json", "-"]
    runs = {
        domain: documented(
            CliRunner().invoke(app, [*map(str, [*common, "--set", f"domain={domain}"])])
        )
        for domain in ("auto", "utf8")
    }
    kinds = {domain: run["question"]["domain"]["kind"] for domain, run in runs.items()}
    assert kinds == {"auto": "hashed", "utf8": "utf8"}
    assert runs["auto"]["f1"] > 0.9
    assert runs["auto"]["f1"] > runs["utf8"]["f1"] + 0.1


def test_rounds_may_differ_in_size_and_some_may_be_lost(words: Path) -> None:
    common = ["--data", words, "--rounds", 5, "--words", 1000, "--set", "devices_by_round=900,90"]
    document = documented(simulate(*common, "--set", "lost_rounds=2,3", "--json", "-"))
    assert document["devices"] == 900 + 90 + 900
    assert (document["rounds_decoded"], document["rounds_lost"]) == (3, 2)
    assert document["parameters"]["lost_rounds"] == [2, 3]
    assert len(document["thresholds"]) == 5
    assert documented(simulate(*common, "--set", "lost_rounds=2,3", "--json", "-")) == document
    drawn = documented(simulate(*common, "--set", "lost_rounds=2", "--json", "-"))
    assert drawn["rounds_lost"] == len(set(drawn["parameters"]["lost_rounds"])) == 2
    shown = simulate(*common, "--set", "lost_rounds=5,").stdout
    assert "4 decoded of 5, 1 lost" in shown
    assert "90 to 900 selected per round" in shown


def test_equal_rounds_by_round_are_those_of_devices(words: Path) -> None:
    common = ["--data", words, "--rounds", 3, "--words", 500, "--json", "-"]
    plain, listed = (
        documented(simulate(*common, *how)) | {"parameters": None}
        for how in (["--devices", 700], ["--set", "devices_by_round=700"])
    )
    assert plain == listed


@pytest.mark.parametrize("drift", ["gradual", "sudden", "late", "crowds", "weekly", "bursts"])
def test_items_may_drift(words: Path, drift: str) -> None:
    """The first item has 15% of the devices; each of the drifts takes some of its count or none."""
    common = ["--data", words, "--rounds", 16, "--devices", 400, "--words", 600, "--json", "-"]
    document, still = (
        documented(simulate(*common, "--set", f"drift={kind}")) for kind in (drift, "none")
    )
    assert document["parameters"]["drift"] == drift
    if drift == "crowds":  # rounds 8 to 14 have a third of the devices
        assert document["devices"] == 9 * 400 + 7 * 133
    else:
        assert document["devices"] == 16 * 400
    assert document["heavy_hitters"] != still["heavy_hitters"]
    assert document["f1"] > 0.7


def test_the_output_names_the_domain_and_the_share_of_intervals_that_hold(words: Path) -> None:
    options = ["--data", words, "--rounds", 6, "--devices", 900, "--words", 400]
    shown = simulate(*options).stdout
    assert "alphabet: keys of" in shown
    document = documented(simulate(*options, "--json", "-"))
    hitters = document["heavy_hitters"]
    covered = [h["low"] - 0.5 <= h["true_count"] <= h["high"] + 0.5 for h in hitters]
    assert document["interval_coverage"] == sum(covered) / len(covered)
    assert f"{document['interval_coverage']:.1%} of {len(covered)} hold the true count" in shown
    assert ("about 1 of 20 intervals misses" in shown) is (False in covered)


def test_more_confidence_reports_fewer_items(words: Path) -> None:
    common = ["--data", words, "--rounds", 4, "--devices", 900, "--words", 200, "--json", "-"]
    few, many = (
        {
            hit["item"]
            for hit in documented(simulate(*common, "--set", f"confidence={p}"))["heavy_hitters"]
        }
        for p in (0.95, 0.5)
    )
    assert few < many


def test_a_large_simulation_reports_that_numpy_reads_its_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("client.extras_installation.COMPILED_MODULES", {"not_compiled": ""})
    monkeypatch.setattr("blindtally.simulate.command._LARGE_FLEET", 20)
    few, many = (
        simulate("--data", "short", "--rounds", 1, "--devices", devices) for devices in (19, 20)
    )
    assert few.exit_code == many.exit_code == 0
    assert "read by numpy" not in few.stderr
    assert many.stderr.count("read by numpy, several times slower") == 1
