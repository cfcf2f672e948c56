"""Decoding: the sum of a cohort from its messages, and the answer of a round from its sums.

Vectors and reports are added in batches as they are read. Long computations run in threads, where
numpy and AES release the interpreter lock. The secrets that `unmask` recovers exist only in
that call.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from protocol.api.messages import RoundState
from protocol.api.phases import MessageKind
from protocol.mechanism import Answer, CohortSum
from protocol.mechanisms.registry import MECHANISMS, REPORT_MECHANISMS, SUM_MECHANISMS, AnyPlan
from protocol.report_mechanism import ReportAggregate
from protocol.study import StudyState
from secagg.aggregator import UnmaskingRequest, complaints_by_dealer, route_shares
from secagg.messages import Answers, Complaints, KeyShares, UnmaskingShares
from secagg.ring import Ring, Vector
from secagg.roster import GRAPH_NONCE_BYTES, ShareCommitment, ShareCommitments
from secagg.session import Session, Transcript
from secagg.shares import SHARE_PAIR_BYTES, ReceivedShares, share_pairs_bytes
from secagg.unmasking import SumMessages, UnmaskedSum, unmask
from server.db.repositories.messages import MessageRepository
from server.db.repositories.reports import ReportRepository
from server.db.repositories.rounds import ClosedRound
from server.db.store import Store

T = TypeVar("T")
Batch: TypeAlias = list[tuple[int, bytes]]  # slots and bodies
_log = structlog.get_logger(__name__)


class PoisonedSumError(Exception):
    """The sum of a cohort breaks a law that every sum of honest vectors obeys.

    Attributes:
        blamed: the offence of each participant with false shares, by slot.
    """

    def __init__(self, fault: str, blamed: Mapping[int, str]) -> None:
        super().__init__(fault)
        self.blamed = blamed


@dataclass(frozen=True, slots=True)
class UnmaskedCohort:
    """Packed sum of a cohort, and the offence of each participant with false shares, by slot."""

    total: bytes
    blamed: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class HolderTable:
    """Holders of each of `dealers`: one row per dealer, in the order of its share pairs."""

    dealers: NDArray[np.int64]
    holders: NDArray[np.unsignedinteger]

    def places(self, holder: int) -> dict[int, int]:
        """Return the place of the pair for `holder` among the share pairs of each dealer."""
        positions = np.flatnonzero(self.holders == holder)  # nonzero takes longer in two dimensions
        rows, places = np.divmod(positions, self.holders.shape[1])
        return dict(zip(self.dealers[rows].tolist(), places.tolist(), strict=True))


async def read_holder_table(
    messages: MessageRepository, number: int, session: Session
) -> HolderTable:
    """Return the holders in cohort `number`, which follow from the graph nonces."""
    nonces = dict(await messages.prefixes(number, MessageKind.KEY_SHARES, GRAPH_NONCE_BYTES))
    holders = await asyncio.to_thread(session.neighbour_selection.all_holders, nonces)
    narrow = holders.astype(np.min_scalar_type(session.n))
    return HolderTable(np.array([*nonces], np.int64), narrow)


async def read_all_received_shares(
    messages: MessageRepository, number: int, session: Session
) -> dict[int, ReceivedShares]:
    """Return the share pairs for each participant of cohort `number` that shared."""
    key_shares = await read_messages(messages, number, MessageKind.KEY_SHARES, KeyShares.unpack)
    return await asyncio.to_thread(route_shares, session, key_shares)


async def read_received_shares(
    messages: MessageRepository, number: int, table: HolderTable, holder: int
) -> ReceivedShares:
    """Return the share pairs for one participant of cohort `number`, from its dealers' bodies."""
    places = table.places(holder)
    bodies = await messages.bodies_of(number, MessageKind.KEY_SHARES, places.keys())
    records = []
    for dealer, body in sorted(bodies):
        pairs = share_pairs_bytes(KeyShares.unpack(body).share_pairs)
        start = places[dealer] * SHARE_PAIR_BYTES
        records += [dealer.to_bytes(4, "big"), pairs[start : start + SHARE_PAIR_BYTES]]
    return ReceivedShares.unpack(b"".join(records))


async def read_complaints(messages: MessageRepository, number: int) -> dict[int, Complaints]:
    """Return the complaints in cohort `number` by holder; most have none."""
    return await read_messages(messages, number, MessageKind.COMPLAINTS, Complaints.unpack)


async def read_transcript(messages: MessageRepository, number: int, session: Session) -> Transcript:
    """Return the transcript of cohort `number`: the dealers that checked their shares.

    An accused dealer without an answer is left out. Stored answers are valid.
    """
    complaints = await read_complaints(messages, number)
    accused = complaints_by_dealer(complaints).keys()
    answered = await messages.senders(number, MessageKind.ANSWERS) if accused else frozenset()
    dealers = complaints.keys() - (accused - answered)
    commitments: dict[int, ShareCommitment] = {}
    async for batch in messages.bodies(number, MessageKind.KEY_SHARES):
        commitments |= await asyncio.to_thread(
            _unpack_each, lambda body: KeyShares.unpack(body).share_commitment, batch
        )
    kept = {slot: commitments[slot] for slot in dealers}
    return Transcript(session, ShareCommitments.of(kept))


async def read_messages(
    messages: MessageRepository, number: int, kind: MessageKind, unpack: Callable[[bytes], T]
) -> dict[int, T]:
    """Return all messages of a kind in cohort `number`, unpacked, by slot."""
    result: dict[int, T] = {}
    async for batch in messages.bodies(number, kind):
        result |= await asyncio.to_thread(_unpack_each, unpack, batch)
    return result


def _unpack_each(unpack: Callable[[bytes], T], batch: Batch) -> dict[int, T]:
    return {slot: unpack(body) for slot, body in batch}


async def read_unmasking_request(
    messages: MessageRepository, number: int, transcript: Transcript
) -> UnmaskingRequest:
    """Return the shares of cohort `number` that the survivors must reveal."""
    survivors = await messages.senders(number, MessageKind.MASKED_INPUT)
    complaints = await read_complaints(messages, number)
    accused = {slot: message.signatures.keys() for slot, message in complaints.items()}
    return UnmaskingRequest(transcript, survivors, accused)


async def sum_masked_inputs(messages: MessageRepository, cohort: int, ring: Ring) -> Vector:
    total = ring.zero()
    async for batch in messages.bodies(cohort, MessageKind.MASKED_INPUT):
        await asyncio.to_thread(_add_packed, ring, total, batch)
    return total


def _add_packed(ring: Ring, total: Vector, batch: Batch) -> None:
    for _, body in batch:
        ring.add_packed(total, body)


async def unmask_cohort(messages: MessageRepository, cohort: int) -> UnmaskedCohort:
    """Return the sum of the survivors' vectors.

    Raises:
        RecoveryError: if the shares do not determine a secret that the sum needs.
        PoisonedSumError: if no honest vectors have this sum.
        ProblemError: if the cohort was closed meanwhile.
    """
    enrolled = await messages.enrolled_cohort(cohort)
    transcript = await read_transcript(messages, cohort, enrolled.session)
    request = await read_unmasking_request(messages, cohort, transcript)
    read = SumMessages(
        await read_messages(messages, cohort, MessageKind.KEY_SHARES, KeyShares.unpack),
        await read_messages(messages, cohort, MessageKind.UNMASKING_SHARES, UnmaskingShares.unpack),
        await read_messages(messages, cohort, MessageKind.ANSWERS, Answers.unpack),
    )
    masked = await sum_masked_inputs(messages, cohort, enrolled.ring)
    unmasked = await asyncio.to_thread(unmask, request, enrolled.ring, read, masked)
    packed = await asyncio.to_thread(_check_sum, enrolled.plan, unmasked, len(request.survivors))
    return UnmaskedCohort(packed, unmasked.blamed)


def _check_sum(plan: AnyPlan, unmasked: UnmaskedSum, participants: int) -> bytes:
    """Return the packed sum, if honest vectors can have it."""
    mechanism = SUM_MECHANISMS[plan.mechanism]
    fault = mechanism.fault(plan, unmasked.total, participants)
    if fault is not None:
        raise PoisonedSumError(fault, unmasked.blamed)
    return mechanism.ring(plan).pack(unmasked.total)


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
    return await asyncio.to_thread(_decode, plan, state, cohorts)


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


def _decode(plan: AnyPlan, state: StudyState, sums: Mapping[int, CohortSum]) -> ClosedRound:
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
