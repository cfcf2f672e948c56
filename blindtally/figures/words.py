"""The commands that compare `tracked` with the paper's method: words for an F1, F1 for words."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from blindtally import completion
from blindtally.figures import drawing, pictures
from blindtally.figures.budgets import PAPER, TRACKED, Case, Pair, beside, needed
from blindtally.figures.curves import ADAPTIVE, GOALS, Curve, Setting
from blindtally.figures.curves import TRACKED as OURS_TRACKED
from blindtally.figures.pictures import Out
from blindtally.figures.populations import DRIFTS, Drift, Population, load
from blindtally.output import Json, failed, write_json
from blindtally.tables import show, table
from blindtally.workers import Dask, Workers, shared

_GRID_ROUNDS = (10, 30, 50, 100)
_GRID_TAU = (20, 50, 100, 200)
_GRID_TOKENS = (1000, 2000, 5000, 10_000)
_GRID_WORDS = (100, 200, 500, 1000, 2000, 5000, 8000, 10_000, 20_000, 30_000, 40_000)

Files = Annotated[
    list[Path],
    typer.Option(help="A CSV file of items and counts; repeat it.", autocompletion=completion.data),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")]

_Case = tuple[str, Case]


def words(
    data: Files,
    drift: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(DRIFTS)}; repeat it.",
            show_default="all",
            autocompletion=lambda: list(DRIFTS),
        ),
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
    every: Annotated[
        int, typer.Option(min=1, max=20, help="Of ours try every so many sizes, and about goals.")
    ] = 1,
    seed: Seed = 1,
    workers: Workers = 1,
    dask: Dask = None,
    out: Out = None,
    json_path: Json = None,
) -> None:
    """Words that a device sends a round for an F1 of 0.8, 0.9 and 0.95: the paper's and ours.

    Example:
      blindtally figures words --data words --drift none --runs 3 --out words
    """
    pictures.check(out)
    drifts = [_drift(name) for name in drift or DRIFTS]
    people = [(path.name.split(".")[0], _load(path)) for path in data]
    cases = [
        (name, Case(who, how, m)) for name, who in people for how in drifts for m in contribution
    ]
    setting, seeds = Setting(rounds, threshold, tokens, 0), [(seed, run) for run in range(runs)]
    ways = PAPER, TRACKED
    pieces = [(case, way) for _, case in cases for way in ways]
    found = iter(shared(partial(_needed, setting, seeds, every), pieces, "curves", workers, dask))
    reached = [{way: next(found) for way in ways} for _ in cases]
    title = f"R = {rounds}, tau = {threshold:g}, M = {tokens:,}\n{drawing.error_bars(runs, seed)}"
    if json_path != "-":
        _show(cases, reached, title)
    _draw_words(out, cases, reached, title)
    rows = [
        {"data": name, "drift": case.drift, "contribution": case.contribution} | curve.as_json()
        for (name, case), both in zip(cases, reached, strict=True)
        for curve in both.values()
    ]
    write_json(json_path, {"figure": "words", "rounds": rounds, "rows": rows})


def _needed(
    setting: Setting, seeds: Sequence[Sequence[int]], every: int, piece: tuple[Case, str]
) -> Curve:
    case, way = piece
    return needed(case, way, setting, seeds, every=every if way == TRACKED else 1)


def _show(cases: list[_Case], reached: list[dict[str, Curve]], title: str) -> None:
    rows = []
    for (name, case), both in zip(cases, reached, strict=True):
        about = name, case.drift, str(case.contribution)
        rows += [(*about, method, *_words(curve)) for method, curve in both.items()]
        rows.append(("", "", "", "ratio", *_ratios(both[PAPER], both[TRACKED])))
    headings = [f"F1 {goal:g}" for goal in GOALS]
    show(table(["data", "drift", "m", "method"], headings, rows, f"Words for an F1. {title}"))


def _draw_words(
    out: Path | None, cases: list[_Case], reached: list[dict[str, Curve]], title: str
) -> None:
    panels, rows = dict[str, list[Curve]](), list[dict[str, Any]]()
    for (name, case), both in zip(cases, reached, strict=True):
        panels[f"{name}, {case.drift}, m = {case.contribution}"] = [*both.values()]
        about = {"data": name, "drift": case.drift, "contribution": case.contribution}
        rows += [about | row for curve in both.values() for row in curve.rows("words")]
    looks = ADAPTIVE, OURS_TRACKED
    pictures.draw(out, lambda path: drawing.draw_words(path, panels, looks, title), rows)


def grid(
    data: Annotated[
        Path, typer.Option(help="A CSV file of items and counts.", autocompletion=completion.data)
    ],
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="So many settings, drawn by the seed.", show_default="all"),
    ] = None,
    seed: Seed = 1,
    workers: Workers = 1,
    dask: Dask = None,
    out: Out = None,
    json_path: Json = None,
) -> None:
    """F1 of both methods with as many words, over the paper's whole grid of R, tau, M and C.

    Example:
      blindtally figures grid --data words --out grid
    """
    settings = [
        Setting(rounds, tau, tokens, size)
        for rounds in _GRID_ROUNDS
        for tau in _GRID_TAU
        for tokens in _GRID_TOKENS
        for size in _GRID_WORDS
    ]
    if sample is not None:
        settings = Random(seed).sample(settings, min(sample, len(settings)))
    pictures.check(out)
    population = _load(data)
    pairs = shared(partial(beside, population, (seed,)), settings, "settings", workers, dask)
    worse = sorted((p for p in pairs if p.tracked < p.paper), key=lambda p: p.tracked - p.paper)
    gain = sum(pair.tracked - pair.paper for pair in pairs) / len(pairs)
    told = (
        f"{data.name}: tracked is better by {gain:.3f} on average, and worse in "
        f"{len(worse)} of {len(pairs)} settings"
    )
    if json_path != "-":
        cells = [(*_setting(p), f"{p.paper:.3f}", f"{p.tracked:.3f}") for p in worse[:20]]
        shown = table([], ["R", "tau", "M", "C", PAPER, TRACKED], cells)
        show(told, *([shown] if worse else []))
    rows = [
        {"rounds": p.setting.rounds, "tau": p.setting.tau, "tokens": p.setting.tokens}
        | {"words": p.setting.words, "paper": p.paper, "tracked": p.tracked}
        for p in pairs
    ]
    title = f"{told}\none run a setting, seed {seed}"
    pictures.draw(out, lambda path: drawing.draw_pairs(path, pairs, title), rows)
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
