"""Event streams: each sends what happens in one study as it happens, to whoever listens.

A stream reads rows after the last that it sent and waits for the study's bell; between two
readings it holds no connection to the database. What other servers wrote rings here as well: at
once if the database tells of it (`server/listener.py`), and in any case at the next look at how
many events each study has that somebody follows. There are so many streams at most: each is a
connection of its own, for hours. So each asks now and then whether its key is still good.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import structlog

from protocol.events import Event, EventKind
from protocol.messages import ProblemType
from server.database import UNAVAILABLE
from server.metrics import Metrics
from server.refusals import Refusal
from server.store.events import Events
from server.watch import Watch, study_bell

_HOLD = 60.0  # seconds until a stream looks for itself, should no bell ring
_log = structlog.get_logger(__name__)


class Streams:
    """The open event streams of one process, `most` at a time.

    Whoever was let in is taken to be for `known` seconds.
    """

    def __init__(
        self, events: Events, watch: Watch, metrics: Metrics, most: int, known: float = 5.0
    ) -> None:
        self._events = events
        self._watch = watch
        self._metrics = metrics
        self._most = most
        self._known = known
        self._followed: Counter[str] = Counter()
        self._last: dict[str, int] = {}

    @property
    def count(self) -> int:
        """Return how many are open."""
        return self._followed.total()

    @contextmanager
    def open(self, study: str) -> Iterator[None]:
        """Take a place for one stream.

        Raises:
            Refusal: if all are taken.
        """
        if self.count >= self._most:
            detail = f"{self._most} event streams are open here, and no more may be: try again"
            raise Refusal(ProblemType.UNAVAILABLE, detail)
        self._followed[study] += 1
        try:
            with self._metrics.event_streams.track_inprogress():
                yield
        finally:
            self._followed[study] -= 1
            self._followed += Counter()  # forgets those that nobody follows

    async def follow(
        self, study: str, last: int, is_let_in: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[Event]:
        """Yield the events of `study` after number `last`, until it ends or the server stops.

        It also ends when the database is away, and whoever listens comes back; and once whoever
        listens is no longer let in: that is asked before events are told, every few seconds.
        """
        checked = monotonic()

        async def ask() -> tuple[Event, ...] | None:
            return await self._events.after(study, last) or None

        while not self._watch.is_released:
            try:
                events = await self._watch.until(study_bell(study), ask, _HOLD)
                if monotonic() - checked >= self._known:
                    if not await is_let_in():
                        return
                    checked = monotonic()
            except UNAVAILABLE as error:
                _log.warning("event stream ends", error=type(error).__name__)
                return
            for event in events or ():
                yield event
                if event.kind is EventKind.STUDY_ENDED:
                    return
                last = event.id

    async def run(self, seconds: float) -> None:
        """Look every so many seconds for what other servers wrote, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.look()
            except UNAVAILABLE:
                continue  # the ticker says so
            except Exception:
                _log.exception("no look at events")

    async def look(self) -> None:
        """Ring for each study that is followed and has other events than at the last look."""
        studies = tuple(self._followed)
        last = await self._events.last(studies) if studies else {}
        changed = [study for study, number in last.items() if self._last.get(study) != number]
        self._last = last
        self._watch.ring(*map(study_bell, changed))
