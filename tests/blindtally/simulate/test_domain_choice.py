"""Choice of a simulated study's domain by the size of its keys and its words."""

import pytest

from blindtally.simulate.domain_choice import choose_domain
from blindtally.simulate.options import DomainChoice
from protocol.domains import Domain

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def chosen(
    length: int, words: int, choice: DomainChoice = "auto", mechanism: str = "tracked"
) -> Domain:
    items = [*LETTERS, "a" * length]
    return choose_domain(choice, items, mechanism=mechanism, max_tokens=10_000, words=words)


@pytest.mark.parametrize(
    ("length", "words", "kind"),
    [
        (8, 1000, "alphabet"),  # 40 bits
        (16, 600, "alphabet"),  # 80 bits
        (16, 1000, "hashed"),
        (30, 600, "hashed"),  # 150 bits
    ],
)
def test_keys_are_hashed_if_they_are_long_for_the_words(length: int, words: int, kind: str) -> None:
    assert chosen(length, words).kind == kind


def test_other_mechanisms_have_no_hashed_keys_and_a_choice_is_kept() -> None:
    assert chosen(30, 2000, mechanism="adaptive-iblt").kind == "alphabet"
    kinds: list[DomainChoice] = ["utf8", "hashed", "alphabet"]
    assert [chosen(8, 600, kind).kind for kind in kinds] == kinds
    with pytest.raises(ValueError, match="fetches the strings"):
        chosen(8, 600, "hashed", "adaptive-iblt")


def test_one_round_has_no_hashed_keys_whose_strings_it_cannot_fetch() -> None:
    items = [*LETTERS, "a" * 30]
    kinds = [
        choose_domain(
            "auto", items, mechanism="tracked", max_tokens=10_000, words=1000, rounds=rounds
        ).kind
        for rounds in (1, 2)
    ]
    assert kinds == ["alphabet", "hashed"]


def test_items_that_only_hashed_keys_hold_are_hashed() -> None:
    domain = choose_domain("auto", ["a" * 2000], mechanism="tracked", max_tokens=10, words=100)
    assert domain.kind == "hashed"
    assert "a" * 2000 in domain
