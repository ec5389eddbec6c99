"""What walks over the trie have found, kept for every parser state that can use it."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from oxillama._kernels.grammar.parser_states cimport ParserStates
from oxillama._kernels.grammar.slices cimport Slice
from oxillama._kernels.grammar.trie cimport Nodes

cdef enum:
    MAX_LIST = 1024      # tokens kept as a list and not as a mask


cdef struct Dependent:
    # A trie node at which the subnetwork has ended, so that the rest of a token depends on the stack. With
    # ``loop``: any place along a run of these characters, after which any rest of the slice may follow.
    Nodes* nodes
    int32_t node, part  # which trie of which slice, see `part_of`; -1 for the trie of the vocabulary
    const uint8_t* loop


cdef struct Tokens:
    # A set of tokens: ``bits`` if that is not NULL, else the tokens of a slice (-1: of none) without ``removed``, and
    # the ``list``, which may name a token twice.
    uint32_t* bits
    int32_t* list
    int32_t* removed
    int32_t n, room, n_removed, slice


cdef struct Found:
    # The result of a walk that is under way.
    Tokens tokens
    Dependent* dependents
    int32_t n_dependents, room
    bint overflow           # more dependents than are kept: the result is incomplete


cdef struct CacheEntry:
    int32_t q, n, node  # the key: RTN state, count, trie node (-1: the root)
    int32_t n_dependents
    bint overflow
    Tokens tokens
    Dependent* dependents


cdef class MaskCache:
    cdef ParserStates states  # charged for the memory
    cdef CacheEntry* entries
    cdef int32_t* table      # hash table of entry numbers, -1 where free
    cdef int32_t n_entries, room, table_size, n_words
    cdef list slices
    cdef const uint32_t** slice_bits

    cdef int32_t add_slice(self, Slice slice) except -1
    cdef int32_t find(self, int32_t q, int32_t n, int32_t node) noexcept
    cdef int32_t keep(self, int32_t q, int32_t n, int32_t node, Found* found) except -1
    cdef int insert(self, int32_t i) noexcept
    cdef int rehash(self) except -1
    cdef int put_more(self, Tokens* out, int32_t token) except -1
    cdef int put_mask(self, Tokens* out, const uint32_t* bits) except -1
    cdef int put_slice(self, Tokens* out, int32_t slice, const int32_t* removed, int32_t n_removed) except -1
    cdef int put_entry(self, Tokens* out, int32_t index) except -1
    cdef int spill(self, Tokens* out) except -1
    cdef int shrink(self, Tokens* tokens) except -1

    cdef inline int put(self, Tokens* out, int32_t token) except -1:
        """Add a token."""
        if out.bits:
            out.bits[token >> 5] |= <uint32_t>1 << (token & 31)
        elif out.n < out.room:
            out.list[out.n] = token
            out.n += 1
        else:
            self.put_more(out, token)
        return 0


cdef void begin(Found* found) noexcept
cdef void clear(Found* found) noexcept
