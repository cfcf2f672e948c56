"""Sums of tests/vectors, message by message, and the refusals in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from secagg import aggregator, unmasking
from secagg.errors import FaultyParticipantError, UnsafeRequestError
from secagg.keys import Identity, KeyPair
from secagg.messages import (
    Answers,
    Complaints,
    KeyShares,
    MaskedInput,
    SignedInput,
    UnmaskingShares,
)
from secagg.parameters import Assumptions
from secagg.participant import Checked, Confirmed, Joined, Masked, Shared
from secagg.ring import Lane, Ring
from secagg.roster import Roster, RosterEntry, ShareCommitment, ShareCommitments
from secagg.session import Registry, Session, Transcript
from secagg.shares import SharePair
from tests.secagg.conftest import Script
from tests.vectors import generate

VECTORS_FOLDER = Path(generate.__file__).parent
SUMS = json.loads((VECTORS_FOLDER / "sums.json").read_text())["sums"]
REFUSALS = json.loads((VECTORS_FOLDER / "refusals.json").read_text())
OWN_SLOT = 0
unhex = bytes.fromhex
sums = pytest.mark.parametrize("known", SUMS, ids=[known["comment"] for known in SUMS])


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
        rates = (known["corrupt"], known["dropout"], known["sigma"], known["eta"])
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
        names = ("graph_nonce", "seed", "mask_drawn", "seed_drawn")
        drawn = (self.secret(slot, what) for what in names)
        return self.joined(slot).share(slot, session, Script(*drawn))

    def checked(self, slot: int, session: Session) -> tuple[Checked, Complaints]:
        return self.shared(slot, session)[0].check(self.received_shares(slot))

    def transcript(self, session: Session) -> Transcript:
        return Transcript(session, packed(self.known["share_commitments"]))

    def masked(self, slot: int, transcript: Transcript) -> tuple[Masked, MaskedInput]:
        checked, _ = self.checked(slot, transcript.session)
        vector = self.ring.vector(self.known["secrets"][slot]["vector"])
        return checked.mask(transcript, self.ring, vector)

    def confirmed(self, slot: int, transcript: Transcript) -> tuple[Confirmed, bytes]:
        return self.masked(slot, transcript)[0].confirm(self.known["survivors"])

    def received_shares(self, slot: int) -> dict[int, SharePair]:
        result = by_slot(self.known["received_shares"][str(slot)])
        return {dealer: SharePair.unpack(body) for dealer, body in result.items()}

    def signed_inputs(self, slot: int) -> dict[int, SignedInput]:
        result = by_slot(self.known["signed_inputs"][str(slot)])
        return {dealer: SignedInput(body[:32], body[32:]) for dealer, body in result.items()}


@sums
def test_labels_parameters_and_graph(known: dict[str, Any]) -> None:
    played = _Played(known)
    session = played.session()
    transcript, p = played.transcript(session), session.parameters
    assert [p.n, p.holders, p.threshold, p.spot_checks] == known["parameters"]
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
        _, complaints = played.checked(slot, session)
        assert complaints.pack().hex() == known["complaints"][str(slot)]
    for slot in known["survivors"]:
        masked, masked_input = played.masked(slot, transcript)
        assert masked_input.pack().hex() == known["masked_inputs"][str(slot)]
        confirmed, signature = masked.confirm(known["survivors"])
        assert signature == confirmations[slot]
        message = confirmed.unmask(confirmations, played.signed_inputs(slot), Script())
        assert message.pack().hex() == known["unmasking_shares"][str(slot)]


@sums
def test_a_dealer_sends_the_answers_of_the_file(known: dict[str, Any]) -> None:
    played, false = _Played(known), known["false_complaints"]
    session, dealer = played.session(), false["dealer"]
    complaints = {
        slot: Complaints.unpack(body) for slot, body in by_slot(false["complaints"]).items()
    }
    key_shares = {
        slot: KeyShares.unpack(body) for slot, body in by_slot(known["key_shares"]).items()
    }
    received = aggregator.route_shares(session, key_shares)
    for slot, message in complaints.items():
        aggregator.check_complaints(session, slot, received[slot], message)
    complaints[dealer] = Complaints({})  # it has checked its shares too
    signatures = aggregator.complaints_by_dealer(complaints)[dealer]
    answers = played.checked(dealer, session)[0].answer(signatures)
    assert answers.pack().hex() == false["answers"]
    aggregator.check_answers(
        session, dealer, key_shares[dealer], signatures, Answers.unpack(answers.pack())
    )


@sums
def test_the_server_computes_the_sum_of_the_file(known: dict[str, Any]) -> None:
    played = _Played(known)
    session = played.session()
    transcript, ring = played.transcript(session), played.ring
    key_shares = {
        slot: KeyShares.unpack(body) for slot, body in by_slot(known["key_shares"]).items()
    }
    masked_inputs = {
        slot: MaskedInput.unpack(body) for slot, body in by_slot(known["masked_inputs"]).items()
    }
    for slot, message in key_shares.items():
        aggregator.check_key_shares(session, slot, message)
    received = aggregator.route_shares(session, key_shares)
    for slot, body in by_slot(known["complaints"]).items():
        assert received[slot] == played.received_shares(slot)
        aggregator.check_complaints(session, slot, received[slot], Complaints.unpack(body))
    for slot, masked_input in masked_inputs.items():
        aggregator.check_masked_input(transcript, slot, masked_input)
    for slot, signature in by_slot(known["confirmations"]).items():
        aggregator.check_confirmation(transcript, slot, frozenset(masked_inputs), signature)
    request = aggregator.UnmaskingRequest(transcript, frozenset(masked_inputs))
    unmasking_shares = {
        slot: UnmaskingShares.unpack(body)
        for slot, body in by_slot(known["unmasking_shares"]).items()
    }
    total = ring.zero()
    for slot, message in unmasking_shares.items():
        aggregator.check_unmasking_shares(request, slot, message)
        ring.add(total, ring.unpack(masked_inputs[slot].vector))
    messages = unmasking.SumMessages(key_shares, unmasking_shares)
    result = unmasking.unmask(request, ring, messages, total)
    assert [lane.tolist() for lane in result.total] == known["total"]
    assert not result.blamed


# What participant 0 of the first sum refuses


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
    checked, _ = played.checked(OWN_SLOT, session)
    transcript = Transcript(session, packed(share_commitments))
    checked.mask(transcript, played.ring, played.ring.zero())


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
        confirmed.unmask(signatures, played.signed_inputs(OWN_SLOT), Script())


@each("signed_inputs")
def test_signed_inputs_to_refuse(played: _Played, case: dict[str, Any]) -> None:
    confirmed, _ = played.confirmed(OWN_SLOT, played.transcript(played.session()))
    signed = {s: b"".join(each) for s, each in played.signed_inputs(OWN_SLOT).items()}
    for slot, body in case["signed_inputs"].items():
        del signed[int(slot)]
        if body is not None:
            signed[int(slot)] = unhex(body)
    shown = {slot: SignedInput(body[:32], body[32:]) for slot, body in signed.items()}
    with pytest.raises(UnsafeRequestError, match="masked nothing"):
        confirmed.unmask(by_slot(SUMS[0]["confirmations"]), shown, Script())


@each("unknown_dealers")
def test_dealers_to_refuse(played: _Played, case: dict[str, Any]) -> None:
    shared, _ = played.shared(OWN_SLOT, played.session())
    with pytest.raises(UnsafeRequestError, match="sent me none"):
        shared.check({case["dealer"]: SharePair.unpack(unhex(case["share_pair"]))})


@each("share_pairs")
def test_share_pairs_to_complain_about(played: _Played, case: dict[str, Any]) -> None:
    shared, _ = played.shared(OWN_SLOT, played.session())
    received = played.received_shares(OWN_SLOT)
    received[case["dealer"]] = SharePair.unpack(unhex(case["share_pair"]))
    checked, complaints = shared.check(received)
    assert complaints.signatures.keys() == {case["dealer"]}
    others = received.keys() - {case["dealer"]}
    assert checked.key_shares.keys() == checked.seed_shares.keys() == others


@each("complaints")
def test_complaints_not_to_answer(played: _Played, case: dict[str, Any]) -> None:
    checked, _ = played.checked(OWN_SLOT, played.session())
    with pytest.raises(UnsafeRequestError, match=r"never made|not a holder"):
        checked.answer({case["holder"]: unhex(case["signature"])})


@each("to_the_server")
def test_messages_that_the_server_refuses(played: _Played, case: dict[str, Any]) -> None:
    transcript, body, known = played.transcript(played.session()), unhex(case["body"]), SUMS[0]
    slot, ring = case["slot"], played.ring
    survivors = frozenset(by_slot(known["masked_inputs"]))
    key_shares = {s: KeyShares.unpack(b) for s, b in by_slot(known["key_shares"]).items()}

    def check() -> None:
        if case["step"] == "key-shares":
            aggregator.check_key_shares(transcript.session, slot, KeyShares.unpack(body))
        elif case["step"] == "complaints":
            received = aggregator.route_shares(transcript.session, key_shares)[slot]
            message = Complaints.unpack(body)
            aggregator.check_complaints(transcript.session, slot, received, message)
        elif case["step"] == "masked-input":
            masked_input = MaskedInput.unpack(body)
            aggregator.check_masked_input(transcript, slot, masked_input)
            ring.unpack(masked_input.vector)
        elif case["step"] == "confirmation":
            aggregator.check_confirmation(transcript, slot, survivors, body)
        else:
            request = aggregator.UnmaskingRequest(transcript, survivors)
            aggregator.check_unmasking_shares(request, slot, UnmaskingShares.unpack(body))

    with pytest.raises((FaultyParticipantError, ValueError), match=r"participant 0|below|pad"):
        check()
