"""Frequency sketches as mechanisms: baselines that score every candidate in every round.

Devices add all of their items, unsampled, to a sketch of counters (`count_sketch.py`):
rows of counts (`count-median`), or of counts with random signs (`count-sketch`). The server reads
an estimate of every item of the domain from the sum of each round, and adds the estimates up over
rounds. All hash functions are fresh in each round, so errors are independent. They grow with the
square root of R for every item alike, for any count: sampled tables do better here.

So the domain must be small enough to list, and every item costs time.

**Noise.** With an `epsilon`, each device adds a share of Skellam noise to every cell, so that the
sum of a cohort hides each device also from the server. A device adds one item, which is 1 in a cell
of each of H rows, so the ledger charges H counts. The variance grows with H, and the median over H
rows takes that back: the noise of an estimate is that of pi / 2 counts, for any H.

Source: the baseline of section 7 of [Gascon23], which calls it both Count-median and Count-sketch
and does not specify whether it has signs; both are here. `rows` is its H.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from protocol.description import (
    DELTA,
    EPSILON,
    MESSAGE_BYTES,
    OPTIONS,
    THRESHOLD,
    Description,
    QuestionForm,
)
from protocol.domains import Domain
from protocol.estimation.empirical_bayes import decision_threshold, normal_posterior
from protocol.estimation.estimates import (
    CONFIDENCE_LEVEL,
    MAX_SHOWN_ESTIMATES,
    Estimate,
    estimates_of_values,
    normal_interval,
)
from protocol.histograms import Histogram, keyed_histograms
from protocol.mechanism import Answer, SumMechanism
from protocol.mechanisms.central.release_design import (
    max_noise,
    max_noise_variance,
    noise_shares,
    noise_variance_of,
)
from protocol.mechanisms.central.release_question import MIN_EPSILON
from protocol.numerics import special
from protocol.numerics.array_types import Floats, Keys
from protocol.privacy.events import DpEvent, SkellamNoiseEvent
from protocol.privacy.noise_shares import MAX_EVENTS, NoiseShares
from protocol.privacy.parameters_for_budget import min_variance
from protocol.privacy.release import Release
from protocol.question_and_plan import Plan, SumQuestion, Terms
from protocol.randomness import RandomWords
from protocol.reference_mechanisms.count_sketch import MAX_ROWS, CountSketch, cell_modulus
from protocol.reference_mechanisms.measured_noise import MeasuredNoise, posterior_with_noise
from protocol.round_sizes import max_elements, message_bytes
from protocol.study_state import StudyState
from secagg.ring import Lane, Ring, Vector

FrequencySketchName = Literal["count-median", "count-sketch"]
MAX_CANDIDATES = 2**20
_CELL_COUNT_LIMIT = 2**31
_EXPECTED_FALSE_POSITIVES = 0.3  # mean number of items of a study that only noise shows
# Arrays of the study state: the first two by candidate, and the number of devices.
_SCORES_ARRAY, _VARIANCES_ARRAY, _DEVICES_ARRAY = "scores", "variances", "devices"
# The same as of candidates, of keys that nobody holds.
_NOISE_ARRAY, _NOISE_VARIANCES_ARRAY = "scores of nobody", "variances of nobody"
_PRIVATE_FORM: Final = QuestionForm(
    "Counts of listed options, differentially private",
    "How many devices hold each option of a list. Devices add noise to the sums.",
    {"contribution": 1, "domain.kind": "listed"},
    (*(OPTIONS, replace(THRESHOLD, default="50"), EPSILON, DELTA), MESSAGE_BYTES),
)


class FrequencySketchQuestion(SumQuestion):
    """Question for the heavy items of a `domain` that can be listed; the sketch has `rows` rows.

    With an `epsilon`, noise hides each device at `delta`, over the whole study.
    """

    mechanism: FrequencySketchName
    rows: int = Field(default=7, ge=1, le=MAX_ROWS)
    epsilon: float | None = Field(default=None, ge=MIN_EPSILON, le=40)
    delta: float = Field(default=1e-6, ge=1e-11, lt=1)

    @property
    def is_signed(self) -> bool:
        return self.mechanism == "count-sketch"

    @property
    def max_votes(self) -> int:
        return self.rows * self.contribution

    @model_validator(mode="after")
    def _noise_hides_one_item(self) -> Self:
        if self.epsilon is not None and self.contribution > 1:
            raise ValueError("noise hides one item of a device: epsilon needs a contribution of 1")
        return self

    @model_validator(mode="after")
    def _can_be_enumerated(self) -> Self:
        if candidate_count(self.domain) > MAX_CANDIDATES:
            raise ValueError(
                f"{self.mechanism} scores every item: the domain has "
                f"{candidate_count(self.domain):,} keys, above the limit of {MAX_CANDIDATES:,}"
            )
        return self


class FrequencySketchPlan(Plan):
    """Plan of a round: add all items to a sketch of `width` cells per row."""

    mechanism: FrequencySketchName
    question: FrequencySketchQuestion
    width: int = Field(ge=2, le=2**26)
    release: Release | None = None

    @model_validator(mode="after")
    def _fits_the_message(self) -> Self:
        if self.width > _max_width(self.question, self.terms, self.release):
            size = self.question.message_bytes
            raise ValueError(f"rows of {self.width} do not fit in {size:,} bytes")
        return self

    @model_validator(mode="after")
    def _has_the_noise_of_its_question(self) -> Self:
        if (self.release is None) != (self.question.epsilon is None):
            raise ValueError("a plan has noise if its question has an epsilon, and only then")
        if self.release is not None and self.release.mode != "noise":
            raise ValueError(f"a sketch has noise and no coins, not the mode {self.release.mode}")
        shares = self.noise_shares(self.terms.minimum)
        events = 0 if shares is None else shares.share * self.question.rows * self.width
        if events > MAX_EVENTS:
            raise ValueError(
                f"the noise of {self.question.rows} rows of {self.width:,} is too much for cohorts "
                f"of {self.terms.minimum} devices: use a larger epsilon, a smaller "
                "message or more devices"
            )
        return self

    def noise_shares(self, contacted: int) -> NoiseShares | None:
        """Return the shares of a cohort of `contacted` devices; None if there is no noise."""
        if self.release is None:
            return None
        return noise_shares(self.release, self.terms, contacted)

    def max_noise_variance(self, participants: int) -> float:
        """Return the largest variance of the noise in a cell of the sum of `participants`."""
        if self.release is None:
            return 0.0
        return noise_variance_of(self.release, self.terms, participants)

    @property
    def sketch(self) -> CountSketch:
        seed, question = bytes.fromhex(self.seed), self.question
        return CountSketch(
            rows=question.rows,
            width=self.width,
            chunks=question.domain.chunks,
            max_count=_max_count(question, self.terms, self.release),
            location_seed=seed,
            sign_seed=seed if question.is_signed else None,
            has_noise=self.release is not None,
            moduli=self.terms.moduli,
        )


class FrequencySketchMechanism(SumMechanism[FrequencySketchQuestion, FrequencySketchPlan]):
    """Mechanism of a sketch that scores every candidate."""

    question_type = FrequencySketchQuestion
    plan_type = FrequencySketchPlan
    description = Description(
        purpose="counts of a small domain; private with `epsilon`", cost="`message_bytes` per round"
    )

    def aim(self, question: FrequencySketchQuestion, items: str) -> str:
        total = f"a total of {question.threshold:,.6g} or more"
        return f"Counts {items}, and lists those with {total}"

    def may_show_one_device(self, plan: FrequencySketchPlan) -> bool:
        del plan
        return True

    def __init__(self, name: FrequencySketchName) -> None:
        self.name = name
        if name == "count-median":
            self.description = replace(self.description, form=_PRIVATE_FORM)

    def _first_fields(
        self, question: FrequencySketchQuestion, terms: Terms, rounds: int
    ) -> dict[str, Any]:
        release = _smallest_noise(question)
        _check_threshold(question, noise_variance(release, terms, terms.cohorts) * rounds)
        width = _max_width(question, terms, release)
        if width < 2:
            q = _modulus(question, terms, release)
            needed = message_bytes(terms, Ring((Lane(q, 2 * question.rows),)))
            size = question.message_bytes
            raise ValueError(f"message_bytes {size:,} are too few: {needed:,} are needed")
        return {"width": width, "release": release}

    def noise_shares(self, plan: FrequencySketchPlan, contacted: int) -> NoiseShares | None:
        return plan.noise_shares(contacted)

    def dp_event(self, plan: FrequencySketchPlan, rounds: int) -> DpEvent:
        if plan.release is None:
            return super().dp_event(plan, rounds)
        return SkellamNoiseEvent(variance=plan.release.variance, items=plan.question.rows)

    def ring(self, plan: FrequencySketchPlan) -> Ring:
        return plan.sketch.ring

    def encode_sum(
        self, plan: FrequencySketchPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> Vector:
        del chance  # every item is added
        held = keyed_histograms(plan.question.domain, plan.question.contribution, histograms)
        return plan.sketch.insert(*held.item_totals(held.counts))

    def fault(self, plan: FrequencySketchPlan, total: Vector, participants: int) -> str | None:
        """Return the law of the sketch that `total` breaks; `count_sketch.py` has probabilities.

        A device that moves counts from one item to another is not detected, nor is, with signs, one
        that adds even amounts anywhere within the bound.
        """
        max_total = participants * plan.question.contribution
        variance = plan.max_noise_variance(participants)
        if variance:
            return plan.sketch.noisy_fault(total, max_total, variance)
        return plan.sketch.fault(total, max_total)

    def decode(
        self, plan: FrequencySketchPlan, total: Vector, participants: int, state: StudyState
    ) -> Answer:
        sketch, keys = plan.sketch, enumerate_keys(plan.question.domain)
        (scores, variances), noise = sketch.read(sketch.counts(total), keys)
        devices = np.array([float(participants)])
        added = {
            _SCORES_ARRAY: scores,
            _VARIANCES_ARRAY: variances,
            _NOISE_ARRAY: noise.counts,
            _NOISE_VARIANCES_ARRAY: noise.variances,
            _DEVICES_ARRAY: devices,
        }
        for name, column in added.items():
            # Studies of an earlier version have fewer keys of nobody.
            earlier = state.arrays.get(name, np.zeros(len(column)))
            state = state.with_array(name, earlier + column[: len(earlier)])
        is_shown = scores > (0 if plan.release is None else 3 * np.sqrt(variances))
        top = np.flatnonzero(is_shown)
        top = top[np.argsort(-scores[top], kind="stable")[:MAX_SHOWN_ESTIMATES]]
        possible = np.minimum(scores, plan.question.largest_count(participants))
        shown = estimates_of_values(plan.question.domain, top, possible, variances)
        distinct = (scores >= 0.5).sum() if plan.release is None else is_shown.sum()
        return Answer(True, float(distinct), tuple(shown), state)

    def final_estimates(
        self, question: FrequencySketchQuestion, state: StudyState
    ) -> list[Estimate]:
        scores = state.arrays.get(_SCORES_ARRAY, np.zeros(0))
        variances = state.arrays.get(_VARIANCES_ARRAY, scores)
        threshold = decision_threshold(question.threshold)
        if _NOISE_ARRAY in state.arrays:
            noise = MeasuredNoise(state.arrays[_NOISE_ARRAY], state.arrays[_NOISE_VARIANCES_ARRAY])
            result = posterior_with_noise(scores, variances, threshold, noise)
        else:  # a study of an earlier version
            result = normal_posterior(scores, variances, threshold)
        listed = np.flatnonzero(result.heavy >= question.confidence)
        devices = int(state.arrays.get(_DEVICES_ARRAY, np.zeros(1))[0])
        means = np.minimum(result.means, question.largest_count(devices))
        return estimates_of_values(question.domain, listed, means, result.variances, result.heavy)

    def confidence_interval(
        self, counts: Floats, variances: Floats, level: float = CONFIDENCE_LEVEL
    ) -> tuple[Floats, Floats]:
        low, high = normal_interval(counts, variances, level)
        return np.maximum(low, 0), high


COUNT_MEDIAN = FrequencySketchMechanism("count-median")
COUNT_SKETCH = FrequencySketchMechanism("count-sketch")


def candidate_count(domain: Domain) -> int:
    """Return the number of keys; some may have no item."""
    return int(domain.bound**domain.chunks)


def enumerate_keys(domain: Domain) -> Keys:
    """Return all keys of `domain`, which fit in one chunk."""
    return np.arange(candidate_count(domain), dtype=np.uint64).reshape(-1, 1)


def _smallest_noise(question: FrequencySketchQuestion) -> Release | None:
    """Return the noise that keeps the question's epsilon; None without one."""
    if question.epsilon is None:
        return None
    variance = min_variance(question.epsilon, question.delta, question.rows)
    return Release(probability=1.0, threshold=1, variance=variance)


def noise_variance(release: Release | None, terms: Terms, cohorts: int) -> float:
    """Return the largest variance of the noise in a cell of a sum of `cohorts`, 0 without noise."""
    if release is None:
        return 0.0
    return max_noise_variance(release, terms, cohorts)


def _noise_threshold(rows: int, variance: float, candidates: int) -> float:
    """Return a count that noise of `variance` in each cell gives to 0.3 of the items on average."""
    deviation: float = (variance * min(1.0, math.pi / (2 * rows))) ** 0.5
    return float(special.ndtri(1 - _EXPECTED_FALSE_POSITIVES / candidates)) * deviation


def _check_threshold(question: FrequencySketchQuestion, variance: float) -> None:
    """Raise ValueError if noise of `variance` alone reaches the threshold for some items."""
    candidates = candidate_count(question.domain)
    smallest = _noise_threshold(question.rows, variance, candidates) if variance else 0.0
    if question.threshold < smallest:
        raise ValueError(
            f"noise alone reaches a threshold of {question.threshold:g} for some of "
            f"{candidates:,} items: use {math.ceil(smallest):,} or more, or a larger epsilon"
        )


def _max_count(question: SumQuestion, terms: Terms, release: Release | None) -> int:
    max_count = terms.max_devices * question.contribution
    if release is not None:
        max_count += max_noise(release, terms)
    if max_count >= _CELL_COUNT_LIMIT:
        raise ValueError(
            f"a cell counts to less than {_CELL_COUNT_LIMIT:,}; devices may hold {max_count:,}"
        )
    return max_count


def _max_width(question: FrequencySketchQuestion, terms: Terms, release: Release | None) -> int:
    q = _modulus(question, terms, release)
    return max_elements(terms, question.message_bytes, q) // question.rows


def _modulus(question: FrequencySketchQuestion, terms: Terms, release: Release | None) -> int:
    is_signed = question.is_signed or release is not None
    return cell_modulus(_max_count(question, terms, release), terms.moduli, signed=is_signed)
