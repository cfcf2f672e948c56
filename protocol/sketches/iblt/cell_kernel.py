"""The compiled kernel that peels a table, cell by cell, until no cell is pure.

A cell is a row of integers: V, the latest entry that was taken from it, and K in chunks. A
cell is inspected once, and again whenever a key is taken out of it or put back into it. An
*entry* is a key that was taken out, with its value, because it was alone in a cell. A cell that
holds a negative multiple of a key shows that the entry was false. If an entry has the same key and
value, and the cell that it was taken from is no longer empty, the entry is withdrawn.

A cell makes no entry twice, a key has at most two entries, and there are at most `2 cells` entries.
Each is withdrawn at most once, and touches at most 18 cells. So any vector causes at most 73
inspections per cell, and peeling ends.

Importing this module imports numba, which compiles at the first call (4 s). The machine code is
cached next to the source file, or in the user's cache if that folder cannot be written.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from protocol.hashing import mix

_PRIME = np.uint64(2**61 - 1)
_U1, _U29, _U32, _U61 = (np.uint64(shift) for shift in (1, 29, 32, 61))
_LOW29, _LOW32 = np.uint64(2**29 - 1), np.uint64(2**32 - 1)
V, LAST_ENTRY, K = 0, 1, 2  # columns of a row

F = TypeVar("F", bound=Callable[..., Any])


def jit_compiled(function: F, *, inline: bool = False) -> F:
    """Return `function` compiled at its first call.

    References to arrays are borrowed and not counted, which doubles the speed. The function
    releases the interpreter's lock, so that a server answers requests while it decodes.
    """
    options: dict[str, Any] = {"error_model": "numpy", "forceinline": inline, "_nrt": False}
    options["nogil"] = True
    try:
        compiled: F = njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache, as in a read-only container
        compiled = njit(**options)(function)
    return compiled


def jit_inlined(function: F) -> F:
    """Return `function` compiled into the functions that call it."""
    return jit_compiled(function, inline=True)


_mix = jit_inlined(mix)


class TableParameters(NamedTuple):
    """Parameters of a table for the kernel: bounds, moduli, hash functions, layout."""

    max_value: int  # the largest value of a key
    key_bound: np.uint64  # of the chunks of a key
    radix: np.uint64  # of the hash digits of each chunk
    p: np.uint64
    min_element: np.uint64  # of elements; the largest is p - 1
    q: np.int64  # of V in a tight table; 0 if V never wraps
    inverses: NDArray[np.uint64]  # of 0, 1, 2 .. modulo p, up to a size that pays for itself
    coefficients: NDArray[np.uint64]
    first_keys: NDArray[np.uint64]
    second_keys: NDArray[np.uint64]
    heavy_below: np.uint64
    light_segments: NDArray[np.int64]  # first cell and size of the segments of light keys
    heavy_segments: NDArray[np.int64]  # of heavy keys


class PeelingState(NamedTuple):
    """The entries, in order, and the cells that wait for inspection."""

    keys: NDArray[np.uint64]
    values: NDArray[np.int64]  # 0 once withdrawn
    previous_entries: NDArray[np.int64]  # links to the earlier entry of the same cell
    source_cells: NDArray[np.int32]  # the cell that the entry was taken from
    queue: NDArray[np.int32]
    is_queued: NDArray[np.bool_]
    totals: NDArray[np.int64]  # entries, inspections, repeated keys, length of the queue


ENTRIES, INSPECTIONS, REPEATED_KEYS, QUEUE_LENGTH = range(4)


class CandidateKey(NamedTuple):
    """A candidate: its elements (chunk and digit), its key, and its cells."""

    elements: NDArray[np.uint64]
    key: NDArray[np.uint64]
    cells: NDArray[np.int64]
    degree: NDArray[np.int64]  # the number of cells, written by the kernel of tight tables


@jit_compiled
def fill_inverses(inverses: NDArray[np.uint64], p: np.uint64) -> None:
    """Write 1/i modulo the prime p into element i > 0, for at most p elements."""
    inverses[1] = _U1
    for i in range(2, len(inverses)):
        n = np.uint64(i)
        inverses[i] = (p - p // n) * inverses[p % n] % p


@jit_compiled
def peel(
    table: NDArray[np.int64],
    rules: TableParameters,
    state: PeelingState,
    candidate: CandidateKey,
    strict: bool,
) -> None:
    """Take keys out of `table` until no cell is pure; only `strict` applies the last test."""
    totals = state.totals
    for number in range(len(table)):
        _enqueue(table, state, number)
    while totals[QUEUE_LENGTH] > 0:
        totals[QUEUE_LENGTH] -= 1
        cell = int(state.queue[totals[QUEUE_LENGTH]])
        state.is_queued[cell] = False
        value = table[cell, V]
        if value == 0 or abs(value) > rules.max_value:
            continue
        totals[INSPECTIONS] += 1
        count, fingerprint = read_candidate(table, cell, value, rules, candidate)
        if count == 0:
            continue
        if value < 0:
            entry = _find_entry(table, state, candidate, count, fingerprint, -value)
            # A true entry leaves the cell that it was taken from empty.
            if entry >= 0 and not is_empty(table, state.source_cells[entry]):
                state.values[entry] = 0
                _subtract_key(table, state, candidate, count, value, rules.p)
        elif not strict or _cells_hold(table, candidate, count, value):
            if totals[ENTRIES] == len(state.values):
                return
            if not may_add_entry(table, state, candidate, count, fingerprint, cell):
                continue
            add_entry(table, state, candidate.key, cell, value, fingerprint)
            _subtract_key(table, state, candidate, count, value, rules.p)


@jit_inlined
def _enqueue(table: NDArray[np.int64], state: PeelingState, cell: int) -> None:
    totals = state.totals
    if table[cell, V] != 0 and not state.is_queued[cell]:
        state.is_queued[cell] = True
        state.queue[totals[QUEUE_LENGTH]] = cell
        totals[QUEUE_LENGTH] += 1


@jit_inlined
def is_empty(table: NDArray[np.int64], cell: int) -> bool:
    for column in range(K, table.shape[1]):
        if table[cell, column]:
            return False
    return bool(table[cell, V] == 0)


@jit_inlined
def read_candidate(
    table: NDArray[np.int64], cell: int, value: int, rules: TableParameters, candidate: CandidateKey
) -> tuple[int, np.uint64]:
    """Return the number of cells and the fingerprint of a key alone in `cell` with `value`.

    The number is 0 if chunks, hash digits or cells show that no key is.
    """
    inverse = inverse_of(value, rules)
    for j in range(len(candidate.key)):
        element = np.uint64(table[cell, K + j]) * inverse % rules.p
        candidate.elements[j] = element
        candidate.key[j] = element // rules.radix
        if candidate.key[j] >= rules.key_bound:
            return 0, _U1
    fingerprint = fingerprint_of(candidate.key, rules.coefficients)
    return checked_cells(cell, fingerprint, rules, candidate), fingerprint


@jit_inlined
def checked_cells(
    cell: int, fingerprint: np.uint64, rules: TableParameters, candidate: CandidateKey
) -> int:
    """Return the cells of the key, written into the candidate; 0 if hash digits or cells differ."""
    word = hash_word(fingerprint, 0, rules)
    if not digits_match(word >> _U32, rules, candidate):
        return 0
    count = choose_cells(fingerprint, word, rules, candidate.cells)
    for number in range(count):
        if candidate.cells[number] == cell:
            return count
    return 0


@jit_inlined
def inverse_of(value: int, rules: TableParameters) -> np.uint64:
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


@jit_inlined
def fingerprint_of(key: NDArray[np.uint64], coefficients: NDArray[np.uint64]) -> np.uint64:
    """Return the fingerprint of `key`; see `protocol/randomness.py`."""
    total = coefficients[0]
    for j in range(len(key)):
        factor = coefficients[j + 1]
        high, low = (factor >> _U32) * key[j], (factor & _LOW32) * key[j]
        term = (high >> _U29) + ((high & _LOW29) << _U32) + (low & _PRIME) + (low >> _U61)
        total = total + (term & _PRIME) + (term >> _U61)
        total = (total & _PRIME) + (total >> _U61)
    return np.uint64(total - _PRIME if total >= _PRIME else total)


@jit_inlined
def hash_word(fingerprint: np.uint64, number: int, rules: TableParameters) -> np.uint64:
    """Return a word of a key's hash; see `protocol/randomness.py`."""
    return _mix(_mix(fingerprint ^ rules.first_keys[number]) + rules.second_keys[number])


@jit_inlined
def digits_match(digits: np.uint64, rules: TableParameters, candidate: CandidateKey) -> bool:
    """Return whether the elements contain the hash digits of the key."""
    for j in range(len(candidate.key)):
        product = digits * rules.radix
        element = candidate.key[j] * rules.radix + (product >> _U32)
        if candidate.elements[j] != min(max(element, rules.min_element), rules.p - _U1):
            return False
        digits = product & _LOW32
    return True


@jit_inlined
def choose_cells(
    fingerprint: np.uint64, word: np.uint64, rules: TableParameters, cells: NDArray[np.int64]
) -> int:
    """Write a key's cells into `cells` and return their number; see `layout.py`."""
    segments = rules.heavy_segments if (word & _LOW32) < rules.heavy_below else rules.light_segments
    half = np.uint64(0)
    for number in range(len(segments)):
        half = half << _U32 if number & 1 else hash_word(fingerprint, 1 + (number >> 1), rules)
        size = np.uint64(segments[number, 1])
        cells[number] = segments[number, 0] + np.int64(((half >> _U32) * size) >> _U32)
    return len(segments)


@jit_inlined
def _find_entry(
    table: NDArray[np.int64],
    state: PeelingState,
    candidate: CandidateKey,
    count: int,
    fingerprint: np.uint64,
    value: int,
) -> int:
    """Return the entry of the key with this `value`, -1 if there is none."""
    for number in range(count):
        link = table[candidate.cells[number], LAST_ENTRY]
        while link:
            entry = int((link & np.int64(2**32 - 1)) - 1)
            if (
                is_same_key(link, fingerprint, state, entry, candidate)
                and state.values[entry] == value
            ):
                return entry
            link = state.previous_entries[entry]
    return -1


@jit_inlined
def is_same_key(
    link: int, fingerprint: np.uint64, state: PeelingState, entry: int, candidate: CandidateKey
) -> bool:
    """Return whether the `entry` that `link` points to has the candidate's key."""
    if (np.uint64(link) >> _U32) != (fingerprint & _LOW32):
        return False
    for j in range(len(candidate.key)):
        if state.keys[entry, j] != candidate.key[j]:
            return False
    return True


@jit_inlined
def _cells_hold(table: NDArray[np.int64], candidate: CandidateKey, count: int, value: int) -> bool:
    """Return whether all cells of the key hold `value` or more."""
    for number in range(count):
        if table[candidate.cells[number], V] < value:
            return False
    return True


@jit_inlined
def may_add_entry(
    table: NDArray[np.int64],
    state: PeelingState,
    candidate: CandidateKey,
    count: int,
    fingerprint: np.uint64,
    cell: int,
) -> bool:
    """Return whether the key was never taken from this cell, and at most once from others."""
    entries = 0
    for number in range(count):
        link = table[candidate.cells[number], LAST_ENTRY]
        while link:
            entry = (link & np.int64(2**32 - 1)) - 1
            if is_same_key(link, fingerprint, state, entry, candidate):
                entries += 1
                if entries == 2 or candidate.cells[number] == cell:
                    return False
            link = state.previous_entries[entry]
    state.totals[REPEATED_KEYS] += entries
    return True


@jit_inlined
def add_entry(
    table: NDArray[np.int64],
    state: PeelingState,
    key: NDArray[np.uint64],
    cell: int,
    value: int,
    fingerprint: np.uint64,
) -> None:
    """Append an entry for `value` of `key`, taken from `cell`."""
    entry = state.totals[ENTRIES]
    state.totals[ENTRIES] += 1
    for j in range(len(key)):
        state.keys[entry, j] = key[j]
    state.values[entry] = value
    state.source_cells[entry] = cell
    state.previous_entries[entry] = table[cell, LAST_ENTRY]
    table[cell, LAST_ENTRY] = np.int64((fingerprint & _LOW32) << _U32 | np.uint64(entry + 1))


@jit_inlined
def _subtract_key(
    table: NDArray[np.int64],
    state: PeelingState,
    candidate: CandidateKey,
    count: int,
    value: int,
    p: np.uint64,
) -> None:
    """Subtract `value` of the key from its cells, and queue these."""
    modulus = np.int64(p)
    for j in range(len(candidate.key)):
        candidate.elements[j] = candidate.elements[j] * np.uint64(abs(value)) % p
    for number in range(count):
        cell = candidate.cells[number]
        table[cell, V] -= value
        for j in range(len(candidate.key)):
            term = np.int64(candidate.elements[j])
            rest = table[cell, K + j] - (term if value > 0 else -term)
            rest += modulus if rest < 0 else 0
            table[cell, K + j] = rest - (modulus if rest >= modulus else 0)
        _enqueue(table, state, cell)
