"""Words that a study needs: the smallest size from which the mean F1 over the runs reaches a goal.

Sizes are tried on a grid whose steps are a fifth, and interpolated by their logarithms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.simulate.populations import DriftKind
from blindtally.simulate.token_study import (
    DEFAULT_MECHANISM,
    ItemMask,
    KeyedPopulation,
    TokenRounds,
    TooFewWordsError,
    run_tokens,
)
from protocol.histograms import limit_copies

GOALS: Final = (0.8, 0.9, 0.95)
_SIZE_RATIO: Final = 1.2
_MAX_WORDS: Final = 200_000
_CONFIRMING_SIZES: Final = 2  # steps beyond the last goal that must reach it too


@dataclass(frozen=True, slots=True)
class StudySetting:
    """Parameters of a point: the paper's R, tau, M and C."""

    rounds: int
    tau: float
    tokens: int
    words: int


@dataclass(frozen=True, slots=True)
class F1Point:
    """F1 of each run with the best option, and the name of that option."""

    x: int
    f1_of_runs: tuple[float, ...]
    option: str = ""

    @property
    def mean(self) -> float:
        return float(np.mean(self.f1_of_runs))

    @property
    def standard_deviation(self) -> float:
        return float(np.std(self.f1_of_runs, ddof=1)) if len(self.f1_of_runs) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class F1Curve:
    """A method's points."""

    name: str
    points: tuple[F1Point, ...]

    def x_reaching(self, goal: float) -> float | None:
        """Return the x from which the mean is at least `goal`, by log x between points, or None."""
        below = [number for number, point in enumerate(self.points) if point.mean < goal]
        last = below[-1] if below else -1
        if last == len(self.points) - 1:
            return None
        if last == -1:
            return float(self.points[0].x)
        low, high = self.points[last], self.points[last + 1]
        share = (goal - low.mean) / (high.mean - low.mean)
        return float(low.x * (high.x / low.x) ** share)


def f1(found_items: NDArray[np.bool_], heavy: NDArray[np.bool_]) -> float:
    """Return F1 of two masks; 1 if both are empty."""
    total = int(found_items.sum()) + int(heavy.sum())
    return 2 * int((found_items & heavy).sum()) / total if total else 1.0


@dataclass(frozen=True, slots=True)
class Method:
    """Name of a mechanism, the smallest size to try, and the function that finds items.

    `find` takes the rounds, the words, the threshold tau and a generator. Its mask has an entry for
    each item, and one more for each found name that is not an item.
    """

    name: str
    min_words: int
    find: Callable[[TokenRounds, int, float, np.random.Generator], ItemMask]

    @property
    def max_sizes(self) -> int:
        """Return the number of sizes up to the largest."""
        return math.ceil(math.log(_MAX_WORDS / self.min_words, _SIZE_RATIO))


def _find_by_default(
    tokens: TokenRounds, words: int, tau: float, rng: np.random.Generator
) -> ItemMask:
    try:
        return run_tokens(DEFAULT_MECHANISM, tokens, words, tau, rng).found_items
    except TooFewWordsError:
        return np.zeros(len(tokens.known.places), np.bool_)


TRACKED: Final = Method(DEFAULT_MECHANISM, 60, _find_by_default)


@dataclass(frozen=True, slots=True)
class StudyCase:
    """A population, its drift, and the number of items per device.

    If there are `users`, the devices of each round are drawn from them, and not their tokens. In
    the papers devices count all copies of an item; those of users count one.
    """

    known: KeyedPopulation
    drift: DriftKind
    contribution: int
    users: DeviceHistograms | None = field(default=None, repr=False)
    counts_all_copies: bool = False


@dataclass(frozen=True, slots=True)
class DrawnStudy:
    """The devices of each round, and which items of `tokens.known` are heavy over all rounds."""

    tokens: TokenRounds
    heavy: ItemMask

    def f1_of(self, found_items: ItemMask) -> float:
        """Return the F1 of found items, each wrong name included."""
        wrong = np.zeros(len(found_items) - len(self.heavy), np.bool_)
        return f1(found_items, np.append(self.heavy, wrong))


def draw_study(case: StudyCase, setting: StudySetting, seed: Sequence[int]) -> DrawnStudy:
    """Draw the rounds of one study, whose population then has only the items that devices hold.

    The other items change no sum, and computing their keys would take most of the time.
    """
    rng = np.random.default_rng([*seed, 0])
    population = case.known.population
    if case.users is not None:
        return _draw_users(case, case.users, setting, rng)
    rounds = list(population.rounds(setting.rounds, setting.tokens, rng, case.drift))
    held = np.flatnonzero(np.sum(rounds, axis=0))
    known = case.known.with_items(held)
    tokens = known.distribute([counts[held] for counts in rounds], case.contribution, rng)
    if not case.counts_all_copies:
        tokens = replace(tokens, rounds=[limit_copies(each, 1)[0] for each in tokens.rounds])
    return _with_heavy_items(tokens, setting.tau)


def _with_heavy_items(tokens: TokenRounds, tau: float) -> DrawnStudy:
    totals = np.sum([held.item_totals(held.counts) for held in tokens.rounds], axis=0)
    return DrawnStudy(tokens, totals[tokens.known.places] >= tau)


def _draw_users(
    case: StudyCase, users: DeviceHistograms, setting: StudySetting, rng: np.random.Generator
) -> DrawnStudy:
    """Draw the users of each round; none is drawn twice before all are drawn once."""
    size = -(-setting.tokens // case.contribution)
    needed = setting.rounds * size
    orders = [rng.permutation(len(users)) for _ in range(-(-needed // len(users)))]
    order = np.concatenate(orders)[:needed]
    known, m = case.known, case.contribution
    parts = (users.take(order[start : start + size]) for start in range(0, needed, size))
    rounds = [known.clip(limit_copies(held, 1)[0], m, rng) for held in parts]
    return _with_heavy_items(TokenRounds(known, rounds, m), setting.tau)


def score_method(
    method: Method, study: DrawnStudy, words: int, tau: float, rng: np.random.Generator
) -> float:
    return study.f1_of(method.find(study.tokens, words, tau, rng))


def f1_over_sizes(
    case: StudyCase,
    method: Method,
    setting: StudySetting,
    seeds: Sequence[Sequence[int]],
    step: Callable[[int], None] = lambda _: None,
    every: int = 1,
    goals: Sequence[float] = GOALS,
) -> F1Curve:
    """Return F1 over words, from few words to where the mean stays above the last of `goals`.

    `setting.words` is not used. There is one run per seed, with the same rounds for all sizes.
    `step` receives the number of sizes done, `method.max_sizes` in total. Only one in `every` sizes
    of the grid is tried, and between two of those around a goal the sizes that bisect the rest.
    """
    studies = [draw_study(case, setting, seed) for seed in seeds]
    points = dict[int, F1Point]()

    def reaches(number: int, goal: float) -> bool:
        if number not in points:
            words = round(method.min_words * _SIZE_RATIO**number)
            scores = [
                score_method(method, study, words, setting.tau, np.random.default_rng(seed))
                for study, seed in zip(studies, seeds, strict=True)
            ]
            points[number] = F1Point(words, tuple(scores))
            step(1)
        return points[number].mean >= goal

    number, confirmed = 0, 0
    while number < method.max_sizes and not reaches(number, goals[-1]):
        number += every
    for goal in goals:
        number = _bisect_sizes(points, goal, reaches)
    while number < method.max_sizes and confirmed <= _CONFIRMING_SIZES:
        confirmed = confirmed + 1 if reaches(number, goals[-1]) else 0
        number += 1
    step(method.max_sizes - len(points))
    return F1Curve(method.name, tuple(points[number] for number in sorted(points)))


def _bisect_sizes(
    points: dict[int, F1Point], goal: float, reaches: Callable[[int, float], bool]
) -> int:
    """Bisect between the last point below `goal` and the next one; return the upper end."""
    low = max((number for number, point in points.items() if point.mean < goal), default=-1)
    above = [number for number in points if number > low]
    high = min(above, default=low + 1)
    while above and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle, goal) else (middle, high)
    return high
