"""History of a study: the size of each round, and the estimates after each round.

The database keeps only the study's last state. Decoding the closed rounds again in order gives the
earlier ones, in the background, one study at a time. There is no history if sums are not kept or
never made (reports), if they are too large, or if the page has only the last rounds of a study.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Final, cast

import structlog
from cachetools import LRUCache
from fastapi import Depends, Request

from protocol.api.messages import StudyView
from protocol.api.one_shot import message_bytes
from protocol.domains import Domain
from protocol.mechanisms.registry import REPORT_MECHANISMS, SUM_MECHANISMS, AnyPlan
from protocol.study_state import EMPTY_STATE, StudyState
from server.db.database_errors import UNAVAILABLE_ERRORS, loggable_reason
from server.db.repositories.progress import RoundSummary
from server.db.store import Store
from server.rounds.decoding import decode_round

MAX_BYTES_READ_AGAIN: Final = 64 * 2**20  # of the sums of one study
_MAX_ITEMS_PER_ROUND = 200  # items of a round whose estimates are remembered
_MAX_CACHED_STUDIES, _MAX_CACHED_ROUNDS = 50, 20_000
_PAGE_WAIT_SECONDS = 0.2  # seconds that a page waits for a history that is almost complete
_log = structlog.get_logger(__name__)


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
    """Estimates of heavy items after each decoded round, up to round `last_round`.

    Each round makes another history, so that a page keeps the one that it was given. Items of a
    hashed `domain` are known by their keys, because their strings are fetched later.
    """

    domain: Domain
    last_round: int = 0
    study_state: StudyState = EMPTY_STATE
    is_broken: bool = False  # a round could not be read; another attempt would fail too
    rounds: tuple[int, ...] = ()
    estimates: tuple[Mapping[str, float], ...] = ()

    def estimates_of(self, item: str) -> list[float | None]:
        """Return the estimate of `item` after each round; None where it was not heavy."""
        return [estimates.get(self.key_of(item)) for estimates in self.estimates]

    def key_of(self, item: str) -> str:
        """Return the key of an item of a hashed domain; other items, and keys, stay."""
        return self.domain.name(item) if item in self.domain else item


class EstimateHistories:
    """Histories of studies that this process has decoded again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._round_sizes: LRUCache[tuple[str, int], RoundSize] = LRUCache(_MAX_CACHED_ROUNDS)
        self._histories: LRUCache[str, EstimateHistory] = LRUCache(_MAX_CACHED_STUDIES)
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Semaphore(1)

    async def round_sizes(self, study: str, numbers: Iterable[int]) -> dict[int, RoundSize]:
        """Return the sizes of the rounds `numbers` of `study`."""
        sizes = {}
        for number in numbers:
            size = self._round_sizes.get((study, number))
            if size is None:
                plan = await self._store.rounds.plan(study, number)
                size = await asyncio.to_thread(RoundSize.of_plan, plan)
                self._round_sizes[study, number] = size
            sizes[number] = size
        return sizes

    async def history(
        self, study: StudyView, rounds: Sequence[RoundSummary], nbytes: int
    ) -> tuple[EstimateHistory | None, bool]:
        """Return the history of `study`, and whether more of it will be known in a moment.

        None if its sums are not decoded again. `rounds` are the last rounds so far, `nbytes` the
        size of a sum.
        """
        total_bytes = nbytes * study.rounds * study.terms.cohorts
        keeps_sums = study.question.mechanism in SUM_MECHANISMS and not study.question.discards_sums
        if not keeps_sums or total_bytes > MAX_BYTES_READ_AGAIN:
            return None, False
        history = self._histories.setdefault(study.id, EstimateHistory(study.question.domain))
        closed = [each.number for each in rounds if each.state in ("decoded", "undecoded")]
        missing = [number for number in closed if number > history.last_round]
        if history.is_broken or (missing and rounds[0].number > history.last_round + 1):
            return None, False
        if missing:
            task = self._reading.get(study.id)
            if task is None:
                task = asyncio.create_task(self._read(study.id, history, missing))
                self._reading[study.id] = task
            await asyncio.wait((task,), timeout=_PAGE_WAIT_SECONDS)
        return self._histories.get(study.id, history), study.id in self._reading

    async def _read(self, study: str, history: EstimateHistory, numbers: list[int]) -> None:
        try:
            async with self._one_at_a_time:
                for number in numbers:
                    history = await self._with_round(study, history, number)
                    self._histories[study] = history
        except UNAVAILABLE_ERRORS as error:
            _log.debug("database unavailable", error=loggable_reason(error))
        except Exception:  # the page is shown without the history
            self._histories[study] = replace(history, is_broken=True)
            _log.exception("history not decoded", study=study)
        finally:
            del self._reading[study]

    async def _with_round(
        self, study: str, history: EstimateHistory, number: int
    ) -> EstimateHistory:
        """Return `history` with the estimates after round `number`, if it has any."""
        plan = await self._store.rounds.plan(study, number)
        outcome = await decode_round(self._store, study, plan, history.study_state)
        if outcome.answer is None:
            return replace(history, last_round=number)
        items = outcome.heavy_hitters[:_MAX_ITEMS_PER_ROUND]
        estimates = {history.key_of(item.item): item.count for item in items}
        return replace(
            history,
            last_round=number,
            study_state=outcome.answer.state,
            rounds=(*history.rounds, number),
            estimates=(*history.estimates, estimates),
        )

    async def aclose(self) -> None:
        """Cancel all reading."""
        tasks = list(self._reading.values())
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


async def _histories(request: Request) -> EstimateHistories:
    return cast("EstimateHistories", request.app.state.histories)


HistoriesDep = Annotated[EstimateHistories, Depends(_histories)]
