"""Every honest sum keeps the laws of the sub-tables; a fault names the law that is broken."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.sketches.iblt.decoding import decode_table
from protocol.sketches.iblt.table import CellFormat, Iblt
from secagg.ring import Vector
from tests.protocol.sketches.iblt.tables import SEED, Held, contents, garbage, insert

TABLE = Iblt(CellFormat(chunks=2, key_bound=2**24, value_bound=1000, total_bound=10**6), 60, SEED)
LANES = {"counts": 0, "keys": 1}


def honest() -> Vector:
    return insert(TABLE, {(n, n * n): 3 for n in range(10)})


def change(total: Vector, lane: int, element: int, by: int) -> None:
    q = TABLE.ring.lanes[lane].q
    total[lane][element] = (int(total[lane][element]) + by) % q


@pytest.mark.parametrize("cells", [4, 240])
@pytest.mark.parametrize("value_bound", [1, 3, 1000])
def test_the_fullest_table_is_not_a_fault(value_bound: int, cells: int) -> None:
    table = Iblt(CellFormat(2, 2**24, value_bound, 400 * value_bound), cells, SEED)
    total = insert(table, {(n, n): value_bound for n in range(400)})
    assert table.fault(total, 400 * value_bound) is None


def test_heavy_keys_count_as_often_as_they_are_in_a_sub_table() -> None:
    table = Iblt(TABLE.cell, 240, SEED)
    for number in range(100):  # some 11 are heavy
        total = insert(table, {(number, 7): 5})
        assert total[0].sum() in (15, 90)
        assert table.fault(total, 5) is None


def test_sums_of_the_widest_lanes_do_not_overflow() -> None:
    table = Iblt(CellFormat(1, 2**24, 2**30, 2**61), 204, SEED)
    lanes = table.ring.lanes
    total = tuple(np.full(lane.length, lane.q - 1).astype(lane.dtype) for lane in lanes)
    most = 51 * (lanes[0].q - 1)
    assert table.fault(total, most) is None
    assert table.fault(total, most - 1) is not None


@pytest.mark.parametrize("element", [0, 14, 15, 44, 45, 59])
@pytest.mark.parametrize("by", [1, -1, 12_345])
@pytest.mark.parametrize("name", LANES)
def test_one_cell_that_is_changed_is_a_fault_of_its_lane(name: str, by: int, element: int) -> None:
    total = honest()
    change(total, LANES[name], element, by)
    assert TABLE.fault(total, 60_000) == f"the sub-tables' {name} add up differently"


@pytest.mark.parametrize("chunk", [0, 1])
def test_chunks_of_a_key_do_not_make_up_for_one_another(chunk: int) -> None:
    total = honest()
    change(total, LANES["keys"], 2 * 7 + chunk, 5)
    change(total, LANES["keys"], 2 * 8 + 1 - chunk, -5)
    assert TABLE.fault(total, 30) == "the sub-tables' keys add up differently"


@given(st.integers(0, 59), st.integers(0, 59))
def test_a_count_that_moves_between_sub_tables_is_a_fault(start: int, end: int) -> None:
    total = honest()
    change(total, 0, start, -1)
    change(total, 0, end, 1)
    fault = TABLE.fault(total, 10**9)
    assert (fault is None) == (start // 15 == end // 15)


def test_more_counts_than_the_devices_may_insert_are_a_fault() -> None:
    assert TABLE.fault(honest(), 30) is None
    assert TABLE.fault(honest(), 29) == "the counts are more than the devices may insert"


def test_a_cell_below_zero_is_a_fault_where_no_sum_can_fill_it() -> None:
    # One too few in each sub-table: all laws hold modulo 2^b, but not the bound on counts.
    total = TABLE.ring.zero()
    for element in (0, 15, 30, 45):
        change(total, 0, element, -1)
    assert TABLE.fault(total, 30) == "the counts are more than the devices may insert"


def test_garbage_keeps_all_laws_with_the_stated_probability() -> None:
    table = Iblt(
        CellFormat(chunks=1, key_bound=1, value_bound=1, total_bound=1, evidence=1), 8, SEED
    )
    assert [lane.q for lane in table.ring.lanes] == [2, 3]
    rng, trials = np.random.default_rng(11), 8_000
    kept = sum(table.fault(garbage(table, rng), 10**9) is None for _ in range(trials))
    expected = trials / (2 * 3) ** 3
    assert abs(kept - expected) < 4.5 * expected**0.5  # fails with probability 1e-5


# Changes that break no law, as in the docstring, and their consequences.


def unseen_inside(lane: int) -> Vector:
    total = honest()
    change(total, lane, 3, 5)
    change(total, lane, 9, -5)
    return total


def unseen_alike(lane: int) -> Vector:
    total = honest()
    for subtable in range(4):
        change(total, lane, subtable * TABLE.ring.lanes[lane].length // 4, 5)
    return total


@pytest.mark.parametrize("spoiled", [unseen_inside, unseen_alike])
@pytest.mark.parametrize("lane", LANES.values())
def test_what_keeps_the_totals_is_not_seen_but_not_listed_as_whole(
    spoiled: Callable[[int], Vector], lane: int
) -> None:
    total = spoiled(lane)
    assert TABLE.fault(total, 10**9) is None
    assert not decode_table(TABLE, total).complete


def test_a_device_that_takes_from_one_item_and_gives_to_another_is_not_seen() -> None:
    total = honest()
    TABLE.ring.subtract(total, insert(TABLE, {(2, 4): 2}))
    TABLE.ring.add(total, insert(TABLE, {(3, 9): 2}))
    assert TABLE.fault(total, 30) is None
    decoded = decode_table(TABLE, total)
    assert decoded.complete
    assert dict(zip(decoded.keys[:, 0].tolist(), decoded.values.tolist(), strict=True)) == (
        dict.fromkeys(range(10), 3) | {2: 1, 3: 5}
    )


@given(st.lists(contents, max_size=3), st.lists(contents, max_size=3))
def test_sums_and_differences_of_honest_tables_keep_the_laws_of_all_lanes(
    added: list[Held], taken: list[Held]
) -> None:
    total = TABLE.ring.zero()
    for held in added:
        TABLE.ring.add(total, insert(TABLE, held))
    for held in taken:
        TABLE.ring.subtract(total, insert(TABLE, held))
    assert TABLE.fault(total, 60 * 2**20) is None


def test_vectors_of_another_ring_are_refused() -> None:
    with pytest.raises(ValueError, match="lane 0"):
        TABLE.fault(Iblt(TABLE.cell, 64, SEED).ring.zero(), 10)
