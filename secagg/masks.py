"""Vectors to which masks are added; `secagg.ring` defines the elements of a mask.

numpy takes as long to call as to add some hundred elements, and a ring often has lanes of a few
elements. So consecutive short lanes of one type are drawn and added together, each element modulo
its own q. With a and b below q, a + b modulo q is the smaller of a + b and a + b - q, where a
negative difference wraps to a huge number. For q = 2^32 or 2^64, where addition wraps, this holds
with 0 instead of q.
"""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from secagg.keys import Keystream
from secagg.ring import Array, Lane, Ring, Vector

CHUNK_ELEMENTS = 2**17  # of a mask, drawn at a time: at most 1 MB, which stays in the cache
MAX_JOINED_ELEMENTS = 2**13  # with their moduli they take at most 256 kB


class _JoinedLanes:
    """Consecutive lanes of one type, in one array: `draw`, `add` and `subtract` as of a lane."""

    def __init__(self, lanes: list[Lane]) -> None:
        self._lanes = lanes
        self._lengths = [lane.length for lane in lanes]
        self.dtype = lanes[0].dtype
        self._largest = self._of_each(lane.q - 1 for lane in lanes)
        self._moduli = self._largest + self.dtype.type(1)  # wraps to 0 for q = 2^32 or 2^64
        self._low_bits = self._of_each(int(lane.low_bits) for lane in lanes)
        self._words = np.empty_like(self._moduli)

    def _of_each(self, values: Iterable[int]) -> Array:
        """Return the value of its lane for each element."""
        return np.repeat(np.array([*values], self.dtype), self._lengths)

    def split(self, array: Array) -> list[Array]:
        """Return the lanes in `array`, which share its memory."""
        return np.split(array, np.cumsum(self._lengths)[:-1])

    def draw(self, stream: Keystream, out: Array) -> None:
        """Fill `out` with the next uniform elements of the lanes."""
        stream.fill(self._words)
        np.bitwise_and(self._words, self._low_bits, out=out)
        if (out > self._largest).any():
            self._draw_lanes(stream, out)

    def _draw_lanes(self, stream: Keystream, out: Array) -> None:
        """Fill `out` lane by lane: a word that one lane skips moves the words of the next ones."""
        words = self._words
        for lane, part in zip(self._lanes, self.split(out), strict=True):
            missing = part
            while len(missing):
                candidates, words = words[: len(missing)], words[len(missing) :]
                if not len(candidates):
                    candidates = np.empty_like(missing)
                    stream.fill(candidates)
                candidates = candidates & lane.low_bits
                accepted = candidates[candidates <= self.dtype.type(lane.q - 1)]
                missing[: len(accepted)] = accepted
                missing = missing[len(accepted) :]

    def add(self, into: Array, other: Array) -> None:
        """Add the reduced `other` to the reduced `into`, in place."""
        np.add(into, other, out=into)
        np.minimum(into, into - self._moduli, out=into)

    def subtract(self, into: Array, other: Array) -> None:
        """Subtract the reduced `other` from the reduced `into`, in place."""
        np.subtract(into, other, out=into)
        np.minimum(into, into + self._moduli, out=into)


_Part: TypeAlias = Lane | _JoinedLanes


class MaskedVector:
    """A copy of a reduced vector of `ring`, to which masks are added. Use it in one thread.

    Attributes:
        lanes: the vector with its masks, which share memory with this object.
    """

    def __init__(self, ring: Ring, vector: Vector) -> None:
        lanes, rest = list[Array](), list(vector)
        self._parts = list[tuple[_Part, Array, Array]]()  # with elements, and a buffer for masks
        for group in _short_lanes_joined(ring.lanes):
            arrays, rest = rest[: len(group)], rest[len(group) :]
            elements = np.concatenate(arrays)
            part = group[0] if len(group) == 1 else _JoinedLanes(group)
            lanes += [elements] if isinstance(part, Lane) else part.split(elements)
            buffer = np.empty(min(len(elements), CHUNK_ELEMENTS), part.dtype)
            self._parts.append((part, elements, buffer))
        self.lanes: Vector = tuple(lanes)

    def add(self, stream: Keystream) -> None:
        """Add the mask expanded from `stream`."""
        self._apply(stream, adding=True)

    def subtract(self, stream: Keystream) -> None:
        """Subtract the mask expanded from `stream`."""
        self._apply(stream, adding=False)

    def _apply(self, stream: Keystream, *, adding: bool) -> None:
        for part, elements, buffer in self._parts:
            combine = part.add if adding else part.subtract
            for start in range(0, len(elements), CHUNK_ELEMENTS):
                chunk = elements[start : start + CHUNK_ELEMENTS]
                mask = buffer[: len(chunk)]
                part.draw(stream, mask)
                combine(chunk, mask)


def _short_lanes_joined(lanes: Iterable[Lane]) -> list[list[Lane]]:
    """Return the lanes in groups: consecutive lanes of one type with few elements together."""
    groups = list[list[Lane]]()
    for lane in lanes:
        group = groups[-1] if groups else []
        length = lane.length + sum(other.length for other in group)
        if group and group[0].dtype == lane.dtype and length <= MAX_JOINED_ELEMENTS:
            group.append(lane)
        else:
            groups.append([lane])
    return groups
