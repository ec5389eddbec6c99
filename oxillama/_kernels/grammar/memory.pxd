"""Growing arrays, hashing and bits, shared by the kernels of grammars."""

from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memset


cdef inline void* grown(void* old, Py_ssize_t n) except NULL:
    """``old``, reallocated to ``n`` bytes."""
    cdef void* new = realloc(old, n)
    if not new:
        raise MemoryError()
    return new


cdef inline int sort_by(const int32_t* keys, int32_t n, int32_t n_keys, int32_t* first, int32_t* order) except -1:
    """Sorts 0 ... n - 1 by keys below ``n_keys``; numbers with key k are order[first[k]] ... order[first[k + 1] - 1].

    The sort is stable. ``first`` has ``n_keys + 1`` entries.
    """
    cdef int32_t i, k
    memset(first, 0, 4 * (<size_t>n_keys + 1))
    for i in range(n):
        first[keys[i]] += 1
    for k in range(n_keys):
        first[k + 1] += first[k]
    for i in range(n - 1, -1, -1):
        first[keys[i]] -= 1
        order[first[keys[i]]] = i
    return 0


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    """The finalizer of splitmix64."""
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    static int lowest_bit(unsigned long long x) { unsigned long i; _BitScanForward64(&i, x); return (int)i; }
    #else
    static int lowest_bit(unsigned long long x) { return __builtin_ctzll(x); }
    #endif
    """
    int lowest_bit(uint64_t x) noexcept nogil
