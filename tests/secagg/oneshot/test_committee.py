"""Committees: the authority that made them, the registrar's draw, and their bytes."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from secagg.errors import UnsafeRequestError
from secagg.keys import Identity
from secagg.oneshot.committee import Committee, Operators, Registrar, draw_members, sign_committee
from secagg.oneshot.member import volunteer
from secagg.oneshot.message import DeviceMessage, make_message
from secagg.oneshot.parameters import CommitteeParameters
from secagg.ring import Lane, Ring
from tests.secagg.oneshot.conftest import PARAMETERS, PLAN, Round, assemble


def servers_committee() -> tuple[Committee, list[Any]]:
    """Return a committee of processes of the server, with valid keys, and their states."""
    states = [volunteer(Identity.of(bytes([x + 50]) * 32), Random(x)) for x in range(9)]
    entries = tuple(state.register(PLAN, 0) for state in states)
    return Committee(PLAN, 0, PARAMETERS, entries), states


def test_a_committee_that_the_registrar_did_not_sign_is_refused(whole: Round) -> None:
    """Guards: `check_authority` in `make_message` and in `Volunteered.check`."""
    forged, states = servers_committee()
    server = Identity.of(b"s" * 32)
    true = whole.session.committee
    for committee in (
        forged,
        sign_committee(forged, server),
        replace(forged, signature=true.signature),
        replace(true, parameters=CommitteeParameters(9, 0, 2, 7)),
        replace(true, number=1),
        replace(true, entries=true.entries[::-1]),
    ):
        session = replace(whole.session, committee=committee)
        with pytest.raises(UnsafeRequestError, match="the registrar did not sign"):
            make_message(session, whole.identities[0], bytes(64), whole.vector(0), whole.rng)
        for state in (states[0], whole.states[1]):
            with pytest.raises(UnsafeRequestError, match="the registrar did not sign"):
                state.check(session, [])


def test_other_operators_than_those_pinned_are_refused(whole: Round) -> None:
    """Guards: each part of `Operators.fault`."""
    committee = whole.session.committee
    pinned = frozenset(entry.identity for entry in committee.entries)

    def make(
        committee: Committee, corrupt: int = 2, others: frozenset[bytes] = frozenset()
    ) -> DeviceMessage:
        authority = Operators(pinned | others, corrupt, absent=1)
        session = replace(whole.session, committee=committee, authority=authority)
        enrolment = whole.enrolment(whole.identities[0].public)
        return make_message(session, whole.identities[0], enrolment, whole.vector(0), whole.rng)

    make(replace(committee, signature=b""))  # the registrar's signature is not needed
    forged, _ = servers_committee()
    some = (*committee.entries[:8], forged.entries[0])
    for other in (forged, replace(committee, entries=some)):
        with pytest.raises(UnsafeRequestError, match="other operators than those pinned"):
            make(other)
    key = forged.entries[0].key
    swapped = (replace(committee.entries[0], key=key), *committee.entries[1:])
    with pytest.raises(UnsafeRequestError, match="a key that its operator did not sign"):
        make(replace(committee, entries=swapped))
    with pytest.raises(UnsafeRequestError, match="a key that its operator did not sign"):
        make(replace(committee, number=1))
    with pytest.raises(UnsafeRequestError, match="fewer than 3 colluding operators"):
        make(committee, corrupt=3)
    make(committee, others=frozenset({b"1" * 32}))
    with pytest.raises(UnsafeRequestError, match="other operators than those pinned"):
        make(committee, others=frozenset({b"1" * 32, b"2" * 32}))


def test_a_member_that_is_not_listed_sums_nothing(whole: Round) -> None:
    """Guards: `Volunteered._position`."""
    stranger = volunteer(Identity.of(b"x" * 32), Random(1))
    stranger.register(PLAN, 0)
    for state in (stranger, volunteer(whole.states[3].identity, Random(2))):
        with pytest.raises(UnsafeRequestError, match="without my entry"):
            state.check(whole.session, [])


def test_the_registrar_draws_members_at_random_with_authentic_keys() -> None:
    """Guards: `draw_members`: signed keys, each identity once, and any volunteer equally likely."""
    states = [volunteer(Identity.of(bytes([x + 1]) * 32), Random(x)) for x in range(20)]
    entries = [state.register(PLAN, 3) for state in states]
    wrong = volunteer(Identity.of(b"w" * 32), Random(99)).register(PLAN, 4)
    counts = dict.fromkeys((entry.identity for entry in [*entries, wrong]), 0)
    rng = Random(1)
    for _ in range(100):
        drawn = draw_members([*entries, wrong], 5, PLAN, 3, rng.sample(range(21), 21))
        assert len(set(drawn)) == 5
        for entry in drawn:
            counts[entry.identity] += 1
    # Each of 20 is drawn 25 times on average, with deviation 4.3: 8 to 45 except with 1e-3.
    assert counts.pop(wrong.identity) == 0
    assert all(8 < count < 45 for count in counts.values())
    with pytest.raises(ValueError, match="a volunteer is listed twice"):
        draw_members([*entries, entries[0]], 5, PLAN, 3, range(21))
    with pytest.raises(ValueError, match="21 members expected, and 20 keys are authentic"):
        draw_members([*entries, wrong], 21, PLAN, 3, range(21))


def test_a_committee_has_one_form_and_no_member_twice(whole: Round) -> None:
    committee = whole.session.committee
    body = committee.pack()
    assert Committee.unpack(body) == committee
    unsigned = replace(committee, signature=b"")
    assert Committee.unpack(unsigned.pack()) == unsigned
    for wrong in (body[:-1], body + b"\0", body[:40], b"", unsigned.pack()[:-1]):
        with pytest.raises(ValueError, match=r"a committee"):
            Committee.unpack(wrong)
    first, second, *others = committee.entries
    for twin, what in (
        (replace(second, identity=first.identity), "identity"),
        (replace(second, key=first.key), "key"),
    ):
        with pytest.raises(ValueError, match=f"the same {what} twice"):
            replace(committee, entries=(first, twin, *others))
    with pytest.raises(ValueError, match="9 members expected, got 8"):
        replace(committee, entries=committee.entries[1:])
    with pytest.raises(ValueError, match="has 32 bits"):
        replace(committee, number=2**32)
    with pytest.raises(ValueError, match="a digest has 32 bytes"):
        replace(committee, plan_digest=b"")


def test_a_registrars_authority_is_its_identity(whole: Round) -> None:
    session = replace(whole.session, authority=Registrar(Identity.of(b"o" * 32).public))
    with pytest.raises(UnsafeRequestError, match="the registrar did not sign"):
        session.check_authority()


def test_a_sum_has_one_lane() -> None:
    with pytest.raises(ValueError, match="a one-shot sum has one lane, got 2"):
        assemble(ring=Ring((Lane(521, 1), Lane(521, 2))))
