"""Histograms as arrays equal histograms as dictionaries."""

from collections import Counter
from pickle import dumps, loads

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.histograms import Histograms, ItemIndex, ItemTotals, clip, clip_histograms
from protocol.randomness import seeded_words

Held = list[dict[str, int]]
fleets = st.lists(
    st.dictionaries(st.text("abcö", max_size=2), st.integers(1, 2**62), max_size=4), max_size=6
)


@given(fleets)
def test_devices_come_back_as_they_are(held: Held) -> None:
    arrays = Histograms.from_mappings(held)
    assert list(arrays) == [arrays[device] for device in range(len(held))] == held
    assert all(list(held) == sorted(held) for held in arrays)
    assert arrays.sizes.tolist() == [len(first) for first in held]
    assert Histograms.from_mappings(arrays) is arrays


@given(fleets, st.data())
def test_some_devices_are_taken_in_any_order(held: Held, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(held) - 1)) if held else st.just([]))
    taken = Histograms.from_mappings(held).take(np.array(places, np.int64))
    assert list(taken) == [held[place] for place in places]
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(held))] * 2)))
    assert list(Histograms.from_mappings(held)[first:second]) == held[first:second]


@given(st.lists(fleets, min_size=1), st.lists(fleets), st.booleans())
def test_totals_cover_all_batches_and_merge_with_the_same_or_other_items(
    ours: list[Held], theirs: list[Held], is_one: bool
) -> None:
    table = ItemIndex(item for held in ours + theirs for first in held for item in first)
    truth, totals = Counter[str](), (ItemTotals(), ItemTotals())
    for total, blocks in zip(totals, (ours, theirs), strict=True):
        for held in blocks:
            small = [{item: count % 1000 + 1 for item, count in first.items()} for first in held]
            block = Histograms.from_mappings(small)
            if is_one:
                which = np.array(
                    [table.positions[block.items[at]] for at in block.item_indices], np.int64
                )
                block = Histograms(table, which, block.counts, block.ends)
            total.add(block)
            for first in small:
                truth.update(first)
    totals[0].merge(loads(dumps(totals[1])))  # noqa: S301 - made here
    assert totals[0].counts() == truth


def test_blocks_of_one_table_are_joined() -> None:
    held = [{"a": 2, "b": 1}, {}, {"b": 3}, {"c": 1}]
    whole = Histograms.from_mappings(held)
    assert list(Histograms.concatenated([whole[:1], whole[1:1], whole[1:]])) == held


def test_items_are_left_out() -> None:
    held = Histograms.from_mappings([{"a": 2, "bb": 1}, {"bb": 3}, {"c": 1}])
    kept = held.renamed(lambda item: item if len(item) == 1 else None)
    assert list(kept) == [{"a": 2}, {}, {"c": 1}]
    assert kept.items is held.items
    assert list(held.renamed(lambda _: None)) == [{}, {}, {}]
    assert held.renamed(lambda item: item) is held


def test_items_of_a_device_with_the_same_name_are_added_up() -> None:
    held = Histograms.from_mappings([{"a": 2, "ab": 1, "b": 4}, {}, {"ab": 3}, {"c": 1}])
    renamed = held.renamed(lambda item: item[0] if item != "c" else None)
    assert list(renamed) == [{"a": 3, "b": 4}, {}, {"a": 3}, {}]


def test_what_is_drawn_is_grouped_by_devices() -> None:
    drawn = Histograms.one_item_each(ItemIndex("cab"), np.array([1, 0, 1, 2, 2, 2]))
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
        Histograms.from_mappings(held).check(3)


def test_counts_beyond_63_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="below 2\\^63"):
        Histograms.from_mappings([{"a": 2**63}])


def test_counts_whose_sum_would_be_negative_are_not_clipped() -> None:
    for held in ([{"a": 2**62, "b": 2**62}], [{"a": 2**62}, {"a": 2**62}]):
        with pytest.raises(ValueError, match=r"less than 2\^63"):
            clip_histograms(Histograms.from_mappings(held), 3, np.random.default_rng(1))
    with pytest.raises(ValueError, match=r"less than 2\^63"):
        clip({"a": 2**62, "b": 2**62}, 3, seeded_words(np.random.default_rng(1)))


def test_a_function_of_items_is_computed_again_for_another_argument() -> None:
    items, made = ItemIndex("ab"), []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    assert [items.cached("x", of, make) for of in ("one", "one", "other", "one")] == [0, 0, 1, 2]
    assert items.cached("y", "one", make) == 3


# Clipping.

histograms = st.dictionaries(st.text(max_size=3), st.integers(1, 50), max_size=8)


@given(histograms, st.integers(1, 60), st.integers(0, 2**32))
def test_a_clipped_histogram_is_a_part_of_the_whole(
    histogram: dict[str, int], most: int, seed: int
) -> None:
    kept = clip(histogram, most, seeded_words(np.random.default_rng(seed)))
    assert sum(kept.values()) == min(most, sum(histogram.values()))
    assert all(0 < count <= histogram[item] for item, count in kept.items())


@given(histograms, st.integers(1, 60), st.integers(0, 2**32))
def test_clipping_does_not_depend_on_the_order_of_items(
    histogram: dict[str, int], most: int, seed: int
) -> None:
    backwards = dict(reversed(histogram.items()))
    first, second = (
        clip(h, most, seeded_words(np.random.default_rng(seed))) for h in (histogram, backwards)
    )
    assert first == second


@given(st.lists(histograms, max_size=8), st.integers(1, 60), st.integers(0, 2**32))
def test_devices_are_clipped_at_once_as_one_by_one(
    held: list[dict[str, int]], most: int, seed: int
) -> None:
    at_once = clip_histograms(Histograms.from_mappings(held), most, np.random.default_rng(seed))
    rng = np.random.default_rng(seed)
    alone = (clip_histograms(Histograms.from_mappings([each]), most, rng)[0] for each in held)
    assert list(at_once) == list(alone)


def test_clipping_draws_each_set_of_tokens_with_equal_probability() -> None:
    held = Histograms.from_mappings([dict.fromkeys("abcde", 1)] * 20_000)
    drawn = Counter("".join(first) for first in clip_histograms(held, 3, np.random.default_rng(1)))
    assert len(drawn) == 10
    assert all(abs(count - 2000) < 5 * 43 for count in drawn.values())  # sd 43


def test_clipping_keeps_each_token_with_equal_probability() -> None:
    chance = seeded_words(np.random.default_rng(1))
    total: Counter[str] = Counter()
    for _ in range(1500):
        total.update(clip({"a": 6, "b": 3, "c": 1}, 2, chance))
    # 3,000 tokens: five standard errors are below 0.045.
    assert abs(total["a"] / 3000 - 0.6) < 0.045
    assert abs(total["b"] / 3000 - 0.3) < 0.045


def test_a_device_that_holds_billions_is_clipped_as_any_other() -> None:
    chance = seeded_words(np.random.default_rng(1))
    kept = clip({"a": 2**61, "b": 2**60, "c": 1}, 3000, chance)
    assert sum(kept.values()) == 3000
    assert abs(kept["a"] - 2000) < 130  # five standard errors
