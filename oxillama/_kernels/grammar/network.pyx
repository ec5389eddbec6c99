"""A grammar's recursive transition network (RTN), put together from pieces.

A piece is a `Program`: the states of some subnetworks. Others, *units*, are called by number and may be built when
they are first called; the piece of one is then appended. Numbers of states and labels never change.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from oxillama._kernels.grammar.memory cimport grown


cdef class Program:
    """A compiled grammar, without a vocabulary; or a piece of one. Only a `Builder` makes one that can be used.

    Its first state is the root's start. Each state has flags (see `flags.pxd`), bounds of its count, ``least`` and
    ``most``, and ``slack``: by how much the tightest ``most`` of the states that carry the same count lies below its
    own. An edge is (what, op, target): ``what`` is a label, a token set, a subnetwork (its start state, or `UNIT` plus
    the number of a unit), or nothing.

    Attributes
    ----------
    token_sets : token terminals, by their numbers.
    accepts_empty : whether the empty text matches.
    pieces : builds the subnetworks that are called by number; None where there are none, and for a piece of a program.
    """

    def __cinit__(self):
        self.token_sets = ()

    def __dealloc__(self):
        cdef int kind
        free(self.flags)
        free(self.least)
        free(self.most)
        free(self.slack)
        for kind in range(4):
            free(self.edges_of(kind).rows)
            free(self.edges_of(kind).first)

    cdef Edges* edges_of(self, int kind) noexcept:
        if kind == 0:
            return &self.bytes
        if kind == 1:
            return &self.tokens
        return &self.calls if kind == 2 else &self.epsilon

    cdef int make_room(self, int32_t n, const int32_t* n_edges) except -1:
        """Room for so many more states, and edges of each kind."""
        cdef int32_t k
        cdef Edges* into
        if self.n_states + n > self.states_room:
            self.states_room = self.n_states + n if self.n_states == 0 else 2 * (self.n_states + n)
            self.flags = <int32_t*>grown(self.flags, 4 * <Py_ssize_t>self.states_room)
            self.least = <int32_t*>grown(self.least, 4 * <Py_ssize_t>self.states_room)
            self.most = <int32_t*>grown(self.most, 4 * <Py_ssize_t>self.states_room)
            self.slack = <int32_t*>grown(self.slack, 4 * <Py_ssize_t>self.states_room)
            for k in range(4):
                into = self.edges_of(k)
                into.first = <int32_t*>grown(into.first, 4 * (<Py_ssize_t>self.states_room + 1))
        for k in range(4):
            into = self.edges_of(k)
            if into.n + n_edges[k] > into.room or into.rows == NULL:
                into.room = 1 + (n_edges[k] if into.n == 0 else 2 * (into.n + n_edges[k]))
                into.rows = <int32_t*>grown(into.rows, 12 * <Py_ssize_t>into.room)
        return 0


cdef class Network(Program):
    """The pieces of a program so far.

    Parameters
    ----------
    program : Program; it is copied, and so are its other pieces.
    """

    def __cinit__(self, Program program not None):
        self.program = program
        self.label_numbers = {}
        self.append(program, None)

    def __dealloc__(self):
        free(self.labels)
        free(self.unit_start)

    cdef Py_ssize_t held(self) noexcept:
        """Bytes of memory."""
        cdef Py_ssize_t edges = self.bytes.n + self.tokens.n + self.calls.n + self.epsilon.n
        return 32 * <Py_ssize_t>self.n_states + 12 * edges + LABEL_BYTES * self.n_labels + 4 * self.n_units

    cdef int catch_up(self) except -1:
        """Append the pieces that were built since; 1 if there were any."""
        cdef list built = self.program.pieces.built
        cdef int found = 0
        while self.n_pieces < len(built):
            unit, piece = built[self.n_pieces]
            self.append(piece, unit)
            self.n_pieces += 1
            found = 1
        return found

    cdef int append(self, object piece, object unit) except -1:
        """Append the piece of a unit; None: that of the whole program."""
        cdef Program of
        cdef Edges* into
        cdef const Edges* edges
        cdef int32_t base = self.n_states, n, i, k, number
        cdef int32_t[4] n_edges
        if type(piece) is not Program or (<Program>piece).n_states == 0:
            raise TypeError(f"program: expected what a Builder made, got {type(piece)}")
        of = <Program>piece
        n = of.n_states
        if n > MOST_STATES - base or len(of.token_sets) > len(self.program.token_sets):
            raise ValueError(f"program: expected at most 2**29 states, and no token sets of units, got {n} more states "
                             f"and {of.token_sets}")
        for k in range(4):
            n_edges[k] = of.edges_of(k).n
        self.make_room(n, n_edges)
        numbers = [self.take_label(of.label_bits[i:i + LABEL_BYTES])
                   for i in range(0, len(of.label_bits), LABEL_BYTES)]
        memcpy(self.flags + base, of.flags, 4 * <Py_ssize_t>n)
        memcpy(self.least + base, of.least, 4 * <Py_ssize_t>n)
        memcpy(self.most + base, of.most, 4 * <Py_ssize_t>n)
        memcpy(self.slack + base, of.slack, 4 * <Py_ssize_t>n)
        for k in range(4):
            into, edges = self.edges_of(k), of.edges_of(k)
            for i in range(edges.n):
                number = edges.rows[3 * i]
                if k == 0:
                    number = <int32_t>numbers[number]
                elif k == 2 and number < UNIT:
                    number += base
                into.rows[3 * (into.n + i)] = number
                into.rows[3 * (into.n + i) + 1] = edges.rows[3 * i + 1]
                into.rows[3 * (into.n + i) + 2] = edges.rows[3 * i + 2] + base
            for i in range(n + 1):
                into.first[base + i] = into.n + edges.first[i]
            into.n += edges.n
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
        """The unit of a state, if every piece begins with its start; -1 in the first piece."""
        cdef int32_t i, found = -1, start = 0
        for i in range(self.n_units):
            if start < self.unit_start[i] <= q:
                found, start = i, self.unit_start[i]
        return found

    cdef int32_t take_label(self, object bits) except -1:
        """The number of a label."""
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
