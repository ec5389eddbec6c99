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


cdef struct Shape:
    int32_t first, n   # its labels
    int32_t width      # how many columns it has


cdef struct Rows:
    # The entry of a parser state and a byte is entries[row.first + columns[row.columns + byte]]. Bytes that the same
    # edges take share a column; no edge takes those of column 0.
    Row* rows            # by parser state
    int32_t* entries
    Shape* shapes
    uint8_t* columns     # (shapes, 256)
    int32_t* labels      # of all shapes
    int32_t* table       # hash table of shapes by their labels, -1 where free
    int32_t* found       # the labels of the row being made
    int32_t* mark        # by label: ``generation`` if it is among these
    int32_t room, n_entries, entries_room, n_shapes, shapes_room, n_labels, labels_room, table_size
    int32_t n_found, marks_room, generation


cdef inline int32_t* entry(const Rows* rows, int32_t state, uint8_t byte) noexcept:
    """Where a byte leads: the number of a parser state, or UNKNOWN."""
    cdef const Row* row = &rows.rows[state]
    return rows.entries + row.first + rows.columns[row.columns + byte]


cdef inline bint are_alike(const Rows* rows, int32_t state, uint8_t a, uint8_t b) noexcept:
    """Whether the same edges take two bytes."""
    cdef const uint8_t* columns = rows.columns + rows.rows[state].columns
    return columns[a] == columns[b]


cdef inline int32_t last_alike(const Rows* rows, int32_t state, int32_t byte, int32_t most) noexcept:
    """The last byte, up to ``most``, until which the same edges take all bytes from one on."""
    cdef const uint8_t* columns = rows.columns + rows.rows[state].columns
    while byte < most and columns[byte + 1] == columns[byte]:
        byte += 1
    return byte


cdef int rows_alloc(Rows* rows) except -1
cdef void rows_free(Rows* rows) noexcept
cdef Py_ssize_t add_row(Rows* rows, int32_t state, Network net, const Item* items, int32_t n) except -1
