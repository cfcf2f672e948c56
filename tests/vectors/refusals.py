"""What must be refused in the active sum of `cohorts`, with the reason.

Each case changes what participant 0 is told, or what a participant tells the server.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.vectors import reference as ref
from tests.vectors.cohorts import ACTIVE, LANES, forged
from tests.vectors.reference import P, some

ME = 0
ONE = ACTIVE
ABSENT, LOST = 3, 5
HOLDER = next(slot for slot in ONE.holders[ME] if slot in ONE.survivors)  # holds for participant 0
OTHER = next(slot for slot in ONE.sharers if slot not in (ME, HOLDER, LOST))
ELSEWHERE = replace(ONE, number=8)


def rosters() -> list[dict[str, Any]]:
    """Return rosters for which participant 0 shares nothing: entries by slot, of other bytes."""
    mine, theirs, last = (ONE.entries[slot] for slot in (ME, 4, 11))
    low = bytes(32)

    def entry(of: bytes, **parts: bytes) -> bytes:
        places = {"identity": 0, "mask": 32, "seal": 64}
        for name, part in parts.items():
            of = of[: places[name]] + part + of[places[name] + 32 :]
        return of

    stranger = ref.identity(some("stranger"))
    key = ref.key_public(some("stranger"))
    cases = [
        ("another sits in my slot", {ME: theirs, 4: mine}),
        ("my identity is another", {ME: entry(mine, identity=stranger)}),
        ("my mask key is another", {ME: entry(mine, mask=key)}),
        ("my seal key is another", {ME: entry(mine, seal=key)}),
        ("an identity is there twice", {11: entry(last, identity=theirs[:32])}),
        ("my identity is there twice", {11: entry(last, identity=mine[:32])}),
        ("a mask key is there twice", {11: entry(last, mask=theirs[32:64])}),
        ("a seal key is there twice", {11: entry(last, seal=theirs[64:96])}),
        ("a mask key is another's seal key", {11: entry(last, mask=theirs[64:96])}),
        ("a mask key is its seal key", {11: entry(last, mask=last[64:96])}),
        ("a mask key is of low order", {11: entry(last, mask=low)}),
        ("a seal key is of low order", {11: entry(last, seal=low)}),
        ("an identity is of low order", {11: entry(last, identity=low)}),
        (
            "an unused bit of a key is set",
            {11: entry(last, mask=last[32:63] + bytes([last[63] | 128]))},
        ),
        ("an enrolment is missing", {11: last[:160]}),
        ("a signature is missing", {11: last[:96]}),
    ]
    for what, why in (("signatures", "did not sign its keys"), ("enrolments", "is not enrolled")):
        holder = next(slot for slot in range(1, ONE.n) if slot in forged(slot, what).holders[ME])
        cases.append(
            (f"a holder that I pick {why}", {holder: forged(holder, what).entries[holder]})
        )
    return [
        {"comment": why, "roster": {str(slot): entry.hex() for slot, entry in of.items()}}
        for why, of in cases
    ]


def views() -> list[dict[str, Any]]:
    """Return sharers for whom participant 0 sends no vector; null is one left out."""
    mine, theirs = ONE.told[ME], ONE.told[HOLDER]
    cases: list[tuple[str, dict[int, Sequence[bytes] | None]]] = [
        ("I am left out", {ME: None}),
        ("my contribution is another", {ME: (some("x"), mine[1])}),
        ("what I dealt is another", {ME: (mine[0], some("x"))}),
        ("fewer than a quorum shared", {OTHER: None, 11: None}),
        ("one shared who is not in the cohort", {12: theirs}),
        ("a contribution is a byte short", {HOLDER: (theirs[0][:-1], theirs[1])}),
        ("a digest is a byte long", {HOLDER: (theirs[0], theirs[1] + bytes(1))}),
    ]
    return [
        {
            "comment": why,
            "sharers": {
                str(slot): said and [part.hex() for part in said] for slot, said in of.items()
            },
        }
        for why, of in cases
    ]


def survivors() -> list[dict[str, Any]]:
    """Return survivors that participant 0 does not confirm."""
    kept = list(ONE.survivors)
    cases = [
        ("I am left out", [slot for slot in kept if slot != ME] + [LOST]),
        ("one is named twice", [*kept, 1]),
        ("one did not share", [*kept, ABSENT]),
        ("one is not in the cohort", [*kept, 12]),
        ("fewer than a quorum", kept[:-1]),
        ("nobody", []),
    ]
    return [{"comment": why, "survivors": of} for why, of in cases]


def confirmations() -> list[dict[str, Any]]:
    """Return signatures on which participant 0 gives nothing; null is one left out."""
    kept = ONE.survivors
    others = [slot for slot in kept if slot != ME]
    more = (*kept, LOST)
    cases: list[tuple[str, dict[int, bytes | None]]] = [
        ("fewer than a quorum", {kept[-1]: None}),
        ("one who is no survivor", {LOST: bytes(64)}),
        ("signed nothing", dict.fromkeys(others, bytes(64))),
        ("signed another set", {slot: ONE.confirmation(slot, more) for slot in others}),
        ("signed under another view", {slot: ELSEWHERE.confirmation(slot) for slot in others}),
        ("one signed for all", dict.fromkeys(others, ONE.confirmation(1))),
        ("one did not sign", {others[-1]: bytes(64)}),
    ]
    return [
        {
            "comment": why,
            "confirmations": {
                str(slot): said if said is None else said.hex() for slot, said in of.items()
            },
        }
        for why, of in cases
    ]


def parcels() -> list[dict[str, Any]]:
    """Return parcels of which participant 0 gives no share; it complains of their owner."""
    mine = ONE.inbox(ME)
    owner = next(slot for slot in mine if slot in ONE.survivors and ME in ONE.holders[slot])
    friend = next(slot for slot in mine if slot in ONE.holders[ME] and slot in ONE.survivors)
    good, secret = mine[owner], ONE.agreed(owner, ME, "seal")
    info = ref.info("seed share", owner, ME)

    def sealed(share: bytes) -> bytes:
        return ref.parcel(secret, ONE.view, info, share)

    holder = next(h for h in ONE.holders[owner] if h != ME)
    cases = [
        ("its envelope is garbage", owner, good[:32] + bytes(33)),
        ("its commitment is to another share", owner, bytes(32) + good[32:]),
        ("its envelope holds a share of the mask key", owner, ONE.parcels(owner, "mask")[ME]),
        ("it was dealt to another holder", owner, ONE.parcels(owner, "seed")[holder]),
        ("it is mine, reflected", friend, ONE.parcels(ME, "seed")[friend]),
        ("another dealt it", owner, next(p for o, p in mine.items() if o not in (owner, LOST))),
        ("its share is P", owner, sealed(P.to_bytes(33, "big"))),
    ]
    if LOST in mine:
        seed = ONE.parcels(LOST, "seed")[ME]
        cases.append(("its owner is lost, but it holds a share of the seed", LOST, seed))
    return [{"comment": why, "owner": of, "parcel": parcel.hex()} for why, of, parcel in cases]


def strangers() -> list[dict[str, Any]]:
    """Return owners of whom participant 0 opens no parcel at all."""
    parcel = ONE.inbox(ME)[next(iter(ONE.inbox(ME)))]
    cases = [("me", ME), ("one who did not share", ABSENT), ("not in the cohort", 12)]
    return [{"comment": why, "owner": of, "parcel": parcel.hex()} for why, of in cases]


def to_the_server() -> list[dict[str, Any]]:
    """Return messages that the server refuses, by step and slot."""
    contribution, dealt, signature = ONE.key_deal(ME)
    shorter = dealt[:-65]

    def shares(parcels: bytes, label: bytes = ONE.label, slot: int = ME) -> bytes:
        said = contribution + ref.digest(parcels)
        return contribution + parcels + ONE.sign(slot, "shares", label, said)

    deal, packed = ONE.seed_deal(ME), ref.pack(ONE.masked(ME), LANES)

    def upload(deal: bytes, vector: bytes = packed, label: bytes = ONE.view) -> bytes:
        return deal + vector + ONE.sign(ME, "vector", label, deal + vector)

    given, answered, others_parcels = ONE.given(ME), ONE.answered(ME), ONE.answered(1)
    others_survivors = ONE.answered(ME, (*ONE.survivors, LOST))
    owner = next(slot for slot in given if slot not in (ME, LOST))
    stranger = next(slot for slot in ONE.survivors if slot not in given)
    share = given[owner][1]
    without = {slot: said for slot, said in given.items() if slot != ME}
    cases = [
        ("shares", "a parcel fewer than holders", shares(shorter)),
        ("shares", "a parcel more than holders", shares(dealt + dealt[:65])),
        (
            "shares",
            "signed before a parcel was changed",
            contribution + dealt[65:] + dealt[:65] + signature,
        ),
        ("shares", "signed by another", shares(dealt, slot=1)),
        ("shares", "signed in another cohort", shares(dealt, ELSEWHERE.label)),
        ("shares", "not signed", contribution + dealt + bytes(64)),
        ("vector", "a parcel fewer than holders that shared", upload(deal[:-65])),
        ("vector", "a parcel more than holders that shared", upload(deal + deal[-65:])),
        ("vector", "signed under the cohort, not the view", upload(deal, label=ONE.label)),
        (
            "vector",
            "signed before the vector was changed",
            upload(deal)[: len(deal)] + bytes(len(packed)) + upload(deal)[-64:],
        ),
        (
            "vector",
            "an element is not below its modulus",
            upload(deal, b"\0" * 5 + b"\xff\xff\xff\xff\x03" + b"\0" * 8),
        ),
        (
            "vector",
            "padding is not zero",
            upload(deal, packed[:4] + bytes([packed[4] | 0x80]) + packed[5:]),
        ),
        ("confirmation", "of another set", ONE.confirmation(ME, (*ONE.survivors, LOST))),
        ("confirmation", "by another", ONE.confirmation(1)),
        (
            "confirmation",
            "under the cohort, not the view",
            ONE.sign(ME, "survivors", ONE.label, ref.u32(*ONE.survivors)),
        ),
        ("reveal", "the own share is left out", ONE.reveal(ME, without)),
        (
            "reveal",
            "no element of the field",
            ONE.reveal(ME, {**given, owner: (0, b"\2" + share[1:])}),
        ),
        (
            "reveal",
            "a survivor's seed share as one of its mask key",
            ONE.reveal(ME, {**given, owner: (1, share)}),
        ),
        ("reveal", "the seed of one who is lost", ONE.reveal(ME, {**given, LOST: (0, share)})),
        (
            "reveal",
            "a share is held back",
            ONE.reveal(ME, {slot: said for slot, said in given.items() if slot != owner}),
        ),
        (
            "reveal",
            "a share of one who dealt none",
            ONE.reveal(ME, {**given, stranger: (0, share)}),
        ),
        (
            "reveal",
            "a complaint of one who dealt nothing",
            ONE.reveal(ME, {**given, stranger: (2, bytes(33))}),
        ),
        (
            "reveal",
            "signed by another",
            ref.records(given) + ONE.sign(1, "reveal", ONE.view, answered + ref.records(given)),
        ),
        (
            "reveal",
            "signed under the cohort, not the view",
            ref.records(given) + ONE.sign(ME, "reveal", ONE.label, answered + ref.records(given)),
        ),
        (
            "reveal",
            "the answer to other parcels than were sent",
            ref.records(given)
            + ONE.sign(ME, "reveal", ONE.view, others_parcels + ref.records(given)),
        ),
        (
            "reveal",
            "the answer to one who was told of other survivors",
            ref.records(given)
            + ONE.sign(ME, "reveal", ONE.view, others_survivors + ref.records(given)),
        ),
    ]
    return [
        {"comment": why, "step": step, "slot": ME, "body": body.hex()} for step, why, body in cases
    ]


def refusals() -> dict[str, Any]:
    """Return all of them."""
    return {
        "rosters": rosters(),
        "sharers": views(),
        "survivors": survivors(),
        "confirmations": confirmations(),
        "parcels": parcels(),
        "strangers": strangers(),
        "to_the_server": to_the_server(),
    }
