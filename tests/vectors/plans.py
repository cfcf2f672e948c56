"""Inputs of the protocol without keys: plans, scopes, downloaded lists and reports."""

import json
from decimal import Decimal
from typing import Any

from tests.vectors import reference as ref
from tests.vectors.reference import stream, u32

_SEED = "f5b165224a58b791df6af1d8303e61cdc4bb86c3d1c427103c344c4189eb2f1e"


def _plan(**changes: Any) -> dict[str, Any]:
    """Return a plan as the service writes it, with `changes`."""
    terms = {"cohort_size": 100, "minimum": 50, "cohorts": 1, "corrupt": 0.15, "dropout": 0.2}
    terms |= {"sigma": 40, "eta": 30, "registrar": None, "sum": "pairwise", "committee": None}
    question = {"mechanism": "adaptive-iblt", "threshold": 20.0, "contribution": 3}
    question |= {"domain": {"kind": "utf8", "max_bytes": 12}, "confidence": 0.5}
    question |= {"message_bytes": 10_000, "hash_bits": 7, "rule": "steady"}
    plan = {"mechanism": "adaptive-iblt", "question": question, "study": "study", "round": 1}
    plan |= {"rounds": 3, "terms": terms, "seed": _SEED, "t": 1.4634146341463414, "cells": 270}
    return plan | {"terms": terms | changes.pop("terms", {})} | changes


def plans() -> dict[str, Any]:
    """Return plans, scopes, downloaded lists, reports, and malformed lists."""
    cases = [
        ("of a first round", _plan()),
        ("of another round", _plan(round=2)),
        ("floats of all forms, and letters beyond ASCII", _plan(study="étude ☂", t=1e15)),
        ("a tiny rate, and a registrar", _plan(terms={"dropout": 1e-5, "registrar": "ab" * 32})),
        ("rates with exponents", _plan(terms={"dropout": 1e-7, "corrupt": 1.25e-10})),
    ]
    studies = [
        ("a study", _plan()),
        ("another id", _plan(study="étude ☂")),
        ("a later round has the scope of the first", _plan(round=2, t=2.5)),
        ("other terms", _plan(terms={"minimum": 3})),
        ("one round more", _plan(rounds=4)),
    ]
    slots = (0, 2, 2**31, 2**32 - 1)
    return {
        "plans": [
            {"comment": why, "text": _text(plan), "digest": _digest(plan).hex()}
            for why, plan in cases
        ],
        "no_plans": [
            {"comment": why, "text": _text(_plan()).replace(*change)} for why, *change in _CHANGES
        ],
        "scopes": [
            {"comment": why, "plan": plan, "scope": _scope(plan).hex()} for why, plan in studies
        ],
        "scopes_of_reports": [{"scope": ref.digest(b"blindtally reports v1\0").hex()}],
        "possessions": [
            {
                "credential": stream("credential").hex(),
                "statement": (b"blindtally device v1\0" + ref.digest(stream("credential"))).hex(),
            }
        ],
        "downloads": [_download(kind, size, slots) for kind, size in _SIZES.items()],
        "reports": [_report(enrolment) for enrolment in (b"", stream("enrolment", 64))],
        "no_downloads": [
            {"comment": f"{kind}, {why}", "kind": kind, "packed": body.hex()}
            for kind, size in _SIZES.items()
            for why, body in (
                ("a byte short", (u32(0) + stream(kind, size))[:-1]),
                ("a byte long", u32(0) + stream(kind, size + 1)),
                ("a slot twice", 2 * (u32(3) + stream(kind, size))),
                ("slots that fall", u32(2**31) + bytes(size) + u32(2) + bytes(size)),
            )
        ],
    }


_CHANGES = [
    ("a key that occurs twice", '"cells":270', '"cells":270,"cells":270'),
    ("a key that occurs twice, with two values", '"cells":270', '"cells":4,"cells":270'),
    ("a float that is not canonical", '"confidence":0.5', '"confidence":5e-1'),
    ("a whole number as a float", '"threshold":20', '"threshold":20.0'),
    ("a rate with a needless zero", '"dropout":0.2', '"dropout":0.20'),
    ("a number that is not finite", '"confidence":0.5', '"confidence":NaN'),
    ("a number above all floats", '"confidence":0.5', '"confidence":1e999'),
    ("a blank", '"cells":270', '"cells": 270'),
    ("a line end", '"cells":270', '"cells":270\n'),
    ("keys in another order", '"round":1,"rounds":3', '"rounds":3,"round":1'),
    ("a letter as an escape", '"utf8"', '"utf\\u0038"'),
    ("a field that has its default, left out", '"t":1.4634146341463414,', ""),
    ("an unknown field", '"cells":270', '"cellos":1,"cells":270'),
]
_SIZES = {"share-commitments": 64, "confirmations": 64, "encrypted-shares": 130}
_SIZES |= {"signed-inputs": 96}


def _digest(plan: dict[str, Any]) -> bytes:
    return ref.digest(b"blindtally plan v2\0", _text(plan).encode())


def _scope(plan: dict[str, Any]) -> bytes:
    facts = {name: plan[name] for name in ("question", "rounds", "terms")}
    study = plan["study"].encode()
    return ref.digest(b"blindtally study v3\0", ref.digest(_text(facts).encode()), study)


def _text(plain: Any) -> str:
    """Return `plain` in the canonical form of RFC 8785, for keys in ASCII."""
    if isinstance(plain, dict):
        return "{" + ",".join(f'"{key}":{_text(plain[key])}' for key in sorted(plain)) + "}"
    if isinstance(plain, list):
        return "[" + ",".join(map(_text, plain)) + "]"
    return _number(plain) if isinstance(plain, float) else json.dumps(plain, ensure_ascii=False)


def _number(value: float) -> str:
    """Return a positive number as ECMAScript writes it (ECMA-262, Number::toString)."""
    digits, exponent = f"{Decimal(repr(value)).normalize():e}".split("e")
    if -7 < int(exponent) < 21:
        return f"{Decimal(repr(value)).normalize():f}"
    return f"{digits}e{int(exponent):+d}"


def _download(kind: str, size: int, slots: tuple[int, ...]) -> dict[str, Any]:
    payload = {slot: stream(f"{kind} {slot}", size) for slot in slots}
    return {
        "kind": kind,
        "records": {str(slot): body.hex() for slot, body in payload.items()},
        "packed": b"".join(u32(slot) + body for slot, body in payload.items()).hex(),
    }


def _report(enrolment: bytes) -> dict[str, str]:
    secret, digest, body = stream("identity"), _digest(_plan()), stream("report", 9)
    signature = ref.sign(secret, ref.statement("report", digest, 0, body))
    return {
        "secret": secret.hex(),
        "digest": digest.hex(),
        "report": body.hex(),
        "enrolment": enrolment.hex(),
        "packed": (digest + body + signature + enrolment).hex(),
    }
