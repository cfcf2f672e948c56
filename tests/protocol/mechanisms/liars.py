"""Devices that lie: their vectors are sums and differences of honest ones, so linear laws hold."""

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from protocol.domains.strings import Alphabet
from protocol.mechanism import Answer
from protocol.mechanisms.iblt.sampled_table import SampledTable, sampled_table
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.question_and_plan import Terms
from protocol.reference_mechanisms.subsampled_iblt import SubsampledIbltPlan
from protocol.round_sizes import message_bytes_of
from protocol.study_state import EMPTY_STATE, StudyState
from secagg.ring import Vector
from tests.protocol.chance import seeded

DEVICES = 1000
DIGITS = Alphabet(characters="0123456789_", length=6, pad="_")
NOBODYS_ITEM = "666666"  # which no honest device holds


def crowd(devices: int, seed: int) -> list[dict[str, int]]:
    """Return devices with one item each; shares fall as rank^-1.4."""
    ranks = np.minimum(np.random.default_rng(seed).zipf(1.4, devices), 99_999)
    return [{str(rank): 1} for rank in ranks.tolist()]


@dataclass(frozen=True)
class AttackedRound:
    """One round of a study: its plan and state, and the sums of its honest cohorts."""

    mechanism: Any
    plan: Any
    state: StudyState
    sums: tuple[Vector, ...]
    truth: Counter[str]

    @property
    def cohort_size(self) -> int:
        return DEVICES // len(self.sums)

    @property
    def table(self) -> SampledTable:
        plan = self.plan
        if hasattr(plan, "table"):
            table: SampledTable = plan.table
            return table
        if isinstance(plan, SubsampledIbltPlan):
            return plan.repetitions.sub_table(0)
        seed = bytes.fromhex(plan.seed)
        return sampled_table(plan.question, plan.terms, plan.t, plan.cells, seed)

    def with_keys(self, values: dict[str, int], cohort: int = 0) -> Vector:
        """Return a cohort's sum with `values` of items inserted by a device that lies."""
        keys = DIGITS.keys_of(list(values))
        lie = self.table.iblt.insert(keys, np.array(list(values.values()), np.int64))
        return self._with(lie, len(self.sums[cohort]) - len(lie), cohort)

    def with_counts(self, changes: dict[str, int], cohort: int = 0) -> Vector:
        """Return a cohort's sum with the counters of tracked items changed by a liar."""
        counts = np.zeros(len(self.plan.counters.items), np.int64)
        for item, change in changes.items():
            counts[self.plan.counters.rows[item]] += change
        return self._with(self.plan.counters.encode(counts), 0, cohort)

    def _with(self, lie: Vector, first: int, cohort: int) -> Vector:
        ring, total = self.mechanism.ring(self.plan), [part.copy() for part in self.sums[cohort]]
        for number, part in enumerate(lie, first):
            ring.lanes[number].add(total[number], part)
        return tuple(total)

    def fault(self, total: Vector) -> str | None:
        fault: str | None = self.mechanism.fault(self.plan, total, self.cohort_size)
        return fault

    def decode(self, total: Vector, devices: int = DEVICES) -> Answer:
        answer: Answer = self.mechanism.decode(self.plan, total, devices, self.state)
        return answer

    def lift(self, values: tuple[int, ...], cohort: int = 0) -> float:
        """Return the largest count that a liar gives to an item nobody holds, within all laws."""
        largest = 0.0
        for value in values:
            total = self.with_keys({NOBODYS_ITEM: value}, cohort)
            if self.fault(total) is None:
                largest = max(largest, count_of(self.decode(total), NOBODYS_ITEM))
        return largest


def attacked_round(question: Any, number: int, cohorts: int = 1) -> AttackedRound:
    """Return an honest round; the `message_bytes` of `question` leave out shares of keys."""
    mechanism, size = SUM_MECHANISMS[question.mechanism], DEVICES // cohorts
    terms = Terms(cohort_size=size, minimum=size // 2, cohorts=cohorts)
    message = message_bytes_of(terms, question.message_bytes)
    question = question.model_copy(update={"message_bytes": message})
    plan, state = mechanism.first_plan(question, terms, "liars", number, Random(3)), EMPTY_STATE
    words = seeded(5)
    for earlier in range(1, number):
        total = mechanism.encode_sum(plan, crowd(DEVICES, 10 * earlier), words)
        answer = mechanism.decode(plan, total, DEVICES, state)
        state = answer.state
        plan = mechanism.next_plan(plan, answer, state, Random(earlier))
    devices = crowd(DEVICES, 999)
    sums = tuple(
        mechanism.encode_sum(plan, devices[start:][:size], words)
        for start in range(0, DEVICES, size)
    )
    truth = Counter(item for device in devices for item in device)
    return AttackedRound(mechanism, plan, state, sums, truth)


def count_of(answer: Answer, item: str) -> float:
    """Return the estimate of `item`; 0 if it has none, or if the round was not read."""
    return next((each.count for each in answer.estimates if each.item == item), 0.0)
