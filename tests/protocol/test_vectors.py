"""The known answers of tests/vectors/plans.json: what is derived and read above `secagg`."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from protocol.credentials import possession
from protocol.mechanism import enrolment_scope
from protocol.mechanisms import parse_plan
from protocol.messages import (
    pack_confirmations,
    pack_parcels,
    pack_sharers,
    unpack_confirmations,
    unpack_parcels,
    unpack_sharers,
)
from protocol.report import Report
from secagg.cohort import Sharer
from secagg.keys import Identity
from secagg.parcels import Parcel
from tests.vectors import generate

PLANS = json.loads((Path(generate.__file__).parent / "plans.json").read_text())
UNPACK: dict[str, Any] = {
    "sharers": unpack_sharers,
    "confirmations": unpack_confirmations,
    "parcels": unpack_parcels,
}
PACK: dict[str, Any] = {
    "sharers": lambda said: pack_sharers({s: Sharer(b[:32], b[32:]) for s, b in said.items()}),
    "confirmations": pack_confirmations,
    "parcels": lambda said: pack_parcels({s: Parcel.unpack(b) for s, b in said.items()}),
}
unhex = bytes.fromhex


def each(key: str) -> Any:
    """Return a decorator that runs a test for each case under `key`."""
    return pytest.mark.parametrize("case", PLANS[key])


@each("plans")
def test_digests_of_plans(case: dict[str, Any]) -> None:
    assert parse_plan(case["plan"]).digest().hex() == case["digest"]


@each("scopes")
def test_scopes(case: dict[str, str]) -> None:
    assert enrolment_scope(case["study"]).hex() == case["scope"]


@each("possessions")
def test_possession_of_a_credential(case: dict[str, str]) -> None:
    assert possession(sha256(unhex(case["credential"])).digest()).hex() == case["said"]


@each("heard")
def test_what_a_device_hears(case: dict[str, Any]) -> None:
    said = {int(slot): unhex(body) for slot, body in case["said"].items()}
    found = UNPACK[case["kind"]](unhex(case["packed"]))
    assert list(found) == sorted(said)
    assert PACK[case["kind"]](said).hex() == case["packed"]
    assert PACK[case["kind"]]({slot: raw(found[slot]) for slot in found}).hex() == case["packed"]


def raw(said: bytes | Sharer | Parcel) -> bytes:
    if isinstance(said, bytes):
        return said
    return said.said() if isinstance(said, Sharer) else said.pack()


@each("no_heard")
def test_what_is_no_list(case: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"multiple|rise"):
        UNPACK[case["kind"]](unhex(case["packed"]))


@each("reports")
def test_reports(case: dict[str, str]) -> None:
    identity, enrolment = Identity.of(unhex(case["secret"])), unhex(case["enrolment"])
    made = Report.sign(identity, unhex(case["digest"]), unhex(case["report"]), enrolment)
    assert made.pack().hex() == case["packed"]
    read = Report.unpack(identity.public, made.pack(), len(made.body), bool(enrolment))
    assert read == made
    assert read.is_signed
