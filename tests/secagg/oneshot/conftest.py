"""A one-shot sum in memory: the tests forward the messages of the protocol by hand."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random

import numpy as np
import pytest

from secagg.keys import Identity, KeyPair, Keystream
from secagg.oneshot.committee import Committee, OneShotSession, Registrar, sign_committee
from secagg.oneshot.member import Agreed, Checked, Volunteered, volunteer
from secagg.oneshot.member_messages import ComplaintList, MemberSum
from secagg.oneshot.message import (
    DeviceMessage,
    Opening,
    check_message,
    encrypt_shares,
    expand_shares,
    make_message,
    merkle_levels,
)
from secagg.oneshot.opening import (
    OpenedSum,
    check_complaints,
    check_set_signature,
    check_sum,
    choose_messages,
    open_sum,
)
from secagg.oneshot.parameters import CommitteeParameters
from secagg.ring import Lane, Ring, Vector
from secagg.session import Registry

RING = Ring((Lane(521, 23),))
PARAMETERS = CommitteeParameters(members=9, corrupt=2, dropouts=2, threshold=5)
PLAN = bytes(range(32))


def same(first: Vector, second: Vector) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@dataclass
class Round:
    """A committee, enrolled devices, and their messages since; a step runs when it is called."""

    session: OneShotSession
    registrar: Identity
    states: dict[int, Volunteered]
    identities: list[Identity]
    rng: Random
    messages: dict[int, DeviceMessage] = field(default_factory=dict)
    checked: dict[int, Checked] = field(default_factory=dict)
    complaints: dict[int, ComplaintList] = field(default_factory=dict)
    agreed: dict[int, Agreed] = field(default_factory=dict)
    signatures: dict[int, bytes] = field(default_factory=dict)
    sums: dict[int, MemberSum] = field(default_factory=dict)

    @cached_property
    def members(self) -> range:
        return range(1, self.session.parameters.members + 1)

    def vector(self, device: int) -> Vector:
        """Return the input of `device`, the same at each call."""
        chance = np.random.default_rng(device)
        (lane,) = self.session.ring.lanes
        return self.session.ring.vector([chance.integers(0, lane.q, lane.length, np.uint64)])

    def plain_sum(self, devices: Collection[int]) -> Vector:
        total = self.session.ring.zero()
        for device in devices:
            self.session.ring.add(total, self.vector(device))
        return total

    def enrolment(self, identity: bytes) -> bytes:
        assert self.session.registry is not None
        return self.registrar.sign(self.session.registry.enrolment_statement(identity))

    def make(self, device: int) -> DeviceMessage:
        identity = self.identities[device]
        enrolment = self.enrolment(identity.public)
        return make_message(self.session, identity, enrolment, self.vector(device), self.rng)

    def send(self, devices: Collection[int] | None = None) -> None:
        for device in range(len(self.identities)) if devices is None else devices:
            message = DeviceMessage.unpack(self.make(device).pack(), self.session)
            check_message(self.session, message)
            self.messages[device] = message

    def digest(self, device: int) -> bytes:
        return self.messages[device].digest(self.session)

    def set_of(self, devices: Collection[int] | None = None) -> list[bytes]:
        """Return the digests of the messages of `devices` (all that sent), in rising order."""
        return sorted(map(self.digest, self.messages if devices is None else devices))

    def columns(self, member: int) -> list[bytes]:
        return [message.columns(self.session)[member - 1] for message in self.messages.values()]

    def check(
        self,
        members: Collection[int] | None = None,
        columns: Mapping[int, Sequence[bytes]] | None = None,
    ) -> None:
        """Let `members` (all by default) check their columns, or those given for some of them."""
        for member in self.members if members is None else members:
            rows = (columns or {}).get(member, self.columns(member))
            self.checked[member], self.complaints[member] = self.states[member].check(
                self.session, rows
            )
            check_complaints(self.session, member, self.complaints[member])

    def choose(self) -> tuple[tuple[bytes, ...], frozenset[int]]:
        """Return the messages that the server includes, and the members that it asks."""
        messages = [message.digest(self.session) for message in self.messages.values()]
        chosen = choose_messages(self.session, messages, self.complaints.items())
        return chosen.included, chosen.members

    def agree(self, included: Sequence[bytes], members: Collection[int] | None = None) -> None:
        """Let `members` (all that checked) sign the set `included`."""
        set_digest = self.session.set_digest(included)
        for member in sorted(self.checked if members is None else members):
            self.agreed[member], self.signatures[member] = self.checked[member].agree(included)
            check_set_signature(self.session, member, set_digest, self.signatures[member])

    def release(self, members: Collection[int] | None = None) -> None:
        for member in sorted(self.agreed if members is None else members):
            state = self.agreed[member]
            self.sums[member] = state.release(self.signatures)
            check_sum(self.session, member, state.set_digest, self.sums[member])

    def open(self) -> OpenedSum:
        return open_sum(self.session, self.sums)

    def total(self) -> Vector:
        self.check()
        included, members = self.choose()
        self.agree(included, members)
        self.release()
        return self.open().total


def assemble(
    devices: int = 6,
    parameters: CommitteeParameters = PARAMETERS,
    ring: Ring = RING,
    minimum: int = 2,
    seed: int = 0,
    number: int = 0,
) -> Round:
    """Return a round with a committee that a registrar signed, and enrolled devices."""
    rng = Random(seed)
    registrar = Identity.generate(rng)
    states = {
        member: volunteer(Identity.generate(rng), rng)
        for member in range(1, parameters.members + 1)
    }
    entries = tuple(state.register(PLAN, number) for state in states.values())
    committee = sign_committee(Committee(PLAN, number, parameters, entries), registrar)
    registry = Registry(registrar.public, bytes(32))
    authority = Registrar(registrar.public)
    session = OneShotSession(committee, ring, authority, minimum, registry)
    identities = [Identity.generate(rng) for _ in range(devices)]
    return Round(session, registrar, states, identities, rng)


def with_signature(message: DeviceMessage, session: OneShotSession, by: Identity) -> DeviceMessage:
    renamed = replace(message, identity=by.public)
    signed = renamed.opening(session).statement(renamed.proof)
    return replace(renamed, signature=by.sign(signed))


def badly_shared(whole: Round, device: int, members: Iterable[int]) -> DeviceMessage:
    """Replace the message of `device` by one whose shares for `members` alone are bad."""
    session, identity, pair = whole.session, whole.identities[device], KeyPair.generate(whole.rng)
    label, corrupt = session.label(identity.public), session.parameters.corrupt
    secrets = [pair.agree(entry.key) for entry in session.committee.entries]
    expanded = expand_shares(session, label, secrets)
    for member in members:
        if member <= corrupt:
            expanded[member - 1][0] ^= 1
    stream = Keystream(whole.rng.randbytes(32))
    nodes = session.sharing.nodes(whole.vector(device)[0], expanded, stream)
    rows = encrypt_shares(session, label, secrets, session.sharing.shares(nodes))
    for member in members:
        if member > corrupt:
            rows[member - 1 - corrupt, 0] ^= 1
    shares = [row.tobytes() for row in rows]
    leaves = [b""] * corrupt + shares
    opening = Opening(label, pair.public, merkle_levels(leaves)[-1])
    proof = session.sharing.prove(nodes, opening.coin_key)
    signature = identity.sign(opening.statement(proof))
    enrolment = whole.enrolment(identity.public)
    message = DeviceMessage(
        identity.public, enrolment, pair.public, b"".join(shares), proof, signature
    )
    check_message(session, message)
    whole.messages[device] = message
    return message


@pytest.fixture
def whole() -> Round:
    of_six = assemble()
    of_six.send()
    return of_six
