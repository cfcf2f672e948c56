"""Expected F1 of a study of strings, read from a bundled table of simulated studies.

`tools/make_f1_table.py` simulates studies of random settings, and writes them with their F1 to
`f1_table.json`. Between these studies, F1 is that of a Gaussian process: a weighted sum over all
of them, in which those with similar settings weigh most. So F1 needs no grid over the seven
settings, and the chance in single studies is averaged. The process is one of the angle whose
squared sine is F1, so that F1 may change slowly near 0 and 1 and fast between them.

F1 depends on the data, which the form does not know, and on chance. So there is a range: shares
that fall as rank^-0.5 (many items near the threshold) to rank^-1.3, in short strings and in the
longest ones, and on both sides `_RANGE_DEVIATIONS` of a single study.

Measured with 37 settings that users of the form may choose, which the choice of 1.3 deviations did
not use, three kinds of data and three studies each: 90% of the 333 studies are inside the range.
The mean of three studies differs from the table's F1 by 0.039 on average, and by 0.33 at most
(`python tools/make_f1_table.py --compare 40`).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocol.domains.hashed import Hashed
from protocol.mechanisms.registry import AnyPlan
from protocol.question_and_plan import SumQuestion
from protocol.round_sizes import WORD_BYTES, vector_bytes

TABLE_FILE: Final = Path(__file__).with_name("f1_table.json")
GOALS: Final = (0.8, 0.9, 0.95)
ZIPF_EXPONENTS: Final = (0.5, 1.0, 1.3)
WORD_RANGE: Final = (250, 12_000)
HEAVY_RANGE: Final = (12.0, 2000.0)  # items that can be heavy, at most
SHORT_BYTES: Final = 8
_RANGE_DEVIATIONS: Final = 1.3


@dataclass(frozen=True, slots=True)
class StudyPoint:
    """Settings and data on which F1 depends; devices hold `tokens` items in a round.

    Items have `item_bytes` of at most `max_bytes`, and shares that fall as rank^-`zipf`.
    """

    rounds: int
    threshold: float
    tokens: int
    contribution: int
    words: int
    max_bytes: int
    item_bytes: int
    zipf: float

    @property
    def max_heavy(self) -> float:
        """Return the largest number of items that can reach the threshold."""
        return self.rounds * self.tokens / self.threshold

    @property
    def piece_bytes(self) -> int:
        """Return the bytes of the longest item in each of a third of the rounds."""
        return 3 * max(3, math.ceil(self.max_bytes / (3 * max(1, self.rounds // 3))))

    @property
    def is_covered(self) -> bool:
        """Return whether the form shows this study's F1: the table has some, with room for strings.

        With fewer than 4 words for each byte of a piece, F1 falls to 0 within a few words.
        """
        return self.is_simulated and self.words >= 4 * self.piece_bytes

    @property
    def is_simulated(self) -> bool:
        """Return whether the table has studies like this one.

        It has none of one round, which fetches no strings.
        """
        has_words = self.words >= max(WORD_RANGE[0], 0.6 * self.max_heavy)
        return self.rounds > 1 and has_words and HEAVY_RANGE[0] <= self.max_heavy <= HEAVY_RANGE[1]

    def coordinates(self) -> list[float]:
        """Return logarithms of ratios that determine F1, most of all of threshold and sampling."""
        load = self.tokens / self.words
        ratios = (
            *(self.threshold / load, load, self.words),
            *(self.contribution, self.max_bytes / self.rounds, self.item_bytes),
        )
        return [*np.log(ratios).tolist(), 1 / self.rounds, self.zipf]


class F1Table:
    """Simulated studies, and the F1 between them."""

    def __init__(
        self, studies: Sequence[Sequence[float]], scales: Sequence[float], noise: Sequence[float]
    ) -> None:
        """Prepare the F1 of `studies`, each the fields of a StudyPoint and its F1.

        `scales` has a distance for each coordinate, over which F1 changes, and then the standard
        deviation of all angles. `noise` has the deviation of a study, and that of a heavy item.
        """
        points = [StudyPoint(*row[:-1]) for row in studies]  # type: ignore[arg-type]
        self._scales, self._amplitude = np.array(scales[:-1]), scales[-1]
        self._points = np.array([point.coordinates() for point in points])
        angles = np.arcsin(np.sqrt([row[-1] for row in studies]))
        self._noise, covariance = noise, self._covariance(self._points)
        covariance[np.diag_indices(len(points))] += self._study_deviations(points) ** 2
        self._mean = angles.mean()
        self._weights = np.linalg.solve(covariance, angles - self._mean)

    def f1(self, points: Sequence[StudyPoint], deviations: float = 0) -> NDArray[np.float64]:
        """Return the mean F1 of each point, or one `deviations` standard deviations above it.

        The deviation is that of a single study. Beyond the table, F1 is that of its edge.
        """
        at = np.array([point.coordinates() for point in points])
        at = np.clip(at, self._points.min(axis=0), self._points.max(axis=0))
        angles = self._mean + self._covariance(at) @ self._weights
        angles += deviations * self._study_deviations(points)
        f1: NDArray[np.float64] = np.sin(np.clip(angles, 0, np.pi / 2)) ** 2
        return f1

    def _study_deviations(self, points: Sequence[StudyPoint]) -> NDArray[np.float64]:
        heavy = np.array([point.max_heavy for point in points])
        deviations: NDArray[np.float64] = np.hypot(self._noise[0], self._noise[1] / np.sqrt(heavy))
        return deviations

    def _covariance(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the Matérn covariances (nu = 3/2) of the angles at `at` and at the points."""
        steps = (at[:, None] - self._points) / self._scales
        distances = np.sqrt(3 * np.sum(steps**2, axis=2))
        decays: NDArray[np.float64] = (1 + distances) * np.exp(-distances)
        return self._amplitude**2 * decays


@dataclass(frozen=True, slots=True)
class ExpectedF1:
    """Mean F1 of items with shares as 1 / rank, and the range of single studies of other items.

    `words_by_goal` has the words with which shares as 1 / rank reach an F1, None if the table has
    no such study.
    """

    f1: float
    low: float
    high: float
    words_by_goal: dict[float, float | None]


def expected_f1(plan: AnyPlan) -> ExpectedF1 | None:
    """Return the F1 that is expected of the study that `plan` begins; None outside the table."""
    question: Any = plan.question
    if not isinstance(question.domain, Hashed) or not isinstance(question, SumQuestion):
        return None
    point = StudyPoint(
        rounds=plan.rounds,
        threshold=question.threshold,
        tokens=plan.terms.max_devices * question.contribution,
        contribution=question.contribution,
        words=vector_bytes(plan.terms, question.message_bytes) // WORD_BYTES,
        max_bytes=question.domain.max_bytes,
        item_bytes=min(SHORT_BYTES, question.domain.max_bytes),
        zipf=1.0,
    )
    return expected_f1_of(point) if point.is_covered else None


def expected_f1_of(point: StudyPoint) -> ExpectedF1:
    """Return the F1 of short items with shares as 1 / rank, and of other items."""
    others = [
        replace(point, item_bytes=size, zipf=zipf)
        for size in (point.item_bytes, point.max_bytes)
        for zipf in ZIPF_EXPONENTS
    ]
    table = f1_table()
    (f1,) = table.f1([point])
    low = table.f1(others, -_RANGE_DEVIATIONS).min()
    high = table.f1(others, _RANGE_DEVIATIONS).max()
    return ExpectedF1(float(f1), float(low), float(high), _words_by_goal(point))


def _words_by_goal(point: StudyPoint) -> dict[float, float | None]:
    """Return the words from which F1 stays at or above each goal, None if it does not."""
    sizes = np.geomspace(*WORD_RANGE, 40)
    f1 = f1_table().f1([replace(point, words=round(size)) for size in sizes])
    lasting = np.minimum.accumulate(f1[::-1])[::-1]
    words = [*sizes.tolist(), None]
    return {goal: words[np.searchsorted(lasting, goal)] for goal in GOALS}


@cache
def f1_table() -> F1Table:
    """Return the bundled table."""
    return F1Table(**json.loads(TABLE_FILE.read_text(encoding="utf-8")))
