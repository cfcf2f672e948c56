"""Keys of hashed items are of one size, differ by salt, and have names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.domains.hashed import Hashed, KeyBits, min_key_bits

DOMAIN = Hashed(max_bytes=40, salt="study 1")
text = st.text(st.characters(exclude_characters="\0#", codec="utf-8"), max_size=10)
items = st.lists(text)  # no "#": with 24 bits "#00ff00" has the shape of a name


@pytest.mark.parametrize("bits", [24, 32, 40, 48, 72])
@given(items)
def test_a_key_has_the_name_of_its_item(bits: KeyBits, held: list[str]) -> None:
    domain = Hashed(max_bytes=40, key_bits=bits)
    keys = domain.encode(held)
    assert keys.shape == (len(held), domain.chunks)
    assert (keys < domain.bound).all()
    names = [domain.name(item) for item in held]
    assert domain.decode(keys) == names
    assert (domain.keys_of(names) == keys).all()


def test_a_name_is_that_of_every_device_and_no_other_study() -> None:
    assert DOMAIN.name("https://example.org/a") == "#329e0310e9"
    assert DOMAIN.name("a") != Hashed(max_bytes=40, salt="study 2").name("a")
    assert Hashed(max_bytes=40).name("a") != DOMAIN.name("a")


def test_ten_thousand_items_have_distinct_keys_that_fill_all_their_bits() -> None:
    keys = DOMAIN.encode([f"item {number}" for number in range(10_000)])
    assert len(np.unique(keys, axis=0)) == 10_000
    for chunk in range(DOMAIN.chunks):
        for bit in range(20):
            share = (keys[:, chunk] >> np.uint64(bit) & np.uint64(1)).mean()
            assert abs(share - 0.5) < 0.025  # five standard errors


def test_what_is_too_long_or_no_text_is_outside() -> None:
    assert "x" * 40 in DOMAIN
    for item in ("x" * 41, "é" * 21, "nul\0", "\ud800"):
        assert item not in DOMAIN
        with pytest.raises(ValueError, match="outside the domain of kind hashed"):
            DOMAIN.encode([item])


def test_a_string_that_looks_like_a_name_is_not_an_item() -> None:
    assert DOMAIN.name("a") not in DOMAIN
    for item in ("#fff", "#48bf667a8b1", "#5a8004b04x", "5a8004b0424"):
        assert item in DOMAIN


@pytest.mark.parametrize(
    ("tokens", "bits"),
    [(1, 24), (41_943, 24), (41_944, 32), (10**7, 32), (10**9, 40), (10**30, 72)],
)
def test_collisions_of_the_shortest_keys_spoil_one_piece_in_four_hundred(
    tokens: int, bits: int
) -> None:
    assert min_key_bits(tokens) == bits
