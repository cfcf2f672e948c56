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


class Once(Generic[K, V]):
    """Reads what never changes, once for all who ask at the same time or later."""

    def __init__(self, read: Callable[[K], Awaitable[V]], size: int) -> None:
        self._read = read
        self._size = size
        self._kept: OrderedDict[K, asyncio.Task[V]] = OrderedDict()

    async def __call__(self, key: K) -> V:
        """Return the value of `key`; what `read` raises is raised and not kept."""
        task = self._kept.get(key)
        if task is None:
            task = asyncio.create_task(self._fetch(key))
            task.add_done_callback(partial(self._drop_failed, key))
            self._kept[key] = task
        self._kept.move_to_end(key)
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return await asyncio.shield(task)  # one who leaves takes nothing from the others

    async def _fetch(self, key: K) -> V:
        return await self._read(key)

    def _drop_failed(self, key: K, task: asyncio.Task[V]) -> None:
        has_failed = task.cancelled() or task.exception() is not None
        if has_failed and self._kept.get(key) is task:
            del self._kept[key]


class Frozen:
    """The kept facts of one process; sizes bound its memory, not what it can serve."""

    def __init__(self, store: Store) -> None:
        messages = store.messages
        self.plan: Once[tuple[str, int], AnyPlan] = Once(lambda one: store.rounds.plan(*one), 64)
        self.place: Once[str, Place] = Once(store.participants.place, 20_000)
        self.facts: Once[int, Facts] = Once(messages.facts, 16)
        self.view: Once[int, View] = Once(self._view, 16)
        self.survivors: Once[int, frozenset[int]] = Once(
            lambda cohort: messages.said(cohort, "vector"), 16
        )
        self.confirmations: Once[int, dict[int, bytes]] = Once(self._confirmations, 16)
        # 50 MB for 1,000 participants of 116 holders each
        self.settled: Once[int, Settled] = Once(self._settled, 4)
        # The same bytes for all who ask.
        self.roster: Once[int, bytes] = Once(self._roster, 16)
        self.sharers: Once[int, bytes] = Once(self._sharers, 16)
        self._messages = messages

    async def heard(self, cohort: int, kind: str) -> Collection[int]:
        """Return the slots that sent a message of `kind` in its phase, which is closed."""
        if kind == "shares":
            return (await self.view(cohort)).sharers.keys()
        if kind == "vector":
            return await self.survivors(cohort)
        return (await self.confirmations(cohort)).keys()

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
