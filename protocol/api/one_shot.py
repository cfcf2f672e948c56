"""One-shot sum of a round: the facts that devices, members and the server compute from its plan.

The lanes of a mechanism are modulo one prime that the committee can share (`Terms.moduli`), and
travel as one lane (`secagg.oneshot.moduli`).
"""

from dataclasses import dataclass

from protocol.committee_terms import AnyCommitteeTerms, VolunteerTerms
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan
from protocol.question_and_plan import Terms
from protocol.round_sizes import message_layout
from secagg.errors import UnsafeRequestError
from secagg.keys import SIGNATURE_BYTES
from secagg.oneshot.committee import (
    ENTRY_BYTES,
    Authority,
    Committee,
    OneShotSession,
    Operators,
    Registrar,
)
from secagg.oneshot.moduli import one_lane
from secagg.oneshot.parameters import CommitteeParameters
from secagg.ring import Ring

SUM_NUMBER = 0  # of the only sum of a round's plan
VOLUNTEER_BYTES = ENTRY_BYTES + SIGNATURE_BYTES  # a volunteer's key, and its enrolment


@dataclass(frozen=True, slots=True)
class OneShotRound:
    """The ring of a round's vectors, and the session of their sum in one lane."""

    ring: Ring
    session: OneShotSession

    @classmethod
    def of(cls, plan: AnyPlan, plan_digest: bytes, committee: Committee) -> "OneShotRound":
        """Return the facts of the round of `plan` with a `committee` that the server shows.

        The signatures of its keys are checked by the steps that use them.

        Raises:
            UnsafeRequestError: if the committee is not one that the plan's terms allow.
            ValueError: if the plan is not of a one-shot sum, or its lanes do not fit.
        """
        if (committee.plan_digest, committee.number) != (plan_digest, SUM_NUMBER):
            raise UnsafeRequestError("showed a committee of another round")
        if committee.parameters != _expected_parameters(plan.terms, len(committee.entries)):
            raise UnsafeRequestError("showed a committee with other parameters than the plan's")
        ring, minimum = _ring(plan), plan.terms.minimum
        authority, registry = _authority(plan), plan.registry
        return cls(ring, OneShotSession(committee, one_lane(ring), authority, minimum, registry))


def committee_terms(plan: AnyPlan) -> AnyCommitteeTerms:
    """Return the terms of the committee; raises ValueError if the plan is of no one-shot sum."""
    if plan.mechanism not in SUM_MECHANISMS or plan.terms.committee is None:
        raise ValueError("the round has no one-shot sum")
    return plan.terms.committee


def _authority(plan: AnyPlan) -> Authority:
    """Return the authority that makes the committees of a plan."""
    terms = committee_terms(plan)
    if isinstance(terms, VolunteerTerms):
        return Registrar(bytes.fromhex(plan.terms.registrar or ""))
    whole = terms.parameters
    return Operators(frozenset(terms.identities), whole.corrupt, whole.dropouts)


def _expected_parameters(terms: Terms, present: int) -> CommitteeParameters | None:
    try:
        return terms.committee.parameters_of(present) if terms.committee else None
    except ValueError:
        return None


def _ring(plan: AnyPlan) -> Ring:
    return SUM_MECHANISMS[plan.mechanism].ring(plan)


def column_bytes(plan: AnyPlan) -> int:
    """Return the size of the part of a message that a member receives."""
    return message_layout(plan.terms, _ring(plan)).largest_column
