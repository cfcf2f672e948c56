"""Cache of the facts of closed phases, which never change and are read from the database once.

Callers check the phase of the cohort first: a fact is only valid once its phase is closed. The
status of a cohort, with its phase, is cached until the notifier reports that it has changed. Phases
only move forward, so a status that is out of date never shows a phase before its time. The document
of an open round, which every device reads, is cached for half a second and until any phase ends.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from cachetools import Cache, LRUCache, TTLCache

from protocol.api.device_messages import Survivors
from protocol.api.phases import MessageKind
from protocol.mechanisms.registry import AnyPlan
from secagg.aggregator import UnmaskingRequest, complaints_by_dealer, route_shares
from secagg.messages import Complaints, KeyShares, SignedInput, pack_signatures
from secagg.roster import ShareCommitment, roster_bytes, share_commitments_bytes
from secagg.session import Transcript
from secagg.shares import ReceivedShares
from server.db.channels import cohort_of
from server.db.repositories.devices.participants import CohortStatus, ParticipantSlot
from server.db.store import Store
from server.errors import malformed
from server.notify.notifier import Notifier
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
from server.rounds.one_shot_sums import (
    MessagePage,
    ServedSum,
    read_message_page,
    read_one_shot_sum,
    read_page_ends,
)

K = TypeVar("K")
V = TypeVar("V")
_MAX_CACHED_PARTICIPANTS = 50_000  # 400 bytes each for a roster, and the same for a transcript
_MAX_CACHED_SHARE_BYTES = 200 * 2**20  # 16 MB for 1,000 participants with 116 holders each
_MAX_CACHED_HOLDER_BYTES = 20 * 2**20  # 0.2 MB for the same
_MAX_CACHED_STATUSES = 20_000
_PAGE_SECONDS = 120  # members read at about the same time; messages are deleted after their sum
_EXPIRY_MARGIN_SECONDS = 0.1
_MAX_CACHED_PAGE_BYTES = 64 * 2**20  # about 5 kB for a message of 2.4 kB to seven members
_MAX_OPEN_ROUND_BYTES = 50 * 2**20
_OPEN_ROUND_SECONDS = 0.5  # for which the number of devices in it may be out of date
_SINGLE_READS = 4  # more cost cohorts that fit the cache, fewer cost those that do not


class AsyncCache(Generic[K, V]):
    """Cache of values that never change; concurrent and later calls share one read.

    It keeps the most recently used values whose total weight is at most `size`, and always the
    last one; each for `seconds`, if given.
    """

    def __init__(
        self,
        read: Callable[[K], Awaitable[V]],
        size: int,
        weigh: Callable[[V], int] = lambda _: 1,
        seconds: float | None = None,
    ) -> None:
        self._read = read
        getsizeof = partial(_limited_weight, weigh, size)
        self._values: Cache[K, V] = (
            LRUCache(size, getsizeof)
            if seconds is None
            else TTLCache(size, seconds, getsizeof=getsizeof)
        )
        self._reads: dict[K, asyncio.Future[V]] = {}

    def __contains__(self, key: K) -> bool:
        """Return whether the value of `key` is cached or being read."""
        return key in self._values or key in self._reads

    async def __call__(self, key: K) -> V:
        """Return the value of `key`; an error of `read` is raised and not cached."""
        try:
            return self._values[key]
        except KeyError:  # not checked before: a value may expire in between
            pass
        if key not in self._reads:
            self._reads[key] = asyncio.ensure_future(self._read(key))
            self._reads[key].add_done_callback(partial(self._on_read, key))
        return await asyncio.shield(self._reads[key])  # cancelling a caller cancels no other

    def remember(self, key: K, value: V) -> None:
        """Cache the value of `key` without a read."""
        self._values[key] = value

    def forget(self, key: K) -> None:
        """Read the value of `key` again when it is next used; no caller gets an earlier read."""
        self._values.pop(key, None)
        self._reads.pop(key, None)

    def forget_all(self) -> None:
        """Read all values again."""
        self._values.clear()
        self._reads.clear()

    def _on_read(self, key: K, read: asyncio.Future[V]) -> None:
        is_forgotten = self._reads.get(key) is not read
        if not is_forgotten:
            del self._reads[key]
        if not read.cancelled() and read.exception() is None and not is_forgotten:
            self._values[key] = read.result()
            if isinstance(self._values, TTLCache):  # which by itself keeps it until the next one
                loop, seconds = asyncio.get_running_loop(), self._values.ttl
                loop.call_later(seconds + _EXPIRY_MARGIN_SECONDS, self._values.expire)


class CohortCache:
    """Cached facts of one process; the sizes limit its memory, and not what it can serve."""

    def __init__(self, store: Store, notifier: Notifier) -> None:
        messages = store.messages
        self.plan: AsyncCache[tuple[str, int], AnyPlan] = AsyncCache(
            lambda study_round: store.rounds.plan(*study_round), 64
        )
        self.plan_digest = AsyncCache(self._plan_digest, 1_000)
        self.one_shot_sum: AsyncCache[tuple[str, int], ServedSum] = AsyncCache(
            lambda study_round: read_one_shot_sum(store, *study_round), 64
        )
        self._message_pages: AsyncCache[tuple[str, int, str], MessagePage] = AsyncCache(
            self._read_message_page, _MAX_CACHED_PAGE_BYTES, lambda page: page.memory, _PAGE_SECONDS
        )
        self._page_ends = AsyncCache(self._read_page_ends, 10_000, lambda ends: 1 + len(ends))
        self._page_lock = asyncio.Lock()  # one is read at a time: each takes memory
        self._page_turns = WeakValueDictionary[str, asyncio.Lock]()  # of the members that wait
        self._open_rounds = AsyncCache(
            self._read_open_round,
            _MAX_OPEN_ROUND_BYTES,
            lambda document: 100 + len(document or b""),
            _OPEN_ROUND_SECONDS,
        )
        self._slot = AsyncCache(store.participants.slot, 20_000)
        self._statuses = AsyncCache(store.participants.status, _MAX_CACHED_STATUSES)
        self._read_status = store.participants.status
        self._notifier = notifier
        self._changing = Counter[int]()  # transactions that are about to change a cohort
        self._changing_lock = Lock()
        notifier.observe(self._forget_statuses)
        self.enrolled_cohort = AsyncCache(
            messages.enrolled_cohort, _MAX_CACHED_PARTICIPANTS, lambda cohort: cohort.session.n
        )
        self.dealers: AsyncCache[int, frozenset[int]] = AsyncCache(
            lambda cohort: messages.senders(cohort, MessageKind.KEY_SHARES),
            _MAX_CACHED_PARTICIPANTS,
            len,
        )
        self._holder_tables = AsyncCache(
            self._holder_table, _MAX_CACHED_HOLDER_BYTES, lambda table: table.holders.nbytes
        )
        self._all_received_shares = AsyncCache(
            self._read_all_received_shares,
            _MAX_CACHED_SHARE_BYTES,
            lambda by_holder: sum(received.records.nbytes for received in by_holder.values()),
        )
        self._received_shares = AsyncCache(
            self._read_received_shares,
            _MAX_CACHED_SHARE_BYTES // 10,
            lambda received: received.records.nbytes,
        )
        self._share_misses: LRUCache[int, int] = LRUCache(_MAX_CACHED_PARTICIPANTS)
        self.complaints: AsyncCache[int, dict[int, Complaints]] = AsyncCache(
            lambda cohort: read_complaints(messages, cohort),
            _MAX_CACHED_PARTICIPANTS,
            lambda complaints: _weight(each.signatures for each in complaints.values()),
        )
        self.complaints_by_dealer = AsyncCache(
            self._complaints_by_dealer,
            _MAX_CACHED_PARTICIPANTS,
            lambda by_dealer: 1 + _weight(by_dealer.values()),
        )
        self._share_commitments_by_dealer: AsyncCache[int, Mapping[int, ShareCommitment]] = (
            AsyncCache(
                lambda cohort: read_share_commitments(messages, cohort),
                _MAX_CACHED_PARTICIPANTS,
                len,
            )
        )
        self.transcript = AsyncCache(
            self._transcript,
            _MAX_CACHED_PARTICIPANTS,
            lambda transcript: len(transcript.share_commitments),
        )
        self.survivors: AsyncCache[int, frozenset[int]] = AsyncCache(
            lambda cohort: messages.senders(cohort, MessageKind.MASKED_INPUT),
            _MAX_CACHED_PARTICIPANTS,
            len,
        )
        self.confirmations = AsyncCache(self._confirmations, _MAX_CACHED_PARTICIPANTS, len)
        self.signed_inputs = AsyncCache(self._signed_inputs, _MAX_CACHED_PARTICIPANTS, len)
        self.unmasking_request = AsyncCache(
            self._unmasking_request,
            _MAX_CACHED_PARTICIPANTS,
            lambda request: len(request.transcript.share_commitments),
        )
        # Packed, so that all participants get the same bytes.
        self.roster = AsyncCache(self._roster, _MAX_CACHED_PARTICIPANTS * 100, len)
        self.share_commitments = AsyncCache(
            self._share_commitments, _MAX_CACHED_PARTICIPANTS * 100, len
        )
        self.survivors_document = AsyncCache(
            self._survivors_document, _MAX_CACHED_PARTICIPANTS * 10, len
        )
        self.confirmations_document = AsyncCache(
            self._confirmations_document, _MAX_CACHED_PARTICIPANTS * 100, len
        )
        self._messages = messages
        self._store = store

    async def message_page(self, study: str, number: int, after: str, member: str) -> MessagePage:
        """Return the page of one-shot messages after identity `after`, "" for the first.

        The sum takes no more messages. A member waits for its last page before it gets another one,
        so that one that asks for many holds up the others by a page at most.

        Raises:
            ProblemError: if no page ends with `after`, or the messages have been deleted.
        """
        if after and after not in await self._page_ends((study, number)):
            raise malformed("no page of messages ends with the identity `after`")
        turn = self._page_turns.setdefault(member, asyncio.Lock())
        async with turn:
            return await self._message_pages((study, number, after))

    async def _read_page_ends(self, study_round: tuple[str, int]) -> frozenset[str]:
        return await read_page_ends(self._store, await self.one_shot_sum(study_round))

    async def _read_message_page(self, page: tuple[str, int, str]) -> MessagePage:
        study, number, after = page
        served = await self.one_shot_sum((study, number))
        async with self._page_lock:
            return await read_message_page(self._store, served, after)

    async def slot(self, participant: str) -> ParticipantSlot:
        """Return the slot of a participant, which is cached once it is final."""
        slot = await self._slot(participant)
        if not slot.is_final:
            self._slot.forget(participant)
        return slot

    async def status(self, cohort: int) -> CohortStatus:
        """Return the status of a cohort, cached if all its changes are notified."""
        if not self._notifier.is_complete or self._changing[cohort]:
            return await self._read_status(cohort)
        return await self._statuses(cohort)

    async def open_round(self, study: str, after: int) -> bytes | None:
        """Return the JSON document of the open round after number `after`, None without one.

        Raises:
            ProblemError: if there is no such study, or it has ended.
        """
        if not self._notifier.is_complete:
            return await self._read_open_round((study, after))
        return await self._open_rounds((study, after))

    def on_change(self, channels: Collection[str]) -> None:
        """Use no cached status of these cohorts until `after_change`: one is about to change."""
        with self._changing_lock:
            self._changing.update(_cohorts_of(channels))

    def after_change(self, channels: Collection[str]) -> None:
        """Undo `on_change`, once the change has been notified."""
        with self._changing_lock:
            self._changing -= Counter(_cohorts_of(channels))

    def _forget_statuses(self, channels: Collection[str] | None) -> None:
        """Read the status of the cohorts of `channels` again, or of all cohorts if None.

        The open rounds are read again after any change.
        """
        self._open_rounds.forget_all()
        if channels is None:
            self._statuses.forget_all()
            return
        for cohort in _cohorts_of(channels):
            self._statuses.forget(cohort)

    def remember_slot(self, slot: ParticipantSlot) -> None:
        """Cache the slot of a participant, which is final."""
        self._slot.remember(slot.participant, slot)

    async def received_shares(self, cohort: int, slot: int) -> ReceivedShares:
        """Return the share pairs for the participant in `slot`.

        The first miss of a cohort reads all its bodies, because all participants ask when their
        phase begins. If the cohort is evicted, a miss reads the bodies of one participant's dealers
        only, until the misses have read `_SINGLE_READS` times the bodies of the cohort. The next
        miss reads them all again. So with more cohorts than fit, few requests read a whole cohort.
        """
        key = cohort, slot
        if cohort in self._all_received_shares:
            return (await self._all_received_shares(cohort))[slot]
        if key in self._received_shares:
            return await self._received_shares(key)
        session = (await self.enrolled_cohort(cohort)).session
        misses = self._share_misses.pop(cohort, None)
        if misses is None or misses * session.parameters.holders >= _SINGLE_READS * session.n:
            self._share_misses[cohort] = 0
            return (await self._all_received_shares(cohort))[slot]
        self._share_misses[cohort] = misses + 1
        return await self._received_shares(key)

    async def senders(self, cohort: int, kind: MessageKind) -> Collection[int]:
        """Return the slots that sent a message of `kind`, whose phase is closed."""
        if kind == MessageKind.KEY_SHARES:
            return await self.dealers(cohort)
        if kind == MessageKind.COMPLAINTS:
            return (await self.complaints(cohort)).keys()
        if kind == MessageKind.MASKED_INPUT:
            return await self.survivors(cohort)
        return (await self.confirmations(cohort)).keys()

    async def _read_open_round(self, key: tuple[str, int]) -> bytes | None:
        view = await self._store.rounds.find_open(*key)
        return None if view is None else view.model_dump_json().encode()

    async def _plan_digest(self, study_round: tuple[str, int]) -> bytes:
        plan = await self.plan(study_round)
        return await asyncio.to_thread(plan.digest)  # a plan may list a long dictionary

    async def _transcript(self, cohort: int) -> Transcript:
        session = (await self.enrolled_cohort(cohort)).session
        complaints, answered = await self.complaints(cohort), frozenset[int]()
        if await self.complaints_by_dealer(cohort):
            answered = await self._messages.senders(cohort, MessageKind.ANSWERS)
        commitments = await self._share_commitments_by_dealer(cohort)
        return make_transcript(session, complaints, answered, commitments)

    async def _unmasking_request(self, cohort: int) -> UnmaskingRequest:
        transcript, survivors = await self.transcript(cohort), await self.survivors(cohort)
        return make_unmasking_request(transcript, survivors, await self.complaints(cohort))

    async def _holder_table(self, cohort: int) -> HolderTable:
        session = (await self.enrolled_cohort(cohort)).session
        return await read_holder_table(self._messages, cohort, session)

    async def _read_all_received_shares(self, cohort: int) -> dict[int, ReceivedShares]:
        session, kind = (await self.enrolled_cohort(cohort)).session, MessageKind.KEY_SHARES
        key_shares = await read_messages(self._messages, cohort, kind, KeyShares.unpack)
        commitments = {slot: sent.share_commitment for slot, sent in key_shares.items()}
        self._share_commitments_by_dealer.remember(cohort, commitments)
        return await asyncio.to_thread(route_shares, session, key_shares)

    async def _read_received_shares(self, key: tuple[int, int]) -> ReceivedShares:
        cohort, slot = key
        table = await self._holder_tables(cohort)
        return await read_received_shares(self._messages, cohort, table, slot)

    async def _complaints_by_dealer(self, cohort: int) -> dict[int, dict[int, bytes]]:
        return complaints_by_dealer(await self.complaints(cohort))

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


def _cohorts_of(channels: Collection[str]) -> list[int]:
    return [cohort for cohort in map(cohort_of, channels) if cohort is not None]


def _limited_weight(weigh: Callable[[V], int], limit: int, value: V) -> int:
    return min(weigh(value), limit)


def _weight(signatures: Iterable[Mapping[int, bytes]]) -> int:
    """Return the number of participants and of all their signatures."""
    return sum(1 + len(each) for each in signatures)
