"""Sum of one cohort: its masked inputs are added and unmasked, and the sum is checked.

Vectors are added in batches as they are read. The messages of a small cohort are read at once. Long
computations run in threads, where numpy and AES release the interpreter lock. The secrets that
`unmask` recovers exist only in that call.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.api.phases import MessageKind
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan
from secagg.messages import Answers, KeyShares, UnmaskingShares
from secagg.ring import Ring, Vector
from secagg.unmasking import SumMessages, unmask
from server.db.repositories.messages import EnrolledCohort, MessageRepository
from server.rounds.cohort_messages import (
    Batch,
    MessageSource,
    make_transcript,
    make_unmasking_request,
    read_complaints,
    read_messages,
)


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


async def sum_masked_inputs(
    messages: MessageSource, cohort: int, ring: Ring
) -> tuple[Vector, frozenset[int]]:
    """Return the sum of the masked inputs of a cohort, and the slots of their senders."""
    total, senders = ring.zero(), list[int]()
    async for batch in messages.bodies(cohort, MessageKind.MASKED_INPUT):
        await asyncio.to_thread(_add_packed, ring, total, batch)
        senders += [slot for slot, _ in batch]
    return total, frozenset(senders)


def _add_packed(ring: Ring, total: Vector, batch: Batch) -> None:
    for _, body in batch:
        ring.add_packed(total, body)


async def unmask_cohort(
    messages: MessageRepository, cohort: int, large_sums: asyncio.Semaphore
) -> UnmaskedCohort:
    """Return the sum of the survivors' vectors.

    `large_sums` limits how many sums are made at the same time of cohorts that are not small.

    Raises:
        RecoveryError: if the shares do not determine a secret that the sum needs.
        PoisonedSumError: if no honest vectors have this sum.
        ProblemError: if the cohort was closed meanwhile.
    """
    enrolled, stored = await messages.closing_cohort(cohort)
    if stored is not None:
        return await _unmask(enrolled, stored, cohort)
    async with large_sums:
        return await _unmask(enrolled, messages, cohort)


async def _unmask(enrolled: EnrolledCohort, source: MessageSource, cohort: int) -> UnmaskedCohort:
    read = SumMessages(
        await read_messages(source, cohort, MessageKind.KEY_SHARES, KeyShares.unpack),
        await read_messages(source, cohort, MessageKind.UNMASKING_SHARES, UnmaskingShares.unpack),
        await read_messages(source, cohort, MessageKind.ANSWERS, Answers.unpack),
    )
    complaints = await read_complaints(source, cohort)
    masked, survivors = await sum_masked_inputs(source, cohort, enrolled.ring)

    def compute() -> UnmaskedCohort:
        commitments = {slot: sent.share_commitment for slot, sent in read.key_shares.items()}
        answered = read.answers.keys()
        transcript = make_transcript(enrolled.session, complaints, answered, commitments)
        request = make_unmasking_request(transcript, survivors, complaints)
        unmasked = unmask(request, enrolled.ring, read, masked)
        packed = check_sum(enrolled.plan, unmasked.total, len(survivors), unmasked.blamed)
        return UnmaskedCohort(packed, unmasked.blamed)

    return await asyncio.to_thread(compute)


def check_sum(plan: AnyPlan, total: Vector, participants: int, blamed: Mapping[int, str]) -> bytes:
    """Return the packed sum; raises PoisonedSumError if honest vectors cannot have it."""
    mechanism = SUM_MECHANISMS[plan.mechanism]
    fault = mechanism.fault(plan, total, participants)
    if fault is not None:
        raise PoisonedSumError(fault, blamed)
    packed: bytes = mechanism.ring(plan).pack(total)
    return packed
