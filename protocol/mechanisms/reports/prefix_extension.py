"""Prefix extension: the heavy strings of a domain that is too large to list, from one report each.

An item is its UTF-8, padded with NUL to `max_bytes`. A device without an item reports a string of
bytes 255, which is not UTF-8, like any other string. A report is the length of a prefix, drawn at
random, and the report of an oracle for the prefix (`protocol/oracles/prefix_extension.py`). The
epsilon of the oracle is spent once.

    count  =  (n / n_g) (the oracle's count among the n_g devices that drew the whole length)

The study state keeps the reports of all rounds: candidates arise as prefixes are extended, and the
oracle must be queried for them. Hash functions and parameters stay for the study, so that after
round r it has the result that one round with all of its devices would have.

Source: [Wang21]; see `docs/research/hsu2012.md`. The string for "no item" is ours.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from protocol.description import (
    PURE_REPORT_GUARANTEE,
    REPORT_EPSILON,
    SHORT_MAX_BYTES,
    THRESHOLD,
    Bar,
    Description,
    QuestionForm,
)
from protocol.domains import Domain
from protocol.domains.known_items import KnownItems
from protocol.domains.strings import Utf8
from protocol.estimation.estimates import (
    MAX_SHOWN_ESTIMATES,
    Estimate,
    count_significant,
    ranked,
    replace_estimates,
)
from protocol.histograms import Histogram, device_rows
from protocol.mechanism import Answer
from protocol.numerics.array_types import PackedReports
from protocol.oracles.oracle import Oracle, OracleParameters
from protocol.oracles.prefix_extension import PrefixExtension
from protocol.oracles.registry import check_parameters, oracle_for, oracle_from_parameters
from protocol.public_model import Hex32
from protocol.question_and_plan import Terms
from protocol.randomness import RandomWords
from protocol.report_advice import ReportCandidate, ReportWish
from protocol.report_mechanism import ReportMechanism, ReportPlan, ReportQuestion, noise_bar
from protocol.study_state import StudyState

_NO_ITEM_BYTE = np.uint8(255)
_REPORTS_ARRAY = "reports"  # of the study state: of all rounds so far


class PrefixQuestion(ReportQuestion):
    """Question for heavy strings: prefixes have `start` bits, then `step` more for each length.

    `candidates_per_length` prefixes of each length are extended. A string that no device holds is
    listed with probability `beta`. The `oracle` counts prefixes hashed to `hashed_bits` bits: a
    candidate has the key of another, heavy prefix with probability 2^-hashed_bits.
    """

    public_name: ClassVar[str] = "PrefixExtension"
    mechanism: Literal["prefix-extension"]
    domain: Utf8
    oracle: Literal["hadamard", "ocms-gf"] = "hadamard"
    hashed_bits: int = Field(default=22, ge=8, le=24)
    start: int = Field(default=12, ge=1, le=20)
    step: int = Field(default=8, ge=1, le=16)
    candidates_per_length: int = Field(default=64, ge=1, le=2**16)
    beta: float = Field(default=0.05, gt=0, lt=1)

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        self.extension(self.chosen_oracle, bytes(32))
        return self

    @property
    def chosen_oracle(self) -> Oracle:
        """Return the oracle with the parameters that minimise the sum of squared errors."""
        return oracle_for(self.oracle, self.epsilon, 2**self.hashed_bits, "l2")

    def extension(self, oracle: Oracle, seed: bytes) -> PrefixExtension:
        """Return prefix extension over `oracle`, with hash functions of the 32 bytes `seed`."""
        return PrefixExtension(
            oracle=oracle,
            size=self.domain.max_bytes,
            seed=seed,
            start=self.start,
            step=self.step,
            keep=self.candidates_per_length,
            beta=self.beta,
        )


class PrefixPlan(ReportPlan):
    """Plan of a round: report by the oracle of `parameters`, with hash functions of `hash_seed`."""

    mechanism: Literal["prefix-extension"]
    question: PrefixQuestion
    parameters: OracleParameters
    hash_seed: Hex32

    @model_validator(mode="after")
    def _is_the_oracle_asked_for(self) -> Self:
        question = self.question
        values = 2**question.hashed_bits
        check_parameters(self.parameters, question.oracle, question.epsilon, values)
        return self

    @cached_property
    def extension(self) -> PrefixExtension:
        """Return the prefix extension that makes and reads reports."""
        seed = bytes.fromhex(self.hash_seed)
        return self.question.extension(oracle_from_parameters(self.parameters), seed)


@dataclass(frozen=True, eq=False)
class ReportBatches:
    """Reports, in the batches in which they arrived."""

    batches: tuple[PackedReports, ...] = field(repr=False)

    @property
    def reports(self) -> int:
        return sum(map(len, self.batches))

    def __add__(self, other: "ReportBatches") -> "ReportBatches":
        return ReportBatches(self.batches + other.batches)


class PrefixExtensionMechanism(ReportMechanism[PrefixQuestion, PrefixPlan, ReportBatches]):
    """Mechanism of one report about a random prefix."""

    name = "prefix-extension"
    question_type = PrefixQuestion
    description = Description(
        purpose="heavy strings of any length; recommended for them",
        cost="8 bits and an oracle's",
        guarantee=PURE_REPORT_GUARANTEE,
        form=QuestionForm(
            "Common strings, from private reports",
            "Strings without a known list, from one private report per device. It needs many "
            "devices.",
            {"contribution": 1, "domain.kind": "utf8"},
            (
                SHORT_MAX_BYTES,
                replace(THRESHOLD, default="1000"),
                replace(REPORT_EPSILON, default="4"),
            ),
        ),
    )
    plan_type = PrefixPlan
    seed_fields = ("hash_seed",)

    def domain_about(self, known: KnownItems, fields: Mapping[str, Any]) -> Domain:
        del fields
        if known.alphabet is not None:
            raise ValueError("prefix-extension is of strings of any characters: leave out alphabet")
        return Utf8(max_bytes=known.levels or max(2, known.longest))

    def candidates(self, wish: ReportWish) -> Iterator[ReportCandidate]:
        """Yield the question for strings without a dictionary, of which only detection is known."""
        if wish.values is not None or wish.goal != "heavy":
            return
        question = {"mechanism": self.name, "epsilon": wish.epsilon}
        question |= {"domain": {"kind": "utf8", "max_bytes": wish.max_bytes}}
        asked = PrefixQuestion.model_validate(question | {"threshold": 1})
        oracle = asked.chosen_oracle
        extension = asked.extension(oracle, bytes(32))
        lengths = len(extension.lengths)
        yield ReportCandidate(
            question,
            oracle.parameters | {"lengths": lengths},
            -(-extension.bits // 8),
            lambda users: extension.reliably_detected_count(users) / users,
            lambda users: lengths * oracle.decode_ns(users // lengths) / 1e9,
        )

    def measures(
        self, plan: PrefixPlan, state: StudyState, truth: Mapping[str, int], devices: int
    ) -> dict[str, Any]:
        count = plan.extension.reliably_detected_count(devices) if devices else math.inf
        detectable = {"min_detectable_count": count if math.isfinite(count) else None}
        return super().measures(plan, state, truth, devices) | detectable

    def bars(self, plan: PrefixPlan, devices: int | None) -> Iterator[Bar]:
        if devices:
            yield noise_bar(plan, plan.extension.reliably_detected_count(devices))

    def _first_fields(self, question: PrefixQuestion, terms: Terms, rounds: int) -> dict[str, Any]:
        del terms, rounds
        return {"parameters": question.chosen_oracle.parameters}

    def nbytes(self, plan: PrefixPlan) -> int:
        return -(-plan.extension.bits // 8)

    def encode(
        self, plan: PrefixPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> PackedReports:
        domain = plan.question.domain
        rows = device_rows(domain, histograms, domain.digits_of, _NO_ITEM_BYTE, "padded strings")
        return plan.extension.perturb(rows, chance)

    def check(self, plan: PrefixPlan, reports: PackedReports) -> None:
        plan.extension.check(reports)

    def aggregate(self, plan: PrefixPlan, reports: PackedReports) -> ReportBatches:
        self.check(plan, reports)
        return ReportBatches((reports,))

    def decode(self, plan: PrefixPlan, aggregate: ReportBatches, state: StudyState) -> Answer:
        """Return the estimates of this round; the study state has those of all rounds.

        A round in which no device drew one of the lengths is not decoded, but its reports count.
        """
        reports = np.concatenate(aggregate.batches)
        earlier = state.arrays.get(_REPORTS_ARRAY, reports[:0])
        all_reports = np.concatenate((earlier, reports))
        estimates = _heavy_estimates(plan, reports)
        total = _heavy_estimates(plan, all_reports) if len(earlier) else estimates
        state = replace_estimates(state, total or []).with_array(_REPORTS_ARRAY, all_reports)
        if estimates is None:
            return Answer(False, 0.0, state=state)
        return Answer(True, count_significant(estimates), tuple(estimates), state)


def _heavy_estimates(plan: PrefixPlan, reports: PackedReports) -> list[Estimate] | None:
    """Return the listed items; None if a length has no report."""
    extension = plan.extension
    if not np.bincount(reports[:, 0], minlength=len(extension.lengths)).all():
        return None
    hitters = extension.identify(reports, MAX_SHOWN_ESTIMATES)
    domain = plan.question.domain
    # None for the string for "no item", and for noise.
    items = [domain.item_of(np.frombuffer(hitter.value, np.uint8)) for hitter in hitters]
    return ranked(
        Estimate(item, min(hitter.count, len(reports)), hitter.variance)
        for item, hitter in zip(items, hitters, strict=True)
        if item is not None
    )
