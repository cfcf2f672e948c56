"""Agreements, derived keys, encrypted shares, signatures; and damaged ones that must be refused."""

import hmac
import json
from base64 import urlsafe_b64encode
from hashlib import sha512
from typing import Any

from tests.vectors import reference as ref
from tests.vectors.reference import stream

unhex = bytes.fromhex
Q = 2**255 - 19
# x of Curve25519 and y of Ed25519 whose points have an order that divides 8.
LOW_KEYS = (
    0,
    1,
    Q - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
LOW_IDENTITIES = (
    0,
    1,
    Q - 1,
    2707385501144840649318225287225658788936804267575313519463743609750303402022,
    55188659117513257062467267217118295137698188065244968500265048394206261417927,
)


def encodings(values: tuple[int, ...]) -> list[str]:
    """Return all 32 bytes that decode to one of `values`, either top bit."""
    below = [x for value in values for x in (value, value + Q) if x < 2**255]
    return [(x + top).to_bytes(32, "little").hex() for x in below for top in (0, 2**255)]


def keys() -> dict[str, Any]:
    """Return agreements, derived keys, encrypted shares and streams."""
    first, second = stream("one"), stream("two")
    secret = ref.agree(first, ref.key_public(second))
    label, share = stream("label"), bytes(1) + stream("message")
    purpose = {"label": label, "name": "seed share", "sender": 3, "receiver": 5}
    others: list[tuple[str, dict[str, Any]]] = [
        ("reflected to its sender", {"sender": 5, "receiver": 3}),
        ("labelled with another sender", {"sender": 4}),
        ("moved to another receiver", {"receiver": 6}),
        ("a share of a seed handed over as one of a mask key", {"name": "key share"}),
        ("of another sum", {"label": stream("another label")}),
    ]

    def info(of: dict[str, Any]) -> bytes:
        return ref.info(of["name"], of["sender"], of["receiver"])

    def shown(of: dict[str, Any]) -> dict[str, Any]:
        return {**of, "label": of["label"].hex()}

    def derived(name: str, sender: int, receiver: int) -> dict[str, Any]:
        of = {"label": label, "name": name, "sender": sender, "receiver": receiver}
        key = ref.derive(secret, label, info(of)).hex()
        return {**shown(of), "secret": secret.hex(), "info": (info(of) + label).hex(), "key": key}

    public = ref.key_public(first)
    alias = (public[:31] + bytes([public[31] | 128])).hex()
    encrypted_share = ref.encrypted_share(secret, label, info(purpose), share)
    encrypted = {**shown(purpose), "secret": secret.hex(), "encrypted_share": encrypted_share.hex()}
    none = ref.encrypted_share(secret, label, info(purpose), ref.P.to_bytes(33, "big"))
    damaged = [
        (
            "the first byte of its commitment is another",
            bytes([encrypted_share[0] ^ 1]) + encrypted_share[1:],
        ),
        (
            "its first byte is another",
            encrypted_share[:32] + bytes([encrypted_share[32] ^ 1]) + encrypted_share[33:],
        ),
        ("its last byte is another", encrypted_share[:-1] + bytes([encrypted_share[-1] ^ 1])),
        ("its share is P", none),
        ("there are zeros", bytes(65)),
    ]
    closed = [{"comment": why, **encrypted, **shown({**purpose, **of})} for why, of in others]
    closed += [
        {"comment": why, **encrypted, "encrypted_share": body.hex()} for why, body in damaged
    ]
    closed.append(
        {"comment": "it was sealed under another secret", **encrypted, "secret": second.hex()}
    )
    low = [
        ("unused bit" if unhex(key)[-1] & 128 else "of low order", key)
        for key in (*encodings(LOW_KEYS), alias)
    ]
    names = [("mask", 2, 7), ("self", 2, 2), ("key share", 2, 7), ("seed share", 2, 7)]
    return {
        "agreements": [
            {"secret": a.hex(), "public": ref.key_public(b).hex(), "agreed": secret.hex()}
            for a, b in ((first, second), (second, first))
        ],
        "derivations": [derived(*name) for name in names],
        "encrypted_shares": [{**encrypted, "share": share.hex()}],
        "encrypted_shares_to_refuse": closed,
        "keys_to_refuse": [
            *({"comment": why, "key": key} for why, key in low),
            *({"comment": "not 32 bytes", "key": bytes(size).hex()} for size in (0, 31, 33)),
        ],
    }


def odd_signatures(secret: bytes, statement: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return two signatures of `secret` that some libraries accept and this protocol refuses."""
    order = 2**252 + 27742317777372353535851937790883648493
    hashed, signature = sha512(secret).digest(), ref.sign(secret, statement)
    nonce = int.from_bytes(sha512(hashed[32:] + statement).digest(), "little") % order
    scalar = int.from_bytes(hashed[:32], "little") % 2**254 // 8 * 8 + 2**254
    y, sign = int.from_bytes(signature[:32], "little") % 2**255, signature[31] >> 7
    # Adding the point of order 2 turns (x, y) into (-x, -y).
    moved = (Q - y + (1 - sign) * 2**255).to_bytes(32, "little")
    hashed = sha512(moved + ref.identity(secret) + statement).digest()
    s = (nonce + int.from_bytes(hashed, "little") * scalar) % order
    large = int.from_bytes(signature[32:], "little") + order
    return [
        (
            "S is not below the group's order",
            {"signature": signature[:32] + large.to_bytes(32, "little")},
        ),
        ("holds with the cofactor only", {"signature": moved + s.to_bytes(32, "little")}),
    ]


def seatings(registrar: bytes, plan: bytes) -> list[dict[str, Any]]:
    """Return two cohorts of 5 joiners, seated by `registrar`, as their rosters begin."""
    identities = [ref.identity(stream(f"joiner {number}")) for number in range(5)]
    cohorts = (identities[:3], identities[3:])
    cases = []
    for number, members in enumerate(cohorts):
        payload = ref.u32(5, 2) + b"".join(members)
        statement = ref.statement("seating", plan, number, payload)
        packed = ref.u32(number, 5) + ref.sign(registrar, statement)
        cases.append(
            {
                "registrar": registrar.hex(),
                "plan_digest": plan.hex(),
                "joiners": 5,
                "cohorts": 2,
                "cohort": number,
                "identities": [each.hex() for each in members],
                "statement": statement.hex(),
                "packed": packed.hex(),
            }
        )
    return cases


def signatures() -> dict[str, Any]:
    """Return statements with their signatures, and signatures that do not hold."""
    secret, label = stream("identity"), stream("label")
    payloads = [
        ("key shares", b"payload"),
        ("complaint", ref.u32(7) + bytes(130)),
        ("complaints", bytes(32)),
        ("answers", b"answers"),
        ("masked input", b""),
        ("survivors", ref.u32(0, 1, 4)),
        ("unmasking shares", b"x"),
    ]
    payloads += [("keys", stream("mask") + stream("encryption")), ("enrolment", stream("another"))]
    payload = b"payload"
    statement = ref.statement("key shares", label, 3, payload)
    signature = ref.sign(secret, statement)
    good = {
        "identity": ref.identity(secret).hex(),
        "what": "key shares",
        "label": label.hex(),
        "slot": 3,
        "payload": payload.hex(),
    }
    bad = [
        ("signed for another payload", {"payload": b"another".hex()}),
        ("signed as another slot", {"slot": 4}),
        ("signed in another sum", {"label": stream("another label").hex()}),
        ("signed in another step", {"what": "masked input"}),
        ("signed by another", {"identity": ref.identity(stream("another")).hex()}),
        ("touched", {"signature": (bytes([signature[0] ^ 1]) + signature[1:]).hex()}),
        ("a byte short", {"signature": signature[:-1].hex()}),
        ("a byte long", {"signature": (signature + b"\0").hex()}),
        ("missing", {"signature": ""}),
        ("zeros", {"signature": bytes(64).hex()}),
    ]
    malformed = odd_signatures(secret, statement)
    bad += [(why, {name: body.hex() for name, body in of.items()}) for why, of in malformed]
    return {
        "seatings": seatings(secret, label),
        "statements": [
            {
                **good,
                "secret": secret.hex(),
                "what": what,
                "payload": body.hex(),
                "statement": ref.statement(what, label, 3, body).hex(),
                "signature": ref.sign(secret, ref.statement(what, label, 3, body)).hex(),
            }
            for what, body in payloads
        ],
        "no_signatures": [
            {"comment": why, **good, "signature": signature.hex(), **other} for why, other in bad
        ],
        "identities_to_refuse": [
            *({"comment": "of low order", "identity": key} for key in encodings(LOW_IDENTITIES)),
            *({"comment": "not 32 bytes", "identity": bytes(n).hex()} for n in (0, 31, 33)),
        ],
    }


def device_identities() -> dict[str, Any]:
    """Return identities that devices derive from their secret, and their credentials."""

    def known(secret: bytes, service: str, study: str | None) -> dict[str, Any]:
        def derived(what: str) -> bytes:
            purpose = json.dumps([what, service, study])
            return hmac.new(secret, purpose.encode(), "sha256").digest()

        return {
            "secret": secret.hex(),
            "service": service,
            "study": study,
            "identity": ref.identity(derived("identity")).hex(),
            "credential": urlsafe_b64encode(derived("credential")).decode().rstrip("="),
        }

    secret = stream("device")
    return {
        "identities": [
            known(secret, "https://counts.example.org", "0123456789abcdef"),
            known(
                secret, "https://counts.example.org", None
            ),  # for all studies that ask for reports
            known(secret, "http://127.0.0.1:8000", "0123456789abcdef"),
            known(stream("another device"), "https://counts.example.org", "0123456789abcdef"),
        ]
    }
