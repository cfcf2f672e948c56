"""KnownStrings are fetched piece by piece from sums over those who hold them, and verified."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.domains.hashed import Hashed
from protocol.mechanisms.tracked.phrases import PLAIN, StringCode
from protocol.mechanisms.tracked.string_fetching import KnownStrings, StringPieces
from protocol.study_state import EMPTY_STATE
from secagg.oneshot.moduli import PAIRWISE, Moduli

DOMAIN = Hashed(max_bytes=60)
MAX_COUNT = 10_000
SIZE = 12
texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=15)


def fetch(
    strings: KnownStrings,
    names: list[str],
    holders: Mapping[str, int],
    noise: int = 0,
    moduli: Moduli = PAIRWISE,
    code: StringCode = PLAIN,
) -> KnownStrings:
    """Return the strings after a round that fetches the next piece of each name."""
    wanted = tuple(strings.next_piece(name, SIZE, code) for name in names)
    fetches = StringPieces(wanted, MAX_COUNT, moduli, code)
    lane = fetches.lane
    sums = np.zeros(lane.length, np.uint64)
    for item, count in holders.items():
        for _ in range(count):
            sums += fetches.encode([(DOMAIN.name(item), item, 1)]).astype(np.uint64)
    sums = (sums + np.uint64(noise)) % np.uint64(lane.q)
    counts = {DOMAIN.name(item): count for item, count in holders.items()}
    return strings.add(fetches.decode(sums.astype(lane.dtype), counts))


@given(
    st.dictionaries(texts, st.integers(1, 30), min_size=1, max_size=5),
    st.sampled_from([PAIRWISE, *(Moduli(13).fixed(p) for p in (61, 521, 65521))]),
    st.sampled_from([PLAIN, StringCode((*"abcdefghijklm", "\u00e9", "0000"))]),
)
def test_every_string_is_complete_after_one_round_per_piece(
    holders: dict[str, int], moduli: Moduli, code: StringCode
) -> None:
    strings, names = KnownStrings(DOMAIN), [DOMAIN.name(item) for item in holders]
    for _ in range(max(len(code.encode(item.encode())) for item in holders) // (SIZE - 2) + 1):
        missing = [name for name in names if name not in strings.complete]
        strings = fetch(strings, missing, holders, moduli=moduli, code=code)
    assert strings.complete == {DOMAIN.name(item): item for item in holders}
    assert strings.partial == {}


@given(st.dictionaries(texts, st.integers(1, 5), min_size=1, max_size=5))
def test_strings_come_back_from_the_study_state(holders: dict[str, int]) -> None:
    strings = fetch(KnownStrings(DOMAIN), [DOMAIN.name(item) for item in holders], holders)
    assert KnownStrings.from_state(DOMAIN, strings.store_in(EMPTY_STATE)) == strings
    assert KnownStrings.from_state(DOMAIN, EMPTY_STATE) == KnownStrings(DOMAIN)


def test_a_count_equals_the_same_number_of_holders() -> None:
    name = DOMAIN.name("seven")
    fetches = StringPieces((KnownStrings(DOMAIN).next_piece(name, SIZE),), MAX_COUNT)
    once = fetches.encode([(name, "seven", 1)]).astype(np.uint64)
    thrice = fetches.encode([(name, "seven", 3)])
    assert (once * np.uint64(3) % np.uint64(fetches.lane.q) == thrice).all()
    assert fetches.encode([("#other", "other", 1)]).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("noise", [4, 8, 123_456, 2**24])
@pytest.mark.parametrize("spoiled", [0, 1, 2])
def test_a_spoiled_string_is_not_believed_and_is_fetched_again(noise: int, spoiled: int) -> None:
    item = "a string of several pieces"
    strings, name = KnownStrings(DOMAIN), DOMAIN.name(item)
    for number in range(10):  # at most five wasted pieces, and its three pieces
        assert name not in strings.complete
        strings = fetch(strings, [name], {item: 4}, noise if number == spoiled else 0)
        if strings.complete:
            break
    assert strings.complete == {name: item}


def test_a_name_without_holders_gives_no_piece() -> None:
    strings = fetch(KnownStrings(DOMAIN), [DOMAIN.name("absent")], {"other": 3})
    assert strings == KnownStrings(DOMAIN)


@given(st.data())
def test_any_sums_at_all_are_read_without_an_error(data: st.DataObject) -> None:
    wanted = tuple(KnownStrings(DOMAIN).next_piece(name, SIZE) for name in ("#1", "#2"))
    fetches = StringPieces(wanted, MAX_COUNT)
    numbers = st.integers(0, fetches.lane.q - 1)
    sums = np.array(data.draw(st.lists(numbers, min_size=8, max_size=8)), fetches.lane.dtype)
    pieces = fetches.decode(sums, {"#1": data.draw(st.integers(0, MAX_COUNT)), "#2": 1})
    assert KnownStrings(DOMAIN).add(pieces).complete == {}
