# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled loops that count, for the whole dictionary, the values that reports vote for.

Each writes into 32-bit counters, which fit in a core's cache where 64-bit counters would not; so
one call takes at most 2^32 - 1 reports. All release Python's lock, so that a server answers
requests meanwhile. The arrays of a call have one length; codes and counters are not checked here.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from protocol.mixing cimport mix

INTERFACE = 1  # with `numpy_report_counting.py`

cdef extern from *:
    """
    #define GOLDEN_RATIO UINT64_C(0x9E3779B97F4A7C15)
    """
    uint64_t GOLDEN_RATIO


cdef inline int64_t inverse_modulo(int64_t a, int64_t prime) noexcept nogil:
    cdef int64_t r0 = prime, r1 = a, s0 = 0, s1 = 1, quotient
    while r1 > 1:
        quotient = r0 // r1
        r0, r1 = r1, r0 - quotient * r1
        s0, s1 = s1, s0 - quotient * s1
    return s1 if s1 > 0 else s1 + prime


def count_preimages(
    uint32_t[::1] counted,
    const int64_t[::1] a,
    const int64_t[::1] b,
    const int64_t[::1] y,
    int64_t m,
):
    """Add each report to the x with ((a x + b) mod F) mod m = y; F counters, F prime.

    Returns the number of reports that vote for every x, which are not added.
    """
    cdef int64_t prime = counted.shape[0], for_all = 0
    cdef Py_ssize_t i
    with nogil:
        for i in range(a.shape[0]):
            if a[i] == 0:
                for_all += b[i] % m == y[i]
            else:
                count_report(&counted[0], prime, a[i], b[i], y[i], m)
    return for_all


cdef inline void count_report(
    uint32_t *counted, int64_t prime, int64_t a, int64_t b, int64_t y, int64_t m
) noexcept nogil:
    cdef int64_t inverse = inverse_modulo(a, prime)
    cdef int64_t step = inverse * m % prime
    cdef int64_t count = (prime - y + m - 1) // m
    # Four independent runs, because each step depends on the one before.
    cdef int64_t quarter = count // 4, x0, x1, x2, x3, far, _
    x0 = (y + prime - b) * inverse % prime
    far = quarter * step % prime
    x1 = (x0 + far) % prime
    x2 = (x1 + far) % prime
    x3 = (x2 + far) % prime
    for _ in range(quarter):
        counted[x0] += 1
        counted[x1] += 1
        counted[x2] += 1
        counted[x3] += 1
        x0 = next_of(x0, step, prime)
        x1 = next_of(x1, step, prime)
        x2 = next_of(x2, step, prime)
        x3 = next_of(x3, step, prime)
    for _ in range(count - 4 * quarter):
        counted[x3] += 1
        x3 = next_of(x3, step, prime)


cdef inline int64_t next_of(int64_t x, int64_t step, int64_t prime) noexcept nogil:
    x += step
    return x - prime if x >= prime else x


def count_solutions(
    uint32_t[::1] counted,
    const int64_t[::1] r,
    const int64_t[::1] y,
    const int64_t[:, ::1] products,
    int64_t[::1] scratch,
    bint binary,
):
    """Add each report to the x with <r, x> = y over GF(q); a multiple of q counters.

    The loop runs over all digits of x except the lowest, which is looked up. The sums of the digits
    from the third up are tabulated once for each report, a digit at a time: one step per entry
    instead of L. Both tables are in `scratch`, q + d / q^2 zeros.
    """
    cdef int64_t q = products.shape[0]
    cdef int64_t blocks = counted.shape[0] // q, length = scratch.shape[0] - q
    cdef int64_t *lowest = &scratch[0]
    cdef int64_t *bases = &scratch[q]
    cdef Py_ssize_t i
    with nogil:
        for i in range(r.shape[0]):
            tabulate(lowest, bases, length, q, r[i], y[i], &products[0, 0], binary)
            count_solution(
                &counted[0], blocks, lowest, bases, q, y[i], r[i] % q,
                &products[r[i] // q % q, 0], binary,
            )


cdef inline int64_t plus(int64_t a, int64_t b, int64_t q, bint binary) noexcept nogil:
    return a ^ b if binary else (a + b) % q


cdef inline void tabulate(
    int64_t *lowest, int64_t *bases, int64_t length, int64_t q, int64_t r, int64_t y,
    const int64_t *products, bint binary,
) noexcept nogil:
    cdef int64_t rest = r // (q * q), filled = 1, x, missing
    cdef const int64_t *product = products + r % q * q
    for x in range(q):
        missing = product[x] ^ y if binary else (y + q - product[x]) % q
        lowest[missing] = x  # the rest of <r, x> that this lowest digit completes
    while filled < length:
        product = products + rest % q * q
        for x in range(filled, min(q * filled, length)):
            bases[x] = plus(bases[x % filled], product[x // filled], q, binary)
        rest, filled = rest // q, filled * q


cdef inline void count_solution(
    uint32_t *counted, int64_t blocks, int64_t *lowest, int64_t *bases, int64_t q, int64_t y,
    int64_t first, const int64_t *second, bint binary,
) noexcept nogil:
    cdef int64_t block = 0, digit, partial, x
    while block < blocks:
        for digit in range(min(q, blocks - block)):
            partial = plus(bases[block // q], second[digit], q, binary)
            if first:
                counted[(block + digit) * q + lowest[partial]] += 1
            elif partial == y:
                for x in range(q):
                    counted[(block + digit) * q + x] += 1
        block += q


cdef extern from *:
    """
    /* GCC makes a version of the loop over the dictionary for each generation of processors. The
       right one is chosen when the module is loaded: vectors make it 4 times as fast. */
    #if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
    #define VERSIONS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
    #else
    #define VERSIONS
    #endif

    VERSIONS static void count_hash(
        uint32_t *counted, uint64_t domain, uint64_t stream, uint64_t symbol, uint64_t m
    ) {
        for (uint64_t x = 0; x < domain; x++) {
            uint64_t word = mix(stream + (x + 1) * GOLDEN_RATIO);
            counted[x] += ((word >> 32) * m) >> 32 == symbol;
        }
    }
    """
    void count_hash(
        uint32_t *counted, uint64_t domain, uint64_t stream, uint64_t symbol, uint64_t m
    ) noexcept nogil


def count_hashed(
    uint32_t[::1] counted, const uint64_t[::1] seeds, const uint64_t[::1] y, uint64_t m
):
    """Add each report to the x with h_s(x) = y; see `protocol/hashing.py`."""
    cdef Py_ssize_t i
    with nogil:
        for i in range(seeds.shape[0]):
            count_hash(&counted[0], counted.shape[0], mix(seeds[i] + GOLDEN_RATIO), y[i], m)
