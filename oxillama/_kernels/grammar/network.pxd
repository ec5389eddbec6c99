"""Declarations of network.pyx: the recursive transition network of a grammar."""

from libc.stdint cimport int32_t, uint8_t

cdef enum:
    UNIT = 1 << 29     # a call of UNIT + u calls unit u, which may not be built yet
    MOST_STATES = 1 << 29
    LABEL_BYTES = 32   # bytes of a label: a bit for each byte that it accepts

cdef enum:  # kinds of edges
    BYTES = 0
    TOKENS = 1
    CALLS = 2
    EPSILON = 3
    KINDS = 4

cdef enum:  # an edge's condition on a count, and the new count
    MORE = 1
    ENOUGH = 2
    COUNT_BITS = 12
    RESET = 0
    KEEP = 4
    NEXT = 8
    ONE = 12

cdef enum:  # flags of states
    FINAL = 1
    CONSUMES = 2
    PURE_FINAL = 4
    ENDS_ALWAYS = 8
    ENDS_IF_ENOUGH = 16


cdef struct Edge:
    int32_t source, what, op, target


cdef struct List:
    # Edges; after `sort_edges`, edges of key k are items[first[k]] ... items[first[k + 1] - 1].
    Edge* items
    int32_t* first
    int32_t n, room


cdef struct State:
    # Bounds of the state's count, most = -1: no upper bound; and how far the tightest ``most`` of the states that
    # carry the same count lies below this state's.
    int32_t flags, least, most, slack


cdef class Program:
    cdef readonly int32_t n_states
    cdef int32_t states_room
    cdef State* rtn
    cdef List[KINDS] edges
    cdef bytes label_bits     # bits of all labels, concatenated
    cdef readonly tuple token_sets  # type: tuple[Tokens, ...]
    cdef readonly bint accepts_empty
    cdef readonly object pieces     # type: Any

    cdef int make_room(self, int32_t n) except -1
    cdef int index(self) except -1


cdef class Network(Program):
    cdef int32_t n_labels, labels_room, n_pieces
    cdef uint8_t* labels      # (labels, LABEL_BYTES)
    cdef int32_t* unit_start  # start state by unit, -1: not built
    cdef int32_t n_units
    cdef Program program
    cdef dict label_numbers   # bits of a label -> its number

    cdef int append(self, object piece, object unit) except -1
    cdef int append_built(self) except -1
    cdef Py_ssize_t held(self) noexcept
    cdef int32_t unit_of(self, int32_t q) noexcept
    cdef int name_unit(self, int32_t unit, int32_t start) except -1
    cdef int32_t take_label(self, object bits) except -1


cdef int add_edge(List* edges, Edge edge) except -1
cdef void free_edges(List* edges) noexcept
cdef int sort_edges(List* edges, int32_t n) except -1


cdef inline bint takes(const uint8_t* labels, int32_t label, uint8_t byte) noexcept:
    return labels[LABEL_BYTES * label + (byte >> 3)] >> (byte & 7) & 1
