"""Limits of a device, checked before it sends anything.

The service applies the default limits to each new study, to warn of those that devices refuse.

A plan states how much each device contributes and in how large a group it is hidden. The device
compares the plan with its policy and refuses a plan beyond a limit. The roster comes later and may
be smaller than the plan promised, so the device checks it as well. A refusal names its limit, so
that the operator of the devices knows which one to change.

`min_cohort` bounds the devices *in a sum*. A cohort of n devices keeps at least `quorum(n)` of
them, so the policy compares the quorum, not the n devices at the start.

The numbers of holders and of confirmations are not limits of a policy: the device computes them
from the plan's terms, which it checks here, and from the roster.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Final, Self

from protocol.api.device_limits import (
    UPLOAD_BYTES_PER_ELEMENT,
    epsilon_of_rho,
    least_tolerated,
    reporting_threshold,
    rho_of,
    upload_bytes,
    vector_elements,
)
from protocol.api.messages import SlotAssignment
from protocol.api.one_shot import committee_terms
from protocol.committee_terms import CommitteeTerms, VolunteerTerms
from protocol.mechanisms.central.release_mechanism import ReleasePlan
from protocol.mechanisms.registry import (
    REPORT_MECHANISMS,
    SUM_MECHANISMS,
    AnyPlan,
    may_show_one_device,
)
from protocol.question_and_plan import (
    DEFAULT_MAX_CONTRIBUTION,
    DEFAULT_MAX_DELTA,
    DEFAULT_MAX_DROPOUT,
    DEFAULT_MAX_EPSILON,
    DEFAULT_MAX_UPLOAD_BYTES,
    DEFAULT_MIN_COMMITTEE,
    DEFAULT_MIN_COMMITTEE_CORRUPT,
    DEFAULT_MIN_CORRUPT,
    DEFAULT_MIN_SIGMA,
    DEFAULT_MIN_SUMMED,
    DEFAULT_MIN_THRESHOLD,
)
from secagg.errors import UnsafeRequestError
from secagg.keys import KEY_BYTES, Identity
from secagg.parameters import Mode
from secagg.seating import MAX_DRAWS, CohortSeating, seating_fault

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


class PolicyError(UnsafeRequestError):
    """The service asks for more than the device's policy allows.

    Attributes:
        limit: the name of the limit in `Policy`, or of the promise that was broken.
        reason: what the study or its server does, such as "asks for ...".
        needed: the value of the limit that would accept the request, if one value is enough.
    """

    def __init__(self, limit: str, reason: str, needed: float | str | None = None) -> None:
        super().__init__(f"{reason} ({limit})")
        self.limit = limit
        self.reason = reason
        self.needed = needed

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, float | str | None]]:
        """Return the class and its arguments: processes of a fleet exchange refusals."""
        return type(self), (self.limit, self.reason, self.needed)


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of a device: upper bounds on its contribution, lower bounds on its protection.

    Attributes:
        max_contribution: items that the device adds to a round.
        min_cohort: devices in a sum.
        min_corrupt, max_dropout, min_sigma: bounds on the assumptions from which the numbers of
            holders and the threshold follow. Terms that assume no corrupt device protect nobody.
        modes: the modes of rounds in which the device takes part. By default it does not trust
            the server to follow the protocol.
        max_upload_bytes: bytes that the device sends in one round before the survivors are known:
            its key shares and its vector, or its report. A vector has at most one
            element for every two of them.
        max_sharings: how often the device shares keys in one study without sending a vector. Each
            time gives an attacker who wants certain holders, or a cohort of colluders, another
            chance of 2^-sigma.
        registrar: the public key of the one registrar that may enrol the devices. It must come to
            the device by another way than the server.
        min_threshold: the threshold of a study of exact sums, and of released counts that have no
            noise. An item that all devices together hold fewer times is not common: offices of
            statistics hide counts below 3 to 10. The device counts an item at most threshold /
            min_threshold times, so that fewer devices than that reach no threshold.
        committee: the public keys of the operators that may open one-shot sums; each member of a
            plan's committee must be one of them. They must come to the device by another way than
            the server. Without any, the device refuses one-shot sums.
        min_committee: members of a committee.
        min_volunteers: devices from which `registrar` draws the committee of a one-shot sum. By
            default the device accepts no committee of devices. Of this number, the fraction
            `min_corrupt` may work for the server, in the whole study.
        min_committee_corrupt: the fraction of the operators that a plan names, rounded down, that
            may work for the server. A committee must tolerate this number, and one at least.
        trust_server_identities: accepts secure sums without `registrar`. A dishonest server can
            then invent all other devices of a sum, and read what this one holds.
        max_epsilon: epsilon of the locally private reports in all studies together.
        max_delta: the probability that a report reveals more than its epsilon. For reports only
            `max_epsilon`, `max_delta`, `registrar` and `max_upload_bytes` matter.
        max_rounds: rounds of a study that asks the same devices in every round. The noise of all
            of them together must keep `max_epsilon` at `max_delta`.
        max_round_seconds: how long the device stays in one round.
        repeat_exact: accepts such a study even if it adds no noise. The difference of two sums, of
            which one contains the device and the other does not, then reveals its contribution.
        accept_exact_estimates: accepts `number-sums`, `count-median`, `count-sketch` and
            `approximate-histogram` with a sketch, all without noise. Their estimates can show what
            one device holds: a device that lies for the analyst lets a segment of one other device
            pass the threshold, and the cells of a sketch show rare items together with common ones.
        max_exact_studies: studies of exact sums to which the device gives the items of one
            collection within `exact_period_days`, over all services. The difference of two exact
            sums may reveal its items. A sum with noise is not exact as long as the noise of all
            such sums in that time together keeps `max_epsilon` at `max_delta`.

    Raises:
        ValueError: if a key is not 32 bytes, or a limit is not a number from 0 up.
    """

    max_contribution: int = DEFAULT_MAX_CONTRIBUTION
    min_cohort: int = DEFAULT_MIN_SUMMED
    min_threshold: float = DEFAULT_MIN_THRESHOLD
    min_corrupt: float = DEFAULT_MIN_CORRUPT
    max_dropout: float = DEFAULT_MAX_DROPOUT
    min_sigma: int = DEFAULT_MIN_SIGMA
    modes: frozenset[Mode] = frozenset({"active"})
    max_upload_bytes: int = DEFAULT_MAX_UPLOAD_BYTES
    max_sharings: int = MAX_DRAWS
    registrar: bytes | None = None
    committee: frozenset[bytes] = frozenset()
    min_committee: int = DEFAULT_MIN_COMMITTEE
    min_committee_corrupt: float = DEFAULT_MIN_COMMITTEE_CORRUPT
    min_volunteers: int | None = None
    trust_server_identities: bool = False
    max_epsilon: float = DEFAULT_MAX_EPSILON
    max_delta: float = DEFAULT_MAX_DELTA
    max_rounds: int = 32
    max_round_seconds: float = 7 * 24 * 3600
    repeat_exact: bool = False
    max_exact_studies: int = 1
    exact_period_days: float = 30.0
    accept_exact_estimates: bool = False

    def __post_init__(self) -> None:
        self._check_numbers()
        for key in (*self.committee, *([] if self.registrar is None else [self.registrar])):
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise ValueError(
                    f"registrar and committee have public keys of {KEY_BYTES} bytes, got {key!r}: "
                    "bytes.fromhex reads a key of hexadecimal digits"
                )

    def _check_numbers(self) -> None:
        """Raise ValueError for a limit that is not a number from 0 up."""
        for field in fields(self):
            limit = getattr(self, field.name)
            if not isinstance(field.default, int | float) or isinstance(field.default, bool):
                continue
            is_number = isinstance(limit, Real) and not isinstance(limit, bool)
            if not is_number or not limit >= 0:
                raise ValueError(f"{field.name} is a number from 0 up, got {limit!r}")

    def check_plan(
        self,
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
        for violation in self.violations(plan, study, number, rounds_by_study):
            raise violation

    def violations(
        self,
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
        yield from self._repetition_violations(plan, (rounds_by_study or {}).get(study, ()))
        yield from self._registrar_violations(plan)
        if plan.mechanism in SUM_MECHANISMS:
            yield from self._terms_violations(plan)
            yield from self._committee_violations(plan)
            yield from self._threshold_violations(plan)
        else:
            yield from self._delta_violations(REPORT_MECHANISMS[plan.mechanism].delta(plan))
        yield from self._size_violations(plan)

    def check_enrolment(self, plan: AnyPlan, identity: Identity, enrolment: bytes) -> None:
        """Check that the plan's registrar enrolled this device; raises PolicyError otherwise."""
        registry = plan.registry
        if registry and not registry.admits(identity.public, enrolment):
            raise PolicyError(
                "registrar",
                "names a registrar that did not enrol this device for the study with this "
                "question, these terms and rounds",
            )

    def check_slot(self, plan: AnyPlan, assignment: SlotAssignment, n: int) -> None:
        """Check that a cohort of `n` devices has the assigned slot; raises PolicyError if not."""
        cohort, slot = assignment.cohort, assignment.slot
        if (
            slot is None
            or cohort is None
            or not (0 <= slot < n and 0 <= cohort < plan.terms.cohorts)
        ):
            raise PolicyError("slot", "assigned a slot or a cohort that does not exist")

    def check_cohort(self, plan: AnyPlan, assignment: SlotAssignment, n: int) -> None:
        """Check that `plan` promised a cohort of `n` devices; raises PolicyError otherwise."""
        terms = plan.terms
        if not terms.minimum <= n <= terms.cohort_size:
            promised = f"{terms.minimum} to {terms.cohort_size}"
            raise PolicyError("terms", f"runs a cohort of {n} devices, and promised {promised}")
        self.check_slot(plan, assignment, n)
        for violation in self._quorum_violations(terms.assumptions.quorum(n)):
            raise violation

    def check_seating(self, plan: AnyPlan, seating: CohortSeating, identities: list[bytes]) -> None:
        """Check that the registrar seated `identities`, by slot; raises PolicyError otherwise."""
        seated_round = plan.seated_round(seating.joiners)
        fault = seating_fault(seated_round, seating, identities, plan.terms.minimum)
        if fault is not None:
            raise PolicyError("seating", fault)

    def max_copies(self, plan: AnyPlan) -> int:
        """Return the largest count of one item, so that few devices reach no threshold."""
        is_sum = plan.mechanism in SUM_MECHANISMS
        rho = rho_of(plan) if is_sum else None
        is_hidden = rho is not None and not any(self._rho_violations(rho))
        if not is_sum or is_hidden or self.min_threshold < 1:
            return plan.question.contribution
        return max(1, math.floor(reporting_threshold(plan) / self.min_threshold))

    def sharings(self, plan: AnyPlan) -> int:
        """Return the largest number of sharings in the plan's study, vectors included."""
        again = min(plan.rounds, self.max_rounds) if plan.question.asks_every_round else 0
        return self.max_sharings + again

    def check_rho(self, plan: AnyPlan, spent: float) -> None:
        """Check that noise hides the device in this sum and in those before, of rho `spent`.

        A plan states the noise in its round only; later rounds may have less.

        Raises:
            PolicyError: if the study asks the same devices in every round, and the noise is too
                small.
        """
        if not plan.question.asks_every_round or self.repeat_exact:
            return
        rho = rho_of(plan)
        for violation in self._rho_violations(spent + (math.inf if rho is None else rho)):
            raise violation

    def check_epsilon(self, spent: float, epsilon: float) -> None:
        """Check that `epsilon` may be spent on top of `spent`; raises PolicyError otherwise."""
        if not spent + epsilon <= self.max_epsilon * (1 + 1e-9):  # also refuses NaN
            left = max(0.0, self.max_epsilon - spent)
            reason = f"asks for epsilon {epsilon:g}, and {left:g} is left"
            raise PolicyError("max_epsilon", reason, _round_up(spent + epsilon))

    def _repetition_violations(
        self, plan: AnyPlan, rounds: Collection[int]
    ) -> Iterator[PolicyError]:
        """Yield the limits on contributing again, after `rounds` of the same study."""
        if not plan.question.asks_every_round:
            if rounds:
                reason = f"asks for a second contribution to study {plan.study}"
                yield PolicyError("once per study", reason)
            return
        yield from self._noise_violations(plan, max(plan.rounds, len(rounds) + 1))
        if plan.round in rounds:
            where = f"round {plan.round} of study {plan.study}"
            yield PolicyError("once per round", f"asks for a second contribution to {where}")
        if len(rounds) >= self.max_rounds:
            reason = f"asks for more than {self.max_rounds} rounds of study {plan.study}"
            yield PolicyError("max_rounds", reason)

    def _noise_violations(self, plan: AnyPlan, releases: int) -> Iterator[PolicyError]:
        """Yield the limits that the noise of `releases` sums does not keep.

        Epsilon is that of a Gaussian of the same variance [BunSteinke16, proposition 1.3]. This is
        not an exact account, but it detects noise that is far too small. The device does not count
        its own coins as protection.
        """
        rho = rho_of(plan)
        if rho is None:
            if not self.repeat_exact:
                reason = "asks the same devices in every round, and adds no noise to the sums"
                yield PolicyError("repeat_exact", reason)
            return
        yield from self._rho_violations(rho * releases)

    def _rho_violations(self, rho: float) -> Iterator[PolicyError]:
        epsilon = epsilon_of_rho(rho, self.max_delta)
        if not epsilon <= self.max_epsilon:
            reason = f"adds noise for epsilon {epsilon:.3g}, above {self.max_epsilon:g}"
            yield PolicyError("max_epsilon", reason, _round_up(epsilon))

    def _registrar_violations(self, plan: AnyPlan) -> Iterator[PolicyError]:
        if self.registrar is not None and plan.terms.registrar != self.registrar.hex():
            named = plan.terms.registrar or "no registrar"
            yield PolicyError("registrar", f"names {named} instead of {self.registrar.hex()}")
            return
        is_unverified = self.registrar is None and plan.mechanism in SUM_MECHANISMS
        if is_unverified and not self.trust_server_identities:
            is_named = plan.terms.registrar is not None
            reason = _UNVERIFIED_REGISTRAR_REASON if is_named else _NO_REGISTRAR_REASON
            yield PolicyError("trust_server_identities", reason)

    def _terms_violations(self, plan: AnyPlan) -> Iterator[PolicyError]:
        terms = plan.terms
        yield from self._quorum_violations(terms.min_summed)
        if terms.mode not in self.modes:
            modes = " or ".join(sorted(self.modes))
            reason = f"asks for the {terms.mode} mode instead of {modes}"
            yield PolicyError("modes", reason, terms.mode)
        if terms.corrupt < self.min_corrupt:
            reason = f"assumes a corrupt fraction of {terms.corrupt}, below {self.min_corrupt}"
            yield PolicyError("min_corrupt", reason, terms.corrupt)
        if terms.dropout > self.max_dropout and not terms.is_one_shot:
            reason = f"allows a dropout fraction of {terms.dropout}, above {self.max_dropout}"
            yield PolicyError("max_dropout", reason, terms.dropout)
        if terms.sigma < self.min_sigma:
            reason = f"allows failures with probability 2^-{terms.sigma}, above 2^-{self.min_sigma}"
            yield PolicyError("min_sigma", reason, terms.sigma)

    def _committee_violations(self, plan: AnyPlan) -> Iterator[PolicyError]:
        """Yield the limits on the committee that could read the device if it colluded."""
        if not plan.terms.is_one_shot:
            return
        terms = committee_terms(plan)
        if isinstance(terms, VolunteerTerms):
            yield from self._volunteer_violations(terms)
        else:
            yield from self._operator_violations(terms)
        if terms.largest < self.min_committee:
            reason = f"asks for a committee of {terms.largest} members, below {self.min_committee}"
            yield PolicyError("min_committee", reason, terms.largest)

    def _operator_violations(self, terms: CommitteeTerms) -> Iterator[PolicyError]:
        unknown = len(set(terms.identities) - self.committee)
        if unknown:
            reason = f"asks for a committee with {unknown} members that are not in Policy.committee"
            yield PolicyError("committee", reason)
        named, corrupt = len(terms.members), terms.parameters.corrupt
        least = least_tolerated(terms, self.min_committee_corrupt)
        if corrupt < least:
            reason = f"assumes {corrupt} of {named} operators that collude, below {least}"
            yield PolicyError("min_committee_corrupt", reason, terms.corrupt)

    def _volunteer_violations(self, terms: VolunteerTerms) -> Iterator[PolicyError]:
        if self.min_volunteers is None or self.registrar is None:
            reason = (
                "asks for a committee of devices, which a registrar draws: accept it with "
                "Policy.min_volunteers and Policy.registrar"
            )
            yield PolicyError("min_volunteers", reason, terms.volunteers)
        elif terms.volunteers < self.min_volunteers:
            reason = f"draws its committee from {terms.volunteers} devices"
            reason = f"{reason}, below {self.min_volunteers}"
            yield PolicyError("min_volunteers", reason, terms.volunteers)
        if terms.corrupt < self.min_corrupt:
            reason = f"assumes a corrupt fraction of volunteers of {terms.corrupt:g}"
            yield PolicyError("min_corrupt", f"{reason}, below {self.min_corrupt:g}", terms.corrupt)
        if terms.sigma < self.min_sigma:
            reason = f"may draw a corrupt committee with probability 2^-{terms.sigma}"
            yield PolicyError("min_sigma", f"{reason}, above 2^-{self.min_sigma}", terms.sigma)

    def _threshold_violations(self, plan: AnyPlan) -> Iterator[PolicyError]:
        """Yield the limits that keep items of few devices from the analyst of an honest server."""
        threshold, question = reporting_threshold(plan), plan.question
        if isinstance(plan, ReleasePlan):
            rho = rho_of(plan)
            if rho is not None:  # real noise hides a device behind any threshold
                if not question.asks_every_round:  # otherwise checked with all other rounds
                    yield from self._rho_violations(rho)
                return
            yield from self._delta_violations(plan.question.delta)
        if threshold < self.min_threshold:
            reason = f"asks for items held {threshold:g} times, below {self.min_threshold:g}"
            yield PolicyError("min_threshold", reason, threshold)
        if question.confidence < MIN_CONFIDENCE:
            reason = f"reports items by a confidence of {question.confidence:g}"
            yield PolicyError("confidence", f"{reason}, below {MIN_CONFIDENCE:g}")
        if not self.accept_exact_estimates and may_show_one_device(plan):
            rho = rho_of(plan)
            if rho is not None and not any(self._rho_violations(rho)):
                return
            reason = f"asks for exact {question.mechanism}, which may show what one device holds"
            yield PolicyError("accept_exact_estimates", reason)

    def _delta_violations(self, delta: float) -> Iterator[PolicyError]:
        if not delta <= self.max_delta * (1 + 1e-9):
            yield PolicyError(
                "max_delta", f"asks for delta {delta:g}, above {self.max_delta:g}", delta
            )

    def _quorum_violations(self, quorum: int) -> Iterator[PolicyError]:
        if quorum < self.min_cohort:
            reason = f"may sum as few as {quorum} devices, below {self.min_cohort}"
            yield PolicyError("min_cohort", reason, quorum)

    def _size_violations(self, plan: AnyPlan) -> Iterator[PolicyError]:
        contribution = plan.question.contribution
        if contribution > self.max_contribution:
            reason = f"asks for up to {contribution} items, above {self.max_contribution}"
            yield PolicyError("max_contribution", reason, contribution)
        nbytes = upload_bytes(plan)
        if nbytes > self.max_upload_bytes:
            reason = f"asks for {nbytes} bytes, above {self.max_upload_bytes}"
            yield PolicyError("max_upload_bytes", reason, nbytes)
        elements = vector_elements(plan)
        if elements * UPLOAD_BYTES_PER_ELEMENT > self.max_upload_bytes:
            most = self.max_upload_bytes // UPLOAD_BYTES_PER_ELEMENT
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
    yield from policy.violations(plan, plan.study, plan.round)
    if plan.mechanism in REPORT_MECHANISMS:
        try:
            policy.check_epsilon(0.0, REPORT_MECHANISMS[plan.mechanism].epsilon(plan))
        except PolicyError as error:
            yield error


def _round_up(epsilon: float) -> float | None:
    return math.ceil(100 * epsilon) / 100 if math.isfinite(epsilon) else None


def noise_events(plan: AnyPlan) -> float:
    """Return the expected number of events in a device's noise, in the smallest cohort."""
    if plan.mechanism in REPORT_MECHANISMS:
        return 0.0
    shares = SUM_MECHANISMS[plan.mechanism].noise_shares(plan, plan.terms.minimum)
    return 0.0 if shares is None else float(shares.share * vector_elements(plan))
