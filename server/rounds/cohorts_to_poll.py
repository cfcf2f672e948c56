"""Pending cohorts as this process last read them, and those that it must read again.

A cohort is read again when its channel or that of all cohorts of its study reports news, when a
message may decide when its phase ends, and when it is due: when the phase ends if no other message
arrives, or when the lease of its job expires. So the work of a poll follows what happens, and not
the number of open studies, of their cohorts or of messages. Another process does not announce the
messages that it accepts. If it dies, the cohort is read when it is due by the messages known here.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush

from protocol.api.phases import Phase
from server.db.channels import cohort_of, study_of
from server.db.repositories.rounds.pending_cohorts import CohortSelection, PendingCohort

Round = tuple[str, int]  # a study, and the number of its round


@dataclass(frozen=True, slots=True)
class CohortChange:
    """A cohort before and after it was read; None if it was not or is no longer pending."""

    before: PendingCohort | None
    after: PendingCohort | None

    @property
    def cohort(self) -> PendingCohort:
        cohort = self.after or self.before
        assert cohort is not None
        return cohort

    @property
    def is_new_phase(self) -> bool:
        """Return whether the cohort is new, closed, or in another phase than before."""
        if self.before is None or self.after is None:
            return True
        return self.before.phase_status.phase is not self.after.phase_status.phase


class PendingCohorts:
    """The pending cohorts of one process; at first all must be read."""

    def __init__(self) -> None:
        self._cohorts: dict[int, PendingCohort] = {}
        self._by_study: defaultdict[str, set[int]] = defaultdict(set)
        self._by_round: Counter[Round] = Counter()
        self._due: list[tuple[datetime, int]] = []  # a heap, with entries that do not hold any more
        self._due_at: dict[int, datetime] = {}
        self._news: set[str] = set()  # channels
        self._is_stale = True

    def report(self, channels: Collection[str] | None) -> None:
        """Read the cohorts of `channels` next time, or all cohorts if None."""
        if channels is None:
            self._is_stale = True
        else:
            self._news.update(channels)

    def take_news(self) -> frozenset[str] | None:
        """Return the channels with news since the last call, or None if any may have changed."""
        news = None if self._is_stale else frozenset(self._news)
        self._news.clear()
        self._is_stale = False
        return news

    def select(self, news: frozenset[str] | None, now: datetime) -> CohortSelection | None:
        """Return the cohorts to read at `now`, None for all; `update` must follow.

        A transaction's thread calls this while the event loop goes on to `report`, so `news` was
        taken before.
        """
        due = set(self._pop_due(now))
        if news is None:
            return None
        cohorts = {cohort for cohort in map(cohort_of, news) if cohort is not None}
        studies = {study for study in map(study_of, news) if study is not None}
        return CohortSelection(frozenset(due | cohorts), frozenset(studies))

    def update(
        self, selection: CohortSelection | None, pending: Sequence[PendingCohort]
    ) -> list[CohortChange]:
        """Store what was read of `selection`; return each cohort before and after."""
        now = {cohort.id: cohort for cohort in pending}
        if selection is None:
            read = frozenset(self._cohorts)
        else:
            known = (self._by_study.get(study, ()) for study in selection.studies)
            read = selection.cohorts.union(*known) & self._cohorts.keys()
        changes = []
        for cohort in read | now.keys():
            change = CohortChange(self._cohorts.get(cohort), now.get(cohort))
            self._replace(change)
            changes.append(change)
        return changes

    def may_decide(self, cohort: int, phase: Phase, received: int) -> bool:
        """Return whether this number of messages of `phase` may decide when the phase ends.

        That is the number that the phase expects, and its quorum, after which patience counts. Any
        other message can only extend the patience, which is read when the cohort is due.
        """
        known = self._cohorts.get(cohort)
        if known is None or known.phase_status.phase is not phase:
            return True
        status = known.phase_status
        has_quorum = status.received >= status.quorum
        return received >= (status.expected if has_quorum else min(status.quorum, status.expected))

    def schedule(self, cohort: int, at: datetime) -> None:
        """Read `cohort` again at this time, unless it is read before."""
        self._due_at[cohort] = at
        heappush(self._due, (at, cohort))

    def next_due(self) -> datetime | None:
        """Return the time at which the next cohort must be read, None if there is none."""
        while self._due and self._due_at.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def has_pending(self, study: str, number: int) -> bool:
        """Return whether a round has a pending cohort, as far as this process knows."""
        return self._by_round[study, number] > 0

    def _pop_due(self, now: datetime) -> Iterator[int]:
        while (at := self.next_due()) is not None and at <= now:
            _, cohort = heappop(self._due)
            del self._due_at[cohort]
            yield cohort

    def _replace(self, change: CohortChange) -> None:
        cohort = change.cohort
        added = (change.after is not None) - (change.before is not None)
        self._by_round[cohort.study, cohort.round] += added
        self._due_at.pop(cohort.id, None)
        if change.after is not None:
            self._cohorts[cohort.id] = change.after
            self._by_study[cohort.study].add(cohort.id)
            return
        del self._cohorts[cohort.id]
        self._by_study[cohort.study].discard(cohort.id)
        if not self._by_study[cohort.study]:
            del self._by_study[cohort.study]
        if not self._by_round[cohort.study, cohort.round]:
            del self._by_round[cohort.study, cohort.round]
