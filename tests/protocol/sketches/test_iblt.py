"""A table lists what was put into it, all of it, or says that it cannot."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.sketches.capacity import cells_for
from protocol.sketches.iblt import Cell, Iblt, Keys, Listing, Values
from secagg.ring import Vector

SEED = bytes(range(32))
SMALL = Iblt(Cell(chunks=2, key_bound=2**24, value_bound=1000), 60, SEED)

keys = st.tuples(st.integers(0, 2**24 - 1), st.integers(0, 2**24 - 1))
contents = st.dictionaries(keys, st.integers(1, 1000), max_size=20)


def rows(held: dict[tuple[int, int], int]) -> tuple[Keys, Values]:
    return (
        np.array(list(held), dtype=np.uint64).reshape(-1, 2),
        np.array(list(held.values()), dtype=np.int64),
    )


def listed(found: Listing) -> dict[tuple[int, ...], int]:
    assert len(np.unique(found.keys, axis=0)) == len(found.keys)
    return {tuple(k): v for k, v in zip(found.keys.tolist(), found.values.tolist(), strict=True)}


def random_rows(
    table: Iblt, count: int, rng: np.random.Generator, most: int = 7
) -> tuple[Keys, Values]:
    chosen = rng.choice(table.cell.key_bound, count, replace=False).astype(np.uint64)
    return chosen.reshape(-1, 1), rng.integers(1, most + 1, count)


@given(contents)
def test_a_table_lists_what_is_in_it_or_says_it_is_stuck(held: dict[tuple[int, int], int]) -> None:
    found = SMALL.list_entries(SMALL.insert(*rows(held)))
    if found.complete:
        assert listed(found) == held
        assert (found.stuck, found.distinct) == (0, len(held))
    else:
        assert listed(found).items() < held.items()
        assert found.stuck >= 3


@given(contents, contents)
def test_tables_add(one: dict[tuple[int, int], int], other: dict[tuple[int, int], int]) -> None:
    wide = Iblt(Cell(2, 2**24, 2000), 60, SEED)
    total = wide.insert(*rows(one))
    wide.ring.add(total, wide.insert(*rows(other)))
    together = {key: one.get(key, 0) + other.get(key, 0) for key in one | other}
    assert all((a == b).all() for a, b in zip(total, wide.insert(*rows(together)), strict=True))


@pytest.mark.parametrize("value_bound", [1, 255, 2**24 - 1, 2**31 - 2])
def test_the_largest_values_and_keys_come_back(value_bound: int) -> None:
    table = Iblt(Cell(2, 2**30, value_bound), 60, SEED)
    held = {(2**30 - 1, 2**30 - 1 - number): value_bound for number in range(10)}
    assert listed(table.list_entries(table.insert(*rows(held)))) == held


def test_a_table_of_100_000_keys_is_read() -> None:
    table = Iblt(Cell(1, 2**30, 7), cells_for(100_000), SEED)
    inserted, values = random_rows(table, 100_000, np.random.default_rng(1))
    start = time.process_time()
    found = table.list_entries(table.insert(inserted, values))
    assert time.process_time() - start < 5  # 0.3 s measured
    assert found.complete
    order = np.argsort(found.keys[:, 0])
    assert (found.values[order] == values[np.argsort(inserted[:, 0])]).all()


def false_keys(check_bits: int, load: float, rounds: int) -> tuple[int, int, float]:
    """Return rounds with a false key, those among them called complete, and the bound."""
    rng = np.random.default_rng([check_bits, int(load * 100)])
    false = lying = 0
    for _ in range(rounds):
        table = Iblt(Cell(1, 97_336, 7, check_bits), 150, rng.bytes(32))
        inserted, values = random_rows(table, int(150 * load), rng)
        held = dict(zip(map(tuple, inserted.tolist()), values.tolist(), strict=True))
        found = table.list_entries(table.insert(inserted, values))
        wrong = sum(held.get(key) != value for key, value in listed(found).items())
        false += wrong > 0
        lying += wrong > 0 and found.complete
    return false, lying, 12 / table.cell.q


@pytest.mark.parametrize("load", [0.9, 1.5])
@pytest.mark.parametrize("check_bits", [4, 6])
def test_false_keys_stay_below_the_bound_that_is_stated(check_bits: int, load: float) -> None:
    false, lying, bound = false_keys(check_bits, load, 300)
    assert 0 < false < 300 * bound  # the bound is loose: about a fifth of it is seen
    assert lying == 0


@pytest.mark.parametrize("load", [0.75, 0.9, 1.5])
def test_with_the_default_check_no_key_is_false(load: float) -> None:
    false, _, bound = false_keys(24, load, 300)
    assert false == 0  # by the bound, odds of 2e-4 to be otherwise
    assert bound < 7.2e-7


def test_a_seed_decides_where_keys_go() -> None:
    places = [
        Iblt(SMALL.cell, 60, seed).places(np.arange(200, dtype=np.uint64).reshape(-1, 2))
        for seed in (SEED, SEED[::-1])
    ]
    assert (places[0] != places[1]).mean() > 0.9


def test_a_key_has_a_cell_in_each_sub_table_and_all_triples_are_equally_likely() -> None:
    table = Iblt(SMALL.cell, 9, SEED)
    places = table.places(np.arange(108_000, dtype=np.uint64).reshape(-1, 2))
    assert (places // 3 == [0, 1, 2]).all()
    _, counts = np.unique(places, axis=0, return_counts=True)
    assert len(counts) == 27
    # Chi-squared with 26 degrees of freedom: above 62 with odds of 1e-4.
    assert ((counts - 2000) ** 2 / 2000).sum() < 62


# Sums that no honest tables add up to end, and soon, and never as complete.


def tampered(table: Iblt, total: Vector, by: Vector) -> Listing:
    table.ring.subtract(total, by)
    return table.list_entries(total)


def test_negative_counts_are_not_listed() -> None:
    found = tampered(SMALL, SMALL.ring.zero(), SMALL.insert(*rows({(1, 2): 3, (4, 5): 1})))
    assert not found.complete
    assert len(found.keys) == 0


@given(st.integers(0, 2**32))
def test_garbage_is_never_complete(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lanes = SMALL.ring.lanes
    total = tuple(rng.integers(0, lane.q, lane.length).astype(lane.dtype) for lane in lanes)
    found = SMALL.list_entries(total)
    assert not found.complete
    assert np.isfinite(found.distinct)
    assert len(found.keys) <= SMALL.cells


def test_a_table_with_one_cell_spoiled_is_not_complete() -> None:
    total = SMALL.insert(*rows({(n, n): 1 for n in range(10)}))
    total[1][SMALL.places(np.array([[3, 3]], dtype=np.uint64))[0, 0]] ^= 1
    found = SMALL.list_entries(total)
    assert not found.complete
    assert found.stuck > 0


def test_a_key_in_one_of_its_cells_only_does_not_peel_for_ever() -> None:
    whole = SMALL.insert(*rows({(7, 8): 5}))
    place = int(SMALL.places(np.array([[7, 8]], dtype=np.uint64))[0, 0])
    alone = SMALL.ring.zero()
    alone[0][place], alone[1][place] = whole[0][place], whole[1][place]
    alone[2][2 * place : 2 * place + 2] = whole[2][2 * place : 2 * place + 2]
    found = SMALL.list_entries(alone)
    assert not found.complete
    assert len(found.keys) <= SMALL.cells


def test_a_ring_of_keys_that_refill_one_another_ends() -> None:
    # Every cell holds each key that hashes there, as if alone: what is taken out of one cell
    # turns up as a debt in two others.
    table = Iblt(Cell(1, 2**20, 2**20), 30, SEED)
    chosen = np.arange(30, dtype=np.uint64).reshape(-1, 1)
    total = table.ring.zero()
    for key, places in zip(chosen, table.places(chosen), strict=True):
        one = table.insert(key.reshape(1, 1), np.array([1]))
        for lane, part in zip(total, one, strict=True):
            lane[places[0]] = part[places[0]]
    found = table.list_entries(total)
    assert not found.complete
    assert len(found.keys) <= table.cells


def chain(table: Iblt, length: int) -> Vector:
    """Return a made-up table of which only a key at either end can be taken out at a time."""
    pool = np.arange(20 * table.cells, dtype=np.uint64).reshape(-1, 1)
    through: dict[int, list[int]] = {}
    places = table.places(pool).tolist()
    for key, cells in enumerate(places):
        for cell in cells:
            through.setdefault(cell, []).append(key)
    total, entry, used = table.ring.zero(), places[0][0], set[int]()
    for _ in range(length):
        used.add(entry)
        key = next(k for k in through[entry] if not used & (set(places[k]) - {entry}))
        used.update(places[key])
        leave = next(cell for cell in places[key] if cell != entry)
        one = table.insert(pool[key : key + 1], np.array([1]))
        for lane, into, part in zip(table.ring.lanes, total, one, strict=True):
            kept = np.zeros_like(part)
            kept[[entry, leave]] = part[[entry, leave]]
            lane.add(into, kept)
        entry = leave
    return total


def test_a_chain_that_peels_key_by_key_is_given_up() -> None:
    table = Iblt(Cell(1, 2**20, 7), 6_000, SEED)
    assert len(table.list_entries(chain(table, 600)).keys) == 600
    found = table.list_entries(chain(table, 1_000))
    assert len(found.keys) == 2 * (100 + 4 * 77)
    assert not found.complete


def test_vectors_of_another_ring_are_refused() -> None:
    other = Iblt(SMALL.cell, 63, SEED)
    with pytest.raises(ValueError, match="lane 0"):
        SMALL.list_entries(other.ring.zero())


@pytest.mark.parametrize(
    ("held", "fault"),
    [
        ({(2**24, 0): 1}, "keys of 2 chunks below 16777216"),
        ({(0, 0): 0}, "values from 1 to 1000"),
        ({(0, 0): 1001}, "values from 1 to 1000"),
        ({(0, 0): -1}, "values from 1 to 1000"),
    ],
)
def test_keys_and_values_out_of_bounds_are_refused(
    held: dict[tuple[int, int], int], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        SMALL.insert(*rows(held))


@pytest.mark.parametrize(
    "cell",
    [
        {"chunks": 0, "key_bound": 10, "value_bound": 1},
        {"chunks": 1, "key_bound": 10, "value_bound": 0},
        {"chunks": 1, "key_bound": 0, "value_bound": 1},
        {"chunks": 1, "key_bound": 10, "value_bound": 2**31},
    ],
)
def test_cells_that_cannot_be_are_refused(cell: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Iblt(Cell(**cell), 12, SEED)


@pytest.mark.parametrize("cells", [-3, 0, 2, 61, 62])
def test_a_table_is_three_sub_tables_of_equal_size(cells: int) -> None:
    with pytest.raises(ValueError, match="3, 6, 9"):
        Iblt(SMALL.cell, cells, SEED)


@given(st.integers(0, 20_000), st.integers(1, 20), st.integers(1, 2**30))
def test_the_most_cells_fit_and_three_more_would_not(
    nbytes: int, chunks: int, value_bound: int
) -> None:
    cell = Cell(chunks, 2**24, value_bound)
    most = cell.most(nbytes)
    assert most % 3 == 0
    assert most == 0 or cell.ring(most).nbytes <= nbytes
    assert cell.ring(most + 3).nbytes > nbytes
