"""Masks: vectors expanded from a keystream, added and subtracted in place.

In each lane, an element is the low b bits of the stream's next word (4 or 8 bytes, the lane's
type, little-endian), with b the bit length of q - 1. If q is not 2^b, words whose low bits are
not below q are skipped. Reducing them instead would favour small elements, and the mask would no
longer hide. So every vector of the ring is equally likely, as a one-time pad requires, up to the
strength of AES.

Source: PRG of [Bonawitz17, section 3.4]; exact uniformity for any q is an addition of blindtally.
"""

import numpy as np

from secagg.keys import Keystream
from secagg.ring import Array, Lane, Ring, Vector

_CHUNK_ELEMENTS = 2**17  # elements drawn at a time: at most 1 MB, which stays in the cache


class MaskApplier:
    """Adds masks to vectors of one ring. It has buffers: use one per thread."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._buffers = [
            np.empty(min(lane.length, _CHUNK_ELEMENTS), dtype=lane.dtype) for lane in ring.lanes
        ]

    def add_mask(self, vector: Vector, stream: Keystream) -> None:
        """Add the mask expanded from `stream` to the reduced `vector`, in place."""
        self._apply(vector, stream, adding=True)

    def subtract_mask(self, vector: Vector, stream: Keystream) -> None:
        """Subtract the mask expanded from `stream` from the reduced `vector`, in place."""
        self._apply(vector, stream, adding=False)

    def _apply(self, vector: Vector, stream: Keystream, *, adding: bool) -> None:
        for lane, array, buffer in zip(self._ring.lanes, vector, self._buffers, strict=True):
            combine = lane.add if adding else lane.subtract
            for start in range(0, lane.length, _CHUNK_ELEMENTS):
                part = array[start : start + _CHUNK_ELEMENTS]
                mask = buffer[: len(part)]
                _fill_uniform(lane, stream, mask)
                combine(part, mask)


def _fill_uniform(lane: Lane, stream: Keystream, out: Array) -> None:
    """Fill `out` with uniform elements of `lane`.

    A power-of-two lane is not reduced here: adding it reduces the sum.
    """
    stream.fill(out)
    if lane.is_power_of_two:
        return
    bits = lane.dtype.type(2**lane.bits - 1)
    np.bitwise_and(out, bits, out=out)
    kept = out < lane.q
    while not kept.all():
        accepted = out[kept]
        rest = out[len(accepted) :]
        out[: len(accepted)] = accepted
        stream.fill(rest)
        np.bitwise_and(rest, bits, out=rest)
        kept = out < lane.q
