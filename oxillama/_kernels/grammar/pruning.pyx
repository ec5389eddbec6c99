"""From automata to programs: keeps the states that a piece's start leads to, with new numbers."""

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


cdef Program program_of(Automata of, list starts):
    """The program of finished automata, sorted by `Automata.index`; ``starts[0]`` is the start of the piece."""
    cdef Program found = Program()
    cdef int32_t* number = <int32_t*>grown(NULL, 8 * (<Py_ssize_t>of.n_states + 1))  # old -> new number, or -1
    cdef int32_t* order = number + of.n_states + 1  # new -> old number
    cdef int32_t i = 0, e, kind, target, what, n = 0
    cdef const List* edges
    cdef Edge edge
    try:
        memset(number, 0xFF, 4 * <Py_ssize_t>of.n_states)
        numbered(starts[0], number, order, &n)
        while i < n:  # the number grows in the loop
            for kind in range(KINDS):
                edges = &of.edges[kind]
                for e in range(edges.first[order[i]], edges.first[order[i] + 1]):
                    edge = edges.items[e]
                    target, what = numbered(edge.target, number, order, &n), edge.what
                    if kind == CALLS:
                        what = numbered(starts[what], number, order, &n) if what >= 0 else UNIT - 1 - what
                    add_edge(&found.edges[kind], Edge(i, what, edge.op, target))
            i += 1
        found.make_room(n)
        found.n_states = n
        for i in range(n):
            found.rtn[i] = of.rtn[order[i]]
    finally:
        free(number)
    found.index()
    set_flags(found)
    found.label_bits = b"".join(of.labels)
    return found


cdef inline int32_t numbered(int32_t q, int32_t* number, int32_t* order, int32_t* n) noexcept:
    """The new number of a state, which is given when the state is reached first."""
    if number[q] < 0:
        number[q] = n[0]
        order[n[0]] = q
        n[0] += 1
    return number[q]


cdef int set_flags(Program program) except -1:
    """Sets the flags of states: whether they read something, and what their end depends on."""
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
            add_edge(&into, Edge(edge.target, 0, edge.op, edge.source))  # reversed edges
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
                    continue  # the end depends on earlier members
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
