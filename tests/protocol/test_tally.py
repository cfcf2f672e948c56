"""A tally adds by item, keeps what it is given, and comes back from its bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.domain import Alphabet
from protocol.mechanism import Estimate, add_estimates
from protocol.mechanisms.adaptive_iblt import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.tally import NOTHING, Tally

QUESTION = AdaptiveIbltQuestion(
    threshold=5, contribution=2, domain=Alphabet(characters="ab", length=1), words=1000
)
counts = st.dictionaries(st.text(max_size=5), st.integers(-(2**40), 2**40).map(float))


def tally_of(held: dict[str, float], name: str = "count") -> Tally:
    return NOTHING.add(list(held), {name: np.array(list(held.values()), np.float64)})


@given(counts, counts)
def test_numbers_add_up_item_by_item(one: dict[str, float], other: dict[str, float]) -> None:
    summed = tally_of(one).add(list(other), {"count": np.array(list(other.values()), np.float64)})
    expected = {item: one.get(item, 0) + other.get(item, 0) for item in one | other}
    assert dict(zip(summed.items, summed.column("count"), strict=True)) == expected


@given(counts, counts)
def test_a_tally_comes_back_from_its_bytes(one: dict[str, float], other: dict[str, float]) -> None:
    tally = tally_of(one).add(list(other), {"more": np.array(list(other.values()), np.float64)})
    tally = tally.keep("table", np.arange(6, dtype=np.int64).reshape(2, 3))
    again = Tally.unpack(tally.pack())
    assert again == tally
    assert again.arrays["table"].dtype == np.int64
    assert again.pack() == tally.pack()


def test_what_differs_is_not_the_same() -> None:
    tally = tally_of({"a": 1.0})
    assert tally not in (tally_of({"b": 1.0}), tally_of({"a": 2.0}), tally_of({"a": 1.0}, "more"))
    assert tally != tally.keep("x", np.zeros(1))
    assert tally != "tally"


def test_a_column_that_nobody_wrote_is_zero() -> None:
    assert tally_of({"a": 1.0, "b": 2.0}).column("other").tolist() == [0, 0]
    mixed = tally_of({"a": 1.0}).add(["b"], {"other": np.ones(1)})
    assert (mixed.column("count").tolist(), mixed.column("other").tolist()) == ([1, 0], [0, 1])


def test_some_rows_are_those_rows_and_a_column_may_be_put_anew() -> None:
    tally = tally_of({"a": 1, "b": 2, "c": 3}).keep("rounds", np.arange(2))
    some = tally.where(np.array([True, False, True]))
    assert some == tally_of({"a": 1, "c": 3}).keep("rounds", np.arange(2))
    assert some.put("count", np.array([5.0, 6.0])) == tally_of({"a": 5, "c": 6}).keep(
        "rounds", np.arange(2)
    )
    with pytest.raises(ValueError, match="columns of 2 numbers"):
        some.put("count", np.zeros(3))


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="stands twice"):
        Tally(("a", "a"))
    with pytest.raises(ValueError, match="columns of 1 numbers"):
        Tally(("a",), {"count": np.zeros(2)})
    for items, column in ((["a", "a"], np.zeros(2)), (["a"], np.zeros(2))):
        with pytest.raises(ValueError, match="one number for each of different items"):
            NOTHING.add(items, {"count": column})


def test_estimates_and_variances_add_up_over_rounds_and_the_heavy_are_ranked() -> None:
    first = add_estimates(NOTHING, [Estimate("a", 5, 1), Estimate("b", 3, 2), Estimate("c", 4, 9)])
    tally = add_estimates(first, [Estimate("b", 4, 3)])
    assert AdaptiveIblt().conclude(QUESTION, tally) == [Estimate("b", 7, 5), Estimate("a", 5, 1)]
