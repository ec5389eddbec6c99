"""Rows of parser states: where each byte leads, as far as that is known.

Most bytes lead nowhere, and the others to few places. So a row has one entry for each set of bytes that the same
edges take, and one for all that no edge takes. Which byte has which entry is the row's shape. It depends on the labels
of the edges alone, and few sets of labels occur in a grammar, so rows share their shapes.
"""

from libc.stdint cimport INT32_MAX, int32_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.memory cimport grown, mixed
from oxillama._kernels.grammar.network cimport LABEL_BYTES, Network, takes


cdef int rows_alloc(Rows* rows) except -1:
    memset(rows, 0, sizeof(Rows))
    rehash(rows, 64)
    return 0


cdef void rows_free(Rows* rows) noexcept:
    free(rows.rows)
    free(rows.entries)
    free(rows.shapes)
    free(rows.columns)
    free(rows.labels)
    free(rows.table)
    free(rows.found)
    free(rows.mark)


cdef Py_ssize_t add_row(Rows* rows, int32_t state, Network net, const Item* items, int32_t n) except -1:
    """Make the row of a parser state of some items, whose edges have not been followed; returns the bytes it takes."""
    cdef int32_t known = rows.n_shapes, shape, width
    find_labels(rows, net, items, n)
    shape = find_shape(rows, net.labels)
    width = rows.shapes[shape].width
    if state >= rows.room:
        rows.rows = <Row*>grown(rows.rows, max(64, 2 * <Py_ssize_t>state) * sizeof(Row))
        rows.room = max(64, 2 * state)
    if rows.n_entries + width > rows.entries_room:
        rows.entries = <int32_t*>grown(rows.entries, 8 * (256 + <Py_ssize_t>rows.n_entries))
        rows.entries_room = 2 * (256 + rows.n_entries)
    rows.rows[state] = Row(rows.n_entries, 256 * shape)
    memset(rows.entries + rows.n_entries, 0xFF, 4 * width)  # UNKNOWN
    rows.entries[rows.n_entries] = DEAD
    rows.n_entries += width
    return sizeof(Row) + 4 * width + (256 + sizeof(Shape) + 8 + 4 * rows.n_found if shape == known else 0)


cdef int find_labels(Rows* rows, Network net, const Item* items, int32_t n) except -1:
    """Note the labels of all items' edges, each once."""
    cdef int32_t i, e, label, room = 2 * (16 + net.n_labels)
    if net.n_labels >= rows.marks_room:
        rows.found = <int32_t*>grown(rows.found, 4 * <Py_ssize_t>room)
        rows.mark = <int32_t*>grown(rows.mark, 4 * <Py_ssize_t>room)
        memset(rows.mark + rows.marks_room, 0, 4 * <Py_ssize_t>(room - rows.marks_room))
        rows.marks_room = room
    if rows.generation == INT32_MAX:  # before the marks of an earlier round count again
        memset(rows.mark, 0, 4 * <Py_ssize_t>rows.marks_room)
        rows.generation = 0
    rows.generation += 1
    rows.n_found = 0
    for i in range(n):
        for e in range(net.bytes.first[items[i].q], net.bytes.first[items[i].q + 1]):
            label = net.bytes.rows[3 * e]
            if rows.mark[label] != rows.generation:
                rows.mark[label] = rows.generation
                rows.found[rows.n_found] = label
                rows.n_found += 1
    return 0


cdef int32_t find_shape(Rows* rows, const uint8_t* labels) except -1:
    """The number of the shape of the labels that were found."""
    cdef int32_t i, n = rows.n_found
    cdef uint64_t slot = hashed(rows.found, n) & (rows.table_size - 1)
    while rows.table[slot] >= 0:
        i = rows.table[slot]
        if rows.shapes[i].n == n and memcmp(rows.labels + rows.shapes[i].first, rows.found, 4 * n) == 0:
            return i
        slot = (slot + 1) & (rows.table_size - 1)
    i = rows.n_shapes
    if i == rows.shapes_room:
        rows.columns = <uint8_t*>grown(rows.columns, 512 * (8 + <Py_ssize_t>i))
        rows.shapes = <Shape*>grown(rows.shapes, 2 * (8 + <Py_ssize_t>i) * sizeof(Shape))
        rows.shapes_room = 2 * (8 + i)
    if rows.n_labels + n >= rows.labels_room:  # there is room even for none
        rows.labels = <int32_t*>grown(rows.labels, 8 * (32 + n + <Py_ssize_t>rows.n_labels))
        rows.labels_room = 2 * (32 + n + rows.n_labels)
    memcpy(rows.labels + rows.n_labels, rows.found, 4 * n)
    rows.shapes[i] = Shape(rows.n_labels, n, write_columns(rows.columns + 256 * <Py_ssize_t>i, labels, rows.found, n))
    rows.n_labels += n
    rows.table[slot] = i
    rows.n_shapes += 1
    if 2 * rows.n_shapes > rows.table_size:
        rehash(rows, 2 * rows.table_size)
    return i


cdef int32_t write_columns(uint8_t* columns, const uint8_t* labels, const int32_t* found, int32_t n) noexcept:
    """Number the sets of bytes that the same labels take; returns how many there are, that of no label included."""
    cdef int32_t i, k, n_taken, n_touched, column, width = 1
    cdef uint8_t[256] taken
    cdef int32_t[256] size, moved, number, touched  # of a column: its bytes, those that a label takes, where these go
    memset(columns, 0, 256)
    memset(moved, 0, 4 * 256)
    size[0] = 256  # with byte 255, which no label takes: so the column stays
    for i in range(n):
        n_taken = bytes_of(labels + LABEL_BYTES * found[i], taken)
        n_touched = 0
        for k in range(n_taken):
            column = columns[taken[k]]
            if moved[column] == 0:
                touched[n_touched] = column
                n_touched += 1
            moved[column] += 1
        for k in range(n_touched):
            column = touched[k]
            number[column] = column
            if moved[column] < size[column]:
                size[column] -= moved[column]
                number[column], size[width] = width, moved[column]
                width += 1
            moved[column] = 0
        for k in range(n_taken):
            columns[taken[k]] = <uint8_t>number[columns[taken[k]]]
    return width


cdef inline int32_t bytes_of(const uint8_t* label, uint8_t* out) noexcept:
    """The bytes that a label takes; returns how many."""
    cdef int32_t i, byte, n = 0
    for i in range(LABEL_BYTES):
        if label[i]:
            for byte in range(8 * i, 8 * i + 8):
                out[n] = <uint8_t>byte
                n += takes(label, 0, <uint8_t>byte)
    return n


cdef int rehash(Rows* rows, int32_t size) except -1:
    cdef int32_t i
    cdef uint64_t slot
    rows.table = <int32_t*>grown(rows.table, 4 * <Py_ssize_t>size)
    rows.table_size = size
    memset(rows.table, 0xFF, 4 * <Py_ssize_t>size)
    for i in range(rows.n_shapes):
        slot = hashed(rows.labels + rows.shapes[i].first, rows.shapes[i].n) & (size - 1)
        while rows.table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        rows.table[slot] = i
    return 0


cdef inline uint64_t hashed(const int32_t* labels, int32_t n) noexcept:
    cdef uint64_t h = 0
    cdef int32_t i
    for i in range(n):
        h = mixed(h + <uint64_t>labels[i] + 1)
    return h
