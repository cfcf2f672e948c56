"""Decoding of a table: its keys and values, or estimates if it cannot be read whole.

A table at or below its capacity is read whole, and the result is exact. Above it peeling gets
stuck, and the result still has

    keys, values   what was peeled, with a bound on the expected number of false keys. A key's value
                   is exact, but heavy keys are peeled much more often than light ones
                   (`layout.py`: 52% and 14% at 1.1 times capacity), so sums over the keys are
                   biased, unless each table has a fresh hash seed
    distinct       the estimated number of keys in the table, within 5% (rms) up to twice the
                   capacity of tables of at least 1,250 cells; `capacity.py`

Keys that are already known, for example from earlier rounds, help; `known_keys.py`. A tight table
that is stuck (`tight.py`) only has `distinct`: it lists no key.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from protocol.arrays import Integers, Keys
from protocol.sketches.iblt.capacity import estimate_keys
from protocol.sketches.iblt.table import Iblt
from secagg.ring import Vector

if TYPE_CHECKING:
    from protocol.sketches.iblt.peeling import Peeling


@dataclass(frozen=True, slots=True)
class DecodedTable:
    """Keys and values that were read from a table, row by row.

    If `complete`, keys and values are exact. Otherwise they are what was peeled before the table
    got stuck: on average at most `expected_false_keys` of them are not in the table, which held
    about `distinct` keys.
    """

    keys: Keys
    values: Integers
    complete: bool
    distinct: float
    nonempty_cells: int
    expected_false_keys: float


def decode_table(sketch: Iblt, table: Vector, known: Keys | None = None) -> DecodedTable:
    """Return the content of `table`; `known` keys, shape `(n, chunks)`, help if it gets stuck.

    Any vector of the ring is allowed, also one that is not a sum of honest tables. The work is
    bounded for all of them, by 73 inspections per cell and the bound in `known_keys.py`. A tight
    table is listed whole or not at all, in at most 4,096 tests per cell, without `known` keys.
    """
    # Devices only insert, and must not import the compiler.
    from protocol.sketches.iblt.known_keys import peel_with_known_keys  # noqa: PLC0415
    from protocol.sketches.iblt.peeling import Peeling  # noqa: PLC0415

    sketch.ring.check(table)
    peeling = Peeling(sketch, table)
    peeling.run()
    decoded = _decoded(sketch, peeling)
    if decoded.complete:
        return decoded
    if sketch.cell.q:
        # The number of keys is estimated at values up to 2 q, where false keys are rare.
        few_stages = Peeling(sketch, table)
        few_stages.run(stages=2)
        distinct = _decoded(sketch, few_stages).distinct
        keys, values = decoded.keys[:0], decoded.values[:0]
        return replace(decoded, keys=keys, values=values, distinct=distinct)
    final = _peel_without_dominance(sketch, peeling.copy())
    if not final.complete and known is not None:
        peel_with_known_keys(peeling, known)
        final = _peel_without_dominance(sketch, peeling)
    return final if final.complete else decoded


def _peel_without_dominance(sketch: Iblt, peeling: "Peeling") -> DecodedTable:
    """Return the table as decoded if cells of a key may hold less than its value.

    They do where a false key was subtracted and not detected yet, because the true keys in such
    a cell are not subtracted.
    """
    peeling.run(strict=False)
    return _decoded(sketch, peeling)


def _decoded(sketch: Iblt, peeling: "Peeling") -> DecodedTable:
    keys, values = peeling.entries()
    nonempty = peeling.nonempty_cells
    sound = bool((values <= sketch.cell.value_bound).all())
    if sketch.cell.q:
        sound = sound and int(values.sum()) <= sketch.cell.total_bound
    degree = sketch.layout.mean_degree
    false = peeling.inspections * degree / sketch.cells * sketch.cell.false_digit_probability
    complete = nonempty == 0 and sound
    return DecodedTable(
        keys=keys,
        values=values,
        complete=complete,
        distinct=estimate_keys(sketch.layout, len(keys), nonempty),
        nonempty_cells=nonempty,
        expected_false_keys=0.0 if complete else false,
    )
