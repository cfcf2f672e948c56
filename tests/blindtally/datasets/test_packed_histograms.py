"""PackedHistograms histograms are what they were made of, whatever stands where in a file."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindtally.datasets import packed_histograms
from blindtally.datasets.packed_histograms import HistogramPacker, PackedHistograms
from protocol.histograms import Histograms

ITEMS = st.sampled_from(["b", "a", "", "c c", "\u00e9"])
COUNTS = st.integers(1, 9) | st.integers(2**32, 2**40)
HELD = st.lists(st.dictionaries(ITEMS, COUNTS), max_size=12)
CHUNKS = st.sampled_from([1, 3, 1000])


@given(HELD, CHUNKS)
def test_histograms_come_out_as_they_went_in(held: list[dict[str, int]], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(packed_histograms, "BATCH_HOLDINGS", chunk)
        found = PackedHistograms.of(held)
        assert list(found) == held
        assert [found[place] for place in range(-len(held), 0)] == held
        assert list(found[1::2]) == held[1::2]
        assert found.items == tuple(dict.fromkeys(item for one in held for item in one))
        assert +Counter(found.item_totals()) == sum(map(Counter, held), Counter())
        few = found.filter_items(lambda item: item > "a")
        assert list(few) == [{i: c for i, c in one.items() if i > "a"} for one in held]
        assert set(few.items) == {item for one in held for item in one if item > "a"}
        assert found.filter_items(lambda _: True) is found


@given(HELD.filter(len), st.integers(0, 99))
def test_those_that_are_taken_are_arrays_as_if_they_had_never_been_packed(
    held: list[dict[str, int]], seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(held))
    found, plain = PackedHistograms.of(held).take(order), Histograms.from_mappings(held).take(order)
    assert list(found) == list(plain)
    for name in ("item_indices", "counts", "ends"):
        assert getattr(found, name).tolist() == getattr(plain, name).tolist()
        assert getattr(found, name).dtype == np.int64
    assert list(found.items) == list(plain.items)


@given(st.lists(st.tuples(st.sampled_from("uvwx"), ITEMS, COUNTS), min_size=1), CHUNKS)
def test_rows_of_a_user_need_not_stand_together(
    rows: list[tuple[str, str, int]], chunk: int
) -> None:
    users: dict[str, Counter[str]] = {}
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(packed_histograms, "BATCH_HOLDINGS", chunk)
        packer = HistogramPacker()
        for user, item, count in rows:
            packer.begin_user(user)
            packer.add_holding(item, count)
            users.setdefault(user, Counter())[item] += count
        found = packer.build()
        packer.close()
        assert list(found) == list(users.values())
