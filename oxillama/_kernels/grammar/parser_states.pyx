"""Parser states of a grammar: interned sets of items, and the transitions between them by bytes.

An item is (RTN state, count, stack). A stack is an interned set too, of (return state, its count, the stack
below): the graph-structured stack of Tomita's parser, hash-consed. All callers of a subnetwork at one place
share a stack, so ambiguity widens sets and does not multiply them. Items that differ in their stacks only are
merged, their stacks united. A return after which nothing is left to read is not pushed (a tail call), so
right recursion needs no stack.

A lazily filled row (rows.pyx) leads from a parser state and a byte to the next parser state.
Nothing here is thread-safe by itself: every method runs under the interpreter lock.
"""

from libc.stdint cimport INT32_MAX, int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from oxillama._kernels.debugging cimport ensure
from oxillama._kernels.grammar.edges cimport COUNT_BITS, ENOUGH, KEEP, MORE, NEXT, ONE
from oxillama._kernels.grammar.flags cimport CONSUMES, ENDS_ALWAYS, ENDS_IF_ENOUGH, FINAL, PURE_FINAL
from oxillama._kernels.grammar.item_sets cimport (
    Item, Pool, hashed, item_order, pool_alloc, pool_free, rehash, sort_items, translate,
)
from oxillama._kernels.grammar.memory cimport grown, mixed
from oxillama._kernels.grammar.network cimport UNIT, Network, takes
from oxillama._kernels.grammar.registers cimport BY_TEXT, FRESH_BIT, MARKS, REGISTER, SOME, Registers
from oxillama._kernels.grammar.rows cimport DEAD, add_row, entry, rows_alloc, rows_free

from oxillama.errors import GrammarError

cdef enum:
    MAX_WIDTH = 4096      # items of one parser state or stack
    LOOK_BACK = 8         # items that one is compared with to see whether they subsume it
    MAX_REGISTERED = 500   # containers around a value, where one of them tells its members apart
    MAX_UNION_DEPTH = 500  # deeper stacks are not united but kept side by side

cdef Py_ssize_t MOST_BYTES = <Py_ssize_t>1 << 32  # so that no number of a state, a stack or an item overflows


class NotBuilt(Exception):
    """An operation came to a unit that is not built yet. It has changed nothing that counts."""


cdef class ParserStates:
    """All parser states of a program that have been met.

    Parameters
    ----------
    program : oxillama.grammar.program.Program
    limit : bytes of memory beyond which GrammarError is raised, at most 2**32
    budget : units of work of one mask or one token beyond which GrammarError is raised. A unit is an item or
        an edge followed, a trie node visited, or 64 words of a mask added to another.
    """

    def __cinit__(self, object program, Py_ssize_t limit, Py_ssize_t budget):
        self.program = program
        if not 0 <= limit <= MOST_BYTES:
            raise ValueError(f"limit: expected 0 to {MOST_BYTES} bytes, got {limit}")
        self.limit = limit
        self.allow(budget)
        self.budget = budget
        self.network = Network(program)
        self.registers = Registers()
        self.open_values, self.abstracts = {}, {}
        self.n_token_sets = len(program.token_sets)
        self.accepts_empty = program.accepts_empty
        self.read_network()
        self.n_heads = MAX_WIDTH
        while self.n_heads < self.n_states:
            self.n_heads *= 2
        self.head = <int32_t*>malloc(4 * self.n_heads)
        self.mark = <int32_t*>calloc(self.n_heads, 4)
        self.pairs_size = 256
        self.pairs = <Pair*>calloc(self.pairs_size, sizeof(Pair))
        if not (self.head and self.mark and self.pairs):
            raise MemoryError()
        pool_alloc(&self.stacks)
        pool_alloc(&self.states)
        rows_alloc(&self.rows)
        self.intern(&self.stacks, NULL, 0, ACCEPTS)  # BOTTOM
        self.intern(&self.stacks, NULL, 0, DEPENDENT)  # OPEN
        self.intern(&self.states, NULL, 0, 0)  # DEAD

    cdef int read_network(self) except -1:
        """Take over where the arrays of the network are now."""
        cdef Network net = self.network
        self.n_states = net.n_states
        self.flags, self.least, self.most, self.labels = net.flags, net.least, net.most, net.labels
        self.slack = net.slack
        self.byte_edges, self.byte_first = net.bytes.rows, net.bytes.first
        self.token_edges, self.token_first = net.tokens.rows, net.tokens.first
        self.calls, self.calls_first = net.calls.rows, net.calls.first
        self.epsilon_edges, self.epsilon_first = net.epsilon.rows, net.epsilon.first
        self.charge(net.held() - self.network_bytes)
        self.network_bytes = net.held()
        return 0

    cdef int mend(self, object error, int32_t state) except -1:
        """Have the unit built that an operation came to, which begins anew; other errors get their place."""
        try:
            if not isinstance(error, NotBuilt):
                raise error
            self.program.units.build(self.missing)
            self.catch_up()
            self.allow(self.allowed)
        except GrammarError as found:
            raise self.located(found, state) from None
        return 0

    cdef int catch_up(self) except -1:
        """Read the pieces that were built since, for other parser states too."""
        if self.program.units is not None and self.network.catch_up():
            self.read_network()
        return 0

    def __dealloc__(self):
        pool_free(&self.stacks)
        pool_free(&self.states)
        rows_free(&self.rows)
        free(self.tapes)
        free(self.verdicts)
        free(self.made)
        free(self.chain)
        free(self.queued)
        free(self.queue)
        free(self.head)
        free(self.mark)
        free(self.pairs)

    # ------------------------------------------------------------------ for Python

    def start(self):
        """The parser state before the first byte."""
        self.allow(self.budget)
        while True:
            try:
                self.begin()
                if self.accepts_empty:
                    self.made_flags = ACCEPTS
                self.add(self.network.start, 0, BOTTOM)
                return self.finish()
            except (NotBuilt, GrammarError) as error:
                self.mend(error, DEAD)

    @property
    def work(self):
        """Units of work that all operations have taken so far."""
        return self.done + self.allowed - self.left

    def accepts(self, int32_t state):
        """Whether the text may end here."""
        return (self.states.flags[self.checked_state(state)] & ACCEPTS) != 0

    def advance(self, int32_t state, const uint8_t[::1] text not None):
        """The parser state after these bytes; 0 where they cannot follow."""
        cdef Py_ssize_t i = 0
        self.checked_state(state)
        while i < text.shape[0] and state != DEAD:
            try:
                self.allow(self.budget)
                state = self.run(state, &text[i], 1)
                i += 1
            except (NotBuilt, GrammarError) as error:
                self.mend(error, state)
        return state

    def advance_token(self, int32_t state, int32_t after_bytes, const uint8_t[::1] hits not None):
        """The parser state after a token.

        Parameters
        ----------
        state : before the token
        after_bytes : where its bytes lead, 0 where they cannot follow or do not count
        hits : for each token set of the program, whether it takes the token
        """
        self.checked_state(state)
        self.checked_state(after_bytes)
        if hits.shape[0] != self.n_token_sets:
            raise ValueError(f"hits: expected {self.n_token_sets} flags, got {hits.shape[0]}")
        self.allow(self.budget)
        while hits.shape[0]:
            try:
                return self.token_step(state, after_bytes, &hits[0])
            except (NotBuilt, GrammarError) as error:
                self.mend(error, state)
        return after_bytes

    def token_sets(self, int32_t state):
        """The token sets of the program that may follow here, in ascending order."""
        cdef int32_t i, e, q, n
        cdef set found = set()
        self.checked_state(state)
        for i in range(self.states.first[state], self.states.first[state + 1]):
            q, n = self.states.items[i].q, self.states.items[i].n
            for e in range(self.token_first[q], self.token_first[q + 1]):
                if self.after(self.token_edges + 3 * e, q, n) >= 0:
                    found.add(self.token_edges[3 * e])
        return sorted(found)

    def carry(self, int32_t state, ParserStates other not None):
        """The number in ``other``, of the same program, of a parser state of this one."""
        cdef int32_t i, p, first = self.states.first[self.checked_state(state)]
        cdef int32_t last = self.states.first[state + 1], m
        cdef uint8_t* wanted
        cdef int32_t* new
        cdef Item* items
        if other.program is not self.program:
            raise ValueError("other: belongs to another program")
        other.catch_up()
        wanted = <uint8_t*>calloc(self.stacks.n, 1)
        new = <int32_t*>calloc(self.stacks.n, 4)
        items = <Item*>malloc(sizeof(Item) * (MAX_WIDTH + 1))
        try:
            if not (wanted and new and items):
                raise MemoryError()
            for i in range(first, last):
                wanted[self.states.items[i].p] = 1
            for p in range(self.stacks.n - 1, 1, -1):  # what lies below has a lower number
                if wanted[p]:
                    for i in range(self.stacks.first[p], self.stacks.first[p + 1]):
                        wanted[self.stacks.items[i].p] = 1
            new[OPEN] = OPEN
            for p in range(2, self.stacks.n):
                if wanted[p]:
                    m = translate(&self.stacks, p, new, items)
                    for i in range(m):
                        if self.is_register(items[i].q):
                            items[i].n = self.registers.carried(items[i].n, other.registers)
                    sort_items(items, m)
                    new[p] = other.intern(&other.stacks, items, m, self.stacks.flags[p])
            m = translate(&self.states, state, new, items)
            other.made_tape = self.registers.carried_text(self.tapes[state], other.registers)
            return other.intern(&other.states, items, m, self.states.flags[state])
        finally:
            free(wanted)
            free(new)
            free(items)

    def located(self, object error, int32_t state):
        """The error of an operation on a parser state, with the place in the grammar if a part can tell it.

        It is that of the rule of most items, here and of what was being made.
        """
        cdef dict found = {-1: 0}
        cdef int32_t i, unit
        self.checked_state(state)
        if not isinstance(error, GrammarError):
            raise TypeError(f"error: expected a GrammarError, got {type(error)}")
        if self.program.units is None:
            return error
        for i in range(self.states.first[state], self.states.first[state + 1]):
            self.count_unit(self.states.items[i], found)
        for i in range(self.n_made):
            self.count_unit(self.made[i], found)
        unit = max(found, key=found.get)
        return error if unit < 0 else GrammarError(self.program.units.located(unit, str(error)))

    cdef int count_unit(self, Item item, dict found) except -1:
        """Count the unit of an item, -1 outside of all; in place of a rule that many have, the one it returns to."""
        cdef int32_t unit = self.network.unit_of(item.q), n_common = self.program.units.n_common
        while 0 <= unit < n_common and self.stacks.first[item.p] < self.stacks.first[item.p + 1]:
            item = self.stacks.items[self.stacks.first[item.p]]
            unit = self.network.unit_of(item.q)
            if unit < 0:
                return 0  # a part's rule that ends with a common one is not returned to
        if unit < 0 or unit >= n_common:
            found[unit] = found.get(unit, 0) + 1
        return 0

    cdef int checked_state(self, int32_t state) except -1:
        if not 0 <= state < self.states.n:
            raise IndexError(f"state: expected 0 to {self.states.n - 1}, got {state}")
        return state

    # ------------------------------------------------------------------ steps

    cdef int run(self, int32_t state, const uint8_t* text, Py_ssize_t n) except -1:
        cdef Py_ssize_t i
        cdef int32_t next
        ensure(0 <= state < self.states.n)
        for i in range(n):
            if self.states.flags[state] & TAPED:
                state = self.taped_step(state, text[i])
                if state == DEAD:
                    break
                continue
            next = entry(&self.rows, state, text[i])[0]
            state = next if next >= 0 else self.step(state, text[i])
            if state == DEAD:
                break
        return state

    cdef int step(self, int32_t state, uint8_t byte) except -1:
        """Make one step and keep where it leads, for all bytes that the same edges take."""
        cdef int32_t to
        ensure(not self.states.flags[state] & TAPED)
        self.begin()
        self.follow_edges(state, byte)
        to = self.finish()
        if self.registers.may_run_out and not self.is_alive(to):
            to = DEAD
        entry(&self.rows, state, byte)[0] = to
        return to

    cdef int follow_edges(self, int32_t state, uint8_t byte) except -1:
        """Put in what a byte leads to."""
        cdef int32_t i, e, n
        cdef Item item
        cdef const int32_t* edge
        for i in range(self.states.first[state], self.states.first[state + 1]):
            item = self.states.items[i]
            self.spend(1 + self.byte_first[item.q + 1] - self.byte_first[item.q])
            for e in range(self.byte_first[item.q], self.byte_first[item.q + 1]):
                edge = self.byte_edges + 3 * e
                if takes(self.labels, edge[0], byte):
                    n = self.after(edge, item.q, item.n)
                    if n >= 0:
                        self.add(edge[2], n, item.p)
        return 0

    cdef int token_step(self, int32_t state, int32_t after_bytes, const uint8_t* hits) except -1:
        cdef int32_t i, e, n
        cdef Item item
        cdef const int32_t* edge
        cdef bint hit = False
        self.begin()
        for i in range(self.states.first[state], self.states.first[state + 1]):
            item = self.states.items[i]
            for e in range(self.token_first[item.q], self.token_first[item.q + 1]):
                edge = self.token_edges + 3 * e
                if hits[edge[0]]:
                    n = self.after(edge, item.q, item.n)
                    if n >= 0:
                        self.add(edge[2], n, item.p)
                        hit = True
        if not hit:
            return after_bytes
        self.made_tape = self.tapes[after_bytes]
        self.made_flags |= self.states.flags[after_bytes] & RESULT_FLAGS
        for i in range(self.states.first[after_bytes], self.states.first[after_bytes + 1]):
            item = self.states.items[i]
            self.add(item.q, item.n, item.p)
        return self.finish()

    cdef inline int32_t after(self, const int32_t* edge, int32_t q, int32_t n) except -2:
        """The count that an edge leaves, -1 where the count does not allow it."""
        cdef int32_t op = edge[1], most
        if op & REGISTER:
            n = self.registers.after(op, n, self.slack[q] >> MARKS, self.made_tape)
            if n >= SOME and n - SOME & FRESH_BIT:
                self.made_flags |= FRESH
            return n
        if n >= ABOVE:
            if n == BELOW and op & ENOUGH:
                return -1
            op = op & COUNT_BITS
            return n if op == KEEP or op == NEXT else 1 if op == ONE else 0
        if op & ENOUGH and n < self.least[q]:
            return -1
        most = self.most[edge[2]] if op & MORE else -1
        op = op & COUNT_BITS
        if op == NEXT:
            n = min(n + 1, self.least[q]) if self.most[q] < 0 else n + 1
        elif op != KEEP:
            n = 1 if op == ONE else 0
        return -1 if 0 <= most < n else n

    cdef int32_t abstract_count(self, int32_t q, int32_t n, int32_t reach) noexcept:
        """The count that stands for ``n`` where no text of up to ``reach`` bytes can make a difference."""
        cdef int32_t least = self.least[q], most = self.most[q]
        if n >= ABOVE or most == 0:
            return n
        if most > 0 and most - self.slack[q] - n <= reach:
            return n
        return ABOVE if n >= least else BELOW if least - n > reach else n

    # ------------------------------------------------------------------ the parser state being made

    cdef int begin(self) except -1:
        self.n_made = 0
        self.n_queue = 0
        self.made_flags = 0
        self.made_tape = 0
        if self.generation == INT32_MAX:  # before the marks of an earlier round count again
            memset(self.mark, 0, 4 * <size_t>self.n_heads)
            self.generation = 0
        self.generation += 1
        return 0

    cdef int add(self, int32_t q, int32_t n, int32_t p) except -1:
        """Put an item in, or unite its stack with that of its like."""
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
            if self.n_made >= self.made_room:
                self.make_room()
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

    cdef int make_room(self) except -1:
        cdef int32_t room = min(MAX_WIDTH, max(64, 2 * self.made_room))
        if self.n_made >= MAX_WIDTH:
            raise GrammarError(f"grammar: expected at most {MAX_WIDTH} items in a parser state, got more")
        self.made = <Item*>grown(self.made, room * sizeof(Item))
        self.chain = <int32_t*>grown(self.chain, room * 4)
        self.queued = <uint8_t*>grown(self.queued, room)
        self.queue = <int32_t*>grown(self.queue, room * 4)
        self.made_room = room
        return 0

    cdef int pop(self, int32_t p) except -1:
        """Return to wherever a stack says."""
        cdef int32_t i
        cdef Item item
        self.spend(self.stacks.first[p + 1] - self.stacks.first[p])
        self.made_flags |= self.stacks.flags[p] & RESULT_FLAGS
        for i in range(self.stacks.first[p], self.stacks.first[p + 1]):
            item = self.stacks.items[i]
            self.add(item.q, item.n, item.p)
        return 0

    cdef int close(self) except -1:
        """Follow epsilon edges, calls and returns until nothing new comes."""
        cdef int32_t i, e, n
        cdef Item item
        cdef const int32_t* edge
        while self.n_queue:
            self.n_queue -= 1
            i = self.queue[self.n_queue]
            self.queued[i] = 0
            item = self.made[i]
            self.spend(1 + self.epsilon_first[item.q + 1] - self.epsilon_first[item.q]
                       + self.calls_first[item.q + 1] - self.calls_first[item.q])
            if self.flags[item.q] & FINAL:
                self.pop(item.p)
            for e in range(self.epsilon_first[item.q], self.epsilon_first[item.q + 1]):
                edge = self.epsilon_edges + 3 * e
                n = self.after(edge, item.q, item.n)
                if n >= 0:
                    self.add(edge[2], n, item.p)
            for e in range(self.calls_first[item.q], self.calls_first[item.q + 1]):
                edge = self.calls + 3 * e
                n = self.after(edge, item.q, item.n)
                if n >= 0:
                    self.add(self.called(edge[0]), 0, self.push(edge[2], n, item.p))
        return 0

    cdef int called(self, int32_t what) except -1:
        """The start state of what an edge calls."""
        if what < UNIT:
            return what
        self.missing = what - UNIT
        if self.missing >= self.network.n_units or self.network.unit_start[self.missing] < 0:
            raise NotBuilt
        return self.network.unit_start[self.missing]

    cdef int finish(self) except -1:
        """The number of the parser state that has been put in."""
        cdef int32_t i, n = 0
        self.close()
        for i in range(self.n_made):
            if self.flags[self.made[i].q] & CONSUMES:
                self.made[n] = self.made[i]
                n += 1
        sort_items(self.made, n)
        return self.intern(&self.states, self.made, self.drop_subsumed(self.made, n), self.made_flags)

    cdef int32_t drop_subsumed(self, Item* items, int32_t n) noexcept:
        """Drop sorted items that others cover: of counts that are enough, the lower allows all the higher does."""
        cdef int32_t i, j, kept = 0
        cdef Item item
        cdef bint covered
        for i in range(n):
            item = items[i]
            covered = False
            if self.most[item.q] > 0 and item.n < ABOVE:
                j = kept - 1
                while j >= max(0, kept - LOOK_BACK) and items[j].q == item.q and items[j].n >= self.least[item.q]:
                    covered = covered or items[j].p == item.p
                    j -= 1
            if not covered:
                items[kept] = item
                kept += 1
        return kept

    # ------------------------------------------------------------------ stacks

    cdef int push(self, int32_t q, int32_t n, int32_t p) except -1:
        """The stack of those who return to (q, n) and then to ``p``."""
        cdef int32_t one, flags = self.flags[q]
        if flags & PURE_FINAL:
            return p
        one = self.single(q, n, p)
        if flags & ENDS_ALWAYS or (flags & ENDS_IF_ENOUGH and n != BELOW and n >= self.least[q]):
            return self.unite(one, p, 0)
        return one

    cdef int single(self, int32_t q, int32_t n, int32_t p) except -1:
        cdef Item item = Item(q, n, p)
        return self.intern(&self.stacks, &item, 1, 0)

    cdef int unite(self, int32_t a, int32_t b, int depth) except -1:
        """The stack of all that are in either."""
        cdef uint64_t slot
        cdef int32_t i, j, m, n = 0, united
        cdef Item x, y
        cdef Item* merged
        if a == b:
            return a
        if a > b:
            a, b = b, a
        slot = mixed(<uint64_t>a << 32 | <uint32_t>b) & (self.pairs_size - 1)
        while self.pairs[slot].b:
            if self.pairs[slot].a == a and self.pairs[slot].b == b:
                return self.pairs[slot].union_
            slot = (slot + 1) & (self.pairs_size - 1)
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
        self.remember(a, b, united)
        return united

    cdef int remember(self, int32_t a, int32_t b, int32_t united) except -1:
        cdef Pair* old = self.pairs
        cdef int32_t i, old_size = self.pairs_size
        if 2 * self.n_pairs >= self.pairs_size:
            self.charge(old_size * sizeof(Pair))
            self.pairs = <Pair*>calloc(2 * old_size, sizeof(Pair))
            if not self.pairs:
                self.pairs = old
                raise MemoryError()
            self.pairs_size = 2 * old_size
            for i in range(old_size):
                if old[i].b:
                    put_pair(self.pairs, self.pairs_size, old[i])
            free(old)
        put_pair(self.pairs, self.pairs_size, Pair(a, b, united))
        self.n_pairs += 1
        return 0

    cdef int popped(self, int32_t p) except -1:
        """The parser state after the end of the subnetwork that was called with this stack."""
        self.begin()
        self.pop(p)
        return self.finish()

    # ------------------------------------------------------------------ members that are told apart

    cdef inline bint is_register(self, int32_t q) noexcept:
        """Whether the count of an RTN state is a register."""
        return self.least[q] != 0 and self.most[q] == 0

    cdef inline bint is_told_apart(self, int32_t q) noexcept:
        """Whether the register knows members by their texts, too, and not by the grammar's numbers alone."""
        return self.is_register(q) and self.slack[q] & BY_TEXT

    cdef int next(self, int32_t state, uint8_t byte) except -1:
        """A step that is not in the row. No step is while a value is under way: bytes of one column differ."""
        if self.states.flags[state] & TAPED:
            return self.taped_step(state, byte)
        return self.step(state, byte)

    cdef int taped_step(self, int32_t state, uint8_t byte) except -1:
        """A step while a value is under way, to where it can still become one that did not come before."""
        cdef int32_t to = self.unjudged_step(state, byte)
        return to if self.is_alive(to) else DEAD

    cdef int unjudged_step(self, int32_t state, uint8_t byte) except -1:
        if not self.states.flags[state] & TAPED:
            return self.run(state, &byte, 1)
        if entry(&self.rows, state, byte)[0] == DEAD:
            return DEAD
        self.begin()
        self.made_tape = self.registers.longer(self.tapes[state], byte)
        self.follow_edges(state, byte)
        return self.finish()

    cdef tuple open_in(self, int32_t state):
        """The registers of a parser state that have a value under way."""
        cdef set found = set()
        cdef int32_t i
        for i in range(self.states.first[state], self.states.first[state + 1]):
            found.update(self.open_in_stack(self.states.items[i].p, 0))
        return tuple(found)

    cdef tuple open_in_stack(self, int32_t p, int depth):
        cdef set found
        cdef int32_t i
        cdef Item item
        if not self.stacks.flags[p] & TAPED:
            return ()
        known = self.open_values.get(p)
        if known is not None:
            return known
        if depth > MAX_REGISTERED:
            raise too_deep()
        found = set()
        for i in range(self.stacks.first[p], self.stacks.first[p + 1]):
            item = self.stacks.items[i]
            if self.is_register(item.q) and self.registers.registers[item.n].begin >= 0:
                found.add(item.n)
            found.update(self.open_in_stack(item.p, depth + 1))
        self.charge(100)
        known = self.open_values[p] = tuple(found)
        return known

    cdef bint is_hot(self, int32_t state) except -1:
        """Whether a value under way is so far the beginning of one that came before."""
        cdef int32_t i, n, last = -1, tape = self.tapes[state]
        for i in range(self.states.first[state], self.states.first[state + 1]):
            if self.states.items[i].p == last:
                continue  # items of one value share its stack
            last = self.states.items[i].p
            for n in self.open_in_stack(last, 0):
                if self.registers.registers[n].members and self.registers.is_hot(
                    self.registers.registers[n].members, self.registers.suffix(tape, self.registers.registers[n].begin)
                ):
                    return True
        return False

    cdef bint is_alive(self, int32_t state) except -1:
        """Whether some text can be gone on with, which is only in doubt where a value may have to be an old one."""
        if self.verdicts[state] == 2:
            return False
        if not self.states.flags[state] & TAPED or self.verdicts[state] == 1:
            return state != DEAD
        if not self.is_hot(state):
            self.verdicts[state] = 1
            return True
        return self.is_saved(state)

    cdef bint is_saved(self, int32_t state) except -1:
        """Whether a value that begins like an old one can become another."""
        cdef list path = [], next_byte = []
        cdef int32_t at, to, byte
        path.append(state)
        next_byte.append(0)
        while path:
            at, byte = path[len(path) - 1], next_byte[len(path) - 1]
            if byte == 256:
                self.verdicts[at] = 2
                path.pop()
                next_byte.pop()
                continue
            next_byte[len(path) - 1] = byte + 1
            if self.registers.texts[self.tapes[at]].inside == 0 and (byte == 0x20 or 0x09 <= byte <= 0x0D):
                continue  # there is always a way without
            to = self.unjudged_step(at, <uint8_t>byte)
            if to == DEAD or self.verdicts[to] == 2:
                continue
            if not self.states.flags[to] & TAPED or self.verdicts[to] == 1 or not self.is_hot(to):
                for at in path:
                    self.verdicts[at] = 1
                return True
            path.append(to)
            next_byte.append(0)
        return False

    cdef int32_t abstracted(self, int32_t state) except -1:
        """The parser state with abstract registers: what of a mask does not depend on the values that came."""
        cdef int32_t i, n = self.states.first[state + 1] - self.states.first[state]
        cdef Item* items = <Item*>malloc(sizeof(Item) * (n + 1))
        if not items:
            raise MemoryError()
        try:
            for i in range(n):
                items[i] = self.states.items[self.states.first[state] + i]
                items[i].p = self.abstracted_stack(items[i].p, 0)
            n = distinct_items(items, n)
            return self.intern(&self.states, items, n, self.states.flags[state] & RESULT_FLAGS)
        finally:
            free(items)

    cdef int32_t abstracted_stack(self, int32_t p, int depth) except -1:
        cdef int32_t i, n = self.stacks.first[p + 1] - self.stacks.first[p]
        cdef Item* items
        if not self.stacks.flags[p] & REGISTERED:
            return p
        known = self.abstracts.get(p)
        if known is not None:
            return known
        if depth > MAX_REGISTERED:
            raise too_deep()
        items = <Item*>malloc(sizeof(Item) * (n + 1))
        if not items:
            raise MemoryError()
        try:
            for i in range(n):
                items[i] = self.stacks.items[self.stacks.first[p] + i]
                if self.is_told_apart(items[i].q):
                    items[i].n = self.registers.abstract(
                        items[i].n, self.least[items[i].q], self.slack[items[i].q] >> MARKS
                    )
                items[i].p = self.abstracted_stack(self.stacks.items[self.stacks.first[p] + i].p, depth + 1)
            n = distinct_items(items, n)
            i = self.intern(&self.stacks, items, n, self.stacks.flags[p] & RESULT_FLAGS)
        finally:
            free(items)
        self.charge(100)
        self.abstracts[p] = i
        return i

    # ------------------------------------------------------------------ keeping

    cdef int charge(self, Py_ssize_t more) except -1:
        self.n_bytes += more
        if self.n_bytes > self.limit:
            raise GrammarError(f"grammar: expected at most {self.limit >> 20} MB of parser states, got more")
        return 0

    cdef void allow(self, Py_ssize_t work) noexcept:
        """Begin an operation that may take so much work."""
        self.done += self.allowed - self.left
        self.allowed = self.left = work
        self.n_made = 0

    cdef inline int spend(self, Py_ssize_t work) except -1:
        self.left -= work
        if self.left < 0:
            raise GrammarError(f"grammar: expected at most {self.budget} units of work for a mask or a token, got more")
        return 0

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
            self.charge(5 + add_row(&self.rows, i, self.network, items, n))
        if end > pool.items_room:
            pool.items = <Item*>grown(pool.items, 2 * <Py_ssize_t>end * sizeof(Item))
            pool.items_room = 2 * end
        if i + 2 > pool.room:
            pool.first = <int32_t*>grown(pool.first, 2 * <Py_ssize_t>pool.room * 4)
            pool.flags = <uint8_t*>grown(pool.flags, 2 * <Py_ssize_t>pool.room)
            pool.room *= 2
        if pool == &self.states and i >= self.states_room:
            self.states_room = max(64, 2 * self.states_room)
            self.tapes = <int32_t*>grown(self.tapes, <Py_ssize_t>self.states_room * 4)
            self.verdicts = <uint8_t*>grown(self.verdicts, self.states_room)
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


# --------------------------------------------------------------------------- plain C

cdef object too_deep():
    return GrammarError(f"grammar: expected at most {MAX_REGISTERED} containers around a value that is told apart, "
                        "got more")


cdef int32_t distinct_items(Item* items, int32_t n) noexcept:
    """Sort items and drop repeats; returns how many are left."""
    cdef int32_t i, kept = 0
    sort_items(items, n)
    for i in range(n):
        if kept == 0 or item_order(&items[kept - 1], &items[i]) != 0:
            items[kept] = items[i]
            kept += 1
    return kept


cdef inline void put_pair(Pair* pairs, int32_t size, Pair pair) noexcept:
    cdef uint64_t slot = mixed(<uint64_t>pair.a << 32 | <uint32_t>pair.b) & (size - 1)
    while pairs[slot].b:
        slot = (slot + 1) & (size - 1)
    pairs[slot] = pair
