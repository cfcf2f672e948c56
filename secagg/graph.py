"""The random graph of a secure sum: the holders of shares, and the neighbours that share masks.

Each participant selects its own holders at random among all others, after the roster is fixed. It
draws a *graph nonce* of 32 bytes, and its holders are the first k distinct slots of a stream that
is expanded from the nonce and the session's label. The nonces are published with the shares, so
that every party can compute the graph, and no selection depends on another participant's message:
the holders of an honest one are uniform, regardless of the server and corrupt participants. The
first m holders of a participant are its neighbours; a pair masks if either selected the other.

A participant that looks for its neighbours expands the streams of all others. One pass of AES
makes all streams, under a key that every party knows: the nonce is the key of [Even97], whose
permutation this is, in counter mode.

Source: selection after a committed roster [Bell20, section 4]; public nonces are an addition of
blindtally.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from math import log

import numpy as np
from numpy.typing import NDArray

from secagg.keys import permute_blocks
from secagg.parameters import Parameters

GRAPH_NONCE_BYTES = 32
_KEY_BYTES = 16
_BLOCK_WORDS = 4  # 32-bit words
_BATCH_BYTES = 2**16  # bytes of streams expanded at a time, which stay in the cache


class NeighbourSelection:
    """The rule by which graph nonces select holders in the session of `label`."""

    def __init__(self, label: bytes, parameters: Parameters) -> None:
        self._key = sha256(b"blindtally holders v1\0" + label).digest()[:_KEY_BYTES]
        self._parameters = parameters
        self._last_lookup: tuple[tuple[int, bytes], tuple[int, ...]] | None = None
        if not parameters.is_complete:
            others = parameters.n - 1
            self._holder_draws = _draws_needed(others, parameters.holders)
            self._neighbour_draws = _draws_needed(others, parameters.neighbours)

    def holders(self, slot: int, graph_nonce: bytes) -> tuple[int, ...]:
        """Return the k holders of `slot`, its neighbours first."""
        lookup, last = (slot, graph_nonce), self._last_lookup
        if last is None or last[0] != lookup:  # a participant looks up its own repeatedly
            # One assignment: a failed lookup leaves nothing, and threads never see half of one.
            holders = self.all_holders({slot: graph_nonce})
            last = self._last_lookup = lookup, tuple(holders[0].tolist())
        return last[1]

    def all_holders(self, graph_nonces: Mapping[int, bytes]) -> NDArray[np.int64]:
        """Return the k holders for each of `graph_nonces`, one row each, neighbours first.

        32-bit words are scaled to the n - 1 others: each selection is uniform to a factor of
        1 + n / 2^32.
        """
        if self._parameters.is_complete:
            others, slots = np.arange(self._parameters.n - 1), np.array([*graph_nonces], np.int64)
            return others + (others >= slots[:, np.newaxis])
        holders = np.empty((len(graph_nonces), self._parameters.holders), np.int64)
        filled = 0
        for slots, words in self._streams(graph_nonces, self._holder_draws):
            selected = words.astype(np.uint64) * np.uint64(self._parameters.n - 1) >> np.uint64(32)
            selected += selected >= slots.astype(np.uint64)[:, np.newaxis]
            batch = _first_distinct(selected, self._parameters.holders)
            holders[filled : filled + len(slots)] = batch
            filled += len(slots)
        return holders

    def neighbours(self, slot: int, graph_nonces: Mapping[int, bytes]) -> frozenset[int]:
        """Return the neighbours of `slot` among the participants in `graph_nonces`, by slot.

        These are its first m holders, and the participants that have it among their first m.
        """
        if self._parameters.is_complete:
            return frozenset(graph_nonces).difference((slot,))
        m, scale = self._parameters.neighbours, self._parameters.n - 1
        # A word scales to v if it is at least ceil(2^32 v / scale) and below the same of v + 1.
        # Participants behind `slot` refer to it by v = slot, those before it by v = slot - 1.
        first = [-(-(v << 32) // scale) for v in (slot - 1, slot, slot + 1)]
        low = np.array([first[0] % 2**32, first[1] % 2**32], np.uint32)
        width = np.array([first[1] - first[0], first[2] - first[1]], np.uint32)
        neighbours = set(self.holders(slot, graph_nonces[slot])[:m]).intersection(graph_nonces)
        for slots, words in self._streams(graph_nonces, self._neighbour_draws):
            behind = (slots > slot).astype(np.intp)[:, np.newaxis]
            hits = words - low[behind] < width[behind]  # wraps below `low`
            rows = np.flatnonzero(hits.any(axis=1))
            for row, before in zip(rows.tolist(), hits[rows].argmax(axis=1).tolist(), strict=True):
                # Fewer than m draws hold fewer than m distinct slots; more must be counted.
                if before < m or len({w * scale >> 32 for w in words[row, :before].tolist()}) < m:
                    neighbours.add(int(slots[row]))
        return frozenset(neighbours - {slot})

    def _streams(
        self, graph_nonces: Mapping[int, bytes], draws: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint32]]]:
        """Yield slots and the first words of their streams in batches, one row per slot.

        Block i of a stream is AES(a xor (slot, 0, 0, i)) xor b, where a and b are the halves of
        the graph nonce, all in 32-bit words.
        """
        count = -(-draws // _BLOCK_WORDS)
        counters = np.zeros((count, _BLOCK_WORDS), np.uint32)
        counters[:, 3] = range(count)
        slots = np.array([*graph_nonces], np.int64)
        halves = np.frombuffer(b"".join(graph_nonces.values()), "<u4").reshape(-1, 2, _BLOCK_WORDS)
        batch_size = max(1, _BATCH_BYTES // counters.nbytes)
        for start in range(0, len(slots), batch_size):
            batch = slots[start : start + batch_size]
            half = halves[start : start + batch_size]
            keyed = half[:, 0].copy()
            keyed[:, 0] ^= batch.astype(np.uint32)
            blocks = np.tile(keyed, count) ^ counters.reshape(-1)
            streams = permute_blocks(self._key, blocks) ^ np.tile(half[:, 1], count)
            yield batch, streams[:, :draws]


def _first_distinct(selected: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """Return the first `count` distinct values of each row of `selected`, all below 2^32."""
    draws = selected.shape[1]
    places = np.arange(draws, dtype=np.uint64)
    keys = np.sort(selected << np.uint64(32) | places, axis=1)  # repetitions are next to each other
    values = keys >> np.uint64(32)
    rows, again = np.nonzero(values[:, 1:] == values[:, :-1])
    is_new = np.ones(selected.shape, np.bool_)
    is_new[rows, keys[rows, again + 1] & np.uint64(2**32 - 1)] = False
    is_new &= is_new.cumsum(axis=1, dtype=np.int32) <= count
    assert (is_new.sum(axis=1) == count).all(), "fails for one stream in 2^80"
    return selected[is_new].reshape(-1, count)


@lru_cache(maxsize=64)
def _draws_needed(others: int, count: int) -> int:
    """Return the number of draws out of `others` that hold `count` distinct ones.

    They do except with probability 2^-80: until then, each draw repeats an earlier one with
    probability below p = count / others, and a binomial tail bounds the repetitions [Chernoff].
    """
    p, draws = count / others, count + 1
    while True:
        a = (draws - count) / draws
        if a > p and draws * (a * log(a / p) + (1 - a) * log((1 - a) / (1 - p))) > 80 * log(2):
            return draws
        draws += 1
