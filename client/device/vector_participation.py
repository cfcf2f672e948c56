"""Checks of a device before it gives its vector to a sum, and the record of what it gives.

They are the same for pairwise and for one-shot sums, and the journal counts both together: a vector
is one, regardless of the sum that it is in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from client.device.clock import DeviceClock
from client.device.device import RoundParticipation
from client.device.exact_sum_limit import spends_exact_study
from client.device.journal import JournalEntry
from protocol.api.cohort_check import check_enrolment
from protocol.api.device_limits import noisy_counts
from protocol.api.phases import MessageKind
from protocol.api.plan_check import check_plan, check_spent_noise
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan
from secagg.ring import Ring


@dataclass
class VectorParticipation(RoundParticipation):
    """Base of the participation of a device by a vector in a sum."""

    @cached_property
    def _ring(self) -> Ring:
        ring: Ring = SUM_MECHANISMS[self._plan.mechanism].ring(self._plan)
        return ring

    @property
    def _plan(self) -> AnyPlan:
        return self.view.plan

    def _may_join(self, study: str) -> bool:
        """Return whether the device is invited to the round, whose plan its policy accepts.

        It reads the journal, so it runs in a thread.
        """
        journal = self.device.journal
        rounds_by_study = journal.rounds_by_study()
        check_plan(self.policy, self._plan, study, self.view.number, rounds_by_study)
        check_spent_noise(self.policy, self._plan, journal.noise_spent(study))
        self._check_exact_sums()
        self._check_sharings(study)
        check_enrolment(self._plan, self.device.identity, self.device.enrolment)
        return self._is_invited(study)

    def _check_exact_sums(self) -> None:
        """Check before joining that an exact study is left; a late refusal costs the others."""
        journal = self.device.journal
        clock = journal.read_clock(self.clock())
        self._spends_exact_study(journal.vectors(self.device.collection), clock)

    def _check_sharings(self, study: str) -> None:
        """Check that the device may share keys again, where the sum needs it."""

    def _spends_exact_study(self, vectors: Sequence[JournalEntry], clock: DeviceClock) -> bool:
        service = self.device.journal.service
        return spends_exact_study(self.policy, self._plan, service, vectors, clock)

    def _is_invited(self, study: str) -> bool:
        """Return whether the device's coin lets it join; the journal records the result."""
        plan, journal = self._plan, self.device.journal
        if plan.join_probability == 1:  # no coin, but a coin flipped for another plan decides
            return not journal.has_join_decision(study, self.view.number)
        flip = partial(plan.flip_join_coin, self.chance)
        return journal.decide_to_join(study, self.view.number, plan.digest().hex(), flip)

    @property
    def _max_per_study(self) -> int:
        """Return the number of messages of one kind that the device sends to the study."""
        return self.policy.max_rounds if self._plan.question.asks_every_round else 1

    def _record(
        self,
        cohort: int,
        kind: MessageKind,
        body: bytes,
        max_per_study: int,
        max_per_round: int | None = None,
    ) -> None:
        """Record a message to `cohort`; it may be sent once this has returned.

        It writes to the journal, so it runs in a thread.
        """
        of_message = self._plan.study, self.view.number, cohort, kind, body
        if kind is not MessageKind.MASKED_INPUT:
            entry, check_noise, check_exact = JournalEntry.of(*of_message), None, None
        else:
            now, collection = self.clock(), self.device.collection
            ((noise, votes),) = noisy_counts(self._plan).items()
            entry = replace(
                JournalEntry.of(*of_message, time=int(now)),
                variance=noise.variance or None,
                probability=noise.probability,
                votes=votes,
                collection=collection,
            )
            check_noise = partial(check_spent_noise, self.policy, self._plan)
            clock = self.device.journal.read_clock(now)
            check_exact = partial(self._spends_exact_study, clock=clock)
        self.device.journal.record(
            entry,
            max_per_study,
            max_per_round=max_per_round,
            check_noise=check_noise,
            check_exact=check_exact,
        )
