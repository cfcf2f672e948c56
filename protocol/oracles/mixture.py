"""OCMS with two hash ranges: each device draws which, so that the worst case is the real optimum.

No integer m has the variance of the best real one (`optimal.py`), but a device that hashes to
m_1 with odds of `share`, else to m_2, has the mean of both variances, at every frequency:

    report   =  (which, report of that sketch)      log2 of the sum of both numbers of reports
    f^       =  (1/n) sum over both of (S_i - n_i q_i) / (p_i - q_i)

Which is drawn before the value is looked at, so it tells nothing. For OCMS over GF(q) it makes
up for the gaps between fields as well: at epsilon 3, where m = 6 is the best and no field has 6
elements, GF(5) and GF(7) together are better than that.

Source: ours.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, Self

import numpy as np

from protocol.chance import Chance, happens
from protocol.oracles.coded import Coded
from protocol.oracles.counts import Codes, Counts, Frequencies, Reports, Support, Values, Votes
from protocol.oracles.inner_product import OcmsGf, orders
from protocol.oracles.ocms import Ocms, check_range, prime_for
from protocol.oracles.odds import WHOLE
from protocol.oracles.optimal import integers, mse_pair, mse_range
from protocol.oracles.tails import bernstein_bar, check_tail

Hashing = Literal["prime", "gf"]


@dataclass(frozen=True)
class OcmsMixture(Coded):
    """OCMS to `first` symbols with odds of `share`, else to `second`, by one kind of hashing."""

    name = "ocms-mixture"
    first: int
    second: int
    share: float
    hashing: Hashing = "gf"

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share must be between 0 and 1, not {self.share}")
        if self.first == self.second:
            raise ValueError(f"first and second must be two ranges, not {self.first} twice")
        if self.hashing not in ("prime", "gf"):
            raise ValueError(f"hashing must be prime or gf, not {self.hashing}")
        Coded.__post_init__(self)

    @classmethod
    def for_mse(
        cls, epsilon: float, domain: int, most: float = 1.0, hashing: Hashing = "gf"
    ) -> Self:
        """Return the mixture of the least worst case if no frequency is above `most`.

        Raises:
            ValueError: if a parameter is out of range, the domain too small for hashing, or one
                range alone is as good.
        """
        real = mse_range(epsilon, most)
        pair = mse_pair(epsilon, orders(real) if hashing == "gf" else integers(real), most)
        check_range(max(pair.first, pair.second), domain)
        if not 0 < pair.share < 1:
            one = pair.first if pair.share == 1 else pair.second
            raise ValueError(
                f"epsilon must be one that two hash ranges are better for than m = {one} alone is, "
                f"not {epsilon:g}: take ocms-gf"
            )
        return cls(epsilon, domain, pair.first, pair.second, pair.share, hashing)

    @cached_property
    def parts(self) -> tuple[Ocms | OcmsGf, Ocms | OcmsGf]:
        """Return both sketches."""
        first, second = (self._part(m) for m in (self.first, self.second))
        return first, second

    def _part(self, m: int) -> Ocms | OcmsGf:
        if self.hashing == "gf":
            return OcmsGf(self.epsilon, self.domain, m)
        return Ocms(self.epsilon, self.domain, m, prime_for(self.domain))

    @property
    def space(self) -> int:
        """Return the number of reports: those of the first sketch come first."""
        return self.parts[0].space + self.parts[1].space

    @property
    def true_odds(self) -> Fraction:
        """Return the mean vote for the value that a device holds."""
        return self._mean(*(part.true_odds for part in self.parts))

    @property
    def false_odds(self) -> Fraction:
        """Return the mean vote for another."""
        return self._mean(*(part.false_odds for part in self.parts))

    def _mean(self, first: Fraction, second: Fraction) -> Fraction:
        share = Fraction(self._of_2_64, WHOLE)
        return share * first + (1 - share) * second

    @property
    def _of_2_64(self) -> int:
        return int(self.share * WHOLE)

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Return n times the variance at 0 and 1: means of the parts'."""
        (absent, present), (absent_too, present_too) = (part.spread for part in self.parts)
        rest = 1 - self.share
        return (
            self.share * absent + rest * absent_too,
            self.share * present + rest * present_too,
        )

    def bar(self, n: int, tail: float) -> float:
        """Return the bar by Bernstein's bound: two kinds of votes of different weight add up."""
        check_tail(n, tail)
        lifts = [
            float((1 - part.false_odds) / (part.true_odds - part.false_odds)) for part in self.parts
        ]
        return bernstein_bar(n * self.spread[0], max(lifts), tail) / n

    @property
    def cells(self) -> int:
        """Return one for how many reports are the first's, and both sketches' cells."""
        return 1 + self.parts[0].cells + self.parts[1].cells

    @property
    def vote_ns(self) -> float:
        """Return the nanoseconds of the slower vote."""
        return max(part.vote_ns for part in self.parts)

    def whole_ns(self, reports: int) -> float:
        """Return the nanoseconds of both sketches."""
        return sum(part.whole_ns(reports // 2) for part in self.parts)

    @property
    def read_at_once(self) -> int:
        """Return how many reports a server reads at once."""
        return max(part.read_at_once for part in self.parts)

    def batched_ns(self, reports: int) -> float:
        """Return the nanoseconds of both sketches' batches."""
        return sum(part.batched_ns(max(1, reports // 2)) for part in self.parts)

    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the odds of each report of either sketch."""
        self._listable(value, self.space)
        first, second = (part.distribution(value) for part in self.parts)
        share, offset = Fraction(self._of_2_64, WHOLE), self.parts[0].space
        ours = {odds: share * odds for odds in set(first.values())}
        theirs = {odds: (1 - share) * odds for odds in set(second.values())}
        found = {code: ours[odds] for code, odds in first.items()}
        return found | {offset + code: theirs[odds] for code, odds in second.items()}

    def gather(self, reports: Reports, candidates: Values | None = None) -> Counts:
        """Return the counts of `reports`: of the first sketch how many, its cells, the second's.

        Raises:
            ValueError: as `Oracle.gather`.
        """
        codes = self.codes(reports)
        counts = [
            part.gather(part.pack(some), candidates)
            for part, some in zip(self.parts, self._split(codes), strict=True)
        ]
        cells = np.concatenate([[counts[0].reports], *(count.cells for count in counts)])
        return Counts(self, len(reports), cells.astype(np.int64), counts[0].candidates)

    def support(self, counts: Counts) -> Support:
        """Return the sum of all votes; raises as `Oracle.support`."""
        first, second = self._apart(counts)
        return self.parts[0].support(first) + self.parts[1].support(second)

    def frequencies(self, counts: Counts) -> Frequencies:
        """Return the unbiased estimates; raises as `Oracle.frequencies`."""
        if not counts.reports:
            raise ValueError("no reports: there is nothing to estimate from")
        shares = [
            count.reports / counts.reports * part.frequencies(count)
            for part, count in zip(self.parts, self._apart(counts), strict=True)
            if count.reports
        ]
        total: Frequencies = np.sum(shares, axis=0)
        return total

    def _apart(self, counts: Counts) -> tuple[Counts, Counts]:
        self._own(counts)
        first, second = self.parts
        firsts, named = int(counts.cells[0]), counts.candidates
        middle = 1 + (first.cells if named is None else len(named))
        return (
            Counts(first, firsts, counts.cells[1:middle], named),
            Counts(second, counts.reports - firsts, counts.cells[middle:], named),
        )

    def _shape(self, candidates: Values | None) -> int:
        return self.cells if candidates is None else 1 + 2 * len(candidates)

    def _split(self, codes: Codes) -> tuple[Codes, Codes]:
        offset = np.uint64(self.parts[0].space)
        return codes[codes < offset], codes[codes >= offset] - offset

    def _encode(self, values: Values, chance: Chance) -> Codes:
        first, second = self.parts
        is_first = happens(chance, self._of_2_64, len(values))
        codes = np.empty(len(values), np.uint64)
        codes[is_first] = first.codes(first.perturb(values[is_first], chance))
        codes[~is_first] = second.codes(second.perturb(values[~is_first], chance))
        codes[~is_first] += np.uint64(first.space)
        return codes

    def _say(self, codes: Codes, candidates: Values) -> Votes:
        votes = np.empty((len(codes), len(candidates)), np.int8)
        is_first = codes < np.uint64(self.parts[0].space)
        places = is_first, ~is_first
        for part, place, some in zip(self.parts, places, self._split(codes), strict=True):
            votes[place] = part.votes(part.pack(some), candidates)
        return votes

    def _count(self, codes: Codes) -> Support:
        return self.gather(self.pack(codes)).cells
