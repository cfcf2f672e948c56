"""Curves: F1 by method over a grid, several runs a point, each run over rounds of its own.

A method may have *options* (numbers of hashes, thresholds): its curve takes, at each point, the
option whose mean F1 over the runs is highest, as the paper does for its baselines and for "best
fixed". Heavy is what was drawn `tau` times or more, found what is estimated so.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blindtally.figures import ours, paper, sketches
from blindtally.figures.devices import Known, TooFewWordsError, deal, tracked
from blindtally.figures.populations import Population, Round
from protocol.item_space import Keys
from protocol.mechanisms.frequency_sketches import MOST_CANDIDATES, candidates

COUNT_SKETCH: Final = "count-sketch"
SAME_HASHES: Final = "count-sketch, same hashes every round"
COUNT_MEDIAN: Final = "count-median"
NO_SUBSAMPLING: Final = "IBLT, no subsampling"
SUBSAMPLED: Final = "subsampled IBLT"
BEST_FIXED: Final = "subsampled IBLT, best fixed t"
ADAPTIVE: Final = "adaptive IBLT"
OURS: Final = "adaptive-iblt, ours"
TRACKED: Final = "tracked, ours"
GOALS: Final = (0.8, 0.9, 0.95)
BASELINES: Final = {
    SAME_HASHES: sketches.Kind(signed=True, fresh=False),
    COUNT_SKETCH: sketches.Kind(signed=True),
    COUNT_MEDIAN: sketches.Kind(signed=False),
}
FIGURE_1: Final = (*BASELINES, NO_SUBSAMPLING, SUBSAMPLED, ADAPTIVE, OURS, TRACKED)
FIGURE_3: Final = (BEST_FIXED, ADAPTIVE, OURS, TRACKED)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a point fixes: the paper's R, tau, M and C."""

    rounds: int
    tau: float
    tokens: int
    words: int


@dataclass(frozen=True, slots=True)
class Point:
    """F1 of each run with the best option, and which that is."""

    x: int
    runs: tuple[float, ...]
    option: str = ""

    @property
    def mean(self) -> float:
        """Return the mean over runs."""
        return float(np.mean(self.runs))

    @property
    def deviation(self) -> float:
        """Return the standard deviation over runs."""
        return float(np.std(self.runs, ddof=1)) if len(self.runs) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Curve:
    """A method's points."""

    name: str
    points: tuple[Point, ...]

    def reaches(self, goal: float) -> float | None:
        """Return the x from which on the mean is `goal`, between points by log x; None if never."""
        below = [number for number, point in enumerate(self.points) if point.mean < goal]
        last = below[-1] if below else -1
        if last == len(self.points) - 1:
            return None
        if last == -1:
            return float(self.points[0].x)
        low, high = self.points[last], self.points[last + 1]
        share = (goal - low.mean) / (high.mean - low.mean)
        return float(low.x * (high.x / low.x) ** share)

    def rows(self, x: str) -> list[dict[str, Any]]:
        """Return the points as rows of a table whose column `x` is what the curve is over."""
        return [
            {
                "method": self.name,
                x: point.x,
                "f1": point.mean,
                "deviation": point.deviation,
                "runs": len(point.runs),
                "option": point.option,
            }
            for point in self.points
        ]

    def as_json(self) -> dict[str, Any]:
        """Return what scripts read."""
        return {
            "name": self.name,
            "reaches": {str(goal): self.reaches(goal) for goal in GOALS},
            "points": [
                {
                    "x": point.x,
                    "mean": point.mean,
                    "deviation": point.deviation,
                    "runs": list(point.runs),
                    "option": point.option,
                }
                for point in self.points
            ],
        }


Scored = dict[tuple[str, int, str], list[float]]  # by name, x and option: F1 of each run


def over_words(
    population: Population,
    setting: Setting,
    words: Sequence[int],
    names: Sequence[str],
    seed: Sequence[int],
) -> Scored:
    """Return the F1 of one run over C, whose chance `seed` decides."""
    rng, scored = np.random.default_rng(seed), Scored()
    rounds = list(population.rounds(setting.rounds, setting.tokens, rng))
    points = {size: replace(setting, words=size) for size in words}
    _run(population, rounds, points, names, rng, scored)
    return scored


def over_rounds(
    population: Population,
    setting: Setting,
    counts: Sequence[int],
    names: Sequence[str],
    seed: Sequence[int],
) -> Scored:
    """Return the F1 of one run over R, rounds anew for each; `seed` decides its chance."""
    rng, scored = np.random.default_rng(seed), Scored()
    for count in counts:
        rounds = list(population.rounds(count, setting.tokens, rng))
        point = replace(setting, rounds=count)
        _run(population, rounds, {count: point}, names, rng, scored)
    return scored


def _run(
    population: Population,
    rounds: Sequence[Round],
    points: dict[int, Setting],
    names: Sequence[str],
    rng: np.random.Generator,
    scored: Scored,
) -> None:
    """Add one run's F1 of each method at each of `points`, which share tau and `rounds`."""
    keys = population.domain.encode(population.items)
    heavy = np.sum(rounds, axis=0) >= next(iter(points.values())).tau
    kinds = len(heavy)  # whatever is estimated beyond them, there is not
    for name in names:
        if name in BASELINES:
            results = _score(population, keys, rounds, points, BASELINES[name], heavy, rng)
        else:
            results = (
                (x, option, f1(estimates >= point.tau, np.pad(heavy, (0, len(estimates) - kinds))))
                for x, point in points.items()
                for option, estimates in _SAMPLED[name](population, rounds, point, rng)
            )
        for x, option, result in results:
            scored[name, x, option] = [result]


def _score(
    population: Population,
    keys: Keys,
    rounds: Sequence[Round],
    points: dict[int, Setting],
    kind: sketches.Kind,
    heavy: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Iterator[tuple[int, str, float]]:
    """Yield a baseline's F1 at each point and number of hashes; nothing if it cannot score."""
    count = candidates(population.domain)
    if count > MOST_CANDIDATES:
        return
    where = keys[:, 0].astype(np.int64)
    truth = np.zeros(count, np.bool_)
    truth[where] = heavy
    sizes = sorted({point.words for point in points.values()})
    scores = sketches.score(rounds, where, count, sizes, sketches.HASHES, kind, rng)
    for x, point in points.items():
        for hashes in sketches.HASHES:
            estimates = scores.get((point.words, hashes))
            if estimates is not None:
                yield x, f"H = {hashes}", f1(estimates >= point.tau, truth)


Rounds = Sequence[Round]
Results = Iterator[tuple[str, NDArray[np.float64]]]
Method = Callable[[Population, Rounds, Setting, np.random.Generator], Results]


def _no_subsampling(
    _: Population, rounds: Rounds, point: Setting, rng: np.random.Generator
) -> Results:
    yield "t = 1", paper.fixed(rounds, point.words, 1.0, rng)


def _subsampled(_: Population, rounds: Rounds, point: Setting, rng: np.random.Generator) -> Results:
    t = paper.practical_threshold(point.words, point.tokens, point.tau)
    yield f"t = {t:.3g}", paper.fixed(rounds, point.words, t, rng)


def _best_fixed(_: Population, rounds: Rounds, point: Setting, rng: np.random.Generator) -> Results:
    for t in paper.FIXED:
        yield f"t = {t:g}", paper.fixed(rounds, point.words, t, rng)


def _adaptive(_: Population, rounds: Rounds, point: Setting, rng: np.random.Generator) -> Results:
    yield "", paper.adaptive(rounds, point.words, point.tokens, rng)


def _ours(people: Population, rounds: Rounds, point: Setting, rng: np.random.Generator) -> Results:
    try:
        question = ours.ask(people, point.tau, point.words, "steady")
        yield "", ours.adaptive(people, rounds, question, point.tokens, rng)[0]
    except ValueError:  # too few words for a table: no point
        return


def _tracked(
    people: Population, rounds: Rounds, point: Setting, rng: np.random.Generator
) -> Results:
    chance = rng.spawn(1)[0]  # so that other curves do not hang on this one
    held = [deal(counts, 1, chance) for counts in rounds]
    try:
        known = Known.of(people, point.tokens)
        found = tracked(held, known, point.words, point.tau, chance).mask
    except TooFewWordsError:  # no point
        return
    yield "", np.where(found, np.inf, 0)


_SAMPLED: dict[str, Method] = {
    NO_SUBSAMPLING: _no_subsampling,
    SUBSAMPLED: _subsampled,
    BEST_FIXED: _best_fixed,
    ADAPTIVE: _adaptive,
    OURS: _ours,
    TRACKED: _tracked,
}


def f1(found: NDArray[np.bool_], heavy: NDArray[np.bool_]) -> float:
    """Return F1 of two masks; 1 if there is nothing to find and nothing found."""
    both = int(found.sum()) + int(heavy.sum())
    return 2 * int((found & heavy).sum()) / both if both else 1.0


def over_runs(runs: Iterable[Scored], names: Sequence[str], grid: Sequence[int]) -> list[Curve]:
    """Return the curves of `runs`, in their order, at each x of `grid`."""
    scored, curves = Scored(), []
    for run in runs:
        for key, scores in run.items():
            scored.setdefault(key, []).extend(scores)
    for name in names:
        points = []
        for x in grid:
            options = [Point(x, tuple(v), k[2]) for k, v in scored.items() if k[:2] == (name, x)]
            if options:
                points.append(max(options, key=lambda point: point.mean))
        if points:
            curves.append(Curve(name, tuple(points)))
    return curves
