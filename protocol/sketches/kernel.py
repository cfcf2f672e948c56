"""The compiled kernel that peels a table, cell by cell, until none is pure.

A cell is a row of integers: V, the latest entry that was taken from it, and K in chunks. A
cell is inspected once, and again whenever a key was taken out of it or put back into it. An
*entry* is a key that was taken out, with its value, of a cell that it was the whole of. A cell
that holds a negative multiple of a key shows that it was false: if an entry says the same, and
the cell that it was the whole of is empty no longer, it is withdrawn.

An entry is never made twice from the same cell, nor more than twice for one key, and there are
at most `2 cells` of them. Each is withdrawn once at most, and touches 18 cells at most. So a
vector, whatever is in it, causes at most 73 inspections a cell, and ends.

Importing this module imports numba, which compiles at the first call (4 s) and keeps the
result beside this file, or in the user's cache if that cannot be written.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

_PRIME = np.uint64(2**61 - 1)
_U1, _U29, _U30, _U31, _U32 = (np.uint64(shift) for shift in (1, 29, 30, 31, 32))
_U27, _U61 = np.uint64(27), np.uint64(61)
_LOW29, _LOW32 = np.uint64(2**29 - 1), np.uint64(2**32 - 1)
_STAFFORD1, _STAFFORD2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
V, LAST, K = 0, 1, 2  # columns of a row


F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, *, inline: bool = False) -> F:
    """Return `function` compiled at its first call.

    Arrays are only borrowed, so their references are not counted: this doubles the speed. Other
    threads go on meanwhile, so that a server answers while it counts.
    """
    options: dict[str, Any] = {"error_model": "numpy", "forceinline": inline, "_nrt": False}
    options["nogil"] = True
    try:
        made: F = njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep it, as in a container that is read-only
        made = njit(**options)(function)
    return made


def inlined(function: F) -> F:
    """Return `function` compiled into those that call it."""
    return compiled(function, inline=True)


class Rules(NamedTuple):
    """What the kernel must know of a table: bounds, moduli, hash functions, layout."""

    most: int  # the largest value of a key
    bound: np.uint64  # of the chunks of a key
    radix: np.uint64  # of the hash digits beside them
    p: np.uint64
    least: np.uint64  # of elements; the most is p - 1
    q: np.int64  # of V in a tight table; 0 if V never wraps
    inverses: NDArray[np.uint64]  # of 0, 1, 2 .. modulo p, as far as they are worth it
    coefficients: NDArray[np.uint64]
    first: NDArray[np.uint64]
    second: NDArray[np.uint64]
    heavy_below: np.uint64
    light: NDArray[np.int64]  # first cell and size of the segments of light keys, and of
    heavy: NDArray[np.int64]  # heavy ones


class Ledger(NamedTuple):
    """The entries, in order: what was taken out, and what is still to be inspected."""

    keys: NDArray[np.uint64]
    values: NDArray[np.int64]  # 0 once withdrawn
    links: NDArray[np.int64]  # to the entry that was taken from the same cell before
    sources: NDArray[np.int32]  # the cell that it was taken from
    queue: NDArray[np.int32]
    queued: NDArray[np.bool_]
    totals: NDArray[np.int64]  # entries, inspections, keys entered twice, length of the queue


ENTRIES, INSPECTIONS, TWICE, LENGTH = range(4)


class Scratch(NamedTuple):
    """One candidate: its elements (chunk and digit), its key, and its cells."""

    elements: NDArray[np.uint64]
    key: NDArray[np.uint64]
    cells: NDArray[np.int64]
    degree: NDArray[np.int64]  # how many cells: the kernel of tight tables leaves it here


@compiled
def fill_inverses(found: NDArray[np.uint64], p: np.uint64) -> None:
    """Write 1/i modulo the prime p into element i > 0; there are at most p."""
    found[1] = _U1
    for i in range(2, len(found)):
        n = np.uint64(i)
        found[i] = (p - p // n) * found[p % n] % p


@compiled
def peel(
    table: NDArray[np.int64], rules: Rules, ledger: Ledger, one: Scratch, strict: bool
) -> None:
    """Take keys out of `table` until no cell is pure, by all tests or without the last."""
    totals = ledger.totals
    for number in range(len(table)):
        _queue(table, ledger, number)
    while totals[LENGTH] > 0:
        totals[LENGTH] -= 1
        cell = int(ledger.queue[totals[LENGTH]])
        ledger.queued[cell] = False
        value = table[cell, V]
        if value == 0 or abs(value) > rules.most:
            continue
        totals[INSPECTIONS] += 1
        count, print_ = _candidate(table, cell, value, rules, one)
        if count == 0:
            continue
        if value < 0:
            entry = _live(table, ledger, one, count, print_, -value)
            # What was the whole of a cell leaves it empty for ever, if it was true.
            if entry >= 0 and not is_empty(table, ledger.sources[entry]):
                ledger.values[entry] = 0
                _move(table, ledger, one, count, value, rules.p)
        elif not strict or _holds(table, one, count, value):
            if totals[ENTRIES] == len(ledger.values):
                return
            if not may_enter(table, ledger, one, count, print_, cell):
                continue
            enter(table, ledger, one.key, cell, value, print_)
            _move(table, ledger, one, count, value, rules.p)


@inlined
def _queue(table: NDArray[np.int64], ledger: Ledger, cell: int) -> None:
    totals = ledger.totals
    if table[cell, V] != 0 and not ledger.queued[cell]:
        ledger.queued[cell] = True
        ledger.queue[totals[LENGTH]] = cell
        totals[LENGTH] += 1


@inlined
def is_empty(table: NDArray[np.int64], cell: int) -> bool:
    """Return whether `cell` holds nothing."""
    for column in range(K, table.shape[1]):
        if table[cell, column]:
            return False
    return bool(table[cell, V] == 0)


@inlined
def _candidate(
    table: NDArray[np.int64], cell: int, value: int, rules: Rules, one: Scratch
) -> tuple[int, np.uint64]:
    """Return the number of cells and the fingerprint of the key that `cell` holds `value` of.

    The number is 0 if its chunks, its hash digits or its cells say that there is none.
    """
    inverse = invert(value, rules)
    for j in range(len(one.key)):
        element = np.uint64(table[cell, K + j]) * inverse % rules.p
        one.elements[j] = element
        one.key[j] = element // rules.radix
        if one.key[j] >= rules.bound:
            return 0, _U1
    print_ = fingerprint(one.key, rules.coefficients)
    word = hash_word(print_, 0, rules)
    if not agrees(word >> _U32, rules, one):
        return 0, _U1
    count = choose(print_, word, rules, one.cells)
    for number in range(count):
        if one.cells[number] == cell:
            return count, print_
    return 0, _U1


@inlined
def invert(value: int, rules: Rules) -> np.uint64:
    """Return 1 / value modulo p, for |value| from 1 to p - 1."""
    size = abs(value)
    if size < len(rules.inverses):
        inverse = rules.inverses[size]
    else:  # Euclid's algorithm
        r0, r1, s0, s1 = np.int64(rules.p), np.int64(size), np.int64(0), np.int64(1)
        while r1 != 1:
            quotient = r0 // r1
            r0, r1 = r1, r0 - quotient * r1
            s0, s1 = s1, s0 - quotient * s1
        inverse = np.uint64(s1 if s1 > 0 else s1 + np.int64(rules.p))
    return np.uint64(inverse if value > 0 else rules.p - inverse)


@inlined
def fingerprint(key: NDArray[np.uint64], coefficients: NDArray[np.uint64]) -> np.uint64:
    """Return the key's fingerprint; see `protocol/hashing.py`."""
    total = coefficients[0]
    for j in range(len(key)):
        factor = coefficients[j + 1]
        high, low = (factor >> _U32) * key[j], (factor & _LOW32) * key[j]
        term = (high >> _U29) + ((high & _LOW29) << _U32) + (low & _PRIME) + (low >> _U61)
        total = total + (term & _PRIME) + (term >> _U61)
        total = (total & _PRIME) + (total >> _U61)
    return np.uint64(total - _PRIME if total >= _PRIME else total)


@inlined
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> _U30)) * _STAFFORD1
    x = (x ^ (x >> _U27)) * _STAFFORD2
    return x ^ (x >> _U31)


@inlined
def hash_word(print_: np.uint64, number: int, rules: Rules) -> np.uint64:
    """Return a word of a key's hash; see `protocol/hashing.py`."""
    return _mix(_mix(print_ ^ rules.first[number]) + rules.second[number])


@inlined
def agrees(digits: np.uint64, rules: Rules, one: Scratch) -> bool:
    """Return whether the elements carry the hash digits that belong to the key."""
    for j in range(len(one.key)):
        product = digits * rules.radix
        element = one.key[j] * rules.radix + (product >> _U32)
        if one.elements[j] != min(max(element, rules.least), rules.p - _U1):
            return False
        digits = product & _LOW32
    return True


@inlined
def choose(print_: np.uint64, word: np.uint64, rules: Rules, cells: NDArray[np.int64]) -> int:
    """Write a key's cells into `cells` and return their number; see `layout.py`."""
    segments = rules.heavy if (word & _LOW32) < rules.heavy_below else rules.light
    half = np.uint64(0)
    for number in range(len(segments)):
        half = half << _U32 if number & 1 else hash_word(print_, 1 + (number >> 1), rules)
        among = np.uint64(segments[number, 1])
        cells[number] = segments[number, 0] + np.int64(((half >> _U32) * among) >> _U32)
    return len(segments)


@inlined
def _live(
    table: NDArray[np.int64],
    ledger: Ledger,
    one: Scratch,
    count: int,
    print_: np.uint64,
    value: int,
) -> int:
    """Return the entry of the key with this `value`, -1 if there is none."""
    for number in range(count):
        link = table[one.cells[number], LAST]
        while link:
            entry = int((link & np.int64(2**32 - 1)) - 1)
            if same(link, print_, ledger, entry, one) and ledger.values[entry] == value:
                return entry
            link = ledger.links[entry]
    return -1


@inlined
def same(link: int, print_: np.uint64, ledger: Ledger, entry: int, one: Scratch) -> bool:
    """Return whether the `entry` that `link` points to is of this key."""
    if (np.uint64(link) >> _U32) != (print_ & _LOW32):
        return False
    for j in range(len(one.key)):
        if ledger.keys[entry, j] != one.key[j]:
            return False
    return True


@inlined
def _holds(table: NDArray[np.int64], one: Scratch, count: int, value: int) -> bool:
    """Return whether all cells of the key hold as much."""
    for number in range(count):
        if table[one.cells[number], V] < value:
            return False
    return True


@inlined
def may_enter(
    table: NDArray[np.int64], ledger: Ledger, one: Scratch, count: int, print_: np.uint64, cell: int
) -> bool:
    """Return whether the key was never taken from this cell, and once at most from others."""
    entries = 0
    for number in range(count):
        link = table[one.cells[number], LAST]
        while link:
            entry = (link & np.int64(2**32 - 1)) - 1
            if same(link, print_, ledger, entry, one):
                entries += 1
                if entries == 2 or one.cells[number] == cell:
                    return False
            link = ledger.links[entry]
    ledger.totals[TWICE] += entries
    return True


@inlined
def enter(
    table: NDArray[np.int64],
    ledger: Ledger,
    key: NDArray[np.uint64],
    cell: int,
    value: int,
    print_: np.uint64,
) -> None:
    """Write `value` of `key` into the ledger, as taken from `cell`."""
    entry = ledger.totals[ENTRIES]
    ledger.totals[ENTRIES] += 1
    for j in range(len(key)):
        ledger.keys[entry, j] = key[j]
    ledger.values[entry] = value
    ledger.sources[entry] = cell
    ledger.links[entry] = table[cell, LAST]
    table[cell, LAST] = np.int64((print_ & _LOW32) << _U32 | np.uint64(entry + 1))


@inlined
def _move(
    table: NDArray[np.int64], ledger: Ledger, one: Scratch, count: int, value: int, p: np.uint64
) -> None:
    """Take `value` of the key out of its cells (put it back if negative) and queue them."""
    modulus = np.int64(p)
    for j in range(len(one.key)):
        one.elements[j] = one.elements[j] * np.uint64(abs(value)) % p
    for number in range(count):
        cell = one.cells[number]
        table[cell, V] -= value
        for j in range(len(one.key)):
            term = np.int64(one.elements[j])
            left = table[cell, K + j] - (term if value > 0 else -term)
            left += modulus if left < 0 else 0
            table[cell, K + j] = left - (modulus if left >= modulus else 0)
        _queue(table, ledger, cell)
