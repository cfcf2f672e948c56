"""A frequency oracle as prefix extension asks it: for counts of candidates, some of them alike."""

from dataclasses import dataclass

import numpy as np

from protocol.chance import Chance
from protocol.oracles.counts import Frequencies, Reports, Values
from protocol.oracles.oracle import Oracle


@dataclass(frozen=True)
class Counting:
    """An `oracle` that counts: `prefix.FrequencyOracle`."""

    oracle: Oracle

    @property
    def domain(self) -> int:
        """Return the bound of values."""
        return self.oracle.domain

    @property
    def bits(self) -> int:
        """Return the bits of a report."""
        return self.oracle.bits

    def perturb(self, values: Values, chance: Chance) -> Reports:
        """Return a report for each of `values`; raises as the oracle."""
        return self.oracle.perturb(values, chance)

    def check(self, reports: Reports) -> None:
        """Raise ValueError if one of `reports` cannot be one."""
        self.oracle.check(reports)

    def estimate(self, reports: Reports, candidates: Values) -> Frequencies:
        """Return the estimated count of each of `candidates`, of which some may be alike."""
        distinct, which = np.unique(candidates, return_inverse=True)
        counts: Frequencies = len(reports) * self.oracle.estimate(reports, distinct)
        return counts[which]

    def bar(self, n: int, tail: float) -> float:
        """Return the count that a value nobody holds exceeds with odds of `tail` at most."""
        return n * self.oracle.bar(n, tail)

    def variance(self, n: int, count: float) -> float:
        """Return the variance of the estimate of a value that `count` of `n` reports are of."""
        share = np.array([min(max(count / n, 0.0), 1.0)])
        return n**2 * float(self.oracle.variance(share, n)[0])
