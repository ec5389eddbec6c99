"""What parser states know of containers whose members are told apart: their registers.

The registers with a value under way, and the same parser state with abstract registers, which stands for all values.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free, malloc

from oxillama._kernels.grammar.item_sets cimport Item, item_order, sort_items
from oxillama._kernels.grammar.registers cimport MARKS, Registers
from oxillama._kernels.grammar.stacks cimport REGISTERED, RESULT_FLAGS, TAPED, Stacks


cdef tuple open_in(Stacks stacks, int32_t state):
    """The registers of a parser state that have a value under way."""
    cdef set found = set()
    cdef int32_t i
    for i in range(stacks.states.first[state], stacks.states.first[state + 1]):
        found.update(open_in_stack(stacks, stacks.states.items[i].p))
    return tuple(found)


cdef list unknown_below(Stacks stacks, int32_t p, uint8_t flag, dict known):
    """A stack and those below it that have a flag and are not known, the lowest first: it has the lowest number."""
    cdef set found = {p}
    cdef list todo = [p]
    cdef int32_t i, one, below
    for one in todo:  # grows while it is read
        for i in range(stacks.stacks.first[one], stacks.stacks.first[one + 1]):
            below = stacks.stacks.items[i].p
            if stacks.stacks.flags[below] & flag and below not in found and below not in known:
                found.add(below)
                todo.append(below)
    return sorted(found)


cdef tuple open_in_stack(Stacks stacks, int32_t p):
    cdef set found
    cdef int32_t i, one
    cdef Item item
    if not stacks.stacks.flags[p] & TAPED:
        return ()
    if p not in stacks.open_values:
        for one in unknown_below(stacks, p, TAPED, stacks.open_values):
            found = set()
            for i in range(stacks.stacks.first[one], stacks.stacks.first[one + 1]):
                item = stacks.stacks.items[i]
                if stacks.is_register(item.q) and stacks.registers.registers[item.n].begin >= 0:
                    found.add(item.n)
                found.update(stacks.open_values.get(item.p, ()))
            stacks.charge(100)
            stacks.open_values[one] = tuple(found)
    return stacks.open_values[p]


cdef int32_t abstracted(Stacks stacks, int32_t state) except -1:
    """The parser state with abstract registers: what of a mask does not depend on the values that came."""
    cdef int32_t i, n = stacks.states.first[state + 1] - stacks.states.first[state]
    cdef Item* items = <Item*>malloc(sizeof(Item) * (n + 1))
    if not items:
        raise MemoryError()
    try:
        for i in range(n):
            items[i] = stacks.states.items[stacks.states.first[state] + i]
            items[i].p = abstracted_stack(stacks, items[i].p)
        n = distinct_items(items, n)
        return stacks.intern(&stacks.states, items, n, stacks.states.flags[state] & RESULT_FLAGS)
    finally:
        free(items)


cdef int32_t abstracted_stack(Stacks stacks, int32_t p) except -1:
    cdef int32_t one
    if not stacks.stacks.flags[p] & REGISTERED:
        return p
    if p not in stacks.abstracts:
        for one in unknown_below(stacks, p, REGISTERED, stacks.abstracts):
            stacks.abstracts[one] = abstracted_upon(stacks, one)
            stacks.charge(100)
    return stacks.abstracts[p]


cdef int32_t abstracted_upon(Stacks stacks, int32_t p) except -1:
    """A stack with abstract registers, upon those below it, which are known."""
    cdef int32_t i, n = stacks.stacks.first[p + 1] - stacks.stacks.first[p]
    cdef Item* items = <Item*>malloc(sizeof(Item) * (n + 1))
    if not items:
        raise MemoryError()
    try:
        for i in range(n):
            items[i] = stacks.stacks.items[stacks.stacks.first[p] + i]
            if stacks.is_told_apart(items[i].q):
                items[i].n = stacks.registers.abstract(
                    items[i].n, stacks.rtn[items[i].q].least, stacks.rtn[items[i].q].slack >> MARKS
                )
            items[i].p = stacks.abstracts.get(items[i].p, items[i].p)
        n = distinct_items(items, n)
        return stacks.intern(&stacks.stacks, items, n, stacks.stacks.flags[p] & RESULT_FLAGS)
    finally:
        free(items)


cdef bint is_hot(Stacks stacks, int32_t state) except -1:
    """Whether a value under way is so far the beginning of one that came before."""
    cdef Registers registers = stacks.registers
    cdef int32_t i, n, members, last = -1, tape = stacks.tapes[state]
    for i in range(stacks.states.first[state], stacks.states.first[state + 1]):
        if stacks.states.items[i].p == last:
            continue  # items of one value share its stack
        last = stacks.states.items[i].p
        for n in open_in_stack(stacks, last):
            members = registers.registers[n].members
            if members and registers.is_hot(members, registers.suffix(tape, registers.registers[n].begin)):
                return True
    return False


cdef int32_t distinct_items(Item* items, int32_t n) noexcept:
    """Sort items and drop repeats; returns how many are left."""
    cdef int32_t i, kept = 0
    sort_items(items, n)
    for i in range(n):
        if kept == 0 or item_order(&items[kept - 1], &items[i]) != 0:
            items[kept] = items[i]
            kept += 1
    return kept
