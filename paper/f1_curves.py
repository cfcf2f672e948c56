"""Curves: F1 by method over a grid, several runs per point, each run over its own rounds.

A method may have *options* (numbers of hashes, thresholds): its curve takes, at each point, the
option whose mean F1 over the runs is highest, as the paper does for its baselines and for "best
fixed". An item is heavy if it was drawn `tau` times or more, and found if its estimate is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blindtally.planning.f1_by_words import (
    GOALS,
    TRACKED,
    F1Curve,
    F1Point,
    Method,
    StudyCase,
    StudySetting,
    draw_study,
    f1,
    score_method,
)
from blindtally.simulate.populations import ItemPopulation, RoundCounts
from blindtally.simulate.token_study import KeyedPopulation, TooFewWordsError, run_tokens
from paper import frequency_sketches, gascon23
from paper.adaptive_iblt import adaptive_question, run_adaptive_iblt
from protocol.numerics.array_types import Keys
from protocol.reference_mechanisms.count_sketches import MAX_CANDIDATES, candidate_count

COUNT_SKETCH: Final = "count-sketch"
SAME_HASHES: Final = "count-sketch, same hashes every round"
COUNT_MEDIAN: Final = "count-median"
NO_SUBSAMPLING: Final = "IBLT, no subsampling"
SUBSAMPLED: Final = "subsampled IBLT"
BEST_FIXED: Final = "subsampled IBLT, best fixed t"
ADAPTIVE: Final = "adaptive IBLT"
ADAPTIVE_IBLT: Final = "adaptive-iblt, ours"
TRACKED_MECHANISM: Final = "tracked, ours"
BASELINES: Final = {
    SAME_HASHES: frequency_sketches.SketchKind(signed=True, fresh=False),
    COUNT_SKETCH: frequency_sketches.SketchKind(signed=True),
    COUNT_MEDIAN: frequency_sketches.SketchKind(signed=False),
}
FIGURE_1: Final = (
    *BASELINES,
    NO_SUBSAMPLING,
    SUBSAMPLED,
    ADAPTIVE,
    ADAPTIVE_IBLT,
    TRACKED_MECHANISM,
)
FIGURE_3: Final = (BEST_FIXED, ADAPTIVE, ADAPTIVE_IBLT, TRACKED_MECHANISM)

# Algorithm 4 at the paper's price.
PAPER: Final = Method("adaptive IBLT", 300, gascon23.run_paper_adaptive)

ScoresByPoint = dict[tuple[str, int, str], list[float]]  # by name, x and option: F1 of each run


@dataclass(frozen=True, slots=True)
class F1Figure:
    """F1 of methods over values of x, in order: of C if `setting` has 0 words, otherwise of R."""

    name: str
    methods: Sequence[str]
    setting: StudySetting
    grid: Sequence[int]

    @property
    def is_over_words(self) -> bool:
        """Return whether the x axis has words."""
        return self.setting.words == 0

    @property
    def x(self) -> str:
        """Return the name of the x axis."""
        return "words" if self.is_over_words else "rounds"

    @property
    def title(self) -> str:
        """Return the fixed part of the setting."""
        fixed = f"C = {self.setting.words:,}"
        if self.is_over_words:
            fixed = f"R = {self.setting.rounds}"
        return f"{fixed}, tau = {self.setting.tau:g}, M = {self.setting.tokens:,}"


def score_run(figure: F1Figure, population: ItemPopulation, seed: Sequence[int]) -> ScoresByPoint:
    """Return the F1 of one run, whose chance `seed` decides.

    All words have the same rounds; each number of rounds has its own.
    """
    rng, scores, setting = np.random.default_rng(seed), ScoresByPoint(), figure.setting
    points = {x: replace(setting, **{figure.x: x}) for x in figure.grid}
    together = [points] if figure.is_over_words else [{x: point} for x, point in points.items()]
    for settings in together:
        count = next(iter(settings.values())).rounds
        rounds = list(population.rounds(count, setting.tokens, rng))
        _score_methods(population, rounds, settings, figure.methods, rng, scores)
    return scores


def _score_methods(
    population: ItemPopulation,
    rounds: Sequence[RoundCounts],
    points: dict[int, StudySetting],
    names: Sequence[str],
    rng: np.random.Generator,
    scores: ScoresByPoint,
) -> None:
    """Add one run's F1 of each method at each of `points`, which share tau and `rounds`."""
    keys = population.domain.encode(population.items)
    heavy = np.sum(rounds, axis=0) >= next(iter(points.values())).tau
    items = len(heavy)  # estimates beyond these are of false items
    for name in names:
        if name in BASELINES:
            results = _score_baseline(population, keys, rounds, points, BASELINES[name], heavy, rng)
        else:
            results = (
                (x, option, f1(estimates >= point.tau, np.pad(heavy, (0, len(estimates) - items))))
                for x, point in points.items()
                for option, estimates in _estimates(name, population, rounds, point, rng)
            )
        for x, option, result in results:
            scores[name, x, option] = [result]


def _score_baseline(
    population: ItemPopulation,
    keys: Keys,
    rounds: Sequence[RoundCounts],
    points: dict[int, StudySetting],
    kind: frequency_sketches.SketchKind,
    heavy: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Iterator[tuple[int, str, float]]:
    """Yield a baseline's F1 at each point and number of hashes; nothing if it cannot score."""
    count = candidate_count(population.domain)
    if count > MAX_CANDIDATES:
        return
    where = keys[:, 0].astype(np.int64)
    truth = np.zeros(count, np.bool_)
    truth[where] = heavy
    sizes = sorted({point.words for point in points.values()})
    scores = frequency_sketches.score_candidates(
        rounds, where, count, sizes, frequency_sketches.TRIED_ROWS, kind, rng
    )
    for x, point in points.items():
        for hashes in frequency_sketches.TRIED_ROWS:
            estimates = scores.get((point.words, hashes))
            if estimates is not None:
                yield x, f"H = {hashes}", f1(estimates >= point.tau, truth)


_FIXED_THRESHOLDS: Final[dict[str, Callable[[StudySetting], Sequence[float]]]] = {
    NO_SUBSAMPLING: lambda _: (1,),
    SUBSAMPLED: lambda p: (gascon23.practical_threshold(p.words, p.tokens, p.tau),),
    BEST_FIXED: lambda _: gascon23.FIXED_THRESHOLDS,
}


def _estimates(
    name: str,
    population: ItemPopulation,
    rounds: Sequence[RoundCounts],
    point: StudySetting,
    rng: np.random.Generator,
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield each option of a method with its estimates; nothing with too few words for it."""
    words, tokens = point.words, point.tokens
    if name in _FIXED_THRESHOLDS:
        for t in _FIXED_THRESHOLDS[name](point):
            yield f"t = {t:.3g}", gascon23.run_fixed_threshold(rounds, words, t, rng)
    elif name == ADAPTIVE:
        yield "", gascon23.run_adaptive(rounds, words, tokens, rng)
    elif name == ADAPTIVE_IBLT:
        with suppress(ValueError):
            question = adaptive_question(population, point.tau, words, "steady", tokens)
            yield "", run_adaptive_iblt(population, rounds, question, tokens, rng)[0]
    else:
        chance = rng.spawn(1)[0]  # so that other curves do not depend on this one
        with suppress(TooFewWordsError):
            known = KeyedPopulation.of(population, tokens)
            study = run_tokens(
                "tracked", known.distribute(rounds, 1, chance), words, point.tau, chance
            )
            yield "", np.where(study.found_items, np.inf, 0)


def merge_runs(runs: Iterable[ScoresByPoint], figure: F1Figure) -> list[F1Curve]:
    """Return the curves of `runs`, in the order of the figure's methods."""
    merged, curves = ScoresByPoint(), []
    for run in runs:
        for key, scores in run.items():
            merged.setdefault(key, []).extend(scores)
    for name in figure.methods:
        points = []
        for x in figure.grid:
            options = [F1Point(x, tuple(v), k[2]) for k, v in merged.items() if k[:2] == (name, x)]
            if options:
                points.append(max(options, key=lambda point: point.mean))
        if points:
            curves.append(F1Curve(name, tuple(points)))
    return curves


@dataclass(frozen=True, slots=True)
class MethodComparison:
    """F1 of the paper's method and of `tracked`, with the same number of words."""

    setting: StudySetting
    paper_f1: float
    tracked_f1: float


def compare_methods(
    population: ItemPopulation, seed: Sequence[int], setting: StudySetting
) -> MethodComparison:
    """Return both methods' F1 in `setting`, of one run each."""
    case = StudyCase(KeyedPopulation.of(population, setting.tokens), "none", 1)
    study = draw_study(case, setting, seed)
    scores = [
        score_method(method, study, setting.words, setting.tau, np.random.default_rng(seed))
        for method in (PAPER, TRACKED)
    ]
    return MethodComparison(setting, *scores)


def curve_rows(curve: F1Curve, x: str) -> list[dict[str, Any]]:
    """Return the points as rows of a table, with the abscissa in column `x`."""
    return [
        {
            "method": curve.name,
            x: point.x,
            "f1": point.mean,
            "deviation": point.standard_deviation,
            "runs": len(point.f1_of_runs),
            "option": point.option,
        }
        for point in curve.points
    ]


def curve_document(curve: F1Curve) -> dict[str, Any]:
    """Return the curve as JSON."""
    return {
        "name": curve.name,
        "reaches": {str(goal): curve.x_reaching(goal) for goal in GOALS},
        "points": [
            {
                "x": point.x,
                "mean": point.mean,
                "deviation": point.standard_deviation,
                "runs": list(point.f1_of_runs),
                "option": point.option,
            }
            for point in curve.points
        ],
    }
