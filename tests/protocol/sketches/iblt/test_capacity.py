"""Capacity of tables, and the number of keys in a table that is stuck."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.sketches.iblt.decoding import DecodedTable, decode_table
from protocol.sketches.iblt.layout import (
    Layout,
    capacity,
    cells_for,
    estimate_keys,
    largest_fitting_cells,
)
from protocol.sketches.iblt.table import CellFormat, Iblt


def listing(keys: int, cells: int, rng: np.random.Generator) -> DecodedTable:
    table = Iblt(CellFormat(1, 2**24, 1, keys + 8), cells, rng.bytes(32))
    chosen = np.unique(rng.integers(0, 2**24, keys + 8))
    chosen = rng.permutation(chosen)[:keys].astype(np.uint64).reshape(-1, 1)
    return decode_table(table, table.insert(chosen, np.ones(len(chosen), dtype=np.int64)))


def share_read(keys: int, cells: int, trials: int) -> float:
    rng = np.random.default_rng([keys, cells])
    return sum(listing(keys, cells, rng).complete for _ in range(trials)) / trials


@pytest.mark.parametrize("keys", [10, 40, 100, 250, 1_000])
def test_a_table_at_capacity_is_read_with_probability_97_percent(keys: int) -> None:
    # At 97%, 400 tables show 26 failures or more with probability 2e-4; some 10 are seen. None at
    # all would mean that fewer cells do: probability 5e-6.
    assert 1 - 26 / 400 < share_read(keys, cells_for(keys), 400) < 1


@pytest.mark.parametrize("keys", [100, 1_000])
def test_with_somewhat_more_cells_it_is_read_with_probability_99_percent(keys: int) -> None:
    # At 99%, 500 tables show 15 failures or more with probability 2e-4, and none with 0.007.
    assert 1 - 15 / 500 < share_read(keys, cells_for(keys, 99), 500) < 1


@pytest.mark.parametrize(
    ("keys", "most"), [(100, 1.55), (1_000, 1.21), (10_000, 1.13), (10**5, 1.11)]
)
def test_cells_per_key_at_99_percent_are_as_few_as_in_the_literature(
    keys: int, most: float
) -> None:
    assert cells_for(keys, 99) <= most * keys


def test_the_flat_size_of_the_paper_fails_for_small_tables() -> None:
    assert share_read(100, 132, 400) < 0.5


@given(st.integers(4, 2_000_000))
def test_capacity_is_the_most_keys_that_the_cells_are_enough_for(cells: int) -> None:
    keys = capacity(cells)
    assert cells_for(keys) <= cells
    assert cells_for(keys + 1) > cells


@given(st.integers(1, 1_000_000))
def test_more_keys_need_more_cells(keys: int) -> None:
    assert 4 <= cells_for(keys) <= cells_for(keys + 1)
    assert cells_for(keys) <= cells_for(keys, 99)
    assert largest_fitting_cells(cells_for(keys)) == cells_for(keys)


@pytest.mark.parametrize(
    ("load", "rms"), [(1.0, 0.04), (1.05, 0.04), (1.25, 0.055), (1.5, 0.07), (2.0, 0.12)]
)
def test_the_estimate_of_a_stuck_table_is_close(load: float, rms: float) -> None:
    # 2.5%, 3%, 4.2%, 5.2% and 9.3% in many more tables.
    cells, rng = 1_251, np.random.default_rng(int(100 * load))
    keys = int(load * 0.909 * cells)
    stuck = [decoded for _ in range(60) if not (decoded := listing(keys, cells, rng)).complete]
    ratios = np.array([decoded.distinct / keys for decoded in stuck])
    assert len(stuck) > 20
    assert math.sqrt(((ratios - 1) ** 2).mean()) < rms
    assert abs(ratios.mean() - 1) < 0.02 + 0.02 * (load > 1.5)


@pytest.mark.parametrize("load", [1.05, 1.5, 2.0])
def test_the_estimate_of_a_large_table_is_within_5_percent(load: float) -> None:
    cells, rng = 10_002, np.random.default_rng(int(100 * load))
    keys = int(load * 0.909 * cells)
    ratios = np.array([listing(keys, cells, rng).distinct / keys for _ in range(20)])
    assert math.sqrt(((ratios - 1) ** 2).mean()) < 0.05


def test_a_pair_of_twins_counts_as_two() -> None:
    assert estimate_keys(Layout(999), 500, 3) == pytest.approx(502, abs=0.1)
    assert estimate_keys(Layout(100), 50, 4) == pytest.approx(52, abs=0.2)


@pytest.mark.parametrize("cells", [100, 1_251, 99_999])
def test_a_table_without_an_empty_cell_has_the_greatest_estimate(cells: int) -> None:
    layout = Layout(cells)
    most = estimate_keys(layout, 0, cells)
    assert most == pytest.approx(cells * math.log(20 * cells) / layout.mean_degree, rel=0.05)
    assert most > estimate_keys(layout, 0, cells - 1)


@pytest.mark.parametrize("cells", [100, 9_999])
def test_the_estimate_agrees_with_equations_3_and_4(cells: int) -> None:
    layout, x = Layout(cells), 2.5
    covered = 1 - math.exp(-x)
    stuck = cells * (1 - math.exp(-x) * (1 + x))
    share, few, many = layout.heavy_below / 2**32, layout.subtables, layout.subtables * 6
    power = (1 - share) * covered**few + share * covered**many
    slope = (1 - share) * few * covered ** (few - 1) + share * many * covered ** (many - 1)
    keys = cells * x / slope
    estimate = estimate_keys(layout, round(keys * (1 - power)), round(stuck))
    assert estimate == pytest.approx(keys, rel=2e-2)


@given(st.integers(1, 10**6), st.data())
def test_the_estimate_is_finite_and_at_least_what_was_peeled(
    many: int, data: st.DataObject
) -> None:
    cells = max(4, largest_fitting_cells(many))
    stuck = data.draw(st.integers(0, cells))
    peeled = data.draw(st.integers(0, cells))
    estimate = estimate_keys(Layout(cells), peeled, stuck)
    assert math.isfinite(estimate)
    assert estimate >= peeled + 0.35 * stuck - 1e-6
