"""Encoding of a device's records: first the histogram that it contributes, then its vector.

Records outside the question's domain are removed first, so that they do not count towards the
contribution bound m [Gascon23, section 2]; of the rest, a random subset stays. Estimates are
estimates of the sum of these contributions.
"""

import math
from collections import Counter
from collections.abc import ItemsView, Iterable, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Final, TypeAlias, cast

import numpy as np

from protocol.domains.base import SEGMENT_SEPARATOR
from protocol.histograms import Histogram, clip
from protocol.mechanism import add_noise
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, AnyQuestion
from protocol.randomness import RandomWords
from secagg.ring import Vector

Items: TypeAlias = (
    Iterable[str | float | tuple[str, str | float]]
    | Mapping[str, int | Iterable[str | float] | Mapping[str, int]]
    | Mapping[float, int]
)
MAX_EXACT_FLOAT: Final = 2**53  # digits of a larger float mean nothing
_NAMES_OF_COUNTS: Final = ("count", "proportion")  # of pandas' columns of value_counts


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

    In a mapping, the value of an item is its count, and the value of a segment its only item, a
    list of its items, or a mapping of their counts. A column of a data frame or of an Arrow table
    is a list. Equal numbers are one item: 404.0 is 404.

    Raises:
        ValueError: if `items` is one text, a file or a table, an item is neither text nor number, a
            count is not a whole number, a segment contains the separator of segments and items, or
            numbers may be items as well as counts.
    """
    mapping = _counts(items)
    return dict(_of_list(_records(items)) if mapping is None else _of_mapping(mapping))


def _counts(items: object) -> Mapping[Any, Any] | None:
    """Return `items` if they are a mapping, or the pairs of one; None otherwise."""
    if isinstance(items, ItemsView):  # of a Counter, perhaps
        return dict(items)
    return items if isinstance(items, Mapping) else None


def _of_mapping(items: Mapping[Any, Any]) -> Counter[str]:
    counts = Counter[str]()
    if {isinstance(value, str) for value in items.values() if np.isscalar(value)} == {True, False}:
        raise ValueError("a mapping has counts of items, or an item of each segment, and not both")
    for key, value in items.items():
        inner = _counts(value)
        if inner is not None:
            for item, count in inner.items():
                counts[_pair(key, item)] += _count(count, item)
        elif isinstance(value, str):
            if _is_whole(value):  # a count that was read from a text, perhaps
                raise _two_readings(key, value)
            counts[_pair(key, value)] += 1
        elif isinstance(value, Iterable) and not isinstance(value, bytes):
            counts.update(_pair(key, item) for item in _records(value))
        else:
            counts[item_text(key)] += _count(value, key)
    return counts


def _count(count: object, item: object) -> int:
    """Return a count; raises ValueError if it is none."""
    if isinstance(count, Integral) and int(count) >= 0:
        return int(count)
    raise ValueError(f"the count of an item is a whole number, got {count!r} of {item!r}")


def _records(items: object) -> list[Any]:
    """Return the records in a list or a column.

    Raises:
        ValueError: if it is neither, or its numbers may be the counts of its labels.
    """
    if hasattr(items, "columns"):  # a data frame, whose iteration yields the names of columns
        raise ValueError("items must be a list, not a table: pass one column of it")
    # Their parts are characters and bytes, which are nobody's items.
    if isinstance(items, str | bytes | bytearray | memoryview):
        raise ValueError(f"items must be a list, not one text: pass [{items!r}]")  # noqa: TRY004 - a caller's mistake, as the others here
    if isinstance(items, enumerate):
        raise ValueError("items must be a list, not enumerate(items): pass the items")  # noqa: TRY004 - a caller's mistake, as the others here
    if hasattr(items, "readline"):  # lines have their ends
        raise ValueError("items must be a list, not a file: pass file.read().splitlines()")
    try:
        iterator = iter(cast("Iterable[Any]", items))
    except TypeError:
        raise ValueError(f"items must be a list or a mapping of counts, got {items!r}") from None
    to_list = getattr(items, "to_pylist", None)  # of an Arrow column, which iterates scalars
    records = list(iterator if to_list is None else to_list())
    if _has_labels(items, records) and any(isinstance(record, Real) for record in records):
        raise ValueError(
            "the numbers of this column may be items, or the counts of its labels, as from "
            "value_counts(): pass column.to_dict(), or the mapping that it is a part of, for "
            "counts, and list(column) for items"
        )
    return records


def _has_labels(column: object, values: Sequence[object]) -> bool:
    """Return whether labels of the numbers in a column may be items.

    Whole numbers are the labels of rows: 0, 1, 2, ..., or some of them after missing values were
    dropped, which makes all values floats. pandas names a column of counts "count".
    """
    labels = getattr(column, "index", None)
    if not hasattr(column, "to_dict") or labels is None:
        return isinstance(column, ValuesView)
    name = getattr(column, "name", None)
    if labels.name is not None or (isinstance(name, str) and name in _NAMES_OF_COUNTS):
        return True
    numbers = [each for each in labels if isinstance(each, Integral) and not isinstance(each, bool)]
    if len(numbers) < len(values):
        return True
    is_sorted = all(first < second for first, second in pairwise(numbers))
    are_floats = not any(isinstance(value, Integral) for value in values)
    return numbers != list(range(len(values))) and not (is_sorted and are_floats)


def _of_list(records: Sequence[Any]) -> Counter[str]:
    counts = Counter[str]()
    pairs = [each for each in records if isinstance(each, tuple) and len(each) == 2]
    # Counts in a column with missing values are floats, too.
    are_whole = all(_is_whole(second) for _, second in pairs)
    for record in records:
        if not isinstance(record, tuple):
            counts[item_text(record)] += 1
            continue
        if len(record) != 2:
            raise ValueError(f"an item is a text, a number or a pair, got {record!r}")
        if are_whole or isinstance(record[1], Integral):
            raise _two_readings(*record)
        counts[_pair(*record)] += 1
    return counts


def _is_whole(number: object) -> bool:
    """Return whether `number` is a whole number, or a text of one."""
    try:
        return isinstance(number, Real | str) and float(number).is_integer()
    except ValueError:
        return False


def _two_readings(first: object, second: object) -> ValueError:
    return ValueError(
        f"{(first, second)!r} may be an item and its count, or a segment and an item: pass the "
        "mapping {item: count}, with counts as numbers, or {segment: [items]}"
    )


def _pair(segment: object, item: object) -> str:
    """Return the item of a `Product` for a pair."""
    name = item_text(segment)
    if SEGMENT_SEPARATOR in name:
        raise ValueError(f"a segment contains no {SEGMENT_SEPARATOR!r}, got {name!r}")
    return f"{name}{SEGMENT_SEPARATOR}{item_text(item)}"


def item_text(item: object) -> str:
    """Return a text, or the text of a number; raises ValueError for NaN, None and others.

    A column of whole numbers has floats if a value was missing: 404.0 is the item 404 of others.
    """
    if isinstance(item, str):
        return str.__str__(item)  # of a member of an enumeration, its value
    if isinstance(item, bool | np.bool_):
        return str(bool(item))
    if isinstance(item, Integral):
        return str(int(item))
    if isinstance(item, Real) and not math.isnan(number := float(item)):
        is_whole = abs(number) <= MAX_EXACT_FLOAT and number.is_integer()
        return str(int(number)) if is_whole else str(item)
    is_missing = str(item).lower() in ("none", "nan", "nat", "<na>")
    advice = "leave out missing values" if is_missing else "pass its text"
    raise ValueError(f"an item is a text or a number, got {item!r}: {advice}")


def make_contribution(
    question: AnyQuestion, holdings: Histogram, chance: RandomWords, max_copies: int | None = None
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
    histogram = clip(limited, question.contribution, chance)
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
