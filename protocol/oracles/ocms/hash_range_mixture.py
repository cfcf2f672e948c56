"""OCMS with two hash ranges: each device draws one of them, to reach the real optimum.

A device that hashes to m_1 with probability `share` and otherwise to m_2 has the mean of both
variances, at every frequency, which no integer m reaches (`hash_range.py`):

    report   =  (range, report of that sketch)      log2 of the sum of both numbers of reports
    f^       =  (1/n) sum over both of (S_i - n_i q_i) / (p_i - q_i)

The range is drawn independently of the value, so it reveals nothing.

Source: ours.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, Self

import numpy as np

from protocol.numerics.array_types import (
    Codes,
    Frequencies,
    ItemValues,
    PackedReports,
    Support,
    Votes,
)
from protocol.numerics.tail_bounds import bernstein_upper_bound, check_tail_probability
from protocol.oracles.base_oracles import IntegerReportOracle
from protocol.oracles.ocms.hash_range import (
    adjacent_integers,
    check_hash_range,
    hash_prime,
    pair_for_mse,
    real_m_for_mse,
)
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.ocms_gf import OcmsGf, adjacent_field_orders
from protocol.oracles.oracle import ReportCounts
from protocol.randomness import PROBABILITY_ONE, RandomWords, bernoulli

HashKind = Literal["prime", "gf"]


@dataclass(frozen=True)
class OcmsMixture(IntegerReportOracle):
    """OCMS to `first` symbols with probability `share`, otherwise to `second` symbols."""

    name = "ocms-mixture"
    first: int
    second: int
    share: float
    hashing: HashKind = "gf"

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share must be between 0 and 1, not {self.share}")
        if self.first == self.second:
            raise ValueError(f"first and second must differ, not both be {self.first}")
        if self.hashing not in ("prime", "gf"):
            raise ValueError(f"hashing must be prime or gf, not {self.hashing}")
        IntegerReportOracle.__post_init__(self)

    @classmethod
    def for_mse(
        cls, epsilon: float, domain: int, max_frequency: float = 1.0, hashing: HashKind = "gf"
    ) -> Self:
        """Return the mixture of the smallest worst case; ValueError if one range is as good."""
        real = real_m_for_mse(epsilon, max_frequency)
        pair = pair_for_mse(
            epsilon,
            adjacent_field_orders(real) if hashing == "gf" else adjacent_integers(real),
            max_frequency,
        )
        check_hash_range(max(pair.first, pair.second), domain)
        if not 0 < pair.share < 1:
            m = pair.first if pair.share == 1 else pair.second
            raise ValueError(
                f"epsilon must be one for which two hash ranges are better than m = {m} alone, "
                f"not {epsilon:g}: take ocms-gf"
            )
        return cls(epsilon, domain, pair.first, pair.second, pair.share, hashing)

    @cached_property
    def parts(self) -> tuple[Ocms | OcmsGf, Ocms | OcmsGf]:
        first, second = (self._part(m) for m in (self.first, self.second))
        return first, second

    def _part(self, m: int) -> Ocms | OcmsGf:
        if self.hashing == "gf":
            return OcmsGf(self.epsilon, self.domain, m)
        return Ocms(self.epsilon, self.domain, m, hash_prime(self.domain))

    @property
    def possible_reports(self) -> int:
        return self.parts[0].possible_reports + self.parts[1].possible_reports

    @property
    def mean_vote_if_held(self) -> Fraction:
        return self._weighted_mean(*(part.mean_vote_if_held for part in self.parts))

    @property
    def mean_vote_if_other(self) -> Fraction:
        return self._weighted_mean(*(part.mean_vote_if_other for part in self.parts))

    def _weighted_mean(self, first: Fraction, second: Fraction) -> Fraction:
        share = Fraction(self._share_of_2_64, PROBABILITY_ONE)
        return share * first + (1 - share) * second

    @property
    def _share_of_2_64(self) -> int:
        return int(self.share * PROBABILITY_ONE)

    @cached_property
    def scaled_variances(self) -> tuple[float, float]:
        first, second = (part.scaled_variances for part in self.parts)
        absent, present = (
            self.share * a + (1 - self.share) * b for a, b in zip(first, second, strict=True)
        )
        return absent, present

    def detection_threshold(self, n: int, tail: float) -> float:
        check_tail_probability(n, tail)
        lifts = [
            float(
                (1 - part.mean_vote_if_other) / (part.mean_vote_if_held - part.mean_vote_if_other)
            )
            for part in self.parts
        ]
        return bernstein_upper_bound(n * self.scaled_variances[0], max(lifts), tail) / n

    @property
    def cells(self) -> int:
        return 1 + self.parts[0].cells + self.parts[1].cells

    @property
    def ns_per_vote(self) -> float:
        return max(part.ns_per_vote for part in self.parts)

    def decode_ns(self, reports: int) -> float:
        return sum(part.decode_ns(reports // 2) for part in self.parts)

    @property
    def reports_per_batch(self) -> int:
        return max(part.reports_per_batch for part in self.parts)

    def batched_decode_ns(self, reports: int) -> float:
        return sum(part.batched_decode_ns(max(1, reports // 2)) for part in self.parts)

    def distribution(self, value: int) -> dict[int, Fraction]:
        self._check_listable(value, self.possible_reports)
        first, second = (part.distribution(value) for part in self.parts)
        share = Fraction(self._share_of_2_64, PROBABILITY_ONE)
        offset = self.parts[0].possible_reports
        # There are few different probabilities, and products of fractions are slow.
        of_first = {p: share * p for p in set(first.values())}
        of_second = {p: (1 - share) * p for p in set(second.values())}
        return {code: of_first[p] for code, p in first.items()} | {
            offset + code: of_second[p] for code, p in second.items()
        }

    def aggregate(
        self, reports: PackedReports, candidates: ItemValues | None = None
    ) -> ReportCounts:
        codes = self.codes(reports)
        counts = [
            part.aggregate(part.pack(part_codes), candidates)
            for part, part_codes in zip(self.parts, self._split_codes(codes), strict=True)
        ]
        cells = np.concatenate([[counts[0].reports], *(count.cells for count in counts)])
        return ReportCounts(self, len(reports), cells.astype(np.int64), counts[0].candidates)

    def support(self, counts: ReportCounts) -> Support:
        first, second = self._split_counts(counts)
        return self.parts[0].support(first) + self.parts[1].support(second)

    def frequencies(self, counts: ReportCounts) -> Frequencies:
        if not counts.reports:
            raise ValueError("no reports: there is nothing to estimate from")
        shares = [
            count.reports / counts.reports * part.frequencies(count)
            for part, count in zip(self.parts, self._split_counts(counts), strict=True)
            if count.reports
        ]
        total: Frequencies = np.sum(shares, axis=0)
        return total

    def _split_counts(self, counts: ReportCounts) -> tuple[ReportCounts, ReportCounts]:
        self._check_counts(counts)
        first, second = self.parts
        first_reports, candidates = int(counts.cells[0]), counts.candidates
        middle = 1 + (first.cells if candidates is None else len(candidates))
        return (
            ReportCounts(first, first_reports, counts.cells[1:middle], candidates),
            ReportCounts(second, counts.reports - first_reports, counts.cells[middle:], candidates),
        )

    def _expected_cells(self, candidates: ItemValues | None) -> int:
        return self.cells if candidates is None else 1 + 2 * len(candidates)

    def _split_codes(self, codes: Codes) -> tuple[Codes, Codes]:
        offset = np.uint64(self.parts[0].possible_reports)
        return codes[codes < offset], codes[codes >= offset] - offset

    def _encode(self, values: ItemValues, chance: RandomWords) -> Codes:
        first, second = self.parts
        is_first = bernoulli(chance, self._share_of_2_64, len(values))
        codes = np.empty(len(values), np.uint64)
        codes[is_first] = first.codes(first.perturb(values[is_first], chance))
        codes[~is_first] = second.codes(second.perturb(values[~is_first], chance))
        codes[~is_first] += np.uint64(first.possible_reports)
        return codes

    def _code_votes(self, codes: Codes, candidates: ItemValues) -> Votes:
        votes = np.empty((len(codes), len(candidates)), np.int8)
        is_first = codes < np.uint64(self.parts[0].possible_reports)
        rows = is_first, ~is_first
        for part, row, part_codes in zip(self.parts, rows, self._split_codes(codes), strict=True):
            votes[row] = part.votes(part.pack(part_codes), candidates)
        return votes

    def _count_codes(self, codes: Codes) -> Support:
        return self.aggregate(self.pack(codes)).cells
