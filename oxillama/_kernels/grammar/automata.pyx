"""Byte automata under construction: states, and edges from state to state.

The operation of an edge says what it asks of a count (ENOUGH: it is at least the source's least; MORE: what it becomes
is at most the target's most) and what it makes of it (RESET, KEEP, NEXT, ONE).
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.network cimport (
    CALLS, COUNT_BITS, ENOUGH, EPSILON, FINAL, KINDS, MORE, NEXT, ONE, RESET, Edge, List, Program, State, add_edge,
)
from oxillama._kernels.grammar.registers cimport REGISTER

from oxillama.errors import GrammarError


cdef class Automata(Program):
    """States and edges, which are numbered in the order in which they were added."""

    def __cinit__(self):
        self.labels = {}

    cdef int32_t new(self) except -1:
        if self.n_states >= self.most_states:
            raise GrammarError(f"grammar: expected at most {self.most_states} states, got more")
        self.make_room(1)
        self.rtn[self.n_states] = State(0, 0, 0, 0)
        self.n_states += 1
        return self.n_states - 1

    cdef int add(self, int kind, int32_t source, int32_t what, int32_t op, int32_t target) except -1:
        return add_edge(&self.edges[kind], Edge(source, what, op, target))

    cdef int32_t label(self, const uint8_t* taken) except -1:
        """The number of a set of bytes: 256 bits, the lowest first."""
        cdef bytes bits = taken[:32]
        found = self.labels.get(bits)
        if found is None:
            found = self.labels[bits] = len(self.labels)
        return found

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
                if (not edge.op & ENOUGH or self.rtn[q].least == 0) and edge.target not in seen:
                    seen.add(edge.target)
                    todo.append(edge.target)
        return fresh

    # ------------------------------------------------------------------ left recursion

    cdef int without_left_recursion(self, list starts) except -1:
        """Rewrite the subnetworks that call themselves before they have read anything.

        In a cycle of such subnetworks, every match of a goal A begins with a match of some subnetwork B of the cycle
        that itself begins without a call into the cycle. B is then the beginning of every subnetwork C that starts by
        calling B, and so on up to A: the left-corner transform (Rosenkrantz and Lewis, 1970). Each goal gets its own
        copy of the cycle's bodies. In it the end of B leads to the state that C returns to after its call of B.

        ``starts``: the start state of each subnetwork, changed in place. Edges are sorted, before and after.
        """
        cdef list first_calls = [self.callees(start) for start in starts]
        cdef list found = cycles(first_calls) if any(first_calls) else []
        for cycle in found:
            bodies = {number: self.body(starts[number]) for number in cycle}
            for goal, start in [(goal, self.copy_for_goal(goal, bodies, starts)) for goal in cycle]:
                starts[goal] = start
        return self.index() if found else 0

    cdef list callees(self, int32_t q):
        """The subnetworks of this piece that a state calls."""
        cdef List* calls = &self.edges[CALLS]
        cdef int32_t i
        return [calls.items[i].what for i in range(calls.first[q], calls.first[q + 1]) if calls.items[i].what >= 0]

    cdef list body(self, int32_t start):
        """The states of a subnetwork behind its start, to which no edge leads."""
        cdef list found = [start]
        cdef set seen = {start}
        cdef int32_t q, i, kind, target
        for q in found:  # grows while it is read
            for kind in range(KINDS):
                for i in range(self.edges[kind].first[q], self.edges[kind].first[q + 1]):
                    target = self.edges[kind].items[i].target
                    if target not in seen:
                        seen.add(target)
                        found.append(target)
        return found[1:]

    cdef int32_t copy_for_goal(self, int32_t goal, dict bodies, list starts) except -1:
        """The start state of a copy of a cycle's bodies that matches ``goal``."""
        cdef int32_t start = self.new(), q, fresh, i, kind, other
        cdef Edge edge
        cdef dict copy = {}
        for body in bodies.values():
            for q in body:
                fresh = copy[q] = self.new()
                self.rtn[fresh] = self.rtn[q]
                self.rtn[fresh].flags = 0
        for number, body in bodies.items():
            for q in (*body, starts[number]):
                fresh = copy.get(q, start)
                for kind in range(KINDS):
                    for i in range(self.edges[kind].first[q], self.edges[kind].first[q + 1]):
                        edge = self.edges[kind].items[i]
                        if kind != CALLS or fresh != start or edge.what not in bodies:
                            self.add(kind, fresh, edge.what, edge.op, copy[edge.target])
                if self.rtn[q].flags & FINAL:
                    self.rtn[fresh].flags = FINAL if number == goal else 0
                    for caller in bodies:
                        other = starts[caller]
                        for i in range(self.edges[CALLS].first[other], self.edges[CALLS].first[other + 1]):
                            edge = self.edges[CALLS].items[i]
                            if edge.what == number:
                                self.add(EPSILON, fresh, 0, edge.op, copy[edge.target])
        return start


@cython.wraparound(True)
cdef list cycles(list graph):
    """The strongly connected components with a cycle in them (Tarjan, 1972), without recursion."""
    cdef dict index = {}
    cdef dict low = {}  # of a component that is complete, beyond all others
    cdef list stack = [], found = []
    for root in range(len(graph)):
        path = [] if root in index else [(root, iter(graph[root]))]
        while path:
            node, rest = path[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
            below = next(rest, None)
            if below is not None and below not in index:
                path.append((below, iter(graph[below])))
            elif below is not None:
                low[node] = min(low[node], low[below])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    component = [stack.pop()]
                    while component[-1] != node:
                        component.append(stack.pop())
                    low.update(dict.fromkeys(component, len(graph)))
                    if len(component) > 1 or node in graph[node]:
                        found.append(component)
    return found
