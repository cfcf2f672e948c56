"""Encoding of a device's records: first the histogram that it contributes, then its vector.

Records outside the question's domain are removed first, so that they do not count towards the
contribution bound m [Gascon23, section 2]; of the rest, a random subset stays. Estimates are
estimates of the sum of these contributions.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Integral, Real
from typing import TypeAlias

import numpy as np

from protocol.domains.base import SEGMENT_SEPARATOR
from protocol.histograms import Histogram, clip
from protocol.mechanism import add_noise
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, AnyQuestion
from protocol.randomness import RandomWords
from secagg.ring import Vector

Items: TypeAlias = (
    Iterable[str | float | tuple[str, str | float]] | Mapping[str, int | Sequence[str | float]]
)


class LeftOutReason(StrEnum):
    """The reason why a device leaves out some of its records."""

    OUTSIDE_DOMAIN = "outside the domain"  # of the question
    TOO_MANY_COPIES = "more copies of an item than the policy allows"
    OVER_BOUND = "beyond the contribution bound"  # of the question: a random part


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The records of a device that are in no vector and no report: `count` in all, of `items`."""

    reason: LeftOutReason
    count: int
    items: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Contribution:
    """The histogram that a device adds to one study, and the records that it leaves out."""

    histogram: Histogram
    left_out: tuple[LeftOut, ...] = ()


def count_items(items: Items) -> Histogram:
    """Return the histogram of `items`: texts, numbers, or pairs of a segment and one of these.

    In a mapping, the value of an item is its count, and the value of a segment a list of its items.
    A column of a data frame or of an Arrow table is a list.

    Raises:
        ValueError: if `items` is one text or a table, an item is neither text nor number, a count
            is not a whole number, or a segment contains the separator of segments and items.
    """
    if hasattr(items, "columns"):  # a data frame, whose iteration yields the names of columns
        raise ValueError("items must be a list, not a table: pass one column of it")
    if isinstance(items, str | bytes):  # an iterable of characters, which are nobody's items
        raise ValueError(  # noqa: TRY004 - a caller's mistake, as the others here
            f"items must be a list, not one text: pass [{items!r}]"
        )
    if not isinstance(items, Iterable):
        raise ValueError(f"items must be a list or a mapping of counts, got {items!r}")  # noqa: TRY004
    counts = Counter[str]()
    if not isinstance(items, Mapping):
        to_list = getattr(items, "to_pylist", None)  # of an Arrow column, which iterates scalars
        for record in items if to_list is None else to_list():
            counts[_pair(*record) if isinstance(record, tuple) else _text(record)] += 1
        return dict(counts)
    for key, value in items.items():
        if isinstance(value, Iterable):
            within = [value] if isinstance(value, str) else value  # a text is one item
            counts.update(_pair(key, item) for item in within)
        elif isinstance(value, Integral) and int(value) >= 0:
            counts[key] += int(value)
        else:
            raise ValueError(f"the count of an item is a whole number, got {value!r} of {key!r}")
    return dict(counts)


def _pair(segment: str, item: str | float) -> str:
    """Return the item of a `Product` for a pair."""
    if SEGMENT_SEPARATOR in segment:
        raise ValueError(f"a segment contains no {SEGMENT_SEPARATOR!r}, got {segment!r}")
    return f"{segment}{SEGMENT_SEPARATOR}{_text(item)}"


def _text(item: object) -> str:
    """Return a text, or the text of a number; raises ValueError for NaN, None and others."""
    if isinstance(item, str) or (isinstance(item, Real) and not math.isnan(item)):
        return str(item)
    raise ValueError(f"an item is a text or a number, got {item!r}: leave out missing values")


def make_contribution(
    question: AnyQuestion,
    holdings: Histogram,
    rng: np.random.Generator,
    max_copies: int | None = None,
) -> Contribution:
    """Return the contribution to `question` of a device with the items `holdings`.

    An item counts at most `max_copies` times, or any number of times if that is None.
    """
    inside, outside = Counter[str](), Counter[str]()
    for item, count in holdings.items():
        canonical = question.canonical(item) if count else None
        if canonical is not None:
            inside[canonical] += count
        else:
            outside[item] += count
    limited = Counter({item: min(count, max_copies or count) for item, count in inside.items()})
    histogram = clip(limited, question.contribution, rng)
    left_out = {
        LeftOutReason.OUTSIDE_DOMAIN: outside,
        LeftOutReason.TOO_MANY_COPIES: inside - limited,
        LeftOutReason.OVER_BOUND: limited - Counter(histogram),
    }
    return Contribution(
        histogram,
        tuple(
            LeftOut(reason, count, tuple(items))
            for reason, items in left_out.items()
            if (count := sum(items.values()))
        ),
    )


def encode(
    plan: AnyPlan, contribution: Contribution, cohort_size: int, chance: RandomWords
) -> Vector:
    """Return the vector of `contribution` in a cohort of `cohort_size` devices.

    It contains the device's share of the noise, if the plan adds noise to sums.
    """
    mechanism = SUM_MECHANISMS[plan.question.mechanism]
    vector: Vector = mechanism.encode(plan, contribution.histogram, chance)
    add_noise(mechanism.ring(plan), vector, mechanism.noise_shares(plan, cohort_size), chance)
    return vector
