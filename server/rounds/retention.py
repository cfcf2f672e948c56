"""Worker that deletes what the operator does not keep any longer, once an hour in one process.

Each run stores a reading of the clock, and deletes by the time that two readings, a day apart,
confirm. So rows are kept one or two days longer than in the settings, and a clock that is wrong
once deletes nothing. While the clock is not trusted, all rows are kept.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog
from sqlalchemy import true

from server.db.clock import ClockState
from server.db.database_errors import UNAVAILABLE_ERRORS, loggable_reason
from server.db.repositories.leases import Job, Lease
from server.db.store import Store
from server.errors import ProblemError
from server.rounds.jobs import LeaseRunner
from server.settings import Settings

_log = structlog.get_logger(__name__)
_FIRST_SECONDS, _PERIOD_SECONDS = 60.0, 3600.0  # a start has other work first
_JOB = Job("apply-retention", true)


@dataclass(frozen=True, slots=True)
class RetentionWorker:
    """Deletes rows that are older than the settings allow."""

    store: Store
    leases: LeaseRunner
    settings: Settings

    async def run(self) -> None:
        """Delete what is too old, once an hour, until cancelled."""
        pause = _FIRST_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = _PERIOD_SECONDS
            try:
                await self.apply()
            except UNAVAILABLE_ERRORS as error:
                _log.debug("database unavailable", error=loggable_reason(error))
            except Exception:
                _log.exception("old rows not deleted")

    async def apply(self) -> None:
        """Delete what is too old now, unless another process does."""
        await self.leases.run(_JOB, self._apply)

    async def _read_clock(self) -> ClockState:
        """Store a reading of the clock; warn if it is not trusted."""
        clock = await self.store.retention.read_clock()
        if not clock.is_trusted:
            _log.warning(
                "old rows are kept: the clock is more than a week after its latest reading",
                clock=clock.now.isoformat(),
                latest_reading=clock.latest.isoformat(),
                if_the_clock_is_right="blindtally clock --confirm",
            )
        return clock

    async def _apply(self, _lease: Lease) -> None:  # idempotent, so the lease is not checked
        """Delete old studies, then the device rows of those that ended, then old audit entries."""
        keep, retention = self.settings, self.store.retention
        clock = await self._read_clock()
        if not clock.is_trusted:
            return
        now = clock.confirmed
        studies = 0
        if keep.keep_studies_days is not None:
            ended = now - timedelta(days=keep.keep_studies_days)
            for study in await retention.studies_ended_before(ended):
                with suppress(ProblemError):  # an analyst has deleted it meanwhile
                    await retention.delete_study(study)
                    studies += 1
        ended = now - timedelta(days=keep.keep_devices_days)
        devices_of = await retention.studies_with_device_rows(ended)
        for study in devices_of:
            await retention.delete_device_rows(study)
        await retention.delete_login_sessions(now)
        audit = await retention.delete_audit_entries(now - timedelta(days=keep.keep_audit_days))
        if studies or devices_of or audit:
            _log.info(
                "old rows deleted",
                studies=studies,
                studies_without_devices=len(devices_of),
                audit_entries=audit,
            )
