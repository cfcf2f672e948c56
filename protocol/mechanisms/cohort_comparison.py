"""Comparison of a round's cohorts, which finds counts that a few lying devices have made.

Devices get their cohorts independently of their items: a registrar draws them; without one they
follow the order of arrival, and devices that arrive together may be alike. So each of the X tokens
of an item (units that devices added to it) is in cohort c, of n_c out of n devices, with
probability n_c / n. We allow rates that differ by a factor of W = 2, for honest cohorts that do
differ: c has a token with a probability of at most q = W n_c / (W n_c + n - n_c). If a device adds
at most u tokens to an item, cohort c has x of them or more with probability at most

    e^-(X / u KL(x / X, q))       x >= q X, KL the relative entropy of two coins [Hoeffding63]

and x or fewer with 1 / W for W. For an item in one cohort only this is exact. With C
cohorts there are 2 C such tests of an item, so its *p-value* is 2 C times the smallest
probability. An item is *flagged* if that is `MAX_P_VALUE` or less: honest devices cause it with
this probability in a round.

The count of a flagged item is estimated without the cohort whose rate is farthest from the median
rate, as the count of the others times n / (n - n_c), and so on while one stands out. Where half of
the cohorts or more would be left out, or more than 20, all are counted, since nobody knows which of
them lie. So the estimate of honest devices is the plain sum, and unbiased, except with probability
`MAX_P_VALUE`. An estimate from a share s of the devices is unbiased too, with an additional
variance of N (1 - s) / s. A median of counts would be 0 for an item that most cohorts do not have.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from protocol.numerics.array_types import Flags, Floats, Indices, Integers
from protocol.sketches.iblt.table import DecodedTable
from secagg.parameters import relative_entropy

MAX_P_VALUE = 1e-6
_MAX_RATE_RATIO = 2.0  # W
_MAX_LEFT_OUT = 20  # cohorts of one item, which bounds the time
_BATCH_COUNTS = 2**20  # counts in cohorts that are compared at once, which bounds the memory


@dataclass(frozen=True, slots=True)
class ComparedCounts:
    """Estimated count, share of devices that it is estimated from, and p-value of each item.

    The p-value is 1 without a flag.
    """

    counts: Floats
    shares: Floats
    p_values: Floats

    @classmethod
    def plain(cls, counts: Integers) -> Self:
        """Return `counts` that are not compared."""
        ones = np.ones(len(counts))
        return cls(counts.astype(np.float64), ones, ones)

    @property
    def flags(self) -> list[float | None]:
        """Return the p-value of each flagged item, and None for each other item."""
        return [p if p < 1 else None for p in self.p_values.tolist()]

    @property
    def missing_variances(self) -> Floats:
        """Return the variance that leaving out cohorts adds, per count that a token stands for."""
        variances: Floats = self.counts * (1 - self.shares) / self.shares
        return variances


def compare_counts(
    counts: Integers, devices: Sequence[int], max_device_count: int, is_read: Flags | None = None
) -> ComparedCounts:
    """Return the estimates of items from their `counts`, a row for each cohort.

    A device adds `max_device_count` to an item at most. Cohorts in which an item was not read are
    left out of its count, with no flag.
    """
    is_counted = np.ones(counts.shape, np.bool_) if is_read is None else is_read.copy()
    return ComparedCounts(
        *_compare(counts, np.array(devices, np.float64), max_device_count, is_counted)
    )


def compare_tables(
    whole: DecodedTable,
    cohorts: Sequence[DecodedTable],
    devices: Sequence[int],
    max_device_count: int,
) -> ComparedCounts:
    """Return the estimates of the keys of `whole` from the tables of its `cohorts`, as above."""
    if len(cohorts) < 2:
        return ComparedCounts.plain(whole.values)
    keys = np.concatenate([whole.keys, *(each.keys for each in cohorts)])
    rows = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    positions = np.full(len(rows), -1)  # of false keys that are in a cohort only
    positions[rows[: len(whole.keys)]] = np.arange(len(whole.keys))
    items = positions[rows[len(whole.keys) :]]
    numbers = np.repeat(np.arange(len(cohorts)), [len(each.keys) for each in cohorts])
    entries = _Entries(items, numbers, np.concatenate([each.values for each in cohorts]))
    return entries.compare(len(whole.keys), devices, max_device_count)


def merge_tables(tables: Sequence[DecodedTable]) -> DecodedTable:
    """Return the content of the sum of `tables`, which all were read."""
    keys = np.concatenate([each.keys for each in tables])
    distinct, rows = np.unique(keys, axis=0, return_inverse=True)
    values = np.zeros(len(distinct), np.int64)
    np.add.at(values, rows.reshape(-1), np.concatenate([each.values for each in tables]))
    return replace(tables[0], keys=distinct, values=values, distinct=float(len(distinct)))


def max_unflagged_tokens(cohorts: int, liars: int, max_device_count: int) -> float:
    """Return the tokens that `liars` in different cohorts give an item nobody holds without a flag.

    Cohorts have equal sizes. Infinite if the liars are in too many of them.
    """
    q = _MAX_RATE_RATIO / (_MAX_RATE_RATIO + cohorts - 1)
    if liars > min((cohorts - 1) // 2, _MAX_LEFT_OUT) or 1 / liars <= q:
        return math.inf
    limit = math.log(2 * cohorts / MAX_P_VALUE)
    return max_device_count * limit / float(relative_entropy(1 / liars, q))


@dataclass(frozen=True, slots=True)
class _Entries:
    """Counts of items in cohorts, by the numbers of both; items below 0 are left out."""

    items: Indices
    cohorts: Indices
    counts: Integers

    def compare(
        self, item_count: int, devices: Sequence[int], max_device_count: int
    ) -> ComparedCounts:
        """Return the estimates of `item_count` items, a batch at a time."""
        order = np.argsort(self.items, kind="stable")
        items, sizes = self.items[order], np.array(devices, np.float64)
        batch, parts = max(1, _BATCH_COUNTS // len(devices)), []
        for first in range(0, max(1, item_count), batch):
            last = min(first + batch, item_count)
            inside = order[slice(*np.searchsorted(items, [first, last]).tolist())]
            counts = np.zeros((len(devices), last - first), np.int64)
            counts[self.cohorts[inside], self.items[inside] - first] = self.counts[inside]
            is_counted = np.ones(counts.shape, np.bool_)
            parts.append(_compare(counts, sizes, max_device_count, is_counted))
        return ComparedCounts(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _compare(
    counts: Integers, devices: Floats, max_device_count: int, is_counted: Flags
) -> tuple[Floats, Floats, Floats]:
    """Return the columns of `ComparedCounts` for `counts`, a row for each cohort."""
    p_values = np.ones(counts.shape[1])
    limit, tests = min((len(counts) - 1) // 2, _MAX_LEFT_OUT), 2 * len(counts)
    # Items with too few tokens for a flag need no test.
    rarest = _MAX_RATE_RATIO * devices.min() / (devices.sum() + devices.min())
    reach = counts.sum(axis=0) / max_device_count * -np.log(rarest)
    items = np.flatnonzero(tests * np.exp(-reach) <= MAX_P_VALUE)
    rates = counts / devices[:, np.newaxis]
    distances = np.abs(rates - np.median(rates, axis=0))
    while len(items):
        evidence = _evidence(counts[:, items], devices, is_counted[:, items], max_device_count)
        bounds = tests * np.exp(-evidence.max(axis=0))
        is_flagged = bounds <= MAX_P_VALUE
        items, bounds = items[is_flagged], bounds[is_flagged]
        p_values[items] = np.minimum(p_values[items], bounds)
        farthest = np.where(is_counted[:, items], distances[:, items], -1).argmax(axis=0)
        is_counted[farthest, items] = False
        items = items[(~is_counted[:, items]).sum(axis=0) <= limit]
    is_counted[:, (~is_counted).sum(axis=0) > limit] = True
    shares = (is_counted * devices[:, np.newaxis]).sum(axis=0) / devices.sum()
    return (counts * is_counted).sum(axis=0) / shares, shares, p_values


def _evidence(
    counts: Integers, devices: Floats, is_counted: Flags, max_device_count: int
) -> Floats:
    """Return -ln of each cohort's probability, compared with the others that are counted."""
    totals = np.maximum((counts * is_counted).sum(axis=0), 1)
    own = devices[:, np.newaxis]
    others = np.maximum((own * is_counted).sum(axis=0) - own, 1e-9)
    high = _MAX_RATE_RATIO * own / (_MAX_RATE_RATIO * own + others)
    low = own / (own + _MAX_RATE_RATIO * others)
    shares = np.minimum(counts / totals, 1)
    entropies = relative_entropy(shares, np.clip(shares, low, high))
    return np.where(is_counted, totals / max_device_count * entropies, 0.0)
