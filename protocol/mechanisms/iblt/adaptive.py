"""The adaptive subsampled IBLT: heavy hitters through a table that mostly common items enter.

Each device samples its histogram at threshold t (`threshold_sampling.py`) and inserts the sampled
items into an IBLT (`protocol/sketches/iblt/table.py`). The sum of the tables lists each sampled
item with the sum of its values, an unbiased estimate of its count. A table has room for L0 keys
(`iblt/layout.py`). So t must be so large that at most about L0 distinct items are sampled, and
not larger, since an item of count N is estimated with variance up to N (E[T] - 1). t therefore
adapts to the data:

    t_1  =  max(1, n m / L0)        at most L0 expected items, for any data of devices

and later by the question's `rule`, from the number of distinct items in the sum. This number is
exact if the table was read, and otherwise estimated from the part that is stuck.
`threshold_control.py` has the paper's rule and a better one. After a failed round t stays. Items
that earlier rounds listed help to read a table (`sketches/iblt/decoding.py`).

Source: Algorithm 4 and section 7 of [Gascon23]. The paper's fixed rule caps t at threshold / 2, so
that heavy hitters are in one round or more with probability 1 - e^-2. We do not: a table that
overflows at that t gives no estimate, while a larger t gives an unbiased estimate with a reported
variance. Our cap is 2 t_1: honest devices never need more, but false vectors could ask for it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from protocol.description import (
    CONTRIBUTION,
    MESSAGE_BYTES,
    SHORT_MAX_BYTES,
    STOP_FIELDS,
    THRESHOLD,
    Description,
    QuestionForm,
)
from protocol.estimation.estimates import add_estimates, totals_of_all_rounds
from protocol.estimation.rate_changes import RateHistory
from protocol.histograms import Histogram, keyed_histograms
from protocol.mechanism import Answer, CohortSum, add_sums
from protocol.mechanisms.iblt.sampled_table import (
    MAX_CELLS,
    SampledTable,
    TableQuestion,
    TableReading,
    check_message,
    max_cells,
    needed_bytes,
    sampled_table,
    worst_case_threshold,
)
from protocol.mechanisms.iblt.threshold_control import (
    TableLoad,
    ThresholdController,
    ThresholdRule,
    first_controller,
    log_change,
    paper_threshold,
)
from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler, coarse_threshold
from protocol.mechanisms.sampled_counts import (
    SampledCounts,
    max_device_counts,
    record_round_counts,
    round_count_history,
)
from protocol.numerics.array_types import Floats
from protocol.question_and_plan import Plan, Terms
from protocol.randomness import RandomWords, uniform_floats
from protocol.sketches.iblt.layout import capacity
from protocol.sketches.iblt.table import DecodedTable
from protocol.study_state import (
    StudyState,
    add_devices,
    add_recent_devices,
    expected_devices,
    recent_devices,
)
from secagg.ring import Ring, Vector

_CONTROLLER_ARRAY = "threshold controller"  # of the study state: the forecast of the next round


class AdaptiveIbltQuestion(TableQuestion):
    """Question for the heavy items of `domain`; the sampling threshold follows by `rule`."""

    mechanism: Literal["adaptive-iblt"] = "adaptive-iblt"
    rule: ThresholdRule = "steady"


class AdaptiveIbltPlan(Plan):
    """Plan of a round: sample at threshold `t` (not tau), and insert into a table of `cells`."""

    mechanism: Literal["adaptive-iblt"] = "adaptive-iblt"
    question: AdaptiveIbltQuestion
    cells: int = Field(ge=1, le=MAX_CELLS)

    @model_validator(mode="after")
    def _fits_the_message(self) -> Self:
        size = self.question.message_bytes
        if needed_bytes(self.question, self.terms, self.t, self.cells) > size:
            limit = max_cells(self.question, self.terms, self.t)
            raise ValueError(f"{self.cells} cells do not fit in {size:,} bytes; {limit} do")
        _table(self)
        return self

    @property
    def sampler(self) -> ThresholdSampler:
        return ThresholdSampler(self.t, self.question.contribution)


class AdaptiveIblt(SampledCounts[AdaptiveIbltQuestion, AdaptiveIbltPlan]):
    """Mechanism of one table per round, at a threshold that follows the data."""

    name = "adaptive-iblt"
    question_type = AdaptiveIbltQuestion
    plan_type = AdaptiveIbltPlan
    is_planned = True
    description = Description(
        purpose="heavy hitters by one table per round; devices learn nothing",
        cost="`message_bytes` per round",
        form=QuestionForm(
            "Common items, plans reveal none",
            "Heavy hitters among short strings. A plan has a threshold and a seed, and no items.",
            {"domain.kind": "utf8"},
            (
                *(
                    THRESHOLD,
                    CONTRIBUTION,
                    SHORT_MAX_BYTES,
                    replace(MESSAGE_BYTES, default="20000"),
                ),
                *STOP_FIELDS,
            ),
        ),
    )

    def table_capacity(self, plan: AdaptiveIbltPlan) -> int:
        return capacity(plan.cells)

    def _first_fields(
        self, question: AdaptiveIbltQuestion, terms: Terms, rounds: int
    ) -> dict[str, Any]:
        del rounds
        check_message(question, terms)
        # Cells count furthest at thresholds just below the contribution, which may come later.
        max_cells(question, terms, max(1.0, question.contribution - 0.5))
        t = worst_case_threshold(question, terms)
        return {"t": t, "cells": max_cells(question, terms, t)}

    def ring(self, plan: AdaptiveIbltPlan) -> Ring:
        return _table(plan).iblt.ring

    def encode_sum(
        self, plan: AdaptiveIbltPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> Vector:
        held = keyed_histograms(plan.question.domain, plan.question.contribution, histograms)
        return _table(plan).insert(held, uniform_floats(chance, len(held.counts)))

    def fault(self, plan: AdaptiveIbltPlan, total: Vector, participants: int) -> str | None:
        """Return the law of the table that `total` breaks; `SampledTable.fault` has the laws.

        A device that adds and subtracts honest tables is not detected. It can invent items, remove
        counts of other items, or change cells so that the sum cannot be read. All items together
        cannot have more counts than honest devices may sample.
        """
        held = participants * plan.question.contribution
        return _table(plan).fault(total, participants, held)

    def decode(
        self, plan: AdaptiveIbltPlan, total: Vector, participants: int, state: StudyState
    ) -> Answer:
        known = plan.question.domain.keys_of(state.items)
        return self._answer(plan, _table(plan).read(total, known), [participants], state)

    def decode_cohorts(
        self, plan: AdaptiveIbltPlan, sums: Sequence[CohortSum], state: StudyState
    ) -> Answer:
        ring, known = self.ring(plan), plan.question.domain.keys_of(state.items)
        total, _ = add_sums(ring, sums)
        tables = (ring.unpack(each.packed) for each in sums)
        reading = _table(plan).read(total, known, tables)
        return self._answer(plan, reading, [each.participants for each in sums], state)

    def _answer(
        self,
        plan: AdaptiveIbltPlan,
        reading: TableReading,
        devices: Sequence[int],
        state: StudyState,
    ) -> Answer:
        """Return the answer of a `reading`; `devices` are those of each cohort."""
        whole = reading.whole
        state = _update_controller(plan, whole, sum(devices), state)
        state = add_devices(state, sum(devices), is_read=whole.complete)
        if not whole.complete:
            state = record_round_counts(plan, state, sum(devices))
            return Answer(False, whole.distinct, state=state)
        estimates = _table(plan).estimates(plan.question.domain, reading, devices)
        state = add_estimates(state, estimates, max_device_counts(plan, estimates))
        spread = plan.sampler.mean_threshold - 1
        state = record_round_counts(plan, state, sum(devices), estimates, spread)
        return Answer(True, whole.distinct, tuple(estimates), state)

    def rate_history(
        self, plan: AdaptiveIbltPlan, state: StudyState, items: Sequence[str]
    ) -> RateHistory | None:
        return round_count_history(plan, state, items)

    def totals(self, state: StudyState) -> tuple[Floats, Floats]:
        return totals_of_all_rounds(state)

    def next_plan(
        self, plan: AdaptiveIbltPlan, answer: Answer | None, state: StudyState, rng: Random
    ) -> AdaptiveIbltPlan:
        t, limit = plan.t, capacity(plan.cells)
        if answer is not None and plan.question.rule == "paper":
            t = paper_threshold(t, answer.distinct, limit)
        elif answer is not None and _CONTROLLER_ARRAY in state.arrays:
            controller = ThresholdController.unpack(state.arrays[_CONTROLLER_ARRAY])
            devices = expected_devices(recent_devices(state), plan.terms.max_devices)
            t = controller.next_threshold(limit, devices)
        if answer is not None:
            t = coarse_threshold(max(1.0, t), log_change(plan.question.rule, limit))
        t = min(t, 2 * worst_case_threshold(plan.question, plan.terms))
        return plan.next_round(rng, t=t, cells=max_cells(plan.question, plan.terms, t))


def _update_controller(
    plan: AdaptiveIbltPlan, listing: DecodedTable, devices: int, state: StudyState
) -> StudyState:
    """Return `state` with the forecast of the next round updated."""
    if plan.question.rule == "paper":
        return state
    token_value = 1 if plan.sampler.unit > 1 else math.ceil(plan.t)  # of one sampled token
    singletons = int((listing.values <= token_value).sum()) if listing.complete else None
    load = TableLoad(plan.t, devices, listing.distinct, singletons)
    stored = state.arrays.get(_CONTROLLER_ARRAY)
    if stored is None:
        controller = first_controller(load)
    else:
        expected = expected_devices(recent_devices(state), plan.terms.max_devices)
        controller = ThresholdController.unpack(stored).updated(load, expected)
    return add_recent_devices(state, devices).with_array(_CONTROLLER_ARRAY, controller.pack())


def _table(plan: AdaptiveIbltPlan) -> SampledTable:
    return sampled_table(plan.question, plan.terms, plan.t, plan.cells, bytes.fromhex(plan.seed))
