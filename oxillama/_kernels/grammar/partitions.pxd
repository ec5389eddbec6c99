"""Partitions: elements in sets, which are refined by keys."""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from oxillama._kernels.grammar.memory cimport grown, mixed


cdef struct Partition:
    int32_t n, n_sets
    int32_t* number     # (elements): number of the element's set
    int32_t* sample     # (sets): first element of the set
    int32_t* parted     # the numbers during a refinement
    int32_t* table      # hash table of first elements, -1: free
    int32_t table_size


cdef inline int begin_partition(Partition* p, int32_t n) except -1:
    """Makes one set of ``n`` elements; all memory is one block that begins with ``number``."""
    cdef Py_ssize_t room = <Py_ssize_t>n
    p.n, p.n_sets, p.table_size = n, 1, 16
    while p.table_size < 2 * room:
        p.table_size *= 2
    p.number = <int32_t*>grown(NULL, 4 * (3 * room + p.table_size))
    p.sample, p.parted, p.table = p.number + room, p.number + 2 * room, p.number + 3 * room
    memset(p.number, 0, 4 * room)
    p.sample[0] = 0
    return 0


cdef inline void end_partition(Partition* p) noexcept:
    free(p.number if p.number < p.parted else p.parted)


cdef inline void refine(Partition* p, const int64_t* keys) noexcept:
    """Splits each set by the keys of its elements."""
    cdef int32_t i, k, slot, found = 0
    if p.n_sets == p.n:
        return
    memset(p.table, 0xFF, 4 * <Py_ssize_t>p.table_size)
    for i in range(p.n):
        slot = <int32_t>(mixed(<uint64_t>keys[i] + <uint64_t>p.number[i]) & <uint64_t>(p.table_size - 1))
        k = p.table[slot]
        while k >= 0 and (p.number[k] != p.number[i] or keys[k] != keys[i]):
            slot = (slot + 1) & (p.table_size - 1)
            k = p.table[slot]
        if k < 0:
            p.table[slot] = p.sample[found] = i
            p.parted[i] = found
            found += 1
        else:
            p.parted[i] = p.parted[k]
    p.number, p.parted, p.n_sets = p.parted, p.number, found
