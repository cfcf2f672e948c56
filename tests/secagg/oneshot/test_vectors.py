"""The known answers of one-shot sums: `tests/vectors/one_shot.py` derives them a second time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.errors import FaultyParticipantError, UnsafeRequestError
from secagg.keys import Identity
from secagg.oneshot.committee import Committee, OneShotSession, Registrar
from secagg.oneshot.field import PackedRows
from secagg.oneshot.member import volunteer
from secagg.oneshot.member_messages import ComplaintList, MemberSum
from secagg.oneshot.message import DeviceMessage, FaultyMessageError, check_message, make_message
from secagg.oneshot.opening import check_complaints, check_set_signature, check_sum, open_sum
from secagg.oneshot.parameters import committee_parameters, drawn_committee_parameters
from secagg.ring import Lane, Ring
from secagg.session import Registry
from tests.secagg.conftest import Script
from tests.secagg.oneshot.conftest import same
from tests.vectors import generate

TEXT = (Path(generate.__file__).parent / "one_shot.json").read_text()
CASES = json.loads(TEXT)
(SUM,) = CASES["one_shot_sums"]
MEMBERS = range(1, SUM["parameters"][0] + 1)
unhex = bytes.fromhex


def each(key: str) -> Any:
    """Return a decorator that runs a test for each case under `key`."""
    names = [
        case.get("comment", "").replace(" ", "-") or str(i) for i, case in enumerate(CASES[key])
    ]
    return pytest.mark.parametrize("case", CASES[key], ids=names)


def session(committee: bytes | None = None) -> OneShotSession:
    registrar = unhex(SUM["registrar"])
    return OneShotSession(
        Committee.unpack(unhex(SUM["committee"]) if committee is None else committee),
        Ring(tuple(Lane(int(q), length) for q, length in SUM["lanes"])),
        Registrar(registrar),
        SUM["minimum"],
        Registry(registrar, unhex(SUM["scope"])),
    )


def test_a_language_whose_numbers_are_floats_reads_them_exactly() -> None:
    assert json.loads(TEXT, parse_int=float) == CASES


@each("packings")
def test_packings(case: dict[str, Any]) -> None:
    packing = PackedRows.of(int(case["p"]), len(case["elements"]))
    row, body = np.array([list(map(int, case["elements"]))], np.uint64), unhex(case["packed"])
    assert packing.pack(row).tobytes() == body
    unpacked, is_valid = packing.unpack(np.frombuffer(body, np.uint8)[np.newaxis])
    assert np.array_equal(unpacked, row)
    assert is_valid.all()


@each("no_packings")
def test_no_packings(case: dict[str, Any]) -> None:
    packing, body = PackedRows.of(int(case["p"]), case["length"]), unhex(case["packed"])
    assert len(body) == packing.nbytes
    assert not packing.unpack(np.frombuffer(body, np.uint8)[np.newaxis])[1].any()


@each("committees")
def test_parameters_of_committees(case: dict[str, Any]) -> None:
    p = committee_parameters(case["members"], case["corrupt"], case["dropout"])
    assert [p.members, p.corrupt, p.dropouts, p.threshold] == case["numbers"]
    numbers = p.packed_secrets, p.needed_signatures
    assert numbers == (case["packed_secrets"], case["signatures"])


@each("drawn_committees")
def test_parameters_of_drawn_committees(case: dict[str, Any]) -> None:
    rates = case["corrupt"], case["dropout"]
    p = drawn_committee_parameters(case["members"], *rates, case["population"])
    assert [p.members, p.corrupt, p.dropouts, p.threshold] == case["numbers"]


@each("infeasible_committees")
def test_infeasible_committees(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"cannot agree|no room"):
        committee_parameters(case["members"], case["corrupt"], case["dropout"])


def test_a_whole_sum_from_its_secrets_to_its_total() -> None:
    states = {
        member: volunteer(
            Identity.of(unhex(secrets["identity_secret"])), Script(unhex(secrets["key_secret"]))
        )
        for member, secrets in zip(MEMBERS, SUM["members"], strict=True)
    }
    whole = session()
    entries = [state.register(unhex(SUM["plan"]), SUM["number"]) for state in states.values()]
    assert tuple(entries) == whole.committee.entries
    assert whole.committee.pack().hex() == SUM["committee"]
    assert whole.committee.digest.hex() == SUM["committee_digest"]
    whole.check_authority()
    columns: dict[int, list[bytes]] = {member: [] for member in MEMBERS}
    for case in SUM["devices"]:
        sent = DeviceMessage.unpack(unhex(case["message"]), whole)
        check_message(whole, sent)
        chance = Script(unhex(case["random_secret"]))
        identity = Identity.of(unhex(case["identity_secret"]))
        vector = whole.ring.vector(case["vector"])
        assert make_message(whole, identity, sent.enrolment, vector, chance) == sent
        assert sent.opening(whole).label.hex() == case["label"]
        assert sent.opening(whole).root.hex() == case["root"]
        assert sent.digest(whole).hex() == case["digest"]
        assert [column.hex() for column in sent.columns(whole)] == case["columns"]
        for member, column in zip(MEMBERS, case["columns"], strict=True):
            columns[member].append(unhex(column))
    included, agreed, signatures, sums = list(map(unhex, SUM["included"])), {}, {}, {}
    for member, state in states.items():
        checked, complaints = state.check(whole, columns[member])
        assert complaints == ComplaintList((), unhex(SUM["complaints"][member - 1]))
        agreed[member], signatures[member] = checked.agree(included)
        assert agreed[member].set_digest.hex() == SUM["set_digest"]
        assert signatures[member].hex() == SUM["set_signatures"][member - 1]
        check_set_signature(whole, member, unhex(SUM["set_digest"]), signatures[member])
    for member in MEMBERS:
        sums[member] = agreed[member].release(signatures)
        packed, signature = unhex(SUM["sums"][member - 1])[:-64], SUM["sums"][member - 1][-128:]
        assert sums[member] == MemberSum(packed, unhex(signature))
        check_sum(whole, member, unhex(SUM["set_digest"]), sums[member])
    opened = open_sum(whole, sums)
    assert same(opened.total, whole.ring.vector(SUM["total"]))
    assert opened.liars == frozenset()


def test_a_false_complaint_is_valid() -> None:
    complaint = ComplaintList((unhex(SUM["included"][0]),), unhex(SUM["false_complaint"]))
    check_complaints(session(), 1, complaint)


@each("no_committees")
def test_no_committees(case: dict[str, str]) -> None:
    with pytest.raises((ValueError, UnsafeRequestError)):
        session(unhex(case["committee"])).check_authority()


@each("no_messages")
def test_no_messages(case: dict[str, str]) -> None:
    whole = session()
    with pytest.raises((ValueError, FaultyMessageError)):
        check_message(whole, DeviceMessage.unpack(unhex(case["message"]), whole))


@each("no_member_sums")
def test_no_member_sums(case: dict[str, str]) -> None:
    body = unhex(case["sum"])
    with pytest.raises(FaultyParticipantError):
        check_sum(session(), 1, unhex(SUM["set_digest"]), MemberSum(body[:-64], body[-64:]))
