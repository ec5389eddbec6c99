"""The parser state being made: items are added, and all items that follow from them without reading a byte.

Items that differ only in their stacks are merged, and their stacks are united.
"""

from libc.stdint cimport INT32_MAX, int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from oxillama._kernels.debugging cimport ensure
from oxillama._kernels.grammar.item_sets cimport Item, sort_items
from oxillama._kernels.grammar.network cimport (
    CALLS, CONSUMES, COUNT_BITS, ENOUGH, EPSILON, FINAL, KEEP, MORE, NEXT, ONE, UNIT, Edge, List,
)
from oxillama._kernels.grammar.registers cimport FRESH_BIT, MARKS, REGISTER, SOME
from oxillama._kernels.grammar.stacks cimport ABOVE, BELOW, FRESH, MAX_WIDTH, RESULT_FLAGS, Stacks

from oxillama.errors import GrammarError


class NotBuilt(Exception):
    """An operation needs a unit that is not built yet. It has changed no lasting data."""


cdef class Closure(Stacks):
    """Makes one parser state at a time: `begin`, then `add` and others, then `finish`. Parameters as for `Stacks`."""

    def __cinit__(self, *_arguments, **_named):
        self.n_heads = MAX_WIDTH
        while self.n_heads < self.n_states:
            self.n_heads *= 2
        self.head = <int32_t*>malloc(4 * self.n_heads)
        self.mark = <int32_t*>calloc(self.n_heads, 4)
        self.made = <Item*>malloc(MAX_WIDTH * sizeof(Item))
        self.chain = <int32_t*>malloc(4 * MAX_WIDTH)
        self.queue = <int32_t*>malloc(4 * MAX_WIDTH)
        self.queued = <uint8_t*>malloc(MAX_WIDTH)
        if not (self.head and self.mark and self.made and self.chain and self.queue and self.queued):
            raise MemoryError()

    def __dealloc__(self):
        free(self.made)
        free(self.chain)
        free(self.queued)
        free(self.queue)
        free(self.head)
        free(self.mark)

    cdef int begin(self) except -1:
        self.n_made = 0
        self.n_queue = 0
        self.made_flags = 0
        self.made_tape = 0
        if self.generation == INT32_MAX:  # restart before old marks become valid again
            memset(self.mark, 0, 4 * <size_t>self.n_heads)
            self.generation = 0
        self.generation += 1
        return 0

    cdef int add(self, int32_t q, int32_t n, int32_t p) except -1:
        """Adds an item, or unites its stack with the stack of the equal item."""
        cdef int32_t i = -1, united, slot = <int32_t>((<uint32_t>q + <uint32_t>n * 2654435761U) & (self.n_heads - 1))
        ensure(0 <= q < self.n_states and 0 <= p < self.stacks.n)
        if self.mark[slot] == self.generation:
            i = self.head[slot]
            while i >= 0 and (self.made[i].q != q or self.made[i].n != n):
                i = self.chain[i]
        if i >= 0:
            united = self.unite(self.made[i].p, p, 0)
            if united == self.made[i].p:
                return 0
            self.made[i].p = united
        else:
            if self.n_made >= MAX_WIDTH:
                raise GrammarError(f"grammar: expected at most {MAX_WIDTH} items in a parser state, got more")
            i = self.n_made
            self.n_made += 1
            self.made[i] = Item(q, n, p)
            self.queued[i] = 0
            self.chain[i] = self.head[slot] if self.mark[slot] == self.generation else -1
            self.head[slot] = i
            self.mark[slot] = self.generation
        if not self.queued[i]:
            self.queued[i] = 1
            self.queue[self.n_queue] = i
            self.n_queue += 1
        return 0

    cdef int pop(self, int32_t p) except -1:
        """Adds the items to which a stack returns."""
        cdef int32_t i
        cdef Item item
        self.spend(self.stacks.first[p + 1] - self.stacks.first[p])
        self.made_flags |= self.stacks.flags[p] & RESULT_FLAGS
        for i in range(self.stacks.first[p], self.stacks.first[p + 1]):
            item = self.stacks.items[i]
            self.add(item.q, item.n, item.p)
        return 0

    cdef int close(self) except -1:
        """Follows epsilon edges, calls and returns until no new item appears."""
        cdef int32_t i, e, n
        cdef Item item
        cdef const Edge* edge
        cdef const List* epsilon = &self.edges[EPSILON]
        cdef const List* calls = &self.edges[CALLS]
        while self.n_queue:
            self.n_queue -= 1
            i = self.queue[self.n_queue]
            self.queued[i] = 0
            item = self.made[i]
            self.spend(1 + epsilon.first[item.q + 1] - epsilon.first[item.q]
                       + calls.first[item.q + 1] - calls.first[item.q])
            if self.rtn[item.q].flags & FINAL:
                self.pop(item.p)
            for e in range(epsilon.first[item.q], epsilon.first[item.q + 1]):
                edge = &epsilon.items[e]
                n = self.after(edge, item.q, item.n)
                if n >= 0:
                    self.add(edge.target, n, item.p)
            for e in range(calls.first[item.q], calls.first[item.q + 1]):
                edge = &calls.items[e]
                n = self.after(edge, item.q, item.n)
                if n >= 0:
                    self.add(self.called(edge.what), 0, self.push(edge.target, n, item.p))
        return 0

    cdef int called(self, int32_t what) except -1:
        """The start state of the subnetwork that an edge calls."""
        if what < UNIT:
            return what
        self.missing = what - UNIT
        if self.missing >= self.n_units or self.unit_start[self.missing] < 0:
            raise NotBuilt
        return self.unit_start[self.missing]

    cdef int finish(self) except -1:
        """The number of the parser state made of the added items."""
        cdef int32_t i, n = 0
        self.close()
        for i in range(self.n_made):
            if self.rtn[self.made[i].q].flags & CONSUMES:
                self.made[n] = self.made[i]
                n += 1
        sort_items(self.made, n)
        return self.intern(&self.states, self.made, self.drop_subsumed(self.made, n), self.made_flags)

    cdef inline int32_t after(self, const Edge* edge, int32_t q, int32_t n) except -2:
        """The count after an edge, -1 if the edge's condition on the count fails."""
        cdef int32_t op = edge.op, most
        if op & REGISTER:
            n = self.registers.after(op, n, self.rtn[q].slack >> MARKS, self.made_tape)
            if n >= SOME and n - SOME & FRESH_BIT:
                self.made_flags |= FRESH
            return n
        if n >= ABOVE:
            if n == BELOW and op & ENOUGH:
                return -1
            op = op & COUNT_BITS
            return n if op == KEEP or op == NEXT else 1 if op == ONE else 0
        if op & ENOUGH and n < self.rtn[q].least:
            return -1
        most = self.rtn[edge.target].most if op & MORE else -1
        op = op & COUNT_BITS
        if op == NEXT:
            n = min(n + 1, self.rtn[q].least) if self.rtn[q].most < 0 else n + 1
        elif op != KEEP:
            n = 1 if op == ONE else 0
        return -1 if 0 <= most < n else n
