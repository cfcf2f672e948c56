"""Messages that must be refused in the active sum of `cohorts`, each with the reason.

Each case changes a message to participant 0, or a message from a participant to the server.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.vectors import reference as ref
from tests.vectors.cohorts import ACTIVE, LANES, forged
from tests.vectors.reference import P, stream

RECEIVER = 0
SUM = ACTIVE
ENROLLED_ONLY, DROPOUT_SLOT = 3, 5
# A survivor that holds a share of participant 0.
HOLDER_SLOT = next(slot for slot in SUM.holders[RECEIVER] if slot in SUM.survivors)
DEALER_SLOT = next(
    slot for slot in SUM.dealers if slot not in (RECEIVER, HOLDER_SLOT, DROPOUT_SLOT)
)
NEXT_SESSION = replace(SUM, number=8)


def rosters() -> list[dict[str, Any]]:
    """Return rosters for which participant 0 shares nothing: entries by slot, of other bytes."""
    mine, theirs, last = (SUM.entries[slot] for slot in (RECEIVER, 4, 11))
    low = bytes(32)

    def entry(of: bytes, **parts: bytes) -> bytes:
        places = {"identity": 0, "mask": 32, "encryption": 64}
        for name, part in parts.items():
            of = of[: places[name]] + part + of[places[name] + 32 :]
        return of

    non_dealer = ref.identity(stream("non_dealer"))
    key = ref.key_public(stream("non_dealer"))
    cases = [
        ("another sits in my slot", {RECEIVER: theirs, 4: mine}),
        ("my identity is another", {RECEIVER: entry(mine, identity=non_dealer)}),
        ("my mask key is another", {RECEIVER: entry(mine, mask=key)}),
        ("my encryption key is another", {RECEIVER: entry(mine, encryption=key)}),
        ("an identity is there twice", {11: entry(last, identity=theirs[:32])}),
        ("my identity is there twice", {11: entry(last, identity=mine[:32])}),
        ("a mask key is there twice", {11: entry(last, mask=theirs[32:64])}),
        ("a encryption key is there twice", {11: entry(last, encryption=theirs[64:96])}),
        ("a mask key is another's encryption key", {11: entry(last, mask=theirs[64:96])}),
        ("a mask key is its encryption key", {11: entry(last, mask=last[64:96])}),
        ("a mask key is of low order", {11: entry(last, mask=low)}),
        ("a encryption key is of low order", {11: entry(last, encryption=low)}),
        ("an identity is of low order", {11: entry(last, identity=low)}),
        (
            "an unused bit of a key is set",
            {11: entry(last, mask=last[32:63] + bytes([last[63] | 128]))},
        ),
        ("an enrolment is missing", {11: last[:160]}),
        ("a signature is missing", {11: last[:96]}),
    ]
    for what, why in (("signatures", "did not sign its keys"), ("enrolments", "is not enrolled")):
        holder = next(
            slot for slot in range(1, SUM.n) if slot in forged(slot, what).holders[RECEIVER]
        )
        cases.append(
            (f"a holder that I select {why}", {holder: forged(holder, what).entries[holder]})
        )
    return [
        {"comment": why, "roster": {str(slot): entry.hex() for slot, entry in of.items()}}
        for why, of in cases
    ]


def transcripts() -> list[dict[str, Any]]:
    """Return share commitments for which participant 0 sends no masked input (null: left out)."""
    mine, theirs = SUM.share_commitments[RECEIVER], SUM.share_commitments[HOLDER_SLOT]
    cases: list[tuple[str, dict[int, Sequence[bytes] | None]]] = [
        ("I am left out", {RECEIVER: None}),
        ("my graph nonce is another", {RECEIVER: (stream("x"), mine[1])}),
        ("the digest of my shares is another", {RECEIVER: (mine[0], stream("x"))}),
        ("fewer than a quorum shared", {DEALER_SLOT: None, 11: None}),
        ("one shared who is not in the cohort", {12: theirs}),
        ("a graph nonce is a byte short", {HOLDER_SLOT: (theirs[0][:-1], theirs[1])}),
        ("a digest is a byte long", {HOLDER_SLOT: (theirs[0], theirs[1] + bytes(1))}),
    ]
    return [
        {
            "comment": why,
            "share_commitments": {
                str(slot): payload and [part.hex() for part in payload]
                for slot, payload in of.items()
            },
        }
        for why, of in cases
    ]


def survivors() -> list[dict[str, Any]]:
    """Return survivors that participant 0 does not confirm."""
    surviving = list(SUM.survivors)
    cases = [
        (
            "I am left out",
            [slot for slot in surviving if slot != RECEIVER] + [DROPOUT_SLOT],
        ),
        ("one is named twice", [*surviving, 1]),
        ("one did not share", [*surviving, ENROLLED_ONLY]),
        ("one is not in the cohort", [*surviving, 12]),
        ("fewer than a quorum", surviving[:-1]),
        ("nobody", []),
    ]
    return [{"comment": why, "survivors": of} for why, of in cases]


def confirmations() -> list[dict[str, Any]]:
    """Return signatures for which participant 0 reveals no share; null is one left out."""
    surviving = SUM.survivors
    others = [slot for slot in surviving if slot != RECEIVER]
    more = (*surviving, DROPOUT_SLOT)
    cases: list[tuple[str, dict[int, bytes | None]]] = [
        ("fewer than a quorum", {surviving[-1]: None}),
        ("a signature of a participant that is not a survivor", {DROPOUT_SLOT: bytes(64)}),
        ("signed nothing", dict.fromkeys(others, bytes(64))),
        ("signed another set", {slot: SUM.confirmation(slot, more) for slot in others}),
        (
            "signed under another transcript",
            {slot: NEXT_SESSION.confirmation(slot) for slot in others},
        ),
        ("one signed for all", dict.fromkeys(others, SUM.confirmation(1))),
        ("one did not sign", {others[-1]: bytes(64)}),
    ]
    return [
        {
            "comment": why,
            "confirmations": {
                str(slot): payload if payload is None else payload.hex()
                for slot, payload in of.items()
            },
        }
        for why, of in cases
    ]


def encrypted_shares() -> list[dict[str, Any]]:
    """Return encrypted shares that participant 0 reports as invalid, with their dealer."""
    mine = SUM.received_shares(RECEIVER)
    dealer = next(slot for slot in mine if slot in SUM.survivors and RECEIVER in SUM.holders[slot])
    friend = next(slot for slot in mine if slot in SUM.holders[RECEIVER] and slot in SUM.survivors)
    good, secret = mine[dealer], SUM.agreed(dealer, RECEIVER, "encryption")
    info = ref.info("seed share", dealer, RECEIVER)

    def encrypted(share: bytes) -> bytes:
        return ref.encrypted_share(secret, SUM.transcript, info, share)

    holder = next(h for h in SUM.holders[dealer] if h != RECEIVER)
    cases = [
        ("its ciphertext is garbage", dealer, good[:32] + bytes(33)),
        ("its commitment is to another share", dealer, bytes(32) + good[32:]),
        (
            "its ciphertext holds a share of the mask key",
            dealer,
            SUM.encrypted_shares(dealer, "mask")[RECEIVER],
        ),
        ("it is for another holder", dealer, SUM.encrypted_shares(dealer, "seed")[holder]),
        ("it is mine, reflected", friend, SUM.encrypted_shares(RECEIVER, "seed")[friend]),
        (
            "another dealer sent it",
            dealer,
            next(p for o, p in mine.items() if o not in (dealer, DROPOUT_SLOT)),
        ),
        ("its share is P", dealer, encrypted(P.to_bytes(33, "big"))),
    ]
    if DROPOUT_SLOT in mine:
        seed = SUM.encrypted_shares(DROPOUT_SLOT, "seed")[RECEIVER]
        cases.append(
            ("its dealer dropped out, but it holds a share of the seed", DROPOUT_SLOT, seed)
        )
    return [
        {"comment": why, "dealer": of, "encrypted_share": encrypted_share.hex()}
        for why, of, encrypted_share in cases
    ]


def unknown_dealers() -> list[dict[str, Any]]:
    """Return dealers whose encrypted shares participant 0 refuses as a whole."""
    encrypted_share = SUM.received_shares(RECEIVER)[next(iter(SUM.received_shares(RECEIVER)))]
    cases = [("me", RECEIVER), ("one who did not share", ENROLLED_ONLY), ("not in the cohort", 12)]
    return [
        {"comment": why, "dealer": of, "encrypted_share": encrypted_share.hex()}
        for why, of in cases
    ]


def to_the_server() -> list[dict[str, Any]]:
    """Return messages that the server refuses, by step and slot."""
    graph_nonce, encrypted, signature = SUM.key_shares(RECEIVER)

    def key_shares(shares: bytes, label: bytes = SUM.label, slot: int = RECEIVER) -> bytes:
        payload = graph_nonce + ref.digest(shares)
        return graph_nonce + shares + SUM.sign(slot, "key shares", label, payload)

    seed_shares, packed = SUM.seed_shares(RECEIVER), ref.pack(SUM.masked_vector(RECEIVER), LANES)

    def masked_input(shares: bytes, vector: bytes = packed, label: bytes = SUM.transcript) -> bytes:
        payload = shares + vector
        return payload + SUM.sign(RECEIVER, "masked input", label, payload)

    survivors_and_dropout = (*SUM.survivors, DROPOUT_SLOT)
    revealed, digests = SUM.revealed(RECEIVER), SUM.answered_digests(RECEIVER)
    dealer = next(slot for slot in revealed if slot not in (RECEIVER, DROPOUT_SLOT))
    non_dealer = next(slot for slot in SUM.survivors if slot not in revealed)
    share = revealed[dealer][1]

    def answer(**changed: tuple[int, bytes]) -> bytes:
        named = {"dealer": dealer, "dropout": DROPOUT_SLOT, "non_dealer": non_dealer}
        slots = {named[name]: record for name, record in changed.items()}
        return SUM.unmasking_shares(RECEIVER, {**revealed, **slots})

    def answer_without(left_out: int) -> bytes:
        kept = {slot: record for slot, record in revealed.items() if slot != left_out}
        return SUM.unmasking_shares(RECEIVER, kept)

    def answer_signed(
        slot: int = RECEIVER, label: bytes = SUM.transcript, about: bytes = digests
    ) -> bytes:
        records = ref.records(revealed)
        return records + SUM.sign(slot, "unmasking shares", label, about + records)

    changed_vector = seed_shares + bytes(len(packed)) + masked_input(seed_shares)[-64:]
    large_element = masked_input(seed_shares, b"\0" * 5 + b"\xff\xff\xff\xff\x03" + b"\0" * 8)
    padded = masked_input(seed_shares, packed[:4] + bytes([packed[4] | 0x80]) + packed[5:])
    survivors = ref.u32(*SUM.survivors)
    under_cohort = SUM.sign(RECEIVER, "survivors", SUM.label, survivors)
    cases = {
        "key-shares": {
            "an encrypted share fewer than holders": key_shares(encrypted[:-65]),
            "an encrypted share more than holders": key_shares(encrypted + encrypted[:65]),
            "signed before an encrypted share was changed": (
                graph_nonce + encrypted[65:] + encrypted[:65] + signature
            ),
            "signed by another": key_shares(encrypted, slot=1),
            "signed in another cohort": key_shares(encrypted, NEXT_SESSION.label),
            "not signed": graph_nonce + encrypted + bytes(64),
        },
        "masked-input": {
            "an encrypted share fewer than holders that shared": masked_input(seed_shares[:-65]),
            "an encrypted share more than holders that shared": (
                masked_input(seed_shares + seed_shares[-65:])
            ),
            "signed under the cohort, not the transcript": (
                masked_input(seed_shares, label=SUM.label)
            ),
            "signed before the vector was changed": changed_vector,
            "an element is not below its modulus": large_element,
            "padding is not zero": padded,
        },
        "confirmation": {
            "of another set": SUM.confirmation(RECEIVER, survivors_and_dropout),
            "by another": SUM.confirmation(1),
            "under the cohort, not the transcript": under_cohort,
        },
        "unmasking-shares": {
            "the own share is left out": answer_without(RECEIVER),
            "no element of the field": answer(dealer=(0, b"\2" + share[1:])),
            "a survivor's seed share as one of its mask key": answer(dealer=(1, share)),
            "the seed of a dropout": answer(dropout=(0, share)),
            "a share is missing": answer_without(dealer),
            "a share of one that shared none": answer(non_dealer=(0, share)),
            "a report of an invalid share by a participant that shared nothing": (
                answer(non_dealer=(2, bytes(33)))
            ),
            "signed by another": answer_signed(slot=1),
            "signed under the cohort, not the transcript": answer_signed(label=SUM.label),
            "the answer to other encrypted shares than were sent": (
                answer_signed(about=SUM.answered_digests(1))
            ),
            "the answer for other survivors": (
                answer_signed(about=SUM.answered_digests(RECEIVER, survivors_and_dropout))
            ),
        },
    }
    return [
        {"comment": why, "step": step, "slot": RECEIVER, "body": body.hex()}
        for step, bodies in cases.items()
        for why, body in bodies.items()
    ]


def refusals() -> dict[str, Any]:
    return {
        "rosters": rosters(),
        "share_commitments": transcripts(),
        "survivors": survivors(),
        "confirmations": confirmations(),
        "encrypted_shares": encrypted_shares(),
        "unknown_dealers": unknown_dealers(),
        "to_the_server": to_the_server(),
    }
