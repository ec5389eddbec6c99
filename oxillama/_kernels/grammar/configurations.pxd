"""Configurations of a grammar, as other kernels see them."""

from libc.stdint cimport int32_t, uint8_t, uint64_t

cdef enum:
    DEAD = 0           # the configuration in which nothing can follow
    UNKNOWN = -1       # a step that has not been made yet
    BOTTOM = 0         # the stack on which the root ends
    OPEN = 1           # a stack of which nothing is known
    ACCEPTS = 1        # flag: the text may end here
    ESCAPES = 2        # flag: what follows depends on the open stack
    RESULTS = 3        # these two
    FARAWAY = 4        # flag: there is a count of FAR or BELOW in it
    FAR = 1 << 30      # a count that is enough and stays below the bound
    BELOW = FAR + 1    # a count that is not enough and stays so


cdef struct Entry:
    # A state, its count, and the stack of where to return to; or a return state, its count, and the rest.
    int32_t q, n, p


cdef struct Pool:
    # Sets of entries, each kept once: set i is entries[first[i]] ... entries[first[i + 1] - 1], sorted.
    int32_t n, room, entries_room, table_size
    int32_t* first
    uint8_t* flags
    Entry* entries
    int32_t* table      # hash table of set numbers, -1 where free


cdef struct Pair:
    int32_t a, b, union_


cdef class Configurations:
    cdef Pool stacks, configs
    cdef int32_t* rows       # (configs, classes): the configuration after a byte of the class
    cdef int32_t rows_room
    cdef readonly int n_classes, n_states
    cdef uint8_t* class_of
    cdef uint8_t* labels
    cdef int32_t* flags
    cdef int32_t* least
    cdef int32_t* most
    cdef int32_t* byte_edges
    cdef int32_t* byte_first
    cdef int32_t* token_edges
    cdef int32_t* token_first
    cdef int32_t* calls
    cdef int32_t* calls_first
    cdef int32_t* free_edges
    cdef int32_t* free_first
    cdef object program
    # the configuration being made
    cdef Entry* work
    cdef int32_t* chain      # the next entry of the same hash
    cdef uint8_t* queued
    cdef int32_t* queue
    cdef int32_t* head       # hash table of (state, count): its first entry, if mark says so
    cdef int32_t* mark
    cdef int32_t n_work, n_queue, work_room, n_heads, generation
    cdef uint8_t work_flags
    # unions of stacks made so far
    cdef Pair* pairs
    cdef int32_t pairs_size, n_pairs
    cdef readonly Py_ssize_t n_bytes, limit

    cdef int step(self, int32_t config, int byte_class) except -1
    cdef int begin(self) except -1
    cdef int add(self, int32_t q, int32_t n, int32_t p) except -1
    cdef int finish(self) except -1
    cdef int32_t uncovered(self, Entry* entries, int32_t n) noexcept
    cdef int pop(self, int32_t p) except -1
    cdef int close(self) except -1
    cdef int push(self, int32_t q, int32_t n, int32_t p) except -1
    cdef int unite(self, int32_t a, int32_t b, int depth) except -1
    cdef int remember(self, int32_t a, int32_t b, int32_t united) except -1
    cdef int32_t after(self, int32_t op, int32_t q, int32_t n) noexcept
    cdef int checked_config(self, int32_t config) except -1
    cdef int make_room(self) except -1
    cdef int charge(self, Py_ssize_t more) except -1
    cdef int intern(self, Pool* pool, const Entry* entries, int32_t n, uint8_t flags) except -1
    cdef void start_row(self, int32_t config) noexcept
    cdef int single(self, int32_t q, int32_t n, int32_t p) except -1
    cdef int popped(self, int32_t p) except -1
    cdef int run(self, int32_t config, const uint8_t* text, Py_ssize_t n) except -1
    cdef int token_step(self, int32_t config, int32_t after_bytes, const uint8_t* hits) except -1


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    """The finalizer of splitmix64."""
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)
