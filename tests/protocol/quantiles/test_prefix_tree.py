"""Prefixes are found as a dictionary would find them, also where their polynomials meet."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.numerics.array_types import DigitRows
from protocol.quantiles import prefix_tree
from protocol.quantiles.prefix_tree import (
    NO_PREFIX,
    PrefixTree,
    digits_to_integers,
    find_prefixes,
    integers_to_digits,
)
from protocol.study_state import EMPTY_STATE


def rows_of(rows: list[list[int]], width: int) -> DigitRows:
    return np.array(rows, np.uint8).reshape(len(rows), width)


@st.composite
def rows_and_prefixes(draw: st.DrawFn) -> tuple[DigitRows, DigitRows]:
    width, base = draw(st.integers(1, 5)), draw(st.sampled_from([2, 3, 256]))
    depth = draw(st.integers(0, width))
    digit = st.integers(0, base - 1)
    rows = draw(st.lists(st.lists(digit, min_size=width, max_size=width), max_size=12))
    some = [row[:depth] for row in rows if draw(st.booleans())]
    some += draw(st.lists(st.lists(digit, min_size=depth, max_size=depth), max_size=6))
    unique = list(dict.fromkeys(map(tuple, some)))
    prefixes = [list(prefix) for prefix in draw(st.permutations(unique))]
    return rows_of(rows, width), rows_of(prefixes, depth)


def looked_up(rows: DigitRows, prefixes: DigitRows) -> list[int]:
    table = {tuple(prefix): place for place, prefix in enumerate(prefixes.tolist())}
    return [table.get(tuple(row[: prefixes.shape[1]]), NO_PREFIX) for row in rows.tolist()]


@given(rows_and_prefixes())
def test_places_are_those_of_a_dictionary(both: tuple[DigitRows, DigitRows]) -> None:
    rows, prefixes = both
    indices = find_prefixes(rows, prefixes)
    assert indices.dtype == np.int64
    assert indices.tolist() == looked_up(rows, prefixes)


@pytest.mark.parametrize("factor", [0, 1, 2**63])
@given(both=rows_and_prefixes())
def test_polynomials_that_meet_change_nothing(
    factor: int, both: tuple[DigitRows, DigitRows]
) -> None:
    """Rows of one last digit, or of one sum, have equal polynomials with these factors."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prefix_tree, "_POLYNOMIAL_FACTOR", np.uint64(factor))
        assert find_prefixes(*both).tolist() == looked_up(*both)


@given(st.integers(2, 256), st.integers(1, 7), st.data())
def test_numbers_and_their_digits_are_inverse(base: int, count: int, data: st.DataObject) -> None:
    digit = st.integers(0, base - 1)
    rows = rows_of(
        data.draw(st.lists(st.lists(digit, min_size=count, max_size=count), max_size=8)), count
    )
    values = digits_to_integers(rows, base)
    assert values.tolist() == [
        sum(d * base ** (count - 1 - i) for i, d in enumerate(row)) for row in rows.tolist()
    ]
    assert integers_to_digits(values, base, count).tolist() == rows.tolist()


def node(row: list[int], depth: int, count: float) -> PrefixTree:
    return PrefixTree(rows_of([row], 2), np.array([depth]), np.array([count]), np.array([1.0]))


def test_a_tree_grows_and_comes_back_from_a_study_state() -> None:
    empty = PrefixTree.from_state(EMPTY_STATE)
    assert len(empty) == 0
    grown = empty.extended(node([1, 0], 1, 5.0)).extended(node([1, 2], 2, 4.0))
    back = PrefixTree.from_state(grown.store_in(EMPTY_STATE))
    assert back.rows.tolist() == [[1, 0], [1, 2]]
    assert back.level(2).counts.tolist() == [4.0]
    assert len(back.select(back.counts > 4.5)) == 1
    assert len(back.level(1).select(np.zeros(1, bool))) == 0
