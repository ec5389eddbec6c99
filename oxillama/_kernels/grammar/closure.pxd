"""Declarations of closure.pyx: the parser state being made."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.network cimport Edge
from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.stacks cimport Stacks


cdef class Closure(Stacks):
    cdef Item* made
    cdef int32_t* chain      # the next item of the same hash
    cdef uint8_t* queued
    cdef int32_t* queue
    cdef int32_t* head       # hash table of (RTN state, count) -> first item, valid if mark equals generation
    cdef int32_t* mark
    cdef int32_t n_made, n_queue, n_heads, generation
    cdef uint8_t made_flags
    cdef int32_t missing     # the unit that an operation needs and that is not built

    cdef int called(self, int32_t what) except -1
    cdef int begin(self) except -1
    cdef int add(self, int32_t q, int32_t n, int32_t p) except -1
    cdef int finish(self) except -1
    cdef int pop(self, int32_t p) except -1
    cdef int close(self) except -1
    cdef int32_t after(self, const Edge* edge, int32_t q, int32_t n) except -2
