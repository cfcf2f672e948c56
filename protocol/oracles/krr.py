"""k-ary randomised response: the value itself, or with some odds one of the others.

    report     one of d values: ceil(log2 d) bits
    p, q       e / (e + d - 1),  1 / (e + d - 1)
    n Var      [f p(1-p) + (1-f) q(1-q)] / (p - q)^2, about (d - 2 + e) / (e - 1)^2 at f = 0

It is the best of all where d is no more than the range that a hashing oracle would hash to,
about 1 + e^(epsilon/2) for the worst case and 1 + e^epsilon for the sum of squares, and
useless far beyond.

Source: [Kairouz16, section 2]; eq 12 of [Pan24] with m = d.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from protocol.chance import Chance
from protocol.oracles.coded import Coded
from protocol.oracles.counts import Codes, Support, Values, Votes
from protocol.oracles.odds import WHOLE, favour, respond


@dataclass(frozen=True)
class RandomisedResponse(Coded):
    """k-ary randomised response over the whole dictionary."""

    name = "krr"

    @property
    def space(self) -> int:
        """Return the number of reports: the values."""
        return self.domain

    @cached_property
    def keep(self) -> int:
        """Return the odds, of 2^64, of the truth."""
        return favour(self.epsilon, 1, self.domain - 1)

    @property
    def true_odds(self) -> Fraction:
        """Return p."""
        return Fraction(self.keep, WHOLE)

    @property
    def false_odds(self) -> Fraction:
        """Return q."""
        return (1 - self.true_odds) / (self.domain - 1)

    def whole_ns(self, reports: int) -> float:
        """Return the nanoseconds of counting reports by value."""
        return 5.0 * reports + self.domain

    @property
    def read_at_once(self) -> int:
        """Return how many reports a server reads at once."""
        return self._many_at_once(self.cells)

    def distribution(self, value: int) -> dict[int, Fraction]:
        """Return the odds of each value's being the report."""
        self._listable(value, self.domain)
        p, q = self.true_odds, self.false_odds
        return {report: p if report == value else q for report in range(self.domain)}

    def _encode(self, values: Values, chance: Chance) -> Codes:
        return respond(chance, values, self.domain, self.keep)

    def _say(self, codes: Codes, candidates: Values) -> Votes:
        votes: Votes = (codes[:, np.newaxis] == candidates).astype(np.int8)
        return votes

    def _count(self, codes: Codes) -> Support:
        return np.bincount(codes.astype(np.int64), minlength=self.domain).astype(np.int64)
