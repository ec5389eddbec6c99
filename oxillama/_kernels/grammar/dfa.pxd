"""Deterministic automata over code points."""

from libc.stdint cimport int32_t, uint8_t


cdef struct Arc:
    # The code points from ``first`` to ``last`` lead to ``target``.
    int32_t first, last, target


cdef struct Arcs:
    Arc* items
    int32_t n, room


cdef int add_arc(Arcs* arcs, int32_t first, int32_t last, int32_t target) except -1


cdef class Dfa:
    cdef Arc* arcs          # arcs of state q: arcs[first[q]] ... arcs[first[q + 1] - 1], ascending
    cdef int32_t* first
    cdef uint8_t* ends      # (states): whether a string may end in the state
    cdef readonly int32_t n_states
    cdef Py_hash_t hash
    cdef list needs         # results of `to_the_end`
    cdef int take(self, int32_t n, Arcs* arcs, int32_t* first, uint8_t* ends) except -1
    cdef list fewest(self, int32_t whole)
    cdef bint is_ascii(self, int32_t state) noexcept


cdef Dfa made(int32_t n, Arcs* arcs, int32_t* first, uint8_t* ends)
