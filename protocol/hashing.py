"""Seeded hash families over keys of several chunks, vectorised.

A key x = (x_1 .. x_c), each chunk below 2^32, is hashed in two steps:

    fingerprint   a_0 + a_1 x_1 + .. + a_c x_c  mod 2^61 - 1, with random a: two keys meet
                  with odds 2^-61 (multilinear hashing, [CarterWegman79], [Lemire14])
    words         each fingerprint through two rounds of a 64-bit finaliser
                  ([Stafford11], variant 13, as in SplitMix64), keyed anew for each word

The first step alone would be worse than nothing as a check hash: it is linear, so the hash
of a weighted mean of keys *is* the weighted mean of their hashes. The finaliser breaks that;
that its words are as good as random is an assumption, which the tests probe on keys that
differ little. An enemy who knows the seed can make collisions: seeds are fresh each round.

Coefficients and keys come from BLAKE2b keyed with the 32-byte seed and personalised with
the purpose, so neighbouring seeds, and purposes under one seed, share nothing.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_PRIME = np.uint64(2**61 - 1)
_U29, _U30, _U31, _U32 = (np.uint64(shift) for shift in (29, 30, 31, 32))
_U27, _U61 = np.uint64(27), np.uint64(61)
_LOW29, _LOW32 = np.uint64(2**29 - 1), np.uint64(2**32 - 1)
_STAFFORD = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Family:
    """The hash functions of one seed and purpose, for keys of `chunks` chunks."""

    seed: bytes
    purpose: str
    chunks: int
    words: int
    coefficients: NDArray[np.uint64] = field(init=False, repr=False, compare=False)
    keys: NDArray[np.uint64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        drawn = _derive(self.seed, self.purpose, 1 + self.chunks + 2 * self.words)
        object.__setattr__(self, "coefficients", drawn[: 1 + self.chunks] & _PRIME)
        object.__setattr__(self, "keys", drawn[1 + self.chunks :].reshape(2, self.words))

    def fingerprint(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
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

    def hash(self, keys: NDArray[np.uint64], words: slice = slice(None)) -> NDArray[np.uint64]:
        """Return the 64-bit hashes of each key, or some `words` of them, shape `(n, words)`."""
        first, second = self.keys[:, words]
        return _mix(_mix(self.fingerprint(keys)[:, np.newaxis] ^ first) + second)


def reduce(words: NDArray[np.uint64], bound: int) -> NDArray[np.uint64]:
    """Return `words` brought below `bound` < 2^32, uniform but for odds of bound / 2^32."""
    return ((words >> _U32) * np.uint64(bound)) >> _U32


def _derive(seed: bytes, purpose: str, count: int) -> NDArray[np.uint64]:
    """Return `count` words of BLAKE2b in counter mode, for this seed and purpose only."""
    blocks = (
        hashlib.blake2b(block.to_bytes(8, "little"), key=seed, person=purpose.encode()).digest()
        for block in range(-(-count // 8))
    )
    return np.frombuffer(b"".join(blocks), dtype="<u8")[:count].astype(np.uint64)


def _times_2_32(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return x 2^32 modulo 2^61 - 1, below 2^61 + 2^35, for any x: 2^61 counts as 1."""
    return (x >> _U29) + ((x & _LOW29) << _U32)


def _fold(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a number below 2^61 + 8 that is x modulo 2^61 - 1."""
    return (x & _PRIME) + (x >> _U61)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the words that Stafford's finaliser makes of x, one-to-one."""
    x = (x ^ (x >> _U30)) * _STAFFORD[0]
    x = (x ^ (x >> _U27)) * _STAFFORD[1]
    return x ^ (x >> _U31)
