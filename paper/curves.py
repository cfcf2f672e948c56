"""Curves: F1 by method over a grid, several runs a point, each run over rounds of its own.

A method may have *options* (numbers of hashes, thresholds): its curve takes, at each point, the
option whose mean F1 over the runs is highest, as the paper does for its baselines and for "best
fixed". Heavy is what was drawn `tau` times or more, found what is estimated so.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blindtally.planning.f1_curves import F1Curve, F1Point, StudySetting, f1
from blindtally.simulate.populations import ItemPopulation, RoundCounts
from blindtally.simulate.token_rounds import KeyedPopulation, TooFewWordsError, run_tokens
from paper import frequency_sketches, gascon23
from paper.adaptive_iblt import adaptive_question, run_adaptive_iblt
from protocol.arrays import Keys
from protocol.mechanisms.frequency_sketches import MAX_CANDIDATES, candidate_count

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


ScoresByPoint = dict[tuple[str, int, str], list[float]]  # by name, x and option: F1 of each run


def over_words(
    population: ItemPopulation,
    setting: StudySetting,
    words: Sequence[int],
    names: Sequence[str],
    seed: Sequence[int],
) -> ScoresByPoint:
    """Return the F1 of one run over C, whose chance `seed` decides."""
    rng, scored = np.random.default_rng(seed), ScoresByPoint()
    rounds = list(population.rounds(setting.rounds, setting.tokens, rng))
    points = {size: replace(setting, words=size) for size in words}
    _score_methods(population, rounds, points, names, rng, scored)
    return scored


def over_rounds(
    population: ItemPopulation,
    setting: StudySetting,
    counts: Sequence[int],
    names: Sequence[str],
    seed: Sequence[int],
) -> ScoresByPoint:
    """Return the F1 of one run over R, rounds anew for each; `seed` decides its chance."""
    rng, scored = np.random.default_rng(seed), ScoresByPoint()
    for count in counts:
        rounds = list(population.rounds(count, setting.tokens, rng))
        point = replace(setting, rounds=count)
        _score_methods(population, rounds, {count: point}, names, rng, scored)
    return scored


def _score_methods(
    population: ItemPopulation,
    rounds: Sequence[RoundCounts],
    points: dict[int, StudySetting],
    names: Sequence[str],
    rng: np.random.Generator,
    scored: ScoresByPoint,
) -> None:
    """Add one run's F1 of each method at each of `points`, which share tau and `rounds`."""
    keys = population.domain.encode(population.items)
    heavy = np.sum(rounds, axis=0) >= next(iter(points.values())).tau
    kinds = len(heavy)  # whatever is estimated beyond them, there is not
    for name in names:
        if name in BASELINES:
            results = _score_baseline(population, keys, rounds, points, BASELINES[name], heavy, rng)
        else:
            results = (
                (x, option, f1(estimates >= point.tau, np.pad(heavy, (0, len(estimates) - kinds))))
                for x, point in points.items()
                for option, estimates in _SAMPLED_METHODS[name](population, rounds, point, rng)
            )
        for x, option, result in results:
            scored[name, x, option] = [result]


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


RoundSequence = Sequence[RoundCounts]
MethodEstimates = Iterator[tuple[str, NDArray[np.float64]]]
MethodFunction = Callable[
    [ItemPopulation, RoundSequence, StudySetting, np.random.Generator], MethodEstimates
]


def _no_subsampling(
    _: ItemPopulation, rounds: RoundSequence, point: StudySetting, rng: np.random.Generator
) -> MethodEstimates:
    yield "t = 1", gascon23.run_fixed_threshold(rounds, point.words, 1.0, rng)


def _subsampled(
    _: ItemPopulation, rounds: RoundSequence, point: StudySetting, rng: np.random.Generator
) -> MethodEstimates:
    t = gascon23.practical_threshold(point.words, point.tokens, point.tau)
    yield f"t = {t:.3g}", gascon23.run_fixed_threshold(rounds, point.words, t, rng)


def _best_fixed(
    _: ItemPopulation, rounds: RoundSequence, point: StudySetting, rng: np.random.Generator
) -> MethodEstimates:
    for t in gascon23.FIXED_THRESHOLDS:
        yield f"t = {t:g}", gascon23.run_fixed_threshold(rounds, point.words, t, rng)


def _adaptive(
    _: ItemPopulation, rounds: RoundSequence, point: StudySetting, rng: np.random.Generator
) -> MethodEstimates:
    yield "", gascon23.run_adaptive(rounds, point.words, point.tokens, rng)


def _adaptive_iblt(
    people: ItemPopulation, rounds: RoundSequence, point: StudySetting, rng: np.random.Generator
) -> MethodEstimates:
    try:
        question = adaptive_question(people, point.tau, point.words, "steady")
        yield "", run_adaptive_iblt(people, rounds, question, point.tokens, rng)[0]
    except ValueError:  # too few words for a table: no point
        return


def _tracked(
    people: ItemPopulation, rounds: RoundSequence, point: StudySetting, rng: np.random.Generator
) -> MethodEstimates:
    chance = rng.spawn(1)[0]  # so that other curves do not hang on this one
    try:
        tokens = KeyedPopulation.of(people, point.tokens).distribute(rounds, 1, chance)
        found = run_tokens("tracked", tokens, point.words, point.tau, chance).found_items
    except TooFewWordsError:  # no point
        return
    yield "", np.where(found, np.inf, 0)


_SAMPLED_METHODS: dict[str, MethodFunction] = {
    NO_SUBSAMPLING: _no_subsampling,
    SUBSAMPLED: _subsampled,
    BEST_FIXED: _best_fixed,
    ADAPTIVE: _adaptive,
    ADAPTIVE_IBLT: _adaptive_iblt,
    TRACKED_MECHANISM: _tracked,
}


def merge_runs(
    runs: Iterable[ScoresByPoint], names: Sequence[str], grid: Sequence[int]
) -> list[F1Curve]:
    """Return the curves of `runs`, in their order, at each x of `grid`."""
    scored, curves = ScoresByPoint(), []
    for run in runs:
        for key, scores in run.items():
            scored.setdefault(key, []).extend(scores)
    for name in names:
        points = []
        for x in grid:
            options = [F1Point(x, tuple(v), k[2]) for k, v in scored.items() if k[:2] == (name, x)]
            if options:
                points.append(max(options, key=lambda point: point.mean))
        if points:
            curves.append(F1Curve(name, tuple(points)))
    return curves
