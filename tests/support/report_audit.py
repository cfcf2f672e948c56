"""Audit of an oracle's reports: a measured lower bound on epsilon.

A reader of a report infers which of two values it is of. With P, P' the probabilities of an event
for the one value and for the other, epsilon is at least log(P / P'). The real code makes reports,
with their bytes. They are partitioned by their votes for both values, by each of their bits, and
by the whole report if it is short. One quarter of the reports selects the most revealing event of
each partition, another quarter selects one of these events, and the other half measures the
selected event, with the exact bounds of Clopper and Pearson.

So the bound exceeds the claim of an honest oracle with probability at most 1 - `confidence`, for
any number of events. It does not prove privacy, as `distribution` does. It detects errors between
probabilities and bytes.

Source: [Jagielski20, section 4] for the bound; [ClopperPearson34].
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from protocol.numerics.array_types import PackedReports
from protocol.oracles.oracle import Oracle
from protocol.randomness import RandomWords

_MAX_WHOLE_REPORT_BITS = 16
_ReportClasses = NDArray[np.int64]  # (2, runs): the class of each report, for either value


@dataclass(frozen=True, slots=True)
class AuditResult:
    """A lower bound on epsilon by `event`, which holds with `confidence`."""

    epsilon_lower_bound: float
    event: str
    confidence: float


@dataclass(frozen=True, slots=True)
class _Event:
    """Reports of some classes of a partition, more likely for one of the two values."""

    name: str
    partition: _ReportClasses
    classes: NDArray[np.int64]
    value: int

    def epsilon_lower_bound(self, runs: slice, tail: float) -> float:
        """Return the bound on epsilon by a part of the runs."""
        seen = np.isin(self.partition[:, runs], self.classes)
        counts = seen[[self.value, 1 - self.value]].sum(axis=1, keepdims=True)
        return float(_epsilon_lower_bounds(counts[0], counts[1], seen.shape[1], tail)[0])


def audit(
    oracle: Oracle,
    values: tuple[int, int],
    runs: int,
    chance: RandomWords,
    confidence: float = 0.999,
) -> AuditResult:
    """Return the audit of `runs` reports of each of two `values`.

    Raises:
        ValueError: if `runs` is below 100, or a value is not in the domain.
    """
    if runs < 100:
        raise ValueError(f"runs must be 100 or more, not {runs}")
    pair = np.array(values, np.uint64)
    reports = [oracle.perturb(np.full(runs, value, np.uint64), chance) for value in pair]
    return _audit_result(_partitions(oracle, reports, pair), runs, confidence)


def compare_reports(
    first: PackedReports, second: PackedReports, confidence: float = 0.999
) -> AuditResult:
    """Return the audit of reports of two values, by their bytes alone.

    Raises:
        ValueError: if the shapes differ, or there are fewer than 100 reports.
    """
    if first.shape != second.shape or len(first) < 100:
        raise ValueError("100 reports or more of each value expected")
    return _audit_result(
        _bit_partitions(np.array([first, second]), 8 * first.shape[1]), len(first), confidence
    )


def _audit_result(
    partitions: Iterator[tuple[str, _ReportClasses]], runs: int, confidence: float
) -> AuditResult:
    """Return the bound of the best event, selected by one half of the runs, by the other half."""
    first, second, rest = slice(runs // 4), slice(runs // 4, runs // 2), slice(runs // 2, runs)
    tail = (1 - confidence) / 2
    events = [
        _most_revealing_event(name, partition, value, first, tail)
        for name, partition in partitions
        for value in (0, 1)
    ]
    best = max(events, key=lambda event: event.epsilon_lower_bound(second, tail))
    return AuditResult(max(0.0, best.epsilon_lower_bound(rest, tail)), best.name, confidence)


def _partitions(
    oracle: Oracle, reports: list[PackedReports], pair: NDArray[np.uint64]
) -> Iterator[tuple[str, _ReportClasses]]:
    votes = np.array([oracle.votes(part, pair) for part in reports]).astype(np.int64) + 1
    yield "votes for both values", 3 * votes[..., 0] + votes[..., 1]
    yield from _bit_partitions(np.array(reports), oracle.bits)


def _bit_partitions(both: PackedReports, count: int) -> Iterator[tuple[str, _ReportClasses]]:
    """Yield partitions of reports `(2, n, nbytes)` by each bit, and by all bits if they are few."""
    bits = np.unpackbits(both, axis=2, bitorder="little").astype(np.int64)
    for bit in range(count):
        yield f"bit {bit}", bits[..., bit]
    if count <= _MAX_WHOLE_REPORT_BITS:
        yield "the whole report", bits @ (1 << np.arange(bits.shape[2]))


def _most_revealing_event(
    name: str, partition: _ReportClasses, value: int, runs: slice, tail: float
) -> _Event:
    """Return the classes that are most likely for `value` and give the highest bound."""
    observed = partition[:, runs]
    classes, index = np.unique(observed, return_inverse=True)
    counts = np.array([np.bincount(row, minlength=len(classes)) for row in index.reshape(2, -1)])
    order = np.argsort(-(counts[value] + 0.5) / (counts[1 - value] + 0.5), kind="stable")
    of_value, of_other = (counts[row][order].cumsum() for row in (value, 1 - value))
    last = int(np.argmax(_epsilon_lower_bounds(of_value, of_other, observed.shape[1], tail)))
    return _Event(name, partition, classes[order[: last + 1]], value)


def _epsilon_lower_bounds(
    of_value: NDArray[np.int64], of_other: NDArray[np.int64], n: int, tail: float
) -> NDArray[np.float64]:
    """Return lower bounds on log(P / P') from counts of n, with `tail` for each end."""
    fewer, seen = np.minimum(of_other, n - 1), np.maximum(of_value, 1)
    low = np.where(of_value > 0, betaincinv(seen, n - seen + 1, tail), 0.0)
    high = np.where(of_other < n, betaincinv(fewer + 1, n - fewer, 1 - tail), 1.0)
    with np.errstate(divide="ignore"):  # the log of 0: nothing is shown
        bounds: NDArray[np.float64] = np.log(low) - np.log(high)
    return bounds
