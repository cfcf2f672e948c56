"""How many keys a table holds, and how many one held that got stuck."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.sketches.capacity import capacity, cells_for, estimate_keys
from protocol.sketches.iblt import Cell, Iblt, Listing


def listing(keys: int, cells: int, rng: np.random.Generator) -> Listing:
    table = Iblt(Cell(1, 2**30, 1), cells, rng.bytes(32))
    chosen = np.unique(rng.integers(0, 2**30, keys + 8))[:keys].astype(np.uint64).reshape(-1, 1)
    return table.list_entries(table.insert(chosen, np.ones(len(chosen), dtype=np.int64)))


def share_read(keys: int, cells: int, trials: int) -> float:
    rng = np.random.default_rng([keys, cells])
    return sum(listing(keys, cells, rng).complete for _ in range(trials)) / trials


@pytest.mark.parametrize("keys", [10, 40, 100, 250, 1_000])
def test_a_table_at_capacity_is_read_with_odds_of_97_percent(keys: int) -> None:
    # At 97%, 400 tables show 26 failures or more with odds of 2e-4; some 10 are seen. None at
    # all would mean that fewer cells do: odds of 5e-6.
    assert 1 - 26 / 400 < share_read(keys, cells_for(keys), 400) < 1


@pytest.mark.parametrize(("keys", "factor"), [(30, 0.7), (100, 0.8), (300, 0.93), (1_000, 0.96)])
def test_smaller_tables_would_not_do(keys: int, factor: float) -> None:
    # A fifth and more fail; at 3%, 16 failures in 150 have odds of 1e-5.
    cells = int(cells_for(keys) * factor / 3) * 3
    assert share_read(keys, cells, 150) < 1 - 16 / 150


@pytest.mark.parametrize("keys", [5, 20, 70])
def test_twins_take_most_of_the_odds_that_a_small_table_fails_with(keys: int) -> None:
    twins = keys * (keys - 1) / 2 * (3 / cells_for(keys)) ** 3
    assert 0.02 < twins < 0.03


def test_the_flat_size_of_the_paper_fails_almost_half_of_small_tables() -> None:
    assert 0.4 < share_read(100, 129, 400) < 0.7  # 55% by independent measurement; sd 2.5%


@given(st.integers(3, 2_000_000))
def test_capacity_is_the_most_keys_that_the_cells_are_enough_for(cells: int) -> None:
    keys = capacity(cells)
    assert cells_for(keys) <= cells or keys == 1
    assert cells_for(keys + 1) > cells


@given(st.integers(1, 1_000_000))
def test_more_keys_need_more_cells(keys: int) -> None:
    assert 3 <= cells_for(keys) <= cells_for(keys + 1)


@pytest.mark.parametrize("load", [1.0, 1.05, 1.25, 1.5, 2.0])
def test_the_estimate_of_a_stuck_table_is_within_5_percent(load: float) -> None:
    cells, rng = 1_251, np.random.default_rng(int(100 * load))
    keys = int(load * 0.8185 * cells)
    stuck = [found for _ in range(60) if not (found := listing(keys, cells, rng)).complete]
    ratios = np.array([found.distinct / keys for found in stuck])
    assert len(stuck) > 20
    assert math.sqrt(((ratios - 1) ** 2).mean()) < 0.05
    assert abs(ratios.mean() - 1) < 0.02


def test_a_pair_of_twins_counts_as_two() -> None:
    assert estimate_keys(1_000, 500, 3) == pytest.approx(502, abs=0.1)


@pytest.mark.parametrize("cells", [99, 1_251, 99_999])
def test_a_table_without_an_empty_cell_has_the_greatest_estimate(cells: int) -> None:
    most = estimate_keys(cells, 0, cells)
    assert most == pytest.approx(cells * math.log(20 * cells) / 3, rel=0.05)
    assert most > estimate_keys(cells, 0, cells - 1)


def test_the_estimate_agrees_with_equations_3_and_4() -> None:
    cells, x = 10_000, 2.5
    stuck = cells * (1 - math.exp(-x) * (1 + x))
    keys = cells / 6 * 2 * x / (1 - math.exp(-x)) ** 2
    peeled = keys * (1 - (1 - math.exp(-x)) ** 3)
    assert estimate_keys(cells, round(peeled), round(stuck)) == pytest.approx(keys, rel=1e-3)


@given(st.integers(3, 10**6), st.data())
def test_the_estimate_is_finite_and_at_least_what_was_peeled(
    cells: int, data: st.DataObject
) -> None:
    stuck = data.draw(st.integers(0, cells))
    peeled = data.draw(st.integers(0, cells))
    found = estimate_keys(cells, peeled, stuck)
    assert math.isfinite(found)
    assert found >= peeled + 0.66 * stuck - 1e-6
