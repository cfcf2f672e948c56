# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled loops that peel a table: they take out one key after another.

A cell is a row of integers: V, the latest entry that was taken from it, and K in elements. An
*entry* is a key that was taken out, with its value, because it was alone in a cell. A *link* to an
entry has its number, plus one, in its lower half, and 32 bits of the key's fingerprint above; 0 is
none. The *candidate* is the key that a cell may hold alone.

A cell is inspected once, and again whenever a key is taken out of it or
put back into it. A cell that holds a negative multiple of a key shows that the entry was false. If
an entry has the same key and value, and the cell that it was taken from is no longer empty, the
entry is withdrawn.

A cell makes no entry twice, a key has at most two entries, and there are at most `2 cells` entries.
Each is withdrawn at most once, and touches at most 18 cells. So any vector causes at most 73
inspections per cell, and peeling ends.

It also ends when it has followed 256 links per cell of the table. A sum that was made for
this purpose could have long chains of entries; of 1,500 other sums, also random ones, none took 4.

All functions release Python's lock, so that a server answers requests while it decodes. Arrays
must have the shapes and types that `peeling.py` gives them: nothing here checks an index.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from protocol.mixing cimport mix

INTERFACE = 1  # with `numpy_peeling.py`, which explains it

cdef enum:
    V = 0  # columns of a row
    LAST_ENTRY = 1
    K = 2

cdef enum:
    ENTRIES = 0  # totals
    INSPECTIONS = 1
    REPEATED_KEYS = 2
    QUEUE_LENGTH = 3

cdef enum:
    MAX_CELLS_OF_KEY = 18  # of heavy keys; see `layout.py`
    MAX_LINKS_PER_CELL = 256

cdef uint64_t PRIME = (<uint64_t>1 << 61) - 1
cdef uint64_t LOW29 = (<uint64_t>1 << 29) - 1
cdef uint64_t LOW32 = (<uint64_t>1 << 32) - 1


cdef struct Table:  # borrowed arrays, and the candidate; see the classes of `peeling.py`
    int64_t *rows
    Py_ssize_t cells, columns, chunks, parts
    # parameters
    int64_t max_value
    uint64_t key_bound, radix, p, max_integer, heavy_below
    const uint64_t *inverses
    const uint64_t *coefficients
    const uint64_t *first_keys
    const uint64_t *second_keys
    const int64_t *light_segments
    const int64_t *heavy_segments
    Py_ssize_t inverses_length, light_length, heavy_length
    # state
    uint64_t *keys
    int64_t *values
    int64_t *previous_entries
    int32_t *source_cells
    int32_t *queue
    uint8_t *is_queued
    int64_t *totals
    Py_ssize_t max_entries
    int64_t links_left  # that may still be followed
    # candidate
    uint64_t *integers  # x' of each chunk
    uint64_t *key
    uint64_t *terms  # what is subtracted from each element of its cells
    uint64_t fingerprint
    int64_t places[MAX_CELLS_OF_KEY]
    int degree


cdef const uint64_t *words_of(const uint64_t[::1] array) except NULL:
    return &array[0]


cdef int64_t *integers_of(int64_t[::1] array) except NULL:
    return &array[0]


cdef int32_t *numbers_of(int32_t[::1] array) except NULL:
    return &array[0]


cdef Table borrowed(int64_t[:, ::1] rows, parameters, state, uint64_t[::1] scratch) except *:
    """Return the arrays of a table, which the caller keeps; `scratch` is of the candidate."""
    cdef Table t
    cdef const int64_t[:, ::1] light_segments = parameters.light_segments
    cdef const int64_t[:, ::1] heavy_segments = parameters.heavy_segments
    cdef uint64_t[:, ::1] keys = state.keys
    cdef uint8_t[::1] flags = state.is_queued.view("uint8")
    t.rows, t.cells, t.columns = &rows[0, 0], rows.shape[0], rows.shape[1]
    t.parts = parameters.parts
    t.chunks = (t.columns - K) // t.parts
    t.max_value, t.key_bound = parameters.max_value, parameters.key_bound
    t.radix, t.p, t.heavy_below = parameters.radix, parameters.p, parameters.heavy_below
    t.max_integer = parameters.p**parameters.parts - 1
    t.inverses, t.inverses_length = words_of(parameters.inverses), len(parameters.inverses)
    t.coefficients = words_of(parameters.coefficients)
    t.first_keys, t.second_keys = words_of(parameters.first_keys), words_of(parameters.second_keys)
    t.light_segments, t.light_length = &light_segments[0, 0], light_segments.shape[0]
    t.heavy_segments, t.heavy_length = &heavy_segments[0, 0], heavy_segments.shape[0]
    t.keys, t.max_entries, t.is_queued = &keys[0, 0], keys.shape[0], &flags[0]
    t.values, t.totals = integers_of(state.values), integers_of(state.totals)
    t.previous_entries = integers_of(state.previous_entries)
    t.source_cells, t.queue = numbers_of(state.source_cells), numbers_of(state.queue)
    t.integers, t.key, t.terms = &scratch[0], &scratch[t.chunks], &scratch[2 * t.chunks]
    t.degree, t.links_left = 0, MAX_LINKS_PER_CELL * t.cells
    return t


def peel(rows, parameters, state, scratch, bint strict):
    """Take keys out of the table until no cell is pure; only `strict` applies the last test."""
    cdef Table t = borrowed(rows, parameters, state, scratch)
    with nogil:
        peel_cells(&t, strict)


cdef void peel_cells(Table *t, bint strict) noexcept nogil:
    cdef int64_t cell, value, entry
    for cell in range(t.cells):
        enqueue(t, cell)
    while t.totals[QUEUE_LENGTH] > 0 and t.links_left > 0:
        t.totals[QUEUE_LENGTH] -= 1
        cell = t.queue[t.totals[QUEUE_LENGTH]]
        t.is_queued[cell] = False
        value = t.rows[cell * t.columns + V]
        if value == 0 or size_of(value) > t.max_value:
            continue
        t.totals[INSPECTIONS] += 1
        if not read_candidate(t, cell, value):
            continue
        if value < 0:
            entry = find_entry(t, -value)
            # A true entry leaves the cell that it was taken from empty.
            if entry >= 0 and not is_empty(t, t.source_cells[entry]):
                t.values[entry] = 0
                subtract_and_enqueue(t, value)
        elif not strict or cells_hold(t, value):
            if t.totals[ENTRIES] == t.max_entries:
                return
            if may_add_entry(t, cell):
                append_entry(t, cell, value)
                subtract_and_enqueue(t, value)


cdef inline int64_t size_of(int64_t value) noexcept nogil:
    return value if value >= 0 else -value


cdef inline void enqueue(Table *t, int64_t cell) noexcept nogil:
    if t.rows[cell * t.columns + V] != 0 and not t.is_queued[cell]:
        t.is_queued[cell] = True
        t.queue[t.totals[QUEUE_LENGTH]] = <int32_t>cell
        t.totals[QUEUE_LENGTH] += 1


cdef inline bint is_empty(Table *t, int64_t cell) noexcept nogil:
    cdef Py_ssize_t column
    for column in range(K, t.columns):
        if t.rows[cell * t.columns + column]:
            return False
    return t.rows[cell * t.columns + V] == 0


cdef inline bint read_candidate(Table *t, int64_t cell, int64_t value) noexcept nogil:
    """Make the key that is alone in `cell` with `value` the candidate.

    Return False if chunks, hash digits or cells show that no key is.
    """
    cdef uint64_t inverse = inverse_of(t, value)
    cdef const int64_t *sums = t.rows + cell * t.columns + K
    cdef uint64_t integer
    cdef Py_ssize_t j, digit
    for j in range(t.chunks):
        integer = 0
        for digit in range(t.parts * (j + 1) - 1, t.parts * j - 1, -1):  # the lowest last
            integer = integer * t.p + <uint64_t>sums[digit] * inverse % t.p
        t.integers[j] = integer
        t.key[j] = integer // t.radix
        if t.key[j] >= t.key_bound:
            return False
    return find_places(t, cell)


cdef inline bint find_places(Table *t, int64_t cell) noexcept nogil:
    """Hash the candidate to its cells; return False if hash digits or cells are others."""
    cdef uint64_t word
    cdef int number
    t.fingerprint = fingerprint_of(t)
    word = hash_word(t, 0)
    if not digits_match(t, word >> 32):
        return False
    choose_cells(t, word)
    for number in range(t.degree):
        if t.places[number] == cell:
            return True
    return False


cdef inline uint64_t inverse_of(Table *t, int64_t value) noexcept nogil:
    """Return 1 / value modulo p, for |value| from 1 to p - 1."""
    cdef int64_t r0 = <int64_t>t.p, r1 = size_of(value), s0 = 0, s1 = 1, quotient
    cdef uint64_t inverse
    if r1 < t.inverses_length:
        inverse = t.inverses[r1]
    else:  # Euclid's algorithm
        while r1 != 1:
            quotient = r0 // r1
            r0, r1 = r1, r0 - quotient * r1
            s0, s1 = s1, s0 - quotient * s1
        inverse = <uint64_t>(s1 if s1 > 0 else s1 + <int64_t>t.p)
    return inverse if value > 0 else t.p - inverse


cdef inline uint64_t fingerprint_of(Table *t) noexcept nogil:
    """Return the fingerprint of the candidate; see `protocol/hashing.py`."""
    cdef uint64_t total = t.coefficients[0], factor, high, low, term
    cdef Py_ssize_t j
    for j in range(t.chunks):
        factor = t.coefficients[j + 1]
        high, low = (factor >> 32) * t.key[j], (factor & LOW32) * t.key[j]
        term = (high >> 29) + ((high & LOW29) << 32) + (low & PRIME) + (low >> 61)
        total = total + (term & PRIME) + (term >> 61)
        total = (total & PRIME) + (total >> 61)
    return total - PRIME if total >= PRIME else total


cdef inline uint64_t hash_word(Table *t, int number) noexcept nogil:
    """Return a word of the candidate's hash; see `protocol/hashing.py`."""
    return mix(mix(t.fingerprint ^ t.first_keys[number]) + t.second_keys[number])


cdef inline bint digits_match(Table *t, uint64_t digits) noexcept nogil:
    """Return whether the integers contain the hash digits of the candidate."""
    cdef uint64_t product, integer
    cdef Py_ssize_t j
    for j in range(t.chunks):
        product = digits * t.radix
        integer = t.key[j] * t.radix + (product >> 32)
        if t.integers[j] != min(integer, t.max_integer):
            return False
        digits = product & LOW32
    return True


cdef inline void choose_cells(Table *t, uint64_t word) noexcept nogil:
    """Write the candidate's cells into `places`; see `layout.py`."""
    cdef bint is_heavy = (word & LOW32) < t.heavy_below
    cdef const int64_t *segments = t.heavy_segments if is_heavy else t.light_segments
    cdef uint64_t half = 0
    cdef int number
    t.degree = <int>(t.heavy_length if is_heavy else t.light_length)
    for number in range(t.degree):
        half = half << 32 if number & 1 else hash_word(t, 1 + (number >> 1))
        t.places[number] = segments[2 * number] + <int64_t>(
            ((half >> 32) * <uint64_t>segments[2 * number + 1]) >> 32
        )


cdef inline int64_t entry_of(int64_t link) noexcept nogil:
    return <int64_t>(<uint64_t>link & LOW32) - 1


cdef inline int64_t find_entry(Table *t, int64_t value) noexcept nogil:
    """Return the entry of the candidate with this `value`, -1 if there is none."""
    cdef int64_t link, entry
    cdef int number
    for number in range(t.degree):
        link = t.rows[t.places[number] * t.columns + LAST_ENTRY]
        while link:
            t.links_left -= 1
            entry = entry_of(link)
            if is_same_key(t, link) and t.values[entry] == value:
                return entry
            link = t.previous_entries[entry]
    return -1


cdef inline bint is_same_key(Table *t, int64_t link) noexcept nogil:
    """Return whether the entry that `link` points to has the candidate's key."""
    cdef uint64_t *key = t.keys + entry_of(link) * t.chunks
    cdef Py_ssize_t j
    if (<uint64_t>link >> 32) != (t.fingerprint & LOW32):
        return False
    for j in range(t.chunks):
        if key[j] != t.key[j]:
            return False
    return True


cdef inline bint cells_hold(Table *t, int64_t value) noexcept nogil:
    """Return whether all cells of the candidate hold `value` or more."""
    cdef int number
    for number in range(t.degree):
        if t.rows[t.places[number] * t.columns + V] < value:
            return False
    return True


cdef inline bint may_add_entry(Table *t, int64_t cell) noexcept nogil:
    """Return whether the key was never taken from this cell, and at most once from others."""
    cdef int64_t entries = 0, link
    cdef int number
    for number in range(t.degree):
        link = t.rows[t.places[number] * t.columns + LAST_ENTRY]
        while link:
            t.links_left -= 1
            if is_same_key(t, link):
                entries += 1
                if entries == 2 or t.places[number] == cell:
                    return False
            link = t.previous_entries[entry_of(link)]
    t.totals[REPEATED_KEYS] += entries
    return True


cdef inline void append_entry(Table *t, int64_t cell, int64_t value) noexcept nogil:
    """Append an entry for `value` of the candidate, taken from `cell`."""
    cdef int64_t entry = t.totals[ENTRIES]
    cdef int64_t *last = t.rows + cell * t.columns + LAST_ENTRY
    cdef Py_ssize_t j
    t.totals[ENTRIES] += 1
    for j in range(t.chunks):
        t.keys[entry * t.chunks + j] = t.key[j]
    t.values[entry] = value
    t.source_cells[entry] = <int32_t>cell
    t.previous_entries[entry] = last[0]
    last[0] = <int64_t>((t.fingerprint & LOW32) << 32 | <uint64_t>(entry + 1))


def add_entry(
    rows, parameters, state, scratch, const uint64_t[::1] key, int64_t cell, int64_t value
):
    """Append an entry for `value` of `key`, taken from `cell`."""
    cdef Table t = borrowed(rows, parameters, state, scratch)
    cdef Py_ssize_t j
    for j in range(t.chunks):
        t.key[j] = key[j]
    t.fingerprint = fingerprint_of(&t)
    append_entry(&t, cell, value)


cdef inline void subtract_and_enqueue(Table *t, int64_t value) noexcept nogil:
    """Subtract `value` of the candidate from its cells, and queue these."""
    cdef int number
    subtract(t, value)
    for number in range(t.degree):
        t.rows[t.places[number] * t.columns + V] -= value
        enqueue(t, t.places[number])


cdef inline void subtract(Table *t, int64_t value) noexcept nogil:
    """Subtract `value` of the candidate from K of its cells."""
    cdef int64_t p = <int64_t>t.p, rest
    cdef uint64_t integer, weight = <uint64_t>value if value > 0 else t.p - <uint64_t>(-value)
    cdef int64_t *sums
    cdef Py_ssize_t j, digit
    cdef int number
    for j in range(t.chunks):
        integer = t.integers[j]
        for digit in range(t.parts * j, t.parts * (j + 1) - 1):
            t.terms[digit] = integer % t.p * weight % t.p
            integer //= t.p
        t.terms[t.parts * (j + 1) - 1] = integer * weight % t.p
    for number in range(t.degree):
        sums = t.rows + t.places[number] * t.columns + K
        for j in range(t.columns - K):
            rest = sums[j] - <int64_t>t.terms[j]
            sums[j] = rest + p if rest < 0 else rest
