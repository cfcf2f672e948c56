"""What closed phases froze: read from the database once, and kept while it is asked for.

Phases only move forward, and closing one freezes what was heard in it. So the roster of a
cohort that has enrolled, the view of one that has shared and the survivors of one that was
masked are the same for ever, and a thousand participants who ask for them cost one
reading. Nothing here may be asked before its phase is closed: callers look at the cohort's
standing first. Losing it all costs time only.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Generic, TypeVar

from protocol.mechanisms import AnyPlan
from protocol.messages import pack_roster, pack_sharers
from secagg.aggregator import Settled
from secagg.cohort import View
from server.decoding import read_settled, read_view
from server.store import Store
from server.store.messages import Facts
from server.store.participants import Place

K = TypeVar("K")
V = TypeVar("V")
_PARTICIPANTS = 50_000  # in kept cohorts: 400 bytes each for a roster, as much for a view
_DEALT_BYTES = 200 * 2**20  # 10 MB for 1,000 participants with 116 holders each


class Once(Generic[K, V]):
    """Reads what never changes, once for all who ask at the same time or later.

    The values that were asked for last are kept, as many as weigh no more than `size`
    together, but always the last.
    """

    def __init__(
        self,
        read: Callable[[K], Awaitable[V]],
        size: int,
        weigh: Callable[[V], int] = lambda _: 1,
    ) -> None:
        self._read = read
        self._room = size
        self._weigh = weigh
        self._kept: OrderedDict[K, asyncio.Task[V]] = OrderedDict()
        self._weights: dict[K, int] = {}  # of those that are read

    async def __call__(self, key: K) -> V:
        """Return the value of `key`; what `read` raises is raised and not kept."""
        task = self._kept.get(key)
        if task is None:
            task = asyncio.create_task(self._fetch(key))
            task.add_done_callback(partial(self._keep, key))
            self._kept[key] = task
        self._kept.move_to_end(key)
        return await asyncio.shield(task)  # one who leaves takes nothing from the others

    async def _fetch(self, key: K) -> V:
        return await self._read(key)

    def _keep(self, key: K, task: asyncio.Task[V]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._kept[key]
            return
        self._weights[key] = self._weigh(task.result())
        self._room -= self._weights[key]
        while self._room < 0 and len(self._weights) > 1:
            oldest = next(one for one in self._kept if one in self._weights and one != key)
            del self._kept[oldest]
            self._room += self._weights.pop(oldest)


class Frozen:
    """The kept facts of one process; sizes bound its memory, not what it can serve."""

    def __init__(self, store: Store) -> None:
        messages = store.messages
        self.plan: Once[tuple[str, int], AnyPlan] = Once(lambda one: store.rounds.plan(*one), 64)
        self.digest: Once[tuple[str, int], bytes] = Once(self._digest, 1_000)  # of plans
        self.place: Once[str, Place] = Once(store.participants.place, 20_000)
        self.facts: Once[int, Facts] = Once(messages.facts, _PARTICIPANTS, lambda one: one.sum.n)
        self.view: Once[int, View] = Once(self._view, _PARTICIPANTS, lambda one: len(one.sharers))
        self.survivors: Once[int, frozenset[int]] = Once(
            lambda cohort: messages.said(cohort, "vector"), _PARTICIPANTS, len
        )
        self.confirmations: Once[int, dict[int, bytes]] = Once(
            self._confirmations, _PARTICIPANTS, len
        )
        self.settled: Once[int, Settled] = Once(self._settled, _DEALT_BYTES, lambda one: one.nbytes)
        # The same bytes for all who ask.
        self.roster: Once[int, bytes] = Once(self._roster, _PARTICIPANTS * 100, len)
        self.sharers: Once[int, bytes] = Once(self._sharers, _PARTICIPANTS * 100, len)
        self._messages = messages

    async def heard(self, cohort: int, kind: str) -> Collection[int]:
        """Return the slots that sent a message of `kind` in its phase, which is closed."""
        if kind == "shares":
            return (await self.view(cohort)).sharers.keys()
        if kind == "vector":
            return await self.survivors(cohort)
        return (await self.confirmations(cohort)).keys()

    async def _digest(self, one: tuple[str, int]) -> bytes:
        plan = await self.plan(one)
        return await asyncio.to_thread(plan.digest)  # a plan may list a long dictionary

    async def _view(self, cohort: int) -> View:
        return await read_view(self._messages, cohort, (await self.facts(cohort)).sum)

    async def _settled(self, cohort: int) -> Settled:
        return await read_settled(self._messages, cohort, await self.view(cohort))

    async def _confirmations(self, cohort: int) -> dict[int, bytes]:
        signatures: dict[int, bytes] = {}
        async for batch in self._messages.bodies(cohort, "confirmation"):
            signatures |= dict(batch)
        return signatures

    async def _roster(self, cohort: int) -> bytes:
        return pack_roster((await self.facts(cohort)).sum.roster)

    async def _sharers(self, cohort: int) -> bytes:
        return pack_sharers((await self.view(cohort)).sharers)
