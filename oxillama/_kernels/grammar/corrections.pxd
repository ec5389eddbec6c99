"""Declarations of corrections.pyx: corrections of a mask by the values of registers."""

from libc.stdint cimport int32_t, uint32_t

from oxillama._kernels.grammar.parser_states cimport ParserStates
from oxillama._kernels.grammar.trie cimport Nodes, Trie


cdef class Leads:
    cdef Nodes nodes

    cdef int build(self, Trie trie) except -1


cdef class Corrections:
    cdef Trie trie
    cdef ParserStates states
    cdef Leads leads
    cdef int32_t* path       # (depths): parser states along the path
    cdef dict fresh          # parser state with abstract registers -> [(node, its bytes)], see `fresh_nodes`

    cdef int correct(self, int32_t state, int32_t abstract, uint32_t* bits) except -1
    cdef list fresh_nodes(self, int32_t abstract)
    cdef int old_values(self, int32_t state, uint32_t* bits) except -1
    cdef int follow(self, int32_t node, int32_t state, list rests, int32_t at, bint complete, uint32_t* bits) except -1
    cdef int decide(self, Nodes* nodes, int32_t node, int32_t state, uint32_t* bits) except -1
    cdef void allow(self, Nodes* nodes, int32_t node, uint32_t* bits) noexcept
    cdef void forbid(self, Nodes* nodes, int32_t node, uint32_t* bits) noexcept
