"""The commands `python -m paper ...`: their options, and what they show and write."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from blindtally.cli import CommandGroup
from blindtally.console import completion
from blindtally.console.output import JsonOption, exit_with_error, write_json
from blindtally.console.tables import fact_table, print_parts, result_table
from blindtally.parallel import DaskOption, WorkersOption, run_parallel
from blindtally.planning.f1_curves import GOALS, F1Curve, StudySetting
from blindtally.simulate.populations import (
    DRIFT_KINDS,
    DriftKind,
    ItemPopulation,
    load_item_population,
)
from paper import cdf, curves, drawing, growth, oracle_errors, output, threshold_rules, words
from paper.output import OutOption
from protocol.mechanisms.frequency_sketches import MAX_CANDIDATES, candidate_count

_DEFAULT_WORDS = [100, 200, 500, 1000, 2000, 5000, 8000, 10_000, 20_000, 30_000, 40_000]
_DEFAULT_ROUNDS = [10, 30, 50, 100]
_DEFAULT_GROWTH_ROUNDS = [1, 3, 10, 30, 100]

DataOption = Annotated[
    Path,
    typer.Option(
        help="A CSV file of items and counts to draw from.", autocompletion=completion.complete_data
    ),
]
DataFilesOption = Annotated[
    list[Path],
    typer.Option(
        help="A CSV file of items and counts; repeat it.", autocompletion=completion.complete_data
    ),
]
ThresholdOption = Annotated[
    float, typer.Option("--threshold", min=1, help="Heavy from this count on (tau).")
]
TokensOption = Annotated[int, typer.Option(min=10, max=10**6, help="Mean tokens in a round (M).")]
WordsOption = Annotated[int, typer.Option("--words", min=8, help="16-bit words (C).")]
WordsListOption = Annotated[
    list[int], typer.Option("--words", min=8, help="16-bit words (C); repeat it.")
]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Rounds (R).")]
RoundsListOption = Annotated[
    list[int], typer.Option("--rounds", min=1, max=1000, help="Rounds (R); repeat it.")
]
RunsOption = Annotated[int, typer.Option(min=1, max=1000, help="Runs of each point.")]
SeedOption = Annotated[int, typer.Option(min=0, help="The same seed gives the same figure.")]
_SHORT_METHOD_NAMES = {  # a column's heading each, with which eight of them fit 80 columns
    curves.SAME_HASHES: "same h",
    curves.COUNT_SKETCH: "sketch",
    curves.COUNT_MEDIAN: "median",
    curves.NO_SUBSAMPLING: "no t",
    curves.SUBSAMPLED: "fixed t",
    curves.BEST_FIXED: "best t",
    curves.ADAPTIVE: "adaptive",
    curves.ADAPTIVE_IBLT: "ours",
    curves.TRACKED_MECHANISM: "tracked",
}

app = typer.Typer(
    name="paper",
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.command()(words.words)
app.command()(words.grid)
app.command()(oracle_errors.ldp)
app.command()(cdf.cdf)


@app.callback()
def paper() -> None:
    """Draw the figures of the paper from data, and what else docs/results.md shows.

    Example:
      python -m paper fig3 --data words --runs 2 --out fig3
    """


@app.command()
def fig1(
    data: DataOption,
    rounds: RoundsOption = 30,
    tau: ThresholdOption = 50,
    tokens: TokensOption = 10_000,
    words: WordsListOption = _DEFAULT_WORDS,
    runs: RunsOption = 5,
    seed: SeedOption = 1,
    workers: WorkersOption = 1,
    dask: DaskOption = None,
    out: OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """F1 over words: all methods.

    Example:
      python -m paper fig1 --data words --out fig1
    """
    population = _load_population(data, out)
    setting = StudySetting(rounds, tau, tokens, 0)
    grid, names = sorted(set(words)), curves.FIGURE_1
    work = partial(curves.over_words, population, setting, grid, names)
    found = curves.merge_runs(
        run_parallel(work, _run_seeds(seed, runs), "runs", workers, dask), names, grid
    )
    title = f"{data.name}: R = {rounds}, tau = {tau:g}, M = {tokens:,}"
    _write_curves(
        "fig1", f"{title}\n{drawing.error_bars(runs, seed)}", found, out, json_path, log=True
    )


@app.command()
def fig2(
    data: DataOption,
    rounds: RoundsListOption = _DEFAULT_ROUNDS,
    tau: ThresholdOption = 200,
    tokens: TokensOption = 10_000,
    words: WordsOption = 10_000,
    runs: RunsOption = 5,
    seed: SeedOption = 1,
    workers: WorkersOption = 1,
    dask: DaskOption = None,
    out: OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """F1 over rounds: all methods. The paper's text has tau = 200, its caption tau = 100.

    Example:
      python -m paper fig2 --data words --threshold 100 --out fig2
    """
    population = _load_population(data, out)
    setting = StudySetting(0, tau, tokens, words)
    grid, names = sorted(set(rounds)), curves.FIGURE_1
    work = partial(curves.over_rounds, population, setting, grid, names)
    found = curves.merge_runs(
        run_parallel(work, _run_seeds(seed, runs), "runs", workers, dask), names, grid
    )
    title = f"{data.name}: C = {words:,}, tau = {tau:g}, M = {tokens:,}"
    _write_curves("fig2", f"{title}\n{drawing.error_bars(runs, seed)}", found, out, json_path)


@app.command()
def fig3(
    data: DataOption,
    rounds: RoundsListOption = _DEFAULT_ROUNDS,
    tau: ThresholdOption = 50,
    tokens: TokensOption = 10_000,
    words: WordsOption = 5000,
    runs: RunsOption = 5,
    seed: SeedOption = 1,
    workers: WorkersOption = 1,
    dask: DaskOption = None,
    out: OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """F1 over rounds: adaptive sampling beside the best of eight fixed thresholds.

    Example:
      python -m paper fig3 --data words --out fig3
    """
    population = _load_population(data, out)
    setting = StudySetting(0, tau, tokens, words)
    grid, names = sorted(set(rounds)), curves.FIGURE_3
    work = partial(curves.over_rounds, population, setting, grid, names)
    found = curves.merge_runs(
        run_parallel(work, _run_seeds(seed, runs), "runs", workers, dask), names, grid
    )
    title = f"{data.name}: C = {words:,}, tau = {tau:g}, M = {tokens:,}"
    _write_curves("fig3", f"{title}\n{drawing.error_bars(runs, seed)}", found, out, json_path)


@app.command("growth")
def grow(
    data: DataOption,
    rounds: RoundsListOption = _DEFAULT_GROWTH_ROUNDS,
    tau: ThresholdOption = 50,
    tokens: TokensOption = 10_000,
    words: WordsOption = 5000,
    runs: RunsOption = 3,
    seed: SeedOption = 1,
    workers: WorkersOption = 1,
    dask: DaskOption = None,
    out: OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """Errors and words over rounds: a frequency oracle beside sampled tables.

    Example:
      python -m paper growth --data words --out growth
    """
    population = _load_population(data, out)
    if candidate_count(population.domain) > MAX_CANDIDATES:
        raise exit_with_error(f"{data}: an oracle cannot score every item of its domain")
    cases = [(seed, count, run) for count in sorted(set(rounds)) for run in range(runs)]
    work = partial(growth.measure_growth, population, tokens, tau, words)
    seen = run_parallel(work, cases, "runs", workers, dask)
    rows = [growth.mean_of_runs(seen[start : start + runs]) for start in range(0, len(seen), runs)]
    title = (
        f"{data.name}: C = {words:,}, tau = {tau:g}, M = {tokens:,}\n"
        f"{drawing.error_bars(runs, seed)}"
    )
    if json_path != "-":
        cells = [
            [str(row.rounds), *(f"{getattr(row, name):,.1f}" for name in growth.GROWTH_MEASURES)]
            for row in rows
        ]
        headings = ["R", "oracle, error", "table, error", "oracle, words", "table, words"]
        print_parts(result_table([], headings, cells, title))
    found = [row.as_json() for row in rows]
    flat = [row | {f"{k}_deviation": v for k, v in row.pop("deviations").items()} for row in found]
    output.write_figure(out, lambda path: drawing.draw_growth(path, rows, title), flat)
    found = [row.as_json() for row in rows]
    write_json(json_path, {"figure": "growth", "title": title, "runs": runs, "rows": found})


@app.command("rules")
def compare_rules(
    data: DataFilesOption,
    rounds: RoundsOption = 30,
    tau: ThresholdOption = 50,
    tokens: TokensOption = 10_000,
    words: WordsOption = 2000,
    runs: RunsOption = 5,
    seed: SeedOption = 1,
    workers: WorkersOption = 1,
    dask: DaskOption = None,
    out: OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """Compare the rules for t of adaptive-iblt, on each file with each drift.

    Example:
      python -m paper rules --data words --data short --out rules
    """
    setting = StudySetting(rounds, tau, tokens, words)
    cases = [(path, _load_population(path, out), drift) for path in data for drift in DRIFT_KINDS]
    pieces = [
        (population, drift, setting, _run_seeds(seed, runs)) for _, population, drift in cases
    ]
    try:
        outcomes = run_parallel(_compare_rules, pieces, "runs", workers, dask)
    except ValueError as error:
        raise exit_with_error(error) from None
    found = [
        {"data": path.name, "drift": drift} | one.as_json()
        for (path, _, drift), both in zip(cases, outcomes, strict=True)
        for one in both
    ]
    title = (
        f"Rules for t: R = {rounds}, tau = {tau:g}, M = {tokens:,}, C = {words:,}\n"
        f"{drawing.error_bars(runs, seed)}"
    )
    if json_path != "-":
        headings = ["F1", "rounds read", "settled", "load"]
        measures = {"f1": ".3f", "rounds_read": ".1f", "settled": ".1f", "load": ".2f"}
        cells = [
            [
                *(one["data"].split(".")[0], one["drift"], one["rule"]),
                *(format(one[name], form) for name, form in measures.items()),
            ]
            for one in found
        ]
        print_parts(result_table(["data", "drift", "rule"], headings, cells, title))
    output.write_figure(out, lambda path: drawing.draw_rules(path, found, title), found)
    write_json(json_path, {"figure": "rules", "rounds": rounds, "words": words, "rows": found})


def _load_population(path: Path, out: Path | None) -> ItemPopulation:
    output.check_output_path(out)
    try:
        return load_item_population(path)
    except ValueError as error:
        raise exit_with_error(error) from None


def _run_seeds(seed: int, runs: int) -> list[tuple[int, int]]:
    return [(seed, run) for run in range(runs)]


def _compare_rules(
    piece: tuple[ItemPopulation, DriftKind, StudySetting, Sequence[Sequence[int]]],
) -> list[threshold_rules.RuleOutcome]:
    return threshold_rules.compare_rules(*piece)


def _write_curves(
    name: str,
    title: str,
    found: Sequence[F1Curve],
    out: Path | None,
    json_path: str | None,
    *,
    log: bool = False,
) -> None:
    x = "words C" if log else "rounds R"
    if json_path != "-":
        means = [{point.x: f"{point.mean:.3f}" for point in curve.points} for curve in found]
        grid = sorted({point.x for curve in found for point in curve.points})
        rows = [[f"{value:,}", *(seen.get(value, "") for seen in means)] for value in grid]
        for goal in GOALS if log else ():
            sizes = [curve.x_reaching(goal) for curve in found]
            rows.append([f"for {goal}", *("" if c is None else f"{c:,.0f}" for c in sizes)])
        names = {_SHORT_METHOD_NAMES[curve.name]: curve.name for curve in found}
        print_parts(
            f"F1 over {x}. {title}",
            result_table([x.split(maxsplit=1)[0]], [*names], rows),
            fact_table(names),
        )
    rows_of = [row for curve in found for row in curve.rows(x.split(maxsplit=1)[0])]
    output.write_figure(out, lambda path: drawing.draw_curves(path, found, x, title, log), rows_of)
    document = {"figure": name, "title": title, "x": x}
    write_json(json_path, document | {"curves": [curve.as_json() for curve in found]})
