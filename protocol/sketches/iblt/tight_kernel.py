"""The compiled kernel that peels a tight table: cells by their possible values, small values first.

Each cell waits at a *stage*, in the list of the cells at this stage. Stage 0 tries the values below
q, stage k > 0 those from 2^(k-1) q to 2^k q: one in q of them agrees with V. The kernel tries a
cell of the first stage that has any; if no value passes, the cell moves to the next stage. When a
key is taken out, its cells return to stage 0. So large values, which cost the most and prove
little, are tried only if all else is stuck.

A false key leaves the negative of its source's content in its other cells. If a cell holds the
negative of an entry's content, is one of the entry's cells, and the entry's source cell is no
longer empty, the entry is false and is put back. Entries are found by a hash of their content, so
this takes one step.

A key may also be taken out with too large a value, if the rest of the cell was a multiple of x'.
Then all its cells lack the excess. So each stage also tries the negatives of the last stage's
values: an entry of that key with a larger value, whose source cell is no longer empty, is reduced,
once. Without this, one table in a hundred would be stuck for this reason alone.

Entries are bounded as those of `kernel.py`. Stage 0 is bounded by the entries; beyond it, no cell
is tried after 4,096 tests per cell, for any values.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.sketches.iblt.cell_kernel import (
    ENTRIES,
    INSPECTIONS,
    LAST_ENTRY,
    CandidateKey,
    K,
    PeelingState,
    TableParameters,
    V,
    add_entry,
    checked_cells,
    fingerprint_of,
    inverse_of,
    is_empty,
    is_same_key,
    jit_compiled,
    jit_inlined,
    may_add_entry,
    read_candidate,
)

_MAX_TESTS_PER_CELL = 4096
_U32 = np.uint64(32)
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class StageLists(NamedTuple):
    """The cells that wait at each stage, in doubly linked lists."""

    first_cells: NDArray[np.int32]  # of each stage, -1 if none
    next_cells: NDArray[np.int32]
    previous_cells: NDArray[np.int32]
    stages: NDArray[np.int8]  # of each cell, -1 if it does not wait


class EntryIndex(NamedTuple):
    """Entries by the content of their source cell: chains of entries with the same hash."""

    heads: NDArray[np.int32]  # entry + 1, 0 if none; the length is a power of two
    links: NDArray[np.int32]
    hashes: NDArray[np.uint64]  # of entries


def peel_in_stages(
    table: NDArray[np.int64],
    rules: TableParameters,
    state: PeelingState,
    candidate: CandidateKey,
    stages: int | None,
) -> None:
    """Take keys out of `table` in a number of `stages`, by default all, until none passes."""
    cells, multiples = len(table), int(rules.max_value // rules.q)
    waiting = StageLists(
        first_cells=np.full(stages or 2 + multiples.bit_length(), -1, np.int32),
        next_cells=np.empty(cells, np.int32),
        previous_cells=np.empty(cells, np.int32),
        stages=np.full(cells, -1, np.int8),
    )
    contents = EntryIndex(
        heads=np.zeros(2 ** (2 * cells).bit_length(), np.int32),
        links=np.empty(2 * cells, np.int32),
        hashes=np.empty(2 * cells, np.uint64),
    )
    _peel(table, rules, state, candidate, waiting, contents)


@jit_compiled
def _peel(
    table: NDArray[np.int64],
    rules: TableParameters,
    state: PeelingState,
    candidate: CandidateKey,
    waiting: StageLists,
    contents: EntryIndex,
) -> None:
    for number in range(len(table)):
        _add_to_stage(table, waiting, number, 0)
    stage = 0
    while stage < len(waiting.first_cells):
        cell = int(waiting.first_cells[stage])
        if cell < 0:
            stage += 1
            continue
        if stage > 0 and state.totals[INSPECTIONS] > _MAX_TESTS_PER_CELL * len(table):
            return
        _remove_from_stage(waiting, cell)
        value = (
            _find_false_entry(table, cell, rules, state, candidate, contents) if stage == 0 else 0
        )
        if value == 0 and stage > 0:
            value = _find_excess(table, cell, stage - 1, rules, state, candidate, contents)
        if value == 0:
            value = _find_key(table, cell, stage, rules, state, candidate)
            if value > 0:
                _index_last_entry(table, cell, state, contents, rules)
        if value == 0:
            if stage + 1 < len(waiting.first_cells):
                _add_to_stage(table, waiting, cell, stage + 1)
            continue
        _subtract_key(table, waiting, candidate, value, rules)
        stage = 0


@jit_inlined
def _add_to_stage(table: NDArray[np.int64], waiting: StageLists, cell: int, stage: int) -> None:
    if is_empty(table, cell):
        return
    head = waiting.first_cells[stage]
    waiting.stages[cell], waiting.next_cells[cell], waiting.previous_cells[cell] = stage, head, -1
    waiting.first_cells[stage] = cell
    if head >= 0:
        waiting.previous_cells[head] = cell


@jit_inlined
def _remove_from_stage(waiting: StageLists, cell: int) -> None:
    stage = waiting.stages[cell]
    if stage < 0:
        return
    after, before = waiting.next_cells[cell], waiting.previous_cells[cell]
    if before < 0:
        waiting.first_cells[stage] = after
    else:
        waiting.next_cells[before] = after
    if after >= 0:
        waiting.previous_cells[after] = before
    waiting.stages[cell] = -1


@jit_inlined
def _find_key(
    table: NDArray[np.int64],
    cell: int,
    stage: int,
    rules: TableParameters,
    state: PeelingState,
    candidate: CandidateKey,
) -> int:
    """Add the key that `cell` holds with a value of this stage; return the value, 0 if none."""
    smallest, end = _stage_range(stage, rules)
    value = smallest + (table[cell, V] - smallest) % rules.q
    while value < end:
        state.totals[INSPECTIONS] += 1
        count, fingerprint = read_candidate(table, cell, value, rules, candidate)
        candidate.degree[0] = count
        if count and may_add_entry(table, state, candidate, count, fingerprint, cell):
            if state.totals[ENTRIES] == len(state.values):
                return 0
            add_entry(table, state, candidate.key, cell, value, fingerprint)
            return int(value)
        value += rules.q
    return 0


@jit_inlined
def _find_excess(  # noqa: PLR0917
    table: NDArray[np.int64],
    cell: int,
    stage: int,
    rules: TableParameters,
    state: PeelingState,
    candidate: CandidateKey,
    contents: EntryIndex,
) -> int:
    """Reduce the entry with too large a value in `cell`; return the negative excess, 0 if none."""
    smallest, end = _stage_range(stage, rules)
    value = smallest + (-table[cell, V] - smallest) % rules.q
    while value < end:
        state.totals[INSPECTIONS] += 1
        count, fingerprint = read_candidate(table, cell, -value, rules, candidate)
        candidate.degree[0] = count
        for number in range(count):
            link = table[candidate.cells[number], LAST_ENTRY]
            while link:
                entry = (link & np.int64(2**32 - 1)) - 1
                # Each entry once, so that peeling ends.
                if (
                    is_same_key(link, fingerprint, state, entry, candidate)
                    and state.values[entry] > value
                    and contents.hashes[entry]
                    and not is_empty(table, state.source_cells[entry])
                ):
                    contents.hashes[entry] = 0
                    state.values[entry] -= value
                    return int(-value)
                link = state.previous_entries[entry]
        value += rules.q
    return 0


@jit_inlined
def _stage_range(stage: int, rules: TableParameters) -> tuple[np.int64, np.int64]:
    smallest = np.int64(1) if stage == 0 else rules.q << np.int64(stage - 1)
    return smallest, min(rules.q << np.int64(stage), np.int64(rules.max_value) + 1)


@jit_inlined
def _content_hash(
    table: NDArray[np.int64], cell: int, sign: int, rules: TableParameters
) -> np.uint64:
    """Return a hash of the content of `cell`, times `sign`."""
    modulus = np.int64(rules.p)
    total = np.uint64(sign * table[cell, V] % rules.q)
    for j in range(K, table.shape[1]):
        total = total * _HASH_MULTIPLIER + np.uint64(sign * table[cell, j] % modulus)
        total ^= total >> _U32
    total *= _HASH_MULTIPLIER
    return total ^ (total >> _U32)


@jit_inlined
def _index_last_entry(
    table: NDArray[np.int64],
    cell: int,
    state: PeelingState,
    contents: EntryIndex,
    rules: TableParameters,
) -> None:
    """Add the last entry to the index under the content of `cell`."""
    entry = state.totals[ENTRIES] - 1
    content = _content_hash(table, cell, 1, rules)
    place = content & np.uint64(len(contents.heads) - 1)
    contents.hashes[entry] = content
    contents.links[entry] = contents.heads[place]
    contents.heads[place] = entry + 1


@jit_inlined
def _find_false_entry(
    table: NDArray[np.int64],
    cell: int,
    rules: TableParameters,
    state: PeelingState,
    candidate: CandidateKey,
    contents: EntryIndex,
) -> int:
    """Withdraw the entry that `cell` shows to be false; return its negative value, 0 if none."""
    content = _content_hash(table, cell, -1, rules)
    link = contents.heads[content & np.uint64(len(contents.heads) - 1)]
    while link:
        entry = link - 1
        value = state.values[entry]
        source = state.source_cells[entry]
        if value and contents.hashes[entry] == content and not is_empty(table, source):
            inverse = inverse_of(-value, rules)
            for j in range(len(candidate.key)):
                candidate.elements[j] = np.uint64(table[cell, K + j]) * inverse % rules.p
                candidate.key[j] = state.keys[entry, j]
            count = checked_cells(
                cell, fingerprint_of(candidate.key, rules.coefficients), rules, candidate
            )
            if count:
                state.values[entry] = 0
                candidate.degree[0] = count
                return int(-value)
        link = contents.links[entry]
    return 0


@jit_inlined
def _subtract_key(
    table: NDArray[np.int64],
    waiting: StageLists,
    candidate: CandidateKey,
    value: int,
    rules: TableParameters,
) -> None:
    """Subtract `value` of the key from its cells, and move these to stage 0."""
    modulus = np.int64(rules.p)
    weight = np.uint64(value) if value > 0 else rules.p - np.uint64(-value)
    for j in range(len(candidate.key)):
        candidate.elements[j] = candidate.elements[j] * weight % rules.p
    for number in range(candidate.degree[0]):
        cell = int(candidate.cells[number])
        table[cell, V] = (table[cell, V] - value) % rules.q
        for j in range(len(candidate.key)):
            rest = table[cell, K + j] - np.int64(candidate.elements[j])
            table[cell, K + j] = rest + (modulus if rest < 0 else 0)
        _remove_from_stage(waiting, cell)
        _add_to_stage(table, waiting, cell, 0)
