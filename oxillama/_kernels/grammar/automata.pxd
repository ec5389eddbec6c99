"""Declarations of automata.pyx: byte automata under construction."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.dfa cimport Arcs
from oxillama._kernels.grammar.network cimport Program


cdef class Automata(Program):  # states have no flags but FINAL; least = most = 0 means no count
    cdef int32_t most_states
    cdef dict labels          # set of bytes -> number

    cdef int32_t new(self) except -1
    cdef int add(self, int kind, int32_t source, int32_t what, int32_t op, int32_t target) except -1
    cdef int32_t label(self, const uint8_t* taken) except -1
    cdef int32_t nonempty(self, int32_t start) except -1
    cdef int without_left_recursion(self, list starts) except -1
    cdef list callees(self, int32_t q)
    cdef list body(self, int32_t start)
    cdef int32_t copy_for_goal(self, int32_t goal, dict bodies, list starts) except -1
    cdef bint character(
        self, object ranges, int32_t start, int32_t end, dict tails, int32_t asks=*, int32_t makes=*, tuple inside=*
    ) except -1
    cdef bint characters(
        self, const Arcs* ranges, int32_t start, int32_t end, dict tails, int32_t asks=*, int32_t makes=*,
        tuple inside=*
    ) except -1
    cdef int branches(
        self, const Arcs* ranges, int32_t first, int32_t last, int32_t left, int32_t lead, int32_t end, dict tails,
        int32_t makes, tuple inside, list found
    ) except -1
    cdef int32_t tail(
        self, const Arcs* ranges, int32_t left, int32_t end, dict tails, int32_t makes, tuple inside
    ) except -1
    cdef int32_t counting(self, tuple inside) except -1
