"""Base class of frequency oracles: one private report per device, from which a server counts.

A device holds one value of a dictionary 0 .. d-1. Its report is epsilon-locally differentially
private: neighbours replace the device's one value. A report *votes* for some values, and the sum
of all votes for x is its *support* S(x). With n reports,

    f^(x)  =  (S(x)/n - q) / (p - q)           p, q: mean vote if the value is x, if it is another
    n Var  =  [f p(1-p) + (1-f) q(1-q)] / (p - q)^2

is unbiased [Wang17, theorem 2] if q is the same for all pairs of values, as where each report
draws its hash function from a family with one collision probability [Pan24, corollary 3.1]. The
variance is that of the reports for given values. Of its reports, a server keeps `ReportCounts`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np

from protocol.numerics import special
from protocol.numerics.array_types import Frequencies, ItemValues, PackedReports, Support, Votes
from protocol.numerics.tail_bounds import binomial_upper_quantile
from protocol.oracles.limits import (
    MAX_FULLY_DECODED_DOMAIN,
    check_domain,
    check_epsilon,
    check_report_shape,
)
from protocol.randomness import RandomWords

REPORTS_PER_BATCH = 2**13  # a million values take seconds

_MAX_DECODE_BATCH = 2**20
_NS_PER_CELL = 4.0  # to make and add a cell of a batch
_ENCODE_BATCH = 2**15  # reports whose words stay in the processor's cache
_MAX_VOTES_IN_MEMORY = 2**22
_MAX_LISTED_REPORTS = 2**20

OracleParameters: TypeAlias = dict[str, str | bool | int | float]


@dataclass(frozen=True, eq=False)
class ReportCounts:
    """Cells (c,) that a server keeps of a number of `reports`; cells of two batches are added.

    They are the support of the `candidates`; without these, the oracle's own for all values.
    """

    oracle: "Oracle"
    reports: int
    cells: Support = field(repr=False)
    candidates: ItemValues | None = field(default=None, repr=False)

    def __add__(self, other: "ReportCounts") -> "ReportCounts":
        """Return the counts of both batches; ValueError if oracles or candidates differ."""
        if self.oracle != other.oracle:
            raise ValueError(f"counts of {other.oracle} do not add to those of {self.oracle}")
        if not _same_candidates(self.candidates, other.candidates):
            raise ValueError("counts of different candidates do not add")
        cells = self.cells + other.cells
        return ReportCounts(self.oracle, self.reports + other.reports, cells, self.candidates)


def _same_candidates(first: ItemValues | None, second: ItemValues | None) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


@dataclass(frozen=True)
class Oracle(ABC):
    """A frequency oracle over the values 0 .. `domain` - 1, with `epsilon` for each report."""

    name: ClassVar[str]
    epsilon: float
    domain: int

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_domain(self.domain)

    @property
    def parameters(self) -> OracleParameters:
        """Return the parameters that define the oracle, as JSON; the name is under `oracle`."""
        values = {parameter.name: getattr(self, parameter.name) for parameter in fields(self)}
        return {"oracle": self.name, **values}

    @property
    @abstractmethod
    def bits(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Return the bytes of a report: its bits, little-endian, then zeros."""
        return -(-self.bits // 8)

    @property
    @abstractmethod
    def mean_vote_if_held(self) -> Fraction:
        """Return p, the mean vote for the value that a device holds."""

    @property
    @abstractmethod
    def mean_vote_if_other(self) -> Fraction:
        """Return q, the mean vote for any other value."""

    @property
    def cells(self) -> int:
        """Return the number of cells that count the whole dictionary."""
        return self.domain

    @property
    def encode_batch(self) -> int:
        return _ENCODE_BATCH

    @property
    def ns_per_vote(self) -> float:
        """Return the approximate nanoseconds of one vote for one candidate."""
        return 10.0

    @abstractmethod
    def decode_ns(self, reports: int) -> float:
        """Return the approximate nanoseconds of one core for the whole dictionary in one batch."""

    @property
    def reports_per_batch(self) -> int:
        """Return the number of reports of one batch of a server, so that no batch takes long."""
        return max(REPORTS_PER_BATCH, min(_MAX_DECODE_BATCH, self._batch_cells // 8))

    @property
    def _batch_cells(self) -> int:
        return 0  # the cells that cost a batch more than its reports

    def batched_decode_ns(self, reports: int) -> float:
        """Return `decode_ns` for batches of at most `reports_per_batch`."""
        batches = -(-reports // self.reports_per_batch)
        return self.decode_ns(reports) + (batches - 1) * _NS_PER_CELL * self.cells

    @abstractmethod
    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the exact probability of each report, a little-endian integer, given `value`.

        Raises ValueError if there are more than 2^20 reports, or `value` is not in the domain.
        """

    @abstractmethod
    def _perturb(self, values: ItemValues, chance: RandomWords) -> PackedReports: ...

    @abstractmethod
    def _check(self, reports: PackedReports) -> None:
        """Raise ValueError if a report is out of range; the shape is right."""

    @abstractmethod
    def _votes(self, reports: PackedReports, candidates: ItemValues) -> Votes: ...

    @abstractmethod
    def _aggregate(self, reports: PackedReports) -> Support:
        """Return the oracle's own cells."""

    def _support(self, cells: Support) -> Support:
        """Return the support of the whole dictionary (d,) from the oracle's own cells."""
        return cells

    def perturb(self, values: ItemValues, chance: RandomWords) -> PackedReports:
        """Return one packed report for each value, shape `(n, nbytes)`.

        Raises ValueError if a value is not an integer of the domain.
        """
        checked = self._checked_values(values, "values")
        reports = np.empty((len(checked), self.nbytes), np.uint8)
        for start in range(0, len(checked), self.encode_batch):
            batch = slice(start, start + self.encode_batch)
            reports[batch] = self._perturb(checked[batch], chance)
        return reports

    def aggregate(
        self, reports: PackedReports, candidates: ItemValues | None = None
    ) -> ReportCounts:
        """Return the counts of `reports`, of all values or of the distinct `candidates`.

        Candidates are counted one by one if that costs less than counting all values.

        Raises:
            ValueError: if a report is malformed, a candidate is repeated or not in the domain, or
                the domain is too large to be counted without candidates.
        """
        self.check(reports)
        if candidates is None:
            if self.domain > MAX_FULLY_DECODED_DOMAIN:
                raise ValueError(f"candidates must be named: a domain of {self.domain:,} is large")
            return ReportCounts(self, len(reports), self._aggregate(reports))
        checked = self._checked_values(candidates, "candidates")
        if len(np.unique(checked)) != len(checked):
            raise ValueError("candidates must be distinct")
        one_by_one_ns = len(reports) * len(checked) * self.ns_per_vote
        cells: Support
        if self.domain <= MAX_FULLY_DECODED_DOMAIN and one_by_one_ns > self.decode_ns(len(reports)):
            cells = self._support(self._aggregate(reports))[checked]
        else:
            cells = self._candidate_support(reports, checked)
        return ReportCounts(self, len(reports), cells, checked)

    def check(self, reports: PackedReports) -> None:
        """Raise ValueError if `reports` have a wrong length, or a field is out of its range."""
        check_report_shape(reports, self.nbytes)
        self._check(reports)

    def votes(self, reports: PackedReports, candidates: ItemValues) -> Votes:
        """Return the vote of each report for each candidate, `(n, k)`; raises as `aggregate`."""
        self.check(reports)
        return self._votes(reports, self._checked_values(candidates, "candidates"))

    def support(self, counts: ReportCounts) -> Support:
        """Return S: the sum of all votes for each value, or for each of the candidates."""
        self._check_counts(counts)
        return self._support(counts.cells) if counts.candidates is None else counts.cells

    def frequencies(self, counts: ReportCounts) -> Frequencies:
        """Return the unbiased estimates, which may be below 0 or above 1.

        Raises ValueError if there are no reports, or the counts are of another oracle.
        """
        support = self.support(counts)
        if not counts.reports:
            raise ValueError("no reports: there is nothing to estimate from")
        lift = float(self.mean_vote_if_held - self.mean_vote_if_other)
        estimates: Frequencies = (support / counts.reports - float(self.mean_vote_if_other)) / lift
        return estimates

    def estimate(self, reports: PackedReports, candidates: ItemValues | None = None) -> Frequencies:
        """Return the estimated frequencies; raises as `aggregate` and `frequencies`."""
        return self.frequencies(self.aggregate(reports, candidates))

    @cached_property
    def scaled_variances(self) -> tuple[float, float]:
        """Return n times the variance at frequencies 0 and 1; it is linear between them."""
        p, q = self.mean_vote_if_held, self.mean_vote_if_other
        return float(q * (1 - q) / (p - q) ** 2), float(p * (1 - p) / (p - q) ** 2)

    def variance(self, frequencies: Frequencies, n: int) -> Frequencies:
        """Return the variance of the estimates from `n` >= 1 reports, by the *true* frequencies."""
        if n < 1:
            raise ValueError(f"n must be 1 or more, not {n}")
        if not ((frequencies >= 0) & (frequencies <= 1)).all():
            raise ValueError("frequencies must be from 0 to 1")
        absent, present = self.scaled_variances
        variances: Frequencies = (absent + (present - absent) * frequencies) / n
        return variances

    def interval(
        self, counts: ReportCounts, level: float = 0.95
    ) -> tuple[Frequencies, Frequencies]:
        """Return the ends of confidence intervals of the true frequencies; raises as `frequencies`.

        They hold each f from which the estimate is at most z standard errors away, by the variance
        at f (Wilson, JASA 1927, for proportions), and are not cut at 0 or 1. An interval has
        probability `level` for a value that is chosen beforehand.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, not {level}")
        estimates, z = self.frequencies(counts), float(special.ndtri((1 - level) / 2))
        absent, present = self.scaled_variances
        slope = (present - absent) / counts.reports
        cut = estimates - np.clip(estimates, 0, 1)
        variances = self.estimated_variances(counts) + slope * cut
        shift = z**2 * slope / 2
        margin = np.sqrt(np.maximum(z**2 * variances + shift**2, 0))
        return estimates + shift - margin, estimates + shift + margin

    def variances(self, frequencies: Frequencies, n: int) -> Frequencies:
        """Return the exact variance of every value (d,), given the true frequencies of all.

        It equals `variance`, unless the oracle's values disturb each other unequally.
        """
        if frequencies.shape != (self.domain,):
            raise ValueError(f"frequencies must be of all {self.domain:,} values")
        return self.variance(frequencies, n)

    def estimated_variances(self, counts: ReportCounts) -> Frequencies:
        """Return the variances at the estimated frequencies; raises as `frequencies`."""
        return self.variance(np.clip(self.frequencies(counts), 0, 1), counts.reports)

    def detection_threshold(self, n: int, tail: float) -> float:
        """Return a bound that the estimate of an absent value exceeds with probability `tail`.

        The bound is exact where votes are 0 or 1, since S is binomial then.
        """
        q = float(self.mean_vote_if_other)
        return (binomial_upper_quantile(n, q, tail) / n - q) / float(
            self.mean_vote_if_held - self.mean_vote_if_other
        )

    def _check_counts(self, counts: ReportCounts) -> None:
        if counts.oracle != self:
            raise ValueError(f"counts of {counts.oracle} cannot be used by {self}")
        expected = self._expected_cells(counts.candidates)
        if counts.cells.shape != (expected,):
            raise ValueError(f"counts must have {expected} cells, not {counts.cells.shape}")

    def _expected_cells(self, candidates: ItemValues | None) -> int:
        return self.cells if candidates is None else len(candidates)

    def _candidate_support(self, reports: PackedReports, candidates: ItemValues) -> Support:
        cells = np.zeros(len(candidates), np.int64)
        step = max(1, _MAX_VOTES_IN_MEMORY // max(1, len(candidates)))
        for start in range(0, len(reports), step):
            votes = self._votes(reports[start : start + step], candidates)
            cells += votes.sum(axis=0, dtype=np.int64)
        return cells

    def _checked_values(self, values: ItemValues, name: str) -> ItemValues:
        if not np.issubdtype(values.dtype, np.integer) or values.ndim != 1:
            raise ValueError(f"{name} must be integers of shape (n,)")
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < self.domain:
            raise ValueError(f"{name} must be from 0 to {self.domain - 1}")
        return values.astype(np.uint64)

    def _check_listable(self, value: int, reports: int) -> None:
        if not 0 <= value < self.domain:
            raise ValueError(f"value must be from 0 to {self.domain - 1}, not {value}")
        if reports > _MAX_LISTED_REPORTS:
            raise ValueError(f"{reports:,} reports are too many to list")
