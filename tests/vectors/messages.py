"""Labels and messages by their fields, and bodies that must be refused."""

from typing import Any

from tests.vectors import reference as ref
from tests.vectors.reference import stream, u32

SHARE = 33
ENCRYPTED_SHARE = 65


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
    encrypted_shares = [stream(f"encrypted share {number}", ENCRYPTED_SHARE) for number in range(3)]
    joined = b"".join(encrypted_shares)
    vector = stream("vector", 10)
    seeds, keys = {1: stream("s1", SHARE), 300: stream("s300", SHARE)}, {7: stream("k7", SHARE)}
    payload = (
        record(1, 0, seeds[1]) + record(5, 2) + record(7, 1, keys[7]) + record(300, 0, seeds[300])
    )

    def no(*bodies: tuple[str, bytes]) -> list[dict[str, str]]:
        return [{"comment": why, "packed": body.hex()} for why, body in bodies]

    return {
        "key_shares": [
            {
                "graph_nonce": stream("graph_nonce").hex(),
                "encrypted_shares": [encrypted_share.hex() for encrypted_share in of],
                "signature": signature.hex(),
                "packed": (stream("graph_nonce") + b"".join(of) + signature).hex(),
                "digest": ref.digest(*of).hex(),
            }
            for of in (encrypted_shares, encrypted_shares[:1], [])
        ],
        "masked_inputs": [
            {
                "commitment": stream("commitment").hex(),
                "own_share_commitment": stream("own_share_commitment").hex(),
                "encrypted_shares": [encrypted_share.hex() for encrypted_share in of],
                "vector": vector.hex(),
                "signature": signature.hex(),
                "packed": (
                    stream("commitment")
                    + stream("own_share_commitment")
                    + b"".join(of)
                    + vector
                    + signature
                ).hex(),
            }
            for of in (encrypted_shares, [])
        ],
        "unmasking_shares": [
            {
                "seed_shares": {str(dealer): share.hex() for dealer, share in seeds.items()},
                "key_shares": {str(dealer): share.hex() for dealer, share in keys.items()},
                "invalid_dealers": [5],
                "signature": signature.hex(),
                "packed": (payload + signature).hex(),
            },
            {
                "seed_shares": {},
                "key_shares": {},
                "invalid_dealers": [],
                "signature": signature.hex(),
                "packed": signature.hex(),
            },
        ],
        "no_key_shares": no(
            ("nothing", b""),
            ("shorter than graph nonce and signature", bytes(95)),
            ("an encrypted share is a byte short", bytes(32) + joined[:-1] + signature),
            ("an encrypted share is a byte long", bytes(32) + joined + b"\0" + signature),
        ),
        "no_masked_inputs": no(
            ("nothing", b""),
            ("no seed shares", vector + signature),
            ("one commitment only", bytes(32) + vector + signature),
            ("an encrypted share is a byte short", bytes(64) + joined[:-1] + vector + signature),
            ("the vector is a byte short", bytes(64) + joined + vector[:-1] + signature),
            ("the vector is a byte long", bytes(64) + joined + vector + b"\0" + signature),
            ("no signature", bytes(64) + joined + vector),
        ),
        "no_unmasking_shares": no(
            ("nothing", b""),
            ("shorter than a signature", bytes(63)),
            ("a record is a byte short", payload[:-1] + signature),
            ("a record is a byte long", payload + b"\0" + signature),
            ("a dealer twice, both secrets", record(4, 0) + record(4, 1) + signature),
            ("a dealer twice, one secret", record(4, 0) + record(4, 0) + signature),
            (
                "a dealer twice, revealed and reported as invalid",
                record(4, 0) + record(4, 2) + signature,
            ),
            ("dealers fall", record(5, 0) + record(4, 0) + signature),
            ("there is no kind 3", record(4, 3) + signature),
            (
                "a report of an invalid share carries a share",
                record(4, 2, stream("s1", SHARE)) + signature,
            ),
        ),
    }
