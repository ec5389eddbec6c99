"""Declarations of parser_states.pyx: parser states of a grammar."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.closure cimport Closure
from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.rows cimport entry


cdef class ParserStates(Closure):
    cdef Py_ssize_t n_token_sets

    cdef int mend(self, object error, int32_t state) except -1
    cdef int step(self, int32_t state, uint8_t byte) except -1
    cdef int next(self, int32_t state, uint8_t byte) except -1
    cdef int follow_edges(self, int32_t state, uint8_t byte) except -1
    cdef int taped_step(self, int32_t state, uint8_t byte) except -1
    cdef int unjudged_step(self, int32_t state, uint8_t byte) except -1
    cdef bint is_alive(self, int32_t state) except -1
    cdef bint is_saved(self, int32_t state) except -1
    cdef int count_unit(self, Item item, dict found) except -1
    cdef int32_t abstract_count(self, int32_t q, int32_t n, int32_t reach) noexcept
    cdef int checked_state(self, int32_t state) except -1
    cdef int popped(self, int32_t p) except -1
    cdef int run(self, int32_t state, const uint8_t* text, Py_ssize_t n) except -1
    cdef int token_step(self, int32_t state, int32_t after_bytes, const uint8_t* hits) except -1


cdef inline int32_t stepped(ParserStates states, int32_t state, uint8_t byte) except -1:
    """The parser state after a byte."""
    cdef int32_t to = entry(states.rows, state, byte)[0]
    return to if to >= 0 else states.next(state, byte)
