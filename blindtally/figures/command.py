"""The commands `blindtally figures ...`: their options, and what they show and write."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from blindtally import completion
from blindtally.figures import cdf, curves, drawing, growth, ldp, pictures, rules, words
from blindtally.figures.curves import Curve, Setting
from blindtally.figures.pictures import Out
from blindtally.figures.populations import DRIFTS, Drift, Population, load
from blindtally.output import Json, failed, write_json
from blindtally.tables import facts, show, table
from blindtally.workers import Dask, Workers, shared
from protocol.mechanisms.frequency_sketches import MOST_CANDIDATES, candidates

_WORDS = [100, 200, 500, 1000, 2000, 5000, 8000, 10_000, 20_000, 30_000, 40_000]
_ROUNDS = [10, 30, 50, 100]
_GROWING = [1, 3, 10, 30, 100]

Data = Annotated[
    Path,
    typer.Option(
        help="A CSV file of items and counts to draw from.", autocompletion=completion.data
    ),
]
Files = Annotated[
    list[Path],
    typer.Option(help="A CSV file of items and counts; repeat it.", autocompletion=completion.data),
]
Tau = Annotated[float, typer.Option("--threshold", min=1, help="Heavy from this count on (tau).")]
Tokens = Annotated[int, typer.Option(min=10, max=10**6, help="Mean tokens in a round (M).")]
Budget = Annotated[int, typer.Option("--words", min=8, help="16-bit words (C).")]
Budgets = Annotated[list[int], typer.Option("--words", min=8, help="16-bit words (C); repeat it.")]
Length = Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Rounds (R).")]
Lengths = Annotated[
    list[int], typer.Option("--rounds", min=1, max=1000, help="Rounds (R); repeat it.")
]
Runs = Annotated[int, typer.Option(min=1, max=1000, help="Runs of each point.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same figure.")]
_SHORT = {  # a column's heading each, with which eight of them fit 80 columns
    curves.SAME_HASHES: "same h",
    curves.COUNT_SKETCH: "sketch",
    curves.COUNT_MEDIAN: "median",
    curves.NO_SUBSAMPLING: "no t",
    curves.SUBSAMPLED: "fixed t",
    curves.BEST_FIXED: "best t",
    curves.ADAPTIVE: "adaptive",
    curves.OURS: "ours",
    curves.TRACKED: "tracked",
}

app = typer.Typer(name="figures", add_completion=False, no_args_is_help=True)
app.command()(words.words)
app.command()(words.grid)
app.command()(ldp.ldp)
app.command()(cdf.cdf)


@app.callback()
def figures() -> None:
    """Draw the figures of the paper from data, and what else docs/results.md shows.

    Example:
      blindtally figures fig3 --data words --runs 2 --out fig3
    """


@app.command()
def fig1(
    data: Data,
    rounds: Length = 30,
    tau: Tau = 50,
    tokens: Tokens = 10_000,
    words: Budgets = _WORDS,
    runs: Runs = 5,
    seed: Seed = 1,
    workers: Workers = 1,
    dask: Dask = None,
    out: Out = None,
    json_path: Json = None,
) -> None:
    """F1 over words: all methods.

    Example:
      blindtally figures fig1 --data words --out fig1
    """
    population = _load(data, out)
    setting = Setting(rounds, tau, tokens, 0)
    grid, names = sorted(set(words)), curves.FIGURE_1
    work = partial(curves.over_words, population, setting, grid, names)
    found = curves.over_runs(shared(work, _seeds(seed, runs), "runs", workers, dask), names, grid)
    title = f"{data.name}: R = {rounds}, tau = {tau:g}, M = {tokens:,}"
    _finish("fig1", f"{title}\n{drawing.error_bars(runs, seed)}", found, out, json_path, log=True)


@app.command()
def fig2(
    data: Data,
    rounds: Lengths = _ROUNDS,
    tau: Tau = 200,
    tokens: Tokens = 10_000,
    words: Budget = 10_000,
    runs: Runs = 5,
    seed: Seed = 1,
    workers: Workers = 1,
    dask: Dask = None,
    out: Out = None,
    json_path: Json = None,
) -> None:
    """F1 over rounds: all methods. The paper's text has tau = 200, its caption tau = 100.

    Example:
      blindtally figures fig2 --data words --threshold 100 --out fig2
    """
    population = _load(data, out)
    setting = Setting(0, tau, tokens, words)
    grid, names = sorted(set(rounds)), curves.FIGURE_1
    work = partial(curves.over_rounds, population, setting, grid, names)
    found = curves.over_runs(shared(work, _seeds(seed, runs), "runs", workers, dask), names, grid)
    title = f"{data.name}: C = {words:,}, tau = {tau:g}, M = {tokens:,}"
    _finish("fig2", f"{title}\n{drawing.error_bars(runs, seed)}", found, out, json_path)


@app.command()
def fig3(
    data: Data,
    rounds: Lengths = _ROUNDS,
    tau: Tau = 50,
    tokens: Tokens = 10_000,
    words: Budget = 5000,
    runs: Runs = 5,
    seed: Seed = 1,
    workers: Workers = 1,
    dask: Dask = None,
    out: Out = None,
    json_path: Json = None,
) -> None:
    """F1 over rounds: adaptive sampling beside the best of eight fixed thresholds.

    Example:
      blindtally figures fig3 --data words --out fig3
    """
    population = _load(data, out)
    setting = Setting(0, tau, tokens, words)
    grid, names = sorted(set(rounds)), curves.FIGURE_3
    work = partial(curves.over_rounds, population, setting, grid, names)
    found = curves.over_runs(shared(work, _seeds(seed, runs), "runs", workers, dask), names, grid)
    title = f"{data.name}: C = {words:,}, tau = {tau:g}, M = {tokens:,}"
    _finish("fig3", f"{title}\n{drawing.error_bars(runs, seed)}", found, out, json_path)


@app.command("growth")
def grow(
    data: Data,
    rounds: Lengths = _GROWING,
    tau: Tau = 50,
    tokens: Tokens = 10_000,
    words: Budget = 5000,
    runs: Runs = 3,
    seed: Seed = 1,
    workers: Workers = 1,
    dask: Dask = None,
    out: Out = None,
    json_path: Json = None,
) -> None:
    """Errors and words over rounds: a frequency oracle beside sampled tables.

    Example:
      blindtally figures growth --data words --out growth
    """
    population = _load(data, out)
    if candidates(population.domain) > MOST_CANDIDATES:
        raise failed(f"{data}: an oracle cannot score every item of its domain")
    cases = [(seed, count, run) for count in sorted(set(rounds)) for run in range(runs)]
    work = partial(growth.grow, population, tokens, tau, words)
    seen = shared(work, cases, "runs", workers, dask)
    rows = [growth.over_runs(seen[start : start + runs]) for start in range(0, len(seen), runs)]
    title = (
        f"{data.name}: C = {words:,}, tau = {tau:g}, M = {tokens:,}\n"
        f"{drawing.error_bars(runs, seed)}"
    )
    if json_path != "-":
        cells = [
            [str(row.rounds), *(f"{getattr(row, name):,.1f}" for name in growth.MEASURES)]
            for row in rows
        ]
        headings = ["R", "oracle, error", "table, error", "oracle, words", "table, words"]
        show(table([], headings, cells, title))
    found = [row.as_json() for row in rows]
    flat = [row | {f"{k}_deviation": v for k, v in row.pop("deviations").items()} for row in found]
    pictures.draw(out, lambda path: drawing.draw_growth(path, rows, title), flat)
    found = [row.as_json() for row in rows]
    write_json(json_path, {"figure": "growth", "title": title, "runs": runs, "rows": found})


@app.command("rules")
def compare_rules(
    data: Files,
    rounds: Length = 30,
    tau: Tau = 50,
    tokens: Tokens = 10_000,
    words: Budget = 2000,
    runs: Runs = 5,
    seed: Seed = 1,
    workers: Workers = 1,
    dask: Dask = None,
    out: Out = None,
    json_path: Json = None,
) -> None:
    """Compare the rules for t of adaptive-iblt, on each file with each drift.

    Example:
      blindtally figures rules --data words --data short --out rules
    """
    setting = Setting(rounds, tau, tokens, words)
    cases = [(path, _load(path, out), drift) for path in data for drift in DRIFTS]
    pieces = [(population, drift, setting, _seeds(seed, runs)) for _, population, drift in cases]
    try:
        outcomes = shared(_compare, pieces, "runs", workers, dask)
    except ValueError as error:
        raise failed(error) from None
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
        show(table(["data", "drift", "rule"], headings, cells, title))
    pictures.draw(out, lambda path: drawing.draw_rules(path, found, title), found)
    write_json(json_path, {"figure": "rules", "rounds": rounds, "words": words, "rows": found})


def _load(path: Path, out: Path | None) -> Population:
    pictures.check(out)
    try:
        return load(path)
    except ValueError as error:
        raise failed(error) from None


def _seeds(seed: int, runs: int) -> list[tuple[int, int]]:
    return [(seed, run) for run in range(runs)]


def _compare(
    piece: tuple[Population, Drift, Setting, Sequence[Sequence[int]]],
) -> list[rules.Outcome]:
    return rules.compare(*piece)


def _finish(
    name: str,
    title: str,
    found: Sequence[Curve],
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
        for goal in curves.GOALS if log else ():
            sizes = [curve.reaches(goal) for curve in found]
            rows.append([f"for {goal}", *("" if c is None else f"{c:,.0f}" for c in sizes)])
        names = {_SHORT[curve.name]: curve.name for curve in found}
        show(f"F1 over {x}. {title}", table([x.split(maxsplit=1)[0]], [*names], rows), facts(names))
    rows_of = [row for curve in found for row in curve.rows(x.split(maxsplit=1)[0])]
    pictures.draw(out, lambda path: drawing.draw_curves(path, found, x, title, log), rows_of)
    document = {"figure": name, "title": title, "x": x}
    write_json(json_path, document | {"curves": [curve.as_json() for curve in found]})
