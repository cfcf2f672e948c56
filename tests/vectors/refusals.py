"""Messages that must be refused in the first sum of `cohorts`, each with the reason.

Each case changes a message to participant 0, or a message from a participant to the server.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.vectors import reference as ref
from tests.vectors.cohorts import ENROLLED, LANES, forged
from tests.vectors.reference import P, stream

RECEIVER = 0
SUM = ENROLLED
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
        ("I am left out", [slot for slot in surviving if slot != RECEIVER] + [DROPOUT_SLOT]),
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


def signed_inputs() -> list[dict[str, Any]]:
    """Return signed inputs for which participant 0 reveals no share; null is one left out."""
    mine = SUM.signed_inputs(RECEIVER)
    dealer, other = list(mine)[:2]
    digest, signature = mine[dealer][:32], mine[dealer][32:]
    under_session = SUM.sign(dealer, "masked input", SUM.label, b"")
    cases: list[tuple[str, bytes | None]] = [
        ("the survivor signed nothing", None),
        ("its signature is missing", digest + bytes(64)),
        ("it signed another vector", stream("digest") + signature),
        ("another signed for it", mine[other]),
        ("it signed under the cohort, not the transcript", ref.digest(b"") + under_session),
    ]
    return [
        {"comment": why, "signed_inputs": {str(dealer): body and body.hex()}} for why, body in cases
    ]


def share_pairs() -> list[dict[str, Any]]:
    """Return share pairs that participant 0 complains about, with their dealer."""
    mine = SUM.received_shares(RECEIVER)
    dealer = next(slot for slot in mine if slot in SUM.survivors and RECEIVER in SUM.holders[slot])
    friend = next(slot for slot in mine if slot in SUM.holders[RECEIVER] and slot in SUM.survivors)
    good, secret = mine[dealer], SUM.agreed(dealer, RECEIVER, "encryption")
    key, seed = good[:65], good[65:]

    def encrypted(share: bytes, name: str) -> bytes:
        info = ref.info(name, dealer, RECEIVER)
        return ref.encrypted_share(secret, SUM.label, info, share)

    holder = next(h for h in SUM.holders[dealer] if h != RECEIVER)
    outside = P.to_bytes(33, "big")
    cases = [
        ("the ciphertext of the key share is garbage", key[:32] + bytes(33) + seed),
        ("the ciphertext of the seed share is garbage", key + seed[:32] + bytes(33)),
        ("the key share is committed to another share", bytes(32) + good[32:]),
        ("the seed share is committed to another share", key + bytes(32) + seed[32:]),
        ("the two shares are exchanged", seed + key),
        ("two shares of the seed", seed + seed),
        ("it is for another holder", SUM.pairs(dealer)[holder]),
        ("it is mine, reflected", SUM.pairs(RECEIVER)[friend]),
        ("another dealer sent it", next(pair for of, pair in mine.items() if of != dealer)),
        ("its key share is P", encrypted(outside, "key share") + seed),
        ("its seed share is P", key + encrypted(outside, "seed share")),
        ("it is of another cohort", NEXT_SESSION.pairs(dealer)[RECEIVER]),
    ]
    return [{"comment": why, "dealer": dealer, "share_pair": pair.hex()} for why, pair in cases]


def unknown_dealers() -> list[dict[str, Any]]:
    """Return dealers whose share pairs participant 0 refuses as a whole."""
    pair = SUM.received_shares(RECEIVER)[next(iter(SUM.received_shares(RECEIVER)))]
    cases = [("me", RECEIVER), ("not in the cohort", 12)]
    return [{"comment": why, "dealer": of, "share_pair": pair.hex()} for why, of in cases]


def complaints() -> list[dict[str, Any]]:
    """Return complaints about participant 0 that it does not answer."""
    holder, other = SUM.holders[RECEIVER][:2]
    pair = SUM.pairs(RECEIVER)[holder]
    cases = [
        ("not signed", holder, bytes(64)),
        ("another signed for it", holder, SUM.complaint(other, RECEIVER, pair)),
        ("about another pair", holder, SUM.complaint(holder, RECEIVER, SUM.pairs(RECEIVER)[other])),
        ("about another dealer", holder, SUM.complaint(holder, DEALER_SLOT, pair)),
        ("in another cohort", holder, NEXT_SESSION.complaint(holder, RECEIVER, pair)),
        ("of one that is not a holder", RECEIVER, SUM.complaint(RECEIVER, RECEIVER, pair)),
    ]
    return [
        {"comment": why, "holder": of, "signature": signature.hex()} for why, of, signature in cases
    ]


def to_the_server() -> list[dict[str, Any]]:
    """Return messages that the server refuses, by step and slot."""
    steps = {
        "key-shares": _key_shares(),
        "complaints": _complaints(),
        "masked-input": _masked_inputs(),
        "confirmation": _confirmations(),
        "unmasking-shares": _unmasking_shares(),
    }
    return [
        {"comment": why, "step": step, "slot": RECEIVER, "body": body.hex()}
        for step, bodies in steps.items()
        for why, body in bodies.items()
    ]


def _key_shares() -> dict[str, bytes]:
    graph_nonce, sent, signature = SUM.key_shares(RECEIVER)

    def signed(rest: bytes, label: bytes = SUM.label, slot: int = RECEIVER) -> bytes:
        payload = graph_nonce + ref.digest(rest)
        return graph_nonce + rest + SUM.sign(slot, "key shares", label, payload)

    other_pairs, other_commitment = sent[:64] + sent[194:] + sent[64:194], bytes(32) + sent[32:]
    return {
        "a share pair fewer than holders": signed(sent[:-130]),
        "a share pair more than holders": signed(sent + sent[-130:]),
        "signed before a share pair was changed": graph_nonce + other_pairs + signature,
        "signed before a commitment was changed": graph_nonce + other_commitment + signature,
        "signed by another": signed(sent, slot=1),
        "signed in another cohort": signed(sent, NEXT_SESSION.label),
        "not signed": graph_nonce + sent + bytes(64),
    }


def _complaints() -> dict[str, bytes]:
    received = SUM.received_shares(RECEIVER)
    first, second, *_ = received
    pairs = ref.digest(*(ref.u32(of) + pair for of, pair in sorted(received.items())))

    def signed(records: bytes, about: bytes = pairs, label: bytes = SUM.label) -> bytes:
        return records + SUM.sign(RECEIVER, "complaints", label, about + records)

    wrong_pair = ref.u32(first) + SUM.complaint(RECEIVER, first, received[second])
    unknown = ref.u32(RECEIVER) + SUM.complaint(RECEIVER, RECEIVER, bytes(130))
    return {
        "not signed": bytes(64),
        "of another": SUM.complaints(1),
        "in another cohort": signed(b"", label=NEXT_SESSION.label),
        "about other pairs than were sent": signed(b"", about=bytes(32)),
        "about the pair of another dealer": signed(wrong_pair),
        "about a dealer that sent none": signed(unknown),
        "signed before a complaint was left out": SUM.complaints(RECEIVER, [first])[-64:],
    }


def _masked_inputs() -> dict[str, bytes]:
    packed = ref.pack(SUM.masked_vector(RECEIVER), LANES)

    def signed(vector: bytes = packed, label: bytes = SUM.transcript) -> bytes:
        return vector + SUM.sign(RECEIVER, "masked input", label, vector)

    large_element = b"\0" * 5 + b"\xff\xff\xff\xff\x03" + b"\0" * 8
    padded = packed[:4] + bytes([packed[4] | 0x80]) + packed[5:]
    return {
        "signed under the cohort, not the transcript": signed(label=SUM.label),
        "signed before the vector was changed": bytes(len(packed)) + signed()[-64:],
        "an element is not below its modulus": signed(large_element),
        "padding is not zero": signed(padded),
    }


def _confirmations() -> dict[str, bytes]:
    survivors = ref.u32(*SUM.survivors)
    return {
        "of another set": SUM.confirmation(RECEIVER, (*SUM.survivors, DROPOUT_SLOT)),
        "by another": SUM.confirmation(1),
        "under the cohort, not the transcript": (
            SUM.sign(RECEIVER, "survivors", SUM.label, survivors)
        ),
    }


def _unmasking_shares() -> dict[str, bytes]:
    revealed, digest = SUM.revealed(RECEIVER), SUM.survivors_digest()
    dealer = next(slot for slot in revealed if slot not in (RECEIVER, DROPOUT_SLOT))
    non_dealer = next(slot for slot in SUM.survivors if slot not in revealed)
    share = revealed[dealer][1]

    def with_record(slot: int, record: tuple[int, bytes]) -> bytes:
        return SUM.unmasking_shares(RECEIVER, {**revealed, slot: record})

    def without(left_out: int) -> bytes:
        kept = {slot: record for slot, record in revealed.items() if slot != left_out}
        return SUM.unmasking_shares(RECEIVER, kept)

    def signed(slot: int = RECEIVER, label: bytes = SUM.transcript, about: bytes = digest) -> bytes:
        records = ref.records(revealed)
        return records + SUM.sign(slot, "unmasking shares", label, about + records)

    return {
        "the own share is left out": without(RECEIVER),
        "no element of the field": with_record(dealer, (0, b"\2" + share[1:])),
        "a survivor's seed share as one of its mask key": with_record(dealer, (1, share)),
        "the seed of a dropout": with_record(DROPOUT_SLOT, (0, share)),
        "a share is missing": without(dealer),
        "a share of one that shared none": with_record(non_dealer, (0, share)),
        "signed by another": signed(slot=1),
        "signed under the cohort, not the transcript": signed(label=SUM.label),
        "the answer for other survivors": signed(
            about=SUM.survivors_digest((*SUM.survivors, DROPOUT_SLOT))
        ),
    }


def refusals() -> dict[str, Any]:
    return {
        "rosters": rosters(),
        "share_commitments": transcripts(),
        "survivors": survivors(),
        "confirmations": confirmations(),
        "signed_inputs": signed_inputs(),
        "share_pairs": share_pairs(),
        "unknown_dealers": unknown_dealers(),
        "complaints": complaints(),
        "to_the_server": to_the_server(),
    }
