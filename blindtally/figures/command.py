"""The commands `blindtally figures ...`: their options, and what they show and write."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from blindtally.figures import cdf, curves, drawing, growth, ldp, pictures, rules, words
from blindtally.figures.curves import Curve, Setting
from blindtally.figures.populations import DRIFTS, Population, load
from blindtally.output import failed, write_json
from protocol.mechanisms.frequency_sketches import MOST_CANDIDATES, candidates

_WORDS = [100, 200, 500, 1000, 2000, 5000, 8000, 10_000, 20_000, 30_000, 40_000]
_ROUNDS = [10, 30, 50, 100]
_GROWING = [1, 3, 10, 30, 100]

Data = Annotated[Path, typer.Option(help="A CSV file of items and counts to draw from.")]
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
Out = Annotated[Path | None, typer.Option(help="Draw it: a file that ends in .svg or .png.")]
Json = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write JSON; - is stdout.")
]

app = typer.Typer(name="figures", add_completion=False, no_args_is_help=True)
app.command()(words.words)
app.command()(words.grid)
app.command()(ldp.ldp)
app.command()(cdf.cdf)


@app.callback()
def figures() -> None:
    """Draw the figures of the paper from data, and what else docs/results.md shows."""


@app.command()
def fig1(
    data: Data,
    rounds: Length = 30,
    tau: Tau = 50,
    tokens: Tokens = 10_000,
    words: Budgets = _WORDS,
    runs: Runs = 5,
    seed: Seed = 1,
    out: Out = None,
    json_path: Json = None,
) -> None:
    """F1 over words: all methods.

    Example: blindtally figures fig1 --data words.csv --out fig1.svg
    """
    population = _load(data, out)
    setting = Setting(rounds, tau, tokens, 0)
    found = curves.over_words(
        population, setting, sorted(set(words)), curves.FIGURE_1, _chances(seed, runs)
    )
    title = f"{data.name}: R = {rounds}, tau = {tau:g}, M = {tokens:,}"
    _finish("fig1", title, found, "words C", out, json_path, log=True)


@app.command()
def fig2(
    data: Data,
    rounds: Lengths = _ROUNDS,
    tau: Tau = 200,
    tokens: Tokens = 10_000,
    words: Budget = 10_000,
    runs: Runs = 5,
    seed: Seed = 1,
    out: Out = None,
    json_path: Json = None,
) -> None:
    """F1 over rounds: all methods. The paper's text has tau = 200, its caption tau = 100.

    Example: blindtally figures fig2 --data words.csv --threshold 100 --out fig2.svg
    """
    population = _load(data, out)
    setting = Setting(0, tau, tokens, words)
    found = curves.over_rounds(
        population, setting, sorted(set(rounds)), curves.FIGURE_1, _chances(seed, runs)
    )
    title = f"{data.name}: C = {words:,}, tau = {tau:g}, M = {tokens:,}"
    _finish("fig2", title, found, "rounds R", out, json_path, log=False)


@app.command()
def fig3(
    data: Data,
    rounds: Lengths = _ROUNDS,
    tau: Tau = 50,
    tokens: Tokens = 10_000,
    words: Budget = 5000,
    runs: Runs = 5,
    seed: Seed = 1,
    out: Out = None,
    json_path: Json = None,
) -> None:
    """F1 over rounds: adaptive sampling beside the best of eight fixed thresholds.

    Example: blindtally figures fig3 --data words.csv --out fig3.svg
    """
    population = _load(data, out)
    setting = Setting(0, tau, tokens, words)
    found = curves.over_rounds(
        population, setting, sorted(set(rounds)), curves.FIGURE_3, _chances(seed, runs)
    )
    title = f"{data.name}: C = {words:,}, tau = {tau:g}, M = {tokens:,}"
    _finish("fig3", title, found, "rounds R", out, json_path, log=False)


@app.command("growth")
def grow(
    data: Data,
    rounds: Lengths = _GROWING,
    tau: Tau = 50,
    tokens: Tokens = 10_000,
    words: Budget = 5000,
    seed: Seed = 1,
    out: Out = None,
    json_path: Json = None,
) -> None:
    """Errors and words over rounds: a frequency oracle beside sampled tables.

    Example: blindtally figures growth --data words.csv --out growth.svg
    """
    population = _load(data, out)
    if candidates(population.domain) > MOST_CANDIDATES:
        raise failed(f"{data}: an oracle cannot score every item of its domain")
    counts = sorted(set(rounds))
    rows = [
        growth.grow(population, count, tokens, tau, words, np.random.default_rng([seed, count]))
        for count in _watched(counts, len(counts), "rounds")
    ]
    title = f"{data.name}: C = {words:,}, tau = {tau:g}, M = {tokens:,}"
    if json_path != "-":
        table = Table("R", "oracle, error", "table, error", "oracle, words", "table, words")
        for row in rows:
            errors = f"{row.oracle_error:.1f}", f"{row.table_error:.1f}"
            table.add_row(
                str(row.rounds), *errors, f"{row.oracle_words:,.0f}", f"{row.table_words:,}"
            )
        Console().print(title, table)
    pictures.draw(out, lambda path: drawing.draw_growth(path, rows, title))
    if json_path is not None:
        found = [row.as_json() for row in rows]
        write_json(json_path, {"figure": "growth", "title": title, "rows": found})


@app.command("rules")
def compare_rules(
    data: Annotated[list[Path], typer.Option(help="A CSV file of items and counts; repeat it.")],
    rounds: Length = 30,
    tau: Tau = 50,
    tokens: Tokens = 10_000,
    words: Budget = 2000,
    runs: Runs = 5,
    seed: Seed = 1,
    json_path: Json = None,
) -> None:
    """Compare the rules for t of adaptive-iblt, on each file with each drift.

    Example: blindtally figures rules --data words.csv --data cities.csv
    """
    setting = Setting(rounds, tau, tokens, words)
    table = Table("data", "drift", "rule", "F1", "rounds read", "settled in round", "mean load")
    cases = [(path, _load(path, None), drift) for path in data for drift in DRIFTS]
    found: list[dict[str, Any]] = []
    for path, population, drift in _watched(cases, len(cases), "populations"):
        seeds = [(seed, run) for run in range(runs)]
        try:
            outcomes = list(rules.compare(population, drift, setting, seeds))
        except ValueError as error:
            raise failed(f"{path}: {error}") from None
        for one in outcomes:
            found.append({"data": path.name, "drift": drift} | one.as_json())
            told = (
                f"{one.f1:.3f}",
                f"{one.rounds_read:.1f}",
                f"{one.settled:.1f}",
                f"{one.load:.2f}",
            )
            table.add_row(path.name.split(".")[0], drift, one.rule, *told)
    if json_path != "-":
        Console(width=None if Console().is_terminal else 100).print(table)
    if json_path is not None:
        write_json(json_path, {"figure": "rules", "rounds": rounds, "words": words, "rows": found})


def _load(path: Path, out: Path | None) -> Population:
    pictures.check(out)
    try:
        return load(path)
    except ValueError as error:
        raise failed(error) from None


def _chances(seed: int, runs: int) -> Iterator[np.random.Generator]:
    return _watched((np.random.default_rng([seed, run]) for run in range(runs)), runs, "runs")


def _watched(things: Iterable[Any], count: int, what: str) -> Iterator[Any]:
    """Yield `things`; progress goes to stderr if somebody watches it."""
    screen = Console(stderr=True)
    yield from track(things, what, count, console=screen, disable=not screen.is_terminal)


def _finish(
    name: str,
    title: str,
    found: Sequence[Curve],
    x: str,
    out: Path | None,
    json_path: str | None,
    *,
    log: bool,
) -> None:
    if json_path != "-":
        grid = sorted({point.x for curve in found for point in curve.points})
        table = Table("method", *(f"{value:,}" for value in grid), title=f"F1 by {x}")
        reached = Table("method", *map(str, curves.GOALS), title=f"{x} for an F1 of")
        for curve in found:
            means = {point.x: f"{point.mean:.3f}" for point in curve.points}
            table.add_row(curve.name, *(means.get(value, "") for value in grid))
            sizes = [curve.reaches(goal) for goal in curves.GOALS]
            reached.add_row(curve.name, *("" if size is None else f"{size:,.0f}" for size in sizes))
        screen = Console(width=None if Console().is_terminal else 150)
        screen.print(title, table, *([reached] if log else []))
    pictures.draw(out, lambda path: drawing.draw_curves(path, found, x, title, log))
    if json_path is not None:
        document = {"figure": name, "title": title, "x": x}
        write_json(json_path, document | {"curves": [curve.as_json() for curve in found]})
