"""The known answers of plans.json and hashing.json: what is derived and read above `secagg`."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.api.credentials import possession_statement
from protocol.api.messages_outside_sums import SignedReport
from protocol.domains.hashed import Hashed
from protocol.hashing import HashFamily
from protocol.mechanisms.registry import parse_plan, read_plan
from protocol.mechanisms.tracked.counters import CounterGroup, Counters
from protocol.report_mechanism import REPORTS_SCOPE
from secagg.keys import Identity
from secagg.messages import (
    SignedInput,
    pack_signatures,
    pack_signed_inputs,
    unpack_signatures,
    unpack_signed_inputs,
)
from secagg.roster import ShareCommitment, ShareCommitments, share_commitments_bytes
from secagg.shares import ReceivedShares, SharePair, received_shares_bytes
from tests.vectors import generate

FOLDER = Path(generate.__file__).parent
CASES = json.loads((FOLDER / "plans.json").read_text())
CASES |= json.loads((FOLDER / "hashing.json").read_text())
UNPACK: dict[str, Any] = {
    "share-commitments": ShareCommitments,
    "confirmations": unpack_signatures,
    "encrypted-shares": ReceivedShares.unpack,
    "signed-inputs": unpack_signed_inputs,
}
PACK: dict[str, Any] = {
    "share-commitments": lambda records: share_commitments_bytes(
        {s: ShareCommitment(b[:32], b[32:]) for s, b in records.items()}
    ),
    "confirmations": pack_signatures,
    "encrypted-shares": lambda records: received_shares_bytes(
        {s: SharePair.unpack(b) for s, b in records.items()}
    ),
    "signed-inputs": lambda records: pack_signed_inputs(
        {s: SignedInput(b[:32], b[32:]) for s, b in records.items()}
    ),
}
unhex = bytes.fromhex


def each(key: str) -> Any:
    return pytest.mark.parametrize("case", CASES[key])


@each("plans")
def test_digests_of_plans(case: dict[str, Any]) -> None:
    plan = read_plan(case["text"])
    assert (plan.canonical_text(), plan.digest().hex()) == (case["text"], case["digest"])


@each("no_plans")
def test_texts_that_are_no_plan(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"canonical form|validation error"):
        read_plan(case["text"])


@each("scopes")
def test_scopes(case: dict[str, Any]) -> None:
    plan = parse_plan(case["plan"])
    scope = plan.question.enrolment_scope(plan.study, plan.terms, plan.rounds)
    assert scope.hex() == case["scope"]


@each("scopes_of_reports")
def test_scope_of_reports(case: dict[str, str]) -> None:
    assert case["scope"] == REPORTS_SCOPE.hex()


@each("possessions")
def test_possession_of_a_credential(case: dict[str, str]) -> None:
    assert (
        possession_statement(sha256(unhex(case["credential"])).digest()).hex() == case["statement"]
    )


@each("downloads")
def test_downloads_of_a_device(case: dict[str, Any]) -> None:
    records = {int(slot): unhex(body) for slot, body in case["records"].items()}
    unpacked = UNPACK[case["kind"]](unhex(case["packed"]))
    assert list(unpacked) == sorted(records)
    assert PACK[case["kind"]](records).hex() == case["packed"]
    assert (
        PACK[case["kind"]]({slot: raw(unpacked[slot]) for slot in unpacked}).hex() == case["packed"]
    )


def raw(record: bytes | ShareCommitment | SharePair | SignedInput) -> bytes:
    if isinstance(record, bytes):
        return record
    if isinstance(record, SignedInput):
        return b"".join(record)
    return record.signed_bytes() if isinstance(record, ShareCommitment) else record.pack()


@each("no_downloads")
def test_malformed_downloads_are_refused(case: dict[str, str]) -> None:
    what = {
        "share-commitments": "share commitments",
        "confirmations": "signatures",
        "encrypted-shares": "share pairs",
        "signed-inputs": "signed inputs",
    }[case["kind"]]
    with pytest.raises(ValueError, match=rf"not a multiple|slots of {what} must strictly rise"):
        UNPACK[case["kind"]](unhex(case["packed"]))


@each("reports")
def test_reports(case: dict[str, str]) -> None:
    identity, enrolment = Identity.of(unhex(case["secret"])), unhex(case["enrolment"])
    made = SignedReport.sign(identity, unhex(case["digest"]), unhex(case["report"]), enrolment)
    assert made.pack().hex() == case["packed"]
    read = SignedReport.unpack(identity.public, made.pack(), len(made.body), bool(enrolment))
    assert read == made
    assert read.has_valid_signature


@each("hash_families")
def test_hash_families(case: dict[str, Any]) -> None:
    keys, words = np.array(case["hashed"], np.uint64), np.array(case["words"], np.uint64)
    family = HashFamily(unhex(case["seed"]), case["purpose"], keys.shape[1], words.shape[1])
    assert family.coefficients.tolist() == [int(x) for x in case["coefficients"]]
    assert family.keys.ravel().tolist() == [int(x) for x in case["keys"]]
    assert family.fingerprint(keys).tolist() == [int(x) for x in case["fingerprints"]]
    assert (family.hash(keys) == words).all()


@each("counter_weights")
def test_weights_of_counters(case: dict[str, Any]) -> None:
    sizes = [len(group) for group in case["weights"]]
    groups = tuple(
        CounterGroup(bits=1 + row, items=tuple(f"{row} {place}" for place in range(size)))
        for row, size in enumerate(sizes)
    )
    counters = Counters(groups, 9, unhex(case["seed"]))
    # The check of a single count of 1 is the item's weight.
    weights = [weight for group in case["weights"] for weight in group]
    for counts, weight in zip(np.eye(len(weights), dtype=np.int64), weights, strict=True):
        assert sum(int(check[0]) for check in counters.encode(counts)[2::3]) == weight


@each("item_keys")
def test_names_of_hashed_items(case: dict[str, Any]) -> None:
    domain = Hashed(max_bytes=40, key_bits=case["key_bits"], salt=case["salt"])
    assert domain.name(case["item"]) == case["name"]
