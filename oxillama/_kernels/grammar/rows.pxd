"""Rows of parser states, as other kernels see them."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.network cimport Network

cdef enum:
    DEAD = 0           # the parser state in which nothing can follow
    UNKNOWN = -1       # an entry that has not been computed yet


cdef struct Row:
    int32_t first      # of its entries
    int32_t columns    # of its shape


cdef class Rows:
    # The entry of a parser state and a byte is entries[row.first + columns[row.columns + byte]]. Bytes that the same
    # edges take share a column; no edge takes those of column 0.
    cdef Row* rows           # by parser state
    cdef int32_t* entries
    cdef uint8_t* columns    # (shapes, 256)
    cdef dict shapes         # by the labels of edges: the number of their shape and of its columns
    cdef int32_t* labels     # of the row being made
    cdef uint8_t* is_taken   # by label: whether it is among these
    cdef int32_t room, n_entries, entries_room, shapes_room, labels_room

    cdef Py_ssize_t add(self, int32_t state, Network net, const Item* items, int32_t n) except -1
    cdef bytes labels_of(self, Network net, const Item* items, int32_t n)
    cdef tuple new_shape(self, bytes labels, Network net)


cdef inline int32_t* entry(Rows rows, int32_t state, uint8_t byte) noexcept:
    """Where a byte leads: the number of a parser state, or UNKNOWN."""
    cdef const Row* row = &rows.rows[state]
    return rows.entries + row.first + rows.columns[row.columns + byte]
