"""The recursive transition network of a grammar, as other kernels see it."""

from libc.stdint cimport int32_t, uint8_t

cdef enum:
    UNIT = 1 << 29     # a call of this plus u calls unit u, which may not be built yet
    MOST_STATES = 1 << 29
    LABEL_BYTES = 32   # of a label: a bit for each byte that it takes


cdef struct Edges:
    # (what, op, target): those of state q are rows first[q] ... first[q + 1] - 1.
    int32_t n, room
    int32_t* rows
    int32_t* first


cdef class Program:
    cdef readonly int32_t n_states
    cdef int32_t states_room
    cdef int32_t* flags
    cdef int32_t* least
    cdef int32_t* most
    cdef int32_t* slack
    cdef Edges bytes, tokens, calls, epsilon
    cdef bytes label_bits     # of all labels, one after another
    cdef readonly tuple token_sets
    cdef readonly bint accepts_empty
    cdef readonly object pieces

    cdef Edges* edges_of(self, int kind) noexcept
    cdef int make_room(self, int32_t n, const int32_t* n_edges) except -1


cdef class Network(Program):
    cdef int32_t n_labels, labels_room, n_pieces
    cdef uint8_t* labels      # (labels, LABEL_BYTES)
    cdef int32_t* unit_start  # start state by unit, -1: not built
    cdef int32_t n_units
    cdef Program program
    cdef dict label_numbers   # by their bits

    cdef int append(self, object piece, object unit) except -1
    cdef int catch_up(self) except -1
    cdef Py_ssize_t held(self) noexcept
    cdef int32_t unit_of(self, int32_t q) noexcept
    cdef int name_unit(self, int32_t unit, int32_t start) except -1
    cdef int32_t take_label(self, object bits) except -1


cdef inline bint takes(const uint8_t* labels, int32_t label, uint8_t byte) noexcept:
    return labels[LABEL_BYTES * label + (byte >> 3)] >> (byte & 7) & 1
