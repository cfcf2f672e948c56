"""States of a study add up item by item, and come back from their bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.study_state import EMPTY_STATE, StudyState

counts = st.dictionaries(st.text(max_size=5), st.integers(-(2**40), 2**40).map(float))


def state_of(held: dict[str, float], name: str = "count") -> StudyState:
    return EMPTY_STATE.add(list(held), {name: np.array(list(held.values()), np.float64)})


@given(counts, counts)
def test_numbers_add_up_item_by_item(first: dict[str, float], second: dict[str, float]) -> None:
    summed = state_of(first).add(
        list(second), {"count": np.array(list(second.values()), np.float64)}
    )
    expected = {item: first.get(item, 0) + second.get(item, 0) for item in first | second}
    assert dict(zip(summed.items, summed.column("count"), strict=True)) == expected


@given(counts, counts)
def test_a_study_state_comes_back_from_its_bytes(
    first: dict[str, float], second: dict[str, float]
) -> None:
    state = state_of(first).add(list(second), {"more": np.array(list(second.values()), np.float64)})
    state = state.with_array("table", np.arange(6, dtype=np.int64).reshape(2, 3))
    again = StudyState.unpack(state.pack())
    assert again == state
    assert again.arrays["table"].dtype == np.int64
    assert again.pack() == state.pack()


def test_what_differs_is_not_the_same() -> None:
    state = state_of({"a": 1.0})
    assert state not in (state_of({"b": 1.0}), state_of({"a": 2.0}), state_of({"a": 1.0}, "more"))
    assert state != state.with_array("x", np.zeros(1))
    assert state != "state"


def test_a_column_that_nobody_wrote_is_zero() -> None:
    assert state_of({"a": 1.0, "b": 2.0}).column("other").tolist() == [0, 0]
    mixed = state_of({"a": 1.0}).add(["b"], {"other": np.ones(1)})
    assert (mixed.column("count").tolist(), mixed.column("other").tolist()) == ([1, 0], [0, 1])


def test_rows_are_selected_and_columns_replaced() -> None:
    state = state_of({"a": 1, "b": 2, "c": 3}).with_array("rounds", np.arange(2))
    some = state.select_rows(np.array([True, False, True]))
    assert some == state_of({"a": 1, "c": 3}).with_array("rounds", np.arange(2))
    assert some.with_column("count", np.array([5.0, 6.0])) == state_of({"a": 5, "c": 6}).with_array(
        "rounds", np.arange(2)
    )
    with pytest.raises(ValueError, match="columns of 2 numbers"):
        some.with_column("count", np.zeros(3))


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="is repeated"):
        StudyState(("a", "a"))
    with pytest.raises(ValueError, match="columns of 1 numbers"):
        StudyState(("a",), {"count": np.zeros(2)})
    for items, column in ((["a", "a"], np.zeros(2)), (["a"], np.zeros(2))):
        with pytest.raises(ValueError, match="one number for each of different items"):
            EMPTY_STATE.add(items, {"count": column})
