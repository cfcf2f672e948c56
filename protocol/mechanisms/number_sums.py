"""Sums of numbers: mean, variance and total of a number of each device, by exact secure sums.

A device holds a number of an interval, in one of the listed segments if the domain has any. The
interval has K cells of equal width, and the number counts as the middle of its cell c, from 0 to
K - 1. So all sums are sums of integers, and are exact:

    device   (1, c, c^2) at the place of its segment, and checks
    sum      (n, S, Q) of each segment, and the checks of all of them
    answer   mean and variance of the n devices, with intervals (`number_summary.py`)

In a one-shot sum all elements are modulo one prime p. So c and c^2 are added in digits of a base B,
the lowest first, and p is above the sum of a digit of all devices. Of 1 to 8 digits of c^2, each
with the smallest B and p, the sums have those with the fewest bits.

A check is a random linear combination of all other elements modulo p, or 16,777,213 in a pairwise
sum. Its coefficients follow from the seed of the round. It adds up as they do. There are as many
checks as a random vector passes with probability 2^-60 at most; three in a pairwise sum. The laws
of n, S and Q alone would pass many vectors of a single segment.

A round's sums of a segment count if at least `threshold` devices are in them. The server deletes
the sums of a round once it is decoded. So the difference of two answers never shows the number of
fewer devices.

Source: the pairs (x, x^2) for the variance are the encoding of [CorriganGibbsBoneh17, section 5.2],
where two servers verify proofs; here a liar is bounded by the laws of `fault` only.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from protocol.description import (
    HIGHEST_VALUE,
    LOWEST_VALUE,
    SEGMENTS,
    THRESHOLD,
    AnswerKind,
    Description,
    FormField,
    QuestionForm,
)
from protocol.domains import Domain
from protocol.domains.known_items import KnownItems
from protocol.domains.numeric import NumericInterval
from protocol.domains.product import Product
from protocol.estimation.estimates import Estimate, ranked
from protocol.estimation.number_summary import NoNumbersError, NumberSummaries, summarise_numbers
from protocol.hashing import seeded_stream
from protocol.histograms import Histogram, device_values
from protocol.mechanism import Answer, SumMechanism
from protocol.numerics.array_types import Integers
from protocol.numerics.binary_search import first_true
from protocol.question_and_plan import DEFAULT_MIN_THRESHOLD, Plan, SumQuestion, Terms
from protocol.randomness import RandomWords
from protocol.round_sizes import message_bytes
from protocol.study_state import StudyState
from secagg.oneshot.moduli import Moduli
from secagg.ring import Lane, Ring, Vector

TOTAL_NAME = "all"  # of the devices of a study without segments
SUMS_ARRAY = "number sums"  # of the study state: rows n, S and Q, with a column per segment
# The largest prime below 2^24, for the checks of pairwise sums.
_CHECK_PRIME = 16_777_213
# A random vector passes all checks together with the reciprocal probability.
_MIN_CHECK_VALUES = 2**60
_MAX_DIGITS = 8  # digits of a square
_MAX_NUMBER = 1e100
_SUM_LIMIT = 2**63  # sums of squares over all rounds are signed 64-bit integers


class NumberSumsQuestion(SumQuestion):
    """Question for the mean and the variance of a number of each device, per segment.

    The domain is an interval, or a product of segments and an interval. A segment is in the answer
    if at least `threshold` devices of one round are in it.
    """

    mechanism: Literal["number-sums"] = "number-sums"
    threshold: float = Field(default=DEFAULT_MIN_THRESHOLD, ge=1, le=1e12, strict=True)
    contribution: int = Field(default=1, ge=1, le=1)
    confidence: float = Field(default=0.5, ge=0.5, le=0.5)

    @model_validator(mode="after")
    def _has_numbers(self) -> Self:
        is_interval = isinstance(_inner(self.domain), NumericInterval)
        if not is_interval:
            raise ValueError("sums of numbers need an interval, or a product of segments with one")
        if max(abs(self.interval.low), abs(self.interval.high)) > _MAX_NUMBER:
            raise ValueError(f"numbers are at most {_MAX_NUMBER:g}, so that variances are finite")
        return self

    @property
    def interval(self) -> NumericInterval:
        """Return the interval of the numbers."""
        inner = _inner(self.domain)
        assert isinstance(inner, NumericInterval)  # validated above
        return inner

    @property
    def segments(self) -> tuple[str, ...]:
        """Return the names of all segments, `TOTAL_NAME` if the domain has none."""
        return self.domain.segments if isinstance(self.domain, Product) else (TOTAL_NAME,)

    @property
    def counts_by_round(self) -> bool:
        return True

    @property
    def discards_sums(self) -> bool:
        return True


class NumberSumsPlan(Plan):
    """Plan of a round: each device adds its number and the square to the sums of its segment."""

    mechanism: Literal["number-sums"] = "number-sums"
    question: NumberSumsQuestion

    @model_validator(mode="after")
    def _fits_the_message(self) -> Self:
        _check_size(self.question, self.terms, self.rounds)
        return self

    @property
    def ring(self) -> Ring:
        """Return lanes of the numbers of devices, the sums, the squares, and the checks."""
        return self.format.ring

    @property
    def format(self) -> "SumFormat":
        return _format(self.question, self.terms)

    def vector_of(self, digits: Integers) -> Vector:
        """Return rows of digits of n, S and Q with a column per segment, and their checks."""
        lanes = self.ring.lanes
        ends = np.cumsum([lane.length for lane in lanes])[:-1]
        parts = np.split(np.append(digits, self.checks_of(digits)), ends)
        return tuple(part.astype(lane.dtype) for lane, part in zip(lanes, parts, strict=True))

    def checks_of(self, digits: Integers) -> Integers:
        """Return the checks of rows of digits."""
        lane = self.ring.lanes[-1]
        drawn = Lane(lane.q, lane.length * digits.size)
        factors = drawn.uniform(seeded_stream(bytes.fromhex(self.seed), "number sums"))
        rows = factors.astype(np.int64).reshape(lane.length, -1)
        products = rows * (digits.ravel() % lane.q) % lane.q
        checks: Integers = products.sum(axis=1) % lane.q
        return checks


class SumFormat(NamedTuple):
    """The lanes of the sums, and the digits of n, S and Q in `base`."""

    ring: Ring
    base: int
    digits: tuple[int, int, int]


_FORM: Final = QuestionForm(
    "Mean and variance of numbers",
    "Exact sums of one number per device, and intervals for the population's mean. A round counts "
    "if it has enough devices.",
    {"contribution": 1, "domain.kind": "interval", "message_bytes": 131072},
    (
        replace(
            THRESHOLD,
            label="Devices per answer",
            default="5",
            hint="A round with fewer numbers than this does not count.",
        ),
        LOWEST_VALUE,
        HIGHEST_VALUE,
        FormField(
            "question.domain.alpha", "Base of a digit", "10", hint="Such as 10.", is_rare=True
        ),
        FormField(
            "question.domain.length",
            "Digits",
            "4",
            hint="Numbers are rounded to base^digits steps of the interval.",
            is_rare=True,
        ),
        SEGMENTS,
    ),
)


class NumberSums(SumMechanism[NumberSumsQuestion, NumberSumsPlan]):
    """Mechanism of exact sums of numbers and their squares."""

    name = "number-sums"
    is_in_javascript = True
    question_type = NumberSumsQuestion
    simulated_words = 2**16
    plan_type = NumberSumsPlan
    description = Description(
        purpose="mean, sum and variance of numbers, exact, also by segment",
        cost="40 bytes or fewer per round and segment",
        form=_FORM,
        counted="segment",
    )

    def _first_fields(
        self, question: NumberSumsQuestion, terms: Terms, rounds: int
    ) -> dict[str, Any]:
        _check_size(question, terms, rounds)
        return {}

    def ring(self, plan: NumberSumsPlan) -> Ring:
        return plan.ring

    def encode_sum(
        self, plan: NumberSumsPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> Vector:
        del chance  # every number is added
        question = plan.question
        values = device_values(question.domain, histograms)
        values = values[values < question.domain.value_count]  # others hold no number
        segments, cells = np.divmod(values.astype(np.int64), question.interval.cells)
        _, base, digits = plan.format
        sums = np.zeros((sum(digits), len(question.segments)), np.int64)
        rows = iter(sums)
        for amounts, count in zip((np.ones_like(cells), cells, cells**2), digits, strict=True):
            for place in range(count):
                np.add.at(next(rows), segments, amounts // base**place % base)
        return plan.vector_of(sums)

    def fault(self, plan: NumberSumsPlan, total: Vector, participants: int) -> str | None:
        """Return the law that `total` breaks: the checks, and what n integers up to K - 1 can have.

        A random vector breaks no law with probability 2^-60 at most. One lying device is not
        detected if it changes all elements so that the laws still hold. Then it may move the mean
        of its cohort to any number of the interval, and count as all devices of its cohort.
        """
        elements = np.concatenate(total[:-1]).astype(np.int64)
        if (plan.checks_of(elements) != total[-1].astype(np.int64)).any():
            return "the checks are not those of the sums"
        devices, cells, squares = _rows_of(plan, total)
        if sum(devices) > participants:
            return "there are more numbers than devices"
        largest = plan.question.interval.cells - 1
        for n, s, q in zip(devices, cells, squares, strict=True):
            if not s <= n * largest:
                return "a sum of numbers is larger than its devices can have"
            if not _smallest_squares(n, s) <= q <= largest * s or (q - s) % 2:
                return "a sum of squares is not that of any numbers with this sum"
        return None

    def decode(
        self, plan: NumberSumsPlan, total: Vector, participants: int, state: StudyState
    ) -> Answer:
        del participants  # only some of them hold a number
        sums = np.array(_rows_of(plan, total), np.int64)
        sums[:, sums[0] < plan.question.threshold] = 0
        shown = int(np.count_nonzero(sums[0]))
        estimates = tuple(_device_counts(plan.question, sums))
        sums += state.arrays.get(SUMS_ARRAY, np.zeros_like(sums))
        return Answer(True, shown, estimates, state.with_array(SUMS_ARRAY, sums))

    def final_estimates(self, question: NumberSumsQuestion, state: StudyState) -> list[Estimate]:
        """Return the number of devices in each segment that has an answer."""
        return _device_counts(question, state.arrays.get(SUMS_ARRAY, np.zeros((3, 0), np.int64)))

    def domain_about(self, known: KnownItems, fields: Mapping[str, Any]) -> Domain:
        del fields
        return known.intervals_by_segment(alpha=10, levels=4)

    def number_summaries(
        self, plan: NumberSumsPlan, state: StudyState, beta: float = 0.05
    ) -> NumberSummaries:
        sums, question = state.arrays.get(SUMS_ARRAY), plan.question
        if sums is None or not sums.any():
            enough = f"{question.threshold:g} devices with a number"
            raise NoNumbersError(
                f"no round has been counted in which a segment has {enough}: ask more devices in "
                "a round, in fewer rounds"
            )
        return summarise_numbers(question.interval, sums, self.options(question), beta)

    def answer_kind(self, question: NumberSumsQuestion) -> AnswerKind:
        del question
        return AnswerKind.MEANS

    def aim(self, question: NumberSumsQuestion, items: str) -> str:
        del question
        return f"Finds the mean and the variance of {items}"

    def options(self, question: NumberSumsQuestion) -> tuple[str, ...]:
        return question.domain.segments if isinstance(question.domain, Product) else ()

    def may_show_one_device(self, plan: NumberSumsPlan) -> bool:
        del plan
        return True

    def server_sees(self, question: NumberSumsQuestion, group: str) -> tuple[str, ...]:
        del question
        return (
            (
                "in each segment, the number of devices, and the sums of their numbers and of the "
                "squares"
            ),
            (
                f"The number of a device that is alone in a segment of its {group}, but not which "
                "device it is. This is not differential privacy."
            ),
        )


def _inner(domain: Domain) -> Domain:
    return domain.inner if isinstance(domain, Product) else domain


def _rows_of(plan: NumberSumsPlan, total: Vector) -> list[list[int]]:
    """Return the rows n, S and Q of a sum, without its checks."""
    _, base, digits = plan.format
    return [
        [
            sum(digit * base**place for place, digit in enumerate(column))
            for column in lane.reshape(count, -1).T.tolist()
        ]
        for lane, count in zip(total[:-1], digits, strict=True)
    ]


def _device_counts(question: NumberSumsQuestion, sums: Integers) -> list[Estimate]:
    counts = sums[0].tolist()
    return ranked(
        Estimate(question.segments[place], float(count), 0.0)
        for place, count in enumerate(counts)
        if count
    )


def _smallest_squares(n: int, total: int) -> int:
    """Return the smallest sum of squares of `n` integers with this total: all about equal.

    It is at least total^2 / n, the bound of Cauchy and Schwarz for real numbers.
    """
    if not n:
        return total * total  # 0, or more than any sum has
    low, larger = divmod(total, n)
    return n * low**2 + larger * (2 * low + 1)


def _format(question: NumberSumsQuestion, terms: Terms) -> SumFormat:
    largest, segments = question.interval.cells - 1, len(question.segments)
    if terms.is_one_shot:
        return _one_shot_format(largest, segments, terms.max_devices, terms.moduli)
    bounds = [terms.max_devices * largest**power for power in range(3)]
    lanes = [Lane(terms.moduli.above(bound), segments) for bound in bounds]
    return SumFormat(Ring((*lanes, Lane(_CHECK_PRIME, 3))), largest**2 + 2, (1, 1, 1))


@lru_cache(256)
def _one_shot_format(largest: int, segments: int, devices: int, moduli: Moduli) -> SumFormat:
    formats = list[SumFormat]()
    for count in range(1, _MAX_DIGITS + 1):
        base = _smallest_base(largest**2, count)
        with suppress(ValueError):  # a prime above 2^26 is needed
            p = moduli.above(devices * (base - 1))
            of_number = next(n for n in range(1, count + 1) if base**n > largest)
            digits = 1, of_number, count
            checks = next(n for n in range(1, 61) if p**n >= _MIN_CHECK_VALUES)
            lengths = *(segments * each for each in digits), checks
            formats.append(SumFormat(Ring(tuple(Lane(p, n) for n in lengths)), base, digits))
    if not formats:
        raise ValueError("sums of numbers need a prime above 2^26: use fewer digits or devices")
    return min(formats, key=lambda each: moduli.nbytes(each.ring))


def _smallest_base(largest: int, digits: int) -> int:
    """Return the smallest base from 2 in which `largest` has `digits` digits or fewer."""
    return first_true(lambda base: base**digits > largest, 2, largest + 2)


def _check_size(question: NumberSumsQuestion, terms: Terms, rounds: int) -> None:
    """Raise ValueError if sums of squares may wrap, or the message is too small."""
    cells = question.interval.cells
    if rounds * terms.max_devices * cells**2 >= _SUM_LIMIT:
        raise ValueError(
            f"squares of {cells:,} cells are too large for {terms.max_devices:,} devices in each "
            f"of {rounds:,} rounds: use fewer digits, or fewer rounds"
        )
    needed = message_bytes(terms, _format(question, terms).ring)
    if needed > question.message_bytes:
        raise ValueError(
            f"message_bytes {question.message_bytes:,} are too few: the sums of "
            f"{len(question.segments):,} segments take {needed:,}"
        )
