"""The subsampled IBLT: b tables per round at one fixed threshold t, and a vote over the study.

Each device samples its histogram b times, each time with fresh randomness, and inserts each sample
into a table with its own hash functions. A *repetition* is one of the b tables in every round.
An item is on the list of a repetition if any of its tables that were read whole holds it. It is
heavy if b / 2 lists or more have it. Two rules choose t, b and the room L0 of the tables:

    theorem     t = max(1, tau / 2),  b = max(260, ceil(20 ln(40 m n R / (tau beta)))),
                L0 = 2 m n / tau ln R: with probability 1 - beta, every item with a count of tau or
                more over all rounds is heavy, and no item with a count of tau / 10 or less
    practical   t = max(1, min(n m / L0, tau / 2)) with the largest table that the message holds,
                b = 1, and an item is heavy if its *estimate* is tau or more. The analyst may give t
                instead: with t = 1 all items are in the table

Estimates are means over the repetitions that were read, and add up over rounds. Items that earlier
rounds listed help to read the table of the practical rule (`sketches/iblt/decoding.py`).

Source: Algorithm 2, theorem 1 with appendix A, and section 7 of [Gascon23]. The paper prints
two values of b and two of L0; ours are those that its proof uses:

    b     the box has ceil(10 ln(4 m n R / (tau beta))). The proof needs 20 ln(40 ..) and b >= 260
          for its bound (2) on light items. (By Hoeffding, 10 ln(4 ..) suffices: the vote on an
          item is wrong with probability e^(-0.18 b) at most, since a heavy item is on a list with
          probability 4/5 and a light one with 1/5, and there are at most 21 m n R / tau of both.)
    L0    the box has 20 m n / tau ln R, lemma 4 proves 2 m n / tau ln R for R > 32 and m n >
          4 tau. It writes 1 / tau for the probability of a token, but t = tau / 2 keeps it with
          2 / tau. The bound holds: mu = 2 m n / tau >= 8 tokens are expected, and they exceed mu
          ln R with probability e^-mu(ln R ln ln R - ln R + 1) < 1 / (32 R). Otherwise we take
          R = 33 and m n = 4 tau
    k     the box has gamma = ln R hash functions, so that a table fails with probability
          1 / (32 R). Most of our keys have three cells, and we make the table so large that no two
          of mu keys share all of their cells with that probability:
          mu^2 / 2 (3 / cells)^3 <= 1 / (32 R)
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from protocol.description import Description
from protocol.estimation.estimates import (
    Estimate,
    FinalAnswer,
    add_estimates,
    ranked,
    totals_of_all_rounds,
)
from protocol.estimation.rate_changes import RateHistory
from protocol.histograms import Histogram, KeyedHistograms, keyed_histograms
from protocol.mechanism import Answer, CohortSum, add_sums
from protocol.mechanisms.iblt.sampled_table import (
    MAX_CELLS,
    SampledTable,
    check_message,
    check_size,
    max_cells,
    needed_bytes,
    sampled_table,
    worst_case_threshold,
)
from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler
from protocol.mechanisms.sampled_counts import (
    SampledCounts,
    max_device_counts,
    record_round_counts,
    round_count_history,
)
from protocol.numerics.array_types import Flags, Floats
from protocol.question_and_plan import Plan, SumQuestion, Terms
from protocol.randomness import RandomWords, uniform_floats
from protocol.sketches.iblt.layout import cells_for
from protocol.study_state import StudyState, add_devices
from secagg.ring import Lane, Ring, Vector

_LISTS_ARRAY = "lists"  # of the study state: (items, repetitions), true if on the list
MAX_TABLES = 2_000  # the theorem needs fewer than 1,500; each lane of a table takes its time


@dataclass(frozen=True, slots=True)
class TableReadings:
    """Estimates of the tables of a round, one list for each; empty if it was not read.

    The round has `devices` devices.
    """

    devices: int
    lists: Sequence[Sequence[Estimate]]
    decoded_tables: int
    distinct: float

    def answer(self, plan: Plan, state: StudyState) -> Answer:
        """Return the means of the tables that were read; decoded if half of them or more were."""
        state = add_devices(state, self.devices, is_read=self.decoded_tables > 0)
        if self.decoded_tables == 0:
            state = record_round_counts(plan, state, self.devices)
            return Answer(False, self.distinct, state=state)
        is_enough, means = 2 * self.decoded_tables >= len(self.lists), self.mean()
        sampler = ThresholdSampler(plan.t, plan.question.contribution)
        spread = (sampler.mean_threshold - 1) / self.decoded_tables
        state = record_round_counts(plan, self.record(plan, state), self.devices, means, spread)
        return Answer(is_enough, self.distinct, tuple(means), state)

    def mean(self) -> list[Estimate]:
        """Return the means over the tables that were read; an item counts 0 if it is not listed."""
        if len(self.lists) == 1:
            return list(self.lists[0])
        counts: dict[str, float] = {}
        variances: dict[str, float] = {}
        p_values: dict[str, float] = {}
        shares: dict[str, float] = {}
        for estimates in self.lists:
            for each in estimates:
                item, variance = each.item, each.variance / self.decoded_tables**2
                counts[item] = counts.get(item, 0) + each.count / self.decoded_tables
                variances[item] = variances.get(item, 0) + variance
                shares[item] = min(shares.get(item, 1.0), each.counted_share)
                if each.cohort_p_value is not None:
                    p_values[item] = min(p_values.get(item, 1.0), each.cohort_p_value)
        return ranked(
            Estimate(
                item, counts[item], variances[item], p_values.get(item), counted_share=shares[item]
            )
            for item in counts
        )

    def record(self, plan: Plan, state: StudyState) -> StudyState:
        """Return `state` with the means and the lists added."""
        means = self.mean()
        state = add_estimates(state, means, max_device_counts(plan, means))
        lists: Flags = np.zeros((len(state.items), len(self.lists)), np.bool_)
        earlier = state.arrays.get(_LISTS_ARRAY, lists[:0])
        lists[: len(earlier)] = earlier
        for repetition, estimates in enumerate(self.lists):
            lists[[state.rows[each.item] for each in estimates], repetition] = True
        return state.with_array(_LISTS_ARRAY, lists)


def elected_rows(state: StudyState) -> list[int]:
    """Return the rows of the items that half of the lists or more have."""
    lists = state.arrays.get(_LISTS_ARRAY, np.zeros((0, 1), np.bool_))
    return np.flatnonzero(2 * lists.sum(axis=1) >= lists.shape[1]).tolist()


@dataclass(frozen=True, slots=True)
class Repetitions:
    """`tables` tables of `cells` cells for one round, sampled at threshold `t`."""

    question: SumQuestion
    terms: Terms
    t: float
    tables: int
    cells: int
    seed: bytes

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return the lanes of all tables, one table after the other."""
        return self.sub_table(0).iblt.ring.lanes * self.tables

    def insert(self, held: KeyedHistograms, chance: RandomWords) -> Vector:
        """Return the sum of the devices' tables; draws a number for each holding and table."""
        uniform = uniform_floats(chance, len(held.counts) * self.tables).reshape(-1, self.tables)
        parts = (self.sub_table(j).insert(held, uniform[:, j]) for j in range(self.tables))
        return tuple(lane for part in parts for lane in part)

    def fault(self, total: Vector, participants: int) -> str | None:
        """Return the law that a table of `total` breaks; `SampledTable.fault` has the laws."""
        held = participants * self.question.contribution
        for number, (table, part) in enumerate(self._each(total)):
            fault = table.fault(part, participants, held)
            if fault is not None:
                return fault if self.tables == 1 else f"table {number}: {fault}"
        return None

    def read(
        self,
        total: Vector,
        devices: Sequence[int],
        cohorts: Sequence[Vector] = (),
        known_items: Sequence[str] = (),
    ) -> TableReadings:
        """Return the estimates of all tables, and the mean number of distinct keys.

        `devices` are those of each cohort. A table that is too full is read by its `cohorts`, and
        one table alone also with the help of `known_items`; for hundreds, that would take minutes.
        """
        known = self.question.domain.keys_of(known_items) if self.tables == 1 else None
        parts = [[part for _, part in self._each(vector)] for vector in cohorts]
        readings = [
            (table, table.read(part, known, [each[number] for each in parts]))
            for number, (table, part) in enumerate(self._each(total))
        ]
        lists = [
            table.estimates(self.question.domain, each, devices) if each.whole.complete else []
            for table, each in readings
        ]
        distinct = sum(each.whole.distinct for _, each in readings) / self.tables
        decoded_tables = sum(each.whole.complete for _, each in readings)
        return TableReadings(sum(devices), lists, decoded_tables, distinct)

    def _each(self, total: Vector) -> Iterator[tuple[SampledTable, Vector]]:
        lanes = len(total) // self.tables
        for number in range(self.tables):
            yield self.sub_table(number), total[number * lanes : (number + 1) * lanes]

    def sub_table(self, number: int) -> SampledTable:
        seed = sha256(self.seed + number.to_bytes(4, "big")).digest()
        return sampled_table(self.question, self.terms, self.t, self.cells, seed)


class SubsampledIbltQuestion(SumQuestion):
    """Question for heavy items, sampled at the same threshold in each round.

    `rule` chooses t, b and the size of the tables. `beta` is the failure probability of the
    theorem. `t` replaces the t of the practical rule. `repetitions` replaces the b of the theorem,
    which then does not hold.
    """

    mechanism: Literal["subsampled-iblt"] = "subsampled-iblt"
    rule: Literal["practical", "theorem"] = "practical"
    t: float | None = Field(default=None, ge=1, le=1e15)
    beta: float = Field(default=0.05, gt=0, lt=1)
    repetitions: int | None = Field(default=None, ge=1, le=MAX_TABLES)

    @model_validator(mode="after")
    def _is_of_one_rule(self) -> Self:
        if self.rule == "theorem" and self.t is not None:
            raise ValueError("t needs the practical rule: the t of the theorem is tau / 2")
        if self.rule == "practical" and self.repetitions is not None:
            raise ValueError("repetitions need the rule theorem: the practical rule has one table")
        return self

    @property
    def min_reported_count(self) -> float:
        """Return 1 for the theorem's rule, which reports what half of the tables list."""
        return 1 if self.rule == "theorem" else self.threshold


class SubsampledIbltPlan(Plan):
    """Plan of a round: sample at `t`, and insert into `tables` tables of `cells` cells each."""

    mechanism: Literal["subsampled-iblt"] = "subsampled-iblt"
    question: SubsampledIbltQuestion
    cells: int = Field(ge=1, le=MAX_CELLS)
    tables: int = Field(ge=1, le=MAX_TABLES)

    @model_validator(mode="after")
    def _fits_the_message(self) -> Self:
        sizes = self.t, self.cells, self.tables
        check_size(self.question, needed_bytes(self.question, self.terms, *sizes))
        sampled_table(self.question, self.terms, self.t, self.cells, bytes(32))
        return self

    @property
    def repetitions(self) -> Repetitions:
        seed = bytes.fromhex(self.seed)
        return Repetitions(self.question, self.terms, self.t, self.tables, self.cells, seed)


class TheoremParameters(NamedTuple):
    """Parameters of the theorem: threshold, number of tables, cells and keys of each."""

    t: float
    tables: int
    cells: int
    capacity: int


def theorem_parameters(tau: float, beta: float, tokens: int, rounds: int) -> TheoremParameters:
    """Return the parameters for `tokens` = m n per round, as derived above."""
    mean = 2 * max(tokens, 4 * tau) / tau
    capacity = math.ceil(mean * math.log(max(rounds, 33)))
    tables = 20 * math.log(40 * max(tokens * rounds / (tau * beta), 1))
    cells = cells_without_collisions(capacity, mean, 1 / (32 * max(rounds, 33)))
    return TheoremParameters(max(1.0, tau / 2), max(260, math.ceil(tables)), cells, capacity)


def cells_without_collisions(capacity: int, keys: float, failure: float) -> int:
    """Return cells for `capacity` keys where two of `keys` share all cells with `failure`."""
    min_cells, limit = 3 * (keys * keys / (2 * failure)) ** (1 / 3), capacity
    while cells_for(limit) < min_cells:
        limit = math.ceil(limit * 1.02)
    return cells_for(limit)


class SubsampledIblt(SampledCounts[SubsampledIbltQuestion, SubsampledIbltPlan]):
    """Mechanism of tables at one fixed threshold."""

    name = "subsampled-iblt"
    question_type = SubsampledIbltQuestion
    description = Description(
        purpose="heavy hitters with one sampling threshold",
        cost="`message_bytes` per round, 260 tables by theorem",
    )
    plan_type = SubsampledIbltPlan

    def _first_fields(
        self, question: SubsampledIbltQuestion, terms: Terms, rounds: int
    ) -> dict[str, Any]:
        if question.rule == "theorem":
            tokens = terms.max_devices * question.contribution
            t, tables, cells, _ = theorem_parameters(
                question.threshold, question.beta, tokens, rounds
            )
            tables = question.repetitions or tables
            needed = needed_bytes(question, terms, t, cells, tables)
            if needed > question.message_bytes:
                raise ValueError(
                    f"message_bytes {question.message_bytes:,} are too few: {tables} tables of "
                    f"{cells} cells, as in the theorem, take {needed:,}"
                )
        else:
            check_message(question, terms)
            practical = min(worst_case_threshold(question, terms), question.threshold / 2)
            t = question.t or max(1.0, practical)
            tables, cells = 1, max_cells(question, terms, t)
        return {"t": t, "cells": cells, "tables": tables}

    def ring(self, plan: SubsampledIbltPlan) -> Ring:
        return Ring(plan.repetitions.lanes)

    def encode_sum(
        self, plan: SubsampledIbltPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> Vector:
        held = keyed_histograms(plan.question.domain, plan.question.contribution, histograms)
        return plan.repetitions.insert(held, chance)

    def fault(self, plan: SubsampledIbltPlan, total: Vector, participants: int) -> str | None:
        """Return the law that a table of `total` breaks; `SampledTable.fault` has the laws.

        The tables have no common law, since each has its own sample. False vectors that one table
        does not detect are not detected in any of them.
        """
        return plan.repetitions.fault(total, participants)

    def decode(
        self, plan: SubsampledIbltPlan, total: Vector, participants: int, state: StudyState
    ) -> Answer:
        return plan.repetitions.read(total, [participants], (), state.items).answer(plan, state)

    def decode_cohorts(
        self, plan: SubsampledIbltPlan, sums: Sequence[CohortSum], state: StudyState
    ) -> Answer:
        ring = self.ring(plan)
        total, _ = add_sums(ring, sums)
        cohorts = [ring.unpack(each.packed) for each in sums]
        devices = [each.participants for each in sums]
        return plan.repetitions.read(total, devices, cohorts, state.items).answer(plan, state)

    def shown(self, question: SubsampledIbltQuestion, state: StudyState) -> StudyState:
        """Return the items that answers depend on; devices refuse the rule of the theorem."""
        return super().shown(question, state) if question.rule == "practical" else state

    def final_answer(self, question: SubsampledIbltQuestion, state: StudyState) -> FinalAnswer:
        if question.rule == "practical":
            return super().final_answer(question, state)
        counts, variances = self.totals(state)
        elected = (
            Estimate(state.items[row], counts[row], variances[row]) for row in elected_rows(state)
        )
        return FinalAnswer(tuple(ranked(elected)))

    def estimates_quality(self, question: SubsampledIbltQuestion) -> bool:
        return question.rule == "practical"

    def totals(self, state: StudyState) -> tuple[Floats, Floats]:
        return totals_of_all_rounds(state)

    def rate_history(
        self, plan: SubsampledIbltPlan, state: StudyState, items: Sequence[str]
    ) -> RateHistory | None:
        return round_count_history(plan, state, items)
