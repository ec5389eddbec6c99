"""What parser states know of containers whose members are told apart: their registers.

The registers with a value under way, and the same parser state with abstract registers, which stands for all values.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free, malloc

from oxillama._kernels.grammar.item_sets cimport Item, Pool, item_order, sort_items
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
    cdef int32_t i, p, one
    for i in range(stacks.states.first[state], stacks.states.first[state + 1]):
        p = stacks.states.items[i].p
        if stacks.stacks.flags[p] & REGISTERED and p not in stacks.abstracts:
            for one in unknown_below(stacks, p, REGISTERED, stacks.abstracts):
                stacks.abstracts[one] = abstracted_set(stacks, &stacks.stacks, one)
                stacks.charge(100)
    return abstracted_set(stacks, &stacks.states, state)


cdef int32_t abstracted_set(Stacks stacks, Pool* pool, int32_t number) except -1:
    """A stack or a parser state with abstract registers, upon stacks that are known to have them."""
    cdef int32_t i, n = pool.first[number + 1] - pool.first[number]
    cdef Item* items = <Item*>malloc(sizeof(Item) * (n + 1))
    if not items:
        raise MemoryError()
    try:
        for i in range(n):
            items[i] = pool.items[pool.first[number] + i]
            if stacks.is_told_apart(items[i].q):
                items[i].n = stacks.registers.abstract(
                    items[i].n, stacks.rtn[items[i].q].least, stacks.rtn[items[i].q].slack >> MARKS
                )
            items[i].p = stacks.abstracts.get(items[i].p, items[i].p)
        n = distinct_items(items, n)
        return stacks.intern(pool, items, n, pool.flags[number] & RESULT_FLAGS)
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
