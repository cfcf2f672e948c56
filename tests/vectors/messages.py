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
    numbers = (3, 2, 2, 2, 2)
    cohorts = [
        ("a cohort of three", 0, numbers, entries),
        ("another cohort", 1, numbers, entries),
        ("another threshold", 0, (3, 2, 3, 2, 2), entries),
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


def messages() -> dict[str, Any]:
    """Return messages by their fields, and bodies that must be refused."""
    signature = stream("signature", 64)
    pairs = [stream(f"share pair {number}", SHARE_PAIR) for number in range(3)]
    start, joined = stream("graph_nonce") + stream("commitments", 64), b"".join(pairs)
    vector = stream("vector", 10)
    seeds, keys = {1: stream("s1", SHARE), 300: stream("s300", SHARE)}, {7: stream("k7", SHARE)}
    payload = record(1, 0, seeds[1]) + record(7, 1, keys[7]) + record(300, 0, seeds[300])
    complaints = {2: stream("complaint 2", 64), 300: stream("complaint 300", 64)}
    complaining = b"".join(u32(dealer) + complaints[dealer] for dealer in complaints)
    answered = {3: stream("k3", SHARE) + stream("s3", SHARE), 9: bytes(2 * SHARE)}
    answering = b"".join(u32(holder) + shares for holder, shares in answered.items())

    def no(*bodies: tuple[str, bytes]) -> list[dict[str, str]]:
        return [{"comment": why, "packed": body.hex()} for why, body in bodies]

    return {
        "key_shares": [
            {
                "graph_nonce": start[:32].hex(),
                "seed_commitment": start[32:64].hex(),
                "own_share_commitment": start[64:].hex(),
                "share_pairs": [pair.hex() for pair in of],
                "signature": signature.hex(),
                "packed": (start + b"".join(of) + signature).hex(),
                "digest": ref.digest(start[32:], *of).hex(),
            }
            for of in (pairs, pairs[:1], [])
        ],
        "complaints": [
            {
                "signatures": {str(dealer): body.hex() for dealer, body in of.items()},
                "signature": signature.hex(),
                "packed": (complaining[: 68 * len(of)] + signature).hex(),
            }
            for of in (complaints, {})
        ],
        "answers": [
            {
                "key_shares": {str(holder): body[:SHARE].hex() for holder, body in of.items()},
                "seed_shares": {str(holder): body[SHARE:].hex() for holder, body in of.items()},
                "signature": signature.hex(),
                "packed": (answering[: 70 * len(of)] + signature).hex(),
            }
            for of in (answered, {})
        ],
        "masked_inputs": [
            {
                "vector": vector.hex(),
                "signature": signature.hex(),
                "packed": (vector + signature).hex(),
                "digest": ref.digest(vector).hex(),
            }
        ],
        "unmasking_shares": [
            {
                "seed_shares": {str(dealer): share.hex() for dealer, share in seeds.items()},
                "key_shares": {str(dealer): share.hex() for dealer, share in keys.items()},
                "signature": signature.hex(),
                "packed": (payload + signature).hex(),
            },
            {
                "seed_shares": {},
                "key_shares": {},
                "signature": signature.hex(),
                "packed": signature.hex(),
            },
        ],
        "no_key_shares": no(
            ("nothing", b""),
            ("shorter than graph nonce, commitments and signature", bytes(159)),
            ("a share pair is a byte short", start + joined[:-1] + signature),
            ("a share pair is a byte long", start + joined + b"\0" + signature),
            ("half a share pair", start + joined[:-65] + signature),
        ),
        "no_complaints": no(
            ("nothing", b""),
            ("shorter than a signature", bytes(63)),
            ("a record is a byte short", complaining[:-1] + signature),
            ("a record is a byte long", complaining + b"\0" + signature),
            ("a dealer twice", complaining[:68] * 2 + signature),
            ("dealers fall", complaining[68:] + complaining[:68] + signature),
        ),
        "no_answers": no(
            ("nothing", b""),
            ("shorter than a signature", bytes(63)),
            ("a record is a byte short", answering[:-1] + signature),
            ("a share is missing", answering[:37] + signature),
            ("a holder twice", answering[:70] * 2 + signature),
            ("holders fall", answering[70:] + answering[:70] + signature),
        ),
        "no_masked_inputs": no(
            ("nothing", b""),
            ("shorter than a signature", bytes(63)),
        ),
        "no_unmasking_shares": no(
            ("nothing", b""),
            ("shorter than a signature", bytes(63)),
            ("a record is a byte short", payload[:-1] + signature),
            ("a record is a byte long", payload + b"\0" + signature),
            ("a dealer twice, both secrets", record(4, 0) + record(4, 1) + signature),
            ("a dealer twice, one secret", record(4, 0) + record(4, 0) + signature),
            ("dealers fall", record(5, 0) + record(4, 0) + signature),
            ("there is no kind 2", record(4, 2) + signature),
        ),
    }
