"""Cache of the plans of rounds and of the messages of one-shot sums, which never change."""

import asyncio
from dataclasses import dataclass
from weakref import WeakValueDictionary

from protocol.api.messages import ProblemType
from protocol.mechanisms.registry import AnyPlan
from secagg.oneshot.member_messages import unpack_digests
from secagg.session import Registry
from server.db.store import Store
from server.errors import ProblemError, malformed
from server.rounds.async_cache import AsyncCache
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
