"""Lists in the bytes they travel in are the lists of what they were made of, and no worse."""

from collections.abc import Callable
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
from tests.secagg.conftest import Group, same

N = 12
Gather = Callable[..., Group]


@pytest.fixture
def group(gather: Gather) -> Group:
    return gather(N)


def packed(roster: tuple[RosterEntry, ...] | list[RosterEntry]) -> Roster:
    return Roster(roster_bytes(roster), len(roster[0].pack()))


def told(cohort: Session) -> Session:
    """Return `cohort` as a participant is told of it."""
    return replace(cohort, roster=packed(list(cohort.roster)))


@pytest.mark.parametrize("registrar", [None, Identity.of(b"r" * 32)])
def test_a_roster_in_bytes_is_the_same_roster(gather: Gather, registrar: Identity | None) -> None:
    cohort = gather(N, registrar=registrar).cohort
    heard = told(cohort)
    assert heard.roster == cohort.roster
    assert heard.roster != cohort.roster[1:]
    assert heard.roster[3:5] == cohort.roster[3:5]
    assert (len(heard.roster), heard.roster[-1]) == (N, cohort.roster[-1])
    assert (heard.n, heard.label) == (cohort.n, cohort.label)
    assert all(heard.is_authentic(slot) for slot in range(N))
    assert find_duplicate(heard.roster) is None
    with pytest.raises(IndexError):
        heard.roster[N]


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
def test_one_bad_key_anywhere_and_the_roster_is_refused(
    group: Group, slot: int, place: int, value: bytes, what: str
) -> None:
    body, start = roster_bytes(group.cohort.roster), 160 * slot + place
    with pytest.raises(ValueError, match=what):
        Roster(body[:start] + value + body[start + 32 :], 160)


def test_one_key_for_both_uses_is_refused(group: Group) -> None:
    body = roster_bytes(group.cohort.roster)
    with pytest.raises(ValueError, match="must differ"):
        Roster(body[:64] + body[32:64] + body[96:], 160)


def test_a_roster_of_half_an_entry_is_refused(group: Group) -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        Roster(roster_bytes(group.cohort.roster)[:-1], 160)


@pytest.mark.parametrize("what", ["identity", "keys"])
def test_somebody_twice_is_refused_in_bytes_too(group: Group, what: str) -> None:
    entries = list(group.cohort.roster)
    entries[5] = replace(entries[5], **{what: getattr(entries[6], what)})
    with pytest.raises(UnsafeRequestError, match="twice"):
        group.joined[0].share(0, replace(group.cohort, roster=packed(entries)), group.rng)


def test_keys_that_begin_alike_are_not_the_same(group: Group) -> None:
    entries = list(group.cohort.roster)
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


def test_sharers_in_bytes_are_the_same_sharers(group: Group) -> None:
    view = group.share(range(2, N))
    heard = Transcript(
        view.session, ShareCommitments.unpack(share_commitments_bytes(view.share_commitments))
    )
    assert heard.share_commitments == view.share_commitments
    assert list(heard.share_commitments) == sorted(view.share_commitments)
    assert heard.share_commitments.keys() == view.share_commitments.keys()
    assert len(heard.share_commitments) == N - 2
    assert (
        2 in heard.share_commitments,
        0 in heard.share_commitments,
        heard.share_commitments.get(0),
    ) == (True, False, None)
    assert (heard.label, heard.graph) == (view.label, view.graph)
    for slot in view.share_commitments:
        assert heard.neighbours(slot) == view.neighbours(slot)
        assert heard.holders(slot) == view.holders(slot)
    with pytest.raises(KeyError):
        heard.share_commitments[0]


def test_sharers_outside_the_cohort_are_refused_in_bytes_too(group: Group) -> None:
    stranger = share_commitments_bytes({N: ShareCommitment(bytes(32), bytes(32))})
    with pytest.raises(ValueError, match="not in the cohort, or a wrong size"):
        Transcript(group.cohort, ShareCommitments.unpack(stranger))


@pytest.mark.parametrize("slots", [(1, 1), (2, 1), (0, 2, 1)])
def test_sharers_out_of_order_are_refused(slots: tuple[int, ...]) -> None:
    rows = [
        share_commitments_bytes({slot: ShareCommitment(bytes(32), bytes(32))}) for slot in slots
    ]
    with pytest.raises(ValueError, match="strictly rise"):
        ShareCommitments.unpack(b"".join(rows))


def test_a_sum_among_those_who_heard_bytes_is_exact(group: Group) -> None:
    group.cohort = told(group.cohort)
    everybody = group.everybody
    assert same(group.total(*[everybody] * 4) or (), group.plain_sum(everybody))
