"""Check of a plan against the policy of a device, before the device sends anything.

The service applies the default limits to each new study, to warn of those that devices refuse.

A plan states how much each device contributes and in how large a group it is hidden. The device
refuses a plan beyond a limit. The roster comes later and may be smaller than the plan promised, so
the device checks it as well (`cohort_check.py`).

`min_cohort` bounds the devices *in a sum*. A cohort of n devices keeps at least `quorum(n)` of
them, so the policy compares the quorum, not the n devices at the start.

The numbers of holders and of confirmations are not limits of a policy: the device computes them
from the plan's terms, which it checks here, and from the roster.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from protocol.api.one_shot import committee_terms
from protocol.committee_terms import CommitteeTerms, VolunteerTerms
from protocol.device_policy.policy import MAX_SHARINGS, MIN_SIGMA, Policy, PolicyError
from protocol.device_policy.sizes_and_losses import (
    UPLOAD_BYTES_PER_ELEMENT,
    has_noise,
    least_tolerated,
    noise_events,
    noisy_counts,
    upload_bytes,
    vector_elements,
)
from protocol.mechanisms.central.release_mechanism import ReleasePlan
from protocol.mechanisms.registry import REPORT_MECHANISMS, SUM_MECHANISMS, AnyPlan, mechanism_of
from protocol.privacy.noise_loss import NoisyCounts, noise_epsilon

_NO_REGISTRAR_REASON: Final = (
    "names no registrar, so its server could invent the other devices: name one, or trust the "
    "server with Policy.trust_server_identities"
)
_UNVERIFIED_REGISTRAR_REASON: Final = (
    "names a registrar whose key the device does not know: pass it as Policy.registrar, or trust "
    "the server with Policy.trust_server_identities"
)
MAX_NOISE_EVENTS: Final = 2**22  # of one vector; drawing them takes up to a second
MIN_CONFIDENCE: Final = 0.5  # below it, an item is reported whose estimate is under the threshold


def check_plan(
    policy: Policy,
    plan: AnyPlan,
    study: str,
    number: int,
    rounds_by_study: Mapping[str, Collection[int]] | None = None,
) -> None:
    """Check the plan that the service shows for round `number` of `study`.

    `rounds_by_study` has the rounds to which the device has contributed. It contributes once
    per study, or once per round if the study asks the same devices in every round.

    Raises:
        PolicyError: for the first limit that the plan exceeds.
    """
    for violation in plan_violations(policy, plan, study, number, rounds_by_study):
        raise violation


def plan_violations(
    policy: Policy,
    plan: AnyPlan,
    study: str,
    number: int,
    rounds_by_study: Mapping[str, Collection[int]] | None = None,
) -> Iterator[PolicyError]:
    """Yield an error for every limit that the plan exceeds, so users can fix all at once."""
    if (plan.study, plan.round) != (study, number):
        reason = f"shows the plan of round {plan.round} of {plan.study}"
        yield PolicyError("plan", f"{reason} for round {number} of {study}")
    for fault in plan.history_faults():
        yield PolicyError("plan", f"shows a plan that no honest study has: it {fault}")
    yield from _repetition_violations(policy, plan, (rounds_by_study or {}).get(study, ()))
    yield from _registrar_violations(policy, plan)
    if plan.mechanism in SUM_MECHANISMS:
        yield from _terms_violations(policy, plan)
        yield from _committee_violations(policy, plan)
        yield from _threshold_violations(policy, plan)
    else:
        yield from _delta_violations(policy, REPORT_MECHANISMS[plan.mechanism].delta(plan))
    yield from _size_violations(policy, plan)


def max_copies(policy: Policy, plan: AnyPlan) -> int:
    """Return how often a device counts one item: once, so that counts are numbers of devices.

    A policy without a least threshold, which is for trials, counts all copies.
    """
    return plan.question.contribution if policy.min_threshold < 1 else 1


def sharings(policy: Policy, plan: AnyPlan) -> int:
    """Return the largest number of sharings in the plan's study, vectors included."""
    again = min(plan.rounds, policy.max_rounds) if plan.question.asks_every_round else 0
    return MAX_SHARINGS + again


def check_spent_noise(policy: Policy, plan: AnyPlan, spent: NoisyCounts) -> None:
    """Check that noise hides the device in this sum and in those before, the counts `spent`.

    A plan states the noise in its round only; later rounds may have less.

    Raises:
        PolicyError: if the study asks the same devices in every round, and the noise is too
            small.
    """
    if not plan.question.asks_every_round or policy.repeat_exact:
        return
    for violation in _epsilon_violations(policy, noisy_counts(plan) + Counter(spent)):
        raise violation


def check_spent_epsilon(policy: Policy, spent: float, epsilon: float) -> None:
    """Check that `epsilon` may be spent on top of `spent`; raises PolicyError otherwise."""
    if not spent + epsilon <= policy.max_epsilon * (1 + 1e-9):  # also refuses NaN
        left = max(0.0, policy.max_epsilon - spent)
        reason = f"asks for epsilon {epsilon:g}, and {left:g} is left"
        raise PolicyError("max_epsilon", reason, _round_up(spent + epsilon))


def _repetition_violations(
    policy: Policy, plan: AnyPlan, rounds: Collection[int]
) -> Iterator[PolicyError]:
    """Yield the limits on contributing again, after `rounds` of the same study."""
    if not plan.question.asks_every_round:
        if rounds:
            reason = f"asks for a second contribution to study {plan.study}"
            yield PolicyError("once per study", reason)
        return
    yield from _noise_violations(policy, plan, max(plan.rounds, len(rounds) + 1))
    if plan.round in rounds:
        where = f"round {plan.round} of study {plan.study}"
        yield PolicyError("once per round", f"asks for a second contribution to {where}")
    if len(rounds) >= policy.max_rounds:
        reason = f"asks for more than {policy.max_rounds} rounds of study {plan.study}"
        yield PolicyError("max_rounds", reason)


def _noise_violations(policy: Policy, plan: AnyPlan, releases: int) -> Iterator[PolicyError]:
    """Yield the limits that the noise of `releases` sums does not keep.

    The later sums count as if they had the noise of this one.
    """
    if not has_noise(plan):
        if not policy.repeat_exact:
            reason = "asks the same devices in every round, and adds no noise to the sums"
            yield PolicyError("repeat_exact", reason)
        return
    counts = {noise: number * releases for noise, number in noisy_counts(plan).items()}
    yield from _epsilon_violations(policy, counts)


def _epsilon_violations(policy: Policy, counts: NoisyCounts) -> Iterator[PolicyError]:
    epsilon = noise_epsilon(counts, policy.max_delta)
    if not epsilon <= policy.max_epsilon:
        noise = f"noise for epsilon {epsilon:.4g} at delta {policy.max_delta:g}"
        reason = f"adds {noise}, above {policy.max_epsilon:g}"
        yield PolicyError("max_epsilon", reason, _round_up(epsilon))


def _registrar_violations(policy: Policy, plan: AnyPlan) -> Iterator[PolicyError]:
    if policy.registrar is not None and plan.terms.registrar != policy.registrar.hex():
        named = plan.terms.registrar or "no registrar"
        yield PolicyError("registrar", f"names {named} instead of {policy.registrar.hex()}")
        return
    is_unverified = policy.registrar is None and plan.mechanism in SUM_MECHANISMS
    if is_unverified and not policy.trust_server_identities:
        is_named = plan.terms.registrar is not None
        reason = _UNVERIFIED_REGISTRAR_REASON if is_named else _NO_REGISTRAR_REASON
        yield PolicyError("trust_server_identities", reason)


def _terms_violations(policy: Policy, plan: AnyPlan) -> Iterator[PolicyError]:
    terms = plan.terms
    yield from quorum_violations(policy, terms.min_summed)
    if terms.corrupt < policy.min_corrupt:
        reason = f"assumes a corrupt fraction of {terms.corrupt}, below {policy.min_corrupt}"
        yield PolicyError("min_corrupt", reason, terms.corrupt)
    if terms.sigma < MIN_SIGMA:
        reason = f"allows failures with probability 2^-{terms.sigma}, above 2^-{MIN_SIGMA}"
        yield PolicyError("min_sigma", reason, terms.sigma)


def _committee_violations(policy: Policy, plan: AnyPlan) -> Iterator[PolicyError]:
    """Yield the limits on the committee that could read the device if it colluded."""
    if not plan.terms.is_one_shot:
        return
    terms = committee_terms(plan)
    if isinstance(terms, VolunteerTerms):
        yield from _volunteer_violations(policy, terms)
    else:
        yield from _operator_violations(policy, terms)
    if terms.largest < policy.min_committee:
        reason = f"asks for a committee of {terms.largest} members, below {policy.min_committee}"
        yield PolicyError("min_committee", reason, terms.largest)


def _operator_violations(policy: Policy, terms: CommitteeTerms) -> Iterator[PolicyError]:
    unknown = len(set(terms.identities) - policy.committee)
    if unknown:
        reason = f"asks for a committee with {unknown} members that are not in Policy.committee"
        yield PolicyError("committee", reason)
    named, corrupt = len(terms.members), terms.parameters.corrupt
    least = least_tolerated(terms, policy.min_committee_corrupt)
    if corrupt < least:
        reason = f"assumes {corrupt} of {named} operators that collude, below {least}"
        yield PolicyError("min_committee_corrupt", reason, terms.corrupt)


def _volunteer_violations(policy: Policy, terms: VolunteerTerms) -> Iterator[PolicyError]:
    if policy.min_volunteers is None or policy.registrar is None:
        reason = (
            "asks for a committee of devices, which a registrar draws: accept it with "
            "Policy.min_volunteers and Policy.registrar"
        )
        yield PolicyError("min_volunteers", reason, terms.volunteers)
    elif terms.volunteers < policy.min_volunteers:
        reason = f"draws its committee from {terms.volunteers} devices"
        reason = f"{reason}, below {policy.min_volunteers}"
        yield PolicyError("min_volunteers", reason, terms.volunteers)
    if terms.corrupt < policy.min_corrupt:
        reason = f"assumes a corrupt fraction of volunteers of {terms.corrupt:g}"
        yield PolicyError("min_corrupt", f"{reason}, below {policy.min_corrupt:g}", terms.corrupt)
    if terms.sigma < MIN_SIGMA:
        reason = f"may draw a corrupt committee with probability 2^-{terms.sigma}"
        yield PolicyError("min_sigma", f"{reason}, above 2^-{MIN_SIGMA}", terms.sigma)


def _threshold_violations(policy: Policy, plan: AnyPlan) -> Iterator[PolicyError]:
    """Yield the limits that keep items of few devices from the analyst of an honest server."""
    threshold, question = plan.min_reported_count, plan.question
    if isinstance(plan, ReleasePlan):
        if has_noise(plan):  # real noise hides a device behind any threshold
            if not question.asks_every_round:  # otherwise checked with all other rounds
                yield from _epsilon_violations(policy, noisy_counts(plan))
            return
        yield from _delta_violations(policy, plan.question.delta)
    if threshold < policy.min_threshold:
        reason = f"asks for items held {threshold:g} times, below {policy.min_threshold:g}"
        yield PolicyError("min_threshold", reason, threshold)
    if question.confidence < MIN_CONFIDENCE:
        reason = f"reports items by a confidence of {question.confidence:g}"
        yield PolicyError("confidence", f"{reason}, below {MIN_CONFIDENCE:g}")
    if not policy.accept_exact_estimates and mechanism_of(plan).may_show_one_device(plan):
        too_little = [*_epsilon_violations(policy, noisy_counts(plan))]
        if has_noise(plan) or not too_little:
            yield from too_little
            return
        reason = f"asks for exact {question.mechanism}, which may show what one device holds"
        yield PolicyError("accept_exact_estimates", reason)


def _delta_violations(policy: Policy, delta: float) -> Iterator[PolicyError]:
    if not delta <= policy.max_delta * (1 + 1e-9):
        yield PolicyError(
            "max_delta", f"asks for delta {delta:g}, above {policy.max_delta:g}", delta
        )


def quorum_violations(policy: Policy, quorum: int) -> Iterator[PolicyError]:
    """Yield the limit that a sum of `quorum` devices is too small for."""
    if quorum < policy.min_cohort:
        reason = f"may sum as few as {quorum} devices, below {policy.min_cohort}"
        yield PolicyError("min_cohort", reason, quorum)


def _size_violations(policy: Policy, plan: AnyPlan) -> Iterator[PolicyError]:
    contribution = plan.question.contribution
    if contribution > policy.max_contribution:
        reason = f"asks for up to {contribution} items, above {policy.max_contribution}"
        yield PolicyError("max_contribution", reason, contribution)
    nbytes = upload_bytes(plan)
    if nbytes > policy.max_upload_bytes:
        reason = f"asks for {nbytes} bytes, above {policy.max_upload_bytes}"
        yield PolicyError("max_upload_bytes", reason, nbytes)
    elements = vector_elements(plan)
    if elements * UPLOAD_BYTES_PER_ELEMENT > policy.max_upload_bytes:
        most = policy.max_upload_bytes // UPLOAD_BYTES_PER_ELEMENT
        reason = f"asks for {elements} elements of few bits, above {most}"
        needed = elements * UPLOAD_BYTES_PER_ELEMENT
        yield PolicyError("max_upload_bytes", reason, needed)
    events = noise_events(plan)
    if events > MAX_NOISE_EVENTS:
        reason = f"asks for noise of {events:.3g} random events, above {MAX_NOISE_EVENTS:,}"
        yield PolicyError("noise", reason)


def default_refusals(plan: AnyPlan) -> Iterator[PolicyError]:
    """Yield the limits that `plan` exceeds of a device with default settings.

    The device knows the parties that the plan names: its registrar, and the operators or the number
    of volunteers of its committee.
    """
    terms, committee = plan.terms, plan.terms.committee
    policy = Policy(
        registrar=None if terms.registrar is None else bytes.fromhex(terms.registrar),
        committee=frozenset(committee.identities if isinstance(committee, CommitteeTerms) else ()),
        min_volunteers=committee.volunteers if isinstance(committee, VolunteerTerms) else None,
    )
    yield from plan_violations(policy, plan, plan.study, plan.round)
    if plan.mechanism in REPORT_MECHANISMS:
        try:
            check_spent_epsilon(policy, 0.0, REPORT_MECHANISMS[plan.mechanism].epsilon(plan))
        except PolicyError as error:
            yield error


def _round_up(epsilon: float) -> float | None:
    return math.ceil(100 * epsilon) / 100 if math.isfinite(epsilon) else None
