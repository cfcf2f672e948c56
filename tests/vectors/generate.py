"""Write the known answers: `python -m tests.vectors.generate`. The format is in README.md.

All random inputs are named streams, so the files are the same each time.
"""

import json
from pathlib import Path
from typing import Any

from tests.vectors import reference as ref
from tests.vectors.cohorts import sums
from tests.vectors.encodings import encodings
from tests.vectors.exact import Terms, parameters
from tests.vectors.hashing import hashing
from tests.vectors.keys import device_identities, keys, signatures
from tests.vectors.messages import labels, messages
from tests.vectors.one_shot import one_shot
from tests.vectors.plans import plans
from tests.vectors.reference import stream
from tests.vectors.refusals import refusals

FOLDER = Path(__file__).parent


def sharing() -> dict[str, Any]:
    """Return shares of secrets, secrets of shares, and what recovers nothing."""

    def dealt(name: str, count: int, threshold: int, secret: bytes | None = None) -> dict[str, Any]:
        secret = stream(name) if secret is None else secret
        drawn = stream(name + " drawn", 32 * (threshold - 1))
        return {
            "secret": secret.hex(),
            "threshold": threshold,
            "drawn": drawn.hex(),
            "shares": [share.hex() for share in ref.split(secret, count, threshold, drawn)],
        }

    def numbered(case: dict[str, Any], *xs: int) -> dict[str, str]:
        return {str(x): case["shares"][x - 1] for x in xs}

    nine = dealt("nine", 9, 4)
    other = dealt("other", 9, 4)
    false = {**numbered(nine, 1, 2, 4, 6, 8, 9), **numbered(other, 3, 7)}
    half = {**numbered(nine, 1, 2, 4, 6, 8), **numbered(other, 3, 5, 7)}
    return {
        "splits": [
            nine,
            dealt("one of one", 1, 1),
            dealt("all of seven", 7, 7),
            dealt("zeros", 5, 3, bytes(32)),
            dealt("ones", 5, 3, b"\xff" * 32),
        ],
        "recoveries": [
            {"shares": numbered(nine, *xs), "secret": nine["secret"]}
            for xs in ((1, 2, 3, 4), (6, 7, 8, 9), (1, 4, 5, 9))
        ],
        "corrections": [
            {"threshold": 4, "shares": false, "secret": nine["secret"], "false": [3, 7]},
            {
                "threshold": 4,
                "shares": numbered(nine, *range(1, 10)),
                "secret": nine["secret"],
                "false": [],
            },
        ],
        "no_secrets": [
            {"comment": "they meet in 2^256, which is no secret", "shares": {"1": "01" + "00" * 32}}
        ],
        "no_corrections": [{"comment": "three of eight are false", "threshold": 4, "shares": half}],
        "no_shares": [
            {"comment": "P is outside the field", "share": ref.P.to_bytes(33, "big").hex()},
            {"comment": "above P", "share": "ff" * 33},
            {"comment": "a byte short", "share": "00" * 32},
            {"comment": "a byte long", "share": "00" * 34},
            {"comment": "nothing", "share": ""},
        ],
    }


def neighbours_of_graphs() -> dict[str, Any]:
    """Return the holders that graph nonces select, and the neighbours of each participant."""
    label = stream("label")

    def graph(n: int, k: int, missing: tuple[int, ...] = ()) -> dict[str, Any]:
        here = [slot for slot in range(n) if slot not in missing]
        payload = {slot: stream(f"graph nonce {n} {slot}") for slot in here}
        selected = {slot: ref.holders(label, n, k, slot, payload[slot]) for slot in here}
        return {
            "label": label.hex(),
            "n": n,
            "holders": k,
            "participants": {
                str(slot): {
                    "graph_nonce": payload[slot].hex(),
                    "holders": selected[slot],
                    "neighbours": ref.neighbours(slot, selected),
                }
                for slot in here
            },
        }

    large = {
        "label": label.hex(),
        "n": 100_000,
        "slot": 65_536,
        "graph_nonce": stream("large").hex(),
        "holders": ref.holders(label, 100_000, 150, 65_536, stream("large")),
    }
    return {"graphs": [graph(12, 6), graph(12, 3, missing=(0, 7)), graph(5, 4)], "holders": [large]}


LANES: list[list[ref.Lane]] = [
    [(2, 11)],
    [(2**13, 5)],
    [(131071, 5)],
    [(2**24 + 43, 9)],  # half of the words are skipped
    [(2**31 - 1, 3)],
    [(2**31 + 11, 3)],  # a prime that two elements of 4 bytes cannot be added under
    [(2**32, 3)],
    [(2**40, 3)],
    [(2**61 - 1, 3)],
    [(2**64, 2)],
    [(2**13, 9), (3, 7), (2**61 - 1, 2)],
]


def vectors() -> dict[str, Any]:
    """Return masks, and vectors with their bytes, lane by lane."""
    key = stream("stream", 16)
    masks = [{"key": key.hex(), "lanes": lanes, "mask": ref.mask(key, lanes)} for lanes in LANES]
    packed = [
        {
            "lanes": case["lanes"],
            "vector": case["mask"],
            "packed": ref.pack(case["mask"], case["lanes"]).hex(),
        }
        for case in masks
    ]
    malformed: list[tuple[str, list[ref.Lane], str]] = [
        ("a byte short", [(251, 10)], "00" * 9),
        ("a byte long", [(251, 10)], "00" * 11),
        ("nothing", [(251, 10)], ""),
        ("an element is q", [(251, 2)], "fafb"),
        ("an element is above q", [(2**61 - 1, 1)], "ff" * 7 + "1f"),
        ("a bit that pads the lane is set", [(8, 1)], "08"),
        ("a bit that pads the first lane is set", [(2**13, 1), (2**8, 1)], "002000"),
    ]
    return {
        "masks": masks,
        "vectors": packed,
        "no_vectors": [
            {"comment": why, "lanes": lanes, "packed": body} for why, lanes, body in malformed
        ],
    }


def cohort_parameters() -> dict[str, Any]:
    """Return parameters of small cohorts, and cohorts that have none."""
    rates = ((50, 50), (100, 200), (200, 200), (50, 300), (0, 400))
    rows = [
        (n, Terms(corrupt, dropout, 40, 30))
        for n in (2, 3, 5, 8, 12, 20, 30, 60)
        for corrupt, dropout in rates
    ]
    rows += [(60, Terms(100, 200, sigma, eta)) for sigma, eta in ((20, 10), (60, 40))]
    none = [
        (1, Terms(0, 0, 40, 30), "a sum of one hides nothing"),
        (1000, Terms(334, 334, 40, 30), "corrupt + 2 dropout is above 0.9"),
        (5, Terms(800, 50, 40, 30), "five shares, where six are needed"),
    ]
    assert all(parameters(n, terms) is None for n, terms, _ in none)

    def shown(n: int, terms: Terms) -> dict[str, Any]:
        return {
            "n": n,
            "corrupt": terms.corrupt / 1000,
            "dropout": terms.dropout / 1000,
            "sigma": terms.sigma,
            "eta": terms.eta,
        }

    result = []
    for n, terms in rows:
        numbers = parameters(n, terms)
        assert numbers is not None
        names = ("holders", "threshold", "spot_checks")
        result.append({**shown(n, terms), **dict(zip(names, numbers, strict=True))})
    return {
        "parameters": result,
        "infeasible": [{"comment": why, **shown(n, terms)} for n, terms, why in none],
    }


FILES = {
    "keys": keys,
    "signatures": signatures,
    "sharing": sharing,
    "neighbours": neighbours_of_graphs,
    "vectors": vectors,
    "parameters": cohort_parameters,
    "labels": labels,
    "messages": messages,
    "sums": sums,
    "refusals": refusals,
    "plans": plans,
    "hashing": hashing,
    "device_identities": device_identities,
    "one_shot": one_shot,
    "encodings": encodings,
}


def text(name: str) -> str:
    """Return the contents of one file: a line for each case."""
    lists = [
        f"{json.dumps(key)}: [\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]"
        for key, cases in FILES[name]().items()
    ]
    return "{\n" + ",\n".join(lists) + "\n}\n"


if __name__ == "__main__":
    for name in FILES:
        (FOLDER / f"{name}.json").write_text(text(name))
