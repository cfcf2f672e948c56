"""Bodies come back as they were, and what nobody may say cannot be said."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.domain import Utf8
from protocol.mechanism import Terms
from protocol.mechanisms import MECHANISMS, AnyPlan
from protocol.mechanisms.adaptive_iblt import AdaptiveIbltQuestion
from protocol.messages import (
    Join,
    Problem,
    ProblemType,
    Timeouts,
    pack_confirmations,
    pack_parcels,
    pack_roster,
    pack_sharers,
    unpack_confirmations,
    unpack_parcels,
    unpack_roster,
    unpack_sharers,
)
from secagg.cohort import Entry, Sharer, advertisement
from secagg.keys import PublicKeys
from secagg.parcels import Parcel

SLOTS = st.integers(0, 2**32 - 1)


def octets(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


KEYS = octets(30).map(lambda middle: b"\x09" + middle + b"\1")  # of no low order
ENTRIES = st.tuples(KEYS, KEYS, KEYS).filter(lambda keys: keys[1] != keys[2])
SHARERS = st.builds(Sharer, octets(32), octets(32))
PARCELS = st.builds(Parcel, octets(32), octets(33))


@given(st.lists(ENTRIES, max_size=5), st.booleans(), octets(64))
def test_a_roster_comes_back(
    keys: list[tuple[bytes, bytes, bytes]], has_registrar: bool, enrolment: bytes
) -> None:
    signed = enrolment if has_registrar else b""
    roster = tuple(Entry(one, PublicKeys(*pair), bytes(64), signed) for one, *pair in keys)
    body = pack_roster(roster)
    assert len(body) == (224 if has_registrar else 160) * len(keys)  # as docs/protocol.md says
    assert tuple(unpack_roster(body, has_registrar=has_registrar)) == roster


@given(st.dictionaries(SLOTS, SHARERS))
def test_sharers_come_back(sharers: dict[int, Sharer]) -> None:
    body = pack_sharers(sharers)
    assert len(body) == 68 * len(sharers)
    assert unpack_sharers(body) == sharers


@given(st.dictionaries(SLOTS, octets(64)))
def test_confirmations_come_back(signatures: dict[int, bytes]) -> None:
    body = pack_confirmations(signatures)
    assert len(body) == 68 * len(signatures)
    assert unpack_confirmations(body) == signatures


@given(st.dictionaries(SLOTS, PARCELS))
def test_parcels_come_back(parcels: dict[int, Parcel]) -> None:
    body = pack_parcels(parcels)
    assert len(body) == 69 * len(parcels)
    assert unpack_parcels(body) == parcels


def entry(number: int) -> Entry:
    def key(which: int) -> bytes:
        return bytes([9, number, which, *[0] * 29])

    return Entry(key(1), PublicKeys(key(2), key(3)), bytes(64))


BODIES: dict[str, tuple[Callable[[int], bytes], Callable[[bytes], Any]]] = {
    "sharers": (lambda s: pack_sharers({s: Sharer(bytes(32), bytes(32))}), unpack_sharers),
    "confirmations": (lambda s: pack_confirmations({s: bytes(64)}), unpack_confirmations),
    "parcels": (lambda s: pack_parcels({s: Parcel(bytes(32), bytes(33))}), unpack_parcels),
}


@pytest.mark.parametrize("what", BODIES)
def test_slots_must_strictly_rise(what: str) -> None:
    pack, unpack = BODIES[what]
    assert list(unpack(pack(1) + pack(2))) == [1, 2]
    for body in (pack(1) + pack(1), pack(2) + pack(1)):
        with pytest.raises(ValueError, match=f"slots of {what} must strictly rise"):
            unpack(body)


@pytest.mark.parametrize("what", BODIES)
def test_a_body_of_half_a_record_is_refused(what: str) -> None:
    pack, unpack = BODIES[what]
    for body in (b"x", pack(1)[:-1], pack(1) + b"x"):
        with pytest.raises(ValueError, match="no multiple"):
            unpack(body)


def test_a_roster_is_read_with_enrolments_or_without_but_never_otherwise() -> None:
    body = pack_roster([entry(1)])
    with pytest.raises(ValueError, match="224 bytes each"):
        unpack_roster(body, has_registrar=True)
    for broken in (body[:-1], body + b"x"):
        with pytest.raises(ValueError, match="160 bytes each"):
            unpack_roster(broken, has_registrar=False)


@pytest.mark.parametrize("place", [0, 32, 64])
def test_a_roster_with_a_key_of_low_order_is_refused(place: int) -> None:
    body = pack_roster([entry(1)])
    weak = body[:place] + (1).to_bytes(32, "little") + body[place + 32 :]
    with pytest.raises(ValueError, match="low order"):
        unpack_roster(weak, has_registrar=False)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    readers = [unpack for _, unpack in BODIES.values()]
    readers += [lambda body: unpack_roster(body, has_registrar=True)]
    for unpack in readers:
        try:
            unpack(body)
        except ValueError:
            continue


KEY = "ab" * 32
JOIN = {"identity": KEY, "mask_key": KEY, "seal_key": KEY, "signature": KEY * 2}


@pytest.mark.parametrize(
    "fault",
    [
        {"identity": KEY[:-1]},
        {"identity": "device-1"},
        {"mask_key": KEY[:-1]},
        {"mask_key": KEY.upper()},
        {"mask_key": "zz" * 32},
        {"seal_key": KEY + "00"},
        {"signature": KEY},
        {"signature": None},
        {"enrolment": KEY},
        {"surprise": 1},
    ],
)
def test_a_join_with_any_fault_is_refused(fault: dict[str, object]) -> None:
    Join.model_validate(JOIN)
    Join.model_validate({**JOIN, "enrolment": KEY * 2})
    with pytest.raises(ValidationError):
        Join.model_validate({**JOIN, **fault})


def test_who_joins_signs_for_one_plan_and_one_pair_of_keys() -> None:
    keys = entry(1).keys
    mine = advertisement(PLAN.digest(), keys)
    others = [
        advertisement(PLAN.model_copy(update={"round": 2}).digest(), keys),
        advertisement(PLAN.digest(), entry(2).keys),
        advertisement(PLAN.digest(), PublicKeys(keys.seal, keys.mask)),
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
        "forbidden",
        "headers-too-large",
        "internal-error",
        "key-reused",
        "left-out",
        "malformed",
        "method-not-allowed",
        "no-round",
        "not-authorised",
        "not-enrolled",
        "not-found",
        "other-plan",
        "too-large",
        "too-many-requests",
        "too-slow",
        "unavailable",
        "wrong-media-type",
        "wrong-phase",
        "wrong-state",
    ]
    assert Problem(type="t", title="t", status=400, detail="d").errors is None
