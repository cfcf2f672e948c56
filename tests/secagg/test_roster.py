"""Rosters and share commitments in their bytes equal the lists that they were packed from."""

from dataclasses import replace

import pytest

from secagg.keys import Identity
from secagg.roster import (
    Roster,
    ShareCommitment,
    ShareCommitments,
    roster_bytes,
    share_commitments_bytes,
)
from tests.secagg.conftest import Group, assemble

N = 12


@pytest.mark.parametrize("registrar", [None, Identity.of(b"r" * 32)])
def test_a_roster_is_restored_from_its_bytes(registrar: Identity | None) -> None:
    session = assemble(N, registrar=registrar).session
    entries = list(session.roster)
    roster = Roster.unpack(roster_bytes(entries), has_registrar=registrar is not None)
    assert roster == Roster.of(entries) == entries
    assert roster != entries[1:]
    assert roster[3:5] == tuple(entries[3:5])
    assert (len(roster), roster[-1]) == (N, entries[-1])
    assert replace(session, roster=roster).label == session.label
    for slot, entry in enumerate(entries):
        keys = entry.keys
        assert roster.identity(slot) == entry.identity
        assert (roster.mask_key(slot), roster.encryption_key(slot)) == (keys.mask, keys.encryption)
    assert roster.duplicate is None
    with pytest.raises(IndexError):
        roster[N]


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


@pytest.mark.parametrize("size", [0, 63, 65])
def test_the_signature_of_an_entry_has_64_bytes(group: Group, size: int) -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        replace(group.session.roster[3], signature=bytes(size))


def test_a_roster_of_half_an_entry_or_without_enrolments_is_refused(group: Group) -> None:
    body = roster_bytes(group.session.roster)
    for broken, has_registrar in ((body[:-1], False), (body + b"x", False), (body[:160], True)):
        with pytest.raises(ValueError, match="not a multiple"):
            Roster.unpack(broken, has_registrar=has_registrar)


def test_keys_with_equal_beginnings_are_different(group: Group) -> None:
    entries = list(group.session.roster)
    keys = entries[6].keys
    alike = replace(keys, mask=keys.mask[:30] + bytes([keys.mask[30] ^ 1]) + keys.mask[31:])
    entries[5] = replace(entries[5], keys=alike)
    roster = Roster.of(entries[:6])
    assert roster.passed_quick_check
    entries[6] = replace(entries[6], keys=replace(keys, encryption=entries[4].keys.encryption))
    roster = Roster.of(entries[:7])
    assert not roster.passed_quick_check
    assert roster.duplicate == "key"
    alike = replace(alike, encryption=entries[3].keys.encryption[:31] + b"\1")
    entries[5] = replace(entries[5], keys=alike)
    roster = Roster.of(entries[:6])
    assert not roster.passed_quick_check
    assert roster.duplicate is None


def test_share_commitments_are_restored_from_their_bytes(group: Group) -> None:
    group.share(range(2, N))
    messages = group.key_shares.items()
    commitments = {slot: message.share_commitment for slot, message in reversed(messages)}
    restored = ShareCommitments.unpack(share_commitments_bytes(commitments))
    assert restored == commitments
    assert list(restored) == sorted(commitments)
    assert restored.keys() == commitments.keys()
    assert len(restored) == N - 2
    assert (2 in restored, 0 in restored, restored.get(0)) == (True, False, None)
    with pytest.raises(KeyError):
        restored[0]


@pytest.mark.parametrize("slots", [(1, 1), (2, 1), (0, 2, 1)])
def test_share_commitments_out_of_order_are_refused(slots: tuple[int, ...]) -> None:
    rows = [
        share_commitments_bytes({slot: ShareCommitment(bytes(32), bytes(32))}) for slot in slots
    ]
    with pytest.raises(ValueError, match="strictly rise"):
        ShareCommitments.unpack(b"".join(rows))


@pytest.mark.parametrize(("nonce", "digest"), [(31, 32), (32, 33)])
def test_a_share_commitment_of_another_size_is_refused(nonce: int, digest: int) -> None:
    with pytest.raises(ValueError, match="a wrong size"):
        ShareCommitment(bytes(nonce), bytes(digest))
