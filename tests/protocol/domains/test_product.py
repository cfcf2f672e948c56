"""Pairs of a segment and an item become integers and come back, regardless of the inner domain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.domains.hashed import HashedProduct, KeyBits
from protocol.domains.numeric import NumericInterval
from protocol.domains.product import Product
from protocol.domains.strings import Alphabet, Utf8

SEGMENTS = ("north", "south", "Nord-Ost, 3%")
INNERS = {
    "letters": Alphabet(characters="-:abc", length=4, pad="-"),  # one chunk
    "long": Alphabet(characters="abcdefghij", length=9),
    "text": Utf8(max_bytes=20),
    "byte": Utf8(max_bytes=1),
    "numbers": NumericInterval(low=-3.5, high=365, alpha=10, length=3),
    "fine numbers": NumericInterval(low=0, high=1, alpha=4, length=20),
}
ITEMS = {
    "letters": st.text(":abc", max_size=4),
    "long": st.text("abcdefghij", min_size=9, max_size=9),
    "text": st.text("abc:é ", max_size=10),
    "byte": st.text("abc:", max_size=1),
    "numbers": st.floats(-3.5, 365).map(str),
    "fine numbers": st.floats(0, 1).map(str),
}


@pytest.mark.parametrize("name", INNERS)
@given(data=st.data())
def test_pairs_come_back_from_keys_and_from_values(name: str, data: st.DataObject) -> None:
    inner = INNERS[name]
    domain = Product(segments=SEGMENTS, inner=inner)
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(SEGMENTS), ITEMS[name]), max_size=5))
    items = [f"{segment}:{item}" for segment, item in pairs]
    names = [f"{segment}:{inner.name(item)}" for segment, item in pairs]
    keys = domain.encode(items)
    assert keys.shape == (len(items), domain.chunks)
    assert (keys < domain.bound).all()
    assert domain.decode(keys) == names == [domain.canonical(item) for item in items]
    if domain.value_count <= 2**64:
        values = domain.values_of(items)
        assert (values < domain.value_count).all()
        assert domain.names_of(values) == names
        if domain.chunks == 1:
            assert (values == keys[:, 0]).all()


def test_a_segment_costs_bits_in_the_first_chunk_or_a_chunk() -> None:
    assert Product(segments=SEGMENTS, inner=INNERS["letters"]).chunks == 1
    assert Product(segments=SEGMENTS, inner=INNERS["letters"]).bound == 3 * 5**4
    assert Product(segments=SEGMENTS, inner=INNERS["text"]).chunks == 1 + INNERS["text"].chunks


@pytest.mark.parametrize("item", ["north", "north:", "west:abc", ":abc", "abc", "north:abcde"])
def test_items_without_a_listed_segment_are_refused(item: str) -> None:
    domain = Product(segments=SEGMENTS, inner=Alphabet(characters="abc", length=3))
    assert item not in domain
    assert domain.canonical(item) is None
    with pytest.raises(ValueError, match="outside the domain of kind product"):
        domain.encode([item])


def test_keys_that_no_pair_has_decode_to_none() -> None:
    domain = Product(segments=SEGMENTS, inner=Utf8(max_bytes=6))
    keys = np.array([[3, 0x616161, 0x616161], [0, 0xFF0000, 0], [2, 0x610000, 0]], np.uint64)
    assert domain.decode(keys) == [None, None, "Nord-Ost, 3%:a"]
    assert domain.names_of(np.array([domain.value_count], np.uint64)) == [None]


@pytest.mark.parametrize(
    "segments", [["a", "a"], ["a", "b:c"], ["a", ""], ["a", "b\n"], ["a"], ["a", "\ud800"]]
)
def test_segments_that_could_be_confused_are_refused(segments: list[str]) -> None:
    with pytest.raises(ValidationError):
        Product.model_validate({"segments": segments, "inner": {"kind": "utf8", "max_bytes": 3}})


HASHED = HashedProduct(segments=SEGMENTS, max_bytes=40)


@given(st.sampled_from(SEGMENTS), st.text("abc:#é ", max_size=10), st.sampled_from([24, 40, 72]))
def test_the_key_of_a_pair_shows_its_segment_and_hashes_both(
    segment: str, item: str, bits: KeyBits
) -> None:
    domain = HASHED.model_copy(update={"key_bits": bits})
    pair = f"{segment}:{item}"
    name = domain.name(pair)
    assert domain.segment_of(name) == domain.segment_of(pair) == segment
    assert domain.decode(domain.encode([pair])) == [name]
    others = [domain.name(f"{other}:{item}") for other in SEGMENTS if other != segment]
    hashes = {int(each[1:], 16) % 2 ** (bits - 2) for each in (name, *others)}
    assert len(hashes) == len(SEGMENTS)  # of 22 bits: equal with probability 1e-6
    assert name not in domain


def test_keys_without_a_segment_and_items_without_one_are_refused() -> None:
    top = np.array([[0, 0xFFFFF]], np.uint64)  # the fourth of three segments
    assert HASHED.decode(top) == [None]
    for item in ("abc", "south-west:abc", "north" * 20 + ":a", "#0123456789"):
        assert item not in HASHED
        with pytest.raises(ValueError, match="outside the domain"):
            HASHED.encode([item])
    with pytest.raises(ValidationError, match="use more key_bits"):
        HashedProduct(segments=tuple(map(str, range(16))), max_bytes=9, key_bits=24)
