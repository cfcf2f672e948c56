"""The commands that compare `tracked` with the paper's method: words for an F1, F1 for words."""

from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import print_parts, result_table
from blindtally.planning.f1_by_words import (
    GOALS,
    TRACKED,
    F1Curve,
    Method,
    StudyCase,
    StudySetting,
    f1_over_sizes,
)
from blindtally.simulate.populations import DRIFT_KINDS, DriftKind
from blindtally.simulate.token_study import KeyedPopulation
from paper import drawing, gascon23, options
from paper.f1_curves import (
    ADAPTIVE,
    PAPER,
    TRACKED_MECHANISM,
    MethodComparison,
    compare_methods,
    curve_document,
    curve_rows,
)
from paper.options import (
    DataFilesOption,
    DataOption,
    OutOption,
    RoundsOption,
    RunOptions,
    RunsOption,
    SeedOption,
    ThresholdOption,
    TokensOption,
)

_GRID_ROUNDS = (10, 30, 50, 100)
_GRID_TAU = (20, 50, 100, 200)
_GRID_TOKENS = (1000, 2000, 5000, 10_000)
_GRID_WORDS = (100, 200, 500, 1000, 2000, 5000, 8000, 10_000, 20_000, 30_000, 40_000)
_SHOWN_SETTINGS = 20
_WITH_STRINGS = f"{PAPER.name}, strings in cells"

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
    ] = [1],  # noqa: B006 - the form that typer expects
    rounds: RoundsOption = 30,
    threshold: ThresholdOption = 50,
    tokens: TokensOption = 10_000,
    runs: RunsOption = 5,
    every: Annotated[
        int,
        typer.Option(min=1, max=20, help="Step between sizes of tracked, except near goals."),
    ] = 1,
    seed: SeedOption = 1,
    workers: options.WorkersOption = 1,
    dask: options.DaskOption = None,
    out: OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """Words that a device sends in a round for an F1 of 0.8, 0.9 and 0.95: the paper's and ours.

    The paper's cells have keys of 8 words, from which nobody can read a string. Another row has
    the words of cells that contain the strings themselves; ours always fetches them.

    Example:
      python -m paper words --data words --drift none --runs 3 --out words
    """
    options.check_output_path(out)
    drifts = [_parse_drift(name) for name in drift or DRIFT_KINDS]
    populations = [(path.name.split(".")[0], options.load_population(path)) for path in data]
    cases = [
        (name, StudyCase(KeyedPopulation.of(population, tokens), how, m, counts_all_copies=True))
        for (name, population), how, m in product(populations, drifts, contribution)
    ]
    run_options = RunOptions(runs, seed, workers, dask)
    setting = StudySetting(rounds, threshold, tokens, 0)
    work = partial(_f1_over_sizes, setting, run_options.seeds, every)
    pieces = [(case, method) for _, case in cases for method in (PAPER, TRACKED)]
    curves = iter(run_options.map(work, pieces, "curves"))
    curves_by_case = [{PAPER.name: next(curves), TRACKED.name: next(curves)} for _ in cases]
    title = f"R = {rounds}, tau = {threshold:g}, M = {tokens:,}\n{run_options.error_bars}"
    if json_path != "-":
        _show(cases, curves_by_case, tokens, title)
    _draw_words(out, cases, curves_by_case, title)
    rows = [
        {"data": name, "drift": case.drift, "contribution": case.contribution}
        | curve_document(curve)
        for (name, case), both in zip(cases, curves_by_case, strict=True)
        for curve in both.values()
    ]
    write_json(json_path, {"figure": "words", "rounds": rounds, "rows": rows})


def _f1_over_sizes(
    setting: StudySetting,
    seeds: Sequence[Sequence[int]],
    every: int,
    piece: tuple[StudyCase, Method],
) -> F1Curve:
    case, method = piece
    step = every if method.name == TRACKED.name else 1
    return f1_over_sizes(case, method, setting, seeds, every=step)


def _show(
    cases: list[_NamedCase], curves_by_case: list[dict[str, F1Curve]], tokens: int, title: str
) -> None:
    rows = []
    for (name, case), both in zip(cases, curves_by_case, strict=True):
        about = name, case.drift, str(case.contribution)
        sizes = {
            method: [curve.x_reaching(goal) for goal in GOALS] for method, curve in both.items()
        }
        longest = max(len(item.encode()) for item in case.known.population.items)
        price = gascon23.words_per_string(longest, tokens) / gascon23.WORDS_PER_KEY
        peers = {"ratio": PAPER.name}
        if price > 1:
            sizes[_WITH_STRINGS] = [x and x * price for x in sizes[PAPER.name]]
            peers["ratio to strings"] = _WITH_STRINGS
        for method, reached in sizes.items():
            rows.append((*about, method, *("" if x is None else f"{x:,.0f}" for x in reached)))
        for label, peer in peers.items():
            pairs = zip(sizes[peer], sizes[TRACKED.name], strict=True)
            ratios = [f"{papers / ours:.1f}" if papers and ours else "" for papers, ours in pairs]
            rows.append(("", "", "", label, *ratios))
    headings = [f"F1 {goal:g}" for goal in GOALS]
    title = f"Words for an F1. {title}"
    print_parts(result_table(["data", "drift", "m", "method"], headings, rows, title))


def _draw_words(
    out: Path | None,
    cases: list[_NamedCase],
    curves_by_case: list[dict[str, F1Curve]],
    title: str,
) -> None:
    panels, rows = dict[str, list[F1Curve]](), list[dict[str, Any]]()
    for (name, case), both in zip(cases, curves_by_case, strict=True):
        panels[f"{name}, {case.drift}, m = {case.contribution}"] = [*both.values()]
        about = {"data": name, "drift": case.drift, "contribution": case.contribution}
        rows += [about | row for curve in both.values() for row in curve_rows(curve, "words")]
    styles = ADAPTIVE, TRACKED_MECHANISM
    options.write_figure(out, lambda path: drawing.draw_words(path, panels, styles, title), rows)


def grid(
    data: DataOption,
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="Number of settings, drawn by the seed.", show_default="all"),
    ] = None,
    seed: SeedOption = 1,
    workers: options.WorkersOption = 1,
    dask: options.DaskOption = None,
    out: OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """F1 of both methods with the same words, over the paper's whole grid of R, tau, M and C.

    Example:
      python -m paper grid --data words --out grid
    """
    settings = [
        StudySetting(*point)
        for point in product(_GRID_ROUNDS, _GRID_TAU, _GRID_TOKENS, _GRID_WORDS)
    ]
    if sample is not None:
        settings = Random(seed).sample(settings, min(sample, len(settings)))
    options.check_output_path(out)
    work = partial(compare_methods, options.load_population(data), (seed,))
    pairs = RunOptions(1, seed, workers, dask).map(work, settings, "settings")
    worse = sorted((pair for pair in pairs if _gain(pair) < 0), key=_gain)
    mean_gain = sum(map(_gain, pairs)) / len(pairs)
    summary = (
        f"{data.name}: tracked is better by {mean_gain:.3f} on average, and worse in "
        f"{len(worse)} of {len(pairs)} settings"
    )
    columns = ("rounds", "tau", "tokens", "words", "paper", "tracked")
    rows = [dict(zip(columns, _values(pair), strict=True)) for pair in pairs]
    if json_path != "-":
        formats = ("", "g", ",", ",", ".3f", ".3f")
        cells = [
            [format(value, form) for value, form in zip(_values(pair), formats, strict=True)]
            for pair in worse[:_SHOWN_SETTINGS]
        ]
        shown = result_table([], ["R", "tau", "M", "C", PAPER.name, TRACKED.name], cells)
        print_parts(summary, *([shown] if worse else []))
    title = f"{summary}\none run a setting, seed {seed}"
    options.write_figure(out, lambda path: drawing.draw_pairs(path, pairs, title), rows)
    write_json(json_path, {"figure": "grid", "data": data.name, "rows": rows})


def _gain(pair: MethodComparison) -> float:
    return pair.tracked_f1 - pair.paper_f1


def _values(pair: MethodComparison) -> tuple[float, ...]:
    return *astuple(pair.setting), pair.paper_f1, pair.tracked_f1


def _parse_drift(name: str) -> DriftKind:
    for known in DRIFT_KINDS:
        if name == known:
            return known
    raise exit_with_error(f"no drift {name!r}; there is {', '.join(DRIFT_KINDS)}")
