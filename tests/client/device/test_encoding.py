"""Contribution of a device: which of its records it leaves out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from client.device.encoding import make_contribution
from protocol.domains.strings import Alphabet
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion

QUESTION = AdaptiveIbltQuestion(
    threshold=5, contribution=6, domain=Alphabet(characters="\0abc", length=3, pad="\0"), words=2000
)


def test_what_is_outside_the_domain_takes_no_room_under_the_bound() -> None:
    holdings = {"a": 4, "b": 2, "outside": 100, "d": 1}
    contribution = make_contribution(QUESTION, holdings, np.random.default_rng(1))
    assert contribution.histogram == {"a": 4, "b": 2}
    assert (contribution.outside_domain, contribution.over_bound) == (101, 0)


def test_more_copies_of_an_item_than_the_policy_allows_are_left_out() -> None:
    holdings = {"a": 5, "b": 1}
    contribution = make_contribution(QUESTION, holdings, np.random.default_rng(1), max_copies=2)
    assert contribution.histogram == {"a": 2, "b": 1}
    assert (contribution.outside_domain, contribution.over_bound) == (0, 3)


@given(
    st.dictionaries(st.text("abcx", min_size=1, max_size=4), st.integers(1, 9)), st.integers(0, 99)
)
def test_no_device_gives_more_than_its_bound_or_items(holdings: dict[str, int], seed: int) -> None:
    contribution = make_contribution(QUESTION, holdings, np.random.default_rng(seed))
    inside = {item: count for item, count in holdings.items() if item in QUESTION.domain}
    assert sum(contribution.histogram.values()) == min(sum(inside.values()), 6)
    assert all(0 < count <= inside[item] for item, count in contribution.histogram.items())
    assert (
        sum(holdings.values())
        == sum(contribution.histogram.values())
        + contribution.outside_domain
        + contribution.over_bound
    )
