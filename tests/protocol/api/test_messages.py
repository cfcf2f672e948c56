"""Bodies come back as they were, and messages that no party may send cannot be built."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.api.messages import JoinRequest, Problem, ProblemType, Timeouts
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.registry import MECHANISMS, AnyPlan
from protocol.study import Terms
from secagg.keys import PublicKeys
from secagg.messages import (
    EncryptedShare,
    ReceivedShares,
    pack_confirmations,
    received_shares_bytes,
    unpack_confirmations,
)
from secagg.roster import (
    Roster,
    RosterEntry,
    ShareCommitment,
    ShareCommitments,
    roster_bytes,
    share_commitments_bytes,
)
from secagg.session import advertisement_statement

SLOTS = st.integers(0, 2**32 - 1)


def octets(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


KEYS = octets(30).map(lambda middle: b"\x09" + middle + b"\1")  # of no low order
ENTRIES = st.tuples(KEYS, KEYS, KEYS).filter(lambda keys: keys[1] != keys[2])
SHARERS = st.builds(ShareCommitment, octets(32), octets(32))
ENCRYPTED_SHARES = st.builds(EncryptedShare, octets(32), octets(33))


@given(st.lists(ENTRIES, max_size=5), st.booleans(), octets(64))
def test_a_roster_comes_back(
    keys: list[tuple[bytes, bytes, bytes]], has_registrar: bool, enrolment: bytes
) -> None:
    signed = enrolment if has_registrar else b""
    roster = tuple(
        RosterEntry(identity, PublicKeys(*pair), bytes(64), signed) for identity, *pair in keys
    )
    body = roster_bytes(roster)
    assert len(body) == (224 if has_registrar else 160) * len(keys)  # as in docs/protocol.md
    assert tuple(Roster.unpack(body, has_registrar=has_registrar)) == roster


@pytest.mark.parametrize(
    ("records", "nbytes", "pack", "unpack"),
    [
        (SHARERS, 68, share_commitments_bytes, ShareCommitments.unpack),
        (octets(64), 68, pack_confirmations, unpack_confirmations),
        (ENCRYPTED_SHARES, 69, received_shares_bytes, ReceivedShares.unpack),
    ],
)
@given(data=st.data())
def test_records_by_slot_come_back(
    records: Any, nbytes: int, pack: Any, unpack: Any, data: st.DataObject
) -> None:
    by_slot = data.draw(st.dictionaries(SLOTS, records))
    assert len(pack(by_slot)) == nbytes * len(by_slot)
    assert unpack(pack(by_slot)) == by_slot


def entry(number: int) -> RosterEntry:
    def key(which: int) -> bytes:
        return bytes([9, number, which, *[0] * 29])

    return RosterEntry(key(1), PublicKeys(key(2), key(3)), bytes(64))


def test_a_roster_is_read_with_enrolments_or_without_but_never_otherwise() -> None:
    body = roster_bytes([entry(1)])
    with pytest.raises(ValueError, match="224 bytes each"):
        Roster.unpack(body, has_registrar=True)
    for broken in (body[:-1], body + b"x"):
        with pytest.raises(ValueError, match="160 bytes each"):
            Roster.unpack(broken, has_registrar=False)


@pytest.mark.parametrize("place", [0, 32, 64])
def test_a_roster_with_a_key_of_low_order_is_refused(place: int) -> None:
    body = roster_bytes([entry(1)])
    weak = body[:place] + (1).to_bytes(32, "little") + body[place + 32 :]
    with pytest.raises(ValueError, match="low order"):
        Roster.unpack(weak, has_registrar=False)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    readers = [ShareCommitments.unpack, unpack_confirmations, ReceivedShares.unpack]
    for unpack in (*readers, lambda body: Roster.unpack(body, has_registrar=True)):
        try:
            unpack(body)
        except ValueError:
            continue


KEY = "ab" * 32
JOIN = {"identity": KEY, "mask_key": KEY, "encryption_key": KEY, "signature": KEY * 2}


@pytest.mark.parametrize(
    "fault",
    [
        {"identity": KEY[:-1]},
        {"identity": "device-1"},
        {"mask_key": KEY[:-1]},
        {"mask_key": KEY.upper()},
        {"mask_key": "zz" * 32},
        {"encryption_key": KEY + "00"},
        {"signature": KEY},
        {"signature": None},
        {"registrar_signature": KEY},
        {"surprise": 1},
    ],
)
def test_a_join_with_any_fault_is_refused(fault: dict[str, object]) -> None:
    JoinRequest.model_validate(JOIN)
    JoinRequest.model_validate({**JOIN, "registrar_signature": KEY * 2})
    with pytest.raises(ValidationError):
        JoinRequest.model_validate({**JOIN, **fault})


def test_who_joins_signs_for_one_plan_and_one_pair_of_keys() -> None:
    keys = entry(1).keys
    mine = advertisement_statement(PLAN.digest(), keys)
    others = [
        advertisement_statement(PLAN.model_copy(update={"round": 2}).digest(), keys),
        advertisement_statement(PLAN.digest(), entry(2).keys),
        advertisement_statement(PLAN.digest(), PublicKeys(keys.encryption, keys.mask)),
    ]
    assert len({mine, *others}) == len(others) + 1


PLAN: AnyPlan = MECHANISMS["adaptive-iblt"].first_plan(
    AdaptiveIbltQuestion(threshold=5, contribution=4, domain=Utf8(max_bytes=6), words=1500),
    Terms(cohort_size=10, minimum=8),
    "study",
    1,
    Random(1),
)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 8 * 24 * 3600])
@pytest.mark.parametrize("phase", ["enrolling", "sharing", "masking", "confirming", "unmasking"])
def test_a_phase_lasts_a_positive_finite_time(phase: str, seconds: float) -> None:
    with pytest.raises(ValidationError):
        Timeouts.model_validate({phase: seconds})


def test_problem_types_are_stable() -> None:
    # Programs act on these: renaming one breaks them.
    assert sorted(ProblemType) == [
        "already-counted",
        "barred",
        "budget-spent",
        "cohort-failed",
        "conflict",
        "dropped-out",
        "forbidden",
        "headers-too-large",
        "idempotency-key-reused",
        "internal-error",
        "malformed",
        "method-not-allowed",
        "no-round",
        "not-authorised",
        "not-enrolled",
        "not-found",
        "plan-mismatch",
        "too-large",
        "too-many-requests",
        "too-slow",
        "unavailable",
        "wrong-media-type",
        "wrong-phase",
        "wrong-state",
    ]
    assert Problem(type="t", title="t", status=400, detail="d").errors is None
