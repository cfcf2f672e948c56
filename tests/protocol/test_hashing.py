"""Hash functions are as defined, and look random where keys are alike."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.hashing import HashFamily, fast_range

SEED = bytes(range(32))
NEXT_SEED = (int.from_bytes(SEED, "big") + 1).to_bytes(32, "big")
P = 2**61 - 1


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=5, max_size=5), min_size=1))
def test_a_fingerprint_is_the_documented_linear_form(keys: list[list[int]]) -> None:
    family = HashFamily(SEED, "test", 5, 1)
    a, *factors = family.coefficients.tolist()
    meant = [(a + sum(f * x for f, x in zip(factors, key, strict=True))) % P for key in keys]
    assert family.fingerprint(np.array(keys, dtype=np.uint64)).tolist() == meant


def test_long_keys_do_not_overflow() -> None:
    family = HashFamily(SEED, "test", 342, 1)  # 1,024 bytes of text
    a, *factors = family.coefficients.tolist()
    most = 2**31 - 1
    keys = np.full((1, 342), most, dtype=np.uint64)
    assert family.fingerprint(keys).tolist() == [(a + sum(f * most for f in factors)) % P]


def test_neighbouring_seeds_and_purposes_share_nothing() -> None:
    keys = np.arange(1000, dtype=np.uint64).reshape(-1, 1)
    families = [
        HashFamily(SEED, "a", 1, 4),
        HashFamily(SEED, "b", 1, 4),
        HashFamily(NEXT_SEED, "a", 1, 4),
    ]
    hashes = np.concatenate([family.hash(keys).reshape(-1) for family in families])
    assert len(np.unique(hashes)) == len(hashes)  # repeats have a probability below 1e-11


def test_one_bit_of_a_key_changes_half_of_the_hash() -> None:
    family = HashFamily(SEED, "test", 2, 3)
    keys = np.arange(4000, dtype=np.uint64).reshape(-1, 2) << np.uint64(8)
    for bit in range(0, 24, 5):
        flipped = keys.copy()
        flipped[:, 1] ^= np.uint64(1 << bit)
        changed = np.bitwise_count(family.hash(keys) ^ family.hash(flipped)).mean()
        assert abs(changed - 32) < 0.3  # 6,000 words of sd 4: five standard errors are 0.26


def test_the_check_is_not_linear() -> None:
    family = HashFamily(SEED, "test", 1, 1)
    low, middle, high = (
        family.hash(np.arange(1, 1001, dtype=np.uint64).reshape(-1, 1) * np.uint64(factor))[:, 0]
        for factor in (1, 2, 3)
    )
    assert not (low + high == middle * np.uint64(2)).any()


@given(st.integers(1, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_a_reduced_word_is_below_its_bound(bound: int, word: int) -> None:
    assert 0 <= fast_range(np.array([word], dtype=np.uint64), bound)[0] < bound
