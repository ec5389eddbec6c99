"""Declarations of rows.pyx: the next parser states by bytes."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.network cimport Network

cdef enum:
    DEAD = 0           # the parser state that nothing can follow
    UNKNOWN = -1       # an entry that is not computed yet


cdef struct Row:
    int32_t first      # first of its entries
    int32_t columns    # first of its columns


cdef class Rows:
    # The entry of a parser state and a byte is entries[row.first + columns[row.columns + byte]]. Bytes that the same
    # edges take share a column; column 0 has the bytes that no edge takes.
    cdef Row* rows           # (parser states)
    cdef int32_t* entries
    cdef uint8_t* columns    # (shapes, 256)
    cdef dict shapes         # labels of edges -> (number of the shape, number of its columns)
    cdef int32_t* labels     # labels of the row being made
    cdef uint8_t* is_taken   # (labels): whether the label is among these
    cdef int32_t room, n_entries, entries_room, shapes_room, labels_room

    cdef Py_ssize_t add(self, int32_t state, Network net, const Item* items, int32_t n) except -1
    cdef bytes labels_of(self, Network net, const Item* items, int32_t n)
    cdef tuple new_shape(self, bytes labels, Network net)


cdef inline int32_t* entry(Rows rows, int32_t state, uint8_t byte) noexcept:
    """The entry of a byte: the number of the next parser state, or UNKNOWN."""
    cdef const Row* row = &rows.rows[state]
    return rows.entries + row.first + rows.columns[row.columns + byte]
