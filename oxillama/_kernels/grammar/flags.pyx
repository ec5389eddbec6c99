"""Flags of the states of a finished automaton: whether they read something, and what their end depends on."""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from oxillama._kernels.grammar.edges cimport ENOUGH, Edge, List, free_edges, sort_edges
from oxillama._kernels.grammar.network cimport Program
from oxillama._kernels.grammar.registers cimport REGISTER


cdef int set_flags(Program program, const uint8_t* is_final) except -1:
    """The flags of all states, given whether each is final."""
    cdef int32_t n = program.n_states, q, i, source
    cdef const int32_t* byte_first = program.bytes.first
    cdef const int32_t* token_first = program.tokens.first
    cdef const int32_t* calls_first = program.calls.first
    cdef const int32_t* epsilon_first = program.epsilon.first
    cdef const int32_t* epsilon = program.epsilon.rows  # (what, op, target)
    cdef int32_t* flags = program.flags
    cdef List into
    cdef uint8_t* can_end = <uint8_t*>calloc(n + 1, 1)
    cdef uint8_t* goes_on = <uint8_t*>calloc(n + 1, 1)
    cdef int32_t* todo = <int32_t*>malloc(4 * (<Py_ssize_t>n + epsilon_first[n] + 1))
    cdef int32_t n_todo = 0
    cdef Edge edge
    memset(flags, 0, 4 * <Py_ssize_t>n)
    memset(&into, 0, sizeof(List))
    try:
        if not (can_end and goes_on and todo):
            raise MemoryError()
        into.items = <Edge*>malloc(sizeof(Edge) * (epsilon_first[n] + 1))
        if not into.items:
            raise MemoryError()
        for q in range(n):
            for i in range(epsilon_first[q], epsilon_first[q + 1]):
                into.items[i] = Edge(epsilon[3 * i + 2], 0, epsilon[3 * i + 1], q)  # reversed
            if is_final[q]:
                todo[n_todo] = q
                n_todo += 1
        into.n = into.room = epsilon_first[n]
        sort_edges(&into, n)
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
                flags[edge.target] |= ENDS_IF_ENOUGH if edge.op & ENOUGH else ENDS_ALWAYS
                if not edge.op & ENOUGH or program.least[edge.target] == 0:
                    todo[n_todo] = edge.target
                    n_todo += 1
        for q in range(n):
            if byte_first[q + 1] > byte_first[q] or token_first[q + 1] > token_first[q]:
                flags[q] |= CONSUMES
            tests = False
            for i in range(epsilon_first[q], epsilon_first[q + 1]):
                tests = tests or epsilon[3 * i + 1] & REGISTER
            if tests or flags[q] & CONSUMES or calls_first[q + 1] > calls_first[q]:
                todo[n_todo] = q
                n_todo += 1
        while n_todo:
            n_todo -= 1
            q = todo[n_todo]
            if not goes_on[q]:
                goes_on[q] = 1
                for i in range(into.first[q], into.first[q + 1]):
                    source = into.items[i].target
                    if not goes_on[source]:
                        todo[n_todo] = source
                        n_todo += 1
        for q in range(n):
            if is_final[q]:
                flags[q] |= ENDS_ALWAYS | FINAL
            if can_end[q] and not goes_on[q]:
                flags[q] |= PURE_FINAL
        return 0
    finally:
        free(can_end)
        free(goes_on)
        free(todo)
        free_edges(&into)
