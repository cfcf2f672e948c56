"""The commands `python -m paper ...`: their options, and what they print and write."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from blindtally.cli import CommandGroup
from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import fact_table, print_parts, result_table
from blindtally.planning.f1_by_words import GOALS, StudySetting
from blindtally.simulate.populations import DRIFT_KINDS
from paper import (
    adaptive_iblt,
    cdf,
    cost_growth,
    drawing,
    f1_and_words,
    f1_curves,
    options,
    oracle_errors,
)
from paper.options import (
    DaskOption,
    DataFilesOption,
    DataOption,
    OutOption,
    RoundsOption,
    RunOptions,
    RunsOption,
    SeedOption,
    ThresholdOption,
    TokensOption,
    WorkersOption,
)
from protocol.reference_mechanisms.count_sketches import MAX_CANDIDATES, candidate_count

_DEFAULT_WORDS = [100, 200, 500, 1000, 2000, 5000, 8000, 10_000, 20_000, 30_000, 40_000]
_DEFAULT_ROUNDS = [10, 30, 50, 100]
_DEFAULT_GROWTH_ROUNDS = [1, 3, 10, 30, 100]

WordsOption = Annotated[int, typer.Option("--words", min=8, help="16-bit words (C).")]
WordsListOption = Annotated[
    list[int], typer.Option("--words", min=8, help="16-bit words (C); repeat it.")
]
RoundsListOption = Annotated[
    list[int], typer.Option("--rounds", min=1, max=1000, help="Rounds (R); repeat it.")
]
_SHORT_METHOD_NAMES = {  # a column's heading each, with which eight of them fit 80 columns
    f1_curves.SAME_HASHES: "same h",
    f1_curves.COUNT_SKETCH: "sketch",
    f1_curves.COUNT_MEDIAN: "median",
    f1_curves.NO_SUBSAMPLING: "no t",
    f1_curves.SUBSAMPLED: "fixed t",
    f1_curves.BEST_FIXED: "best t",
    f1_curves.ADAPTIVE: "adaptive",
    f1_curves.ADAPTIVE_IBLT: "ours",
    f1_curves.TRACKED_MECHANISM: "tracked",
}

app = typer.Typer(
    name="paper",
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.command()(f1_and_words.words)
app.command()(f1_and_words.grid)
app.command()(oracle_errors.ldp)
app.command()(cdf.cdf)


@app.callback()
def paper() -> None:
    """Draw the figures of the paper from data, and what docs/research/paper-figures.md shows.

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
    setting, grid = StudySetting(rounds, tau, tokens, 0), sorted(set(words))
    figure = f1_curves.F1Figure("fig1", f1_curves.FIGURE_1, setting, grid)
    _run_figure(figure, data, RunOptions(runs, seed, workers, dask), out, json_path)


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
    setting, grid = StudySetting(0, tau, tokens, words), sorted(set(rounds))
    figure = f1_curves.F1Figure("fig2", f1_curves.FIGURE_1, setting, grid)
    _run_figure(figure, data, RunOptions(runs, seed, workers, dask), out, json_path)


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
    """F1 over rounds: adaptive sampling and the best of eight fixed thresholds.

    Example:
      python -m paper fig3 --data words --out fig3
    """
    setting, grid = StudySetting(0, tau, tokens, words), sorted(set(rounds))
    figure = f1_curves.F1Figure("fig3", f1_curves.FIGURE_3, setting, grid)
    _run_figure(figure, data, RunOptions(runs, seed, workers, dask), out, json_path)


def _run_figure(
    figure: f1_curves.F1Figure,
    data: Path,
    run_options: RunOptions,
    out: Path | None,
    json_path: str | None,
) -> None:
    options.check_output_path(out)
    work = partial(f1_curves.score_run, figure, options.load_population(data))
    merged = f1_curves.merge_runs(run_options.map(work, run_options.seeds, "runs"), figure)
    x = "words C" if figure.is_over_words else "rounds R"
    title = f"{data.name}: {figure.title}\n{run_options.error_bars}"
    if json_path != "-":
        means = [{point.x: f"{point.mean:.3f}" for point in curve.points} for curve in merged]
        grid = sorted({point.x for curve in merged for point in curve.points})
        rows = [[f"{value:,}", *(seen.get(value, "") for seen in means)] for value in grid]
        for goal in GOALS if figure.is_over_words else ():
            sizes = [curve.x_reaching(goal) for curve in merged]
            rows.append([f"for {goal}", *("" if c is None else f"{c:,.0f}" for c in sizes)])
        names = {_SHORT_METHOD_NAMES[curve.name]: curve.name for curve in merged}
        print_parts(
            f"F1 over {x}. {title}",
            result_table([figure.x], [*names], rows),
            fact_table(names),
        )
    rows_of = [row for curve in merged for row in f1_curves.curve_rows(curve, figure.x)]
    options.write_figure(
        out,
        lambda path: drawing.draw_curves(path, merged, x, title, figure.is_over_words),
        rows_of,
    )
    document = {"figure": figure.name, "title": title, "x": x}
    write_json(
        json_path, document | {"curves": [f1_curves.curve_document(curve) for curve in merged]}
    )


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
    """Errors and words over rounds: a frequency oracle and sampled tables.

    Example:
      python -m paper growth --data words --out growth
    """
    options.check_output_path(out)
    population = options.load_population(data)
    if candidate_count(population.domain) > MAX_CANDIDATES:
        raise exit_with_error(f"{data}: an oracle cannot score every item of its domain")
    run_options = RunOptions(runs, seed, workers, dask)
    cases = [(seed, count, run) for count in sorted(set(rounds)) for run in range(runs)]
    work = partial(cost_growth.measure_growth, population, tokens, tau, words)
    measured = run_options.map(work, cases, "runs")
    means = [
        cost_growth.mean_of_runs(measured[start : start + runs])
        for start in range(0, len(measured), runs)
    ]
    find_words = partial(
        cost_growth.words_at_fixed_total,
        population,
        tokens,
        tau,
        [(seed, run) for run in range(runs)],
    )
    reached = run_options.map(find_words, cost_growth.fixed_total_cases(), "sizes at fixed N")
    at_fixed_total = cost_growth.fixed_total_rows(tokens, tau, reached)
    title = f"{data.name}: C = {words:,}, tau = {tau:g}, M = {tokens:,}\n{run_options.error_bars}"
    if json_path != "-":
        print_parts(*_growth_tables(means, at_fixed_total, title))
    rows = [asdict(row) for row in means]
    flat = [
        {name: value for name, value in row.items() if name != "deviations"}
        | {f"{name}_deviation": value for name, value in row["deviations"].items()}
        for row in rows
    ]
    options.write_figure(
        out, lambda path: drawing.draw_growth(path, means, at_fixed_total, title), flat
    )
    document = {"figure": "growth", "title": title, "runs": runs, "rows": rows}
    write_json(json_path, document | {"fixed_total": [asdict(row) for row in at_fixed_total]})


def _growth_tables(
    means: Sequence[cost_growth.GrowthRow], fixed: Sequence[cost_growth.FixedTotalRow], title: str
) -> list[Any]:
    cells = [
        [str(row.rounds), *(f"{getattr(row, name):,.1f}" for name in cost_growth.GROWTH_MEASURES)]
        for row in means
    ]
    headings = ["R", "oracle, error", "table, error", "oracle, words", "table, words"]
    about = (
        f"Words for an F1 of {cost_growth.FIXED_TOTAL_GOAL}, N = R M = "
        f"{fixed[0].rounds * fixed[0].tokens:,} devices"
    )
    return [
        result_table([], headings, cells, title),
        result_table(
            [],
            ["R", "M", "N / (R tau)", "adaptive IBLT", "tracked"],
            [
                [
                    *(f"{value:,}" for value in (row.rounds, row.tokens)),
                    *(
                        "never" if value is None else f"{value:,.0f}"
                        for value in (row.bound, row.paper, row.tracked)
                    ),
                ]
                for row in fixed
            ],
            about,
        ),
    ]


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
    options.check_output_path(out)
    run_options = RunOptions(runs, seed, workers, dask)
    populations = [(path.name, options.load_population(path)) for path in data]
    cases = [(name, people, drift) for name, people in populations for drift in DRIFT_KINDS]
    setting = StudySetting(rounds, tau, tokens, words)
    work = partial(adaptive_iblt.compare_rules, setting, run_options.seeds)
    try:
        outcomes = run_options.map(work, [(people, drift) for _, people, drift in cases], "runs")
    except ValueError as error:
        raise exit_with_error(error) from None
    rows = [
        {"data": name, "drift": drift} | asdict(outcome)
        for (name, _, drift), of_case in zip(cases, outcomes, strict=True)
        for outcome in of_case
    ]
    title = (
        f"Rules for t: R = {rounds}, tau = {tau:g}, M = {tokens:,}, C = {words:,}\n"
        f"{run_options.error_bars}"
    )
    if json_path != "-":
        headings = ["F1", "rounds read", "settled", "load"]
        measures = {"f1": ".3f", "rounds_read": ".1f", "settled": ".1f", "load": ".2f"}
        cells = [
            [
                *(row["data"].split(".")[0], row["drift"], row["rule"]),
                *(format(row[name], form) for name, form in measures.items()),
            ]
            for row in rows
        ]
        print_parts(result_table(["data", "drift", "rule"], headings, cells, title))
    options.write_figure(out, lambda path: drawing.draw_rules(path, rows, title), rows)
    write_json(json_path, {"figure": "rules", "rounds": rounds, "words": words, "rows": rows})
