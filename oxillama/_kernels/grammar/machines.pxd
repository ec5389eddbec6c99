"""Machines: deterministic automata whose states are rows of integers."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.classes cimport Classes
from oxillama._kernels.grammar.dfa cimport Dfa


cdef class Machine:
    cdef Classes classes
    cdef int32_t width          # integers per state
    cdef int32_t n, room, table_size
    cdef int32_t* states
    cdef int32_t* table         # hash table of state numbers, -1: free
    cdef int begin(self, const int32_t* state) noexcept
    cdef bint step(self, const int32_t* state, int32_t k, int32_t* after) noexcept
    cdef bint accepts(self, const int32_t* state) noexcept
    cdef Dfa automaton(self, const int32_t* start)
    cdef int32_t* slot_of(self, const int32_t* state) noexcept
    cdef int32_t numbered(self, const int32_t* state) except -1
