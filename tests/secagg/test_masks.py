"""Masks follow their definition, element by element, and can be removed."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from secagg.keys import Keystream
from secagg.masks import _CHUNK_ELEMENTS, MaskApplier
from secagg.ring import Lane, Ring

KEY = bytes(range(16))


def by_definition(ring: Ring) -> list[list[int]]:
    """Draw the mask of KEY one word at a time, by the definition."""
    encryptor = Cipher(AES(KEY), CTR(bytes(16))).encryptor()

    def words(size: int) -> Iterator[int]:
        while True:
            yield int.from_bytes(encryptor.update(bytes(size)), "little")

    lanes = []
    for lane in ring.lanes:
        low = (word % 2**lane.bits for word in words(lane.dtype.itemsize))
        lanes.append(list(itertools.islice((x for x in low if x < lane.q), lane.length)))
    return lanes


@pytest.mark.parametrize(
    "lanes",
    [
        (Lane(2**32, 100),),
        (Lane(2**13, 100), Lane(2**40, 7)),
        (Lane(131071, 100), Lane(3, 50), Lane(2**61 - 1, 20)),
        (Lane(2**24 + 43, 500), Lane(2**20, 3)),  # half of the words are rejected
        (Lane(5, 2 * _CHUNK_ELEMENTS + 3), Lane(2**8, _CHUNK_ELEMENTS + 1)),  # across chunks
    ],
)
def test_a_mask_is_the_next_words_below_q(lanes: tuple[Lane, ...]) -> None:
    ring = Ring(lanes)
    mask = ring.zero()
    MaskApplier(ring).add_mask(mask, Keystream(KEY))
    assert [lane.tolist() for lane in mask] == by_definition(ring)


def test_a_mask_that_is_added_can_be_subtracted() -> None:
    ring = Ring((Lane(2**13, 70), Lane(131071, 30), Lane(2**64, 9)))
    chance = np.random.default_rng(1)
    vector = ring.vector([chance.integers(0, 1000, lane.length) for lane in ring.lanes])
    masked = tuple(lane.copy() for lane in vector)
    applier = MaskApplier(ring)
    applier.add_mask(masked, Keystream(KEY))
    ring.check(masked)
    assert not np.array_equal(masked[0], vector[0])
    applier.subtract_mask(masked, Keystream(KEY))
    assert all(np.array_equal(a, b) for a, b in zip(masked, vector, strict=True))


def test_elements_of_a_prime_lane_are_uniform() -> None:
    # q = 3 * 2^6 - 1: if words were reduced instead of rejected, elements below 2^8 - q would
    # be twice as frequent. Chi-squared over q cells, 191,000 draws: mean 190, sd 19.5; it exceeds
    # 290 with probability 4e-6, and reducing would give about 20,000. The key is fixed.
    ring = Ring((Lane(191, 191_000),))
    mask = ring.zero()
    MaskApplier(ring).add_mask(mask, Keystream(KEY))
    counts = np.bincount(mask[0].astype(np.int64), minlength=191)
    assert ((counts - 1000.0) ** 2 / 1000).sum() < 290
