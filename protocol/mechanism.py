"""Behaviour of mechanisms: they turn questions into plans, and sums into answers.

    study -> plan(r) -> encode (each device) -> vectors -> [sum] -> decode -> answer(r) -> plan(r+1)

A mechanism holds no state. It reads what earlier rounds found from the *study state*
(`study.py`), which `decode` receives and each answer returns updated. It does not know how
the sum is computed: there is only addition between `encode` and `decode`, and this is the
privacy boundary.

Mechanisms of reports (`report_mechanism.py`) need no secure sum: each device sends one message that
is private by itself, and the privacy boundary is the device.

Source: the setting of linear sketches over R rounds of [Gascon23, section 2].
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from protocol.arrays import Floats, Indices
from protocol.changes import RateHistory
from protocol.domains.strings import Domain
from protocol.histograms import Histogram
from protocol.model import PublicModel
from protocol.privacy.events import DpEvent, ExactSumEvent
from protocol.privacy.noise import NoiseShares
from protocol.randomness import RandomWords
from protocol.scipy_modules import special
from protocol.study import EMPTY_STATE, P, Q, StudyState, Terms, first_plan_fields
from secagg.ring import Ring, Vector

CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated count of an item in one round, or over several rounds, with its variance.

    `cohort_p_value` is the probability that cohorts of honest devices differ as much as in one of
    the rounds; None if that is not notable, or the cohorts were not compared. `probability` is that
    of a heavy item, if the mechanism estimates it from the distribution of all items.
    """

    item: str
    count: float
    variance: float
    cohort_p_value: float | None = None
    probability: float | None = None


class ListQuality(PublicModel):
    """Expected errors of a list of heavy hitters, and the items that are not on it.

    `expected_precision` is the expected share of listed items that are heavy, and `expected_missed`
    the expected number of heavy items that are not listed. `tokens` is the estimated number of
    tokens of all items, of which `unlisted_share` belong to items that are not listed.
    `distinct_items` is a lower bound: there may be more items that are too rare for an estimate.
    """

    expected_precision: float
    expected_missed: float
    tokens: float
    tokens_standard_error: float
    unlisted_share: float
    distinct_items: float


def quality_sentence(quality: ListQuality) -> str:
    """Return `quality` in words."""
    return (
        f"Of the heavy hitters listed, {quality.expected_precision:.1%} are expected to reach the "
        f"threshold, and about {quality.expected_missed:,.0f} others to reach it as well. Items "
        f"that are not listed have {quality.unlisted_share:.0%} of all tokens, of which there are "
        f"about {quality.tokens:,.0f}. There are about {quality.distinct_items:,.0f} different "
        "items."
    )


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """Heavy hitters of a study, highest estimate first; `quality` is None if it is not known."""

    heavy_hitters: tuple[Estimate, ...]
    quality: ListQuality | None = None


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


class Mechanism(ABC, Generic[Q, P]):
    """Base of all mechanisms: makes plans from questions, and heavy hitters from study states.

    Randomness is an argument: `Random` for the seeds of plans, `RandomWords` for the draws of
    devices. Programs pass the randomness of the operating system.
    """

    name: str
    plan_type: type[P]
    seed_fields: tuple[str, ...] = ()  # additional seeds of 32 bytes, which stay for the study

    def first_plan(self, question: Q, terms: Terms, study: str, rounds: int, rng: Random) -> P:
        """Return the plan of round 1 of `rounds`.

        Raises ValueError if the question has no answer under these terms: the words are too few,
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

    def totals(self, state: StudyState) -> tuple[Floats, Floats]:
        """Return the estimated counts of the items of `state` over all rounds, and variances."""
        return state.column(COUNT_COLUMN), state.column(VARIANCE_COLUMN)

    def rate_history(self, plan: P, state: StudyState, items: Sequence[str]) -> RateHistory | None:
        """Return the observations of heavy `items` by block of rounds; `plan` is of any round.

        None if the mechanism does not keep rounds apart, or before the first sum.
        """
        del plan, state, items
        return None

    def remembers_all(self, state: StudyState) -> bool:
        """Return whether the columns of `state` add up to unbiased totals of many items.

        Then it has all items that were sampled, also rare ones, of nearly all rounds.
        """
        del state
        return False

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
        """Return the ring of the round's vectors; it is so wide that no sum can wrap."""

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


COUNT_COLUMN, VARIANCE_COLUMN = "count", "variance"  # columns of a study state
_COHORT_EVIDENCE_COLUMN = "cohort evidence"  # -ln of the smallest p-value of a round, if notable
MAX_SHOWN_ESTIMATES = 1000  # of the estimates of one round


def ranked(estimates: Iterable[Estimate]) -> list[Estimate]:
    """Return `estimates`, highest count first; equal counts in the order of items."""
    return sorted(estimates, key=lambda estimate: (-estimate.count, estimate.item))


def estimates_of_values(
    domain: Domain, values: Indices, counts: Floats, variances: Floats
) -> list[Estimate]:
    """Return the ranked estimates of `values`, which are also the indices of their counts."""
    names = domain.names_of(values.astype(np.uint64))
    return ranked(
        Estimate(name, float(counts[value]), float(variances[value]))
        for name, value in zip(names, values.tolist(), strict=True)
        if name is not None
    )


def estimates_of_rows(
    state: StudyState,
    rows: Indices,
    counts: Floats,
    variances: Floats,
    probabilities: Floats | None = None,
) -> list[Estimate]:
    """Return the ranked estimates of the items in `rows` of `state`, with their p-values."""
    evidence = state.column(_COHORT_EVIDENCE_COLUMN)
    return ranked(
        Estimate(
            state.items[row],
            float(counts[row]),
            float(variances[row]),
            math.exp(-evidence[row]) if evidence[row] else None,
            None if probabilities is None else float(probabilities[row]),
        )
        for row in rows.tolist()
    )


def flags(state: StudyState) -> NDArray[np.bool_]:
    """Return for each item of `state` whether its cohorts differed notably in a round."""
    flagged: NDArray[np.bool_] = state.column(_COHORT_EVIDENCE_COLUMN) > 0
    return flagged


def add_estimates(state: StudyState, estimates: Sequence[Estimate]) -> StudyState:
    """Return `state` with the counts and variances of a round's `estimates` added.

    Of the p-values of an item in several rounds, the smallest is kept.
    """
    counts = np.array([estimate.count for estimate in estimates], np.float64)
    variances = np.array([estimate.variance for estimate in estimates], np.float64)
    items = [estimate.item for estimate in estimates]
    state = state.add(items, {COUNT_COLUMN: counts, VARIANCE_COLUMN: variances})
    flagged = [each for each in estimates if each.cohort_p_value is not None]
    if not flagged:
        return state
    evidence = state.column(_COHORT_EVIDENCE_COLUMN).copy()
    for each in flagged:
        assert each.cohort_p_value is not None
        row, of_round = state.rows[each.item], -math.log(max(each.cohort_p_value, math.ulp(0)))
        evidence[row] = max(evidence[row], of_round)
    return state.with_column(_COHORT_EVIDENCE_COLUMN, evidence)


def replace_estimates(state: StudyState, estimates: Sequence[Estimate]) -> StudyState:
    """Return `state` with its estimates replaced by `estimates`, which cover all rounds."""
    return add_estimates(StudyState(arrays=state.arrays), estimates)


def count_significant(estimates: Iterable[Estimate]) -> float:
    """Return the number of `estimates` above three of their standard deviations."""
    return float(sum(each.count > 3 * each.variance**0.5 for each in estimates))


def gamma_interval(
    counts: Floats, variances: Floats, level: float = CONFIDENCE_LEVEL
) -> tuple[Floats, Floats]:
    """Return the ends of intervals that hold each true count with probability `level`.

    A count that is estimated from samples is a weighted sum of Poisson counts, and skewed if it
    rests on few of them. So its interval is the one of a gamma distribution with the same mean y
    and variance v, whose upper end is moved by one more sample of weight w = v / y:

        low   =  quantile(a / 2)      of Gamma(mean y, variance v)
        high  =  quantile(1 - a / 2)  of Gamma(mean y + w, variance v + w^2)

    It is nearly the normal interval if v is small compared with y. It holds for an item that is
    chosen beforehand. Of the items that are reported *because* their estimates are high, more are
    estimated too high than too low.

    Source: [FayFeuer97], for weighted sums of Poisson counts.
    """
    low, high = counts.astype(np.float64), counts.astype(np.float64)
    regular = (variances > 0) & (counts > 0)
    y, v = low[regular], variances[regular]
    w, tail = v / y, (1 - level) / 2
    low[regular] = special.gammaincinv(y**2 / v, tail) * w
    mean, spread = y + w, v + w**2
    high[regular] = special.gammainccinv(mean**2 / spread, tail) * spread / mean
    return low, high


def normal_interval(
    counts: Floats, variances: Floats, level: float = CONFIDENCE_LEVEL
) -> tuple[Floats, Floats]:
    """Return the ends of normal intervals that hold each true count with probability `level`.

    They are for counts that are estimated from locally private reports: sums of noise that is much
    larger than the count's own part. They may be below 0.
    """
    margin = -float(special.ndtri((1 - level) / 2)) * np.sqrt(np.maximum(variances, 0))
    return counts - margin, counts + margin


def reaches_threshold(
    counts: Floats, variances: Floats, threshold: float, confidence: float
) -> NDArray[np.bool_]:
    """Return for each count whether it is `threshold` or more with probability `confidence`.

    At 1/2 the estimate alone decides. An item with exactly this count is treated as heavy with
    probability about 1 - `confidence`.
    """
    margin = float(special.ndtri(confidence)) * np.sqrt(np.maximum(variances, 0))
    heavy: NDArray[np.bool_] = counts >= threshold + margin
    return heavy
