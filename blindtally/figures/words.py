"""The commands that compare `tracked` with the paper's method: words for an F1, F1 for words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from blindtally.figures.budgets import PAPER, TRACKED, Case, Pair, beside, needed
from blindtally.figures.curves import GOALS, Curve, Setting
from blindtally.figures.populations import DRIFTS, Drift, Population, load
from blindtally.output import failed, write_json

_GRID_ROUNDS = (10, 30, 50, 100)
_GRID_TAU = (20, 50, 100, 200)
_GRID_TOKENS = (1000, 2000, 5000, 10_000)
_GRID_WORDS = (100, 200, 500, 1000, 2000, 5000, 8000, 10_000, 20_000, 30_000, 40_000)
_WIDTH = 110

Files = Annotated[list[Path], typer.Option(help="A CSV file of items and counts; repeat it.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")]
Json = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write JSON; - is stdout.")
]


def words(
    data: Files,
    drift: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(DRIFTS)}; repeat it. All if none.")
    ] = None,
    contribution: Annotated[
        list[int], typer.Option(min=1, max=1000, help="Items a device holds (m); repeat it.")
    ] = [1],  # noqa: B006  (typer's own way to say it)
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds (R).")] = 30,
    threshold: Annotated[float, typer.Option(min=1, help="Heavy from this count on (tau).")] = 50,
    tokens: Annotated[
        int, typer.Option(min=10, max=10**6, help="Mean tokens a round (M).")
    ] = 10_000,
    runs: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each point.")] = 5,
    seed: Seed = 1,
    json_path: Json = None,
) -> None:
    """Words that a device sends a round for an F1 of 0.8, 0.9 and 0.95: the paper's and ours.

    Example: blindtally figures words --data words.csv --drift none --runs 3
    """
    drifts = [_drift(name) for name in drift or DRIFTS]
    people = [(path, _load(path)) for path in data]
    cases = [
        (p.name, Case(who, how, m)) for p, who in people for how in drifts for m in contribution
    ]
    table = Table("data", "drift", "m", "method", *(f"F1 {goal:g}" for goal in GOALS))
    found: list[dict[str, Any]] = []
    seeds = [(seed, run) for run in range(runs)]
    for name, case in _watched(cases, "populations"):
        setting = Setting(rounds, threshold, tokens, 0)
        reached = {method: needed(case, method, setting, seeds) for method in (PAPER, TRACKED)}
        for method, curve in reached.items():
            cells = _words(curve)
            about = {"data": name, "drift": case.drift, "contribution": case.contribution}
            found.append(about | curve.as_json())
            table.add_row(name.split(".")[0], case.drift, str(case.contribution), method, *cells)
        table.add_row("", "", "", "ratio", *_ratios(reached[PAPER], reached[TRACKED]))
    if json_path != "-":
        _screen().print(f"R = {rounds}, tau = {threshold:g}, M = {tokens:,}, {runs} runs", table)
    if json_path is not None:
        write_json(json_path, {"figure": "words", "rounds": rounds, "rows": found})


def grid(
    data: Annotated[Path, typer.Option(help="A CSV file of items and counts.")],
    seed: Seed = 1,
    json_path: Json = None,
) -> None:
    """F1 of both methods with as many words, over the paper's whole grid of R, tau, M and C.

    Example: blindtally figures grid --data words.csv
    """
    settings = [
        Setting(rounds, tau, tokens, size)
        for rounds in _GRID_ROUNDS
        for tau in _GRID_TAU
        for tokens in _GRID_TOKENS
        for size in _GRID_WORDS
    ]
    population = _load(data)
    pairs = list(_watched(beside(population, settings, (seed,)), "settings", len(settings)))
    worse = sorted((p for p in pairs if p.tracked < p.paper), key=lambda p: p.tracked - p.paper)
    if json_path != "-":
        table = Table("R", "tau", "M", "C", PAPER, TRACKED)
        for pair in worse[:20]:
            table.add_row(*_setting(pair), f"{pair.paper:.3f}", f"{pair.tracked:.3f}")
        gain = sum(pair.tracked - pair.paper for pair in pairs) / len(pairs)
        _screen().print(
            f"{data.name}: tracked is better by {gain:.3f} on average, and worse in "
            f"{len(worse)} of {len(pairs)} settings",
            table if worse else "",
        )
    if json_path is not None:
        rows = [
            {"rounds": p.setting.rounds, "tau": p.setting.tau, "tokens": p.setting.tokens}
            | {"words": p.setting.words, "paper": p.paper, "tracked": p.tracked}
            for p in pairs
        ]
        write_json(json_path, {"figure": "grid", "data": data.name, "rows": rows})


def _drift(name: str) -> Drift:
    for known in DRIFTS:
        if name == known:
            return known
    raise failed(f"no drift {name!r}; there is {', '.join(DRIFTS)}")


def _load(path: Path) -> Population:
    try:
        return load(path)
    except ValueError as error:
        raise failed(error) from None


def _words(curve: Curve) -> list[str]:
    sizes = [curve.reaches(goal) for goal in GOALS]
    return ["" if size is None else f"{size:,.0f}" for size in sizes]


def _ratios(one: Curve, other: Curve) -> list[str]:
    pairs = [(one.reaches(goal), other.reaches(goal)) for goal in GOALS]
    return [f"{a / b:.1f}" if a and b else "" for a, b in pairs]


def _setting(pair: Pair) -> tuple[str, ...]:
    of = pair.setting
    return str(of.rounds), f"{of.tau:g}", f"{of.tokens:,}", f"{of.words:,}"


def _screen() -> Console:
    return Console(width=None if Console().is_terminal else _WIDTH)


def _watched(things: Any, what: str, count: int | None = None) -> Iterator[Any]:  # noqa: ANN401
    screen = Console(stderr=True)
    total = len(things) if count is None else count
    yield from track(things, what, total, console=screen, disable=not screen.is_terminal)
