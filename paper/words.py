"""The commands that compare `tracked` with the paper's method: words for an F1, F1 for words."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from blindtally.console import completion
from blindtally.console.output import JsonOption, exit_with_error, write_json
from blindtally.console.tables import print_parts, result_table
from blindtally.parallel import DaskOption, WorkersOption, run_parallel
from blindtally.planning.f1_curves import GOALS, F1Curve, StudySetting
from blindtally.planning.word_budget import TRACKED, Method, StudyCase, f1_over_sizes
from blindtally.simulate.populations import (
    DRIFT_KINDS,
    DriftKind,
    ItemPopulation,
    load_item_population,
)
from blindtally.simulate.token_rounds import KeyedPopulation
from paper import drawing, output
from paper.curves import ADAPTIVE
from paper.curves import TRACKED_MECHANISM as OURS_TRACKED
from paper.method_comparison import PAPER, MethodComparison, compare_methods
from paper.output import OutOption

_GRID_ROUNDS = (10, 30, 50, 100)
_GRID_TAU = (20, 50, 100, 200)
_GRID_TOKENS = (1000, 2000, 5000, 10_000)
_GRID_WORDS = (100, 200, 500, 1000, 2000, 5000, 8000, 10_000, 20_000, 30_000, 40_000)

DataFilesOption = Annotated[
    list[Path],
    typer.Option(
        help="A CSV file of items and counts; repeat it.", autocompletion=completion.complete_data
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")]

_NamedCase = tuple[str, StudyCase]


def words(
    data: DataFilesOption,
    drift: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(DRIFT_KINDS)}; repeat it.",
            show_default="all",
            autocompletion=lambda: list(DRIFT_KINDS),
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
    seed: SeedOption = 1,
    workers: WorkersOption = 1,
    dask: DaskOption = None,
    out: OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """Words that a device sends a round for an F1 of 0.8, 0.9 and 0.95: the paper's and ours.

    Example:
      python -m paper words --data words --drift none --runs 3 --out words
    """
    output.check_output_path(out)
    drifts = [_parse_drift(name) for name in drift or DRIFT_KINDS]
    people = [(path.name.split(".")[0], _load_population(path)) for path in data]
    cases = [
        (name, StudyCase(KeyedPopulation.of(population, tokens), how, m))
        for name, population in people
        for how in drifts
        for m in contribution
    ]
    setting, seeds = (
        StudySetting(rounds, threshold, tokens, 0),
        [(seed, run) for run in range(runs)],
    )
    ways = PAPER, TRACKED
    pieces = [(case, way) for _, case in cases for way in ways]
    found = iter(
        run_parallel(
            partial(_f1_over_sizes, setting, seeds, every), pieces, "curves", workers, dask
        )
    )
    reached = [{way.name: next(found) for way in ways} for _ in cases]
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


def _f1_over_sizes(
    setting: StudySetting,
    seeds: Sequence[Sequence[int]],
    every: int,
    piece: tuple[StudyCase, Method],
) -> F1Curve:
    case, way = piece
    return f1_over_sizes(case, way, setting, seeds, every=every if way.name == TRACKED.name else 1)


def _show(cases: list[_NamedCase], reached: list[dict[str, F1Curve]], title: str) -> None:
    rows = []
    for (name, case), both in zip(cases, reached, strict=True):
        about = name, case.drift, str(case.contribution)
        rows += [(*about, method, *_format_words(curve)) for method, curve in both.items()]
        rows.append(("", "", "", "ratio", *_format_ratios(both[PAPER.name], both[TRACKED.name])))
    headings = [f"F1 {goal:g}" for goal in GOALS]
    print_parts(
        result_table(["data", "drift", "m", "method"], headings, rows, f"Words for an F1. {title}")
    )


def _draw_words(
    out: Path | None, cases: list[_NamedCase], reached: list[dict[str, F1Curve]], title: str
) -> None:
    panels, rows = dict[str, list[F1Curve]](), list[dict[str, Any]]()
    for (name, case), both in zip(cases, reached, strict=True):
        panels[f"{name}, {case.drift}, m = {case.contribution}"] = [*both.values()]
        about = {"data": name, "drift": case.drift, "contribution": case.contribution}
        rows += [about | row for curve in both.values() for row in curve.rows("words")]
    looks = ADAPTIVE, OURS_TRACKED
    output.write_figure(out, lambda path: drawing.draw_words(path, panels, looks, title), rows)


def grid(
    data: Annotated[
        Path,
        typer.Option(
            help="A CSV file of items and counts.", autocompletion=completion.complete_data
        ),
    ],
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="So many settings, drawn by the seed.", show_default="all"),
    ] = None,
    seed: SeedOption = 1,
    workers: WorkersOption = 1,
    dask: DaskOption = None,
    out: OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """F1 of both methods with as many words, over the paper's whole grid of R, tau, M and C.

    Example:
      python -m paper grid --data words --out grid
    """
    settings = [
        StudySetting(rounds, tau, tokens, size)
        for rounds in _GRID_ROUNDS
        for tau in _GRID_TAU
        for tokens in _GRID_TOKENS
        for size in _GRID_WORDS
    ]
    if sample is not None:
        settings = Random(seed).sample(settings, min(sample, len(settings)))
    output.check_output_path(out)
    population = _load_population(data)
    pairs = run_parallel(
        partial(compare_methods, population, (seed,)), settings, "settings", workers, dask
    )
    worse = sorted(
        (p for p in pairs if p.tracked_f1 < p.paper_f1), key=lambda p: p.tracked_f1 - p.paper_f1
    )
    gain = sum(pair.tracked_f1 - pair.paper_f1 for pair in pairs) / len(pairs)
    told = (
        f"{data.name}: tracked is better by {gain:.3f} on average, and worse in "
        f"{len(worse)} of {len(pairs)} settings"
    )
    if json_path != "-":
        cells = [
            (*_format_setting(p), f"{p.paper_f1:.3f}", f"{p.tracked_f1:.3f}") for p in worse[:20]
        ]
        shown = result_table([], ["R", "tau", "M", "C", PAPER.name, TRACKED.name], cells)
        print_parts(told, *([shown] if worse else []))
    rows = [
        {"rounds": p.setting.rounds, "tau": p.setting.tau, "tokens": p.setting.tokens}
        | {"words": p.setting.words, "paper": p.paper_f1, "tracked": p.tracked_f1}
        for p in pairs
    ]
    title = f"{told}\none run a setting, seed {seed}"
    output.write_figure(out, lambda path: drawing.draw_pairs(path, pairs, title), rows)
    write_json(json_path, {"figure": "grid", "data": data.name, "rows": rows})


def _parse_drift(name: str) -> DriftKind:
    for known in DRIFT_KINDS:
        if name == known:
            return known
    raise exit_with_error(f"no drift {name!r}; there is {', '.join(DRIFT_KINDS)}")


def _load_population(path: Path) -> ItemPopulation:
    try:
        return load_item_population(path)
    except ValueError as error:
        raise exit_with_error(error) from None


def _format_words(curve: F1Curve) -> list[str]:
    sizes = [curve.x_reaching(goal) for goal in GOALS]
    return ["" if size is None else f"{size:,.0f}" for size in sizes]


def _format_ratios(one: F1Curve, other: F1Curve) -> list[str]:
    pairs = [(one.x_reaching(goal), other.x_reaching(goal)) for goal in GOALS]
    return [f"{a / b:.1f}" if a and b else "" for a, b in pairs]


def _format_setting(pair: MethodComparison) -> tuple[str, ...]:
    of = pair.setting
    return str(of.rounds), f"{of.tau:g}", f"{of.tokens:,}", f"{of.words:,}"
