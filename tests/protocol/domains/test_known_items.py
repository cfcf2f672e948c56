"""Domains for known items: of texts, of a dictionary, and of numbers with or without segments."""

from typing import Any

import pytest

from protocol.domains import Domain
from protocol.domains.known_items import KnownItems
from protocol.domains.product import Product
from protocol.domains.strings import Alphabet, Listed, Utf8
from protocol.mechanisms.registry import MECHANISMS

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def known(*items: str, **wishes: Any) -> KnownItems:
    return KnownItems(items=items, **({"devices": 10_000, "rounds": 2} | wishes))


def chosen(length: int, words: int, choice: str = "auto", **wishes: Any) -> Domain:
    items = known(*LETTERS, "a" * length, choice=choice, words=words, **wishes)
    fields = {"contribution": 1}
    domain: Domain = MECHANISMS["tracked"].domain_about(items, fields)
    return domain


@pytest.mark.parametrize(
    ("length", "words", "rounds", "kind"),
    [
        (6, 1000, 4, "alphabet"),  # 30 bits
        (8, 1000, 3, "alphabet"),  # 40 bits
        (8, 1000, 4, "hashed"),
        (8, 400, 4, "alphabet"),
        (16, 400, 2, "hashed"),  # 80 bits
        (2000, 100, 2, "hashed"),
    ],
)
def test_keys_are_hashed_if_they_are_long_for_the_words_and_rounds(
    length: int, words: int, rounds: int, kind: str
) -> None:
    assert chosen(length, words, rounds=rounds).kind == kind


def test_a_choice_is_kept_and_others_have_no_hashed_keys() -> None:
    assert [chosen(8, 600, kind).kind for kind in ("utf8", "hashed", "alphabet")] == [
        *("utf8", "hashed", "alphabet")
    ]
    assert MECHANISMS["adaptive-iblt"].domain_about(known("a", "b" * 30), {}).kind == "alphabet"
    with pytest.raises(ValueError, match="such as tracked"):
        MECHANISMS["adaptive-iblt"].domain_about(known("a", choice="hashed"), {})


def test_one_round_has_no_hashed_keys_whose_strings_it_cannot_fetch() -> None:
    assert [chosen(30, 1000, rounds=rounds).kind for rounds in (1, 2)] == ["alphabet", "hashed"]


def test_texts_have_the_shortest_keys_or_the_wished_ones() -> None:
    assert known("ab", "b").text_domain() == Alphabet(characters="\0ab", length=2, pad="\0")
    assert known("ab", "b", levels=7).text_domain() == Utf8(max_bytes=7)
    assert known("ab", "b", alphabet="ba", levels=2).text_domain().kind == "alphabet"
    with pytest.raises(ValueError, match="not of utf8"):
        known("a", choice="utf8", alphabet="a").text_domain()
    with pytest.raises(ValueError, match="go with numbers"):
        known("a", low=1.0).text_domain()


def test_a_dictionary_lists_the_items_that_are_not_too_long() -> None:
    assert known("abc", "b", "a", "b").dictionary() == Listed(items=("abc", "b", "a"))
    assert known("abc", "b", "a", levels=2).dictionary() == Listed(items=("b", "a"))
    with pytest.raises(ValueError, match="one item only of 1 bytes at most"):
        known("abc", "b", levels=1).dictionary()


def test_numbers_have_an_interval_and_may_have_segments() -> None:
    interval = known("3.5", "x", "12").interval(4, 8)
    assert (interval.low, interval.high, interval.alpha, interval.length) == (3.5, 12, 4, 8)
    assert known("3", "9", high=10.0, alpha=2, levels=3).interval(4, 8).cells == 8
    assert known("3", "9").intervals_by_segment(10, 4) == known("3", "9").interval(10, 4)
    by_segment = known("north:3", "south:x", "south:9").intervals_by_segment(10, 4)
    assert isinstance(by_segment, Product)
    assert (by_segment.segments, by_segment.inner.base) == (("north", "south"), 10)
    with pytest.raises(ValueError, match="no numbers"):
        known("a").interval(4, 8)
    with pytest.raises(ValueError, match="is between 20 and 30"):
        known("3", low=20.0, high=30.0).interval(4, 8)
    with pytest.raises(ValueError, match="no alphabet"):
        known("3", "4", alphabet="ab").interval(4, 8)


@pytest.mark.parametrize("items", [("800", "1.000", "1.525"), ("1.162",), ("1.000.000", "7")])
def test_points_that_may_separate_thousands_are_refused(items: tuple[str, ...]) -> None:
    """Guards: the mean of 800 and 1.000, which is 1,000 in German, was 400.5."""
    for read in (known(*items), known(*(f"north:{item}" for item in items))):
        with pytest.raises(ValueError, match=r"may be 1\d+, or have three decimals"):
            read.intervals_by_segment(4, 8)


@pytest.mark.parametrize("items", [("0.125", "1.125"), ("800.0", "1.125"), ("1.000", "1.5")])
def test_other_decimals_are_read(items: tuple[str, ...]) -> None:
    assert known(*items).interval(4, 8).high == max(map(float, items))


def test_an_interval_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="low"):
        known("3", low=5.0, high=1.0).interval(4, 8)
