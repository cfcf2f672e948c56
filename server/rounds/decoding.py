"""Decoding: the answer of a round from the sums of its cohorts, or from its reports.

Reports are added in batches as they are read. Long computations run in threads.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np
import structlog

from protocol.api.messages import RoundState
from protocol.mechanism import Answer, CohortSum
from protocol.mechanisms.registry import MECHANISMS, REPORT_MECHANISMS, SUM_MECHANISMS, AnyPlan
from protocol.report_mechanism import ReportAggregate
from protocol.study_state import StudyState
from server.db.repositories.messages.reports import ReportRepository
from server.db.repositories.rounds.rounds import ClosedRound
from server.db.store import Store

_log = structlog.get_logger(__name__)


async def decode_round(store: Store, study: str, plan: AnyPlan, state: StudyState) -> ClosedRound:
    """Return the result of a round's reports, or of its cohorts' sums, after `state`.

    If the round cannot be decoded, the sums that cannot be decoded alone are excluded: a vector
    that keeps every law may still spoil the sum of its cohort, and should not spoil others.
    """
    if plan.mechanism in REPORT_MECHANISMS:
        return await decode_reports(store.reports, study, plan, state)
    sums = await store.messages.sums(study, plan.round)
    if not sums:
        return ClosedRound("failed")
    cohorts = {number: CohortSum(packed, count) for number, (packed, count) in sums.items()}
    return await asyncio.to_thread(decode_cohorts, plan, state, cohorts)


async def decode_reports(
    reports: ReportRepository, study: str, plan: AnyPlan, state: StudyState
) -> ClosedRound:
    """Return the result of a round's reports after `state`, with one batch in memory at a time."""
    mechanism, aggregate = REPORT_MECHANISMS[plan.mechanism], None
    nbytes, batch_size = mechanism.nbytes(plan), mechanism.reports_per_batch(plan)
    async for batch in reports.bodies(study, plan.round, nbytes, batch_size):
        part = await asyncio.to_thread(_aggregate_batch, plan, batch)
        aggregate = part if aggregate is None else aggregate + part
    if aggregate is None or aggregate.reports < plan.terms.minimum:
        return ClosedRound("failed", 0 if aggregate is None else aggregate.reports)
    return await asyncio.to_thread(_decode_aggregate, plan, aggregate, state)


def _aggregate_batch(plan: AnyPlan, batch: bytes) -> ReportAggregate:
    mechanism = REPORT_MECHANISMS[plan.mechanism]
    rows = np.frombuffer(batch, np.uint8).reshape(-1, mechanism.nbytes(plan))
    aggregate: ReportAggregate = mechanism.aggregate(plan, rows)
    return aggregate


def _decode_aggregate(plan: AnyPlan, aggregate: ReportAggregate, state: StudyState) -> ClosedRound:
    answer = REPORT_MECHANISMS[plan.mechanism].decode(plan, aggregate, state)
    return _closed_round(plan, aggregate.reports, answer)


def decode_cohorts(plan: AnyPlan, state: StudyState, sums: Mapping[int, CohortSum]) -> ClosedRound:
    outcome = _decode_sums(plan, state, sums)
    if outcome.state == "decoded" or len(sums) == 1:
        return outcome
    mechanism = SUM_MECHANISMS[plan.mechanism]
    ring = mechanism.ring(plan)
    excluded = frozenset(
        number
        for number, each in sums.items()
        if not mechanism.is_decodable(plan, ring.unpack(each.packed), each.participants, state)
    )
    if len(excluded) in (0, len(sums)):
        return outcome  # the sums together hold too much, so no cohort is at fault
    _log.warning("cohorts excluded", study=plan.study, round=plan.round, cohorts=sorted(excluded))
    readable = {number: each for number, each in sums.items() if number not in excluded}
    return replace(_decode_sums(plan, state, readable), excluded=excluded)


def _decode_sums(plan: AnyPlan, state: StudyState, sums: Mapping[int, CohortSum]) -> ClosedRound:
    answer = SUM_MECHANISMS[plan.mechanism].decode_cohorts(plan, tuple(sums.values()), state)
    return _closed_round(plan, sum(each.participants for each in sums.values()), answer)


def _closed_round(plan: AnyPlan, participants: int, answer: Answer) -> ClosedRound:
    mechanism = MECHANISMS[plan.mechanism]
    final = mechanism.final_answer(plan.question, answer.state)
    round_state: RoundState = "decoded" if answer.decoded else "undecoded"
    is_last = mechanism.is_over(plan, answer, answer.state)
    listed, quality = final.heavy_hitters, final.quality
    return ClosedRound(round_state, participants, answer, listed, quality, is_last=is_last)


async def plan_next(
    plan: AnyPlan, answer: Answer | None, state: StudyState, rng: Random
) -> AnyPlan:
    """Return the plan of the round after `plan`, which ended with `state`."""
    mechanism = MECHANISMS[plan.mechanism]
    following: AnyPlan = await asyncio.to_thread(mechanism.next_plan, plan, answer, state, rng)
    return following
