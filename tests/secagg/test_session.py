"""A label covers all facts: if one differs, no keys agree."""

from dataclasses import replace
from random import Random

import pytest

from secagg.errors import InfeasibleError
from secagg.keys import Identity, KeyPair, PublicKeys
from secagg.parameters import Assumptions
from secagg.roster import Roster, RosterEntry
from secagg.session import Registry, Session, Transcript
from tests.secagg.conftest import assemble
from tests.secagg.faulty import with_entry

N = 12


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    return assemble(N).share()


@pytest.fixture(scope="module")
def session(transcript: Transcript) -> Session:
    return transcript.session


def fresh_keys(rng: Random) -> PublicKeys:
    return PublicKeys(KeyPair.generate(rng).public, KeyPair.generate(rng).public)


def test_two_rosters_with_the_same_bytes_are_refused() -> None:
    # If registrar signatures could have any size, slot 1 could be different devices for different
    # participants, under one label.
    rng = Random(1)
    first, honest, malicious = (
        RosterEntry(Identity.generate(rng).public, fresh_keys(rng), bytes(64)) for _ in range(3)
    )
    rosters = (
        (replace(first, registrar_signature=malicious.pack()), honest),
        (first, replace(malicious, registrar_signature=honest.pack())),
    )
    joined = {b"".join(entry.pack() for entry in roster) for roster in rosters}
    assert len(joined) == 1
    for roster in rosters:
        with pytest.raises(ValueError, match="different sizes"):
            Roster.of(roster)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_plans_digest_has_32_bytes(session: Session, size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        replace(session, plan_digest=bytes(size))


def test_an_infeasible_cohort_is_refused(session: Session) -> None:
    with pytest.raises(InfeasibleError, match="hides nothing"):
        replace(session, roster=Roster.of(session.roster[:1]))


def test_the_graph_has_the_neighbours_of_all_dealers() -> None:
    transcript = assemble(25, Assumptions(0.1, 0.2)).share(range(2, 25))
    alone = {slot: transcript.neighbours(slot) for slot in transcript.share_commitments}
    assert transcript.graph == alone
    assert {slot: transcript.neighbours(slot) for slot in transcript.share_commitments} == alone


def test_an_entry_is_authentic_if_its_identity_signed_it_for_the_plan(session: Session) -> None:
    assert all(session.is_authentic(slot) for slot in range(N))
    entries = session.roster
    mine, theirs = entries[3].keys, entries[4].keys
    for forged in (
        replace(session, plan_digest=bytes(32)),
        with_entry(session, 3, signature=entries[4].signature),
        with_entry(session, 3, keys=PublicKeys(theirs.mask, mine.encryption)),
        with_entry(session, 3, keys=PublicKeys(mine.mask, theirs.encryption)),
        with_entry(session, 3, keys=PublicKeys(mine.encryption, mine.mask)),
        with_entry(session, 3, identity=entries[4].identity),
    ):
        assert not forged.is_authentic(3)
    assert replace(session, cohort_number=7).is_authentic(3)  # valid in any cohort of the plan


def test_with_a_registry_an_authentic_entry_is_enrolled() -> None:
    session = assemble(N, registrar=Identity.of(b"r" * 32)).session
    assert all(session.is_authentic(slot) for slot in range(N))
    for signature in (session.roster[4].registrar_signature, bytes(64)):
        assert not with_entry(session, 3, registrar_signature=signature).is_authentic(3)


def test_a_registry_admits_identities_that_its_registrar_signed_for_its_scope() -> None:
    registrar, device, other = (Identity.of(bytes([x]) * 32) for x in (1, 2, 3))
    registry = Registry(registrar.public, b"S" * 32)
    signature = registrar.sign(registry.enrolment_statement(device.public))
    assert registry.admits(device.public, signature)
    assert not registry.admits(other.public, signature)
    assert not registry.admits(
        device.public, device.sign(registry.enrolment_statement(device.public))
    )
    assert not registry.admits(device.public, b"")
    assert not replace(registry, scope=b"T" * 32).admits(device.public, signature)
    assert not replace(registry, registrar=other.public).admits(device.public, signature)
