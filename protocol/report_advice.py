"""Advice on locally private reports: the smallest predicted error, and whether it beats a guess.

    worst-mse    largest variance of a value with a frequency up to `max_frequency`
    l2           sum of the variances of all values
    l1           sum of the mean absolute errors of all values
    heavy        smallest frequency that is detected with probability 95%

Each mechanism names its candidates for a wish. Nothing works if a guess without any report errs as
little, or if only values are detected that half of all devices hold.

Among candidates within 3% of the smallest error, that of the fewest bytes is chosen, then the
fastest to decode; one that decodes for more than ten minutes only if all do.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Final, Literal

Goal = Literal["worst-mse", "l1", "l2", "heavy"]
GUESS_ERRORS: Final[dict[Goal, float]] = {"worst-mse": 0.25, "l1": 1.0, "l2": 1.0, "heavy": 0.5}
DETECTION_PROBABILITY: Final = 0.95
MAX_USERS: Final = 10**15
_ERROR_TOLERANCE: Final = 1.03
_MAX_DECODE_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class ReportWish:
    """An aim of `users` reports: `values` in a dictionary, or strings of up to `max_bytes`.

    No frequency is above `max_frequency`. A report has at most `max_report_bytes`.
    """

    users: int
    goal: Goal
    epsilon: float
    values: int | None = None
    max_bytes: int = 64
    max_frequency: float = 1.0
    max_report_bytes: int = 64


@dataclass(frozen=True, slots=True)
class ReportCandidate:
    """One way to ask: the fields of its `question`, and its costs by the number of users.

    `error` is in the goal's own measure, infinite if nothing is detected. `seconds` are of one core
    for all reports.
    """

    question: Mapping[str, Any]
    parameters: Mapping[str, Any]
    nbytes: int
    error: Callable[[int], float]
    seconds: Callable[[int], float]

    def works(self, wish: ReportWish, users: int) -> bool:
        """Return whether the error with this number of `users` is below that of a guess."""
        return self.error(users) < GUESS_ERRORS[wish.goal]


def best_candidate(candidates: Iterable[ReportCandidate], wish: ReportWish) -> ReportCandidate:
    """Return the best of `candidates`.

    Raises:
        ValueError: if a number of `wish` is out of range, or all reports are longer.
    """
    if wish.users < 1:
        raise ValueError(f"users must be 1 or more, not {wish.users}")
    if not 0 <= wish.max_frequency <= 1:
        raise ValueError(f"max_frequency must be from 0 to 1, not {wish.max_frequency}")
    small = [each for each in candidates if each.nbytes <= wish.max_report_bytes]
    if not small:
        raise ValueError(f"no report has {wish.max_report_bytes} bytes or fewer: allow more bytes")
    quick = [each for each in small if each.seconds(wish.users) <= _MAX_DECODE_SECONDS] or small
    errors = [each.error(wish.users) for each in quick]
    smallest = min(errors)
    if smallest == inf:
        return min(quick, key=lambda each: (users_needed(each, wish) or inf, each.nbytes))
    return min(
        (
            pair
            for pair in zip(quick, errors, strict=True)
            if pair[1] <= _ERROR_TOLERANCE * smallest
        ),
        key=lambda pair: (pair[0].nbytes, pair[0].seconds(wish.users), pair[1]),
    )[0]


def users_needed(candidate: ReportCandidate, wish: ReportWish) -> int | None:
    """Return the smallest number of users for which it works, to 1%; None above 10^15."""
    high = 1
    while not candidate.works(wish, high):
        if high >= MAX_USERS:
            return None
        high = min(2 * high, MAX_USERS)
    low = high // 2
    while high - low > max(1, high // 200):
        middle = ceil((low + high) / 2)
        low, high = (low, middle) if candidate.works(wish, middle) else (middle, high)
    return high
