"""One whole one-shot sum, with all devices, members and the server in one process. Read this first.

    0 committee   members volunteer with a key; the registrar draws and signs the committee
    1 message     each device sends its message, and goes
    2 check       each member checks its column of all messages, or complains
    3 agree       the server chooses the set of messages; the members sign it
    4 release     each member sends the sum of its shares over the set
    5 open        the server interpolates the total

Devices drop out by sending no message. `MemberAttendance` has the members that take part in steps
2 to 4. The server learns the total and nothing else about any vector.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from secagg.keys import Identity
from secagg.oneshot.committee import (
    Committee,
    OneShotSession,
    Registrar,
    draw_members,
    sign_committee,
)
from secagg.oneshot.member import volunteer
from secagg.oneshot.message import check_message, make_message
from secagg.oneshot.opening import (
    check_complaints,
    check_set_signature,
    check_sum,
    choose_messages,
    open_sum,
)
from secagg.oneshot.parameters import CommitteeParameters
from secagg.ring import Ring, Vector
from secagg.session import Registry


class MemberAttendance(NamedTuple):
    """The members, 1 to m, that still take part in each step; the others have dropped out."""

    checking: Collection[int]
    agreeing: Collection[int]
    releasing: Collection[int]


@dataclass(frozen=True, slots=True)
class OneShotSum:
    """The sum of the vectors of `devices`, by index."""

    total: Vector
    devices: frozenset[int]


def run_one_shot_sum(  # noqa: PLR0917 - the parameters of a whole protocol
    ring: Ring,
    vectors: Sequence[Vector],
    parameters: CommitteeParameters,
    rng: Random,
    sending: Collection[int] | None = None,
    attendance: MemberAttendance | None = None,
    plan_digest: bytes = bytes(32),
    number: int = 0,
) -> OneShotSum:
    """Return the sum of the vectors of the devices in `sending`, all by default.

    `ring` has one lane, whose prime fits the committee (`Moduli`). `rng` makes all secrets. A
    seeded generator keeps none of them secret: use it in simulations only.

    Raises:
        ValueError: if `ring` does not fit, or a vector is not one of the ring's.
        UnsafeRequestError: if too few members sign the set of messages.
        OpeningError: if too few members take part.
    """
    # 0 Committee
    registrar = Identity.generate(rng)
    registry = Registry(registrar.public, plan_digest)
    volunteers = [volunteer(Identity.generate(rng), rng) for _ in range(parameters.members)]
    entries = [state.register(plan_digest, number) for state in volunteers]
    order = rng.sample(range(len(entries)), len(entries))
    drawn = draw_members(entries, parameters.members, plan_digest, number, order)
    by_identity = {state.identity.public: state for state in volunteers}
    members = {place: by_identity[entry.identity] for place, entry in enumerate(drawn, 1)}
    committee = sign_committee(Committee(plan_digest, number, parameters, drawn), registrar)
    session = OneShotSession(committee, ring, Registrar(registrar.public), 1, registry)

    # 1 Message
    messages = {}
    for device in range(len(vectors)) if sending is None else sorted(sending):
        identity = Identity.generate(rng)
        enrolment = registrar.sign(registry.enrolment_statement(identity.public))
        message = make_message(session, identity, enrolment, vectors[device], rng)
        digest = check_message(session, message).digest(message.proof)
        messages[digest] = device, message.columns(session)

    # 2 Check
    present = attendance or MemberAttendance(members, members, members)
    checked, complaints = {}, {}
    for member in present.checking:
        columns = [columns[member - 1] for _, columns in messages.values()]
        checked[member], complaints[member] = members[member].check(session, columns)
        check_complaints(session, member, complaints[member])

    # 3 Agree
    chosen = choose_messages(session, messages, complaints.items())
    agreed, signatures, set_digest = {}, {}, session.set_digest(chosen.included)
    for member in chosen.members.intersection(present.agreeing):
        agreed[member], signatures[member] = checked[member].agree(chosen.included)
        check_set_signature(session, member, set_digest, signatures[member])

    # 4 Release
    sums = {}
    for member in agreed.keys() & set(present.releasing):
        sums[member] = agreed[member].release(signatures)
        check_sum(session, member, set_digest, sums[member])

    # 5 Open
    total = open_sum(session, sums).total
    return OneShotSum(total, frozenset(messages[digest][0] for digest in chosen.included))
