"""Checks of a device before it gives its vector to a sum, and the record of what it gives.

They are the same for pairwise and for one-shot sums, and the journal counts both together: a vector
is one, regardless of the sum that it is in.

Two exact sums over devices that differ in one device reveal the items of that device by
subtraction. No colluding device is needed: an analyst creates two studies, and the second has one
place less. So a device gives the items of one collection to few exact sums in a period, over all
studies and services.

    exact     no noise hides the device's part, or too little: the study is an exact one
    hidden    the noise of all hidden sums in the period together keeps `Policy.max_epsilon`

The losses of hidden sums add up (`protocol/privacy/noise_loss.py`): their noise averages out. A
study that asks the same devices in every round is one exact study.

The program of the device names the collection, because no statement of a service could: strings
of up to 20 and of up to 21 characters are two domains with the same items, and one service may
have two URLs.

A vector counts from the time at which it was recorded, until two readings of the clock, a day
apart, agree that the period is over (`client.device.clock`). If the clock was ahead when the vector
was recorded, it counts for longer: no later time frees it that could also be a false one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeAlias

from client.device.clock import DeviceClock
from client.device.device import RoundParticipation
from client.device.journal import JournalEntry, noisy_counts_of
from protocol.api.phases import MessageKind
from protocol.clock_readings import DAY_SECONDS
from protocol.device_policy.cohort_check import check_enrolment
from protocol.device_policy.plan_check import check_plan, check_spent_noise
from protocol.device_policy.policy import EXACT_PERIOD_DAYS, Policy, PolicyError
from protocol.device_policy.sizes_and_losses import noisy_counts
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan
from protocol.privacy.noise_loss import noise_epsilon
from secagg.ring import Ring

_StudyKey: TypeAlias = tuple[str, str]  # the URL of a service, and the id of its study


def spends_exact_study(
    policy: Policy, plan: AnyPlan, service: str, vectors: Sequence[JournalEntry], clock: DeviceClock
) -> bool:
    """Return whether a vector for `plan` of `service` spends an exact study.

    `vectors` were given to sums of the same collection. A vector whose time is later than the
    confirmed one counts, so that no clock frees what was spent.

    Raises:
        PolicyError: if the exact studies of the policy are spent, or `clock.check` raises it.
    """
    clock.check()
    period, passed = EXACT_PERIOD_DAYS * DAY_SECONDS, clock.confirmed
    recent = [each for each in vectors if passed - _time_of(each) < period]
    exact = _latest_times(each for each in recent if each.is_exact)
    if (service, plan.study) in exact and len(exact) <= policy.max_exact_studies:
        return True  # more are recent only if the clock went back
    hidden = noisy_counts_of(each for each in recent if not each.is_exact)
    epsilon = noise_epsilon(noisy_counts(plan) + hidden, policy.max_delta)
    if math.isfinite(epsilon) and epsilon <= policy.max_epsilon:
        return False
    if len(exact) >= policy.max_exact_studies:
        raise _refusal(policy, exact, epsilon, clock)
    return True


def _latest_times(vectors: Iterable[JournalEntry]) -> dict[_StudyKey, float]:
    """Return the time of the last vector of each study."""
    times: dict[_StudyKey, float] = {}
    for each in vectors:
        key, time = (each.service, each.study), _time_of(each)
        times[key] = max(time, times.get(key, time))
    return times


def _time_of(vector: JournalEntry) -> int:
    assert vector.time is not None, "a journal has no vectors without a time"
    return vector.time


def _refusal(
    policy: Policy, exact: Mapping[_StudyKey, float], epsilon: float, clock: DeviceClock
) -> PolicyError:
    """Return the refusal after the studies `exact`; `epsilon` is infinite without noise."""
    limit, reason = policy.max_exact_studies, "asks for an exact sum"
    if epsilon < math.inf:
        reason = f"asks for a sum with too little noise (epsilon {epsilon:.3g} in all)"
    if limit > 0:
        service, study = last = sorted(exact, key=lambda key: exact[key])[-limit]
        end = exact[last] + EXACT_PERIOD_DAYS * DAY_SECONDS
        # A reading at the end of the period, or the one that was just stored, and another one.
        days = (max(end, clock.readings.latest) - clock.now) / DAY_SECONDS + 1
        reason += f" of the items that study {study} of {service} had; the next is possible in "
        reason += f"{days:.1f} days, if the device runs a day before as well, because two readings "
        reason += "must agree"
    return PolicyError("max_exact_studies", reason, len(exact) + 1)


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
