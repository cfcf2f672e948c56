"""Values are scrambled one-to-one, and what is alike in them is not."""

import numpy as np
import pytest

from protocol.oracles.hsu2012.glps import Scrambling


@pytest.mark.parametrize("bits", [2, 3, 7, 10])
def test_it_is_a_permutation(bits: int) -> None:
    values = np.arange(2**bits, dtype=np.uint64)
    made = Scrambling(bits, bytes(32))
    assert sorted(made.scramble(values).tolist()) == values.tolist()
    assert (made.unscramble(made.scramble(values)) == values).all()


@pytest.mark.parametrize("bits", [33, 63, 64])
def test_what_goes_forth_comes_back(bits: int) -> None:
    values = np.random.default_rng(1).integers(0, 2**bits, 1000, np.uint64, endpoint=False)
    made = Scrambling(bits, b"7" * 32)
    there = made.scramble(values)
    assert there.max() < 2**bits
    assert (made.unscramble(there) == values).all()
    assert (there != Scrambling(bits, b"8" * 32).scramble(values)).all()


def test_strings_that_begin_alike_have_unlike_bits() -> None:
    """Each bit differs in half of all neighbours: 4.5 deviations of 4,096 pairs."""
    values = np.arange(2**40, 2**40 + 8192, dtype=np.uint64)
    there = Scrambling(56, b"9" * 32).scramble(values)
    unlike = there[::2] ^ there[1::2]
    for bit in range(56):
        share = (unlike >> np.uint64(bit) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 4.5 * 0.5 / 64
