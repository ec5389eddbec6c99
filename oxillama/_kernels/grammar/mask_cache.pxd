"""What walks over the trie have found, kept for every parser state that can use it."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from oxillama._kernels.grammar.parser_states cimport ParserStates
from oxillama._kernels.grammar.trie cimport Nodes


cdef struct Dependent:
    # A node at which the subnetwork has ended. Or, with ``loop``, any place along a run of these characters:
    # then ``nodes`` are what may follow the run.
    Nodes* nodes
    int32_t node, part  # the slice's number, -1 for the whole trie
    const uint8_t* loop


cdef struct Found:
    uint32_t* bits
    Dependent* dependents
    int32_t n_dependents, room
    bint overflow           # more dependents than are kept: what has been found is of no use


cdef struct CacheEntry:
    int32_t q, n, node
    int32_t n_tokens, n_dependents
    bint overflow
    uint32_t* bits      # the tokens as a mask, or
    int32_t* tokens     # as a list
    Dependent* dependents


cdef class MaskCache:
    cdef ParserStates states  # charged for the memory
    cdef CacheEntry* entries
    cdef int32_t* table      # hash table of entry numbers, -1 where free
    cdef int32_t n_entries, room, table_size, n_words

    cdef int32_t find(self, int32_t q, int32_t n, int32_t node) noexcept
    cdef int32_t keep(self, int32_t q, int32_t n, int32_t node, Found* found) except -1
    cdef int insert(self, int32_t i) noexcept
    cdef int rehash(self) except -1
    cdef int open(self, Found* found) except -1
    cdef void add_tokens(self, int32_t index, Found* found) noexcept
