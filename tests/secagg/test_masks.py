"""Masks follow their definition, however the lanes of a vector are joined."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from secagg.keys import Keystream
from secagg.masks import CHUNK_ELEMENTS, MAX_JOINED_ELEMENTS, MaskedVector
from secagg.ring import Lane, Ring

KEY = bytes(range(16))
RINGS = [
    (Lane(2**32, 100),),
    (Lane(2**13, 100), Lane(2**40, 7)),
    (Lane(131071, 100), Lane(3, 50), Lane(2**61 - 1, 20)),
    (Lane(2**24 + 43, 500), Lane(2**20, 3)),  # half of the words are rejected
    (Lane(5, 2 * CHUNK_ELEMENTS + 3), Lane(2**8, CHUNK_ELEMENTS + 1)),  # across chunks
    (Lane(2**32, 5), Lane(2**31, 4), Lane(2, 3), Lane(2**31 - 1, 6)),  # joined
    (Lane(2**64, 5), Lane(2**63, 4), Lane(2**62, 3), Lane(2**61 - 1, 6)),
    (Lane(5, 40), Lane(2**20, 3), Lane(2**24 + 43, 500), Lane(3, 1), Lane(2**32, 9)),
    (Lane(7, 3), Lane(2**40, 3), Lane(9, 3), Lane(2**9, 3)),
    (Lane(5, 1), Lane(5, 1)),  # the first word of each is rejected
    (Lane(7, MAX_JOINED_ELEMENTS - 1), Lane(2**32, 1), Lane(2**9, 1), Lane(9, 1)),
]


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


def mask_of(ring: Ring, key: bytes = KEY) -> MaskedVector:
    mask = MaskedVector(ring, ring.zero())
    mask.add(Keystream(key))
    return mask


@pytest.mark.parametrize("lanes", RINGS)
def test_a_mask_is_the_next_words_below_q(lanes: tuple[Lane, ...]) -> None:
    ring = Ring(lanes)
    assert [lane.tolist() for lane in mask_of(ring).lanes] == by_definition(ring)


@pytest.mark.parametrize("lanes", RINGS)
def test_masks_are_added_and_subtracted_modulo_q(lanes: tuple[Lane, ...]) -> None:
    ring = Ring(lanes)
    vector = ring.vector([[each.q - 1 - i for i in range(each.length)] for each in lanes])
    before, masked = [lane.copy() for lane in vector], MaskedVector(ring, vector)
    expected = [lane.astype(object) for lane in vector]
    for key, sign in ((b"a" * 16, 1), (b"b" * 16, -1), (b"c" * 16, -1), (b"d" * 16, 1)):
        (masked.add if sign > 0 else masked.subtract)(Keystream(key))
        masks = mask_of(ring, key).lanes
        expected = [
            (total + sign * mask.astype(object)) % lane.q
            for lane, total, mask in zip(lanes, expected, masks, strict=True)
        ]
        ring.check(masked.lanes)
        assert [lane.tolist() for lane in masked.lanes] == [each.tolist() for each in expected]
    assert all(map(np.array_equal, vector, before))


def test_elements_of_a_prime_lane_are_uniform() -> None:
    # q = 3 * 2^6 - 1: if words were reduced instead of rejected, elements below 2^8 - q would
    # be twice as frequent. Chi-squared over q cells, 191,000 draws: mean 190, sd 19.5; it exceeds
    # 290 with probability 4e-6, and reducing would give about 20,000. The key is fixed.
    mask = mask_of(Ring((Lane(191, 191_000),)))
    counts = np.bincount(mask.lanes[0].astype(np.int64), minlength=191)
    assert ((counts - 1000.0) ** 2 / 1000).sum() < 290
