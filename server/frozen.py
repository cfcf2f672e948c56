"""What closed phases froze: read from the database once, and kept while it is asked for.

Phases only move forward, and closing one freezes what was heard in it. So the roster of a
cohort that has enrolled, the envelopes of one that has shared and the survivors of one that
was masked are the same for ever, and a thousand participants who ask for them cost one
reading. Nothing here may be asked before its phase is closed: callers look at the cohort's
standing first. Losing it all costs time only.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

from protocol.messages import pack_envelopes, unpack_envelopes
from server.store import Store
from server.store.messages import Facts, Messages
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
        self.place: Once[str, Place] = Once(store.participants.place, 20_000)
        self.facts: Once[int, Facts] = Once(messages.facts, 16)
        self.sharers: Once[int, frozenset[int]] = Once(
            lambda cohort: messages.said(cohort, "envelopes"), 16
        )
        self.survivors: Once[int, frozenset[int]] = Once(
            lambda cohort: messages.said(cohort, "vector"), 16
        )
        # 12 MB for 1,000 participants of degree 100
        self.mail: Once[int, dict[int, bytes]] = Once(lambda c: _sort_mail(messages, c), 4)


async def _sort_mail(messages: Messages, cohort: int) -> dict[int, bytes]:
    """Return the body for each receiver: the envelopes addressed to it, by sender."""
    inboxes: dict[int, dict[int, bytes]] = defaultdict(dict)
    async for batch in messages.bodies(cohort, "envelopes"):
        await asyncio.to_thread(_deliver, inboxes, batch)
    return await asyncio.to_thread(
        lambda: {slot: pack_envelopes(inbox) for slot, inbox in inboxes.items()}
    )


def _deliver(inboxes: dict[int, dict[int, bytes]], batch: list[tuple[int, bytes]]) -> None:
    for sender, body in batch:
        for receiver, envelope in unpack_envelopes(body).items():
            inboxes[receiver][sender] = envelope
