"""Items become integers and come back: one-to-one, or refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.domains.numeric import NumericInterval
from protocol.domains.strings import Alphabet, Listed, Utf8, smallest_domain

ROOT = Alphabet(characters="abcdefghijklmnopqrstuvwxyz0123456789'@#;*:./_ ", length=3)
PADDED_ALPHABET = Alphabet(characters="-abcde", length=40, pad="-")
TEXT = Utf8(max_bytes=20)
DAYS = NumericInterval(low=-3.5, high=365, alpha=10, length=3)

characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])


@given(st.lists(st.text(characters).filter(lambda item: len(item.encode()) <= 20)))
def test_text_comes_back(items: list[str]) -> None:
    assert TEXT.decode(TEXT.encode(items)) == items


@given(st.lists(st.text("abcde-", max_size=40).filter(lambda item: not item.endswith("-"))))
def test_padded_items_come_back(items: list[str]) -> None:
    assert PADDED_ALPHABET.decode(PADDED_ALPHABET.encode(items)) == items


@given(
    st.integers(2, 60).flatmap(
        lambda size: st.tuples(
            st.just("".join(chr(65 + number) for number in range(size))), st.integers(1, 30)
        )
    ),
    st.data(),
)
def test_items_of_full_length_come_back(shape: tuple[str, int], data: st.DataObject) -> None:
    domain = Alphabet(characters=shape[0], length=shape[1])
    text = st.text(shape[0], min_size=shape[1], max_size=shape[1])
    items = data.draw(st.lists(text, max_size=5))
    keys = domain.encode(items)
    assert keys.shape == (len(items), domain.chunks)
    assert (keys < domain.bound).all()
    assert domain.decode(keys) == items


@given(st.lists(st.integers(0, 46**3 - 1)))
def test_each_number_below_the_alphabets_size_is_one_item(numbers: list[int]) -> None:
    keys = np.array(numbers, dtype=np.uint64).reshape(-1, 1)
    items = ROOT.decode(keys)
    assert None not in items
    assert (ROOT.encode([item for item in items if item is not None]) == keys).all()


def test_three_of_46_characters_are_one_integer() -> None:
    assert (ROOT.chunks, ROOT.bound) == (1, 97_336)
    assert ROOT.encode(["aaa", "baa", "  a"]).tolist() == [[0], [46**2], [45 * 46**2 + 45 * 46]]


def test_up_to_three_bytes_are_one_integer() -> None:
    assert Utf8(max_bytes=3).encode(["abc"]).tolist() == [[0x616263]]
    assert Utf8(max_bytes=4).encode(["abc"]).tolist() == [[0x6162, 0x6300]]
    assert Utf8(max_bytes=7).encode(["abcdefg"]).tolist() == [[0x616263, 0x646566, 0x670000]]


def test_chunks_are_as_long_as_one_another_and_leave_7_of_31_bits() -> None:
    for size in range(1, 50):
        domain = Alphabet(characters="0123456789", length=size)
        assert domain.chunks == -(-size // 7)
        assert domain.bound <= 2**24


@pytest.mark.parametrize(
    ("domain", "item"),
    [
        (ROOT, "ab"),  # too short, and there is no pad
        (ROOT, "abcd"),
        (ROOT, "abC"),
        (ROOT, ""),
        (PADDED_ALPHABET, "a-"),  # has the same key as "a"
        (PADDED_ALPHABET, "a" * 41),
        (TEXT, "a\0b"),
        (TEXT, "é" * 11),  # 22 bytes
        (TEXT, "\ud800"),  # half of a surrogate pair
    ],
)
def test_items_outside_the_domain_are_refused(domain: Alphabet | Utf8, item: str) -> None:
    assert item not in domain
    with pytest.raises(ValueError, match="outside the domain"):
        domain.encode([item])


@pytest.mark.parametrize(
    ("domain", "key"),
    [
        (ROOT, [46**3]),
        (TEXT, [256**3] + [0] * 6),
        (TEXT, [0xFF0000] + [0] * 6),  # not UTF-8
        (TEXT, [0x610062] + [0] * 6),  # a NUL inside
        (TEXT, [0x616161] * 7),  # 21 bytes
        (Alphabet(characters="ab", length=31), [0, 1]),  # the last group is not filled up so
    ],
)
def test_keys_that_no_item_has_decode_to_none(domain: Alphabet | Utf8, key: list[int]) -> None:
    assert domain.decode(np.array([key], dtype=np.uint64)) == [None]


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "alphabet", "characters": "aa", "length": 2},
        {"kind": "alphabet", "characters": "ab", "length": 2, "pad": "c"},
        {"kind": "alphabet", "characters": "ab", "length": 0},
        {"kind": "utf8", "max_bytes": 0},
        {"kind": "utf8", "max_bytes": 10, "length": 3},
        {"kind": "hash"},
    ],
)
def test_domains_that_make_no_sense_are_refused(fault: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Domain).validate_python(fault)


@pytest.mark.parametrize("domain", [ROOT, PADDED_ALPHABET, TEXT, DAYS])
def test_domains_come_back_from_json(domain: Domain) -> None:
    adapter: TypeAdapter[Domain] = TypeAdapter(Domain)
    assert adapter.validate_json(domain.model_dump_json()) == domain


@given(st.lists(st.text(characters, max_size=30), min_size=1))
def test_the_cheapest_domain_holds_all_items(items: list[str]) -> None:
    domain = smallest_domain(items)
    assert domain.decode(domain.encode(items)) == items


def test_the_cheapest_domain_is_an_alphabet_where_that_is_shorter() -> None:
    assert isinstance(smallest_domain(["abc", "cab"]), Alphabet)
    assert isinstance(smallest_domain(["".join(map(chr, range(33, 300))), "a"]), Utf8)


@pytest.mark.parametrize("items", [[], ["a\0"], ["é" * 1025]])
def test_there_is_not_always_a_domain(items: list[str]) -> None:
    with pytest.raises(ValueError):
        smallest_domain(items)


@pytest.mark.parametrize(
    ("domain", "items", "values"),
    [
        (Utf8(max_bytes=8), ["", "a", "\x7f" * 8, "\U0010ffff" * 2], 245 * 256**7),
        (Utf8(max_bytes=1), ["", "a"], 245),
        (Alphabet(characters="ab-", length=40, pad="-"), ["", "ab", "-a", "b" * 40], 3**40),
        (Alphabet(characters="ab", length=63), ["a" * 63, "b" * 63], 2**63),
        (Listed(items=("x", "y", "z")), ["z", "x", "y"], 3),
        (Hashed(max_bytes=99, key_bits=24), ["one", "two"], 2**24 - 3),
        (Hashed(max_bytes=99, key_bits=32), ["one", "two"], (2**16 - 15) ** 2),
        (Hashed(max_bytes=99, key_bits=48), ["one", "two"], (2**24 - 3) ** 2),
    ],
)
def test_items_become_single_values_and_come_back(
    domain: Domain, items: list[str], values: int
) -> None:
    assert domain.value_count == values
    numbers = domain.values_of(items)
    assert numbers.dtype == np.uint64
    assert len(set(numbers.tolist())) == len(items)
    assert max(numbers.tolist()) < values
    assert domain.names_of(numbers) == [domain.name(item) for item in items]
    assert domain.names_of(np.array([values, 2**64 - 1], np.uint64)) == [None, None]


def test_an_item_outside_the_domain_has_no_value() -> None:
    for domain in (Utf8(max_bytes=2), Listed(items=("x", "y")), PADDED_ALPHABET):
        with pytest.raises(ValueError, match="'word' is outside the domain"):
            domain.values_of(["word"])
