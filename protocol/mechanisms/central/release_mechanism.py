"""Plans and mechanisms whose counts are released with central differential privacy.

The plan carries a `Release`: the coins, theta and noise that hide its counts. Questions are in
`release_question.py`, and the search for the release in `release_design.py`.
"""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from protocol.description import AnswerKind, Bar, PlanFact
from protocol.domains.numeric import NumericInterval
from protocol.mechanism import SumMechanism
from protocol.mechanisms.central.release_design import (
    cell_modulus,
    check_join_probability,
    max_noise,
    noise_shares,
    noise_variance_of,
)
from protocol.mechanisms.central.release_question import ReleaseQuestion
from protocol.numerics import special
from protocol.numerics.array_types import Flags, Floats, Integers
from protocol.privacy.noise_shares import MAX_EVENTS, NoiseShares, signed_residues
from protocol.privacy.release import Release
from protocol.question_and_plan import Plan
from protocol.randomness import RandomWords
from protocol.sketches.vote_table import max_votes
from protocol.study_state import StudyState

_FALSE_ALARM_PROBABILITY = 2.0**-64  # that coins of honest devices give more votes than allowed
_LISTED_PROBABILITY = 0.95  # of an item whose count is at the bar
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

    @property
    def vote_probability(self) -> float:
        return min(1.0, self.release.probability / self.join_probability)

    @property
    def min_reported_count(self) -> float:
        return float(self.release.threshold)

    def vote_coins(self, chance: RandomWords, votes: int) -> Flags:
        """Return for each of `votes` votes of devices that joined whether its coin fell heads."""
        return self.release.vote_coins(chance, votes, self.question.join_probability)

    @property
    def max_noise(self) -> int:
        """Return the bound that all noise of a cell exceeds with probability 2^-64 at most."""
        return max_noise(self.release, self.terms)

    def max_votes(self, coins: int) -> int:
        """Return the votes that exceed `coins` coins of honest devices with probability 2^-64."""
        if self.vote_probability == 1 or coins == 0:
            return coins
        return max_votes(coins, self.vote_probability, _FALSE_ALARM_PROBABILITY)

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

    def max_noise_variance(self, participants: int) -> float:
        """Return the largest variance of the noise in the sum of `participants` devices."""
        return noise_variance_of(self.release, self.terms, participants)


RQ = TypeVar("RQ", bound=ReleaseQuestion)
RP = TypeVar("RP", bound=ReleasePlan)


class ReleaseMechanism(SumMechanism[RQ, RP]):
    """Base of mechanisms whose counts are hidden by the `release` of their plans."""

    presets = MappingProxyType({"delta": 1e-6})
    simulated_words = 2**16

    def measures(
        self, plan: RP, state: StudyState, truth: Mapping[str, int], devices: int
    ) -> dict[str, Any]:
        """Return theta, and m, the devices that vote in a round on average, with the noise."""
        del state, truth
        release, rounds = plan.release, 1 if plan.question.asks_every_round else plan.round
        return {
            "mode": release.mode,
            "theta": release.threshold,
            "m": round(release.probability * devices / rounds),
            "probability": release.probability,
            "invited": plan.join_probability,
            "noise_variance": release.variance,
        }

    def noise_shares(self, plan: RP, contacted: int) -> NoiseShares | None:
        return noise_shares(plan.release, plan.terms, contacted)

    def answer_kind(self, question: RQ) -> AnswerKind:
        is_of_numbers = isinstance(question.domain, NumericInterval)
        return AnswerKind.DISTRIBUTION if is_of_numbers else AnswerKind.ITEMS

    def why_no_ranks(self, question: RQ) -> str | None:
        if self.answer_kind(question) is AnswerKind.DISTRIBUTION:
            return None
        return (
            f"values of kind {question.domain.kind} have no quantiles, ranks or ranges: numbers "
            "have them. Ask for the heavy hitters of this study, or for frequencies of prefixes"
        )

    def levels_shown_together(self, plan: RP) -> int:
        """Return the number of sums in which an item must be shown to be listed."""
        del plan
        return 1

    def asked_share(self, plan: RP) -> float:
        """Return the share of the counted devices that one sum is of."""
        del plan
        return 1.0

    def bars(self, plan: RP, devices: int | None) -> Iterator[Bar]:
        """Yield the bar of votes that are shown only in large numbers.

        A device votes in a sum with probability p. So the votes X for a count k have mean k p and
        variance k p (1 - p) + v, with v of the noise. The bar is the k for which X reaches theta in
        all levels with probability 0.95: k p is theta and z standard deviations.
        """
        release, levels = plan.release, self.levels_shown_together(plan)
        share, theta = self.asked_share(plan), release.threshold
        p = share * release.probability
        z = float(special.ndtri(_LISTED_PROBABILITY ** (1 / levels)))
        half = z**2 * (1 - p) / 2
        noise = plan.max_noise_variance(
            round(share * devices) if devices else plan.terms.max_devices
        )
        mean = theta + half + math.sqrt(half**2 + z**2 * (theta * (1 - p) + noise))
        unit = "level" if plan.question.asks_every_round else "round"
        votes = f"a count is shown from {theta:,} votes in a {unit}"
        if p < 1:
            votes += f", and a device votes with probability {p:.3g}"
        question, step = plan.question, "use a larger epsilon, or more devices"
        if question.theta is None and question.probability is None:
            votes += f", because epsilon is {question.epsilon:g}"
        else:
            step = "use a smaller theta or a larger probability, or more devices"
        yield Bar(mean / p, votes, step)

    def plan_facts(self, plan: RP) -> Iterator[PlanFact]:
        release, devices = plan.release, plan.terms.max_devices
        visible = release.threshold / release.probability
        note = f"{visible / devices:.2%} of {devices:,}; half of such cells are published"
        yield PlanFact("A cell is published from", visible, note, "devices")
        if release.variance:
            deviation = math.sqrt(plan.max_noise_variance(plan.terms.minimum))
            group = "round" if plan.terms.cohorts == 1 else "cohort"
            yield PlanFact(
                "Noise in a count", deviation, f"standard deviation, per {group}", is_error=True
            )

    def _check_shares(self, plan: RP) -> None:
        """Raise ValueError if shares of devices are secret."""
        if plan.question.hides_device_counts:
            raise ValueError(
                "shares need the number of devices that joined, which nobody may learn if they "
                "join by secret coins: read counts from heavy-hitters, or use a join_probability "
                "of 1"
            )


def devices_per_level(state: StudyState) -> Floats:
    """Return the number of devices behind the counts of each level; empty before round 1."""
    return np.asarray(state.arrays.get(DEVICES_ARRAY, np.zeros(0)), np.float64)
