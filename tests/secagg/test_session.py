"""A label covers all facts: if one differs, no keys agree."""

from dataclasses import replace
from random import Random

import pytest

from secagg.errors import InfeasibleError
from secagg.keys import Identity, KeyPair, PublicKeys
from secagg.parameters import Assumptions
from secagg.roster import Roster, RosterEntry, ShareCommitment, ShareCommitments
from secagg.session import Registry, Session, Transcript
from tests.secagg.conftest import assemble
from tests.secagg.faulty import with_commitment, with_entry

N = 12


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    return assemble(N).share()


@pytest.fixture(scope="module")
def session(transcript: Transcript) -> Session:
    return transcript.session


def fresh_keys(rng: Random) -> PublicKeys:
    return PublicKeys(KeyPair.generate(rng).public, KeyPair.generate(rng).public)


def test_each_fact_of_a_session_changes_its_label(session: Session) -> None:
    stranger = assemble(1 + N, seed=9).session.roster[0]
    keys, first, second = session.roster[3].keys, *session.roster[:2]
    rest = session.roster[2:]
    enrolled = [replace(entry, registrar_signature=bytes(64)) for entry in session.roster]
    others = [
        replace(session, plan_digest=bytes(32)),
        replace(session, cohort_number=1),
        with_entry(session, 3, signature=bytes(64)),
        replace(session, roster=Roster.of((second, first, *rest))),
        replace(session, roster=Roster.of(session.roster[:-1])),
        replace(session, roster=Roster.of((*session.roster, stranger))),
        with_entry(session, 3, identity=stranger.identity),
        with_entry(session, 3, keys=PublicKeys(stranger.keys.mask, keys.encryption)),
        with_entry(session, 3, keys=PublicKeys(keys.mask, stranger.keys.encryption)),
        with_entry(session, 3, keys=PublicKeys(keys.encryption, keys.mask)),
        replace(session, roster=Roster.of(enrolled)),
    ]
    assert len({c.label for c in (session, *others)}) == len(others) + 1


def test_each_parameter_changes_the_label(session: Session) -> None:
    rates = [(0.1, 0.2), (0.05, 0.05), (0.05, 0.1), (0.2, 0.2), (0, 0.3), (0.3, 0.1)]
    every = [
        replace(session, assumptions=Assumptions(c, d, mode=mode))
        for c, d in rates
        for mode in ("active", "semi-honest")
    ]
    assert len({c.parameters.holders for c in every}) > 1
    assert len({replace(c.parameters, slack=0) for c in every}) == len({c.label for c in every})


def test_equal_sessions_have_equal_labels(session: Session) -> None:
    assert replace(session).label == session.label


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


@pytest.mark.parametrize("size", [0, 63, 65])
def test_the_signature_of_an_entry_has_64_bytes(session: Session, size: int) -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        with_entry(session, 3, signature=bytes(size))


def test_an_infeasible_cohort_is_refused(session: Session) -> None:
    with pytest.raises(InfeasibleError, match="hides nothing"):
        replace(session, roster=Roster.of(session.roster[:1]))


def test_each_fact_of_a_transcript_changes_its_label(transcript: Transcript) -> None:
    commitments = dict(transcript.share_commitments)
    without = {slot: commitment for slot, commitment in commitments.items() if slot != 3}
    moved = {**without, 3: commitments[4], 4: commitments[3]}
    others = [
        Transcript(transcript.session, ShareCommitments.of(without)),
        Transcript(transcript.session, ShareCommitments.of(moved)),
        with_commitment(transcript, 3, graph_nonce=bytes(32)),
        with_commitment(transcript, 3, shares_digest=bytes(32)),
        Transcript(
            replace(transcript.session, plan_digest=bytes(32)), transcript.share_commitments
        ),
        Transcript(transcript.session, ShareCommitments.of({})),
    ]
    assert len({v.label for v in (transcript, *others)}) == len(others) + 1


def test_the_label_of_a_transcript_is_not_that_of_its_session(transcript: Transcript) -> None:
    assert Transcript(transcript.session, ShareCommitments.of({})).label != transcript.session.label


def test_a_share_commitment_outside_the_cohort_is_refused(session: Session) -> None:
    commitments = ShareCommitments.of({N: ShareCommitment(bytes(32), bytes(32))})
    with pytest.raises(ValueError, match="not in the cohort"):
        Transcript(session, commitments)


@pytest.mark.parametrize("sizes", [(31, 33), (33, 31), (0, 32)])
def test_a_share_commitment_of_a_wrong_size_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="wrong size"):
        ShareCommitment(*map(bytes, sizes))


def test_all_purposes_of_a_sum_differ(transcript: Transcript) -> None:
    purposes = [
        transcript.self_mask_purpose(1),
        transcript.pairwise_mask_purpose(1, 2),
        transcript.pairwise_mask_purpose(1, 3),
    ]
    for dealer, holder in ((1, 2), (2, 1), (1, 3)):
        purposes += [
            transcript.seed_share_purpose(dealer, holder),
            transcript.session.key_share_purpose(dealer, holder),
        ]
    assert len({p.info() for p in purposes}) == len(purposes)
    assert len({p.derive(bytes(32)) for p in purposes}) == len(purposes)
    assert transcript.pairwise_mask_purpose(2, 1) == transcript.pairwise_mask_purpose(1, 2)


def test_the_graph_has_the_neighbours_of_all_dealers() -> None:
    for mode in ("active", "semi-honest"):
        transcript = assemble(25, Assumptions(0.1, 0.2, mode=mode)).share(range(2, 25))
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


def test_a_confirmation_covers_the_transcript_the_slot_and_the_survivors(
    transcript: Transcript,
) -> None:
    survivors = frozenset(range(10))
    other = with_commitment(transcript, 5, shares_digest=bytes(32))
    signed = transcript.confirmation_statement(3, survivors)
    others = [
        transcript.confirmation_statement(4, survivors),
        transcript.confirmation_statement(3, survivors - {9}),
        transcript.confirmation_statement(3, survivors | {11}),
        other.confirmation_statement(3, survivors),
    ]
    assert len({signed, *others}) == 5


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


def test_an_entry_with_an_identity_of_low_order_is_refused(session: Session) -> None:
    with pytest.raises(ValueError, match="low order"):
        RosterEntry(bytes(32), session.roster[0].keys, bytes(64))
