"""The compiled kernel that peels a tight table: cells by what they may hold, small values first.

Each cell waits at a *stage*, in a list of those that do. At stage 0 the values below q are
tried, at stage k > 0 those from 2^(k-1) q to 2^k q: one in q of them is what V says. A cell of the
first stage that has any is tried; if nothing passes, it goes on to the next. When a key is
taken out, its cells go back to stage 0, so large values, which cost the most and prove the
least, are tried only where everything else is stuck.

A false key leaves in its other cells a content that is the negative of the one it was made
from. Whatever cell holds the negative of an entry's content, and is one of its cells, shows that
it was false, unless the cell it was made from is still empty; it is put back. Entries are found by
their content, so this takes one look.

A key may also be taken out with more than it has, if what else was in the cell came to a multiple
of x'. Then all its cells owe the rest. So each stage also tries the negatives of the last
stage's values: an entry of that key, of more, whose cell is empty no longer, is lessened, once.
Without this one table in a hundred is stuck for nothing else.

Entries are bounded as those of `kernel.py`. Beyond stage 0, which they bound, no cell is tried
once there were 4,096 tests a cell, whatever values may be.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.sketches.kernel import (
    ENTRIES,
    INSPECTIONS,
    LAST,
    K,
    Ledger,
    Rules,
    Scratch,
    V,
    agrees,
    choose,
    compiled,
    enter,
    fingerprint,
    hash_word,
    inlined,
    invert,
    is_empty,
    may_enter,
    same,
)

_TESTS_A_CELL = 4096
_U0, _U1, _U32 = np.uint64(0), np.uint64(1), np.uint64(32)
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Waiting(NamedTuple):
    """Who waits at which stage: a doubly linked list of cells for each."""

    heads: NDArray[np.int32]  # the first cell of a stage, -1 if there is none
    after: NDArray[np.int32]
    before: NDArray[np.int32]
    stage: NDArray[np.int8]  # of a cell, -1 if it waits for nothing


class Contents(NamedTuple):
    """Entries by the content that they were made from: chains of those with the same hash."""

    heads: NDArray[np.int32]  # entry + 1, 0 if there is none; as many as a power of two
    links: NDArray[np.int32]
    hashes: NDArray[np.uint64]  # of entries


@compiled
def peel_tight(
    table: NDArray[np.int64],
    rules: Rules,
    ledger: Ledger,
    one: Scratch,
    waiting: Waiting,
    contents: Contents,
) -> None:
    """Take keys out of `table` until no cell holds one alone, as far as can be told."""
    for number in range(len(table)):
        _wait(table, waiting, number, 0)
    stage = 0
    while stage < len(waiting.heads):
        cell = int(waiting.heads[stage])
        if cell < 0:
            stage += 1
            continue
        if stage > 0 and ledger.totals[INSPECTIONS] > _TESTS_A_CELL * len(table):
            return
        _leave(waiting, cell)
        value = _debt(table, cell, rules, ledger, one, contents) if stage == 0 else 0
        if value == 0 and stage > 0:
            value = _excess(table, cell, stage - 1, rules, ledger, one, contents)
        if value == 0:
            value = _key(table, cell, stage, rules, ledger, one)
            if value > 0:
                _remember(table, cell, ledger, contents, rules)
        if value == 0:
            if stage + 1 < len(waiting.heads):
                _wait(table, waiting, cell, stage + 1)
            continue
        _move(table, waiting, one, value, rules)
        stage = 0


@inlined
def _wait(table: NDArray[np.int64], waiting: Waiting, cell: int, stage: int) -> None:
    if is_empty(table, cell):
        return
    head = waiting.heads[stage]
    waiting.stage[cell], waiting.after[cell], waiting.before[cell] = stage, head, -1
    waiting.heads[stage] = cell
    if head >= 0:
        waiting.before[head] = cell


@inlined
def _leave(waiting: Waiting, cell: int) -> None:
    stage = waiting.stage[cell]
    if stage < 0:
        return
    after, before = waiting.after[cell], waiting.before[cell]
    if before < 0:
        waiting.heads[stage] = after
    else:
        waiting.after[before] = after
    if after >= 0:
        waiting.before[after] = before
    waiting.stage[cell] = -1


@inlined
def _key(
    table: NDArray[np.int64],
    cell: int,
    stage: int,
    rules: Rules,
    ledger: Ledger,
    one: Scratch,
) -> int:
    """Enter the key that `cell` holds with a value of this stage, and return that; 0 if none."""
    least, end = _range(stage, rules)
    value = least + (table[cell, V] - least) % rules.q
    while value < end:
        print_ = _candidate(table, cell, value, rules, ledger, one)
        count = one.degree[0]
        if count and may_enter(table, ledger, one, count, print_, cell):
            if ledger.totals[ENTRIES] == len(ledger.values):
                return 0
            enter(table, ledger, one.key, cell, value, print_)
            return int(value)
        value += rules.q
    return 0


@inlined
def _excess(  # noqa: PLR0917
    table: NDArray[np.int64],
    cell: int,
    stage: int,
    rules: Rules,
    ledger: Ledger,
    one: Scratch,
    contents: Contents,
) -> int:
    """Lessen the entry of which too much was taken out of `cell`, and return the value below 0."""
    least, end = _range(stage, rules)
    value = least + (-table[cell, V] - least) % rules.q
    while value < end:
        print_ = _candidate(table, cell, -value, rules, ledger, one)
        for number in range(one.degree[0]):
            link = table[one.cells[number], LAST]
            while link:
                entry = (link & np.int64(2**32 - 1)) - 1
                # Once each, so that this ends.
                if (
                    same(link, print_, ledger, entry, one)
                    and ledger.values[entry] > value
                    and contents.hashes[entry]
                    and not is_empty(table, ledger.sources[entry])
                ):
                    contents.hashes[entry] = 0
                    ledger.values[entry] -= value
                    return int(-value)
                link = ledger.links[entry]
        value += rules.q
    return 0


@inlined
def _range(stage: int, rules: Rules) -> tuple[np.int64, np.int64]:
    least = np.int64(1) if stage == 0 else rules.q << np.int64(stage - 1)
    return least, min(rules.q << np.int64(stage), np.int64(rules.most) + 1)


@inlined
def _candidate(
    table: NDArray[np.int64], cell: int, value: int, rules: Rules, ledger: Ledger, one: Scratch
) -> np.uint64:
    """Return the fingerprint of the key that `cell` holds `value` of, if it does.

    It is left in `one`, with the number of its cells, which is 0 if there is none.
    """
    ledger.totals[INSPECTIONS] += 1
    one.degree[0] = 0
    inverse = invert(value, rules)
    for j in range(len(one.key)):
        element = np.uint64(table[cell, K + j]) * inverse % rules.p
        one.elements[j] = element
        one.key[j] = element // rules.radix
        if one.key[j] >= rules.bound:
            return _U1
    print_ = fingerprint(one.key, rules.coefficients)
    one.degree[0] = _cells(cell, print_, rules, one)
    return print_


@inlined
def _cells(cell: int, print_: np.uint64, rules: Rules, one: Scratch) -> int:
    """Return the number of cells of the key, 0 if its digits are not its hash's or `cell` is none.

    They are left in `one`.
    """
    word = hash_word(print_, 0, rules)
    if not agrees(word >> _U32, rules, one):
        return 0
    count = choose(print_, word, rules, one.cells)
    for number in range(count):
        if one.cells[number] == cell:
            return count
    return 0


@inlined
def _hash(table: NDArray[np.int64], cell: int, sign: int, rules: Rules) -> np.uint64:
    """Return a hash of what `cell` holds, or of the negative of it."""
    modulus = np.int64(rules.p)
    total = np.uint64(sign * table[cell, V] % rules.q)
    for j in range(K, table.shape[1]):
        total = total * _ODD + np.uint64(sign * table[cell, j] % modulus)
        total ^= total >> _U32
    total *= _ODD
    return total ^ (total >> _U32)


@inlined
def _remember(
    table: NDArray[np.int64], cell: int, ledger: Ledger, contents: Contents, rules: Rules
) -> None:
    """Write down that the last entry was the whole of `cell`."""
    entry = ledger.totals[ENTRIES] - 1
    content = _hash(table, cell, 1, rules)
    place = content & np.uint64(len(contents.heads) - 1)
    contents.hashes[entry] = content
    contents.links[entry] = contents.heads[place]
    contents.heads[place] = entry + 1


@inlined
def _debt(
    table: NDArray[np.int64],
    cell: int,
    rules: Rules,
    ledger: Ledger,
    one: Scratch,
    contents: Contents,
) -> int:
    """Withdraw the entry that `cell` shows to be false, and return its value below zero."""
    content = _hash(table, cell, -1, rules)
    link = contents.heads[content & np.uint64(len(contents.heads) - 1)]
    while link:
        entry = link - 1
        value = ledger.values[entry]
        source = ledger.sources[entry]
        if value and contents.hashes[entry] == content and not is_empty(table, source):
            inverse = invert(-value, rules)
            for j in range(len(one.key)):
                one.elements[j] = np.uint64(table[cell, K + j]) * inverse % rules.p
                one.key[j] = ledger.keys[entry, j]
            count = _cells(cell, fingerprint(one.key, rules.coefficients), rules, one)
            if count:
                ledger.values[entry] = 0
                one.degree[0] = count
                return int(-value)
        link = contents.links[entry]
    return 0


@inlined
def _move(
    table: NDArray[np.int64], waiting: Waiting, one: Scratch, value: int, rules: Rules
) -> None:
    """Take `value` of the key out of its cells, or put it back if negative."""
    modulus = np.int64(rules.p)
    weight = np.uint64(value) if value > 0 else rules.p - np.uint64(-value)
    for j in range(len(one.key)):
        one.elements[j] = one.elements[j] * weight % rules.p
    for number in range(one.degree[0]):
        cell = int(one.cells[number])
        table[cell, V] = (table[cell, V] - value) % rules.q
        for j in range(len(one.key)):
            left = table[cell, K + j] - np.int64(one.elements[j])
            table[cell, K + j] = left + (modulus if left < 0 else 0)
        _leave(waiting, cell)
        _wait(table, waiting, cell, 0)
