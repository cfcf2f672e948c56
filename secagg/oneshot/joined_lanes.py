"""Lanes of one modulus joined to one lane, so that a message has one degree proof per modulus.

A message has blinds and a degree proof for each lane, of about 48 bits per member and per node, and
fills the last column of each lane with zeros. Vectors of mechanisms may have several lanes with the
same modulus. Their elements follow each other in one lane, at the place of the first one.

Source: an addition of blindtally.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from secagg.ring import Array, Lane, Ring, Vector


@dataclass(frozen=True, slots=True)
class JoinedLanes:
    """The lanes of `ring`, and their `joined` form."""

    ring: Ring
    joined: Ring
    places: tuple[tuple[int, ...], ...]  # the lanes of `ring` in each joined lane

    @classmethod
    def of(cls, ring: Ring) -> "JoinedLanes":
        """Return the joined lanes of `ring`."""
        by_modulus: dict[int, list[int]] = {}
        for place, lane in enumerate(ring.lanes):
            by_modulus.setdefault(lane.q, []).append(place)
        lanes = (
            Lane(q, sum(ring.lanes[place].length for place in places))
            for q, places in by_modulus.items()
        )
        return cls(ring, Ring(tuple(lanes)), tuple(map(tuple, by_modulus.values())))

    def join(self, vector: Vector) -> Vector:
        """Return a vector of `ring` as one of `joined`."""
        return tuple(np.concatenate([vector[place] for place in places]) for places in self.places)

    def split(self, joined: Vector) -> Vector:
        """Return a vector of `joined` as one of `ring`."""
        parts = dict(self._parts(joined))
        return tuple(parts[place] for place in range(len(parts)))

    def _parts(self, joined: Vector) -> Iterator[tuple[int, Array]]:
        for array, places in zip(joined, self.places, strict=True):
            ends = accumulate((self.ring.lanes[place].length for place in places), initial=0)
            for place, (start, end) in zip(places, pairwise(ends), strict=True):
                yield place, array[start:end]
