"""Masks: what a stream looks like as a vector, put on and taken off in place.

Lane after lane, each element is the low b bits of the stream's next word (4 or 8 bytes, the
lane's type, little end first), b = bit length of q - 1; where q is not 2^b, words whose low
bits are not below q are skipped. Reducing them instead would favour small elements, and the
mask would no longer hide. So every vector of the ring is equally likely, as one-time pad
needs, up to the strength of AES.

Source: PRG of [Bonawitz17, section 3.4]; exact uniformity for any q is ours.
"""

import numpy as np

from secagg.keys import Stream
from secagg.ring import Array, Lane, Ring, Vector

_CHUNK = 2**17  # elements drawn at a time: at most 1 MB, which stays in the cache


class Wardrobe:
    """Puts masks on vectors of one ring; it keeps the buffers, so use one a thread."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._buffers = [
            np.empty(min(lane.length, _CHUNK), dtype=lane.dtype) for lane in ring.lanes
        ]

    def put_on(self, vector: Vector, stream: Stream) -> None:
        """Add the mask that `stream` grows into to the reduced `vector`, in place."""
        self._apply(vector, stream, adding=True)

    def take_off(self, vector: Vector, stream: Stream) -> None:
        """Subtract the mask that `stream` grows into from the reduced `vector`, in place."""
        self._apply(vector, stream, adding=False)

    def _apply(self, vector: Vector, stream: Stream, *, adding: bool) -> None:
        for lane, array, buffer in zip(self._ring.lanes, vector, self._buffers, strict=True):
            combine = lane.add if adding else lane.subtract
            for start in range(0, lane.length, _CHUNK):
                part = array[start : start + _CHUNK]
                mask = buffer[: len(part)]
                _draw(lane, stream, mask)
                combine(part, mask)


def _draw(lane: Lane, stream: Stream, out: Array) -> None:
    """Fill `out` with uniform elements of `lane`.

    A power-of-two lane is left unreduced: the bits above it fall away when it is reduced.
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
