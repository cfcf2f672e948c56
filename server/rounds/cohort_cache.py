"""Cache of the facts of closed phases, which never change and are read from the database once.

Callers check the phase of the cohort first: a fact is only valid once its phase is closed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

from cachetools import LRUCache

from protocol.api.messages_outside_sums import Survivors
from protocol.api.phases import MessageKind
from secagg.aggregator import UnmaskingRequest, complaints_by_dealer, route_shares
from secagg.messages import Complaints, KeyShares, SignedInput, pack_signatures
from secagg.roster import ShareCommitment, roster_bytes, share_commitments_bytes
from secagg.session import Transcript
from secagg.shares import ReceivedShares
from server.db.store import Store
from server.rounds.caches import AsyncCache
from server.rounds.cohort_messages import (
    HolderTable,
    make_transcript,
    make_unmasking_request,
    read_complaints,
    read_holder_table,
    read_messages,
    read_received_shares,
    read_share_commitments,
)

V = TypeVar("V")
_MAX_CACHED_PARTICIPANTS = 50_000  # 400 bytes each for a roster, and the same for a transcript
_MAX_CACHED_SHARE_BYTES = 200 * 2**20  # 16 MB for 1,000 participants with 116 holders each
_MAX_CACHED_HOLDER_BYTES = 20 * 2**20  # 0.2 MB for the same
_SINGLE_READS = 4  # more cost cohorts that fit the cache, fewer cost those that do not


class CohortCache:
    """Cached facts of one process; the sizes limit its memory, and not what it can serve."""

    def __init__(self, store: Store) -> None:
        self._messages = store.messages
        self._share_misses: LRUCache[int, int] = LRUCache(_MAX_CACHED_PARTICIPANTS)
        self._holder_tables = AsyncCache(
            self._holder_table, _MAX_CACHED_HOLDER_BYTES, lambda table: table.holders.nbytes
        )
        self.all_received_shares = AsyncCache(
            self._read_all_received_shares,
            _MAX_CACHED_SHARE_BYTES,
            lambda by_holder: sum(map(_share_bytes, by_holder.values())),
        )
        self.received_shares_by_slot = AsyncCache(
            self._read_received_shares, _MAX_CACHED_SHARE_BYTES // 10, _share_bytes
        )
        self.enrolled_cohort = _by_participants(
            store.messages.enrolled_cohort, lambda cohort: cohort.session.n
        )
        self.dealers = _by_participants(self._dealers, len)
        self.complaints = _by_participants(
            self._complaints, lambda by_slot: _weight(each.signatures for each in by_slot.values())
        )
        self.complaints_by_dealer = _by_participants(
            self._complaints_by_dealer, lambda by_dealer: 1 + _weight(by_dealer.values())
        )
        self._share_commitments_by_dealer = _by_participants(self._commitments_by_dealer, len)
        self.transcript = _by_participants(self._transcript, _dealers_of)
        self.survivors = _by_participants(self._survivors, len)
        self.confirmations = _by_participants(self._confirmations, len)
        self.signed_inputs = _by_participants(self._signed_inputs, len)
        self.unmasking_request = _by_participants(
            self._unmasking_request, lambda request: _dealers_of(request.transcript)
        )
        # Packed, so that all participants get the same bytes.
        self.roster = _documents(self._roster, 100)
        self.share_commitments = _documents(self._share_commitments, 100)
        self.survivors_document = _documents(self._survivors_document, 10)
        self.confirmations_document = _documents(self._confirmations_document, 100)

    def forget(self, cohorts: Iterable[int]) -> None:
        """Forget the facts of cohorts that are over, of which no device needs any more.

        Otherwise they would stay until the caches are full, which takes many small rounds.
        """
        caches = [cache for cache in vars(self).values() if isinstance(cache, AsyncCache)]
        for cohort in cohorts:
            self._share_misses.pop(cohort, None)
            for cache in caches:
                cache.forget(cohort)

    async def received_shares(self, cohort: int, slot: int) -> ReceivedShares:
        """Return the share pairs for the participant in `slot`.

        The first miss of a cohort reads all its bodies, because all participants ask when their
        phase begins. If the cohort is evicted, a miss reads the bodies of one participant's dealers
        only, until the misses have read `_SINGLE_READS` times the bodies of the cohort. The next
        miss reads them all again. So with more cohorts than fit, few requests read a whole cohort.
        """
        key = cohort, slot
        if cohort in self.all_received_shares:
            return (await self.all_received_shares(cohort))[slot]
        if key in self.received_shares_by_slot:
            return await self.received_shares_by_slot(key)
        session = (await self.enrolled_cohort(cohort)).session
        misses = self._share_misses.pop(cohort, None)
        if misses is None or misses * session.parameters.holders >= _SINGLE_READS * session.n:
            self._share_misses[cohort] = 0
            return (await self.all_received_shares(cohort))[slot]
        self._share_misses[cohort] = misses + 1
        return await self.received_shares_by_slot(key)

    async def senders(self, cohort: int, kind: MessageKind) -> Collection[int]:
        """Return the slots that sent a message of `kind`, whose phase is closed."""
        if kind == MessageKind.KEY_SHARES:
            return await self.dealers(cohort)
        if kind == MessageKind.COMPLAINTS:
            return (await self.complaints(cohort)).keys()
        if kind == MessageKind.MASKED_INPUT:
            return await self.survivors(cohort)
        return (await self.confirmations(cohort)).keys()

    async def _dealers(self, cohort: int) -> frozenset[int]:
        return await self._messages.senders(cohort, MessageKind.KEY_SHARES)

    async def _complaints(self, cohort: int) -> dict[int, Complaints]:
        return await read_complaints(self._messages, cohort)

    async def _complaints_by_dealer(self, cohort: int) -> dict[int, dict[int, bytes]]:
        return complaints_by_dealer(await self.complaints(cohort))

    async def _commitments_by_dealer(self, cohort: int) -> Mapping[int, ShareCommitment]:
        return await read_share_commitments(self._messages, cohort)

    async def _transcript(self, cohort: int) -> Transcript:
        session = (await self.enrolled_cohort(cohort)).session
        complaints, answered = await self.complaints(cohort), frozenset[int]()
        if await self.complaints_by_dealer(cohort):
            answered = await self._messages.senders(cohort, MessageKind.ANSWERS)
        commitments = await self._share_commitments_by_dealer(cohort)
        return make_transcript(session, complaints, answered, commitments)

    async def _survivors(self, cohort: int) -> frozenset[int]:
        return await self._messages.senders(cohort, MessageKind.MASKED_INPUT)

    async def _unmasking_request(self, cohort: int) -> UnmaskingRequest:
        transcript, survivors = await self.transcript(cohort), await self.survivors(cohort)
        return make_unmasking_request(transcript, survivors, await self.complaints(cohort))

    async def _holder_table(self, cohort: int) -> HolderTable:
        session = (await self.enrolled_cohort(cohort)).session
        return await read_holder_table(self._messages, cohort, session)

    async def _read_all_received_shares(self, cohort: int) -> dict[int, ReceivedShares]:
        session, kind = (await self.enrolled_cohort(cohort)).session, MessageKind.KEY_SHARES
        key_shares = await read_messages(self._messages, cohort, kind, KeyShares.unpack)
        commitments = await asyncio.to_thread(_share_commitments, key_shares)
        self._share_commitments_by_dealer.remember(cohort, commitments)
        return await asyncio.to_thread(route_shares, session, key_shares)

    async def _read_received_shares(self, key: tuple[int, int]) -> ReceivedShares:
        cohort, slot = key
        table = await self._holder_tables(cohort)
        return await read_received_shares(self._messages, cohort, table, slot)

    async def _signed_inputs(self, cohort: int) -> dict[int, SignedInput]:
        kind = MessageKind.INPUT_SIGNATURE
        return await read_messages(self._messages, cohort, kind, SignedInput.unpack)

    async def _confirmations(self, cohort: int) -> dict[int, bytes]:
        return await read_messages(self._messages, cohort, MessageKind.CONFIRMATION, bytes)

    async def _survivors_document(self, cohort: int) -> bytes:
        survivors = tuple(sorted(await self.survivors(cohort)))
        return Survivors(survivors=survivors).model_dump_json().encode()

    async def _confirmations_document(self, cohort: int) -> bytes:
        return pack_signatures(await self.confirmations(cohort))

    async def _roster(self, cohort: int) -> bytes:
        enrolled = await self.enrolled_cohort(cohort)
        return enrolled.seating + roster_bytes(enrolled.session.roster)

    async def _share_commitments(self, cohort: int) -> bytes:
        return share_commitments_bytes((await self.transcript(cohort)).share_commitments)


def _by_participants(
    read: Callable[[int], Awaitable[V]], participants: Callable[[V], int]
) -> AsyncCache[int, V]:
    """Return a cache by cohort, of values that weigh the number of their `participants`."""
    return AsyncCache(read, _MAX_CACHED_PARTICIPANTS, participants)


def _documents(read: Callable[[int], Awaitable[bytes]], nbytes_each: int) -> AsyncCache[int, bytes]:
    """Return a cache by cohort, of documents with some `nbytes_each` per participant."""
    return AsyncCache(read, _MAX_CACHED_PARTICIPANTS * nbytes_each, len)


def _share_commitments(key_shares: Mapping[int, KeyShares]) -> dict[int, ShareCommitment]:
    return {slot: sent.share_commitment for slot, sent in key_shares.items()}


def _share_bytes(received: ReceivedShares) -> int:
    return received.records.nbytes


def _dealers_of(transcript: Transcript) -> int:
    return len(transcript.share_commitments)


def _weight(signatures: Iterable[Mapping[int, bytes]]) -> int:
    """Return the number of participants and of all their signatures."""
    return sum(1 + len(each) for each in signatures)
