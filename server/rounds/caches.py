"""Caches of what many devices read: plans of rounds, status of cohorts, slots, and open rounds.

Plans and messages of one-shot sums never change. The status of a cohort, with its phase, is cached
until the notifier reports that it has changed. Phases only move forward, so a status that is out of
date never shows a phase before its time. The document of an open round, which every device reads,
is cached for half a second and until any phase ends.

A value is read once for all concurrent callers, which then take turns (`Turns`).
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from cachetools import Cache, LRUCache, TTLCache

from protocol.api.messages import ProblemType
from protocol.mechanisms.registry import AnyPlan
from secagg.oneshot.member_messages import unpack_digests
from secagg.session import Registry
from server.db.channels import cohort_of
from server.db.repositories.messages.participants import CohortStatus, ParticipantSlot
from server.db.store import Store
from server.errors import ProblemError, malformed
from server.notify.notifier import Notifier, Turns
from server.rounds.one_shot_sums import (
    MessagePage,
    ServedSum,
    read_message_page,
    read_one_shot_sum,
    read_page_ends,
)

_MAX_CACHED_ROUNDS = 64
_MAX_CACHED_FACTS = 1_000
_MAX_CACHED_PAGE_ENDS = 10_000
_PAGE_SECONDS = 120  # members read at about the same time; messages are deleted after their sum
_MAX_CACHED_PAGE_BYTES = 64 * 2**20  # about 5 kB for a message of 2.4 kB to seven members


@dataclass(frozen=True, slots=True)
class SignedFacts:
    """Digest of a plan, which devices sign, and the registry of those that may take part."""

    plan_digest: bytes
    registry: Registry | None

    @classmethod
    def of(cls, plan: AnyPlan) -> "SignedFacts":
        return cls(plan.digest(), plan.registry)

    def check_enrolment(self, identity: bytes, registrar_signature: bytes) -> None:
        """Raise ProblemError if the study has a registrar, which has not signed this identity."""
        if self.registry is not None and not self.registry.admits(identity, registrar_signature):
            detail = "the registrar of this study has not signed this identity"
            raise ProblemError(ProblemType.NOT_ENROLLED, detail)


class RoundCache:
    """Cached plans and one-shot sums of one process, by study and number of the round."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.plan = AsyncCache(self._plan, _MAX_CACHED_ROUNDS)
        self.signed_facts = AsyncCache(self._signed_facts, _MAX_CACHED_FACTS)
        self.report_cohort = AsyncCache(self._report_cohort, _MAX_CACHED_FACTS)
        self.one_shot_sum = AsyncCache(self._one_shot_sum, _MAX_CACHED_ROUNDS)
        self.set_digest = AsyncCache(self._set_digest, _MAX_CACHED_ROUNDS)
        self._message_pages = AsyncCache(
            self._message_page, _MAX_CACHED_PAGE_BYTES, lambda page: page.memory, _PAGE_SECONDS
        )
        self._page_ends = AsyncCache(
            self._read_page_ends, _MAX_CACHED_PAGE_ENDS, lambda ends: 1 + len(ends)
        )
        self._page_lock = asyncio.Lock()  # one is read at a time: each takes memory
        self._page_turns = WeakValueDictionary[str, asyncio.Lock]()  # of the members that wait

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

    async def _plan(self, study_round: tuple[str, int]) -> AnyPlan:
        return await self._store.rounds.plan(*study_round)

    async def _signed_facts(self, study_round: tuple[str, int]) -> SignedFacts:
        plan = await self.plan(study_round)
        return await asyncio.to_thread(SignedFacts.of, plan)  # a plan may list a long dictionary

    async def _report_cohort(self, study_round: tuple[str, int]) -> int:
        return await self._store.reports.cohort(*study_round)

    async def _one_shot_sum(self, study_round: tuple[str, int]) -> ServedSum:
        return await read_one_shot_sum(self._store, *study_round)

    async def _set_digest(self, study_round: tuple[str, int]) -> bytes:
        """Return the digest of the set of messages; ProblemError if none is fixed."""
        served = await self.one_shot_sum(study_round)
        digests = await self._store.one_shot_messages.message_set(served.cohort)
        return await asyncio.to_thread(served.session.set_digest, unpack_digests(digests))

    async def _read_page_ends(self, study_round: tuple[str, int]) -> frozenset[str]:
        return await read_page_ends(self._store, await self.one_shot_sum(study_round))

    async def _message_page(self, page: tuple[str, int, str]) -> MessagePage:
        study, number, after = page
        served = await self.one_shot_sum((study, number))
        async with self._page_lock:
            return await read_message_page(self._store, served, after)


K = TypeVar("K")
V = TypeVar("V")
_EXPIRY_MARGIN_SECONDS = 0.1


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

        def getsizeof(value: V) -> int:
            return min(weigh(value), size)

        self._values: Cache[K, V] = (
            LRUCache(size, getsizeof)
            if seconds is None
            else TTLCache(size, seconds, getsizeof=getsizeof)
        )
        self._reads: dict[K, asyncio.Future[V]] = {}
        self._turns = Turns()

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
        value = await asyncio.shield(self._reads[key])  # cancelling a caller cancels no other
        await self._turns.wait()
        return value

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


_MAX_CACHED_SLOTS = 20_000
_MAX_CACHED_STATUSES = 20_000
_MAX_OPEN_ROUND_BYTES = 50 * 2**20
_OPEN_ROUND_SECONDS = 0.5  # for which the number of devices in it may be out of date


class StatusCache:
    """Cached status of cohorts, slots and open rounds of one process."""

    def __init__(self, store: Store, notifier: Notifier) -> None:
        self._store = store
        self._notifier = notifier
        self._open_rounds = AsyncCache(
            self._read_open_round,
            _MAX_OPEN_ROUND_BYTES,
            lambda document: 100 + len(document or b""),
            _OPEN_ROUND_SECONDS,
        )
        self._slot = AsyncCache(store.participants.slot, _MAX_CACHED_SLOTS)
        self.statuses = AsyncCache(store.participants.status, _MAX_CACHED_STATUSES)
        self._changing = Counter[int]()  # transactions that are about to change a cohort
        self._changing_lock = Lock()
        notifier.observe(self._forget_statuses)

    async def slot(self, participant: str) -> ParticipantSlot:
        """Return the slot of a participant, which is cached once it is final."""
        slot = await self._slot(participant)
        if not slot.is_final:
            self._slot.forget(participant)
        return slot

    def remember_slot(self, slot: ParticipantSlot) -> None:
        """Cache the slot of a participant, which is final."""
        self._slot.remember(slot.participant, slot)

    async def status(self, cohort: int) -> CohortStatus:
        """Return the status of a cohort, cached if all its changes are notified."""
        if not self._notifier.is_complete or self._changing[cohort]:
            return await self._store.participants.status(cohort)
        return await self.statuses(cohort)

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
            self.statuses.forget_all()
            return
        for cohort in _cohorts_of(channels):
            self.statuses.forget(cohort)

    async def _read_open_round(self, key: tuple[str, int]) -> bytes | None:
        view = await self._store.rounds.find_open(*key)
        return None if view is None else view.model_dump_json().encode()


def _cohorts_of(channels: Collection[str]) -> list[int]:
    return [cohort for cohort in map(cohort_of, channels) if cohort is not None]
