"""Sums of tests/vectors, message by message, and the refusals in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from secagg import aggregator, unmasking
from secagg.errors import FaultyParticipantError, UnsafeRequestError
from secagg.keys import Identity, KeyPair
from secagg.messages import EncryptedShare, KeyShares, MaskedInput, UnmaskingShares
from secagg.parameters import Assumptions
from secagg.participant import Confirmed, Joined, Masked, Shared
from secagg.ring import Lane, Ring
from secagg.roster import Roster, RosterEntry, ShareCommitment, ShareCommitments
from secagg.session import Registry, Session, Transcript
from tests.secagg.conftest import Script
from tests.vectors import generate

VECTORS_FOLDER = Path(generate.__file__).parent
SUMS = json.loads((VECTORS_FOLDER / "sums.json").read_text())["sums"]
REFUSALS = json.loads((VECTORS_FOLDER / "refusals.json").read_text())
OWN_SLOT = 0
unhex = bytes.fromhex
sums = pytest.mark.parametrize("known", SUMS, ids=[known["mode"] for known in SUMS])


def each(key: str) -> Any:
    cases = REFUSALS[key]
    return pytest.mark.parametrize("case", cases, ids=[case["comment"] for case in cases])


def by_slot(of: dict[str, str]) -> dict[int, bytes]:
    return {int(slot): unhex(body) for slot, body in of.items()}


def packed(commitments: dict[str, list[str]]) -> ShareCommitments:
    return ShareCommitments.of(
        {int(slot): ShareCommitment(*map(unhex, fields)) for slot, fields in commitments.items()}
    )


class _Played:
    """One sum of the file; each method returns a step of it."""

    def __init__(self, known: dict[str, Any], roster: list[str] | None = None) -> None:
        self.known = known
        self.ring = Ring(tuple(Lane(q, length) for q, length in known["lanes"]))
        self._roster = known["roster"] if roster is None else roster

    def session(self) -> Session:
        known = self.known
        rates = (known["corrupt"], known["dropout"], known["sigma"], known["eta"], known["mode"])
        registrar = known["registrar"] and Registry(
            unhex(known["registrar"]), unhex(known["scope"])
        )
        roster = Roster.of([RosterEntry.unpack(unhex(body)) for body in self._roster])
        plan, number = unhex(known["plan"]), known["number"]
        return Session(plan, number, roster, Assumptions(*rates), registrar)

    def secret(self, slot: int, what: str) -> bytes:
        return unhex(self.known["secrets"][slot][what])

    def joined(self, slot: int) -> Joined:
        keys = (KeyPair.of(self.secret(slot, what)) for what in ("mask", "encryption"))
        return Joined(Identity.of(self.secret(slot, "identity")), *keys)

    def shared(self, slot: int, session: Session) -> tuple[Shared, KeyShares]:
        drawn = (self.secret(slot, what) for what in ("graph_nonce", "mask_drawn"))
        return self.joined(slot).share(slot, session, Script(*drawn))

    def transcript(self, session: Session) -> Transcript:
        return Transcript(session, packed(self.known["share_commitments"]))

    def masked(self, slot: int, transcript: Transcript) -> tuple[Masked, MaskedInput]:
        shared, _ = self.shared(slot, transcript.session)
        drawn = (self.secret(slot, what) for what in ("seed", "seed_drawn"))
        vector = self.ring.vector(self.known["secrets"][slot]["vector"])
        return shared.mask(transcript, self.ring, vector, Script(*drawn))

    def confirmed(self, slot: int, transcript: Transcript) -> tuple[Confirmed, bytes]:
        return self.masked(slot, transcript)[0].confirm(self.known["survivors"])

    def received_shares(self, slot: int) -> dict[int, EncryptedShare]:
        result = by_slot(self.known["received_shares"][str(slot)])
        return {dealer: EncryptedShare.unpack(body) for dealer, body in result.items()}


@sums
def test_labels_parameters_and_graph(known: dict[str, Any]) -> None:
    played = _Played(known)
    session = played.session()
    transcript, p = played.transcript(session), session.parameters
    assert [p.n, p.holders, p.threshold, p.neighbours, p.spot_checks] == known["parameters"]
    assert session.label.hex() == known["label"]
    assert transcript.label.hex() == known["transcript_label"]
    assert {
        str(slot): list(transcript.holders(slot)) for slot in transcript.share_commitments
    } == known["holders"]
    assert {
        str(slot): sorted(transcript.neighbours(slot)) for slot in transcript.share_commitments
    } == known["neighbours"]


@sums
def test_each_participant_sends_the_messages_of_the_file(known: dict[str, Any]) -> None:
    played = _Played(known)
    session = played.session()
    transcript = played.transcript(session)
    confirmations = by_slot(known["confirmations"])
    for slot in map(int, known["key_shares"]):
        _, key_shares = played.shared(slot, session)
        assert key_shares.pack().hex() == known["key_shares"][str(slot)]
    for slot in known["survivors"]:
        shared, _ = played.shared(slot, session)
        drawn = (played.secret(slot, what) for what in ("seed", "seed_drawn"))
        vector = played.ring.vector(known["secrets"][slot]["vector"])
        masked, masked_input = shared.mask(transcript, played.ring, vector, Script(*drawn))
        assert masked_input.pack().hex() == known["masked_inputs"][str(slot)]
        confirmed, signature = masked.confirm(known["survivors"])
        assert signature == confirmations[slot]
        unmasking_shares = confirmed.unmask(confirmations, played.received_shares(slot), Script())
        assert unmasking_shares.pack().hex() == known["unmasking_shares"][str(slot)]
        assert not unmasking_shares.invalid_dealers


@sums
def test_the_server_computes_the_sum_of_the_file(known: dict[str, Any]) -> None:
    played = _Played(known)
    session = played.session()
    transcript, ring = played.transcript(session), played.ring
    key_shares = {
        slot: KeyShares.unpack(body) for slot, body in by_slot(known["key_shares"]).items()
    }
    masked_inputs = {
        slot: MaskedInput.unpack(body, ring.nbytes)
        for slot, body in by_slot(known["masked_inputs"]).items()
    }
    for slot, message in key_shares.items():
        aggregator.check_key_shares(session, slot, message)
    for slot, masked_input in masked_inputs.items():
        aggregator.check_masked_input(transcript, slot, masked_input)
    for slot, signature in by_slot(known["confirmations"]).items():
        aggregator.check_confirmation(transcript, slot, frozenset(masked_inputs), signature)
    seeds = {slot: masked_input.seed_shares for slot, masked_input in masked_inputs.items()}
    request = aggregator.collect_masked_inputs(transcript, key_shares, seeds)
    for slot in known["survivors"]:
        assert request.received_shares[slot] == played.received_shares(slot)
    unmasking_shares = {
        slot: UnmaskingShares.unpack(body)
        for slot, body in by_slot(known["unmasking_shares"]).items()
    }
    total = ring.zero()
    for slot, message in unmasking_shares.items():
        aggregator.check_unmasking_shares(request, slot, message)
        ring.add(total, ring.unpack(masked_inputs[slot].vector))
    result = unmasking.unmask(request, ring, unmasking_shares, total)
    assert [lane.tolist() for lane in result.total] == known["total"]
    assert not result.blamed


# What participant 0 of the active sum refuses


@pytest.fixture
def played() -> _Played:
    return _Played(SUMS[0])


@each("rosters")
def test_rosters_to_refuse(case: dict[str, Any]) -> None:
    roster = list(SUMS[0]["roster"])
    for slot, body in case["roster"].items():
        roster[int(slot)] = body
    played = _Played(SUMS[0], roster)
    with pytest.raises((UnsafeRequestError, ValueError)):
        played.shared(OWN_SLOT, played.session())


def request_vector(played: _Played, share_commitments: dict[str, list[str]]) -> None:
    session = played.session()
    shared, _ = played.shared(OWN_SLOT, session)
    transcript = Transcript(session, packed(share_commitments))
    shared.mask(transcript, played.ring, played.ring.zero(), Script())


@each("share_commitments")
def test_share_commitments_to_refuse(played: _Played, case: dict[str, Any]) -> None:
    share_commitments = {**SUMS[0]["share_commitments"], **case["share_commitments"]}
    with pytest.raises(
        (UnsafeRequestError, ValueError), match=r"server|not in the cohort|wrong size"
    ):
        request_vector(played, {slot: of for slot, of in share_commitments.items() if of})


@each("survivors")
def test_survivors_to_refuse(played: _Played, case: dict[str, Any]) -> None:
    masked, _ = played.masked(OWN_SLOT, played.transcript(played.session()))
    with pytest.raises(UnsafeRequestError):
        masked.confirm(case["survivors"])


@each("confirmations")
def test_confirmations_to_refuse(played: _Played, case: dict[str, Any]) -> None:
    confirmed, _ = played.confirmed(OWN_SLOT, played.transcript(played.session()))
    shown = {**SUMS[0]["confirmations"], **case["confirmations"]}
    signatures = by_slot({slot: known for slot, known in shown.items() if known is not None})
    with pytest.raises(UnsafeRequestError):
        confirmed.unmask(signatures, {}, Script())


@each("unknown_dealers")
def test_dealers_to_refuse(played: _Played, case: dict[str, Any]) -> None:
    confirmed, _ = played.confirmed(OWN_SLOT, played.transcript(played.session()))
    encrypted_shares = {case["dealer"]: EncryptedShare.unpack(unhex(case["encrypted_share"]))}
    with pytest.raises(UnsafeRequestError, match="sent me none"):
        confirmed.unmask(by_slot(SUMS[0]["confirmations"]), encrypted_shares, Script())


@each("encrypted_shares")
def test_encrypted_shares_to_report(played: _Played, case: dict[str, Any]) -> None:
    confirmed, _ = played.confirmed(OWN_SLOT, played.transcript(played.session()))
    body = unhex(case["encrypted_share"])
    encrypted_shares = {case["dealer"]: EncryptedShare(body[:32], body[32:])}
    unmasking_shares = confirmed.unmask(
        by_slot(SUMS[0]["confirmations"]), encrypted_shares, Script()
    )
    assert unmasking_shares.invalid_dealers == {case["dealer"]}
    assert (unmasking_shares.seed_shares.keys(), unmasking_shares.key_shares) == ({OWN_SLOT}, {})


@each("to_the_server")
def test_messages_that_the_server_refuses(played: _Played, case: dict[str, Any]) -> None:
    transcript, body, known = played.transcript(played.session()), unhex(case["body"]), SUMS[0]
    slot, ring = case["slot"], played.ring
    masked_inputs = {
        s: MaskedInput.unpack(b, ring.nbytes) for s, b in by_slot(known["masked_inputs"]).items()
    }
    key_shares = {s: KeyShares.unpack(b) for s, b in by_slot(known["key_shares"]).items()}

    def check() -> None:
        if case["step"] == "key-shares":
            aggregator.check_key_shares(transcript.session, slot, KeyShares.unpack(body))
        elif case["step"] == "masked-input":
            masked_input = MaskedInput.unpack(body, ring.nbytes)
            aggregator.check_masked_input(transcript, slot, masked_input)
            ring.unpack(masked_input.vector)
        elif case["step"] == "confirmation":
            aggregator.check_confirmation(transcript, slot, frozenset(masked_inputs), body)
        else:
            seeds = {s: masked_input.seed_shares for s, masked_input in masked_inputs.items()}
            request = aggregator.collect_masked_inputs(transcript, key_shares, seeds)
            aggregator.check_unmasking_shares(request, slot, UnmaskingShares.unpack(body))

    with pytest.raises((FaultyParticipantError, ValueError), match=r"participant 0|below|pad"):
        check()
