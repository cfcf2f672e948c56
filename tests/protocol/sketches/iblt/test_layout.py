"""Keys are spread evenly: over the cells of a sub-table, and over the sub-tables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.numerics.array_types import Keys
from protocol.sketches.iblt.decoding import decode_table
from protocol.sketches.iblt.layout import MIN_LARGE_TABLE_CELLS, Layout, largest_fitting_cells
from protocol.sketches.iblt.table import CellFormat, Iblt

SEED = bytes(range(32))


def sketch(cells: int, chunks: int = 2) -> Iblt:
    return Iblt(CellFormat(chunks, 2**20, 7, 10**6), cells, SEED)


def pairs(count: int) -> Keys:
    return np.arange(2 * count, dtype=np.uint64).reshape(-1, 2)


@pytest.mark.parametrize("cells", [-4, 0, 2, 3, 61, 214, 217, 218, 1000])
def test_sub_tables_are_of_equal_size(cells: int) -> None:
    with pytest.raises(ValueError, match="4, 8, 12"):
        Layout(cells)


@given(st.integers(0, 10**7))
def test_the_largest_table_of_at_most_this_many_cells_fits(most: int) -> None:
    cells = largest_fitting_cells(most)
    assert most - 4 < cells <= most
    assert cells == 0 or Layout(cells).width * Layout(cells).subtables == cells


@pytest.mark.parametrize("cells", [4, 60, 212, MIN_LARGE_TABLE_CELLS, 219, 1191])
def test_each_sub_table_holds_a_key_as_often_and_no_cell_twice(cells: int) -> None:
    layout = Layout(cells)
    rows, places = sketch(cells).edges(pairs(500))
    for row in range(500):
        here = places[rows == row]
        assert len(set(here.tolist())) == len(here)
        assert len(set(np.bincount(here // layout.width, minlength=layout.subtables))) == 1


def test_a_ninth_of_the_keys_of_a_large_table_is_heavy() -> None:
    rows, _ = sketch(1191).edges(pairs(50_000))
    degrees = np.bincount(rows)
    assert set(degrees.tolist()) == {3, 18}
    assert abs((degrees == 18).mean() - 0.11) < 0.006  # 4 standard deviations
    assert degrees.mean() == pytest.approx(Layout(1191).mean_degree, rel=0.02)


@pytest.mark.parametrize("cells", [60, 240])
def test_all_cells_of_a_sub_table_are_equally_likely(cells: int) -> None:
    rows, places = sketch(cells).edges(pairs(40_000))
    for degree in set(np.bincount(rows).tolist()):
        counts = np.bincount(places[np.bincount(rows)[rows] == degree], minlength=cells)
        expected = counts.sum() / cells
        # Chi-squared less than its mean by a few cells' standard deviation: probability 1e-5.
        assert ((counts - expected) ** 2 / expected).sum() < cells + 4.5 * (2 * cells) ** 0.5


def test_cells_of_a_key_are_independent() -> None:
    _, places = sketch(12).edges(pairs(81_000))
    _, counts = np.unique(places.reshape(-1, 4), axis=0, return_counts=True)
    assert len(counts) == 81
    # Chi-squared with 80 degrees of freedom: above 139 with probability 1e-4.
    assert ((counts - 1000) ** 2 / 1000).sum() < 139


@pytest.mark.parametrize("cells", [60, 1191])
@pytest.mark.parametrize("chunks", [1, 2, 11])
def test_the_kernel_hashes_as_devices_do(cells: int, chunks: int) -> None:
    table = sketch(cells, chunks)
    keys = np.random.default_rng(1).integers(0, 2**20, (200, chunks)).astype(np.uint64)
    for key in keys[:, np.newaxis]:
        decoded = decode_table(table, table.insert(key, np.array([3])))
        assert decoded.complete
        assert (decoded.keys.tolist(), decoded.values.tolist()) == (key.tolist(), [3])
