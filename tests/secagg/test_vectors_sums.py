"""The sums of tests/vectors, message by message; and in them each refusal, with its reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from secagg import aggregator
from secagg.cohort import Cohort, Entry, Registry, Sharer, View
from secagg.deals import KeyDeal, Reveal, Upload
from secagg.errors import FaultyParticipantError, RefusedError
from secagg.keys import Identity, KeyPair, PublicKeys
from secagg.parameters import Assumptions
from secagg.parcels import Parcel
from secagg.participant import Confirmed, Joined, Masked, Shared
from secagg.ring import Lane, Ring
from tests.secagg.conftest import Script
from tests.vectors import generate

HERE = Path(generate.__file__).parent
SUMS = json.loads((HERE / "sums.json").read_text())["sums"]
REFUSALS = json.loads((HERE / "refusals.json").read_text())
ME = 0
unhex = bytes.fromhex
sums = pytest.mark.parametrize("said", SUMS, ids=[said["mode"] for said in SUMS])


def each(key: str) -> Any:
    cases = REFUSALS[key]
    return pytest.mark.parametrize("case", cases, ids=[case["comment"] for case in cases])


def by_slot(of: dict[str, str]) -> dict[int, bytes]:
    return {int(slot): unhex(body) for slot, body in of.items()}


def entry(body: str) -> Entry:
    row = unhex(body)
    return Entry(row[:32], PublicKeys(row[32:64], row[64:96]), row[96:160], row[160:])


class _Played:
    """One sum of the file, up to whatever is asked for."""

    def __init__(self, said: dict[str, Any], roster: list[str] | None = None) -> None:
        self.said = said
        self.ring = Ring(tuple(Lane(q, length) for q, length in said["lanes"]))
        self._roster = said["roster"] if roster is None else roster

    def cohort(self) -> Cohort:
        said = self.said
        rates = (said["corrupt"], said["dropout"], said["sigma"], said["eta"], said["mode"])
        registrar = said["registrar"] and Registry(unhex(said["registrar"]), unhex(said["scope"]))
        roster = tuple(entry(body) for body in self._roster)
        plan, number = unhex(said["plan"]), said["number"]
        return Cohort(plan, number, roster, Assumptions(*rates), registrar)

    def secret(self, slot: int, what: str) -> bytes:
        return unhex(self.said["secrets"][slot][what])

    def joined(self, slot: int) -> Joined:
        keys = (KeyPair.of(self.secret(slot, what)) for what in ("mask", "seal"))
        return Joined(Identity.of(self.secret(slot, "identity")), *keys)

    def shared(self, slot: int, cohort: Cohort) -> tuple[Shared, KeyDeal]:
        drawn = (self.secret(slot, what) for what in ("contribution", "mask_drawn"))
        return self.joined(slot).share(slot, cohort, Script(*drawn))

    def view(self, cohort: Cohort) -> View:
        told = self.said["sharers"]
        return View(cohort, {int(slot): Sharer(*map(unhex, of)) for slot, of in told.items()})

    def masked(self, slot: int, view: View) -> tuple[Masked, Upload]:
        shared, _ = self.shared(slot, view.cohort)
        drawn = (self.secret(slot, what) for what in ("seed", "seed_drawn"))
        vector = self.ring.vector(self.said["secrets"][slot]["vector"])
        return shared.mask(view, self.ring, vector, Script(*drawn))

    def confirmed(self, slot: int, view: View) -> tuple[Confirmed, bytes]:
        return self.masked(slot, view)[0].confirm(self.said["survivors"])

    def inbox(self, slot: int) -> dict[int, Parcel]:
        found = by_slot(self.said["inboxes"][str(slot)])
        return {owner: Parcel.unpack(body) for owner, body in found.items()}


@sums
def test_labels_parameters_and_graph(said: dict[str, Any]) -> None:
    played = _Played(said)
    cohort = played.cohort()
    view, p = played.view(cohort), cohort.parameters
    assert [p.n, p.holders, p.threshold, p.partners, p.witnesses] == said["parameters"]
    assert cohort.label.hex() == said["label"]
    assert view.label.hex() == said["view_label"]
    assert {str(slot): list(view.holders(slot)) for slot in view.sharers} == said["holders"]
    assert {str(slot): sorted(view.partners(slot)) for slot in view.sharers} == said["partners"]


@sums
def test_entries_are_vouched_for(said: dict[str, Any]) -> None:
    cohort = _Played(said).cohort()
    assert all(cohort.vouches(slot) for slot in range(cohort.n))


@sums
def test_each_participant_says_what_is_in_the_file(said: dict[str, Any]) -> None:
    played = _Played(said)
    cohort = played.cohort()
    view = played.view(cohort)
    confirmations = by_slot(said["confirmations"])
    for slot in map(int, said["deals"]):
        _, deal = played.shared(slot, cohort)
        assert deal.pack().hex() == said["deals"][str(slot)]
    for slot in said["survivors"]:
        # Each step of this one participant takes the cohort of the one before.
        shared, _ = played.shared(slot, cohort)
        drawn = (played.secret(slot, what) for what in ("seed", "seed_drawn"))
        vector = played.ring.vector(said["secrets"][slot]["vector"])
        masked, upload = shared.mask(view, played.ring, vector, Script(*drawn))
        assert upload.pack().hex() == said["uploads"][str(slot)]
        confirmed, signature = masked.confirm(said["survivors"])
        assert signature == confirmations[slot]
        reveal = confirmed.reveal(confirmations, played.inbox(slot), Script())
        assert reveal.pack().hex() == said["reveals"][str(slot)]
        assert not reveal.faulty


@sums
def test_the_server_sums_what_is_in_the_file(said: dict[str, Any]) -> None:
    played = _Played(said)
    cohort = played.cohort()
    view, ring = played.view(cohort), played.ring
    deals = {slot: KeyDeal.unpack(body) for slot, body in by_slot(said["deals"]).items()}
    uploads = {
        slot: Upload.unpack(body, ring.nbytes) for slot, body in by_slot(said["uploads"]).items()
    }
    for slot, deal in deals.items():
        aggregator.check_shares(cohort, slot, deal)
    for slot, upload in uploads.items():
        aggregator.check_upload(view, slot, upload)
    for slot, signature in by_slot(said["confirmations"]).items():
        aggregator.check_confirmation(view, slot, frozenset(uploads), signature)
    seeds = {slot: upload.deal for slot, upload in uploads.items()}
    settled = aggregator.settle_deals(view, deals, seeds)
    for slot in said["survivors"]:
        assert settled.inboxes[slot] == played.inbox(slot)
    reveals = {slot: Reveal.unpack(body) for slot, body in by_slot(said["reveals"]).items()}
    total = ring.zero()
    for slot, reveal in reveals.items():
        aggregator.check_reveal(settled, slot, reveal)
        ring.add(total, ring.unpack(uploads[slot].vector))
    found = aggregator.unmask(settled, ring, reveals, total)
    assert [lane.tolist() for lane in found.total] == said["total"]
    assert not found.blamed


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
    with pytest.raises((RefusedError, ValueError)):
        played.shared(ME, played.cohort())


def asked_for_a_vector(played: _Played, told: dict[str, list[str]]) -> None:
    cohort = played.cohort()
    shared, _ = played.shared(ME, cohort)
    view = View(cohort, {int(slot): Sharer(*map(unhex, of)) for slot, of in told.items()})
    shared.mask(view, played.ring, played.ring.zero(), Script())


@each("sharers")
def test_sharers_to_refuse(played: _Played, case: dict[str, Any]) -> None:
    told = {**SUMS[0]["sharers"], **case["sharers"]}
    with pytest.raises((RefusedError, ValueError), match=r"server|no such sharer"):
        asked_for_a_vector(played, {slot: of for slot, of in told.items() if of})


@each("survivors")
def test_survivors_to_refuse(played: _Played, case: dict[str, Any]) -> None:
    masked, _ = played.masked(ME, played.view(played.cohort()))
    with pytest.raises(RefusedError):
        masked.confirm(case["survivors"])


@each("confirmations")
def test_confirmations_to_refuse(played: _Played, case: dict[str, Any]) -> None:
    confirmed, _ = played.confirmed(ME, played.view(played.cohort()))
    shown = {**SUMS[0]["confirmations"], **case["confirmations"]}
    signatures = by_slot({slot: said for slot, said in shown.items() if said is not None})
    with pytest.raises(RefusedError):
        confirmed.reveal(signatures, {}, Script())


@each("strangers")
def test_owners_to_refuse(played: _Played, case: dict[str, Any]) -> None:
    confirmed, _ = played.confirmed(ME, played.view(played.cohort()))
    parcels = {case["owner"]: Parcel.unpack(unhex(case["parcel"]))}
    with pytest.raises(RefusedError, match="dealt none"):
        confirmed.reveal(by_slot(SUMS[0]["confirmations"]), parcels, Script())


@each("parcels")
def test_parcels_to_complain_of(played: _Played, case: dict[str, Any]) -> None:
    confirmed, _ = played.confirmed(ME, played.view(played.cohort()))
    body = unhex(case["parcel"])
    parcels = {case["owner"]: Parcel(body[:32], body[32:])}
    reveal = confirmed.reveal(by_slot(SUMS[0]["confirmations"]), parcels, Script())
    assert reveal.faulty == {case["owner"]}
    assert (reveal.seed_shares.keys(), reveal.key_shares) == ({ME}, {})


@each("to_the_server")
def test_messages_that_the_server_refuses(played: _Played, case: dict[str, Any]) -> None:
    view, body, said = played.view(played.cohort()), unhex(case["body"]), SUMS[0]
    slot, ring = case["slot"], played.ring
    uploads = {s: Upload.unpack(b, ring.nbytes) for s, b in by_slot(said["uploads"]).items()}
    deals = {s: KeyDeal.unpack(b) for s, b in by_slot(said["deals"]).items()}

    def heard() -> None:
        if case["step"] == "shares":
            aggregator.check_shares(view.cohort, slot, KeyDeal.unpack(body))
        elif case["step"] == "vector":
            upload = Upload.unpack(body, ring.nbytes)
            aggregator.check_upload(view, slot, upload)
            ring.unpack(upload.vector)
        elif case["step"] == "confirmation":
            aggregator.check_confirmation(view, slot, frozenset(uploads), body)
        else:
            seeds = {s: upload.deal for s, upload in uploads.items()}
            settled = aggregator.settle_deals(view, deals, seeds)
            aggregator.check_reveal(settled, slot, Reveal.unpack(body))

    with pytest.raises((FaultyParticipantError, ValueError), match=r"participant 0|below|pad"):
        heard()
