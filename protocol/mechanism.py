"""Behaviour of mechanisms: they turn questions into plans, and sums into answers.

    study -> plan(r) -> encode (each device) -> vectors -> [sum] -> decode -> answer(r) -> plan(r+1)

A mechanism holds no state. It reads what earlier rounds found from the *study state*
(`study_state.py`), which `decode` receives and each answer returns updated. It does not know how
the sum is computed: there is only addition between `encode` and `decode`, and this is the
privacy boundary.

Mechanisms of reports (`report_mechanism.py`) need no secure sum: each device sends one message that
is private by itself, and the privacy boundary is the device.

Source: the setting of linear sketches over R rounds of [Gascon23, section 2].
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from protocol.estimation.estimates import (
    CONFIDENCE_LEVEL,
    COUNT_COLUMN,
    VARIANCE_COLUMN,
    Estimate,
    FinalAnswer,
    estimates_of_rows,
    gamma_interval,
    reaches_threshold,
)
from protocol.estimation.rate_changes import RateHistory
from protocol.histograms import Histogram
from protocol.numerics.array_types import Floats
from protocol.privacy.events import DpEvent, ExactSumEvent
from protocol.privacy.noise_shares import NoiseShares
from protocol.question_and_plan import P, Q, Terms, first_plan_fields
from protocol.randomness import RandomWords
from protocol.simulated_mechanism import SimulatedMechanism
from protocol.study_state import EMPTY_STATE, StudyState
from secagg.ring import Ring, Vector


@dataclass(frozen=True, slots=True)
class CohortSum:
    """Packed sum of one cohort of a round, and the number of devices in it."""

    packed: bytes
    participants: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one round, and the study state after it.

    `decoded` is true if the whole sum was read. `distinct` is the number of distinct keys in the
    sum, estimated if it was not read whole.
    """

    decoded: bool
    distinct: float
    estimates: tuple[Estimate, ...] = ()
    state: StudyState = EMPTY_STATE


class Mechanism(SimulatedMechanism[Q, P]):
    """Base of all mechanisms: makes plans from questions, and heavy hitters from study states.

    Randomness is an argument: `Random` for the seeds of plans, `RandomWords` for the draws of
    devices. Programs pass the randomness of the operating system.
    """

    seed_fields: tuple[str, ...] = ()  # additional seeds of 32 bytes, which stay for the study

    def first_plan(self, question: Q, terms: Terms, study: str, rounds: int, rng: Random) -> P:
        """Return the plan of round 1 of `rounds`.

        Raises ValueError if the question has no answer under these terms: the message is too small,
        the budget cannot be met, or counts may be too large. The text names a change.
        """
        own = self._first_fields(question, terms, rounds)
        shared = first_plan_fields(question, terms, study, rounds, rng)
        seeds = {name: rng.randbytes(32).hex() for name in self.seed_fields}
        return self.plan_type.model_validate(shared | own | seeds)

    def _first_fields(self, question: Q, terms: Terms, rounds: int) -> dict[str, Any]:
        """Return the fields of the first plan that the mechanism adds; by default none."""
        del question, terms, rounds
        return {}

    def next_plan(self, plan: P, answer: Answer | None, state: StudyState, rng: Random) -> P:
        """Return the plan of the next round; `answer` is None after a failed round.

        `state` is the study state after the last successful round. This default changes the seed
        only, for mechanisms that are not interactive.
        """
        del answer, state
        return plan.next_round(rng)

    def is_over(self, plan: P, answer: Answer | None, state: StudyState) -> bool:
        """Return whether the study is complete after the round of `plan`; here never."""
        del plan, answer, state
        return False

    @abstractmethod
    def dp_event(self, plan: P, rounds: int) -> DpEvent:
        """Return the privacy loss of a device over `rounds` rounds, for the ledger."""

    def shown(self, question: Q, state: StudyState) -> StudyState:
        """Return the part of `state` that answers may depend on; all that is published is from it.

        Items that too few devices were counted with are not in it. By default it is all of `state`:
        for counts with noise, coins or local randomness, and for sketches of exact counts, which
        devices with default settings refuse (`may_show_one_device`).
        """
        del question
        return state

    def shown_distinct(self, plan: P, answer: Answer) -> float | None:
        """Return the number of different items of a round as far as it is shown."""
        del plan
        return answer.distinct

    def final_estimates(self, question: Q, state: StudyState) -> list[Estimate]:
        """Return the heavy hitters of `state`, highest estimate first.

        This default reads the columns `count` and `variance`, summed over rounds: both add up,
        since rounds have different devices and independent randomness.
        """
        counts, variances = self.totals(state)
        is_heavy = reaches_threshold(counts, variances, question.threshold, question.confidence)
        return estimates_of_rows(state, np.flatnonzero(is_heavy), counts, variances)

    def final_answer(self, question: Q, state: StudyState) -> FinalAnswer:
        """Return the `final_estimates`, with the expected errors of the list if they are known."""
        return FinalAnswer(tuple(self.final_estimates(question, state)))

    def estimates_quality(self, question: Q) -> bool:
        """Return whether final answers to `question` state the expected errors of the list."""
        del question
        return False

    def totals(self, state: StudyState) -> tuple[Floats, Floats]:
        """Return the estimated counts of the items of `state` over all rounds, and variances."""
        return state.column(COUNT_COLUMN), state.column(VARIANCE_COLUMN)

    def rate_history(self, plan: P, state: StudyState, items: Sequence[str]) -> RateHistory | None:
        """Return the observations of heavy `items` by block of rounds; `plan` is of any round.

        None if the mechanism does not keep rounds apart, or before the first sum.
        """
        del plan, state, items
        return None

    def shown_totals(self, question: Q, state: StudyState) -> list[Estimate]:
        """Return the estimated totals of all shown items, listed or not; by default none."""
        del question, state
        return []

    def confidence_interval(
        self, counts: Floats, variances: Floats, level: float = CONFIDENCE_LEVEL
    ) -> tuple[Floats, Floats]:
        """Return lower and upper ends of intervals that hold each true count with `level`.

        This default is for sampled counts.
        """
        return gamma_interval(counts, variances, level)


class SumMechanism(Mechanism[Q, P]):
    """Base of mechanisms whose rounds are secure sums of vectors."""

    @abstractmethod
    def ring(self, plan: P) -> Ring:
        """Return the ring of the round's vectors; it is so wide that no sum can wrap.

        Its lanes have the moduli of the plan's sum (`Terms.moduli`).
        """

    def vector_bytes(self, plan: P) -> int:
        """Return the bytes of a packed vector."""
        return plan.terms.moduli.nbytes(self.ring(plan))

    def encode(self, plan: P, histogram: Histogram, chance: RandomWords) -> Vector:
        """Return the vector of one device; raises as `encode_sum`."""
        return self.encode_sum(plan, [histogram], chance)

    @abstractmethod
    def encode_sum(self, plan: P, histograms: Iterable[Histogram], chance: RandomWords) -> Vector:
        """Return the sum of the devices' vectors, identical to adding them one by one.

        An empty histogram gives a vector too. Raises ValueError if the counts of a device exceed
        the contribution bound or are not positive, or an item is outside the plan's domain.
        """

    def noise_shares(self, plan: P, contacted: int) -> NoiseShares | None:
        """Return the noise that each of `contacted` devices of a cohort adds to its vector.

        The default is None, for no noise. `encode` does not add the noise: its caller passes this
        to `add_noise`.
        """
        del plan, contacted
        return None

    def dp_event(self, plan: P, rounds: int) -> DpEvent:
        del plan, rounds
        return ExactSumEvent()

    @abstractmethod
    def fault(self, plan: P, total: Vector, participants: int) -> str | None:
        """Return the law that `total` breaks, which sums of honest vectors keep.

        Where chance decides, an honest sum breaks a law with probability 2^-63 at most. None if
        `total` breaks no law. That does not prove that all `participants` were honest: each
        mechanism documents the probability that a random vector breaks no law, and which
        false vectors it cannot detect.
        """

    @abstractmethod
    def decode(self, plan: P, total: Vector, participants: int, state: StudyState) -> Answer:
        """Return the answer of `total`, the sum of `participants` vectors, after earlier rounds."""

    def decode_cohorts(self, plan: P, sums: Sequence[CohortSum], state: StudyState) -> Answer:
        """Return the answer of a round from the `sums` of its cohorts, after earlier rounds.

        This default adds them up. Mechanisms that can also read the cohorts one by one may
        compare them.
        """
        return self.decode(plan, *add_sums(self.ring(plan), sums), state)

    def lift_by_liars(self, plan: P, liars: int) -> float:
        """Return the largest count in a round that `liars` devices give to an item nobody holds.

        Each of them is in another cohort if there are enough. This default is all that the devices
        of these cohorts could hold.
        """
        spoilt = min(liars, plan.terms.cohorts)
        return spoilt * float(plan.terms.cohort_size * plan.question.contribution)

    def is_decodable(self, plan: P, total: Vector, participants: int, state: StudyState) -> bool:
        """Return whether `decode` would read `total` whole; often cheaper than `decode`."""
        return self.decode(plan, total, participants, state).decoded


def add_sums(ring: Ring, sums: Iterable[CohortSum]) -> tuple[Vector, int]:
    """Return the sum of the cohorts' `sums`, and the number of devices in it."""
    total, participants = ring.zero(), 0
    for each in sums:
        ring.add_packed(total, each.packed)
        participants += each.participants
    return total, participants


def add_noise(ring: Ring, vector: Vector, shares: NoiseShares | None, chance: RandomWords) -> None:
    """Add the noise `shares` of one device to every element of its `vector`, in place."""
    if shares is None:
        return
    for lane, array in zip(ring.lanes, vector, strict=True):
        noise = shares.draw(chance, lane.length) % lane.q
        lane.add(array, noise.astype(lane.dtype))
