"""Packed histograms equal their source, in any order of the rows of a file."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindtally.datasets import device_histograms
from blindtally.datasets.device_histograms import DeviceHistograms, HistogramPacker
from protocol.histograms import Histograms

ITEMS = st.sampled_from(["b", "a", "", "c c", "\u00e9"])
COUNTS = st.integers(1, 9) | st.integers(2**32, 2**40)
HISTOGRAMS = st.lists(st.dictionaries(ITEMS, COUNTS), max_size=12)
CHUNKS = st.sampled_from([1, 3, 1000])


@given(HISTOGRAMS, CHUNKS)
def test_histograms_come_out_as_they_went_in(held: list[dict[str, int]], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(device_histograms, "BATCH_HOLDINGS", chunk)
        devices = DeviceHistograms.of(held)
        assert list(devices) == held
        assert [devices[place] for place in range(-len(held), 0)] == held
        assert list(devices[1::2]) == held[1::2]
        assert devices.items == tuple(
            dict.fromkeys(item for histogram in held for item in histogram)
        )
        assert +Counter(devices.item_totals()) == sum(map(Counter, held), Counter())


@given(HISTOGRAMS.filter(len), st.integers(0, 99))
def test_those_that_are_taken_are_arrays_as_if_they_had_never_been_packed(
    held: list[dict[str, int]], seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(held))
    packed = DeviceHistograms.of(held).take(order)
    plain = Histograms.from_mappings(held).take(order)
    assert list(packed) == list(plain)
    for name in ("item_indices", "counts", "ends"):
        assert getattr(packed, name).tolist() == getattr(plain, name).tolist()
        assert getattr(packed, name).dtype == np.int64
    assert list(packed.items) == list(plain.items)


@given(st.lists(st.tuples(st.sampled_from("uvwx"), ITEMS, COUNTS), min_size=1), CHUNKS)
def test_rows_of_a_user_need_not_stand_together(
    rows: list[tuple[str, str, int]], chunk: int
) -> None:
    users: dict[str, Counter[str]] = {}
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(device_histograms, "BATCH_HOLDINGS", chunk)
        packer = HistogramPacker()
        for user, item, count in rows:
            packer.begin_user(user)
            packer.add_holding(item, count)
            users.setdefault(user, Counter())[item] += count
        devices = packer.build()
        packer.close()
        assert list(devices) == list(users.values())
