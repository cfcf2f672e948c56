"""Histograms as arrays say what dictionaries say."""

from collections import Counter
from pickle import dumps, loads

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.histograms import Histograms, Items, Total

Held = list[dict[str, int]]
fleets = st.lists(
    st.dictionaries(st.text("abcö", max_size=2), st.integers(1, 2**62), max_size=4), max_size=6
)


@given(fleets)
def test_devices_come_back_as_they_are(held: Held) -> None:
    arrays = Histograms.of(held)
    assert list(arrays) == [arrays[device] for device in range(len(held))] == held
    assert all(list(one) == sorted(one) for one in arrays)
    assert arrays.sizes.tolist() == [len(one) for one in held]
    assert Histograms.of(arrays) is arrays


@given(fleets, st.data())
def test_some_devices_are_taken_in_any_order(held: Held, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(held) - 1)) if held else st.just([]))
    taken = Histograms.of(held).take(np.array(places, np.int64))
    assert list(taken) == [held[place] for place in places]
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(held))] * 2)))
    assert list(Histograms.of(held)[first:second]) == held[first:second]


@given(st.lists(fleets, min_size=1))
def test_what_devices_hold_together_is_told_of_all_blocks(blocks: list[Held]) -> None:
    total, truth = Total(), Counter[str]()
    for held in blocks:
        small = [{item: count % 1000 + 1 for item, count in one.items()} for one in held]
        total.add(Histograms.of(small))
        for one in small:
            truth.update(one)
    assert total.counts() == truth


@given(st.lists(fleets, min_size=1), st.lists(fleets), st.booleans())
def test_totals_join_whatever_tables_they_have(
    ours: list[Held], theirs: list[Held], is_one: bool
) -> None:
    table = Items(item for held in ours + theirs for one in held for item in one)
    truth, totals = Counter[str](), (Total(), Total())
    for total, blocks in zip(totals, (ours, theirs), strict=True):
        for held in blocks:
            small = [{item: count % 1000 + 1 for item, count in one.items()} for one in held]
            block = Histograms.of(small)
            if is_one:
                which = np.array([table.places[block.items[at]] for at in block.which], np.int64)
                block = Histograms(table, which, block.counts, block.ends)
            total.add(block)
            for one in small:
                truth.update(one)
    totals[0].join(loads(dumps(totals[1])))  # noqa: S301 - made here
    assert totals[0].counts() == truth


def test_blocks_of_one_table_are_joined() -> None:
    held = [{"a": 2, "b": 1}, {}, {"b": 3}, {"c": 1}]
    whole = Histograms.of(held)
    assert list(Histograms.joined([whole[:1], whole[1:1], whole[1:]])) == held


def test_items_are_left_out() -> None:
    held = Histograms.of([{"a": 2, "bb": 1}, {"bb": 3}, {"c": 1}])
    assert list(held.within(lambda item: len(item) == 1)) == [{"a": 2}, {}, {"c": 1}]


def test_what_is_drawn_is_grouped_by_devices() -> None:
    drawn = Histograms.single(Items("cab"), np.array([1, 0, 1, 2, 2, 2]))
    assert list(drawn.grouped(3)) == [{"a": 1, "b": 2}, {"c": 3}]
    assert list(drawn.grouped(1)) == [{"b": 1}, {"a": 1}, {"b": 1}, {"c": 1}, {"c": 1}, {"c": 1}]


@pytest.mark.parametrize(
    ("held", "fault"),
    [
        ([{"a": 3}, {"b": 1, "c": 3}], "at most 3 items, got 4"),
        ([{"a": 2**62, "b": 2**62}], "at most 3 items, got 4611686018427387904"),  # they would wrap
        ([{"a": 1}, {"b": 0}], "1 or more, got 0 of 'b'"),
        ([{"a": 2, "b": -1}], "1 or more, got -1 of 'b'"),
    ],
)
def test_more_than_a_device_contributes_is_refused(held: Held, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Histograms.of(held).check(3)


def test_counts_beyond_63_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="below 2\\^63"):
        Histograms.of([{"a": 2**63}])


def test_what_is_made_of_items_is_made_anew_for_something_else() -> None:
    items, made = Items("ab"), []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    assert [items.made("x", of, make) for of in ("one", "one", "other", "one")] == [0, 0, 1, 2]
    assert items.made("y", "one", make) == 3
