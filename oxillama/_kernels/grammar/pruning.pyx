"""Automata to programs: the states that a piece's start leads to, numbered anew.

A state with nothing but one epsilon edge stands for the state that the edge leads to.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from oxillama._kernels.grammar.automata cimport Automata
from oxillama._kernels.grammar.edges cimport CALLS, EPSILON, KINDS, Edge, List
from oxillama._kernels.grammar.flags cimport set_flags
from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.network cimport UNIT, Edges, Program


cdef Program program_of(Automata automata, list starts):
    """The program of finished automata, sorted by `Automata.index`; the first of ``starts`` is the piece's."""
    cdef Pruning work = Pruning.__new__(Pruning)
    work.begin(automata, starts)
    work.find_aliases()
    work.number_states()
    return work.program()


cdef class Pruning:
    """The states of automata that stay. Only kernels make one."""

    cdef Automata of
    cdef int32_t n_kept
    cdef int32_t* start_of  # by subnetwork
    cdef int32_t* alias     # the state that stands for it; the block of these arrays begins here
    cdef int32_t* number    # the new number, -1: not reached
    cdef int32_t* order     # by new number

    def __dealloc__(self):
        free(self.start_of)
        free(self.alias)

    cdef int begin(self, Automata of, list starts) except -1:
        cdef Py_ssize_t room = <Py_ssize_t>of.n + 1
        cdef int32_t i
        self.of = of
        self.start_of = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>len(starts) + 1))
        self.alias = <int32_t*>grown(NULL, 12 * room)
        self.number, self.order = self.alias + room, self.alias + 2 * room
        for i in range(<int32_t>len(starts)):
            self.start_of[i] = starts[i]
        return 0

    cdef int find_aliases(self) noexcept:
        """For each state, the one it stands for: itself, unless all it has is one epsilon edge."""
        cdef int32_t q, i, kind, last, n
        cdef int32_t* alias = self.alias
        for q in range(self.of.n):
            alias[q] = q
            n = 0
            for kind in range(EPSILON):
                n += self.of.edges[kind].first[q + 1] - self.of.edges[kind].first[q]
            i = self.of.edges[EPSILON].first[q]
            if n == 0 and self.of.edges[EPSILON].first[q + 1] == i + 1 and not (
                self.of.final[q] or self.of.least[q] or self.of.most[q]
            ):
                alias[q] = self.of.edges[EPSILON].items[i].target
        for q in range(self.of.n):
            last, n = q, 0
            while alias[last] != last and n <= self.of.n:
                last = alias[last]
                n += 1
            i = q
            while alias[i] != i and i != last and n > 0:
                kind = alias[i]
                alias[i] = last
                i = kind
                n -= 1
        return 0

    cdef int number_states(self) noexcept:
        """Number the start and all that it leads to."""
        cdef int32_t i = 0, e, kind
        cdef const List* edges
        memset(self.number, 0xFF, 4 * <Py_ssize_t>self.of.n)
        self.take(self.start_of[0])
        while i < self.n_kept:  # grows while it is read
            for kind in range(KINDS):
                edges = &self.of.edges[kind]
                for e in range(edges.first[self.order[i]], edges.first[self.order[i] + 1]):
                    self.take(self.alias[edges.items[e].target])
                    if kind == CALLS and edges.items[e].what >= 0:
                        self.take(self.start_of[edges.items[e].what])
            i += 1
        return 0

    cdef inline void take(self, int32_t q) noexcept:
        if self.number[q] < 0:
            self.number[q] = self.n_kept
            self.order[self.n_kept] = q
            self.n_kept += 1

    cdef Program program(self):
        """The states that stay, with their edges."""
        cdef Program found = Program()
        cdef int32_t q, i, t, kind, what
        cdef const List* edges
        cdef Edge edge
        cdef Edges* to
        cdef int32_t[4] most
        cdef bytearray final = bytearray(self.n_kept)
        cdef uint8_t* is_final = final
        for kind in range(KINDS):
            most[kind] = self.of.edges[kind].n
        found.make_room(self.n_kept, most)
        found.n_states = self.n_kept
        for i in range(self.n_kept):
            q = self.order[i]
            found.least[i], found.most[i], found.slack[i] = self.of.least[q], self.of.most[q], self.of.slack[q]
            is_final[i] = self.of.final[q]
        for kind in range(KINDS):
            edges, to = &self.of.edges[kind], found.edges_of(kind)
            for i in range(self.n_kept):
                to.first[i], q = to.n, self.order[i]
                for t in range(edges.first[q], edges.first[q + 1]):
                    edge = edges.items[t]
                    what = edge.what
                    if kind == CALLS:
                        what = self.number[self.start_of[what]] if what >= 0 else UNIT - 1 - what
                    to.rows[3 * to.n], to.rows[3 * to.n + 1] = what, edge.op
                    to.rows[3 * to.n + 2] = self.number[self.alias[edge.target]]
                    to.n += 1
            to.first[self.n_kept], to.room = to.n, to.n + 1
            to.rows = <int32_t*>grown(to.rows, 12 * <Py_ssize_t>to.room)
        set_flags(found, is_final)
        found.label_bits = b"".join(self.of.labels)
        return found
