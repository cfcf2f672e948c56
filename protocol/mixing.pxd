"""Stafford's finaliser for compiled modules; see `protocol/hashing.py`, which has it for arrays."""

from libc.stdint cimport uint64_t


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)
