"""Cache of what changes during a round: status of cohorts, slots of participants, open rounds.

The status of a cohort, with its phase, is cached until the notifier reports that it has changed.
Phases only move forward, so a status that is out of date never shows a phase before its time. The
document of an open round, which every device reads, is cached for half a second and until any phase
ends.
"""

from collections import Counter
from collections.abc import Collection
from threading import Lock

from server.db.channels import cohort_of
from server.db.repositories.devices.participants import CohortStatus, ParticipantSlot
from server.db.store import Store
from server.notify.notifier import Notifier
from server.rounds.async_cache import AsyncCache

_MAX_CACHED_SLOTS = 20_000
_MAX_CACHED_STATUSES = 20_000
_MAX_OPEN_ROUND_BYTES = 50 * 2**20
_OPEN_ROUND_SECONDS = 0.5  # for which the number of devices in it may be out of date


class StatusCache:
    """Cached status of cohorts, slots and open rounds of one process."""

    def __init__(self, store: Store, notifier: Notifier) -> None:
        self._store = store
        self._notifier = notifier
        self._open_rounds = AsyncCache(
            self._read_open_round,
            _MAX_OPEN_ROUND_BYTES,
            lambda document: 100 + len(document or b""),
            _OPEN_ROUND_SECONDS,
        )
        self._slot = AsyncCache(store.participants.slot, _MAX_CACHED_SLOTS)
        self._statuses = AsyncCache(store.participants.status, _MAX_CACHED_STATUSES)
        self._changing = Counter[int]()  # transactions that are about to change a cohort
        self._changing_lock = Lock()
        notifier.observe(self._forget_statuses)

    async def slot(self, participant: str) -> ParticipantSlot:
        """Return the slot of a participant, which is cached once it is final."""
        slot = await self._slot(participant)
        if not slot.is_final:
            self._slot.forget(participant)
        return slot

    def remember_slot(self, slot: ParticipantSlot) -> None:
        """Cache the slot of a participant, which is final."""
        self._slot.remember(slot.participant, slot)

    async def status(self, cohort: int) -> CohortStatus:
        """Return the status of a cohort, cached if all its changes are notified."""
        if not self._notifier.is_complete or self._changing[cohort]:
            return await self._store.participants.status(cohort)
        return await self._statuses(cohort)

    async def open_round(self, study: str, after: int) -> bytes | None:
        """Return the JSON document of the open round after number `after`, None without one.

        Raises:
            ProblemError: if there is no such study, or it has ended.
        """
        if not self._notifier.is_complete:
            return await self._read_open_round((study, after))
        return await self._open_rounds((study, after))

    def on_change(self, channels: Collection[str]) -> None:
        """Use no cached status of these cohorts until `after_change`: one is about to change."""
        with self._changing_lock:
            self._changing.update(_cohorts_of(channels))

    def after_change(self, channels: Collection[str]) -> None:
        """Undo `on_change`, once the change has been notified."""
        with self._changing_lock:
            self._changing -= Counter(_cohorts_of(channels))

    def _forget_statuses(self, channels: Collection[str] | None) -> None:
        """Read the status of the cohorts of `channels` again, or of all cohorts if None.

        The open rounds are read again after any change.
        """
        self._open_rounds.forget_all()
        if channels is None:
            self._statuses.forget_all()
            return
        for cohort in _cohorts_of(channels):
            self._statuses.forget(cohort)

    async def _read_open_round(self, key: tuple[str, int]) -> bytes | None:
        view = await self._store.rounds.find_open(*key)
        return None if view is None else view.model_dump_json().encode()


def _cohorts_of(channels: Collection[str]) -> list[int]:
    return [cohort for cohort in map(cohort_of, channels) if cohort is not None]
