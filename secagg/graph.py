"""Who holds whose shares, who masks with whom: a graph that nobody steers.

Each participant picks its holders itself, at random among all others, once the roster is
fixed: it draws a *contribution* of 32 bytes, and its holders are the first k distinct slots of
a stream that grows from it and from the cohort's label. The contributions are published with
the shares, so everybody can tell who picked whom, and nobody's picks depend on what another
said: whatever server and corrupt participants do, an honest one's holders are uniform. The
first m holders are its partners; a pair masks if either is the other's partner.

Source: picking from a committed roster [Bell20, section 4]; public contributions are ours.
"""

from collections.abc import Mapping
from functools import lru_cache
from hashlib import shake_128
from math import log

import numpy as np

from secagg.parameters import Parameters

CONTRIBUTION_BYTES = 32
_WORD = np.dtype("<u4")


class Picking:
    """How the participants of the cohort of `label` pick; `shape` gives n, k and m."""

    def __init__(self, label: bytes, shape: Parameters) -> None:
        self._prefix = b"blindtally holders v1\0" + label
        self._shape = shape
        if not shape.is_complete:
            self._holder_draws = _draws(shape.n - 1, shape.holders)
            self._partner_draws = _draws(shape.n - 1, shape.partners)

    def holders(self, slot: int, contribution: bytes) -> tuple[int, ...]:
        """Return the k holders of `slot`, its partners first.

        Words of 32 bits are scaled to the n - 1 others: each pick is uniform to within a
        factor of 1 + n / 2^32.
        """
        n, k = self._shape.n, self._shape.holders
        if self._shape.is_complete:
            return tuple(other for other in range(n) if other != slot)
        return self._distinct(slot, contribution, k)

    def partners(self, slot: int, contributions: Mapping[int, bytes]) -> frozenset[int]:
        """Return whom `slot` masks with among those of `contributions`, by slot.

        These are the partners that it picked, and those that picked it as theirs.
        """
        others = [other for other in contributions if other != slot]
        if self._shape.is_complete or not others:
            return frozenset(others)
        m, scale = self._shape.partners, self._shape.n - 1
        prefix, size = self._prefix, _WORD.itemsize * self._partner_draws
        said = (prefix + other.to_bytes(4, "big") + contributions[other] for other in others)
        streams = b"".join([shake_128(one).digest(size) for one in said])
        words = np.frombuffer(streams, _WORD).reshape(len(others), -1)
        # Scaled words equal v from ceil(2^32 v / scale) on; whoever sits behind `slot` counts
        # it as v = slot, whoever sits before it as slot - 1.
        behind = np.array(others) > slot
        first = [-(-(v << 32) // scale) for v in (slot - 1, slot, slot + 1)]
        low = np.where(behind, first[1], first[0] % 2**32).astype(_WORD)[:, np.newaxis]
        width = np.where(behind, first[2] - first[1], first[1] - first[0])[:, np.newaxis]
        hits = words - low < width.astype(_WORD)  # wraps below `low`
        drawn = np.flatnonzero(hits.any(axis=1)).tolist()
        first_hits = hits.argmax(axis=1).tolist()
        # Fewer than m draws before it hold fewer than m others; else they must be counted.
        picked = {
            others[row]
            for row in drawn
            if first_hits[row] < m
            or slot in self._distinct(others[row], contributions[others[row]], m)
        }
        own = self.holders(slot, contributions[slot])[:m]
        return frozenset(picked.union(other for other in own if other in contributions))

    def _distinct(self, slot: int, contribution: bytes, count: int) -> tuple[int, ...]:
        draws = self._partner_draws if count <= self._shape.partners else self._holder_draws
        words = np.frombuffer(self._stream(slot, contribution, draws), _WORD)
        picks = words.astype(np.uint64) * np.uint64(self._shape.n - 1) >> np.uint64(32)
        found = tuple(dict.fromkeys((picks + (picks >= np.uint64(slot))).tolist()))
        assert len(found) >= count, "fails for one stream in 2^80"
        return found[:count]

    def _stream(self, slot: int, contribution: bytes, draws: int) -> bytes:
        said = self._prefix + slot.to_bytes(4, "big") + contribution
        return shake_128(said).digest(_WORD.itemsize * draws)


@lru_cache(maxsize=64)
def _draws(others: int, picks: int) -> int:
    """Return how many draws out of `others` hold `picks` distinct ones, but for odds of 2^-80.

    As long as they do not, each draw repeats another with odds below p = picks / others; the
    count of repetitions is bounded as a binomial one's tail is [Chernoff].
    """
    p, draws = picks / others, picks + 1
    while True:
        a = (draws - picks) / draws
        if a > p and draws * (a * log(a / p) + (1 - a) * log((1 - a) / (1 - p))) > 80 * log(2):
            return draws
        draws += 1
