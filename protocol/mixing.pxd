"""Stafford's finaliser for compiled modules; see `protocol/hashing.py`, which has it for arrays."""

from libc.stdint cimport uint64_t


cdef extern from *:
    """
    static inline uint64_t mix(uint64_t x) {
        x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
        return x ^ (x >> 31);
    }
    """
    uint64_t mix(uint64_t x) noexcept nogil
