"""Rows of parser states: the next parser state for each byte, as far as it is known.

Nearly all bytes lead nowhere, the rest to few parser states. So a row has one entry for each set of bytes that the same
edges take, and one for all bytes that no edge takes. The shape of a row maps bytes to entries. It depends only on the
labels of the edges, and a grammar has few sets of labels, so rows share their shapes.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.network cimport BYTES, LABEL_BYTES, Network, takes


cdef class Rows:
    """The rows of all parser states of one table."""

    def __cinit__(self):
        self.shapes = {}

    def __dealloc__(self):
        free(self.rows)
        free(self.entries)
        free(self.columns)
        free(self.labels)
        free(self.is_taken)

    cdef Py_ssize_t add(self, int32_t state, Network net, const Item* items, int32_t n) except -1:
        """Makes the row of a parser state from its items, with unknown entries; returns the row's bytes of memory.
        """
        cdef bytes labels = self.labels_of(net, items, n)
        cdef object known = self.shapes.get(labels)
        cdef int32_t shape, width
        shape, width = known if known is not None else self.new_shape(labels, net)
        if state >= self.room:
            self.room = max(64, 2 * state)
            self.rows = <Row*>grown(self.rows, self.room * sizeof(Row))
        if self.n_entries + width > self.entries_room:
            self.entries_room = 2 * (256 + self.n_entries)
            self.entries = <int32_t*>grown(self.entries, 4 * <Py_ssize_t>self.entries_room)
        self.rows[state] = Row(self.n_entries, 256 * shape)
        memset(self.entries + self.n_entries, 0xFF, 4 * width)  # UNKNOWN
        self.entries[self.n_entries] = DEAD
        self.n_entries += width
        return sizeof(Row) + 4 * width + (0 if known is not None else 400 + len(labels))

    cdef bytes labels_of(self, Network net, const Item* items, int32_t n):
        """The labels of all edges of the items, each once."""
        cdef int32_t i, e, label, n_found = 0, room = 2 * (16 + net.n_labels)
        if net.n_labels >= self.labels_room:
            self.labels = <int32_t*>grown(self.labels, 4 * <Py_ssize_t>room)
            self.is_taken = <uint8_t*>grown(self.is_taken, room)
            memset(self.is_taken + self.labels_room, 0, room - self.labels_room)
            self.labels_room = room
        for i in range(n):
            for e in range(net.edges[BYTES].first[items[i].q], net.edges[BYTES].first[items[i].q + 1]):
                label = net.edges[BYTES].items[e].what
                if not self.is_taken[label]:
                    self.is_taken[label] = True
                    self.labels[n_found] = label
                    n_found += 1
        for i in range(n_found):
            self.is_taken[self.labels[i]] = False
        return (<const uint8_t*>self.labels)[:4 * n_found]

    cdef tuple new_shape(self, bytes labels, Network net):
        """The number of a new shape for these labels, and the number of its columns."""
        cdef int32_t shape = <int32_t>len(self.shapes)
        cdef const uint8_t* found = labels
        if shape == self.shapes_room:
            self.shapes_room = 2 * (8 + shape)
            self.columns = <uint8_t*>grown(self.columns, 256 * <Py_ssize_t>self.shapes_room)
        self.shapes[labels] = shape, write_columns(
            self.columns + 256 * <Py_ssize_t>shape, net.labels, <const int32_t*>found, <int32_t>(len(labels) // 4)
        )
        return self.shapes[labels]


cdef int32_t write_columns(uint8_t* columns, const uint8_t* labels, const int32_t* found, int32_t n) noexcept:
    """Numbers the sets of bytes that the same labels take; returns their count, with the set that no label takes."""
    cdef int32_t i, k, n_taken, column, n_before, width = 1
    cdef uint8_t[256] taken
    cdef int32_t[256] size, moved, number  # per column: its bytes, bytes that a label takes, the column of these
    memset(columns, 0, 256)
    size[0] = 256  # includes byte 255, which no label takes: so column 0 is never emptied
    for i in range(n):
        n_taken, n_before = bytes_of(labels + LABEL_BYTES * found[i], taken), width
        memset(moved, 0, 4 * n_before)
        for k in range(n_taken):
            moved[columns[taken[k]]] += 1
        for column in range(n_before):
            number[column] = column
            if 0 < moved[column] < size[column]:
                size[column] -= moved[column]
                number[column], size[width] = width, moved[column]
                width += 1
        for k in range(n_taken):
            columns[taken[k]] = <uint8_t>number[columns[taken[k]]]
    return width


cdef inline int32_t bytes_of(const uint8_t* label, uint8_t* out) noexcept:
    """Writes the bytes that a label takes to ``out``; returns their number."""
    cdef int32_t i, byte, n = 0
    for i in range(LABEL_BYTES):
        if label[i]:
            for byte in range(8 * i, 8 * i + 8):
                out[n] = <uint8_t>byte
                n += takes(label, 0, <uint8_t>byte)
    return n
