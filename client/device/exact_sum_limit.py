"""Limit on the exact sums that contain a device's items, over all studies and services.

Two exact sums over devices that differ in one device reveal the items of that device by
subtraction. No colluding device is needed: an analyst creates two studies, and the second has one
place less. So a device gives the items of one collection to few exact sums in a period.

    exact     no noise hides the device's part, or too little: the study is an exact one
    hidden    the noise of all hidden sums in the period together keeps `Policy.max_epsilon`

The rho of hidden sums adds up [BunSteinke16], because their noise averages out. A study that asks
the same devices in every round is one exact study.

The program of the device names the collection, because no statement of a service could: strings
of up to 20 and of up to 21 characters are two domains with the same items, and one service may
have two URLs.

A vector counts from the time at which it was recorded. If the clock was ahead then, the vector
counts for longer: no later time frees it that could also be a false one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from client.device.journal import JournalEntry
from protocol.api.device_limits import epsilon_of_rho, rho_of
from protocol.api.device_policy import Policy, PolicyError
from protocol.mechanisms.registry import AnyPlan

_DAY_SECONDS: Final = 24 * 3600
MIN_TIME: Final = 19_723 * _DAY_SECONDS  # 2024: before it, this program did not exist
_StudyKey: TypeAlias = tuple[str, str]  # the URL of a service, and the id of its study


def spends_exact_study(
    policy: Policy, plan: AnyPlan, service: str, vectors: Sequence[JournalEntry], now: float
) -> bool:
    """Return whether a vector for `plan` of `service` spends an exact study.

    `vectors` were given to sums of the same collection; `now` is in seconds since 1970. A vector
    whose time is unknown or later than `now` counts, so that no clock frees what was spent.

    Raises:
        PolicyError: if the exact studies of the policy are spent, or the clock is before 2024: a
            vector that is recorded in 1970 would be forgotten once the clock is right.
    """
    if not now >= MIN_TIME:  # also refuses NaN
        raise PolicyError("clock", "asks for a sum while the clock of this device is before 2024")
    period = policy.exact_period_days * _DAY_SECONDS
    recent = [each for each in vectors if each.time is None or now - each.time < period]
    exact = _latest_times(each for each in recent if each.is_exact)
    if (service, plan.study) in exact and len(exact) <= policy.max_exact_studies:
        return True  # more are recent only if the clock went back
    rho, epsilon = rho_of(plan), math.inf
    if rho is not None:
        hidden = math.fsum(
            each.rho for each in recent if each.rho is not None and not each.is_exact
        )
        epsilon = epsilon_of_rho(hidden + rho, policy.max_delta)
    if rho is not None and epsilon <= policy.max_epsilon:
        return False
    if len(exact) >= policy.max_exact_studies:
        raise _refusal(policy, exact, epsilon, now)
    return True


def _latest_times(vectors: Iterable[JournalEntry]) -> dict[_StudyKey, float]:
    """Return the time of the last vector of each study, infinite if it is unknown."""
    times: dict[_StudyKey, float] = {}
    for each in vectors:
        key, time = (each.service, each.study), math.inf if each.time is None else each.time
        times[key] = max(time, times.get(key, time))
    return times


def _refusal(
    policy: Policy, exact: Mapping[_StudyKey, float], epsilon: float, now: float
) -> PolicyError:
    """Return the refusal after the studies `exact`; `epsilon` is infinite without noise."""
    limit, reason = policy.max_exact_studies, "asks for an exact sum"
    if epsilon < math.inf:
        reason = f"asks for a sum with too little noise (epsilon {epsilon:.3g} in all)"
    if limit > 0:
        service, study = last = sorted(exact, key=lambda key: exact[key])[-limit]
        place = f"study {study} of {service}" if service else f"study {study}"
        days = (exact[last] - now) / _DAY_SECONDS + policy.exact_period_days
        reason += f" of the items that {place} had; the next is possible in {days:.1f} days"
    return PolicyError("max_exact_studies", reason, len(exact) + 1)
