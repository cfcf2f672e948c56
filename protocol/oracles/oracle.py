"""What every frequency oracle is: one private report a device, from which a server counts.

A device holds one value of a dictionary 0 .. d-1 and sends one report, at random. For any two
values x, x' that it might hold and any report y,

    P(y | x)  <=  e^epsilon P(y | x')          epsilon-local differential privacy

so the *neighbouring relation* is the replacement of the device's one value: whoever sees the
report, the server included, learns little of which it is. A second report of the same value
adds its epsilon to the first.

The server asks of each report which values it speaks for. The sum of these votes is the
*support* S(x), and with n reports

    f^(x)  =  (S(x)/n - q) / (p - q)           p, q: mean vote if the value is x, if it is another
    n Var  =  [f p(1-p) + (1-f) q(1-q)] / (p - q)^2

is unbiased [Wang17, theorem 2] if q is the same for all pairs of values, as it is where hash
functions are drawn anew for each report from a family with one collision probability [Pan24,
corollary 3.1]. Variance is that of the reports for given values; it is linear in f. What an
oracle knows of its reports is their `Counts`, which add: a server may take reports in batches,
in any order, and keep nothing else of them.

Chance is a callable of uniform words (`protocol/chance.py`), and odds are integers of 2^64
(`odds.py`): no floating-point number comes between a value and its report.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.special import ndtri

from protocol.chance import Chance
from protocol.oracles.counts import (
    Counts,
    Frequencies,
    Parameters,
    Reports,
    Support,
    Values,
    Votes,
)
from protocol.oracles.limits import MOST_WHOLE, check_domain, check_epsilon
from protocol.oracles.tails import binomial_bar
from protocol.reporting import READ_AT_ONCE

_MOST_READ_AT_ONCE = 2**20
_CELL_NS = 4.0  # to make and add a cell of a batch
_ROWS = 2**15  # reports at once: their words stay in the processor's cache
_MOST_VOTES = 2**22  # at once
_MOST_REPORTS_LISTED = 2**20


@dataclass(frozen=True)
class Oracle(ABC):
    """A frequency oracle over the values 0 .. `domain` - 1, at `epsilon` a report.

    Raises:
        ValueError: at the making, if a parameter is out of the range that the message names.
    """

    name: ClassVar[str]
    epsilon: float
    domain: int

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_domain(self.domain)

    @property
    def parameters(self) -> Parameters:
        """Return all that defines the oracle, its name under `oracle`, as JSON has it."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {"oracle": self.name, **named}

    @property
    def claim(self) -> str:
        """Return what a report promises, and against which change."""
        return f"{self.epsilon:g}-local differential privacy, replacing the device's one value"

    @property
    @abstractmethod
    def bits(self) -> int:
        """Return the bits of a report."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of a report: its bits, little-endian, the rest of the last is 0."""
        return -(-self.bits // 8)

    @property
    @abstractmethod
    def true_odds(self) -> Fraction:
        """Return p, the mean vote for the value that a device holds."""

    @property
    @abstractmethod
    def false_odds(self) -> Fraction:
        """Return q, the mean vote for any other value."""

    @property
    def cells(self) -> int:
        """Return how many cells count the whole dictionary."""
        return self.domain

    @property
    def batch(self) -> int:
        """Return how many reports are made at once."""
        return _ROWS

    @property
    def vote_ns(self) -> float:
        """Return about how many nanoseconds one vote for one candidate takes."""
        return 10.0

    @abstractmethod
    def whole_ns(self, reports: int) -> float:
        """Return the nanoseconds, about, of one core for the whole dictionary, read at once."""

    @property
    def read_at_once(self) -> int:
        """Return how many reports a server reads at once, so that it does not wait for too long.

        Where a report takes no time beside the cells of a batch, as many as make up for these.
        """
        return READ_AT_ONCE

    def batched_ns(self, reports: int) -> float:
        """Return what `whole_ns` is if no more than `read_at_once` are read at once."""
        batches = -(-reports // self.read_at_once)
        return self.whole_ns(reports) + (batches - 1) * _CELL_NS * self.cells

    @abstractmethod
    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the exact odds of each report, as a little-endian integer, given `value`.

        Raises:
            ValueError: if there are more than 2^20 reports, or `value` is not in the domain.
        """

    @abstractmethod
    def _perturb(self, values: Values, chance: Chance) -> Reports: ...

    @abstractmethod
    def _check(self, reports: Reports) -> None:
        """Refuse reports out of range; their shape is right."""

    @abstractmethod
    def _votes(self, reports: Reports, candidates: Values) -> Votes: ...

    @abstractmethod
    def _gather(self, reports: Reports) -> Support:
        """Return the oracle's own cells."""

    def _support(self, cells: Support) -> Support:
        """Return the support of the whole dictionary (d,), by the oracle's own cells."""
        return cells

    def perturb(self, values: Values, chance: Chance) -> Reports:
        """Return one report a value, as they travel: `(n, nbytes)`.

        Raises:
            ValueError: if a value is not an integer of the domain.
        """
        checked = self._within(values, "values")
        made = np.empty((len(checked), self.nbytes), np.uint8)
        for start in range(0, len(checked), self.batch):
            some = slice(start, start + self.batch)
            made[some] = self._perturb(checked[some], chance)
        return made

    def gather(self, reports: Reports, candidates: Values | None = None) -> Counts:
        """Return the counts of `reports`, of all values or of the distinct `candidates`.

        Few candidates are asked for one by one; if that costs more than all values together,
        all are counted and the candidates' kept.

        Raises:
            ValueError: if a report is malformed, a candidate not in the domain or named twice, or
                the domain too large for all of it.
        """
        self.check(reports)
        if candidates is None:
            if self.domain > MOST_WHOLE:
                raise ValueError(f"candidates must be named: a domain of {self.domain:,} is large")
            return Counts(self, len(reports), self._gather(reports))
        wanted = self._within(candidates, "candidates")
        if len(np.unique(wanted)) != len(wanted):
            raise ValueError("candidates must be distinct")
        asking = len(reports) * len(wanted) * self.vote_ns
        cells: Support
        if self.domain <= MOST_WHOLE and asking > self.whole_ns(len(reports)):
            cells = self._support(self._gather(reports))[wanted]
        else:
            cells = self._polled(reports, wanted)
        return Counts(self, len(reports), cells, wanted)

    def check(self, reports: Reports) -> None:
        """Refuse what is no batch of reports.

        Raises:
            ValueError: if they have a wrong length, or a field of one is out of its range.
        """
        if reports.dtype != np.uint8 or reports.ndim != 2 or reports.shape[1] != self.nbytes:
            raise ValueError(
                f"reports must be bytes of shape (n, {self.nbytes}), "
                f"not {reports.dtype} of shape {reports.shape}"
            )
        self._check(reports)

    def votes(self, reports: Reports, candidates: Values) -> Votes:
        """Return what each report says of each candidate, `(n, k)`; raises as `gather`."""
        self.check(reports)
        return self._votes(reports, self._within(candidates, "candidates"))

    def support(self, counts: Counts) -> Support:
        """Return S: the sum of all votes for each value, or for each of the candidates.

        Raises:
            ValueError: if the counts are of another oracle, or not as many as its cells.
        """
        self._own(counts)
        return self._support(counts.cells) if counts.candidates is None else counts.cells

    def frequencies(self, counts: Counts) -> Frequencies:
        """Return the unbiased estimates, which may be below 0 or above 1.

        Raises:
            ValueError: if there are no reports, or the counts are of another oracle.
        """
        support = self.support(counts)
        if not counts.reports:
            raise ValueError("no reports: there is nothing to estimate from")
        lift = float(self.true_odds - self.false_odds)
        found: Frequencies = (support / counts.reports - float(self.false_odds)) / lift
        return found

    def estimate(self, reports: Reports, candidates: Values | None = None) -> Frequencies:
        """Return the frequencies of all values, or of `candidates`; raises as its two steps."""
        return self.frequencies(self.gather(reports, candidates))

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Return n times the variance at frequencies 0 and 1; it is linear between them."""
        p, q = self.true_odds, self.false_odds
        return float(q * (1 - q) / (p - q) ** 2), float(p * (1 - p) / (p - q) ** 2)

    def variance(self, frequencies: Frequencies, n: int) -> Frequencies:
        """Return the variance of the estimates from `n` reports, by the *true* frequencies.

        Raises:
            ValueError: if `n` is not 1 or more, or a frequency not within 0 and 1.
        """
        if n < 1:
            raise ValueError(f"n must be 1 or more, not {n}")
        if not ((frequencies >= 0) & (frequencies <= 1)).all():
            raise ValueError("frequencies must be within 0 and 1")
        absent, present = self.spread
        found: Frequencies = (absent + (present - absent) * frequencies) / n
        return found

    def interval(
        self,
        estimates: Frequencies,
        n: int,
        level: float = 0.95,
        variances: Frequencies | None = None,
    ) -> tuple[Frequencies, Frequencies]:
        """Return the ends of intervals that hold the true frequencies with odds of `level`.

        They are normal, by `variances` (or else by the variance at each estimate), and are not
        cut. One holds for a value that is named beforehand.

        Raises:
            ValueError: if `n` is not 1 or more, or `level` not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, not {level}")
        told = self.variance(np.clip(estimates, 0, 1), n) if variances is None else variances
        margin = -float(ndtri((1 - level) / 2)) * np.sqrt(told)
        return estimates - margin, estimates + margin

    def variances(self, frequencies: Frequencies, n: int) -> Frequencies:
        """Return the exact variance of every value (d,), by the true frequencies of all of them.

        It is `variance`, unless an oracle's values disturb each other unequally.

        Raises:
            ValueError: as `variance`, or if `frequencies` are not those of all values.
        """
        if frequencies.shape != (self.domain,):
            raise ValueError(f"frequencies must be of all {self.domain:,} values")
        return self.variance(frequencies, n)

    def estimated_variances(self, counts: Counts) -> Frequencies:
        """Return the variances of `frequencies(counts)`, at the estimates; raises as these."""
        return self.variance(np.clip(self.frequencies(counts), 0, 1), counts.reports)

    def bar(self, n: int, tail: float) -> float:
        """Return what the estimate of a value nobody holds exceeds with odds of `tail` at most.

        By the exact tail where votes are 0 or 1, since S is binomial then.

        Raises:
            ValueError: if `n` is below 1, or `tail` not above 0 and below 1.
        """
        q = float(self.false_odds)
        return (binomial_bar(n, q, tail) / n - q) / float(self.true_odds - self.false_odds)

    def _many_at_once(self, cells: int) -> int:
        """Return how many reports to read at once where `cells` cost a batch more than these."""
        return max(READ_AT_ONCE, min(_MOST_READ_AT_ONCE, cells // 8))

    def _own(self, counts: Counts) -> None:
        if counts.oracle != self:
            raise ValueError(f"counts of {counts.oracle} say nothing to {self}")
        wanted = self._shape(counts.candidates)
        if counts.cells.shape != (wanted,):
            raise ValueError(f"counts must have {wanted} cells, not {counts.cells.shape}")

    def _shape(self, candidates: Values | None) -> int:
        return self.cells if candidates is None else len(candidates)

    def _polled(self, reports: Reports, candidates: Values) -> Support:
        """Return the sums of the candidates' votes, a part of the reports at a time."""
        cells, step = np.zeros(len(candidates), np.int64), _MOST_VOTES // max(1, len(candidates))
        for start in range(0, len(reports), max(1, step)):
            votes = self._votes(reports[start : start + max(1, step)], candidates)
            cells += votes.sum(axis=0, dtype=np.int64)
        return cells

    def _within(self, values: Values, what: str) -> Values:
        if not np.issubdtype(values.dtype, np.integer) or values.ndim != 1:
            raise ValueError(f"{what} must be integers of shape (n,)")
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < self.domain:
            raise ValueError(f"{what} must be within 0 and {self.domain - 1}")
        return values.astype(np.uint64)

    def _listable(self, value: int, reports: int) -> None:
        if not 0 <= value < self.domain:
            raise ValueError(f"value must be within 0 and {self.domain - 1}, not {value}")
        if reports > _MOST_REPORTS_LISTED:
            raise ValueError(f"{reports:,} reports are too many to list")
