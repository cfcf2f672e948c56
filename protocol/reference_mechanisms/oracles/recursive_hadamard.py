"""Recursive Hadamard response (RHR): a device reports its residue and one sign of a Hadamard row.

It is Hadamard encoding with K > 1 residues (`protocol/oracles/hadamard.py`). The variance of a
value depends on g, the frequency of the other values of its residue. The number of reports with
each residue estimates g: a report has the true residue with probability p + q, any other with 2q.

Source: [Chen20], with 2K the smallest power of 2 that is at least e^epsilon. The variance is
derived for given data, unlike the remark in section 4.3 of [Pan24].
"""

from dataclasses import dataclass
from math import exp
from typing import Self

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Frequencies
from protocol.oracles.hadamard import SignOracle
from protocol.oracles.limits import check_epsilon
from protocol.oracles.oracle import ReportCounts


@dataclass(frozen=True)
class RecursiveHadamard(SignOracle):
    """Recursive Hadamard response (RHR) with `residues` residues, a power of 2."""

    name = "recursive-hadamard"
    residues: int

    def __post_init__(self) -> None:
        if not 1 <= self.residues <= 2**31 or self.residues & (self.residues - 1):
            raise ValueError(f"residues must be a power of 2 from 1 to 2^31, not {self.residues}")
        if self.domain <= 2 * self.residues:
            raise ValueError(
                f"domain must be more than the {2 * self.residues} symbols, not {self.domain}: "
                "use k-ary randomized response (krr) for a dictionary that small"
            )
        SignOracle.__post_init__(self)

    @classmethod
    def for_epsilon(cls, epsilon: float, domain: int) -> Self:
        """Return the oracle of the source, whose number of symbols grows with e^epsilon."""
        check_epsilon(epsilon)
        residues = 1
        while 2 * residues < min(exp(epsilon), domain):
            residues *= 2
        return cls(epsilon, domain, residues)

    @property
    def _residues(self) -> int:
        return self.residues

    def variances(self, frequencies: Frequencies, n: int) -> Frequencies:
        super().variances(frequencies, n)
        mass = np.bincount(self._residue_of_all, frequencies, self.residues)
        return self.variance_given_residue(frequencies, mass[self._residue_of_all] - frequencies, n)

    def estimated_variances(self, counts: ReportCounts) -> Frequencies:
        """Return the variances at the estimated frequencies of values and of residues.

        Variances of candidates are the bound, since their counts do not include residues.
        """
        if counts.candidates is not None:
            return super().estimated_variances(counts)
        shares = np.clip(self.frequencies(counts), 0, 1)
        reported = counts.cells[self.possible_reports // 2 :] / counts.reports
        mass = (reported - 2 * float(self._other_probability)) / float(self.mean_vote_if_held)
        same_residue = np.clip(mass[self._residue_of_all] - shares, 0, 1 - shares)
        return self.variance_given_residue(shares, same_residue, counts.reports)

    @property
    def _residue_of_all(self) -> NDArray[np.int64]:
        return np.arange(self.domain) % self.residues

    def variance_given_residue(
        self, frequencies: Frequencies, same_residue: Frequencies, n: int
    ) -> Frequencies:
        """Return the variance where other values of the residue have frequency `same_residue`.

        `variance` is the bound where all others have the residue; `variances` uses all frequencies.
        """
        lift, other = float(self.mean_vote_if_held), float(self._other_probability)
        same, different = (lift + 2 * other) / lift**2, 2 * other / lift**2
        rest = 1 - frequencies - same_residue
        scaled: Frequencies = (frequencies + same_residue) * same - frequencies + rest * different
        return scaled / n
