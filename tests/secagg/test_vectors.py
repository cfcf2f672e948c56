"""The known answers of tests/vectors: the files are the generator's, and secagg agrees."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from secagg import session
from secagg.errors import InfeasibleError
from secagg.keys import (
    Identity,
    KeyPair,
    Keystream,
    PublicKeys,
    Purpose,
    check_identity,
    is_signed,
    statement,
)
from secagg.masks import MaskedVector
from secagg.messages import (
    Answers,
    Complaints,
    KeyShares,
    MaskedInput,
    SignedInput,
    UnmaskingShares,
    pack_signed_inputs,
    unpack_signed_inputs,
)
from secagg.parameters import Assumptions, Parameters, choose_parameters
from secagg.ring import Lane, Ring
from secagg.roster import ShareCommitment, ShareCommitments
from secagg.seating import CohortSeating, SeatedRound
from secagg.session import NeighbourSelection, Session, Transcript
from secagg.shamir import SHARE_BYTES, correct_errors, is_share, recover_many, split
from secagg.shares import EncryptedShare, SharePair, commit_seed, commit_share
from tests.secagg.conftest import Script
from tests.secagg.lying import seal, unseal
from tests.vectors import generate

VECTORS_FOLDER = Path(generate.__file__).parent
FILES = {name: json.loads((VECTORS_FOLDER / f"{name}.json").read_text()) for name in generate.FILES}
unhex = bytes.fromhex


def each(file: str, *keys: str) -> Any:
    cases = [case for key in keys for case in FILES[file][key]]
    names = [case.get("comment", "").replace(" ", "-") or str(i) for i, case in enumerate(cases)]
    return pytest.mark.parametrize("case", cases, ids=names)


def test_more_cases_are_refused_than_accepted() -> None:
    # Lists of cases that must be refused have a comment in each case.
    cases = [case for file in FILES.values() for key in file for case in file[key]]
    bad = [
        case
        for file in FILES.values()
        for key, cases_of_key in file.items()
        if key.startswith(("no_", "infeasible")) or "refuse" in key or "do_not" in key
        for case in cases_of_key
    ]
    bad += [case for refused in FILES["refusals"].values() for case in refused]
    parameter_cases = len(FILES["parameters"]["parameters"])  # a table, not messages
    assert all(case["comment"] for case in bad)
    assert len(bad) > len(cases) - len(bad) - parameter_cases


# Keys


def purpose(case: dict[str, Any]) -> Purpose:
    return Purpose(unhex(case["label"]), case["name"], case["sender"], case["receiver"])


@each("keys", "agreements")
def test_agreements(case: dict[str, str]) -> None:
    assert KeyPair.of(unhex(case["secret"])).agree(unhex(case["public"])).hex() == case["agreed"]


@each("keys", "derivations")
def test_derivations(case: dict[str, Any]) -> None:
    assert purpose(case).info().hex() == case["info"]
    assert purpose(case).derive(unhex(case["secret"])).hex() == case["key"]


@each("keys", "encrypted_shares")
def test_encrypted_shares(case: dict[str, Any]) -> None:
    secret, share = unhex(case["secret"]), unhex(case["share"])
    assert seal(secret, purpose(case), share).pack().hex() == case["encrypted_share"]
    assert (
        unseal(secret, purpose(case), EncryptedShare.unpack(unhex(case["encrypted_share"])))
        == share
    )


@each("keys", "encrypted_shares_to_refuse")
def test_encrypted_shares_to_refuse(case: dict[str, Any]) -> None:
    encrypted = EncryptedShare.unpack(unhex(case["encrypted_share"]))
    assert unseal(unhex(case["secret"]), purpose(case), encrypted) is None


@each("keys", "keys_to_refuse")
def test_keys_to_refuse(case: dict[str, str]) -> None:
    for keys in ((unhex(case["key"]), b"\7" * 32), (b"\7" * 32, unhex(case["key"]))):
        with pytest.raises(ValueError, match=case["comment"].removeprefix("not ")):
            PublicKeys(*keys)


# Signatures


def signed_bytes(case: dict[str, Any]) -> bytes:
    return statement(case["what"], unhex(case["label"]), case["slot"], unhex(case["payload"]))


@each("signatures", "statements")
def test_statements_and_signatures(case: dict[str, Any]) -> None:
    identity = Identity.of(unhex(case["secret"]))
    assert identity.public.hex() == case["identity"]
    assert signed_bytes(case).hex() == case["statement"]
    assert identity.sign(signed_bytes(case)).hex() == case["signature"]


@each("signatures", "seatings")
def test_seatings(case: dict[str, Any]) -> None:
    registrar = Identity.of(unhex(case["registrar"]))
    plan, identities = unhex(case["plan_digest"]), b"".join(map(unhex, case["identities"]))
    seated_round = SeatedRound(plan, registrar.public, case["joiners"], case["cohorts"])
    assert seated_round.statement(case["cohort"], identities).hex() == case["statement"]
    seating = seated_round.sign(registrar, case["cohort"], identities)
    assert seating.pack().hex() == case["packed"]
    assert CohortSeating.split(unhex(case["packed"]) + b"entries") == (seating, b"entries")


@each("signatures", "no_signatures")
def test_no_signatures(case: dict[str, Any]) -> None:
    assert not is_signed(unhex(case["identity"]), signed_bytes(case), unhex(case["signature"]))


@each("signatures", "identities_to_refuse")
def test_identities_to_refuse(case: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=case["comment"].removeprefix("not ")):
        check_identity(unhex(case["identity"]))


# Sharing


def numbered(case: dict[str, Any]) -> dict[int, bytes]:
    return {int(x): unhex(share) for x, share in case["shares"].items()}


@each("sharing", "splits")
def test_splits(case: dict[str, Any]) -> None:
    chance = Script(unhex(case["drawn"]))
    result = split(unhex(case["secret"]), len(case["shares"]), case["threshold"], chance)
    assert [share.hex() for share in result] == case["shares"]


@each("sharing", "recoveries", "no_secrets")
def test_recoveries(case: dict[str, Any]) -> None:
    secret, shares = case.get("secret"), sorted(numbered(case).items())
    rows = np.frombuffer(b"".join(share for _, share in shares), np.uint8)
    result = recover_many(rows.reshape(1, -1, SHARE_BYTES), np.array([[x for x, _ in shares]]))
    assert result == [unhex(secret) if secret else None]


@each("sharing", "corrections")
def test_corrections(case: dict[str, Any]) -> None:
    expected = (unhex(case["secret"]), frozenset(case["false"]))
    assert correct_errors(numbered(case), case["threshold"]) == expected


@each("sharing", "no_corrections")
def test_no_corrections(case: dict[str, Any]) -> None:
    assert correct_errors(numbered(case), case["threshold"]) is None


@each("sharing", "no_shares")
def test_no_shares(case: dict[str, str]) -> None:
    assert not is_share(unhex(case["share"]))


# The graph


@each("neighbours", "graphs")
def test_graphs(case: dict[str, Any]) -> None:
    shape = Parameters(case["n"], case["holders"], 2, 0, 0)
    selection = NeighbourSelection(unhex(case["label"]), shape)
    participants = {int(slot): of for slot, of in case["participants"].items()}
    nonces = {slot: unhex(of["graph_nonce"]) for slot, of in participants.items()}
    for slot, of in participants.items():
        assert list(selection.holders(slot, nonces[slot])) == of["holders"]
        assert sorted(selection.neighbours(slot, nonces)) == of["neighbours"]


@each("neighbours", "holders")
def test_holders_among_many(case: dict[str, Any]) -> None:
    k = len(case["holders"])
    selection = NeighbourSelection(unhex(case["label"]), Parameters(case["n"], k, 2, 0, 0))
    assert list(selection.holders(case["slot"], unhex(case["graph_nonce"]))) == case["holders"]


# Vectors


def ring(case: dict[str, Any]) -> Ring:
    return Ring(tuple(Lane(q, length) for q, length in case["lanes"]))


@each("vectors", "masks")
def test_masks(case: dict[str, Any]) -> None:
    mask = MaskedVector(ring(case), ring(case).zero())
    mask.add(Keystream(unhex(case["key"])))
    assert [lane.tolist() for lane in mask.lanes] == case["mask"]
    stream = Keystream(unhex(case["key"]))
    assert [lane.uniform(stream).tolist() for lane in ring(case).lanes] == case["mask"]


@each("vectors", "vectors")
def test_vectors(case: dict[str, Any]) -> None:
    lanes = [np.array(lane, np.uint64) for lane in case["vector"]]
    assert ring(case).pack(ring(case).vector(lanes)).hex() == case["packed"]
    vector = ring(case).unpack(unhex(case["packed"]))
    assert [lane.tolist() for lane in vector] == case["vector"]


@each("vectors", "no_vectors")
def test_no_vectors(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"bytes|below|pad"):
        ring(case).unpack(unhex(case["packed"]))


# Parameters


def assumptions(case: dict[str, Any]) -> Assumptions:
    names = ("corrupt", "dropout", "sigma", "eta")
    return Assumptions(*(case[name] for name in names))


@each("parameters", "parameters")
def test_parameters(case: dict[str, Any]) -> None:
    result = choose_parameters(case["n"], assumptions(case))
    for name in ("holders", "threshold", "spot_checks"):
        assert getattr(result, name) == case[name]


@each("parameters", "infeasible")
def test_infeasible(case: dict[str, Any]) -> None:
    with pytest.raises(InfeasibleError):
        choose_parameters(case["n"], assumptions(case))


# Labels and messages


@each("labels", "sessions")
def test_labels_of_sessions(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # The entries are any bytes, and the parameters any numbers: only the layout matters.
    monkeypatch.setattr(session, "choose_parameters", lambda *_: Parameters(*case["parameters"], 0))
    roster: Any = MagicMock(body=b"".join(map(unhex, case["roster"])))
    roster.__len__.return_value = len(case["roster"])
    result = Session(unhex(case["plan"]), case["number"], roster, Assumptions(0, 0))
    assert result.label.hex() == case["label"]


@each("labels", "transcripts")
def test_labels_of_transcripts(case: dict[str, Any]) -> None:
    class Labelled:
        label, n = unhex(case["session"]), 3

    commitments = {
        int(slot): ShareCommitment(*map(unhex, parts))
        for slot, parts in case["share_commitments"].items()
    }
    transcript = Transcript(Labelled(), ShareCommitments.of(commitments))  # type: ignore[arg-type]
    assert transcript.label.hex() == case["label"]


@each("labels", "commitments")
def test_commitments(case: dict[str, str]) -> None:
    if "seed" in case:
        assert commit_seed(unhex(case["seed"])).hex() == case["commitment"]
    else:
        assert commit_share(unhex(case["share"])).hex() == case["commitment"]


def by_slot(of: dict[str, str]) -> dict[int, bytes]:
    return {int(slot): unhex(body) for slot, body in of.items()}


def check_bytes(
    message: KeyShares | Complaints | Answers | MaskedInput | UnmaskingShares, case: dict[str, Any]
) -> None:
    assert message.pack().hex() == case["packed"]
    assert type(message).unpack(unhex(case["packed"])) == message


@each("messages", "key_shares")
def test_key_shares(case: dict[str, Any]) -> None:
    names = ("graph_nonce", "seed_commitment", "own_share_commitment")
    pairs = tuple(SharePair.unpack(unhex(pair)) for pair in case["share_pairs"])
    parts = (unhex(case[name]) for name in names)
    message = KeyShares(*parts, pairs, unhex(case["signature"]))
    check_bytes(message, case)
    assert len(message.pack()) == KeyShares.nbytes(len(pairs))
    assert message.share_commitment.shares_digest.hex() == case["digest"]


@each("messages", "complaints")
def test_complaints(case: dict[str, Any]) -> None:
    message = Complaints(by_slot(case["signatures"]), unhex(case["signature"]))
    check_bytes(message, case)
    assert len(message.pack()) == Complaints.nbytes(len(message.signatures))


@each("messages", "answers")
def test_answers(case: dict[str, Any]) -> None:
    keys, seeds = by_slot(case["key_shares"]), by_slot(case["seed_shares"])
    message = Answers(keys, seeds, unhex(case["signature"]))
    check_bytes(message, case)
    assert len(message.pack()) == Answers.nbytes(len(keys))


@each("messages", "masked_inputs")
def test_masked_inputs(case: dict[str, Any]) -> None:
    message = MaskedInput(unhex(case["vector"]), unhex(case["signature"]))
    check_bytes(message, case)
    assert message.signed_input.digest.hex() == case["digest"]


def test_signed_inputs() -> None:
    first, last = SignedInput(b"d" * 32, b"s" * 64), SignedInput(b"D" * 32, b"S" * 64)
    records = b"\0\0\0\3" + b"".join(first), b"\0\0\1\0" + b"".join(last)
    signed = {256: last, 3: first}
    assert pack_signed_inputs(signed) == b"".join(records)
    assert unpack_signed_inputs(b"".join(records)) == signed
    assert SignedInput.unpack(b"".join(first)) == first
    for broken in (records[0][:-1], b"".join(records[::-1])):
        with pytest.raises(ValueError, match=r"signed inputs (take 100 bytes|must strictly rise)"):
            unpack_signed_inputs(broken)


@each("messages", "unmasking_shares")
def test_unmasking_shares(case: dict[str, Any]) -> None:
    seeds, keys = (
        {int(dealer): unhex(share) for dealer, share in case[kind].items()}
        for kind in ("seed_shares", "key_shares")
    )
    message = UnmaskingShares(seeds, keys, unhex(case["signature"]))
    check_bytes(message, case)
    assert len(message.pack()) == UnmaskingShares.nbytes(len(seeds) + len(keys))


UNPACK: dict[str, Callable[[bytes], object]] = {
    "no_key_shares": KeyShares.unpack,
    "no_complaints": Complaints.unpack,
    "no_answers": Answers.unpack,
    "no_masked_inputs": MaskedInput.unpack,
    "no_unmasking_shares": UnmaskingShares.unpack,
}
MALFORMED = [(unpack, case) for key, unpack in UNPACK.items() for case in FILES["messages"][key]]


@pytest.mark.parametrize(("unpack", "case"), MALFORMED, ids=[c["comment"] for _, c in MALFORMED])
def test_malformed_messages(unpack: Callable[[bytes], object], case: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"bytes|short|rise|kind"):
        unpack(unhex(case["packed"]))


@pytest.mark.parametrize("size", [0, 64, 66])
def test_an_encrypted_share_has_65_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="65 bytes"):
        EncryptedShare.unpack(bytes(size))


@pytest.mark.parametrize("size", [0, 63, 64])
def test_a_masked_input_has_a_vector_and_a_signature(size: int) -> None:
    with pytest.raises(ValueError, match="too short"):
        MaskedInput.unpack(bytes(size))


@pytest.mark.parametrize("name", generate.FILES)
def test_a_file_is_what_the_generator_writes(name: str) -> None:
    assert (VECTORS_FOLDER / f"{name}.json").read_text() == generate.text(name)
