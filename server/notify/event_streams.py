"""Event streams: each sends the events of one study to one follower as they happen.

A stream waits for the study's channel without a database connection. Events that other servers
committed arrive by notification, and at the latest when `run` compares the number of events of each
followed study. Streams last for hours: their number is limited, and they check their API keys.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

import structlog

from protocol.api.events import Event, EventKind
from protocol.api.messages import ProblemType
from server.db.channels import study_channel
from server.db.database_errors import UNAVAILABLE_ERRORS
from server.db.repositories.events import EventRepository
from server.errors import ProblemError
from server.notify.notifier import Notifier
from server.telemetry.metrics import Metrics

# Each stream is an open connection: a process has 1,024 files by default on Linux.
MAX_STREAMS = 500  # of one process
_MAX_WAIT_SECONDS = 60.0  # until a stream reads events without a notification
_MAX_READS = 2  # at a time, of the database: requests must not wait for hundreds of streams
_log = structlog.get_logger(__name__)


@dataclass
class EventStreams:
    """The open event streams of one process, at most `MAX_STREAMS` at a time.

    A stream checks the authorization of its follower every `recheck_seconds`.
    """

    events: EventRepository
    notifier: Notifier
    metrics: Metrics
    recheck_seconds: float = 5.0
    _reads: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_MAX_READS), init=False
    )
    _followers: Counter[str] = field(default_factory=Counter, init=False)
    _last_events: dict[str, int] = field(default_factory=dict, init=False)

    @property
    def count(self) -> int:
        return self._followers.total()

    @contextmanager
    def open(self, study: str) -> Iterator[None]:
        """Reserve one stream for a follower of `study`; raises ProblemError if all are in use."""
        if self.count >= MAX_STREAMS:
            detail = f"{MAX_STREAMS} event streams are open, which is the maximum: try again"
            raise ProblemError(ProblemType.UNAVAILABLE, detail)
        self._followers[study] += 1
        try:
            with self.metrics.event_streams.track_inprogress():
                yield
        finally:
            self._followers[study] -= 1
            self._followers += Counter()  # removes studies without followers

    async def check_can_follow(self, study: str, last: int) -> None:
        """Raise ProblemError if `study` is unknown, or has ended without events after `last`."""
        async with self._reads:
            await self.events.check_can_follow(study, last)

    async def follow(
        self, study: str, last: int, is_authorized: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[Event]:
        """Yield the events of `study` after number `last`, until it ends or the server stops.

        The stream also ends when the database is unavailable or the study deleted, after which the
        follower reconnects, and when `is_authorized` returns false. This is checked before events
        are sent.
        """
        checked = monotonic()

        async def new_events() -> tuple[Event, ...] | None:
            async with self._reads:
                return await self.events.after(study, last) or None

        while not self.notifier.is_shutting_down:
            try:
                events = await self.notifier.wait_for(
                    study_channel(study), new_events, _MAX_WAIT_SECONDS
                )
                if monotonic() - checked >= self.recheck_seconds:
                    if not await is_authorized():
                        return
                    checked = monotonic()
            except UNAVAILABLE_ERRORS as error:
                _log.debug("event stream ended", error=type(error).__name__)
                return
            except ProblemError:
                return
            for event in events or ():
                yield event
                if event.kind is EventKind.STUDY_ENDED:
                    return
                last = event.id

    async def run(self, seconds: float) -> None:
        """Check every `seconds` for events that other servers committed, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.notify_followers()
            except UNAVAILABLE_ERRORS:
                continue  # the orchestrator logs it
            except Exception:
                _log.exception("events not checked")

    async def notify_followers(self) -> None:
        """Notify each followed study whose last event is not the one of the previous check."""
        studies = tuple(self._followers)
        last = await self.events.last_numbers(studies) if studies else {}
        changed = [
            study for study, number in last.items() if self._last_events.get(study) != number
        ]
        self._last_events = last
        self.notifier.notify(*map(study_channel, changed))
