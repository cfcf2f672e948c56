"""Plans and mechanisms whose counts are released with central differential privacy.

The plan carries a `Release`: the coins, theta and noise that hide its counts. Questions are in
`release_question.py`, and the search for the release in `release_design.py`.
"""

import math
from typing import Any, Self, TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import model_validator

from protocol.mechanism import SumMechanism
from protocol.mechanisms.central.release_design import (
    cell_modulus,
    check_join_probability,
    max_noise,
    noise_shares,
    noise_variance_of,
)
from protocol.mechanisms.central.release_question import ReleaseQuestion
from protocol.numerics.arrays import Flags, Floats, Integers
from protocol.privacy.noise_shares import (
    MAX_EVENTS,
    NoiseShares,
    signed_residues,
    simulate_skellam_sum,
)
from protocol.privacy.release import Release
from protocol.question_and_plan import Plan
from protocol.randomness import RandomWords
from protocol.sketches.vote_table import max_votes
from protocol.study_state import StudyState
from secagg.ring import Lane, Vector

_FALSE_ALARM_PROBABILITY = 2.0**-64  # that coins of honest devices give more votes than allowed
DEVICES_ARRAY = "devices"  # in the study state: devices counted in each level or round


class ReleasePlan(Plan):
    """Plan whose counts are hidden by its `release`."""

    question: ReleaseQuestion
    release: Release

    @model_validator(mode="after")
    def _fits_the_question(self) -> Self:
        if self.release.mode != self.question.mode:
            raise ValueError(
                f"a release of mode {self.release.mode} for a question of mode {self.question.mode}"
            )
        check_join_probability(self.question.join_probability, self.release)
        return self

    @property
    def join_probability(self) -> float:
        return self.question.join_probability

    def vote_coins(self, chance: RandomWords, votes: int) -> Flags:
        """Return for each of `votes` votes of devices that joined whether its coin fell heads."""
        return self.release.vote_coins(chance, votes, self.question.join_probability)

    @property
    def max_noise(self) -> int:
        """Return the bound that all noise of a cell exceeds with probability 2^-64 at most."""
        return max_noise(self.release, self.terms)

    def max_votes(self, coins: int) -> int:
        """Return the votes that exceed `coins` coins of honest devices with probability 2^-64."""
        probability = self.release.probability / self.join_probability
        if probability >= 1 or coins == 0:
            return coins
        return max_votes(coins, probability, _FALSE_ALARM_PROBABILITY)

    @property
    def cell_modulus(self) -> int:
        return cell_modulus(self.release, self.terms)

    @property
    def max_noisy_cells(self) -> int:
        """Return the number of cells for which a device of the smallest cohort can draw noise."""
        shares = noise_shares(self.release, self.terms, self.terms.minimum)
        return 2**62 if shares is None else math.floor(MAX_EVENTS / shares.share)

    def check_noise(self, cells: int) -> None:
        """Raise ValueError if a device cannot draw noise for `cells`, with ways to reduce it."""
        if cells > self.max_noisy_cells:
            raise ValueError(
                f"noise of variance {self.release.variance:.4g} in {cells:,} cells is too much for "
                f"cohorts of {self.terms.minimum} devices: at most {self.max_noisy_cells:,} cells; "
                "use a larger epsilon, fewer digits or more devices"
            )

    def signed_votes(self, sums: NDArray[Any]) -> Integers:
        """Return the integers whose remainders are the `sums` of a lane."""
        whole = sums.astype(np.int64)
        return signed_residues(whole, self.cell_modulus) if self.release.variance else whole

    def simulate_noise(self, votes: NDArray[Any], variance: float, rng: Generator) -> Vector:
        """Return the `votes` of a lane with noise of `variance`, drawn at once, if there is any."""
        if self.release.variance:
            votes = votes + simulate_skellam_sum(rng, variance, len(votes))
        lane = Lane(self.cell_modulus, len(votes))
        return ((votes % lane.q).astype(lane.dtype),)

    def max_noise_variance(self, participants: int) -> float:
        """Return the largest variance of the noise in the sum of `participants` devices."""
        return noise_variance_of(self.release, self.terms, participants)


RQ = TypeVar("RQ", bound=ReleaseQuestion)
RP = TypeVar("RP", bound=ReleasePlan)


class ReleaseMechanism(SumMechanism[RQ, RP]):
    """Base of mechanisms whose counts are hidden by the `release` of their plans."""

    def noise_shares(self, plan: RP, contacted: int) -> NoiseShares | None:
        return noise_shares(plan.release, plan.terms, contacted)


def devices_per_level(state: StudyState) -> Floats:
    """Return the number of devices behind the counts of each level; empty before round 1."""
    return np.asarray(state.arrays.get(DEVICES_ARRAY, np.zeros(0)), np.float64)
