"""The stacks of a grammar's parser states.

An item is (RTN state, count, stack). A stack is itself a set of (return state, its count, the stack below): the
graph-structured stack of Tomita's parser. Parser states and stacks are stored once and identified by their numbers
(hash-consed). All callers of a subnetwork at one place share a stack, so ambiguity widens sets instead of multiplying
them. A return after which nothing remains to be read is not pushed (a tail call), so right recursion needs no stack.
"""

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from oxillama._kernels.grammar.item_sets cimport (
    Item, Pool, hashed, item_order, pool_alloc, pool_free, rehash, sort_items,
)
from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.network cimport ENDS_ALWAYS, ENDS_IF_ENOUGH, PURE_FINAL, Network
from oxillama._kernels.grammar.registers cimport BY_TEXT, FRESH_BIT, MARKS, SOME, Registers, pair
from oxillama._kernels.grammar.rows cimport Rows

from oxillama.errors import GrammarError

cdef enum:
    LOOK_BACK = 8          # number of earlier items with which an item is compared to see whether they subsume it
    MAX_UNION_DEPTH = 500  # deeper stacks are kept separate instead of united

cdef Py_ssize_t MOST_BYTES = <Py_ssize_t>1 << 32  # so that no number of a state, a stack or an item overflows


cdef class Stacks(Network):
    """The sets of items of a program, with limits of memory and work.

    Args:
        program: Program
        limit: bytes of memory beyond which GrammarError is raised, at most 2**32
        budget: units of work of one mask or one token beyond which GrammarError is raised. A unit is an item or an
            edge followed, a trie node visited, or 64 words of a mask added to another.
    """

    def __cinit__(self, object program: Any, Py_ssize_t limit, Py_ssize_t budget):
        if not 0 <= limit <= MOST_BYTES:
            raise ValueError(f"limit: expected 0 to {MOST_BYTES} bytes, got {limit}")
        self.limit, self.budget, self.allowed, self.left = limit, budget, budget, budget
        self.registers, self.rows = Registers(), Rows()
        self.open_values, self.abstracts, self.unions = {}, {}, {}
        self.catch_up()
        pool_alloc(&self.stacks)
        pool_alloc(&self.states)
        self.intern(&self.stacks, NULL, 0, ACCEPTS)  # BOTTOM
        self.intern(&self.stacks, NULL, 0, DEPENDENT)  # OPEN
        self.intern(&self.states, NULL, 0, 0)  # DEAD

    def __dealloc__(self):
        pool_free(&self.stacks)
        pool_free(&self.states)
        free(self.tapes)
        free(self.verdicts)

    cdef int catch_up(self) except -1:
        """Reads the pieces that other parser states have had built, too."""
        if self.program.pieces is not None:
            self.append_built()
        self.charge(self.held() - self.network_bytes)
        self.network_bytes = self.held()
        return 0

    # ------------------------------------------------------------------ limits

    cdef int charge(self, Py_ssize_t more) except -1:
        self.n_bytes += more
        if self.n_bytes > self.limit:
            raise GrammarError(f"grammar: expected at most {self.limit >> 20} MB of parser states, got more")
        return 0

    cdef void allow(self, Py_ssize_t work) noexcept:
        """Begins an operation with a limit of work."""
        self.done += self.allowed - self.left
        self.allowed = self.left = work

    cdef int raise_overspent(self) except -1:
        raise GrammarError(f"grammar: expected at most {self.budget} units of work for a mask or a token, got more")

    # ------------------------------------------------------------------ sets, each stored once

    cdef inline bint is_register(self, int32_t q) noexcept:
        """Whether the count of an RTN state is a register."""
        return self.rtn[q].least != 0 and self.rtn[q].most == 0

    cdef inline bint is_told_apart(self, int32_t q) noexcept:
        """Whether the count is a register whose members differ by their texts, not only by the grammar's marks."""
        return self.is_register(q) and self.rtn[q].slack & BY_TEXT

    cdef int intern(self, Pool* pool, const Item* items, int32_t n, uint8_t flags) except -1:
        """The number of a set of sorted items."""
        cdef uint64_t slot
        cdef int32_t i, end, tape = 0
        for i in range(n):
            flags |= self.stacks.flags[items[i].p] & (ABSTRACT | REGISTERED | TAPED | FRESH)
            if self.is_register(items[i].q):
                if items[i].n >= SOME:
                    flags |= FRESH if items[i].n - SOME & FRESH_BIT else 0
                elif self.is_told_apart(items[i].q):
                    flags |= TAPED | REGISTERED if self.registers.registers[items[i].n].begin >= 0 else REGISTERED
            elif items[i].n >= ABOVE:
                flags |= ABSTRACT
        if pool == &self.states and flags & TAPED:
            tape = self.made_tape
        if self.registers.n_bytes > self.register_bytes:
            self.charge(self.registers.n_bytes - self.register_bytes)
            self.register_bytes = self.registers.n_bytes
        slot = hashed(items, n, flags, tape) & (pool.table_size - 1)
        while pool.table[slot] >= 0:
            i = pool.table[slot]
            if (pool.flags[i] == flags and pool.first[i + 1] - pool.first[i] == n
                    and (pool != &self.states or self.tapes[i] == tape)
                    and (n == 0 or memcmp(pool.items + pool.first[i], items, n * sizeof(Item)) == 0)):
                return i
            slot = (slot + 1) & (pool.table_size - 1)
        i = pool.n
        end = pool.first[i] + n
        self.charge(n * sizeof(Item) + 16)
        if pool == &self.states:
            self.charge(5 + self.rows.add(i, self, items, n))
        if end > pool.items_room:
            pool.items = <Item*>grown(pool.items, 2 * <Py_ssize_t>end * sizeof(Item))
            pool.items_room = 2 * end
        if i + 2 > pool.room:
            pool.first = <int32_t*>grown(pool.first, 2 * <Py_ssize_t>pool.room * 4)
            pool.flags = <uint8_t*>grown(pool.flags, 2 * <Py_ssize_t>pool.room)
            pool.room *= 2
        if pool == &self.states and i >= self.kept_room:
            self.kept_room = max(64, 2 * self.kept_room)
            self.tapes = <int32_t*>grown(self.tapes, <Py_ssize_t>self.kept_room * 4)
            self.verdicts = <uint8_t*>grown(self.verdicts, self.kept_room)
        if n > 0:  # ``items`` may be NULL
            memcpy(pool.items + pool.first[i], items, n * sizeof(Item))
        pool.first[i + 1] = end
        pool.flags[i] = flags
        pool.table[slot] = i
        pool.n += 1
        if pool == &self.states:
            self.tapes[i], self.verdicts[i] = tape, 0
        if 2 * pool.n > pool.table_size:
            rehash(pool, self.tapes if pool == &self.states else NULL)
        return i

    # ------------------------------------------------------------------ unions

    cdef int push(self, int32_t q, int32_t n, int32_t p) except -1:
        """The stack for callers that return to (q, n) and then to ``p``."""
        cdef int32_t one, flags = self.rtn[q].flags
        cdef Item item = Item(q, n, p)
        if flags & PURE_FINAL:
            return p
        one = self.intern(&self.stacks, &item, 1, 0)
        if flags & ENDS_ALWAYS or (flags & ENDS_IF_ENOUGH and n != BELOW and n >= self.rtn[q].least):
            return self.unite(one, p, 0)
        return one

    cdef int unite(self, int32_t a, int32_t b, int depth) except -1:
        """The union of two stacks."""
        cdef int32_t i, j, m, n = 0, united
        cdef Item x, y
        cdef Item* merged
        if a == b:
            return a
        if a > b:
            a, b = b, a
        known = self.unions.get(pair(a, b))
        if known is not None:
            return known
        i, m = self.stacks.first[a], self.stacks.first[b]
        self.spend(1 + self.stacks.first[a + 1] - i + self.stacks.first[b + 1] - m)
        merged = <Item*>malloc(
            sizeof(Item) * (self.stacks.first[a + 1] - i + self.stacks.first[b + 1] - m + 1)
        )
        if not merged:
            raise MemoryError()
        try:
            j = m
            while i < self.stacks.first[a + 1] or j < self.stacks.first[b + 1]:
                if j == self.stacks.first[b + 1]:
                    merged[n] = self.stacks.items[i]
                    i += 1
                elif i == self.stacks.first[a + 1]:
                    merged[n] = self.stacks.items[j]
                    j += 1
                else:
                    x, y = self.stacks.items[i], self.stacks.items[j]
                    if x.q == y.q and x.n == y.n and (x.p == y.p or depth < MAX_UNION_DEPTH):
                        united = self.unite(x.p, y.p, depth + 1)
                        merged[n] = Item(x.q, x.n, united)
                        i += 1
                        j += 1
                    elif item_order(&x, &y) < 0:
                        merged[n] = x
                        i += 1
                    else:
                        merged[n] = y
                        j += 1
                n += 1
            sort_items(merged, n)
            n = self.drop_subsumed(merged, n)
            if n > MAX_WIDTH:
                raise GrammarError(f"grammar: expected at most {MAX_WIDTH} returns in a stack, got more")
            united = self.intern(&self.stacks, merged, n, self.stacks.flags[a] | self.stacks.flags[b])
        finally:
            free(merged)
        self.unions[pair(a, b)] = united
        self.charge(128)
        return united

    cdef int32_t drop_subsumed(self, Item* items, int32_t n) noexcept:
        """Drops sorted items whose texts another item allows, too: beyond the least count, an item with a lower count
        allows every text that an item with a higher count allows."""
        cdef int32_t i, j, kept = 0
        cdef Item item
        cdef bint covered
        for i in range(n):
            item = items[i]
            covered = False
            if self.rtn[item.q].most > 0 and item.n < ABOVE:
                j = kept - 1
                while j >= max(0, kept - LOOK_BACK) and items[j].q == item.q and items[j].n >= self.rtn[item.q].least:
                    covered = covered or items[j].p == item.p
                    j -= 1
            if not covered:
                items[kept] = item
                kept += 1
        return kept

    # ------------------------------------------------------------------ containers with distinct members

    cdef tuple open_in(self, int32_t state):
        """The registers of a parser state that have an open value."""
        cdef set found = set()
        cdef int32_t i
        for i in range(self.states.first[state], self.states.first[state + 1]):
            found.update(self.open_in_stack(self.states.items[i].p))
        return tuple(found)

    cdef list unknown_below(self, int32_t p, uint8_t flag, dict known):
        """Stack ``p`` and the stacks below it that have a flag and are not in ``known``, the lowest stack first."""
        cdef set found = {p}
        cdef list todo = [p]
        cdef int32_t i, one, below
        for one in todo:  # the list grows in the loop
            for i in range(self.stacks.first[one], self.stacks.first[one + 1]):
                below = self.stacks.items[i].p
                if self.stacks.flags[below] & flag and below not in found and below not in known:
                    found.add(below)
                    todo.append(below)
        return sorted(found)

    cdef tuple open_in_stack(self, int32_t p):
        cdef set found
        cdef int32_t i, one
        cdef Item item
        if not self.stacks.flags[p] & TAPED:
            return ()
        if p not in self.open_values:
            for one in self.unknown_below(p, TAPED, self.open_values):
                found = set()
                for i in range(self.stacks.first[one], self.stacks.first[one + 1]):
                    item = self.stacks.items[i]
                    if self.is_register(item.q) and self.registers.registers[item.n].begin >= 0:
                        found.add(item.n)
                    found.update(self.open_values.get(item.p, ()))
                self.charge(100)
                self.open_values[one] = tuple(found)
        return self.open_values[p]

    cdef int32_t abstracted(self, int32_t state) except -1:
        """The parser state with abstract registers: its mask does not depend on the values that occurred."""
        cdef int32_t i, p, one
        for i in range(self.states.first[state], self.states.first[state + 1]):
            p = self.states.items[i].p
            if self.stacks.flags[p] & REGISTERED and p not in self.abstracts:
                for one in self.unknown_below(p, REGISTERED, self.abstracts):
                    self.abstracts[one] = self.abstracted_set(&self.stacks, one)
                    self.charge(100)
        return self.abstracted_set(&self.states, state)

    cdef int32_t abstracted_set(self, Pool* pool, int32_t number) except -1:
        """A stack or parser state with abstract registers; the stacks below must be in `abstracts`."""
        cdef int32_t i, n = pool.first[number + 1] - pool.first[number]
        cdef Item* items = <Item*>malloc(sizeof(Item) * (n + 1))
        if not items:
            raise MemoryError()
        try:
            for i in range(n):
                items[i] = pool.items[pool.first[number] + i]
                if self.is_told_apart(items[i].q):
                    items[i].n = self.registers.abstract(
                        items[i].n, self.rtn[items[i].q].least, self.rtn[items[i].q].slack >> MARKS
                    )
                items[i].p = self.abstracts.get(items[i].p, items[i].p)
            n = distinct_items(items, n)
            return self.intern(pool, items, n, pool.flags[number] & RESULT_FLAGS)
        finally:
            free(items)

    cdef bint is_hot(self, int32_t state) except -1:
        """Whether an open value is a prefix of an earlier value."""
        cdef Registers registers = self.registers
        cdef int32_t i, n, members, last = -1, tape = self.tapes[state]
        for i in range(self.states.first[state], self.states.first[state + 1]):
            if self.states.items[i].p == last:
                continue  # items of one value share its stack
            last = self.states.items[i].p
            for n in self.open_in_stack(last):
                members = registers.registers[n].members
                if members and registers.is_hot(members, registers.suffix(tape, registers.registers[n].begin)):
                    return True
        return False


cdef int32_t distinct_items(Item* items, int32_t n) noexcept:
    """Sorts items and drops duplicates; returns the number of remaining items."""
    cdef int32_t i, kept = 0
    sort_items(items, n)
    for i in range(n):
        if kept == 0 or item_order(&items[kept - 1], &items[i]) != 0:
            items[kept] = items[i]
            kept += 1
    return kept
