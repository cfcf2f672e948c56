"""A tight table lists all that was put into it, or nothing."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.numerics.arrays import Integers, Keys
from protocol.sketches.iblt.decoding import decode_table
from protocol.sketches.iblt.layout import Layout, largest_fitting_cells
from protocol.sketches.iblt.peeling import Peeling
from protocol.sketches.iblt.peeling_kernel import ENTRIES, INSPECTIONS, K, V
from protocol.sketches.iblt.table import CellFormat, Iblt
from protocol.sketches.iblt.tight import max_tight_cells, tight_cell
from secagg.ring import Vector
from tests.protocol.sketches.iblt.tables import SEED, Held, garbage, insert, listed

WIDE_CELL = CellFormat(1, 97_336, 10_000, 10_000)
SMALL_TABLE = Iblt(tight_cell(CellFormat(2, 2**24, 1000, 10**5), 60), 60, SEED)


def zipf(count: int, rng: np.random.Generator, total: int = 10_000) -> Integers:
    shares = 1 / np.arange(1, count + 1)
    return 1 + rng.multinomial(total - count, shares / shares.sum())


def drawn(table: Iblt, count: int, rng: np.random.Generator) -> Held:
    chosen = rng.integers(0, table.cell.key_bound, (2 * count, table.cell.chunks))
    rows = rng.permutation(np.unique(chosen.astype(np.uint64), axis=0))[:count]
    return dict(zip(map(tuple, rows.tolist()), zipf(count, rng).tolist(), strict=True))


@dataclass
class Outcomes:
    """Result of many tables."""

    complete: int = 0
    wrong: int = 0
    false: int = 0  # keys that were taken out, also those that were put back
    bound: float = 0.0


def outcomes(cell: CellFormat, cells: int, count: int, rounds: int) -> Outcomes:
    rng, seen = np.random.default_rng([cells, count]), Outcomes()
    for _ in range(rounds):
        table = Iblt(cell, cells, rng.bytes(32))
        held = drawn(table, count, rng)
        total = insert(table, held)
        decoded = decode_table(table, total)
        seen.complete += decoded.complete
        seen.wrong += decoded.complete and listed(decoded) != held
        peeling = Peeling(table, total)
        peeling.run()
        taken = peeling.state.keys[: peeling.state.totals[ENTRIES]].tolist()
        seen.false += sum(tuple(key) not in held for key in taken)
        seen.bound += (
            peeling.inspections * table.layout.mean_degree / cells * cell.false_digit_probability
        )
    return seen


@pytest.mark.parametrize(
    ("cell", "bits"),
    [(WIDE_CELL, 29.0), (CellFormat(2, 2**18, 10_000, 10_000), 52.0)],
    ids=["17", "36"],
)
def test_a_thousand_keys_take_few_bits(cell: CellFormat, bits: float) -> None:
    tight = tight_cell(cell, 1206)
    assert 8 * tight.ring(1206).nbytes <= 1_000 * bits
    seen = outcomes(tight, 1206, 1_000, 150)
    assert seen.complete >= 143  # 99% of many more; less than 143 with probability 2e-4
    assert seen.wrong == 0


@pytest.mark.parametrize(("cells", "count"), [(152, 100), (480, 300), (3426, 3_000)])
def test_tables_of_all_sizes_are_read(cells: int, count: int) -> None:
    rounds = 20_000 // count
    seen = outcomes(tight_cell(WIDE_CELL, cells), cells, count, rounds)
    assert seen.complete >= 0.9 * rounds  # 99% of many more
    assert seen.wrong == 0


@pytest.mark.parametrize(("load", "error"), [(1.1, 0.06), (1.25, 0.08), (1.5, 0.1)])
def test_a_stuck_table_estimates_the_number_of_its_keys(load: float, error: float) -> None:
    cell, rng, count = tight_cell(WIDE_CELL, 1206), np.random.default_rng(4), int(1_000 * load)
    estimates = []
    for _ in range(8):
        table = Iblt(cell, 1206, rng.bytes(32))
        decoded = decode_table(table, insert(table, drawn(table, count, rng)))
        assert not decoded.complete
        estimates.append(decoded.distinct / count - 1)
    assert np.sqrt(np.mean(np.square(estimates))) < error  # twice what is seen in many more


@pytest.mark.parametrize("load", [1.0, 1.25])
def test_false_keys_stay_below_the_bound_that_is_stated(load: float) -> None:
    cell = replace(tight_cell(WIDE_CELL, 480), evidence=8)
    seen = outcomes(cell, 480, int(300 * load), 20)
    assert 0 < seen.false < seen.bound


def test_a_cell_whose_count_is_a_multiple_of_q_is_not_empty() -> None:
    q = 31
    table = Iblt(CellFormat(2, 2**18, 1000, 10**5, evidence=60, q=q), 240, SEED)
    held = {(n, 0): q for n in range(20)} | {(0, n): 3 * q for n in range(1, 20)}
    total = insert(table, held)
    assert not total[0].any()
    assert listed(decode_table(table, total)) == held


@pytest.mark.parametrize("bound", [2, 2**18, 97_336])
def test_no_key_weighs_nothing_and_none_weighs_the_same(bound: int) -> None:
    table = Iblt(tight_cell(CellFormat(1, bound, 100, 100), 1206), 1206, SEED)
    ends = sorted({*range(min(bound, 500)), *range(max(0, bound - 500), bound)})
    elements = table.elements(np.array(ends, np.uint64).reshape(-1, 1))[:, 0]
    assert 0 < elements.min() <= elements.max() < table.cell.p
    assert (elements // np.uint64(table.cell.radix) == ends).all()


def test_the_largest_values_and_keys_come_back() -> None:
    table = Iblt(tight_cell(CellFormat(2, 2**24, 2**20, 2**24), 60), 60, SEED)
    held = {(2**24 - 1, 2**24 - 1 - number): 2**20 - number for number in range(10)}
    assert listed(decode_table(table, insert(table, held))) == held


def test_values_that_add_up_to_too_much_are_not_read() -> None:
    table = Iblt(tight_cell(CellFormat(1, 97_336, 1000, 1500), 240), 240, SEED)
    held = {(5,): 1000, (6,): 500}
    assert listed(decode_table(table, insert(table, held))) == held
    assert not decode_table(table, insert(table, held | {(7,): 1})).complete


# For every vector the work is bounded, and nothing that is false is listed.


def test_garbage_takes_a_bounded_number_of_tests_however_large_values_may_be() -> None:
    table = Iblt(CellFormat(1, 97_336, 2**20, 2**20, evidence=5, q=31), 240, SEED)
    peeling = Peeling(table, garbage(table, np.random.default_rng(1)))
    peeling.run()
    assert peeling.inspections <= 4_096 * table.cells + 2**20 // 31


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_any_sum_of_parts_of_keys_ends(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    cell = CellFormat(1, 97_336, 500, 10**6, evidence=2, q=31)
    table = Iblt(cell, 240, SEED)
    total = table.ring.zero()
    for key in rng.integers(0, 30, count).tolist():
        whole, part = insert(table, {(key,): int(rng.integers(1, 501))}), table.ring.zero()
        for of in rng.permutation(np.flatnonzero(whole[1]))[: rng.integers(1, 4)]:
            part[0][of], part[1][of] = whole[0][of], whole[1][of]
        change = table.ring.add if rng.random() < 0.7 else table.ring.subtract
        change(total, part)
    peeling = Peeling(table, total)
    peeling.run()
    assert peeling.state.totals[ENTRIES] <= 2 * table.cells
    assert peeling.state.totals[INSPECTIONS] <= 4_200 * table.cells
    values = peeling.state.values[: peeling.state.totals[ENTRIES]]
    there = values > 0
    counts, sums = table.ring.lanes
    elements = peeling.rows[:, K:].reshape(-1)
    back = (peeling.rows[:, V] % counts.q).astype(counts.dtype), elements.astype(sums.dtype)
    taken = insert_any(table, peeling.state.keys[: len(values)][there], values[there])
    table.ring.add(back, taken)
    assert all((a == b).all() for a, b in zip(back, total, strict=True))


def insert_any(table: Iblt, rows: Keys, values: Integers) -> Vector:
    """Return the table of keys that may be there twice."""
    total = table.ring.zero()
    for row, value in zip(rows, values, strict=True):
        table.ring.add(total, table.insert(row[np.newaxis], np.array([value])))
    return total


def test_the_laws_of_the_sub_tables_hold_modulo_q() -> None:
    held = {(n, n * n): 29 for n in range(10)}
    total = insert(SMALL_TABLE, held)
    assert SMALL_TABLE.fault(total, 290) is None
    assert SMALL_TABLE.fault(total, 1) is None  # no bound on counts is left
    total[0][3] = (total[0][3] + 1) % SMALL_TABLE.cell.q
    assert SMALL_TABLE.fault(total, 290) == "the sub-tables' counts add up differently"
    total = insert(SMALL_TABLE, held)
    total[1][7] = (total[1][7] + 1) % SMALL_TABLE.cell.p
    assert SMALL_TABLE.fault(total, 290) == "the sub-tables' keys add up differently"


@pytest.mark.parametrize("changes", [{"q": 1}, {"q": -31}, {"q": 31, "evidence": 3}])
def test_cells_that_cannot_be_are_refused(changes: dict[str, int]) -> None:
    sound = {"chunks": 2, "key_bound": 10, "value_bound": 10, "total_bound": 100}
    with pytest.raises(ValueError, match="q from 2 up"):
        CellFormat(**(sound | changes))


@pytest.mark.parametrize("cells", [60, 216, 480, 1206, 110_028])
@pytest.mark.parametrize("total", [100, 10_000, 10**6])
def test_evidence_is_what_both_bounds_ask_for(cells: int, total: int) -> None:
    cell, layout = tight_cell(CellFormat(1, 97_336, total, total), cells), Layout(cells)
    evidence = cell.q * cell.radix
    assert evidence >= 3 * total * layout.mean_degree / cells
    if cell.q <= total:  # else there is one value to try
        assert evidence >= 2**19 * total / layout.width**layout.subtables


@given(st.integers(0, 20_000), st.integers(1, 20), st.integers(1, 2**30))
def test_the_most_cells_fit(nbytes: int, chunks: int, total: int) -> None:
    cell = CellFormat(chunks, 2**20, 1, total)
    most = max_tight_cells(cell, nbytes)
    assert most == largest_fitting_cells(most)
    assert most == 0 or tight_cell(cell, most).ring(most).nbytes <= nbytes
    more = most + (3 if most >= 216 else 4)
    assert 200 < more < 240 or tight_cell(cell, more).ring(more).nbytes > nbytes
