"""Sizes of a study's rounds, which follow from their plans."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, cast

from cachetools import LRUCache
from fastapi import Depends, Request

from protocol.device_policy.sizes_and_losses import upload_bytes
from protocol.mechanisms.registry import REPORT_MECHANISMS, SUM_MECHANISMS, AnyPlan
from server.db.store import Store

_MAX_CACHED_ROUNDS: Final = 20_000


@dataclass(frozen=True, slots=True)
class RoundSize:
    """Sizes under a round's plan.

    Attributes:
        nbytes: bytes of a vector or report.
        capacity: number of keys that a table can hold, None if there is no table.
        sent_bytes: bytes of a device's message in a full cohort (`round_sizes.message_bytes`).
        fetched_strings: number of strings of which the round fetches pieces.
    """

    nbytes: int
    capacity: int | None
    sent_bytes: int
    fetched_strings: int = 0

    @classmethod
    def of_plan(cls, plan: AnyPlan) -> "RoundSize":
        """Return the size of `plan`; may take some milliseconds."""
        if plan.mechanism in REPORT_MECHANISMS:
            nbytes = REPORT_MECHANISMS[plan.mechanism].nbytes(plan)
            return cls(nbytes, None, upload_bytes(plan))
        mechanism = SUM_MECHANISMS[plan.mechanism]
        nbytes, capacity = mechanism.vector_bytes(plan), mechanism.table_capacity(plan)
        return cls(nbytes, capacity, upload_bytes(plan), mechanism.fetched_strings(plan))


class RoundSizes:
    """Sizes of the rounds that this process was asked for: to compute one takes milliseconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sizes: LRUCache[tuple[str, int], RoundSize] = LRUCache(_MAX_CACHED_ROUNDS)

    async def of_rounds(self, study: str, numbers: Iterable[int]) -> dict[int, RoundSize]:
        """Return the sizes of the rounds `numbers` of `study`."""
        sizes = {}
        for number in numbers:
            size = self._sizes.get((study, number))
            if size is None:
                plan = await self._store.rounds.plan(study, number)
                size = await asyncio.to_thread(RoundSize.of_plan, plan)
                self._sizes[study, number] = size
            sizes[number] = size
        return sizes


async def _round_sizes(request: Request) -> RoundSizes:
    return cast("RoundSizes", request.app.state.round_sizes)


RoundSizesDep = Annotated[RoundSizes, Depends(_round_sizes)]
