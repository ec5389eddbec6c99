"""Byte automata under construction: states, and edges from state to state.

The operation of an edge says what it asks of a count (ENOUGH: it is at least the source's least; MORE: what it becomes
is at most the target's most) and what it makes of it (RESET, KEEP, NEXT, ONE).
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free

from oxillama._kernels.grammar.edges cimport (
    CALLS, COUNT_BITS, ENOUGH, EPSILON, KINDS, MORE, NEXT, ONE, RESET, Edge, add_edge, free_edges,
    sort_edges,
)
from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.registers cimport REGISTER

from oxillama.errors import GrammarError


cdef class Automata:
    """States and edges, which are numbered in the order in which they were added."""

    def __cinit__(self):
        self.labels = {}

    def __dealloc__(self):
        cdef int kind
        for kind in range(KINDS):
            free_edges(&self.edges[kind])
        free(self.least)
        free(self.most)
        free(self.slack)
        free(self.final)

    cdef int32_t new(self) except -1:
        cdef int32_t room
        if self.n >= self.most_states:
            raise GrammarError(f"grammar: expected at most {self.most_states} states, got more")
        if self.n == self.room:
            room = max(64, 2 * self.room)
            self.least = <int32_t*>grown(self.least, 4 * <Py_ssize_t>room)
            self.most = <int32_t*>grown(self.most, 4 * <Py_ssize_t>room)
            self.slack = <int32_t*>grown(self.slack, 4 * <Py_ssize_t>room)
            self.final = <uint8_t*>grown(self.final, room)
            self.room = room
        self.least[self.n] = self.most[self.n] = self.slack[self.n] = 0
        self.final[self.n] = 0
        self.n += 1
        return self.n - 1

    cdef int add(self, int kind, int32_t source, int32_t what, int32_t op, int32_t target) except -1:
        return add_edge(&self.edges[kind], Edge(source, what, op, target))

    cdef int32_t label(self, object bits) except -1:
        """The number of a set of bytes."""
        found = self.labels.get(bits)
        if found is None:
            found = self.labels[bits] = len(self.labels)
        return found

    cdef int32_t label_of(self, const uint8_t* taken) except -1:
        """The same of 256 bits, the lowest first."""
        return self.label(int.from_bytes(taken[:32], "little"))

    cdef int index(self) except -1:
        """Sort the edges by their sources."""
        cdef int kind
        for kind in range(KINDS):
            sort_edges(&self.edges[kind], self.n)
        return 0

    cdef int32_t nonempty(self, int32_t start) except -1:
        """A new start state without epsilon edges: it has the edges of all states that they lead to."""
        cdef int32_t fresh = self.new(), q, i, kind, count
        cdef Edge edge
        cdef set seen = {start}
        cdef list todo = [start]
        while todo:
            q = todo.pop()
            for kind in range(EPSILON):
                for i in range(self.edges[kind].first[q], self.edges[kind].first[q + 1]):
                    edge = self.edges[kind].items[i]
                    count = ONE if edge.op & COUNT_BITS == NEXT else RESET
                    op = edge.op if edge.op & REGISTER else edge.op & MORE | count
                    self.add(kind, fresh, edge.what, op, edge.target)
            for i in range(self.edges[EPSILON].first[q], self.edges[EPSILON].first[q + 1]):
                edge = self.edges[EPSILON].items[i]
                if (not edge.op & ENOUGH or self.least[q] == 0) and edge.target not in seen:
                    seen.add(edge.target)
                    todo.append(edge.target)
        return fresh

    cdef int without_left_recursion(self, list starts) except -1:
        """Rewrite the subnetworks that begin with a call of themselves; there are hardly ever any."""
        cdef int32_t q, kind, i
        cdef Edge edge
        cdef list graph = [], states
        cdef bint local = False
        for start in starts:
            q = start
            begins = [
                self.edges[CALLS].items[i].what
                for i in range(self.edges[CALLS].first[q], self.edges[CALLS].first[q + 1])
                if self.edges[CALLS].items[i].what >= 0
            ]
            graph.append(begins)
            local = local or len(begins) > 0
        if not local:
            return 0
        # Here, because the package of this module imports the kernels.
        from oxillama.grammar.left_recursion import State, cycles, remove_left_recursion
        if not cycles(graph):
            return 0
        states = [State() for _ in range(self.n)]
        for kind in range(KINDS):
            for i in range(self.edges[kind].n):
                edge = self.edges[kind].items[i]
                states[edge.source].edges[kind].append((edge.what, edge.op, edge.target))
            self.edges[kind].n = 0
        for q in range(self.n):
            states[q].final = bool(self.final[q])
            if self.least[q] or self.most[q]:
                states[q].count = self.least[q], self.most[q], self.slack[q]
        remove_left_recursion(states, starts, self.most_states)
        while self.n < len(states):
            self.new()
        for q in range(self.n):
            self.final[q] = states[q].final
            self.least[q], self.most[q], self.slack[q] = states[q].count or (0, 0, 0)
            for kind in range(KINDS):
                for what, op, target in states[q].edges[kind]:
                    self.add(kind, q, what, op, target)
        self.index()
        return 0


# --------------------------------------------------------------------------- plain C
