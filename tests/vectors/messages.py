"""Labels and messages by their fields, and bytes that are none."""

from typing import Any

from tests.vectors import reference as ref
from tests.vectors.reference import some, u32

SHARE = 33
PARCEL = 65


def labels() -> dict[str, Any]:
    """Return labels of cohorts and views, and commitments."""
    entries = [some(f"entry {slot}", 160) for slot in range(3)]
    enrolled = [entry + some("enrolment", 64) for entry in entries]
    numbers = (3, 2, 2, 2, 2)
    cohorts = [
        ("a cohort of three", 0, numbers, entries),
        ("another cohort", 1, numbers, entries),
        ("another threshold", 0, (3, 2, 3, 2, 2), entries),
        ("two who changed seats", 0, numbers, [entries[1], entries[0], entries[2]]),
        ("enrolled", 0, numbers, enrolled),
    ]
    sharers = {slot: (some(f"contribution {slot}"), some(f"digest {slot}")) for slot in (0, 2)}
    fewer = {0: sharers[0]}
    swapped = {0: sharers[2], 2: sharers[0]}
    return {
        "cohorts": [
            {
                "comment": why,
                "plan": some("plan").hex(),
                "number": number,
                "parameters": said,
                "roster": [entry.hex() for entry in roster],
                "label": ref.cohort_label(some("plan"), number, said, roster).hex(),
            }
            for why, number, said, roster in cohorts
        ],
        "views": [
            {
                "comment": why,
                "cohort": some("cohort").hex(),
                "sharers": {str(slot): [part.hex() for part in said] for slot, said in of.items()},
                "label": ref.view_label(some("cohort"), of).hex(),
            }
            for why, of in (("two shared", sharers), ("one shared", fewer), ("changed", swapped))
        ],
        "commitments": [
            {"seed": some("seed").hex(), "commitment": ref.commit_seed(some("seed")).hex()},
            {
                "share": some("share", 33).hex(),
                "commitment": ref.commit_share(some("share", 33)).hex(),
            },
        ],
    }


def record(owner: int, kind: int, share: bytes = bytes(SHARE)) -> bytes:
    """Return one record of a reveal."""
    return u32(owner) + bytes([kind]) + share


def messages() -> dict[str, Any]:
    """Return messages by their fields, and bodies that are none."""
    signature = some("signature", 64)
    parcels = [some(f"parcel {number}", PARCEL) for number in range(3)]
    joined = b"".join(parcels)
    vector = some("vector", 10)
    seeds, keys = {1: some("s1", SHARE), 300: some("s300", SHARE)}, {7: some("k7", SHARE)}
    said = (
        record(1, 0, seeds[1]) + record(5, 2) + record(7, 1, keys[7]) + record(300, 0, seeds[300])
    )

    def no(*bodies: tuple[str, bytes]) -> list[dict[str, str]]:
        return [{"comment": why, "packed": body.hex()} for why, body in bodies]

    return {
        "key_deals": [
            {
                "contribution": some("contribution").hex(),
                "parcels": [parcel.hex() for parcel in of],
                "signature": signature.hex(),
                "packed": (some("contribution") + b"".join(of) + signature).hex(),
                "digest": ref.digest(*of).hex(),
            }
            for of in (parcels, parcels[:1], [])
        ],
        "uploads": [
            {
                "commitment": some("commitment").hex(),
                "own": some("own").hex(),
                "parcels": [parcel.hex() for parcel in of],
                "vector": vector.hex(),
                "signature": signature.hex(),
                "packed": (
                    some("commitment") + some("own") + b"".join(of) + vector + signature
                ).hex(),
            }
            for of in (parcels, [])
        ],
        "reveals": [
            {
                "seed_shares": {str(owner): share.hex() for owner, share in seeds.items()},
                "key_shares": {str(owner): share.hex() for owner, share in keys.items()},
                "faulty": [5],
                "signature": signature.hex(),
                "packed": (said + signature).hex(),
            },
            {
                "seed_shares": {},
                "key_shares": {},
                "faulty": [],
                "signature": signature.hex(),
                "packed": signature.hex(),
            },
        ],
        "no_key_deals": no(
            ("nothing", b""),
            ("shorter than contribution and signature", bytes(95)),
            ("a parcel is a byte short", bytes(32) + joined[:-1] + signature),
            ("a parcel is a byte long", bytes(32) + joined + b"\0" + signature),
        ),
        "no_uploads": no(
            ("nothing", b""),
            ("no deal", vector + signature),
            ("one commitment only", bytes(32) + vector + signature),
            ("a parcel is a byte short", bytes(64) + joined[:-1] + vector + signature),
            ("the vector is a byte short", bytes(64) + joined + vector[:-1] + signature),
            ("the vector is a byte long", bytes(64) + joined + vector + b"\0" + signature),
            ("no signature", bytes(64) + joined + vector),
        ),
        "no_reveals": no(
            ("nothing", b""),
            ("shorter than a signature", bytes(63)),
            ("a record is a byte short", said[:-1] + signature),
            ("a record is a byte long", said + b"\0" + signature),
            ("an owner twice, both secrets", record(4, 0) + record(4, 1) + signature),
            ("an owner twice, one secret", record(4, 0) + record(4, 0) + signature),
            ("an owner twice, given and complained of", record(4, 0) + record(4, 2) + signature),
            ("owners fall", record(5, 0) + record(4, 0) + signature),
            ("there is no kind 3", record(4, 3) + signature),
            ("a complaint carries a share", record(4, 2, some("s1", SHARE)) + signature),
        ),
    }
