"""A grammar's recursive transition network (RTN), put together from pieces.

A piece is a `Program`: the states of some subnetworks. *Units* are subnetworks that are called by number and are built
when they are first called; then their pieces are appended. Numbers of states and labels never change.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from oxillama._kernels.grammar.memory cimport grown, sort_by


cdef class Program:
    """A compiled grammar, without a vocabulary; or a piece of one. Only a `Builder` makes a usable one.

    Its first state is the root's start. An edge reads ``what``: a label, a token set, a subnetwork (its start state, or
    `UNIT` plus the number of a unit), or nothing.

    Attributes:
        token_sets: the token terminals, by number.
        accepts_empty: whether the empty text matches.
        pieces: builds the subnetworks that are called by number; None without such calls, and in a piece of a
            program.
    """

    def __cinit__(self):
        self.token_sets = ()

    def __dealloc__(self):
        cdef int kind
        free(self.rtn)
        for kind in range(KINDS):
            free_edges(&self.edges[kind])

    cdef int make_room(self, int32_t n) except -1:
        """Makes room for ``n`` more states."""
        if self.n_states + n > self.states_room:
            self.states_room = self.n_states + n if self.n_states == 0 else 2 * (self.n_states + n)
            self.rtn = <State*>grown(self.rtn, self.states_room * sizeof(State))
        return 0

    cdef int index(self) except -1:
        """Sorts the edges by their sources."""
        cdef int kind
        for kind in range(KINDS):
            sort_edges(&self.edges[kind], self.n_states)
        return 0


cdef class Network(Program):
    """The pieces of a program that are built so far.

    Args:
        program: Program; it is copied, and so are its other pieces.
    """

    def __cinit__(self, Program program not None, *_arguments, **_named):
        self.program = program
        self.label_numbers = {}
        self.append(program, None)

    def __dealloc__(self):
        free(self.labels)
        free(self.unit_start)

    cdef Py_ssize_t held(self) noexcept:
        """Bytes of memory."""
        cdef Py_ssize_t n_edges = 0
        cdef int kind
        for kind in range(KINDS):
            n_edges += self.edges[kind].n
        return (sizeof(State) + 4 * KINDS) * <Py_ssize_t>self.n_states + sizeof(Edge) * n_edges + \
            LABEL_BYTES * self.n_labels + 4 * self.n_units

    cdef int append_built(self) except -1:
        """Appends the pieces that were built since the last call."""
        cdef list built = self.program.pieces.built
        while self.n_pieces < len(built):
            unit, piece = built[self.n_pieces]
            self.append(piece, unit)
            self.n_pieces += 1
        return 0

    cdef int append(self, object piece, object unit) except -1:
        """Appends the piece of a unit; None: the first piece of the program."""
        cdef Program of
        cdef List* into
        cdef Edge edge
        cdef int32_t base = self.n_states, n, i, k, n_edges
        if type(piece) is not Program or (<Program>piece).n_states == 0:
            raise TypeError(f"program: expected what a Builder made, got {type(piece)}")
        of = <Program>piece
        n = of.n_states
        if n > MOST_STATES - base or len(of.token_sets) > len(self.program.token_sets):
            raise ValueError(f"program: expected at most 2**29 states, and no token sets of units, got {n} more states "
                             f"and {of.token_sets}")
        self.make_room(n)
        memcpy(self.rtn + base, of.rtn, n * sizeof(State))
        numbers = [self.take_label(of.label_bits[i:i + LABEL_BYTES])
                   for i in range(0, len(of.label_bits), LABEL_BYTES)]
        for k in range(KINDS):
            into, n_edges = &self.edges[k], self.edges[k].n
            into.first = <int32_t*>grown(into.first, 4 * (<Py_ssize_t>self.states_room + 1))
            for i in range(of.edges[k].n):
                edge = of.edges[k].items[i]
                if k == BYTES:
                    edge.what = numbers[edge.what]
                elif k == CALLS and edge.what < UNIT:
                    edge.what += base
                add_edge(into, Edge(edge.source + base, edge.what, edge.op, edge.target + base))
            for i in range(n + 1):
                into.first[base + i] = n_edges + of.edges[k].first[i]
        self.n_states += n
        if unit is not None:
            self.name_unit(unit, base)
        return 0

    cdef int name_unit(self, int32_t unit, int32_t start) except -1:
        cdef int32_t i, room
        if unit >= self.n_units:
            room = max(64, 2 * unit)
            self.unit_start = <int32_t*>grown(self.unit_start, 4 * <Py_ssize_t>room)
            for i in range(self.n_units, room):
                self.unit_start[i] = -1
            self.n_units = room
        self.unit_start[unit] = start
        return 0

    cdef int32_t unit_of(self, int32_t q) noexcept:
        """The unit of a state, if every piece begins with its start; -1 for the first piece."""
        cdef int32_t i, found = -1, start = 0
        for i in range(self.n_units):
            if start < self.unit_start[i] <= q:
                found, start = i, self.unit_start[i]
        return found

    cdef int32_t take_label(self, object bits) except -1:
        """The number of a label, given by its bits."""
        cdef object known = self.label_numbers.get(bits)
        if known is not None:
            return known
        if self.n_labels == self.labels_room:
            self.labels = <uint8_t*>grown(self.labels, 2 * LABEL_BYTES * (16 + <Py_ssize_t>self.n_labels))
            self.labels_room = 2 * (16 + self.n_labels)
        memcpy(self.labels + LABEL_BYTES * self.n_labels, <const uint8_t*><bytes>bits, LABEL_BYTES)
        self.label_numbers[bits] = self.n_labels
        self.n_labels += 1
        return self.n_labels - 1


# ---------------------------------------------------------------------- edges


cdef int add_edge(List* edges, Edge edge) except -1:
    if edges.n == edges.room:
        edges.items = <Edge*>grown(edges.items, max(64, 2 * <Py_ssize_t>edges.room) * sizeof(Edge))
        edges.room = max(64, 2 * edges.room)
    edges.items[edges.n] = edge
    edges.n += 1
    return 0


cdef void free_edges(List* edges) noexcept:
    free(edges.items)
    free(edges.first)


cdef int sort_edges(List* edges, int32_t n) except -1:
    """Sorts edges by their sources, which are below ``n``; the sort is stable."""
    cdef Edge* unsorted = edges.items
    cdef int32_t* order = <int32_t*>grown(NULL, 8 * (<Py_ssize_t>edges.n + 1))
    cdef int32_t* sources = order + edges.n
    cdef int32_t i
    try:
        edges.first = <int32_t*>grown(edges.first, 4 * (<Py_ssize_t>n + 2))
        for i in range(edges.n):
            sources[i] = unsorted[i].source
        sort_by(sources, edges.n, n, edges.first, order)
        edges.items = <Edge*>grown(NULL, sizeof(Edge) * (<Py_ssize_t>edges.n + 1))
        edges.room = edges.n
        for i in range(edges.n):
            edges.items[i] = unsorted[order[i]]
        free(unsorted)
        return 0
    finally:
        free(order)
