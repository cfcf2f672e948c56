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
from secagg.oneshot.member import Volunteered, volunteer
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
SUM = CASES["one_shot_sums"][0]
unhex = bytes.fromhex


def each(key: str) -> Any:
    """Return a decorator that runs a test for each case under `key`."""
    names = [
        case.get("comment", "").replace(" ", "-") or str(i) for i, case in enumerate(CASES[key])
    ]
    return pytest.mark.parametrize("case", CASES[key], ids=names)


def session(case: Any = SUM, committee: bytes | None = None) -> OneShotSession:
    registrar = unhex(case["registrar"])
    return OneShotSession(
        Committee.unpack(unhex(case["committee"]) if committee is None else committee),
        Ring((Lane(case["p"], case["length"]),)),
        Registrar(registrar),
        case["minimum"],
        Registry(registrar, unhex(case["scope"])),
    )


def members(case: Any) -> dict[int, Volunteered]:
    """Return the members of a sum, each of which has registered its key."""
    states = {
        member: volunteer(
            Identity.of(unhex(secrets["identity_secret"])), Script(unhex(secrets["key_secret"]))
        )
        for member, secrets in enumerate(case["members"], 1)
    }
    for state in states.values():
        state.register(unhex(case["plan"]), case["number"])
    return states


def test_a_language_whose_numbers_are_floats_reads_them_exactly() -> None:
    assert json.loads(TEXT, parse_int=float) == CASES


@each("packings")
def test_packings(case: dict[str, Any]) -> None:
    packing = PackedRows.of(case["p"], len(case["elements"]))
    row, body = np.array([case["elements"]], np.uint64), unhex(case["packed"])
    assert packing.pack(row).tobytes() == body
    unpacked, is_valid = packing.unpack(np.frombuffer(body, np.uint8)[np.newaxis])
    assert np.array_equal(unpacked, row)
    assert is_valid.all()


@each("no_packings")
def test_no_packings(case: dict[str, Any]) -> None:
    packing, body = PackedRows.of(case["p"], case["length"]), unhex(case["packed"])
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


@each("one_shot_sums")
def test_a_whole_sum_from_its_secrets_to_its_total(case: dict[str, Any]) -> None:
    states, whole = members(case), session(case)
    entries = [state.register(unhex(case["plan"]), case["number"]) for state in states.values()]
    assert tuple(entries) == whole.committee.entries
    assert whole.committee.pack().hex() == case["committee"]
    assert whole.committee.digest.hex() == case["committee_digest"]
    whole.check_authority()
    columns: dict[int, list[bytes]] = {member: [] for member in states}
    for device in case["devices"]:
        sent = DeviceMessage.unpack(unhex(device["message"]), whole)
        check_message(whole, sent)
        chance = Script(unhex(device["random_secret"]))
        identity = Identity.of(unhex(device["identity_secret"]))
        vector = whole.ring.vector([device["vector"]])
        assert make_message(whole, identity, sent.enrolment, vector, chance) == sent
        assert sent.opening(whole).label.hex() == device["label"]
        assert sent.opening(whole).root.hex() == device["root"]
        assert sent.digest(whole).hex() == device["digest"]
        assert [column.hex() for column in sent.columns(whole)] == device["columns"]
        for member, column in zip(states, device["columns"], strict=True):
            columns[member].append(unhex(column))
    included, agreed, signatures, sums = list(map(unhex, case["included"])), {}, {}, {}
    set_digest = unhex(case["set_digest"])
    for member, state in states.items():
        checked, complaints = state.check(whole, columns[member])
        assert complaints == ComplaintList((), unhex(case["complaints"][member - 1]))
        agreed[member], signatures[member] = checked.agree(included)
        assert agreed[member].set_digest == set_digest
        assert signatures[member].hex() == case["set_signatures"][member - 1]
        check_set_signature(whole, member, set_digest, signatures[member])
    for member in states:
        sums[member] = agreed[member].release(signatures)
        assert sums[member].pack().hex() == case["sums"][member - 1]
        check_sum(whole, member, set_digest, sums[member])
    opened = open_sum(whole, sums)
    assert same(opened.total, whole.ring.vector([case["total"]]))
    assert opened.liars == frozenset()


@each("no_shares")
def test_no_shares(case: dict[str, Any]) -> None:
    whole = session()
    message = DeviceMessage.unpack(unhex(case["message"]), whole)
    check_message(whole, message)
    _, complaints = members(SUM)[3].check(whole, [message.column(whole, 3)])
    assert complaints == ComplaintList((unhex(case["digest"]),), unhex(case["complaint"]))


def test_a_false_complaint_is_valid() -> None:
    complaint = ComplaintList((unhex(SUM["included"][0]),), unhex(SUM["false_complaint"]))
    check_complaints(session(), 1, complaint)


@each("no_committees")
def test_no_committees(case: dict[str, str]) -> None:
    with pytest.raises((ValueError, UnsafeRequestError)):
        session(committee=unhex(case["committee"])).check_authority()


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
