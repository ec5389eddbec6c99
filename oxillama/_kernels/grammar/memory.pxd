"""Growing arrays and hashing, shared by the kernels of grammars."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport realloc


cdef inline void* grown(void* old, Py_ssize_t n) except NULL:
    """``old`` with room for ``n`` bytes."""
    cdef void* new = realloc(old, n)
    if not new:
        raise MemoryError()
    return new


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    """The finalizer of splitmix64."""
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)
