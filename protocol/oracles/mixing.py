"""Hash functions by a seed: 64 random bits of each seed and value, for oracles that take any.

    word(s, x)  =  mix(mix(s + g) + (x + 1) g)      g odd: 2^64 over the golden ratio
    h_s(x)      =  floor(upper half of the word * m / 2^32)

`mix` is Stafford's finaliser, so this is SplitMix64's output x of the stream that starts at
mix(s + g). That two values meet under 1 of m seeds is an assumption that tests probe. What
privacy needs of a hash function is nothing.

Source: [Stafford11], variant 13; [Steele14].
"""

import numpy as np
from numpy.typing import NDArray

from protocol.hashing import reduce

_U27, _U30, _U31 = (np.uint64(shift) for shift in (27, 30, 31))
_STAFFORD = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hash_values(
    seeds: NDArray[np.uint64], values: NDArray[np.uint64], m: int
) -> NDArray[np.uint64]:
    """Return h_s(x) < `m` <= 2^32; the arrays, at least one-dimensional, are broadcast."""
    streams = _mix(seeds + _GOLDEN)
    return reduce(_mix(streams + (values + np.uint64(1)) * _GOLDEN), m)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> _U30)) * _STAFFORD[0]
    x = (x ^ (x >> _U27)) * _STAFFORD[1]
    return x ^ (x >> _U31)
