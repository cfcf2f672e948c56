"""What a device leaves out before it gives anything."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from client.encoding import contribute, tally
from protocol.domain import Alphabet
from protocol.mechanisms.adaptive_iblt import AdaptiveIbltQuestion

QUESTION = AdaptiveIbltQuestion(
    threshold=5,
    contribution=6,
    domain=Alphabet(characters="\0abc", length=3, pad="\0"),
    words=2000,
)


def test_records_become_a_histogram() -> None:
    assert tally(["a", "b", "a"]) == {"a": 2, "b": 1}


def test_what_is_outside_the_domain_takes_no_room_under_the_bound() -> None:
    held = {"a": 4, "b": 2, "outside": 100, "d": 1}
    given = contribute(QUESTION, held, np.random.default_rng(1))
    assert given.histogram == {"a": 4, "b": 2}
    assert (given.outside, given.beyond) == (101, 0)


@given(
    st.dictionaries(st.text("abcx", min_size=1, max_size=4), st.integers(1, 9)), st.integers(0, 99)
)
def test_nobody_gives_more_than_the_bound_or_than_there_is(held: dict[str, int], seed: int) -> None:
    given = contribute(QUESTION, held, np.random.default_rng(seed))
    inside = {item: count for item, count in held.items() if item in QUESTION.domain}
    assert sum(given.histogram.values()) == min(sum(inside.values()), 6)
    assert all(0 < count <= inside[item] for item, count in given.histogram.items())
    assert sum(held.values()) == sum(given.histogram.values()) + given.outside + given.beyond


def test_a_device_with_nothing_to_say_gives_an_empty_histogram() -> None:
    assert contribute(QUESTION, {}, np.random.default_rng(1)).histogram == {}
