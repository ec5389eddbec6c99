"""Byte automata under construction, as other kernels see them."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.edges cimport List


cdef class Automata:
    cdef List[4] edges        # by kind
    cdef int32_t n, room, most_states
    cdef int32_t* least
    cdef int32_t* most        # -1: no bound; with least = most = 0: no count
    cdef int32_t* slack
    cdef uint8_t* final
    cdef dict labels          # numbers of sets of bytes

    cdef int32_t new(self) except -1
    cdef int add(self, int kind, int32_t source, int32_t what, int32_t op, int32_t target) except -1
    cdef int32_t label(self, const uint8_t* taken) except -1
    cdef int index(self) except -1
    cdef int32_t nonempty(self, int32_t start) except -1
    cdef int without_left_recursion(self, list starts) except -1
    cdef list callees(self, int32_t q)
    cdef list body(self, int32_t start)
    cdef int32_t copy_for_goal(self, int32_t goal, dict bodies, list starts) except -1
