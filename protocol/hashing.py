"""Seeded hash families over keys of several chunks, vectorised.

A key x = (x_1 .. x_c), each chunk below 2^32, is hashed in two steps:

    fingerprint   a_0 + a_1 x_1 + .. + a_c x_c  mod 2^61 - 1, with random a: two keys collide
                  with probability 2^-61 (multilinear hashing, [CarterWegman79], [Lemire14])
    words         each fingerprint through two rounds of a 64-bit finaliser
                  ([Stafford11], variant 13, as in SplitMix64), with other keys for each word

The first step alone must not be used as a check hash: it is linear, so the hash of a weighted
mean of keys *is* the weighted mean of their hashes. The finaliser breaks this. That its words are
as good as random is an assumption, which the tests probe on keys that differ little. An attacker
who knows the seed can make collisions, so every round has a fresh seed.

Coefficients and keys come from the AES-256-CTR stream whose key is SHA-256 of a label, the 32-byte
seed and the purpose. So different seeds, and purposes under one seed, give independent functions.

`splitmix_hash` takes a seed of 64 bits for each value instead, for oracles that allow any hash:

    word(s, x)  =  mix(mix(s + g) + (x + 1) g)      g odd: 2^64 over the golden ratio
    h_s(x)      =  floor(upper half of the word * m / 2^32)

This is SplitMix64's output x of the stream that starts at mix(s + g) [Steele14]. That two values
collide under 1 of m seeds is an assumption that tests probe. Privacy needs nothing of a hash
function.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import TypeVar

import numpy as np

from protocol.numerics.array_types import Words
from secagg.keys import Keystream
from secagg.ring import Lane

_PRIME = np.uint64(2**61 - 1)
_U29, _U30, _U31, _U32 = (np.uint64(shift) for shift in (29, 30, 31, 32))
_U27, _U61 = np.uint64(27), np.uint64(61)
_LOW29, _LOW32 = np.uint64(2**29 - 1), np.uint64(2**32 - 1)
_STAFFORD = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)


W = TypeVar("W", Words, np.uint64)


@dataclass(frozen=True, slots=True)
class HashFamily:
    """The hash functions of one seed and purpose, for keys of `chunks` chunks."""

    seed: bytes
    purpose: str
    chunks: int
    outputs: int
    coefficients: Words = field(init=False, repr=False, compare=False)
    keys: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        drawn = _derive(self.seed, self.purpose, self.chunks, self.outputs)
        object.__setattr__(self, "coefficients", drawn[0])
        object.__setattr__(self, "keys", drawn[1])

    def fingerprint(self, keys: Words) -> Words:
        """Return the 61-bit fingerprints of `keys`, shape `(n, chunks)`."""
        upper = lower = np.zeros(len(keys), np.uint64)
        for factor, chunk in zip(self.coefficients[1:], keys.T, strict=True):
            high = (factor >> _U32) * chunk  # below 2^61: 29 bits by 32
            low = (factor & _LOW32) * chunk
            term = _fold(_times_2_32(high) + (low & _PRIME) + (low >> _U61))
            # Summed by halves, since more than 8 terms would overflow 64 bits.
            upper = upper + (term >> _U32)
            lower = lower + (term & _LOW32)
        total = _fold(_times_2_32(upper) + lower + self.coefficients[0])
        return np.where(total >= _PRIME, total - _PRIME, total)

    def hash(self, keys: Words, words: slice = slice(None)) -> Words:
        """Return the 64-bit hashes of each key, or a slice of them, shape `(n, words)`."""
        first, second = self.keys[:, words]
        return mix(mix(self.fingerprint(keys)[:, np.newaxis] ^ first) + second)


def seeded_stream(seed: bytes, purpose: str) -> Keystream:
    """Return the stream of a public 32-byte `seed` for one purpose."""
    return Keystream(sha256(b"blindtally hashing v1\0" + seed + purpose.encode()).digest())


def fast_range(words: Words, bound: int) -> Words:
    """Return `words` mapped below `bound` < 2^32, uniform except for a bias of bound / 2^32."""
    return ((words >> _U32) * np.uint64(bound)) >> _U32


def splitmix_hash(seeds: Words, values: Words, m: int) -> Words:
    """Return h_s(x) < `m` <= 2^32; the arrays, at least one-dimensional, are broadcast."""
    streams = mix(seeds + GOLDEN_RATIO)
    return fast_range(mix(streams + (values + np.uint64(1)) * GOLDEN_RATIO), m)


# A device makes a plan's hash functions several times. Drawing them takes 20 microseconds.
@lru_cache(64)
def _derive(seed: bytes, purpose: str, chunks: int, outputs: int) -> tuple[Words, Words]:
    """Return the coefficients and keys of a family, shapes `(1 + chunks,)` and `(2, outputs)`."""
    stream = seeded_stream(seed, purpose)
    coefficients = Lane(int(_PRIME), 1 + chunks).uniform(stream)
    keys = np.empty(2 * outputs, "<u8")
    stream.fill(keys)
    for array in (coefficients, keys):
        array.setflags(write=False)  # all callers share it
    return coefficients, keys.reshape(2, outputs)


def _times_2_32(x: Words) -> Words:
    """Return x 2^32 modulo 2^61 - 1, below 2^61 + 2^35, for any x, since 2^61 is 1."""
    return (x >> _U29) + ((x & _LOW29) << _U32)


def _fold(x: Words) -> Words:
    """Return a number below 2^61 + 8 that is x modulo 2^61 - 1."""
    return (x & _PRIME) + (x >> _U61)


def mix(x: W) -> W:
    """Return Stafford's finaliser of x, one-to-one; kernels compile it for single words."""
    x = (x ^ (x >> _U30)) * _STAFFORD[0]
    x = (x ^ (x >> _U27)) * _STAFFORD[1]
    return x ^ (x >> _U31)
