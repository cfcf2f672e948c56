"""What rounds asked, and what was heavy after each of them: read again from plans and sums.

The database keeps the study's last tally and not those before. A closed round's plan and sums
never change, so folding them again gives the very tallies that there were: once a process and
study, beside the requests, one study at a time. It is left out where sums are not kept, were
never made (reports), or are so large that the work would be felt; and a study of so many rounds
that a page has the last ones only is not read from the middle.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import structlog
from cachetools import LRUCache

from protocol.mechanisms import REPORTING, SUMMING, AnyPlan
from protocol.mechanisms.adaptive_iblt import AdaptiveIbltPlan
from protocol.mechanisms.tracked import TrackedPlan
from protocol.messages import StudyView
from protocol.sketches.capacity import capacity
from protocol.tally import NOTHING, Tally
from server.database import UNAVAILABLE, reason
from server.decoding import decode_round
from server.store import Store
from server.store.progress import Step

MOST_BYTES: Final = 64 * 2**20  # of sums that are read again for one study
_KEPT = 200  # items of a round whose estimates are remembered
_STUDIES, _ROUNDS = 50, 20_000
_OF_ONE_TABLE: Final = (AdaptiveIbltPlan, TrackedPlan)
_BLINK = 0.2  # seconds that a page waits for what is nearly done
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Load:
    """What a round's plan asks: bytes of a vector or report; keys that its table has room for."""

    nbytes: int
    room: int | None

    @classmethod
    def of(cls, plan: AnyPlan) -> "Load":
        """Return the load of `plan`; may take some milliseconds."""
        if plan.mechanism in REPORTING:
            return cls(REPORTING[plan.mechanism].nbytes(plan), None)
        room = capacity(plan.cells) if isinstance(plan, _OF_ONE_TABLE) else None
        return cls(SUMMING[plan.mechanism].ring(plan).nbytes, room)


@dataclass(slots=True)
class Past:
    """The estimates of heavy items after each round that said something, up to round `last`."""

    last: int = 0
    tally: Tally = NOTHING
    is_broken: bool = False  # one round could not be read: no use to try again
    rounds: list[int] = field(default_factory=list)
    estimates: list[Mapping[str, float]] = field(default_factory=list)

    def of(self, item: str) -> list[float | None]:
        """Return the estimates of `item` round by round, None where it was not found heavy."""
        return [after.get(item) for after in self.estimates]


class Histories:
    """What one process has read again of the rounds of studies."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loads: LRUCache[tuple[str, int], Load] = LRUCache(_ROUNDS)
        self._pasts: LRUCache[str, Past] = LRUCache(_STUDIES)
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(1)

    async def loads(self, study: str, numbers: Iterable[int]) -> dict[int, Load]:
        """Return the loads of rounds of `study`; a round that is gone, or unreadable, has none."""
        found = {}
        for number in numbers:
            load = self._loads.get((study, number))
            if load is None:
                plan = await self._store.rounds.plan(study, number)
                load = await asyncio.to_thread(Load.of, plan)
                self._loads[study, number] = load
            found[number] = load
        return found

    async def past(
        self, study: StudyView, steps: Sequence[Step], nbytes: int
    ) -> tuple[Past | None, bool]:
        """Return what is known of the past of `study`, and whether more will be in a moment.

        None if sums are not read again. `steps` are the last rounds so far, `nbytes` the size of
        a sum.
        """
        work = nbytes * study.rounds * study.terms.cohorts
        is_kept = study.question.mechanism in SUMMING and not study.question.withholds
        if not is_kept or work > MOST_BYTES:
            return None, False
        past = self._pasts.setdefault(study.id, Past())
        closed = [step.number for step in steps if step.state in ("decoded", "undecoded")]
        left = [number for number in closed if number > past.last]
        if past.is_broken or (left and steps[0].number > past.last + 1):
            return None, False
        if left:
            task = self._reading.get(study.id)
            if task is None:
                task = asyncio.create_task(self._read(study.id, past, left))
                self._reading[study.id] = task
            await asyncio.wait((task,), timeout=_BLINK)
        return past, study.id in self._reading

    async def _read(self, study: str, past: Past, numbers: list[int]) -> None:
        try:
            async with self._turn:
                for number in numbers:
                    await self._fold(study, past, number)
        except UNAVAILABLE as error:
            _log.warning("database unavailable", error=reason(error))
        except Exception:  # the page goes without
            past.is_broken = True
            _log.exception("past not read again", study=study)
        finally:
            del self._reading[study]

    async def _fold(self, study: str, past: Past, number: int) -> None:
        plan = await self._store.rounds.plan(study, number)
        outcome = await decode_round(self._store, study, plan, past.tally)
        past.last = number
        if outcome.answer is not None:
            past.tally = outcome.answer.tally
            past.rounds.append(number)
            past.estimates.append({one.item: one.count for one in outcome.heavy[:_KEPT]})

    async def close(self) -> None:
        """Stop reading."""
        tasks = list(self._reading.values())
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def open_histories(store: Store) -> AsyncIterator[Histories]:
    """Yield the histories of one process, and stop reading at the end."""
    histories = Histories(store)
    try:
        yield histories
    finally:
        await histories.close()
