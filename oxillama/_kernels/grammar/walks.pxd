"""Walks over the trie of a vocabulary, as other kernels see them."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from oxillama._kernels.grammar.loops cimport Loop, Loops
from oxillama._kernels.grammar.mask_cache cimport Dependent, Found, MaskCache
from oxillama._kernels.grammar.parser_states cimport ParserStates
from oxillama._kernels.grammar.trie cimport Nodes, Trie

cdef enum:
    PARTS = 512             # tries of a slice: for each byte the rests, and the tokens as a whole
    MAX_LEVEL = 48          # nested walks; a deeper one does not stop at large nodes


cdef class Walks:
    cdef public int32_t large, sliced, max_dependents
    cdef readonly Trie trie
    cdef readonly ParserStates states
    cdef MaskCache cache
    cdef Loops loops
    cdef dict slice_numbers  # by node, first characters and loop
    cdef readonly Py_ssize_t n_shared
    cdef int32_t* paths      # (levels, depths): parser states along the way of each walk
    cdef int32_t path_length

    cdef int visit(self, int32_t state, int32_t node, int level, Found* out) except -1
    cdef int follow(self, int32_t state, int32_t node, int level, Found* out) except -1
    cdef int add_dependent(self, Dependent dependent, Found* out) except -1
    cdef int32_t n_below(self, int32_t node) noexcept
    cdef int beside(self, int32_t state, const uint8_t* chars, int32_t node, int level, Found* out) except -1
    cdef int32_t slice(self, int32_t node, const uint8_t* start, const uint8_t* loop) except -1
    cdef int walk_tails(self, int32_t state, int32_t number, int level, Found* out) except -1
    cdef int walk_whole(self, int32_t state, int32_t number, const uint8_t* leaves, int level, Found* out) except -1
    cdef int enter(self, int32_t state, Loop* loop, int32_t number, int32_t node, int level, Found* out) except -1
    cdef int note_leaving(self, int32_t state, int32_t number, uint8_t* leaves) except -1
    cdef bint joins(self, int32_t state, Loop* loop, uint8_t byte) except -1
    cdef bint is_free(self, int32_t state, Loop* loop, bint look, int32_t number, uint8_t* leaves) except -1
    cdef int walk_entered(
        self, int32_t state, Loop* loop, int32_t number, int byte, uint8_t* leaves, int level, Found* out
    ) except -1
    cdef int walk(
        self, int32_t state, Nodes* nodes, int32_t i, int32_t end, int32_t depth, int level, Found* out,
        int32_t part=*
    ) except -1
