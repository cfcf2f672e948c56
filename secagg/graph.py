"""Who holds whose shares, who masks with whom: a graph that nobody steers.

Each participant picks its holders itself, at random among all others, once the roster is
fixed: it draws a *contribution* of 32 bytes, and its holders are the first k distinct slots of
a stream that grows from it and from the cohort's label. The contributions are published with
the shares, so everybody can tell who picked whom, and nobody's picks depend on what another
said: whatever server and corrupt participants do, an honest one's holders are uniform. The
first m holders are its partners; a pair masks if either is the other's partner.

Whoever looks for its partners grows everybody's streams. So these are one pass of AES over
all, under a key that everybody has: a contribution is the key of [Even97], whose permutation
that is, in counter mode.

Source: picking from a committed roster [Bell20, section 4]; public contributions are ours.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from math import log

import numpy as np
from numpy.typing import NDArray

from secagg.keys import permute_blocks
from secagg.parameters import Parameters

CONTRIBUTION_BYTES = 32
_KEY_BYTES = 16
_BLOCK = 4  # words of 32 bits
_SOME = 2**16  # bytes of streams grown at a time, which stay in the cache


class Picking:
    """How the participants of the cohort of `label` pick; `shape` gives n, k and m."""

    def __init__(self, label: bytes, shape: Parameters) -> None:
        self._key = sha256(b"blindtally holders v1\0" + label).digest()[:_KEY_BYTES]
        self._shape = shape
        self._asked: tuple[tuple[int, bytes], tuple[int, ...]] | None = None
        if not shape.is_complete:
            self._holder_draws = _draws(shape.n - 1, shape.holders)
            self._partner_draws = _draws(shape.n - 1, shape.partners)

    def holders(self, slot: int, contribution: bytes) -> tuple[int, ...]:
        """Return the k holders of `slot`, its partners first."""
        asked, last = (slot, contribution), self._asked
        if last is None or last[0] != asked:  # a participant asks for its own, again and again
            # In one step: nothing is kept of what fails, nor seen by threads before it is whole.
            found = self.all_holders({slot: contribution})
            last = self._asked = asked, tuple(found[0].tolist())
        return last[1]

    def all_holders(self, contributions: Mapping[int, bytes]) -> NDArray[np.int64]:
        """Return the k holders of each of those who contributed, a row each, its partners first.

        Words of 32 bits are scaled to the n - 1 others: each pick is uniform to within a
        factor of 1 + n / 2^32.
        """
        if self._shape.is_complete:
            others, slots = np.arange(self._shape.n - 1), np.array([*contributions], np.int64)
            return others + (others >= slots[:, np.newaxis])
        found = np.empty((len(contributions), self._shape.holders), np.int64)
        at = 0
        for slots, words in self._streams(contributions, self._holder_draws):
            picks = self._scaled(words)
            picks += picks >= slots.astype(np.uint64)[:, np.newaxis]
            found[at : at + len(slots)] = _first_distinct(picks, self._shape.holders)
            at += len(slots)
        return found

    def partners(self, slot: int, contributions: Mapping[int, bytes]) -> frozenset[int]:
        """Return whom `slot` masks with among those of `contributions`, by slot.

        These are the partners that it picked, and those that picked it as theirs.
        """
        if self._shape.is_complete:
            return frozenset(contributions).difference((slot,))
        m, scale = self._shape.partners, self._shape.n - 1
        # Scaled words equal v from ceil(2^32 v / scale) on; whoever sits behind `slot` counts
        # it as v = slot, whoever sits before it as slot - 1.
        first = [-(-(v << 32) // scale) for v in (slot - 1, slot, slot + 1)]
        low = np.array([first[0] % 2**32, first[1] % 2**32], np.uint32)
        width = np.array([first[1] - first[0], first[2] - first[1]], np.uint32)
        found = set(self.holders(slot, contributions[slot])[:m]).intersection(contributions)
        for slots, words in self._streams(contributions, self._partner_draws):
            behind = (slots > slot).astype(np.intp)[:, np.newaxis]
            hits = words - low[behind] < width[behind]  # wraps below `low`
            rows = np.flatnonzero(hits.any(axis=1))
            for row, before in zip(rows.tolist(), hits[rows].argmax(axis=1).tolist(), strict=True):
                # Fewer than m draws before it hold fewer than m others; else these are counted.
                if before < m or len({w * scale >> 32 for w in words[row, :before].tolist()}) < m:
                    found.add(int(slots[row]))
        return frozenset(found - {slot})

    def _scaled(self, words: NDArray[np.uint32]) -> NDArray[np.uint64]:
        return words.astype(np.uint64) * np.uint64(self._shape.n - 1) >> np.uint64(32)

    def _streams(
        self, contributions: Mapping[int, bytes], draws: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint32]]]:
        """Yield slots and the first words of their streams, some at a time, one row a slot.

        Block i of a stream is AES(a xor (slot, 0, 0, i)) xor b, a and b the halves of the
        contribution, all in words of 32 bits.
        """
        count = -(-draws // _BLOCK)
        counters = np.zeros((count, _BLOCK), np.uint32)
        counters[:, 3] = range(count)
        slots = np.array([*contributions], np.int64)
        halves = np.frombuffer(b"".join(contributions.values()), "<u4").reshape(-1, 2, _BLOCK)
        some = max(1, _SOME // counters.nbytes)
        for start in range(0, len(slots), some):
            here, half = slots[start : start + some], halves[start : start + some]
            keyed = half[:, 0].copy()
            keyed[:, 0] ^= here.astype(np.uint32)
            blocks = np.tile(keyed, count) ^ counters.reshape(-1)
            streams = permute_blocks(self._key, blocks) ^ np.tile(half[:, 1], count)
            yield here, streams[:, :draws]


def _first_distinct(picks: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """Return the first `count` that differ of each row of `picks`, below 2^32 each."""
    draws = picks.shape[1]
    places = np.arange(draws, dtype=np.uint64)
    keys = np.sort(picks << np.uint64(32) | places, axis=1)  # each next to those that repeat it
    values = keys >> np.uint64(32)
    rows, again = np.nonzero(values[:, 1:] == values[:, :-1])
    is_new = np.ones(picks.shape, np.bool_)
    is_new[rows, keys[rows, again + 1] & np.uint64(2**32 - 1)] = False
    is_new &= is_new.cumsum(axis=1, dtype=np.int32) <= count
    assert (is_new.sum(axis=1) == count).all(), "fails for one stream in 2^80"
    return picks[is_new].reshape(-1, count)


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
