"""How a round's counts leave the devices: sampled by coins, with noise in shares, or both.

    sample-threshold   each vote by a coin of odds p; a count is kept from theta on
    noise              every vote, and Skellam noise of a variance in each cohort's sum
    both               coins and noise: less noise does, as nobody can tell whose coin fell heads

A device flips a coin for each cell that it votes in, in each round anew, and adds its share of
noise to every cell, also if it has no vote. What a release costs is a matter of the ledger
(`entries.py`); this is what devices need, and imports nothing large.
"""

import math
from fractions import Fraction
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.chance import Chance, happens
from protocol.privacy.noise import NoiseShares, reach
from protocol.public import Public

Mode: TypeAlias = Literal["sample-threshold", "noise", "both"]
MOST_VARIANCE = 2.0**24
_SEEN = 2.0**-64  # odds that noise leaves what is made room for


class Release(Public):
    """Counts of votes by coins of odds `probability`, kept from `threshold` on, with noise.

    `variance` is that of the noise which the honest survivors of any cohort add up to: 0 is none.
    """

    probability: float = Field(gt=0, le=1)
    threshold: int = Field(ge=1, le=2**31)
    variance: float = Field(ge=0, le=MOST_VARIANCE)

    @model_validator(mode="after")
    def _hides(self) -> Self:
        if self.probability == 1 and not self.variance:
            raise ValueError("a release of every vote without noise hides nobody")
        return self

    @property
    def mode(self) -> Mode:
        """Return which of the three this is."""
        if not self.variance:
            return "sample-threshold"
        return "noise" if self.probability == 1 else "both"

    def coins(self, chance: Chance, votes: int, invited: float = 1.0) -> NDArray[np.bool_]:
        """Return for each of so many votes whether its coin fell heads: never likelier than p.

        Of devices that another coin let join, with odds of `invited`, it is p / `invited`: their
        product is never above p, since both are rounded down.
        """
        odds = Fraction(self.probability) / Fraction(invited)
        return happens(chance, math.floor(odds * 2**64), votes)

    def shares(self, contacted: int, dropout: float, honest: float) -> NoiseShares | None:
        """Return the shares of a cohort of `contacted` devices; None if there is no noise."""
        if not self.variance:
            return None
        return NoiseShares(self.variance, contacted, dropout, honest)

    def most_variance(self, cohorts: int, dropout: float, honest: float) -> float:
        """Return the variance in the sum of so many cohorts if none of their devices is lost."""
        return cohorts * self.variance / ((1 - dropout) * honest)

    def most_noise(self, cohorts: int, dropout: float, honest: float) -> int:
        """Return what the noise of a cell in their sum exceeds with odds of 2^-64 at most."""
        if not self.variance:
            return 0
        return reach(self.most_variance(cohorts, dropout, honest), _SEEN)

    def counts(
        self, sums: NDArray[np.int64], noise: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what `sums`, all `threshold` or more, say of votes before coins; and variances.

        `noise` is the variance that is in them. Without noise a sum X says X / p, and one of
        exactly theta says theta: given that the sum is shown, that has no bias at all, since with
        X ~ Bin(k, p)

            E[X; X > theta] + p theta P(X = theta)  =  k p P(X >= theta)

        by x C(k, x) = k C(k-1, x-1). What is shown in spite of noise is too high on average by
        s/2 (P(theta - 1) + P(theta)) / P(X >= theta), near theta about a deviation; there is no
        unbiased estimate of one count, and this is left as it is.
        """
        p = self.probability
        counts = sums / p
        if not self.variance:
            counts = np.where(sums == self.threshold, float(self.threshold), counts)
        counts = np.maximum(counts, 0.0)
        return counts, counts * (1 - p) / p + noise / p**2
