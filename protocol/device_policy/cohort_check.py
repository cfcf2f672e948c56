"""Checks of what the server shows after the plan: enrolment, slot, roster and seating."""

from protocol.api.messages import SlotAssignment
from protocol.device_policy.plan_check import quorum_violations
from protocol.device_policy.policy import Policy, PolicyError
from protocol.mechanisms.registry import AnyPlan
from secagg.keys import Identity
from secagg.seating import CohortSeating, seating_fault


def check_enrolment(plan: AnyPlan, identity: Identity, enrolment: bytes) -> None:
    """Check that the plan's registrar enrolled this device; raises PolicyError otherwise."""
    registry = plan.registry
    if registry and not registry.admits(identity.public, enrolment):
        raise PolicyError(
            "registrar",
            "names a registrar that did not enrol this device for the study with this "
            "question, these terms and rounds",
        )


def check_slot(plan: AnyPlan, assignment: SlotAssignment, n: int) -> None:
    """Check that a cohort of `n` devices has the assigned slot; raises PolicyError if not."""
    cohort, slot = assignment.cohort, assignment.slot
    if slot is None or cohort is None or not (0 <= slot < n and 0 <= cohort < plan.terms.cohorts):
        raise PolicyError("slot", "assigned a slot or a cohort that does not exist")


def check_cohort(policy: Policy, plan: AnyPlan, assignment: SlotAssignment, n: int) -> None:
    """Check that `plan` promised a cohort of `n` devices; raises PolicyError otherwise."""
    terms = plan.terms
    if not terms.minimum <= n <= terms.cohort_size:
        promised = f"{terms.minimum} to {terms.cohort_size}"
        raise PolicyError("terms", f"runs a cohort of {n} devices, and promised {promised}")
    check_slot(plan, assignment, n)
    for violation in quorum_violations(policy, terms.assumptions.quorum(n)):
        raise violation


def check_seating(plan: AnyPlan, seating: CohortSeating, identities: list[bytes]) -> None:
    """Check that the registrar seated `identities`, by slot; raises PolicyError otherwise."""
    seated_round = plan.seated_round(seating.joiners)
    fault = seating_fault(seated_round, seating, identities, plan.terms.minimum)
    if fault is not None:
        raise PolicyError("seating", fault)
