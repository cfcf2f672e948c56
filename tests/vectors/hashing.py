"""Hash functions, weights of counters and keys of hashed items, as docs/protocol.md has them."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from tests.vectors import reference as ref
from tests.vectors.reference import stream

P, WORD = 2**61 - 1, 2**64
BOUNDS = {16: 2**16 - 15, 20: 2**20 - 3, 24: 2**24 - 3}  # primes, by the bits of a chunk


def drawn(seed: bytes, purpose: str, lanes: Sequence[ref.Lane]) -> list[list[int]]:
    return ref.mask(ref.digest(b"blindtally hashing v1\0", seed, purpose.encode()), lanes)


def mix(x: int) -> int:
    """Return the finaliser of SplitMix64."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % WORD
    return x ^ x >> 31


def _family(purpose: str, chunks: int, outputs: int) -> dict[str, Any]:
    """Return a family, and the hashes of four keys; large numbers are text."""
    seed, name = stream(f"seed {purpose}"), f"{purpose} {chunks}"
    a, b = drawn(seed, purpose, [(P, 1 + chunks), (WORD, 2 * outputs)])
    (random,) = ref.mask(stream(name, 16), [(2**32, chunks)])
    keys = [[0] * chunks, [2**24 - 4] * chunks, [2**32 - 1] * chunks, random]
    prints = [(a[0] + sum(x * y for x, y in zip(a[1:], key, strict=True))) % P for key in keys]
    words = [[mix((mix(f ^ b[i]) + b[outputs + i]) % WORD) for i in range(outputs)] for f in prints]
    return {
        "seed": seed.hex(),
        "purpose": purpose,
        "coefficients": [str(x) for x in a],
        "keys": [str(x) for x in b],
        "hashed": keys,
        "fingerprints": [str(x) for x in prints],
        "words": [[str(x) for x in row] for row in words],
    }


def _weights(sizes: Sequence[int]) -> dict[str, Any]:
    (weights,) = drawn(stream("seed"), "counter weights", [(16777212, sum(sizes))])
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = [weights[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    return {"seed": stream("seed").hex(), "weights": [[1 + x for x in part] for part in parts]}


def _chunks(item: str, bits: int, salt: str) -> list[int]:
    """Return the chunks of a key, the lowest bits first, before they are reduced."""
    digest = ref.digest(b"blindtally item v1\0", salt.encode(), b"\0", item.encode())
    number, size = int.from_bytes(digest[: bits // 8], "big"), bits // -(-bits // 24)
    return [number >> start & 2**size - 1 for start in range(0, bits, size)]


def _key(item: str, bits: int, salt: str) -> dict[str, Any]:
    chunks = _chunks(item, bits, salt)
    size = bits // len(chunks)
    number = sum(chunk % BOUNDS[size] << size * place for place, chunk in enumerate(chunks))
    name = f"#{number:0{bits // 4}x}"
    return {"item": item, "key_bits": bits, "salt": salt, "name": name}


def hashing() -> dict[str, Any]:
    """Return families of hash functions, weights, and names of keys."""
    items = (f"item {number}" for number in count())
    wrapped = next(item for item in items if max(_chunks(item, 32, "study")) >= BOUNDS[16])
    texts = [(item, bits, "study") for bits in (24, 32, 40, 48, 72) for item in ("", "a ☂")]
    return {
        "hash_families": [_family("iblt", 1, 3), _family("iblt", 5, 6), _family("votes 2", 2, 4)],
        "counter_weights": [_weights((1,)), _weights((3, 40, 2))],
        "item_keys": [_key(*text) for text in [*texts, ("a", 40, ""), (wrapped, 32, "study")]],
    }
