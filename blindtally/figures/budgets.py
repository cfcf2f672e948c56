"""How many words it takes: `tracked` beside the paper's adaptive tables, over populations.

For each goal, the least words from which on the mean F1 over the runs reaches it, on a grid whose
steps are a fifth, between two steps by the logarithm. And a grid of settings, on which each
method has the same words, to see where either is better.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from blindtally.figures.curves import GOALS, Curve, Point, Setting, f1
from blindtally.figures.devices import (
    Held,
    Known,
    Mask,
    TooFewWordsError,
    deal,
    paper_adaptive,
    tracked,
)
from blindtally.figures.populations import Drift, Population

PAPER: Final = "adaptive IBLT"  # algorithm 4 at the paper's price
TRACKED: Final = "tracked"
_STEP: Final = 1.2
_LEAST: Final = {PAPER: 300, TRACKED: 60}
_MOST: Final = 200_000
_STILL: Final = 2  # steps beyond the last goal that must reach it as well

Method: TypeAlias = Callable[[Sequence[Held], Known, int, float, np.random.Generator], Mask]


@dataclass(frozen=True, slots=True)
class Case:
    """One population: how it drifts, and how many items a device holds."""

    population: Population
    drift: Drift
    contribution: int


def most_steps(method: str) -> int:
    """Return how many sizes `needed` tries at most."""
    return math.ceil(math.log(_MOST / _LEAST[method], _STEP))


def needed(
    case: Case,
    method: str,
    setting: Setting,
    seeds: Sequence[Sequence[int]],
    step: Callable[[int], None] = lambda _: None,
    every: int = 1,
) -> Curve:
    """Return F1 over words, from few words to where the last goal is reached and stays so.

    `setting.words` is not looked at. One run for each of `seeds`, the same rounds for all. `step`
    hears how many sizes are done, `most_steps` in all. Of the grid's sizes only every so many are
    tried, and between two with a goal between them those that halve what is left.
    """
    known = Known.of(case.population, setting.tokens)
    studies = [_study(case, setting, seed) for seed in seeds]
    points = dict[int, Point]()

    def reaches(number: int, goal: float) -> bool:
        if number not in points:
            words = round(_LEAST[method] * _STEP**number)
            scores = [
                _score(method, held, known, heavy, words, setting, np.random.default_rng(seed))
                for (held, heavy), seed in zip(studies, seeds, strict=True)
            ]
            points[number] = Point(words, tuple(scores))
            step(1)
        return points[number].mean >= goal

    number, most, still = 0, most_steps(method), 0
    while number < most and not reaches(number, GOALS[-1]):
        number += every
    for goal in GOALS:
        number = _halve(points, goal, reaches)
    while number < most and still <= _STILL:
        still = still + 1 if reaches(number, GOALS[-1]) else 0
        number += 1
    step(most_steps(method) - len(points))
    return Curve(method, tuple(points[number] for number in sorted(points)))


def _halve(points: dict[int, Point], goal: float, reaches: Callable[[int, float], bool]) -> int:
    """Try sizes between the last of `points` below `goal` and the next; return what follows it."""
    low = max((number for number, point in points.items() if point.mean < goal), default=-1)
    above = [number for number in points if number > low]
    high = min(above, default=low + 1)
    while above and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle, goal) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Pair:
    """F1 of the paper's method and of `tracked`, with as many words."""

    setting: Setting
    paper: float
    tracked: float


def beside(population: Population, seed: Sequence[int], setting: Setting) -> Pair:
    """Return both methods' F1 in `setting`, of one run each."""
    known, case = Known.of(population, setting.tokens), Case(population, "none", 1)
    held, heavy = _study(case, setting, seed)
    scores = [
        _score(method, held, known, heavy, setting.words, setting, np.random.default_rng(seed))
        for method in (PAPER, TRACKED)
    ]
    return Pair(setting, *scores)


def _study(case: Case, setting: Setting, seed: Sequence[int]) -> tuple[list[Held], Mask]:
    rng = np.random.default_rng([*seed, 0])
    rounds = list(case.population.rounds(setting.rounds, setting.tokens, rng, case.drift))
    heavy: Mask = np.sum(rounds, axis=0) >= setting.tau
    return [deal(counts, case.contribution, rng) for counts in rounds], heavy


def _score(
    method: str,
    held: Sequence[Held],
    known: Known,
    heavy: Mask,
    words: int,
    setting: Setting,
    rng: np.random.Generator,
) -> float:
    if method == PAPER:
        return f1(paper_adaptive(held, len(heavy), words, setting.tau, rng), heavy)
    try:
        found = tracked(held, known, words, setting.tau, rng).mask
    except TooFewWordsError:  # nothing is found
        return 0.0
    return f1(found, np.concatenate([heavy, np.zeros(len(found) - len(heavy), np.bool_)]))
