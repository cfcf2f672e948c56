"""Limit on the exact sums that contain a device's items, over all studies and services.

Two exact sums over devices that differ in one device reveal the items of that device by
subtraction. No colluding device is needed: an analyst creates two studies, and the second has one
place less. So a device gives the items of one collection to few exact sums in a period.

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
from typing import TypeAlias

from client.device.clock import DeviceClock
from client.device.journal import JournalEntry, noisy_counts_of
from protocol.api.device_limits import noisy_counts
from protocol.api.device_policy import EXACT_PERIOD_DAYS, Policy, PolicyError
from protocol.clock_readings import DAY_SECONDS
from protocol.mechanisms.registry import AnyPlan
from protocol.privacy.noise_loss import noise_epsilon

_StudyKey: TypeAlias = tuple[str, str]  # the URL of a service, and the id of its study


def spends_exact_study(
    policy: Policy,
    plan: AnyPlan,
    service: str,
    vectors: Sequence[JournalEntry],
    clock: DeviceClock,
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
