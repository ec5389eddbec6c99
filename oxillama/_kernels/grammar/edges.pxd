"""Edges of automata under construction, as other kernels see them."""

from libc.stdint cimport int32_t

cdef enum:  # kinds of edges
    BYTES = 0
    TOKENS = 1
    CALLS = 2
    EPSILON = 3
    KINDS = 4

cdef enum:  # what an edge asks of a count and makes of it
    MORE = 1
    ENOUGH = 2
    COUNT_BITS = 12
    RESET = 0
    KEEP = 4
    NEXT = 8
    ONE = 12


cdef struct Edge:
    int32_t source, what, op, target


cdef struct List:
    # Edges; after `sort_edges`, those of key k are items[first[k]] ... items[first[k + 1] - 1].
    Edge* items
    int32_t* first
    int32_t n, room


cdef int add_edge(List* edges, Edge edge) except -1
cdef void free_edges(List* edges) noexcept
cdef int sort_edges(List* edges, int32_t n) except -1
