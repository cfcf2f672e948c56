"""Rounds of a study on its page: the sizes of their plans, and the estimates after each round."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, cast

from cachetools import LRUCache
from fastapi import Depends, Request

from protocol.api.messages import StudyView
from protocol.api.one_shot import message_bytes
from protocol.domains import Domain
from protocol.mechanisms.registry import REPORT_MECHANISMS, SUM_MECHANISMS, AnyPlan
from server.db.repositories.studies.answers import lasting_name
from server.db.repositories.studies.progress import RoundSummary
from server.db.store import Store

_MAX_CACHED_ROUNDS: Final = 20_000


@dataclass(frozen=True, slots=True)
class RoundSize:
    """Sizes under a round's plan.

    Attributes:
        nbytes: bytes of a vector or report.
        capacity: number of keys that a table can hold, None if there is no table.
        sent_bytes: bytes of the message that has the vector or report.
        message: what that message is.
        fetched_strings: number of strings of which the round fetches pieces.
    """

    nbytes: int
    capacity: int | None
    sent_bytes: int
    message: str
    fetched_strings: int = 0

    @classmethod
    def of_plan(cls, plan: AnyPlan) -> "RoundSize":
        """Return the size of `plan`; may take some milliseconds."""
        if plan.mechanism in REPORT_MECHANISMS:
            nbytes = REPORT_MECHANISMS[plan.mechanism].nbytes(plan)
            return cls(nbytes, None, nbytes, "report")
        mechanism = SUM_MECHANISMS[plan.mechanism]
        nbytes = mechanism.vector_bytes(plan)
        if plan.terms.is_one_shot:
            sent_bytes, message = message_bytes(plan), "message"
        else:
            sent_bytes, message = nbytes, "table"
        strings = mechanism.fetched_strings(plan)
        return cls(nbytes, mechanism.table_capacity(plan), sent_bytes, message, strings)


@dataclass(frozen=True, slots=True)
class EstimateHistory:
    """Estimates of heavy items after each round, by their names in `domain`.

    Items of a hashed domain have the names of their keys, because their strings are fetched later.
    """

    domain: Domain
    estimates: Mapping[int, Mapping[str, float]]  # by the number of a round
    devices: Mapping[int, int] | None = None  # so far, by the number of a round

    @classmethod
    async def of_study(
        cls, store: Store, study: StudyView, rounds: Sequence[RoundSummary], devices: int | None
    ) -> "EstimateHistory":
        """Return the history of the last `rounds` of a study, which has counted all `devices`.

        If a device counts an item once, an estimate is a percentage of the devices so far.
        """
        question = study.question
        estimates = await store.answers.estimates_by_round(study.id, len(rounds))
        if not devices or question.share(1, devices) is None:
            return cls(question.domain, estimates)
        so_far = dict[int, int]()
        for summary in reversed(rounds):
            so_far[summary.number] = devices
            devices -= 0 if question.asks_every_round else summary.participants or 0
        return cls(question.domain, estimates, so_far)

    def estimates_of(self, item: str) -> list[float | None]:
        """Return the estimate of `item` after each round; None where it was not heavy."""
        name = lasting_name(self.domain, item)
        return [self._shown(number, each.get(name)) for number, each in self.estimates.items()]

    def thresholds(self, threshold: float) -> list[float | None]:
        """Return the `threshold` after each round, in the unit of the estimates."""
        return [self._shown(number, threshold) for number in self.estimates]

    def _shown(self, number: int, count: float | None) -> float | None:
        if self.devices is None or count is None:
            return count
        devices = self.devices.get(number)
        return 100 * min(1.0, count / devices) if devices else None


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
