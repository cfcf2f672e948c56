"""Figures: failures of tables as in theory, curves, and the commands that draw them."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from blindtally.planning.f1_by_words import F1Curve, F1Point, StudySetting
from blindtally.simulate.populations import DRIFT_KINDS, PAPER_ALPHABET, DriftKind, ItemPopulation
from paper import cost_growth, f1_curves, frequency_sketches, gascon23
from paper.adaptive_iblt import adaptive_question, compare_rules, run_adaptive_iblt
from paper.commands import app
from paper.options import load_population
from protocol.domains.strings import Alphabet, Utf8

LETTERS = Alphabet(characters="abcdefghijklmnop", length=3)


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Return a file of 300 items of the paper's alphabet, counts falling as 1 / rank."""
    path = tmp_path / "words.csv"
    rows = (f"w{rank // 10:02},{20_000 // rank}\n" for rank in range(10, 310, 1) if rank % 10 == 0)
    more = (f"x{rank:02},{9000 // rank}\n" for rank in range(10, 100))
    path.write_text("word,count\n" + "".join(rows) + "".join(more))
    return path


def population(items: int = 300) -> ItemPopulation:
    names = LETTERS.decode(np.arange(items, dtype=np.uint64).reshape(-1, 1))
    shares = 1 / np.arange(1, items + 1)
    return ItemPopulation(tuple(str(name) for name in names), shares / shares.sum(), LETTERS)


def figures(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.mark.parametrize(
    ("room", "least", "most"),
    [
        (100, 0.35, 0.55),  # published measurements of 1.3 cells per key: 45%, and 12%
        (300, 0.07, 0.17),
        (1000, 0.0, 0.03),
    ],
)
def test_the_papers_table_fails_as_often_as_it_was_measured_to(
    room: int, least: float, most: float
) -> None:
    """The deviation of 300 tables is 3% at most; the limits are three of them away."""
    table, rng = gascon23.PaperTable(8 * room), np.random.default_rng(1)
    assert table.cells == 3 * math.floor(1.3 * room / 3)
    failed = sum(not table.decode(room, rng)[0] for _ in range(300))
    assert least <= failed / 300 <= most


@pytest.mark.parametrize(("longest", "words"), [(3, 8), (6, 8.66), (61, 44.41)])
def test_cells_with_long_strings_cost_more_words(longest: int, words: float) -> None:
    assert gascon23.words_per_string(longest, 10_000) == pytest.approx(words, abs=0.01)


@pytest.mark.parametrize("over", [1.1, 1.5, 2.0])
def test_equations_3_and_4_see_how_many_keys_there_are(over: float) -> None:
    table, rng = gascon23.PaperTable(8 * 1000), np.random.default_rng(2)
    keys = round(over * 0.8185 * table.cells)
    seen = [table.decode(keys, rng)[1] for _ in range(20)]
    assert np.mean(seen) == pytest.approx(keys, rel=0.03)
    assert math.isfinite(gascon23.estimate_stuck_keys(table.cells, table.cells))


def test_without_sampling_everything_or_nothing_is_read() -> None:
    rng = np.random.default_rng(3)
    rounds = list(population().rounds(3, 500, rng))
    assert (gascon23.run_fixed_threshold(rounds, 8000, 1.0, rng) == np.sum(rounds, axis=0)).all()
    assert (gascon23.run_fixed_threshold(rounds, 80, 1.0, rng) == 0).all()


@pytest.mark.parametrize(
    ("words", "tau", "t"), [(8000, 50, 10), (800, 50, 25), (80_000, 50, 1), (800, 1, 1)]
)
def test_the_practical_threshold(words: int, tau: float, t: float) -> None:
    assert gascon23.practical_threshold(words, 10_000, tau) == t


def test_sampled_estimates_are_unbiased() -> None:
    """Over 60 studies of 4 rounds, any item's mean is 5 standard errors off with p = 2e-4."""
    rng, people = np.random.default_rng(4), population(300)
    rounds = list(people.rounds(4, 2000, rng))
    truth = np.sum(rounds, axis=0)
    runs = np.array([gascon23.run_fixed_threshold(rounds, 8000, 5.0, rng) for _ in range(60)])
    error = np.sqrt(np.maximum(truth, 1) * 4 / 60)
    assert (np.abs(runs.mean(axis=0) - truth) < 5 * error).all()


@pytest.mark.parametrize("signed", [True, False])
def test_sketches_estimate_every_candidate(signed: bool) -> None:
    rng, people = np.random.default_rng(5), population()
    rounds = list(people.rounds(4, 2000, rng))
    truth = np.zeros(16**3)
    truth[:300] = np.sum(rounds, axis=0)
    kind = frequency_sketches.SketchKind(signed)
    scores = frequency_sketches.score_candidates(
        rounds, np.arange(300), 16**3, [8, 30_000], (5, 7), kind, rng
    )
    assert set(scores) == {(30_000, 5), (30_000, 7)}  # in 8 words a row has less than two cells
    assert np.abs(scores[30_000, 7] - truth).max() < 12


def test_errors_add_up_where_hashes_stay_and_cancel_where_they_are_fresh() -> None:
    """Over 16 rounds, with 7 rows of 57 cells: by 16 and by 4, of one round's."""
    rng, people = np.random.default_rng(5), population()
    rounds = list(people.rounds(16, 2000, rng))
    errors = {}
    for fresh in (True, False):
        kind = frequency_sketches.SketchKind(signed=True, fresh=fresh)
        estimates = frequency_sketches.score_candidates(
            rounds, np.arange(300), 16**3, [400], (7,), kind, rng
        )[400, 7]
        errors[fresh] = float((estimates[300:] ** 2).mean() ** 0.5)
    assert errors[False] / errors[True] == pytest.approx(4, rel=0.25)


def test_our_mechanism_runs_on_counts_as_on_devices() -> None:
    people, rng = population(100), np.random.default_rng(6)
    rounds = list(people.rounds(5, 3000, rng))
    question = adaptive_question(people, 50, 4000, "steady", 3000)
    estimates, loads = run_adaptive_iblt(people, rounds, question, 3000, rng)
    assert all(table.is_read for table in loads)
    assert loads[-1].t == 1
    later = np.sum(rounds[2:], axis=0)
    assert (estimates >= later).all()  # nothing is sampled away from the third round on


def test_a_curve_takes_the_best_option_by_its_mean() -> None:
    setting = StudySetting(3, 20, 1000, 0)
    names = (f1_curves.BEST_FIXED, f1_curves.COUNT_SKETCH)
    figure = f1_curves.F1Figure("fig1", names, setting, [40, 4000])
    runs = [f1_curves.score_run(figure, population(), (seed,)) for seed in range(3)]
    fixed, sketch = f1_curves.merge_runs(runs, figure)
    assert [point.x for point in fixed.points] == [40, 4000]
    assert fixed.points[1].option == "t = 1"
    assert fixed.points[1].f1_of_runs == (1, 1, 1)
    assert sketch.points[1].option.startswith("H = ")
    assert F1Point(1, (0.5, 0.7)).mean == pytest.approx(0.6)
    assert F1Point(1, (0.5,)).standard_deviation == 0
    curve = F1Curve("", tuple(F1Point(x, (y,)) for x, y in ((10, 0.6), (100, 0.8), (1000, 1.0))))
    assert curve.x_reaching(0.9) == pytest.approx(316, abs=1)
    assert (curve.x_reaching(0.5), curve.x_reaching(1.1)) == (10, None)


def test_a_domain_that_cannot_be_enumerated_has_no_oracle() -> None:
    people = ItemPopulation(("ab", "cd"), np.array([0.5, 0.5]), Utf8(max_bytes=9))
    figure = f1_curves.F1Figure("fig1", f1_curves.FIGURE_1, StudySetting(2, 5, 100, 0), [400])
    run = f1_curves.score_run(figure, people, (1,))
    names = [curve.name for curve in f1_curves.merge_runs([run], figure)]
    assert names == [name for name in f1_curves.FIGURE_1 if name not in f1_curves.BASELINES]


@pytest.mark.parametrize("drift", DRIFT_KINDS)
def test_rounds_drift_as_their_name_states(drift: DriftKind) -> None:
    rounds = list(population().rounds(28, 5000, np.random.default_rng(7), drift))
    sizes = np.array([counts.sum() for counts in rounds])
    if drift == "crowds":
        assert sizes[7:14].mean() < 0.5 * sizes[:7].mean()
    else:
        assert sizes.std() == pytest.approx(500, rel=0.5)
    share = [counts[0] / counts.sum() for counts in rounds]
    moved = abs(share[0] - share[-1]) > 0.08
    assert moved == (drift in ("gradual", "sudden"))


def test_both_rules_are_compared_on_the_same_rounds() -> None:
    setting = StudySetting(8, 20, 1000, 300)
    paper_rule, steady = compare_rules(setting, [(1, 0), (1, 1)], (population(), "none"))
    assert (paper_rule.rule, steady.rule) == ("paper", "steady")
    for outcome in (paper_rule, steady):
        assert 0.5 < outcome.f1 <= 1
        assert 6 <= outcome.rounds_read <= 8
        assert 1 <= outcome.settled <= 9


def test_the_oracles_error_grows_with_the_root_of_r_and_the_tables_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cost_growth, "_MAX_TRIALS", 300)
    people, runs = population(), range(2)
    short, long = (
        cost_growth.mean_of_runs(
            [cost_growth.measure_growth(people, 600, 20, 1000, (8, rounds, run)) for run in runs]
        )
        for rounds in (2, 8)
    )
    assert 1.4 < long.oracle_error / short.oracle_error < 3  # two, but items are others
    assert long.table_error < 1.3 * short.table_error
    assert long.table_words < 1.5 * short.table_words
    assert long.oracle_words > 1.2 * short.oracle_words


def test_files_of_the_papers_alphabet_have_its_domain(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_population(words).domain == PAPER_ALPHABET
    assert PAPER_ALPHABET.bound == 97_336
    other = tmp_path / "other.csv"
    other.write_text("word,count\nÄ,3\nlonger,4\n")
    assert load_population(other).domain != PAPER_ALPHABET
    baskets = tmp_path / "baskets.txt"
    baskets.write_text("a b\n")
    with pytest.raises(typer.Exit):
        load_population(baskets)
    assert "holds devices, and figures draw" in capsys.readouterr().err


SMALL_STUDY = ("--tokens", 200, "--runs", 2, "--threshold", 10)


@pytest.mark.parametrize(
    ("command", "options", "curves_of"),
    [
        ("fig1", ("--rounds", 2, "--words", 200, "--words", 2000), f1_curves.FIGURE_1),
        ("fig2", ("--rounds", 1, "--rounds", 3, "--words", 500), f1_curves.FIGURE_1),
        ("fig3", ("--rounds", 1, "--rounds", 3, "--words", 500), f1_curves.FIGURE_3),
    ],
)
def test_a_figure_is_printed_written_and_drawn(
    words: Path, tmp_path: Path, command: str, options: Any, curves_of: Any
) -> None:
    out, document = tmp_path / "figure", tmp_path / "figure.json"
    arguments = ("--data", words, *SMALL_STUDY, *options, "--json")
    result = figures(command, *arguments, document, "--out", out)
    assert result.exit_code == 0, result.output
    figure = json.loads(document.read_text())
    assert [curve["name"] for curve in figure["curves"]] == list(curves_of)
    assert all(len(point["runs"]) == 2 for curve in figure["curves"] for point in curve["points"])
    assert 5_000 < out.with_suffix(".svg").stat().st_size < 150_000
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    with out.with_suffix(".csv").open(newline="") as text:
        rows = list(csv.DictReader(text))
    points = [(c["name"], p["mean"], p["x"]) for c in figure["curves"] for p in c["points"]]
    over = "words" if command == "fig1" else "rounds"
    assert [(row["method"], float(row["f1"]), int(row[over])) for row in rows] == points
    assert not out.exists()
    if command == "fig3":  # the fastest
        again = tmp_path / "again.json"
        figures(command, *arguments, again)
        assert again.read_text() == document.read_text()


def test_growth_and_rules_are_printed_and_written(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_growth, "FIXED_TOTAL_ROUNDS", (2, 4, 8))
    monkeypatch.setattr(cost_growth, "_MAX_TRIALS", 300)
    out = tmp_path / "growth.png"
    small = ("--data", words, "--tokens", 200, "--threshold", 10, "--words", 200)
    rounds = ("--rounds", 1, "--rounds", 2, "--runs", 2)
    result = figures("growth", *small, *rounds, "--out", out, "--json", "-")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    rows = document["rows"]
    assert [row["rounds"] for row in rows] == [1, 2]
    few, more, many = document["fixed_total"]
    assert [row["rounds"] * row["tokens"] for row in (few, more, many)] == [6400] * 3
    assert [row["bound"] for row in (few, more, many)] == [320, 160, 80]
    assert few["paper"] > more["paper"] > many["paper"]
    assert few["tracked"] < few["paper"]
    assert rows[1]["deviations"]["table_words"] > 0
    assert out.stat().st_size < 150_000
    result = figures("rules", *small, "--rounds", 4, "--runs", 1, "--out", out, "--json", "-")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["rows"]) == 2 * len(DRIFT_KINDS)


def test_the_grid_is_printed_and_drawn(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = {"ROUNDS": (2,), "TAU": (10,), "TOKENS": (200,), "WORDS": (80, 900)}
    for name, values in grid.items():
        monkeypatch.setattr(f"paper.f1_and_words._GRID_{name}", values)
    result = figures("grid", "--data", words, "--out", tmp_path / "grid", "--json", "-")
    assert result.exit_code == 0, result.output
    assert [row["words"] for row in json.loads(result.stdout)["rows"]] == [80, 900]
    made = {path.suffix: path.stat().st_size for path in tmp_path.glob("grid.*")}
    assert made.keys() == {".csv", ".png", ".svg"}
    assert all(made.values())
    whole, sample = (
        json.loads(figures("grid", "--data", words, "--seed", 3, *options, "--json", "-").stdout)
        for options in ((), ("--sample", 1))
    )
    (row,) = sample["rows"]
    assert row in whole["rows"]


def test_the_rows_alone_need_no_picture(words: Path, tmp_path: Path) -> None:
    options = ("--rounds", 2, "--words", 2000, "--tokens", 100, "--runs", 1)
    result = figures("fig1", "--data", words, *options, "--out", tmp_path / "rows.csv")
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", words.name}


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["fig1", "--data", "none.csv"], "none.csv: no such file"),
        (["fig1", "--data", "{words}", "--out", "x.gif"], "its name ends in .svg or .png"),
        (["fig1", "--data", "{words}", "--words", 3], "--words"),
        (
            ["fig1", "--data", "{words}", *SMALL_STUDY, "--rounds", 1, "--out", "/nowhere/x.svg"],
            "cannot",
        ),
        (["rules", "--data", "{words}", "--words", 8, "--rounds", 2], "are needed"),
    ],
)
def test_a_mistake_is_reported_in_a_line(words: Path, options: list[object], fault: str) -> None:
    result = figures(*(str(option).format(words=words) for option in options))
    assert result.exit_code == 2
    assert fault in result.stderr
    assert "Traceback" not in result.output
