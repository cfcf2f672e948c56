"""Draw of a committee: the registrar's choice among the volunteers of a round, which it signs.

The list has exactly the number of volunteers that the plan promises, all different devices that the
registrar enrolled and that signed their keys for this plan. With fewer, the devices that collude
would be a larger part of the list than the committee's parameters assume.
"""

from collections.abc import Callable, Sequence

from protocol.api.one_shot import SUM_NUMBER, VOLUNTEER_BYTES
from protocol.committee_terms import VolunteerTerms
from protocol.mechanisms.registry import AnyPlan
from secagg.keys import Identity
from secagg.oneshot.committee import (
    ENTRY_BYTES,
    Committee,
    MemberEntry,
    draw_members,
    sign_committee,
)


def signed_committee(
    plan: AnyPlan, body: bytes, registrar: Identity, draw: Callable[[Sequence[bytes]], list[int]]
) -> bytes:
    """Return the committee of `plan`, packed, from the volunteers in `body`.

    `body` has the key and the enrolment of each. `draw` receives identity and key of each, and
    returns their numbers in a random order, always the same one for a plan.

    Raises:
        ValueError: if the list is not one of enrolled volunteers of this plan, or as `draw` does.
    """
    terms, digest = plan.terms.committee, plan.digest()
    assert isinstance(terms, VolunteerTerms), "the caller checks the plan"
    if len(body) != terms.volunteers * VOLUNTEER_BYTES:
        raise ValueError(
            f"the plan promises {terms.volunteers} volunteers, of {VOLUNTEER_BYTES} bytes each, "
            f"and the list has {len(body)} bytes"
        )
    rows = (body[at : at + VOLUNTEER_BYTES] for at in range(0, len(body), VOLUNTEER_BYTES))
    # Sorted, so that the order in which the server lists them makes no other draw.
    volunteers = [_checked_volunteer(plan, digest, row) for row in sorted(rows)]
    order = draw([entry.identity + entry.key for entry in volunteers])
    members = draw_members(volunteers, terms.size, digest, SUM_NUMBER, order)
    committee = Committee(digest, SUM_NUMBER, terms.parameters, members)
    return sign_committee(committee, registrar).pack()


def _checked_volunteer(plan: AnyPlan, digest: bytes, row: bytes) -> MemberEntry:
    entry, registry = MemberEntry.unpack(row[:ENTRY_BYTES]), plan.registry
    assert registry is not None, "a committee of volunteers has a registrar"
    if not registry.admits(entry.identity, row[ENTRY_BYTES:]):
        raise ValueError("a volunteer was never enrolled by this registrar")
    if not entry.is_authentic(digest, SUM_NUMBER):
        raise ValueError("a volunteer did not sign its key for this plan")
    return entry
