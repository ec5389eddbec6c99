"""Automata to programs: the states that a piece's start leads to, numbered anew.

A state with nothing but one epsilon edge stands for the state that the edge leads to.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from oxillama._kernels.grammar.automata cimport Automata
from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.network cimport (
    BYTES, CALLS, CONSUMES, ENDS_ALWAYS, ENDS_IF_ENOUGH, ENOUGH, EPSILON, FINAL, KINDS, PURE_FINAL, TOKENS, UNIT,
    Edge, List, Program, State, add_edge, free_edges, sort_edges,
)
from oxillama._kernels.grammar.registers cimport REGISTER


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
        cdef Py_ssize_t room = <Py_ssize_t>of.n_states + 1
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
        for q in range(self.of.n_states):
            alias[q] = q
            n = 0
            for kind in range(EPSILON):
                n += self.of.edges[kind].first[q + 1] - self.of.edges[kind].first[q]
            i = self.of.edges[EPSILON].first[q]
            if n == 0 and self.of.edges[EPSILON].first[q + 1] == i + 1 and not (
                self.of.rtn[q].flags or self.of.rtn[q].least or self.of.rtn[q].most
            ):
                alias[q] = self.of.edges[EPSILON].items[i].target
        for q in range(self.of.n_states):
            last, n = q, 0
            while alias[last] != last and n <= self.of.n_states:
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
        memset(self.number, 0xFF, 4 * <Py_ssize_t>self.of.n_states)
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
        cdef int32_t i, t, kind, what
        cdef const List* edges
        cdef Edge edge
        found.make_room(self.n_kept)
        found.n_states = self.n_kept
        for i in range(self.n_kept):
            found.rtn[i] = self.of.rtn[self.order[i]]
            for kind in range(KINDS):
                edges = &self.of.edges[kind]
                for t in range(edges.first[self.order[i]], edges.first[self.order[i] + 1]):
                    edge = edges.items[t]
                    what = edge.what
                    if kind == CALLS:
                        what = self.number[self.start_of[what]] if what >= 0 else UNIT - 1 - what
                    add_edge(&found.edges[kind], Edge(i, what, edge.op, self.number[self.alias[edge.target]]))
        found.index()
        set_flags(found)
        found.label_bits = b"".join(self.of.labels)
        return found


cdef int set_flags(Program program) except -1:
    """Whether states read something, and what their end depends on; before, their only flag is FINAL."""
    cdef int32_t n = program.n_states, q, i, n_todo = 0
    cdef const List* epsilon = &program.edges[EPSILON]
    cdef State* rtn = program.rtn
    cdef List into = List(NULL, NULL, 0, 0)
    cdef uint8_t* can_end = <uint8_t*>calloc(2 * <Py_ssize_t>n + 1, 1)
    cdef uint8_t* goes_on = can_end + n
    cdef int32_t* todo = <int32_t*>malloc(4 * (<Py_ssize_t>n + epsilon.n + 1))
    cdef Edge edge
    try:
        if not (can_end and todo):
            raise MemoryError()
        for i in range(epsilon.n):
            edge = epsilon.items[i]
            add_edge(&into, Edge(edge.target, 0, edge.op, edge.source))  # reversed
        sort_edges(&into, n)
        for q in range(n):
            if rtn[q].flags & FINAL:
                rtn[q].flags |= ENDS_ALWAYS
                todo[n_todo] = q
                n_todo += 1
        while n_todo:
            n_todo -= 1
            q = todo[n_todo]
            if can_end[q]:
                continue
            can_end[q] = 1
            for i in range(into.first[q], into.first[q + 1]):
                edge = into.items[i]
                if edge.op & REGISTER:
                    continue  # the end depends on what came
                rtn[edge.target].flags |= ENDS_IF_ENOUGH if edge.op & ENOUGH else ENDS_ALWAYS
                if not edge.op & ENOUGH or rtn[edge.target].least == 0:
                    todo[n_todo] = edge.target
                    n_todo += 1
        for q in range(n):
            if has_edges(program, BYTES, q) or has_edges(program, TOKENS, q):
                rtn[q].flags |= CONSUMES
            tests = rtn[q].flags & CONSUMES or has_edges(program, CALLS, q)
            for i in range(epsilon.first[q], epsilon.first[q + 1]):
                tests = tests or epsilon.items[i].op & REGISTER
            if tests:
                todo[n_todo] = q
                n_todo += 1
        while n_todo:
            n_todo -= 1
            q = todo[n_todo]
            if not goes_on[q]:
                goes_on[q] = 1
                for i in range(into.first[q], into.first[q + 1]):
                    if not goes_on[into.items[i].target]:
                        todo[n_todo] = into.items[i].target
                        n_todo += 1
        for q in range(n):
            if can_end[q] and not goes_on[q]:
                rtn[q].flags |= PURE_FINAL
        return 0
    finally:
        free(can_end)
        free(todo)
        free_edges(&into)


cdef inline bint has_edges(Program program, int kind, int32_t q) noexcept:
    return program.edges[kind].first[q + 1] > program.edges[kind].first[q]
