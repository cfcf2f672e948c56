"""Rosters and share commitments in their bytes equal the lists that they were packed from."""

from dataclasses import replace

import pytest

from secagg.errors import UnsafeRequestError
from secagg.keys import Identity
from secagg.roster import (
    Roster,
    RosterEntry,
    ShareCommitment,
    ShareCommitments,
    find_duplicate,
    roster_bytes,
    share_commitments_bytes,
)
from secagg.session import Session, Transcript
from tests.secagg.conftest import Group, assemble, same

N = 12


def packed(roster: tuple[RosterEntry, ...] | list[RosterEntry]) -> Roster:
    return Roster(roster_bytes(roster), len(roster[0].pack()))


def received(session: Session) -> Session:
    """Return `cohort` as a participant receives it."""
    return replace(session, roster=packed(list(session.roster)))


@pytest.mark.parametrize("registrar", [None, Identity.of(b"r" * 32)])
def test_a_roster_in_bytes_is_the_same_roster(registrar: Identity | None) -> None:
    session = assemble(N, registrar=registrar).session
    received_session = received(session)
    assert received_session.roster == session.roster
    assert received_session.roster != session.roster[1:]
    assert received_session.roster[3:5] == session.roster[3:5]
    assert (len(received_session.roster), received_session.roster[-1]) == (N, session.roster[-1])
    assert (received_session.n, received_session.label) == (session.n, session.label)
    assert all(received_session.is_authentic(slot) for slot in range(N))
    assert find_duplicate(received_session.roster) is None
    with pytest.raises(IndexError):
        received_session.roster[N]


@pytest.mark.parametrize("slot", [0, 5, N - 1])
@pytest.mark.parametrize(
    ("place", "value", "what"),
    [
        (0, (1).to_bytes(32, "little"), "identity is of low order"),
        (32, (1).to_bytes(32, "little"), "key is of low order"),
        (64, bytes(32), "key is of low order"),
        (32, b"\x09" + bytes(30) + b"\x80", "unused bit"),
        (64, b"\x09" + bytes(30) + b"\x80", "unused bit"),
    ],
)
def test_a_roster_with_one_bad_key_is_refused(
    group: Group, slot: int, place: int, value: bytes, what: str
) -> None:
    body, start = roster_bytes(group.session.roster), 160 * slot + place
    with pytest.raises(ValueError, match=what):
        Roster(body[:start] + value + body[start + 32 :], 160)


def test_a_roster_with_one_key_for_both_uses_is_refused(group: Group) -> None:
    body = roster_bytes(group.session.roster)
    with pytest.raises(ValueError, match="must differ"):
        Roster(body[:64] + body[32:64] + body[96:], 160)


def test_a_roster_of_half_an_entry_is_refused(group: Group) -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        Roster(roster_bytes(group.session.roster)[:-1], 160)


@pytest.mark.parametrize("what", ["identity", "keys"])
def test_a_repeated_participant_in_bytes_is_refused(group: Group, what: str) -> None:
    entries = list(group.session.roster)
    entries[5] = replace(entries[5], **{what: getattr(entries[6], what)})
    with pytest.raises(UnsafeRequestError, match="twice"):
        group.joined[0].share(0, replace(group.session, roster=packed(entries)), group.rng)


def test_keys_with_equal_beginnings_are_different(group: Group) -> None:
    entries = list(group.session.roster)
    keys = entries[6].keys
    alike = replace(keys, mask=keys.mask[:30] + bytes([keys.mask[30] ^ 1]) + keys.mask[31:])
    entries[5] = replace(entries[5], keys=alike)
    roster = packed(entries[:6])
    assert roster.passed_quick_check
    entries[6] = replace(entries[6], keys=replace(keys, encryption=entries[4].keys.encryption))
    roster = packed(entries[:7])
    assert not roster.passed_quick_check
    assert find_duplicate(roster) == "key"
    alike = replace(alike, encryption=entries[3].keys.encryption[:31] + b"\1")
    entries[5] = replace(entries[5], keys=alike)
    roster = packed(entries[:6])
    assert not roster.passed_quick_check
    assert find_duplicate(roster) is None


def test_share_commitments_in_bytes_are_equal(group: Group) -> None:
    transcript = group.share(range(2, N))
    received_session = Transcript(
        transcript.session,
        ShareCommitments.unpack(share_commitments_bytes(transcript.share_commitments)),
    )
    assert received_session.share_commitments == transcript.share_commitments
    assert list(received_session.share_commitments) == sorted(transcript.share_commitments)
    assert received_session.share_commitments.keys() == transcript.share_commitments.keys()
    assert len(received_session.share_commitments) == N - 2
    assert (
        2 in received_session.share_commitments,
        0 in received_session.share_commitments,
        received_session.share_commitments.get(0),
    ) == (True, False, None)
    assert (received_session.label, received_session.graph) == (transcript.label, transcript.graph)
    for slot in transcript.share_commitments:
        assert received_session.neighbours(slot) == transcript.neighbours(slot)
        assert received_session.holders(slot) == transcript.holders(slot)
    with pytest.raises(KeyError):
        received_session.share_commitments[0]


def test_share_commitments_in_bytes_outside_the_cohort_are_refused(group: Group) -> None:
    stranger = share_commitments_bytes({N: ShareCommitment(bytes(32), bytes(32))})
    with pytest.raises(ValueError, match="not in the cohort, or a wrong size"):
        Transcript(group.session, ShareCommitments.unpack(stranger))


@pytest.mark.parametrize("slots", [(1, 1), (2, 1), (0, 2, 1)])
def test_share_commitments_out_of_order_are_refused(slots: tuple[int, ...]) -> None:
    rows = [
        share_commitments_bytes({slot: ShareCommitment(bytes(32), bytes(32))}) for slot in slots
    ]
    with pytest.raises(ValueError, match="strictly rise"):
        ShareCommitments.unpack(b"".join(rows))


def test_a_sum_with_sessions_in_bytes_is_exact(group: Group) -> None:
    group.session = received(group.session)
    slots = group.all_slots
    assert same(group.total(slots, slots, slots, slots) or (), group.plain_sum(slots))
