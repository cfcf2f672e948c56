"""Questions whose counts are released with central differential privacy, and what they cost.

The question says what epsilon and delta all rounds of the study may cost together, and how
counts are to be hidden (`protocol/privacy/release.py`); the first plan finds the coins, theta and
noise that this takes, by the exact loss (`protocol/privacy/planning.py`). They stay for the study,
so that what it costs is known before its first round.

Each cohort's sum is read by the server, so each has all of the noise for itself. Devices that
have nothing to say send their noise alike: neighbours differ in what one device holds, and that
it takes part is no secret.

Where p is small, most devices send a vector for nothing. They may stay away instead, by a coin of
their own in each round, of odds v (`invited`): heads joins, and votes with odds of p / v. So each
votes with odds of p, independently of all others, as if all had joined; nobody chooses whom to ask,
and nobody has to be told who stayed away. What that hides from whom is a matter of the ledger. The
note's server picks s = m + c sqrt(m) devices, a sample of another law, and knows them.
"""

import math
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.chance import Chance
from protocol.mechanism import Plan, Summing, SumQuestion, Terms
from protocol.privacy.entries import Mechanism as Loss
from protocol.privacy.entries import Noise, SampleThreshold
from protocol.privacy.loss import Relation, composed, epsilon_of
from protocol.privacy.noise import MOST_EVENTS, NoiseShares, centred, skellam_sum
from protocol.privacy.planning import best_design, least_variance
from protocol.privacy.release import Mode, Release
from protocol.privacy.skellam import least_above
from protocol.public import refuse
from protocol.tally import Tally
from secagg.ring import Lane, Vector

DEVICES = "devices"  # an array of a tally: among how many each level or round was counted
LEAST_EPSILON = 1e-6  # of a study: below, noise is more than a sum can hold
_SCALE = 10**6  # of what devices the best p is found: it does not depend on how many there are
_COIN = 0.25  # of both coins and noise, unless the question names another
_MOST = 2**12  # rounds, or items of a device, that a ledger counts
_MOST_VOTES = 2**14  # of a device in all of them: some 20 seconds of accounting
_DEVIATIONS, _FEW = 10, 16
_GHOSTS = 0.3  # cells that noise alone shows in a whole study, on average


class ReleaseQuestion(SumQuestion):
    """A question that may cost `epsilon` and `delta` in all of its rounds together.

    `mode` says how, and so who is promised what: without noise it is not the server. `relation`
    is of neighbouring populations. Of devices that vote together, `colluders` may be in a cell.
    `theta` and `probability` are found if they are not named. If devices `repeat`, each takes part
    in every round; else in one, which tells less of it and takes as many times more of them.
    Each joins a round with odds of `invited`, by its own coin.
    """

    epsilon: float = Field(ge=LEAST_EPSILON, le=40)
    delta: Annotated[float, Field(ge=1e-11, lt=1)]
    mode: Mode = "sample-threshold"
    relation: Relation = "add-remove"
    colluders: int = Field(default=0, ge=0, le=1000)
    theta: int | None = Field(default=None, ge=1, le=10_000)
    probability: float | None = Field(default=None, ge=1e-6, lt=1)
    repeat: bool = True
    # Left out where all join: a device that does not know of it can take part in such studies.
    invited: float = Field(default=1.0, gt=0, le=1, exclude_if=lambda odds: odds == 1)

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Self:
        faults = []
        if (self.theta is None) != (self.probability is None) and self.mode == "sample-threshold":
            faults.append("name theta and probability both, or neither")
        if self.mode != "sample-threshold" and self.theta is not None:
            faults.append("theta is that of sample-threshold: noise has a threshold of its own")
        if self.mode == "noise" and self.probability is not None:
            faults.append("with mode noise every device votes: name no probability")
        refuse(faults)
        return self

    @model_validator(mode="after")
    def _invites_whom_it_can(self) -> Self:
        if self.invited == 1:
            return self
        faults = []
        if self.mode == "noise":
            faults.append(
                "with mode noise every device that joins votes, and the server sees who joins: "
                "leave invited at 1, or ask for mode both, with a probability below invited"
            )
        if self.probability is not None and not self.probability < self.invited:
            faults.append(
                f"invited {self.invited:g} must be above the probability {self.probability:g}: "
                "of those that join, some must not vote"
            )
        if self.votes > 1:
            faults.append(
                "a device's votes in one round would share the coin by which it joins: with "
                "invited below 1 ask for one vote a round, so for a contribution of 1"
            )
        if not self.repeat:
            faults.append("devices are invited anew in each round: with invited below 1, repeat")
        refuse(faults)
        return self

    @property
    def hides_sizes(self) -> bool:
        """Return whether nobody but the server may learn how many devices joined a round."""
        return self.withholds and self.invited < 1

    @property
    def unread(self) -> float:
        """Return the part of delta that is spent on sums which may not be read whole; here none."""
        return 0.0

    @property
    def repeats(self) -> bool:
        """Return whether a device takes part in each round."""
        return self.repeat

    @property
    def withholds(self) -> bool:
        """Return whether sums hold counts below theta, as they are: with noise they do not."""
        return self.mode == "sample-threshold"


class ReleasePlan(Plan):
    """A plan whose counts leave as its `release` says."""

    question: ReleaseQuestion
    release: Release

    @model_validator(mode="after")
    def _releases_as_asked(self) -> Self:
        asked, made = self.question.mode, self.release.mode
        if made != asked:
            raise ValueError(f"a release of mode {made} where the question is of mode {asked}")
        return self

    @model_validator(mode="after")
    def _votes_by_a_coin(self) -> Self:
        check_invited(self.question.invited, self.release)
        return self

    @property
    def invited(self) -> float:
        """Return the odds with which a device joins the round."""
        return self.question.invited

    def coins(self, chance: Chance, votes: int) -> NDArray[np.bool_]:
        """Return for each of so many votes of those who joined whether its coin fell heads."""
        return self.release.coins(chance, votes, self.question.invited)

    @property
    def honest(self) -> float:
        """Return the least share of survivors that add their noise and tell nobody."""
        return least_honest(self.terms)

    @property
    def most_noise(self) -> int:
        """Return what the noise of all cohorts exceeds in a cell with odds of 2^-64 at most."""
        return self.release.most_noise(self.terms.cohorts, self.terms.dropout, self.honest)

    @property
    def bits(self) -> int:
        """Return the width of a cell."""
        return cell_bits(self.release, self.terms)

    @property
    def most_noisy(self) -> int:
        """Return for how many cells a device of the smallest cohort can draw its noise."""
        shares = self.release.shares(self.terms.minimum, self.terms.dropout, self.honest)
        return 2**62 if shares is None else math.floor(MOST_EVENTS / shares.share)

    def check_noise(self, cells: int) -> None:
        """Check that a device can draw its noise for `cells`.

        Raises:
            ValueError: if it is too much work; says what would do.
        """
        if cells > self.most_noisy:
            raise ValueError(
                f"noise of variance {self.release.variance:.4g} in {cells:,} cells is too much for "
                f"cohorts of {self.terms.minimum} devices: {self.most_noisy:,} cells are the most; "
                "ask for a larger epsilon, fewer digits or more devices"
            )

    def votes(self, sums: NDArray[Any]) -> NDArray[np.int64]:
        """Return the integers that `sums` of a lane are the remainders of."""
        whole = sums.astype(np.int64)
        return centred(whole, self.bits) if self.release.variance else whole

    def variance(self, participants: int) -> float:
        """Return the most that the variance of the noise in their sum can be."""
        least = self.terms.assumptions.quorum(self.terms.minimum)
        cohorts = min(self.terms.cohorts, max(1, participants // least))
        return self.release.most_variance(cohorts, self.terms.dropout, self.honest)


RQ = TypeVar("RQ", bound=ReleaseQuestion)
RP = TypeVar("RP", bound=ReleasePlan)


class Releasing(Summing[RQ, RP]):
    """A mechanism whose counts leave as its plans' `release` says."""

    def shares(self, plan: RP, contacted: int) -> NoiseShares | None:
        """Return the noise that each of `contacted` devices of a cohort adds; None if none."""
        return plan.release.shares(contacted, plan.terms.dropout, plan.honest)


def noisy(plan: ReleasePlan, votes: NDArray[Any], variance: float, rng: Generator) -> Vector:
    """Return `votes` of a lane with noise of `variance`, if the plan has any: for simulations."""
    if plan.release.variance:
        votes = votes + skellam_sum(rng, variance, len(votes))
    lane = Lane(2**plan.bits, len(votes))
    return ((votes % lane.q).astype(lane.dtype),)


def devices_of(tally: Tally) -> NDArray[np.float64]:
    """Return among how many devices a tally's counts are, none before the first round."""
    return np.asarray(tally.arrays.get(DEVICES, np.zeros(0)), np.float64)


def loss_of(question: ReleaseQuestion, release: Release, releases: int) -> Loss:
    """Return what `releases` of a device's votes cost, as the ledger has it."""
    items = question.contribution
    if release.mode == "sample-threshold":
        return SampleThreshold(
            probability=release.probability,
            threshold=release.threshold,
            releases=releases,
            items=items,
            colluders=question.colluders,
            unread=question.unread,
            invited=question.invited,
        )
    return Noise(
        variance=release.variance,
        sampled=release.probability,
        invited=question.invited,
        releases=releases,
        items=items,
    )


def design(question: ReleaseQuestion, terms: Terms, releases: int, vectors: int) -> Release:
    """Return how `question` is answered for its epsilon and delta by so many releases of a device.

    `vectors` of the question's words may show noise: so many rounds are decoded at most. Noise is
    promised to the server, so of a coin it counts what the server cannot see.

    Raises:
        ValueError: if nothing meets the budget, or what the question names does not; says what
            would.
    """
    _check_number(releases, question.contribution)
    if question.mode == "sample-threshold":
        made = _sampled(question, releases)
        check_invited(question.invited, made)
        return made
    sampled = 1.0 if question.mode == "noise" else question.probability or _COIN
    check_invited(question.invited, Release(probability=sampled, threshold=1, variance=1.0))
    variance = least_variance(
        question.epsilon,
        question.delta,
        releases * question.contribution,
        sampled / question.invited,
        question.relation,
    )
    made = Release(probability=sampled, threshold=1, variance=variance)
    most = made.most_variance(terms.cohorts, terms.dropout, least_honest(terms))
    cells = max(1, vectors * 8 * question.nbytes // cell_bits(made, terms))
    return made.model_copy(update={"threshold": least_above(most, _GHOSTS / cells)})


def check_invited(invited: float, release: Release) -> None:
    """Check that of those that join, some do not vote, so that it helps to hide who does.

    Raises:
        ValueError: if all would, or more; says what would do.
    """
    p = release.probability
    if invited < 1 and not p / invited < 1:
        raise ValueError(
            f"invited {invited:g} must be above the odds of a vote, {p:.6g}: those that stay away "
            f"cannot vote; {min(1.0, 1.1 * p):.3g} would do, or 1, to let all devices join"
        )


def seats_for(devices: int, invited: float) -> int:
    """Return how many seats hold all of `devices` that join, but for odds below 1e-20.

    They are Bin(n, v): n v on average, with a deviation below sqrt(n v); where that is little, its
    tail is longer than a normal one's. Who finds no seat is lost, and who found one then tells of
    the others' coins; so there must be seats for all.
    """
    mean = devices * invited
    return min(devices, math.ceil(mean + _DEVIATIONS * math.sqrt(mean)) + _FEW)


def least_honest(terms: Terms) -> float:
    """Return the least share of a cohort's survivors that is honest.

    Rates are of the whole cohort, and whoever is lost may be honest: 1 - d - c of it is left.
    """
    return 1 - terms.corrupt / (1 - terms.dropout)


def cell_bits(release: Release, terms: Terms) -> int:
    """Return the width of a cell in which each device votes once at most."""
    noise = release.most_noise(terms.cohorts, terms.dropout, least_honest(terms))
    return (2 * (terms.devices + noise) + 1).bit_length() if noise else terms.devices.bit_length()


def _check_number(releases: int, items: int) -> None:
    if max(releases, items) > _MOST or releases * items > _MOST_VOTES:
        raise ValueError(
            f"{releases:,} releases of {items:,} items of a device are not accounted for: "
            f"{_MOST:,} of each are the most, and {_MOST_VOTES:,} of both together; ask for less"
        )


def _sampled(question: ReleaseQuestion, releases: int) -> Release:
    if question.theta is not None and question.probability is not None:
        made = Release(probability=question.probability, threshold=question.theta, variance=0.0)
        _check_cost(question, made, releases)
        return made
    return _best(question, releases)


def _best(question: ReleaseQuestion, releases: int) -> Release:
    """Return the release by coins that shows the rarest cells."""
    found = best_design(
        _SCALE,
        question.epsilon,
        question.delta - question.unread,
        releases,
        question.contribution,
        question.relation,
    )
    theta = found.theta + question.colluders
    return Release(probability=found.m / _SCALE, threshold=theta, variance=0.0)


def _check_cost(question: ReleaseQuestion, release: Release, releases: int) -> None:
    loss = loss_of(question, release, releases).loss_to("public", question.relation)
    cost = float("inf") if loss is None else epsilon_of(composed([(loss, 1)]), question.delta)
    if cost > question.epsilon:
        best = _best(question, releases)
        raise ValueError(
            f"theta {release.threshold} with coins of {release.probability:g} costs epsilon "
            f"{cost:.4g} at delta {question.delta:g} over {releases} releases, above "
            f"{question.epsilon:g}: theta {best.threshold} with coins of "
            f"{best.probability:g} keeps it"
        )
