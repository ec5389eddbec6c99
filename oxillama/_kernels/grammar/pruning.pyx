"""Automata to programs: the states that texts can pass through, numbered anew.

A state stays if its start leads to it and it leads to an end of its subnetwork. A state with nothing but one epsilon
edge stands for the state that the edge leads to.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from oxillama._kernels.grammar.automata cimport Automata
from oxillama._kernels.grammar.edges cimport (
    BYTES, CALLS, ENOUGH, EPSILON, KINDS, Edge, List, copy_sorted, free_edges,
)
from oxillama._kernels.grammar.flags cimport set_flags
from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.network cimport UNIT, Edges, Program
from oxillama._kernels.grammar.registers cimport ARGUMENT, FEWER, operation


cdef Program pruned(Automata automata, list starts, list gates, bint accepts_empty):
    """The program of finished automata; None if no text passes.

    Parameters
    ----------
    automata : sorted by `Automata.index`
    starts : the start states of the subnetworks, of which the first is the piece's
    gates : of each `Distinct`: (marked subnetworks, node, whether all is marked, gates, states from which more may
        come)
    accepts_empty : the program may be a start that leads nowhere
    """
    cdef Pruning work = Pruning.__new__(Pruning)
    work.begin(automata, starts, gates)
    work.mark_live()
    if not work.live[work.start_of[0]] and not accepts_empty:
        return None
    work.bound_marks()
    work.find_aliases()
    work.number_states()
    return work.program()


cdef class Pruning:
    """The states of automata that stay. Only kernels make one."""

    cdef Automata of
    cdef list gates
    cdef int32_t n_starts, n_kept
    cdef int32_t* start_of  # by subnetwork
    cdef uint8_t* live      # whether the end of the subnetwork can be reached
    cdef uint8_t* counts    # whether x of x{m,n} can be read
    cdef uint8_t* gated     # whether the end of a `Distinct` is closed, as too few members are live
    cdef int32_t* alias     # the state that stands for it; the block of these arrays begins here
    cdef int32_t* number    # the new number, -1: not reached
    cdef int32_t* order     # by new number
    cdef int32_t* todo
    cdef int32_t n_todo

    def __dealloc__(self):
        free(self.start_of)
        free(self.alias)

    cdef int begin(self, Automata of, list starts, list gates) except -1:
        cdef Py_ssize_t room = <Py_ssize_t>of.n + 1
        cdef int32_t i
        self.of, self.gates, self.n_starts = of, gates, <int32_t>len(starts)
        self.start_of = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>self.n_starts + 1))
        self.alias = <int32_t*>grown(NULL, (4 * 4 + 3) * room)
        self.number, self.order, self.todo = self.alias + room, self.alias + 2 * room, self.alias + 3 * room
        self.live = <uint8_t*>(self.alias + 4 * room)
        self.counts, self.gated = self.live + room, self.live + 2 * room
        memset(self.live, 0, 3 * room)
        for i in range(self.n_starts):
            self.start_of[i] = starts[i]
        return 0

    # ------------------------------------------------------------------ from the ends

    cdef int mark_live(self) except -1:
        cdef List[4] into   # edges by target
        cdef List callers   # calls by callee
        cdef int32_t* callee_of = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>self.of.n + 1))
        cdef int32_t q, i, kind
        cdef Edge edge
        memset(into, 0, sizeof(into))
        memset(&callers, 0, sizeof(List))
        try:
            for kind in range(KINDS):
                copy_sorted(&self.of.edges[kind], &into[kind], self.of.n, False)
            copy_sorted(&self.of.edges[CALLS], &callers, self.n_starts, True)
            for q in range(self.of.n):
                callee_of[q] = -1
            for i in range(self.n_starts):
                callee_of[self.start_of[i]] = i
            self.begin_with_ends()
            while self.n_todo or self.open_gates():
                self.n_todo -= 1
                q = self.todo[self.n_todo]
                for kind in range(KINDS):
                    for i in range(into[kind].first[q], into[kind].first[q + 1]):
                        edge = into[kind].items[i]
                        if self.gated[edge.source] or not self.is_passable(kind, &edge):
                            continue
                        if edge.op & ENOUGH and self.of.least[edge.source] and not self.counts[edge.source]:
                            continue
                        self.enliven(edge.source)
                if callee_of[q] < 0:
                    continue
                for i in range(callers.first[callee_of[q]], callers.first[callee_of[q] + 1]):
                    edge = callers.items[i]
                    self.counts[edge.source] = 1
                    if self.live[edge.target] or self.goes_on(edge.source):
                        self.enliven(edge.source)
        finally:
            free(callee_of)
            for kind in range(KINDS):
                free_edges(&into[kind])
            free_edges(&callers)
        return 0

    cdef int begin_with_ends(self) except -1:
        cdef List* calls = &self.of.edges[CALLS]
        cdef int32_t q, i
        for q in range(self.of.n):
            self.counts[q] = self.of.edges[BYTES].first[q + 1] > self.of.edges[BYTES].first[q]
            if self.of.final[q]:
                self.enliven(q)
        for i in range(calls.n):
            if calls.items[i].what < 0:  # a unit
                self.counts[calls.items[i].source] = 1
        for _marked, _node, _all_marked, gates, _ends in self.gates:
            for q in gates:
                self.gated[q] = 1
        return 0

    cdef inline void enliven(self, int32_t q) noexcept:
        if not self.live[q]:
            self.live[q] = 1
            self.todo[self.n_todo] = q
            self.n_todo += 1

    cdef inline bint is_passable(self, int kind, const Edge* edge) noexcept:
        """Whether a text can go along an edge."""
        return self.live[edge.target] and (
            kind != CALLS or edge.what < 0 or self.live[self.start_of[edge.what]]
        )

    cdef bint goes_on(self, int32_t q) noexcept:
        """Whether an epsilon edge leads to where the end can be reached."""
        cdef const List* epsilon = &self.of.edges[EPSILON]
        cdef int32_t i
        for i in range(epsilon.first[q], epsilon.first[q + 1]):
            if self.live[epsilon.items[i].target]:
                return True
        return False

    # ------------------------------------------------------------------ members that are told apart

    cdef bint open_gates(self) except -1:
        """Make the ends of `Distinct` nodes live whose members suffice; whether there are any."""
        cdef int32_t q
        for marked, node, all_marked, gates, _ends in self.gates:
            alive = {mark for mark, what in marked.items() if self.is_writable(what)}
            if not alive.issuperset(range(node.marks)) or (all_marked and len(alive) < node.least):
                continue
            for q in gates:
                if self.gated[q]:
                    self.gated[q] = 0
                    if self.goes_on(q):
                        self.enliven(q)
        return self.n_todo > 0

    cdef int bound_marks(self) except -1:
        """Have no separator follow when all members that can be written have come."""
        cdef List* epsilon = &self.of.edges[EPSILON]
        cdef int32_t q, i, n_live, argument
        for marked, _node, all_marked, _gates, ends in self.gates:
            if not all_marked:
                continue
            n_live = sum([self.is_writable(what) for what in marked.values()])
            for q in ends:
                for i in range(epsilon.first[q], epsilon.first[q + 1]):
                    argument = epsilon.items[i].op >> ARGUMENT
                    if epsilon.items[i].op == operation(FEWER, argument):
                        epsilon.items[i].op = operation(FEWER, min(argument, n_live))
        return 0

    cdef inline bint is_writable(self, int32_t what) noexcept:
        """Whether some text belongs to a subnetwork or a unit."""
        return what < 0 or self.live[self.start_of[what]]

    # ------------------------------------------------------------------ from the starts

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
                    if self.is_passable(kind, &edges.items[e]):
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
                    if not self.is_passable(kind, &edge):
                        continue
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
