"""Characters to bytes, as other kernels see it."""

from libc.stdint cimport int32_t

from oxillama._kernels.grammar.automata cimport Automata
from oxillama._kernels.grammar.dfa cimport Arcs


cdef class Characters(Automata):
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
