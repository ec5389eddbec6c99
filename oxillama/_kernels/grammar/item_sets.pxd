"""Sets of items, each stored once (hash-consed) and identified by its number."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort

from oxillama._kernels.grammar.memory cimport grown, mixed


cdef struct Item:
    # A state, its count, and its stack; as part of a stack: a return state, its count, and the stack below.
    int32_t q, n, p


cdef struct Pool:
    # Sets of items, each stored once: set i is items[first[i]] ... items[first[i + 1] - 1], sorted.
    int32_t n, room, items_room, table_size
    int32_t* first
    uint8_t* flags
    Item* items
    int32_t* table      # hash table of set numbers, -1: free


cdef inline uint64_t hashed(const Item* items, int32_t n, uint8_t flags, int32_t tape) noexcept:
    cdef uint64_t h = flags + 1 + (<uint64_t>tape << 8)
    cdef int32_t i
    for i in range(n):
        h = mixed(h ^ (<uint64_t><uint32_t>items[i].q << 32 | <uint32_t>items[i].p)) + <uint32_t>items[i].n
    return mixed(h)


cdef inline int item_order(const Item* a, const Item* b) noexcept nogil:
    if a.q != b.q:
        return -1 if a.q < b.q else 1
    if a.n != b.n:
        return -1 if a.n < b.n else 1
    return (a.p > b.p) - (a.p < b.p)


cdef inline int compare_items(const void* a, const void* b) noexcept nogil:
    return item_order(<const Item*>a, <const Item*>b)


cdef inline void sort_items(Item* items, int32_t n) noexcept:
    cdef int32_t i, j
    cdef Item item
    if n > 24:
        qsort(items, n, sizeof(Item), compare_items)
        return
    for i in range(1, n):
        item = items[i]
        j = i
        while j > 0 and item_order(&items[j - 1], &item) > 0:
            items[j] = items[j - 1]
            j -= 1
        items[j] = item


cdef inline int pool_alloc(Pool* pool) except -1:
    cdef int32_t i
    pool.n = 0
    pool.room = pool.items_room = 64
    pool.table_size = 256
    pool.first = <int32_t*>malloc(4 * pool.room)
    pool.flags = <uint8_t*>malloc(pool.room)
    pool.items = <Item*>malloc(sizeof(Item) * pool.items_room)
    pool.table = <int32_t*>malloc(4 * pool.table_size)
    if not (pool.first and pool.flags and pool.items and pool.table):
        raise MemoryError()
    pool.first[0] = 0
    for i in range(pool.table_size):
        pool.table[i] = -1
    return 0


cdef inline void pool_free(Pool* pool) noexcept:
    free(pool.first)
    free(pool.flags)
    free(pool.items)
    free(pool.table)


cdef inline int rehash(Pool* pool, const int32_t* tapes) except -1:
    cdef int32_t i, size = 2 * pool.table_size
    cdef uint64_t slot
    pool.table = <int32_t*>grown(pool.table, 4 * <Py_ssize_t>size)
    pool.table_size = size
    for i in range(size):
        pool.table[i] = -1
    for i in range(pool.n):
        slot = hashed(
            pool.items + pool.first[i], pool.first[i + 1] - pool.first[i], pool.flags[i], tapes[i] if tapes else 0
        ) & (size - 1)
        while pool.table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        pool.table[slot] = i
    return 0
