"""Labels and messages by their fields, and bodies that must be refused."""

from typing import Any

from tests.vectors import reference as ref
from tests.vectors.reference import stream, u32

SHARE = 33
SHARE_PAIR = 130


def labels() -> dict[str, Any]:
    """Return labels of cohorts and views, and commitments."""
    entries = [stream(f"entry {slot}", 160) for slot in range(3)]
    enrolled = [entry + stream("enrolment", 64) for entry in entries]
    numbers = (3, 2, 2, 2)
    cohorts = [
        ("a cohort of three", 0, numbers, entries),
        ("another cohort", 1, numbers, entries),
        ("another threshold", 0, (3, 2, 3, 2), entries),
        ("two who changed seats", 0, numbers, [entries[1], entries[0], entries[2]]),
        ("enrolled", 0, numbers, enrolled),
    ]
    dealers = {slot: (stream(f"graph nonce {slot}"), stream(f"digest {slot}")) for slot in (0, 2)}
    fewer = {0: dealers[0]}
    swapped = {0: dealers[2], 2: dealers[0]}
    return {
        "sessions": [
            {
                "comment": why,
                "plan": stream("plan").hex(),
                "number": number,
                "parameters": payload,
                "roster": [entry.hex() for entry in roster],
                "label": ref.session_label(stream("plan"), number, payload, roster).hex(),
            }
            for why, number, payload, roster in cohorts
        ],
        "transcripts": [
            {
                "comment": why,
                "session": stream("session").hex(),
                "share_commitments": {
                    str(slot): [part.hex() for part in payload] for slot, payload in of.items()
                },
                "label": ref.transcript_label(stream("session"), of).hex(),
            }
            for why, of in (("two shared", dealers), ("one shared", fewer), ("changed", swapped))
        ],
        "commitments": [
            {"seed": stream("seed").hex(), "commitment": ref.commit_seed(stream("seed")).hex()},
            {
                "share": stream("share", 33).hex(),
                "commitment": ref.commit_share(stream("share", 33)).hex(),
            },
        ],
    }


def record(dealer: int, kind: int, share: bytes = bytes(SHARE)) -> bytes:
    """Return one record of unmasking shares."""
    return u32(dealer) + bytes([kind]) + share


SIGNATURE = stream("signature", 64)
PAIRS = [stream(f"share pair {number}", SHARE_PAIR) for number in range(3)]
JOINED = b"".join(PAIRS)
START = stream("graph_nonce") + stream("commitments", 64)
VECTOR = stream("vector", 10)
SEEDS, KEYS = {1: stream("s1", SHARE), 300: stream("s300", SHARE)}, {7: stream("k7", SHARE)}
PAYLOAD = record(1, 0, SEEDS[1]) + record(7, 1, KEYS[7]) + record(300, 0, SEEDS[300])
COMPLAINTS = {2: stream("complaint 2", 64), 300: stream("complaint 300", 64)}
COMPLAINING = b"".join(u32(dealer) + body for dealer, body in COMPLAINTS.items())
ANSWERED = {3: stream("k3", SHARE) + stream("s3", SHARE), 9: bytes(2 * SHARE)}
ANSWERING = b"".join(u32(holder) + shares for holder, shares in ANSWERED.items())


def messages() -> dict[str, Any]:
    """Return messages by their fields, and bodies that must be refused."""
    return accepted() | refused()


def accepted() -> dict[str, Any]:
    return {
        "key_shares": [
            {
                "graph_nonce": START[:32].hex(),
                "seed_commitment": START[32:64].hex(),
                "own_share_commitment": START[64:].hex(),
                "share_pairs": [pair.hex() for pair in of],
                "signature": SIGNATURE.hex(),
                "packed": (START + b"".join(of) + SIGNATURE).hex(),
                "digest": ref.digest(START[32:], *of).hex(),
            }
            for of in (PAIRS, PAIRS[:1], [])
        ],
        "complaints": [
            {
                "signatures": {str(dealer): body.hex() for dealer, body in of.items()},
                "signature": SIGNATURE.hex(),
                "packed": (COMPLAINING[: 68 * len(of)] + SIGNATURE).hex(),
            }
            for of in (COMPLAINTS, {})
        ],
        "answers": [
            {
                "key_shares": {str(holder): body[:SHARE].hex() for holder, body in of.items()},
                "seed_shares": {str(holder): body[SHARE:].hex() for holder, body in of.items()},
                "signature": SIGNATURE.hex(),
                "packed": (ANSWERING[: 70 * len(of)] + SIGNATURE).hex(),
            }
            for of in (ANSWERED, {})
        ],
        "masked_inputs": [
            {
                "vector": VECTOR.hex(),
                "signature": SIGNATURE.hex(),
                "packed": (VECTOR + SIGNATURE).hex(),
                "digest": ref.digest(VECTOR).hex(),
            }
        ],
        "unmasking_shares": [
            {
                "seed_shares": {str(dealer): share.hex() for dealer, share in SEEDS.items()},
                "key_shares": {str(dealer): share.hex() for dealer, share in KEYS.items()},
                "signature": SIGNATURE.hex(),
                "packed": (PAYLOAD + SIGNATURE).hex(),
            },
            {
                "seed_shares": {},
                "key_shares": {},
                "signature": SIGNATURE.hex(),
                "packed": SIGNATURE.hex(),
            },
        ],
    }


def no(*bodies: tuple[str, bytes]) -> list[dict[str, str]]:
    return [{"comment": why, "packed": body.hex()} for why, body in bodies]


def refused() -> dict[str, Any]:
    return {
        "no_key_shares": no(
            ("nothing", b""),
            ("shorter than graph nonce, commitments and signature", bytes(159)),
            ("a share pair is a byte short", START + JOINED[:-1] + SIGNATURE),
            ("a share pair is a byte long", START + JOINED + b"\0" + SIGNATURE),
            ("half a share pair", START + JOINED[:-65] + SIGNATURE),
        ),
        "no_complaints": no(
            ("nothing", b""),
            ("shorter than a signature", bytes(63)),
            ("a record is a byte short", COMPLAINING[:-1] + SIGNATURE),
            ("a record is a byte long", COMPLAINING + b"\0" + SIGNATURE),
            ("a dealer twice", COMPLAINING[:68] * 2 + SIGNATURE),
            ("dealers fall", COMPLAINING[68:] + COMPLAINING[:68] + SIGNATURE),
        ),
        "no_answers": no(
            ("nothing", b""),
            ("shorter than a signature", bytes(63)),
            ("a record is a byte short", ANSWERING[:-1] + SIGNATURE),
            ("a share is missing", ANSWERING[:37] + SIGNATURE),
            ("a holder twice", ANSWERING[:70] * 2 + SIGNATURE),
            ("holders fall", ANSWERING[70:] + ANSWERING[:70] + SIGNATURE),
        ),
        "no_masked_inputs": no(("nothing", b""), ("shorter than a signature", bytes(63))),
        "no_unmasking_shares": no(
            ("nothing", b""),
            ("shorter than a signature", bytes(63)),
            ("a record is a byte short", PAYLOAD[:-1] + SIGNATURE),
            ("a record is a byte long", PAYLOAD + b"\0" + SIGNATURE),
            ("a dealer twice, both secrets", record(4, 0) + record(4, 1) + SIGNATURE),
            ("a dealer twice, one secret", record(4, 0) + record(4, 0) + SIGNATURE),
            ("dealers fall", record(5, 0) + record(4, 0) + SIGNATURE),
            ("there is no kind 2", record(4, 2) + SIGNATURE),
        ),
    }
