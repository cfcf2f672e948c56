"""Release of a round's counts: sampled by coins, with noise in shares, or both.

A device flips a new coin for each cell that it votes in, in each round, and adds its share of
noise to every cell, also if it has no vote. The ledger has the cost of a release (`events.py`).
This module is for devices, and imports nothing large.

A plan compares `designs` of a release: coins, noise, or both.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from protocol.privacy.noise_shares import NoiseShares, tail_bound
from protocol.public_model import PublicModel
from protocol.randomness import RandomWords, bernoulli

ReleaseMode: TypeAlias = Literal["sample-threshold", "noise", "both"]
MAX_VARIANCE = 2.0**24
MIN_VARIANCE = 2.0**-20
_OVERFLOW_PROBABILITY = 2.0**-64  # of noise outside the room for it


class Release(PublicModel):
    """Counts of votes by coins of `probability`, shown if they reach `threshold`, with noise.

    `variance` is that of the noise of the honest survivors of any cohort together: 0 is none.
    """

    probability: float = Field(gt=0, le=1)
    threshold: int = Field(ge=1, le=2**31)
    variance: float = Field(ge=0, le=MAX_VARIANCE)

    @field_validator("variance")
    @classmethod
    def _hides_something(cls, variance: float) -> float:
        if 0 < variance < MIN_VARIANCE:
            raise ValueError(f"noise of a variance below {MIN_VARIANCE:g} hides nothing")
        return variance

    @model_validator(mode="after")
    def _check_not_exact(self) -> Self:
        if self.probability == 1 and not self.variance:
            raise ValueError("a release of every vote needs noise: variance must be above 0")
        return self

    @property
    def mode(self) -> ReleaseMode:
        if not self.variance:
            return "sample-threshold"
        return "noise" if self.probability == 1 else "both"

    def vote_coins(
        self, chance: RandomWords, votes: int, join_probability: float = 1.0
    ) -> NDArray[np.bool_]:
        """Return for each vote whether its coin fell heads, with a probability of at most p.

        For devices that joined by another coin, it is p / `join_probability`. The product of both
        is never above p, since both are rounded down.
        """
        probability = Fraction(self.probability) / Fraction(join_probability)
        return bernoulli(chance, math.floor(probability * 2**64), votes)

    def noise_shares(
        self, contacted: int, dropout: float, honest_share: float
    ) -> NoiseShares | None:
        """Return the shares of a cohort of `contacted` devices; None if there is no noise."""
        if not self.variance:
            return None
        return NoiseShares(self.variance, contacted, dropout, honest_share)

    def max_variance(self, cohorts: int, dropout: float, honest_share: float) -> float:
        """Return the variance in the sum of `cohorts` if no device drops out."""
        return cohorts * self.variance / ((1 - dropout) * honest_share)

    def max_noise(self, cohorts: int, dropout: float, honest_share: float) -> int:
        """Return a bound that the noise of a cell exceeds with probability 2^-64 at most."""
        if not self.variance:
            return 0
        return tail_bound(self.max_variance(cohorts, dropout, honest_share), _OVERFLOW_PROBABILITY)

    def estimate_counts(
        self, sums: NDArray[np.int64], noise_variance: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return estimated votes for `sums`, all of at least `threshold`, and their variances.

        `noise_variance` is that of the noise in the sums. Without noise the estimate of a sum X is
        X / p, or theta if X is exactly theta. Given that the sum is shown, this is unbiased, since
        with X ~ Bin(k, p)

            E[X; X > theta] + p theta P(X = theta)  =  k p P(X >= theta)

        by x C(k, x) = k C(k-1, x-1). The variance of that theta includes its distance from X / p.
        With noise the estimate of a shown sum is too high on average by s/2 (P(theta - 1) +
        P(theta)) / P(X >= theta), about a deviation near theta; no unbiased estimate of one count
        exists, and this bias is left.
        """
        p = self.probability
        likely = counts = np.maximum(sums / p, 0.0)
        if not self.variance:
            counts = np.where(sums == self.threshold, float(self.threshold), counts)
        return counts, likely * (1 - p) / p + (likely - counts) ** 2 + noise_variance / p**2


@dataclass(frozen=True, slots=True)
class InvitedDesign:
    """A design in which each user joins with `probability`, by its own coin.

    The `seats` suffice for all that join except with probability 1e-20. Each sends `vector_bytes`
    for 100 prefixes; `saved_bytes` are those of all users that do not join. The noise of deviation
    `sigma` keeps epsilon against the server, which sees who joins, as devices do on the roster. An
    epsilon without bound is None.
    """

    probability: float
    expected_participants: int
    seats: int
    vector_bytes: int
    saved_bytes: int
    sigma: float
    epsilon_server: float | None
    epsilon_devices: float | None


@dataclass(frozen=True, slots=True)
class ReleaseDesign:
    """One way to release counts.

    `m` users vote on average, `sigma` is the deviation of the noise in all cohorts together, and a
    prefix of `shown_share` of all users is shown about half the time. `relative_error` is the
    standard error of a prefix that one user in a hundred has; `vector_bytes` are those of 100
    prefixes of 27 symbols. Epsilons are exact except for the closed forms, which are None without a
    bound. `invitation` is None if it would save nothing.
    """

    mode: ReleaseMode
    theta: int
    m: int
    probability: float
    sigma: float
    shown_share: float
    relative_error: float
    vector_bytes: int
    epsilon: float
    epsilon_replace_one: float
    epsilon_server: float | None
    epsilon_kl: float | None
    epsilon_note: float | None
    invitation: InvitedDesign | None
