"""Sum of one cohort: its masked inputs are added and unmasked, and the sum is checked.

Vectors are added in batches as they are read. The messages of a small cohort are read at once, with
those of others. Long computations run in threads, where numpy and AES release the interpreter lock.
The secrets that `unmask` recovers exist only in that call.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from protocol.api.phases import MessageKind, Phase
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan
from secagg.aggregator import complaints_by_dealer
from secagg.errors import PortableError
from secagg.messages import Answers, Complaints, KeyShares, UnmaskingShares
from secagg.ring import Ring, Vector
from secagg.unmasking import SumMessages, unmask
from server.db.group_commit import GroupCommit
from server.db.repositories.messages.sum_messages import (
    ClosingCohort,
    EnrolledCohort,
    MessageRepository,
)
from server.db.repositories.rounds.cohorts import CheckedCohort
from server.db.repositories.rounds.pending_cohorts import PendingCohort
from server.db.store import Store
from server.rounds.cohort_messages import (
    Batch,
    make_transcript,
    make_unmasking_request,
    messages_by_slot,
    read_complaints,
    read_messages,
)

T = TypeVar("T")
_MAX_LARGE_SUMS = 2  # at the same time; each holds some vectors


class PoisonedSumError(PortableError):
    """The sum of a cohort breaks a law that every sum of honest vectors obeys.

    Attributes:
        blamed: the offence of each participant with false shares, by slot.
    """

    def __init__(self, fault: str, blamed: Mapping[int, str]) -> None:
        super().__init__(fault)
        self.blamed = blamed


@dataclass(frozen=True, slots=True)
class SummedCohort:
    """Packed sum of a cohort.

    `blamed` has the offence of each participant with false shares, by slot, and `liars` the
    identities of members of a committee whose sums were false.
    """

    total: bytes
    blamed: Mapping[int, str] = field(default_factory=dict)
    liars: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class MaskedSum:
    """Sum of the masked inputs of the survivors, and the messages that unmask it."""

    enrolled: EnrolledCohort
    total: Vector
    survivors: frozenset[int]
    messages: SumMessages
    complaints: Mapping[int, Complaints]

    @classmethod
    def of(cls, closing: ClosingCohort) -> "MaskedSum":
        """Return the masked sum of a small cohort."""
        ring = closing.enrolled.ring
        bodies, total = closing.bodies or {}, ring.zero()

        def unpacked(kind: MessageKind, unpack: Callable[[bytes], T]) -> dict[int, T]:
            return messages_by_slot(unpack, bodies.get(kind, ()))

        inputs = bodies.get(MessageKind.MASKED_INPUT, ())
        _add_packed(ring, total, inputs)
        messages = SumMessages(
            unpacked(MessageKind.KEY_SHARES, KeyShares.unpack),
            unpacked(MessageKind.UNMASKING_SHARES, UnmaskingShares.unpack),
            unpacked(MessageKind.ANSWERS, Answers.unpack),
        )
        complaints = unpacked(MessageKind.COMPLAINTS, Complaints.unpack)
        survivors = frozenset(slot for slot, _ in inputs)
        return cls(closing.enrolled, total, survivors, messages, complaints)

    def unmask(self) -> SummedCohort:
        """Return the sum; raises as `CohortSums.unmask` does."""
        session = self.enrolled.session
        commitments = {
            slot: sent.share_commitment for slot, sent in self.messages.key_shares.items()
        }
        answered = self.messages.answers.keys()
        transcript = make_transcript(session, self.complaints, answered, commitments)
        request = make_unmasking_request(transcript, self.survivors, self.complaints)
        unmasked = unmask(request, self.enrolled.ring, self.messages, self.total)
        n = len(self.survivors)
        packed = check_sum(self.enrolled.plan, unmasked.total, n, unmasked.blamed)
        return SummedCohort(packed, unmasked.blamed)


@dataclass(frozen=True)
class CohortSums:
    """Sums of the cohorts of one process.

    Small cohorts that close together are read in one transaction and summed in one thread, because
    each change of threads takes about as long as the sum of a few devices. Only a few sums of large
    cohorts are made at a time.
    """

    messages: MessageRepository
    _large: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_MAX_LARGE_SUMS), init=False
    )

    async def unmask(self, cohort: int) -> SummedCohort:
        """Return the sum of the survivors' vectors.

        Raises:
            RecoveryError: if the shares do not determine a secret that the sum needs.
            PoisonedSumError: if no honest vectors have this sum.
            ProblemError: if the cohort was closed meanwhile.
        """
        closing = await self.messages.closing_cohort(cohort)
        if closing.bodies is not None:
            return await self._small(closing)
        async with self._large:
            masked = await read_masked_sum(self.messages, cohort, closing.enrolled)
            return await asyncio.to_thread(masked.unmask)

    @cached_property
    def _small(self) -> GroupCommit[ClosingCohort, SummedCohort]:
        async def unmask(cohorts: Sequence[ClosingCohort]) -> Sequence[SummedCohort | Exception]:
            return await asyncio.to_thread(_unmask_each, cohorts)

        return GroupCommit(unmask)


def _unmask_each(cohorts: Sequence[ClosingCohort]) -> list[SummedCohort | Exception]:
    """Return the sum of each of these small cohorts, or why it has none."""
    results = list[SummedCohort | Exception]()
    for closing in cohorts:
        try:
            results.append(MaskedSum.of(closing).unmask())
        except Exception as error:
            results.append(error)
    return results


async def read_masked_sum(
    messages: MessageRepository, cohort: int, enrolled: EnrolledCohort
) -> MaskedSum:
    """Return the masked sum of a large cohort, whose vectors are added as they are read.

    Raises:
        ProblemError: if the cohort was closed meanwhile.
    """
    read = SumMessages(
        await read_messages(messages, cohort, MessageKind.KEY_SHARES, KeyShares.unpack),
        await read_messages(messages, cohort, MessageKind.UNMASKING_SHARES, UnmaskingShares.unpack),
        await read_messages(messages, cohort, MessageKind.ANSWERS, Answers.unpack),
    )
    complaints = await read_complaints(messages, cohort)
    total, survivors = enrolled.ring.zero(), list[int]()
    async for batch in messages.bodies(cohort, MessageKind.MASKED_INPUT):
        await asyncio.to_thread(_add_packed, enrolled.ring, total, batch)
        survivors += [slot for slot, _ in batch]
    return MaskedSum(enrolled, total, frozenset(survivors), read, complaints)


def _add_packed(ring: Ring, total: Vector, batch: Batch) -> None:
    for _, body in batch:
        ring.add_packed(total, body)


async def check_shares(store: Store, cohort: PendingCohort) -> CheckedCohort:
    """Return the accused dealers of a pairwise sum, which answer if there are any.

    Raises:
        ProblemError: if the study was stopped meanwhile, and its bodies deleted.
    """
    complaints = complaints_by_dealer(await read_complaints(store.messages, cohort.id))
    pairs = sorted((dealer, holder) for dealer in complaints for holder in complaints[dealer])
    to = Phase.ANSWERING if complaints else Phase.MASKING
    return CheckedCohort(to, accused=sorted(complaints), accusations=pairs)


def check_sum(plan: AnyPlan, total: Vector, participants: int, blamed: Mapping[int, str]) -> bytes:
    """Return the packed sum; raises PoisonedSumError if honest vectors cannot have it."""
    mechanism = SUM_MECHANISMS[plan.mechanism]
    fault = mechanism.fault(plan, total, participants)
    if fault is not None:
        raise PoisonedSumError(fault, blamed)
    packed: bytes = mechanism.ring(plan).pack(total)
    return packed
