"""Where a grammar stands: sets of (state, count, stack), each kept once and known by a number.

A stack is a set too, of (return state, its count, the stack below): all callers of one frame at one place
share it, so ambiguity widens sets and does not multiply them (Tomita's graph-structured stack, hash-consed).
Entries that differ in their stacks only are merged, the stacks united. A return after which nothing is left
to read is not pushed at all, so right recursion needs no stack.

From a number and a class of bytes a table leads to the next number. It is filled as it is asked for.
Nothing here is thread-safe by itself: every method runs under the interpreter lock.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy

from oxillama.errors import GrammarError

cnp.import_array()

cdef enum:  # of states; oxillama.grammar.program
    FINAL = 1
    CONSUMES = 2
    PURE_FINAL = 4
    ENDS_ALWAYS = 8
    ENDS_IF_ENOUGH = 16

cdef enum:  # of edges; oxillama.grammar.network
    MORE = 1
    ENOUGH = 2
    COUNT_BITS = 12
    KEEP = 4
    NEXT = 8
    ONE = 12

cdef enum:
    MAX_WIDTH = 4096      # entries of one configuration or stack
    LOOK_BACK = 8         # entries that one is compared with to see whether they cover it
    MAX_UNION_DEPTH = 500  # deeper stacks are not united but kept side by side


cdef class Configurations:
    """All configurations of a program that have been met.

    Parameters
    ----------
    program : oxillama.grammar.program.Program
    limit : bytes of memory beyond which GrammarError is raised
    """

    def __cinit__(self, object program, Py_ssize_t limit):
        self.program = program
        self.limit = limit
        self.n_states = len(program.flags)
        self.n_classes = program.labels.shape[1]
        self.flags = ints(program.flags)
        self.least = ints(program.least)
        self.most = ints(program.most)
        self.byte_edges = ints(program.byte_edges)
        self.byte_first = ints(program.byte_first)
        self.token_edges = ints(program.token_edges)
        self.token_first = ints(program.token_first)
        self.calls = ints(program.calls)
        self.calls_first = ints(program.calls_first)
        self.free_edges = ints(program.free)
        self.free_first = ints(program.free_first)
        self.labels = <uint8_t*>cnp.PyArray_DATA(<cnp.ndarray>program.labels)
        self.class_of = <uint8_t*>cnp.PyArray_DATA(<cnp.ndarray>program.class_of)
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
        pool_alloc(&self.configs)
        self.intern(&self.stacks, NULL, 0, ACCEPTS)  # BOTTOM
        self.intern(&self.stacks, NULL, 0, ESCAPES)  # OPEN
        self.intern(&self.configs, NULL, 0, 0)  # DEAD

    def __dealloc__(self):
        pool_free(&self.stacks)
        pool_free(&self.configs)
        free(self.rows)
        free(self.work)
        free(self.chain)
        free(self.queued)
        free(self.queue)
        free(self.head)
        free(self.mark)
        free(self.pairs)

    # ------------------------------------------------------------------ for Python

    @property
    def n_configurations(self):
        """How many configurations have been met."""
        return self.configs.n

    @property
    def n_stacks(self):
        """How many stacks have been met."""
        return self.stacks.n

    def start(self):
        """The configuration before the first byte."""
        self.begin()
        if self.program.accepts_empty:
            self.work_flags = ACCEPTS
        self.add(self.program.start, 0, BOTTOM)
        return self.finish()

    def accepts(self, int32_t config):
        """Whether the text may end here."""
        return self.checked(config) and (self.configs.flags[config] & ACCEPTS) != 0

    def advance(self, int32_t config, const uint8_t[::1] text):
        """The configuration after these bytes; 0 where they cannot follow."""
        self.checked(config)
        return self.run(config, &text[0], text.shape[0]) if text.shape[0] else config

    def advance_token(self, int32_t config, int32_t after_bytes, const uint8_t[::1] hits):
        """The configuration after a token.

        Parameters
        ----------
        config : before the token
        after_bytes : where its bytes lead, 0 where they cannot follow or do not count
        hits : for each token set of the program, whether it takes the token
        """
        self.checked(config)
        self.checked(after_bytes)
        if hits.shape[0] != len(self.program.token_sets):
            raise ValueError(f"hits: expected {len(self.program.token_sets)} flags, got {hits.shape[0]}")
        return self.token_step(config, after_bytes, &hits[0]) if hits.shape[0] else after_bytes

    def token_sets(self, int32_t config):
        """The token sets of the program that may follow here, in ascending order."""
        cdef int32_t i, e, q, n
        cdef set found = set()
        self.checked_config(config)
        for i in range(self.configs.first[config], self.configs.first[config + 1]):
            q, n = self.configs.entries[i].q, self.configs.entries[i].n
            for e in range(self.token_first[q], self.token_first[q + 1]):
                if self.after(self.token_edges[3 * e + 1], q, n) >= 0:
                    found.add(self.token_edges[3 * e])
        return sorted(found)

    def forced(self, int32_t config, Py_ssize_t most):
        """The bytes that must follow, up to ``most`` of them: while the text may not end, only one can."""
        cdef bytearray text = bytearray()
        cdef int32_t i, c, byte, only, next
        cdef int32_t* bytes_of = <int32_t*>calloc(2 * self.n_classes, 4)  # how many, and one of them
        self.checked_config(config)
        if not bytes_of:
            raise MemoryError()
        try:
            for byte in range(256):
                bytes_of[2 * self.class_of[byte]] += 1
                bytes_of[2 * self.class_of[byte] + 1] = byte
            while config != DEAD and len(text) < most and not self.configs.flags[config] & ACCEPTS:
                only, next = -1, DEAD
                for c in range(self.n_classes):
                    i = self.rows[<Py_ssize_t>config * self.n_classes + c]
                    i = i if i >= 0 else self.step(config, c)
                    if i != DEAD:
                        if only >= 0 or bytes_of[2 * c] != 1:
                            return bytes(text)
                        only, next = bytes_of[2 * c + 1], i
                if only < 0 or self.token_sets(config):
                    break
                text.append(only)
                config = next
            return bytes(text)
        finally:
            free(bytes_of)

    def width(self, int32_t config):
        """Number of (state, count, stack) entries of a configuration."""
        self.checked(config)
        return self.configs.first[config + 1] - self.configs.first[config]

    def carry(self, int32_t config, Configurations other):
        """The number in ``other``, of the same program, of a configuration of this one."""
        cdef int32_t i, p, first = self.configs.first[self.checked_config(config)]
        cdef int32_t last = self.configs.first[config + 1], m
        cdef uint8_t* wanted
        cdef int32_t* new
        cdef Entry* entries
        if other.program is not self.program:
            raise ValueError("other: belongs to another program")
        wanted = <uint8_t*>calloc(self.stacks.n, 1)
        new = <int32_t*>calloc(self.stacks.n, 4)
        entries = <Entry*>malloc(sizeof(Entry) * (MAX_WIDTH + 1))
        try:
            if not (wanted and new and entries):
                raise MemoryError()
            for i in range(first, last):
                wanted[self.configs.entries[i].p] = 1
            for p in range(self.stacks.n - 1, 1, -1):  # what lies below has a lower number
                if wanted[p]:
                    for i in range(self.stacks.first[p], self.stacks.first[p + 1]):
                        wanted[self.stacks.entries[i].p] = 1
            new[OPEN] = OPEN
            for p in range(2, self.stacks.n):
                if wanted[p]:
                    m = translate(&self.stacks, p, new, entries)
                    new[p] = other.intern(&other.stacks, entries, m, self.stacks.flags[p])
            m = translate(&self.configs, config, new, entries)
            return other.intern(&other.configs, entries, m, self.configs.flags[config])
        finally:
            free(wanted)
            free(new)
            free(entries)

    cdef int checked_config(self, int32_t config) except -1:
        if not 0 <= config < self.configs.n:
            raise IndexError(f"configuration {config}: there are {self.configs.n}")
        return config

    def checked(self, int32_t config):
        """True; IndexError where there is no such configuration."""
        return self.checked_config(config) >= 0

    # ------------------------------------------------------------------ steps

    cdef int run(self, int32_t config, const uint8_t* text, Py_ssize_t n) except -1:
        cdef Py_ssize_t i
        cdef int32_t next
        for i in range(n):
            next = self.rows[<Py_ssize_t>config * self.n_classes + self.class_of[text[i]]]
            config = next if next >= 0 else self.step(config, self.class_of[text[i]])
            if config == DEAD:
                break
        return config

    cdef int step(self, int32_t config, int byte_class) except -1:
        """Make one step and keep it in the table."""
        cdef int32_t i, e, n, to
        cdef Entry entry
        cdef const int32_t* edge
        self.begin()
        for i in range(self.configs.first[config], self.configs.first[config + 1]):
            entry = self.configs.entries[i]
            for e in range(self.byte_first[entry.q], self.byte_first[entry.q + 1]):
                edge = self.byte_edges + 3 * e
                if self.labels[edge[0] * self.n_classes + byte_class]:
                    n = self.after(edge[1], entry.q, entry.n)
                    if n >= 0:
                        self.add(edge[2], n, entry.p)
        to = self.finish()
        self.rows[<Py_ssize_t>config * self.n_classes + byte_class] = to
        return to

    cdef int token_step(self, int32_t config, int32_t after_bytes, const uint8_t* hits) except -1:
        cdef int32_t i, e, n
        cdef Entry entry
        cdef const int32_t* edge
        cdef bint hit = False
        self.begin()
        for i in range(self.configs.first[config], self.configs.first[config + 1]):
            entry = self.configs.entries[i]
            for e in range(self.token_first[entry.q], self.token_first[entry.q + 1]):
                edge = self.token_edges + 3 * e
                if hits[edge[0]]:
                    n = self.after(edge[1], entry.q, entry.n)
                    if n >= 0:
                        self.add(edge[2], n, entry.p)
                        hit = True
        if not hit:
            return after_bytes
        self.work_flags |= self.configs.flags[after_bytes] & RESULTS
        for i in range(self.configs.first[after_bytes], self.configs.first[after_bytes + 1]):
            entry = self.configs.entries[i]
            self.add(entry.q, entry.n, entry.p)
        return self.finish()

    cdef inline int32_t after(self, int32_t op, int32_t q, int32_t n) noexcept:
        """The count that an edge leaves, -1 where the count does not allow it."""
        if n >= FAR:
            if n == BELOW and op & ENOUGH:
                return -1
            op = op & COUNT_BITS
            return n if op == KEEP or op == NEXT else 1 if op == ONE else 0
        if op & MORE and self.most[q] >= 0 and n >= self.most[q]:
            return -1
        if op & ENOUGH and n < self.least[q]:
            return -1
        op = op & COUNT_BITS
        if op == KEEP:
            return n
        if op == NEXT:
            return min(n + 1, self.least[q]) if self.most[q] < 0 else n + 1
        return 1 if op == ONE else 0

    # ------------------------------------------------------------------ the configuration being made

    cdef int begin(self) except -1:
        self.n_work = 0
        self.n_queue = 0
        self.work_flags = 0
        self.generation += 1
        return 0

    cdef int add(self, int32_t q, int32_t n, int32_t p) except -1:
        """Put an entry in, or unite its stack with that of its like."""
        cdef int32_t i = -1, united, slot = <int32_t>((<uint32_t>q + <uint32_t>n * 2654435761U) & (self.n_heads - 1))
        if self.mark[slot] == self.generation:
            i = self.head[slot]
            while i >= 0 and (self.work[i].q != q or self.work[i].n != n):
                i = self.chain[i]
        if i >= 0:
            united = self.unite(self.work[i].p, p, 0)
            if united == self.work[i].p:
                return 0
            self.work[i].p = united
        else:
            if self.n_work >= self.work_room:
                self.make_room()
            i = self.n_work
            self.n_work += 1
            self.work[i] = Entry(q, n, p)
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
        cdef int32_t room = min(MAX_WIDTH, max(64, 2 * self.work_room))
        if self.n_work >= MAX_WIDTH:
            raise GrammarError(f"grammar: more than {MAX_WIDTH} alternatives are open at one place")
        self.work = <Entry*>grown(self.work, room * sizeof(Entry))
        self.chain = <int32_t*>grown(self.chain, room * 4)
        self.queued = <uint8_t*>grown(self.queued, room)
        self.queue = <int32_t*>grown(self.queue, room * 4)
        self.work_room = room
        return 0

    cdef int pop(self, int32_t p) except -1:
        """Return to wherever a stack says."""
        cdef int32_t i
        cdef Entry entry
        self.work_flags |= self.stacks.flags[p] & RESULTS
        for i in range(self.stacks.first[p], self.stacks.first[p + 1]):
            entry = self.stacks.entries[i]
            self.add(entry.q, entry.n, entry.p)
        return 0

    cdef int close(self) except -1:
        """Follow free edges, calls and returns until nothing new comes."""
        cdef int32_t i, e, n
        cdef Entry entry
        cdef const int32_t* edge
        while self.n_queue:
            self.n_queue -= 1
            i = self.queue[self.n_queue]
            self.queued[i] = 0
            entry = self.work[i]
            if self.flags[entry.q] & FINAL:
                self.pop(entry.p)
            for e in range(self.free_first[entry.q], self.free_first[entry.q + 1]):
                edge = self.free_edges + 3 * e
                n = self.after(edge[1], entry.q, entry.n)
                if n >= 0:
                    self.add(edge[2], n, entry.p)
            for e in range(self.calls_first[entry.q], self.calls_first[entry.q + 1]):
                edge = self.calls + 3 * e
                n = self.after(edge[1], entry.q, entry.n)
                if n >= 0:
                    self.add(edge[0], 0, self.push(edge[2], n, entry.p))
        return 0

    cdef int finish(self) except -1:
        """The number of the configuration that has been put in."""
        cdef int32_t i, n = 0
        self.close()
        for i in range(self.n_work):
            if self.flags[self.work[i].q] & CONSUMES:
                self.work[n] = self.work[i]
                n += 1
        sort_entries(self.work, n)
        return self.intern(&self.configs, self.work, self.uncovered(self.work, n), self.work_flags)

    cdef int32_t uncovered(self, Entry* entries, int32_t n) noexcept:
        """Drop sorted entries that others cover: of counts that are enough, the lower allows all the higher does."""
        cdef int32_t i, j, kept = 0
        cdef Entry entry
        cdef bint covered
        for i in range(n):
            entry = entries[i]
            covered = False
            if self.most[entry.q] > 0 and entry.n < FAR:
                j = kept - 1
                while j >= max(0, kept - LOOK_BACK) and entries[j].q == entry.q and entries[j].n >= self.least[entry.q]:
                    covered = covered or entries[j].p == entry.p
                    j -= 1
            if not covered:
                entries[kept] = entry
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
        cdef Entry entry = Entry(q, n, p)
        return self.intern(&self.stacks, &entry, 1, 0)

    cdef int unite(self, int32_t a, int32_t b, int depth) except -1:
        """The stack of all that are in either."""
        cdef uint64_t slot
        cdef int32_t i, j, m, n = 0, united
        cdef Entry x, y
        cdef Entry* merged
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
        merged = <Entry*>malloc(
            sizeof(Entry) * (self.stacks.first[a + 1] - i + self.stacks.first[b + 1] - m + 1)
        )
        if not merged:
            raise MemoryError()
        try:
            j = m
            while i < self.stacks.first[a + 1] or j < self.stacks.first[b + 1]:
                if j == self.stacks.first[b + 1]:
                    merged[n] = self.stacks.entries[i]
                    i += 1
                elif i == self.stacks.first[a + 1]:
                    merged[n] = self.stacks.entries[j]
                    j += 1
                else:
                    x, y = self.stacks.entries[i], self.stacks.entries[j]
                    if x.q == y.q and x.n == y.n and (x.p == y.p or depth < MAX_UNION_DEPTH):
                        united = self.unite(x.p, y.p, depth + 1)
                        merged[n] = Entry(x.q, x.n, united)
                        i += 1
                        j += 1
                    elif entry_order(&x, &y) < 0:
                        merged[n] = x
                        i += 1
                    else:
                        merged[n] = y
                        j += 1
                n += 1
            sort_entries(merged, n)
            n = self.uncovered(merged, n)
            if n > MAX_WIDTH:
                raise GrammarError(f"grammar: more than {MAX_WIDTH} returns are open at one place")
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
        """The configuration after the frame that was called with this stack has ended."""
        self.begin()
        self.pop(p)
        return self.finish()

    # ------------------------------------------------------------------ keeping

    cdef int charge(self, Py_ssize_t more) except -1:
        self.n_bytes += more
        if self.n_bytes > self.limit:
            raise GrammarError(f"grammar: following it needs more than {self.limit >> 20} MB")
        return 0

    cdef void start_row(self, int32_t config) noexcept:
        """Tell the classes that some edge takes from those that lead nowhere."""
        cdef int32_t* row = self.rows + <Py_ssize_t>config * self.n_classes
        cdef const uint8_t* takes
        cdef int32_t i, e, k, q
        for k in range(self.n_classes):
            row[k] = DEAD
        for i in range(self.configs.first[config], self.configs.first[config + 1]):
            q = self.configs.entries[i].q
            for e in range(self.byte_first[q], self.byte_first[q + 1]):
                takes = self.labels + self.byte_edges[3 * e] * self.n_classes
                for k in range(self.n_classes):
                    row[k] |= -<int32_t>takes[k]  # UNKNOWN is -1

    cdef int intern(self, Pool* pool, const Entry* entries, int32_t n, uint8_t flags) except -1:
        """The number of a set of sorted entries."""
        cdef uint64_t slot
        cdef int32_t i, end
        for i in range(n):
            if entries[i].n >= FAR or self.stacks.flags[entries[i].p] & FARAWAY:
                flags |= FARAWAY
        slot = hashed(entries, n, flags) & (pool.table_size - 1)
        while pool.table[slot] >= 0:
            i = pool.table[slot]
            if (pool.flags[i] == flags and pool.first[i + 1] - pool.first[i] == n
                    and memcmp(pool.entries + pool.first[i], entries, n * sizeof(Entry)) == 0):
                return i
            slot = (slot + 1) & (pool.table_size - 1)
        i = pool.n
        end = pool.first[i] + n
        self.charge((4 * self.n_classes if pool == &self.configs else 0) + n * sizeof(Entry) + 16)
        if end > pool.entries_room:
            pool.entries = <Entry*>grown(pool.entries, 2 * <Py_ssize_t>end * sizeof(Entry))
            pool.entries_room = 2 * end
        if i + 2 > pool.room:
            pool.first = <int32_t*>grown(pool.first, 2 * <Py_ssize_t>pool.room * 4)
            pool.flags = <uint8_t*>grown(pool.flags, 2 * <Py_ssize_t>pool.room)
            pool.room *= 2
        if pool == &self.configs and i >= self.rows_room:
            self.rows_room = max(64, 2 * self.rows_room)
            self.rows = <int32_t*>grown(self.rows, <Py_ssize_t>self.rows_room * self.n_classes * 4)
        memcpy(pool.entries + pool.first[i], entries, n * sizeof(Entry))
        pool.first[i + 1] = end
        pool.flags[i] = flags
        pool.table[slot] = i
        pool.n += 1
        if pool == &self.configs:
            self.start_row(i)
        if 2 * pool.n > pool.table_size:
            rehash(pool)
        return i


# --------------------------------------------------------------------------- plain C

cdef inline int32_t* ints(cnp.ndarray a) except? NULL:
    if cnp.PyArray_TYPE(a) != cnp.NPY_INT32 or not cnp.PyArray_IS_C_CONTIGUOUS(a):
        raise TypeError("program: expected contiguous arrays of int32")
    return <int32_t*>cnp.PyArray_DATA(a)


cdef void* grown(void* old, Py_ssize_t n) except NULL:
    cdef void* new = realloc(old, n)
    if not new:
        raise MemoryError()
    return new


cdef int pool_alloc(Pool* pool) except -1:
    cdef int32_t i
    pool.n = 0
    pool.room = pool.entries_room = 64
    pool.table_size = 256
    pool.first = <int32_t*>malloc(4 * pool.room)
    pool.flags = <uint8_t*>malloc(pool.room)
    pool.entries = <Entry*>malloc(sizeof(Entry) * pool.entries_room)
    pool.table = <int32_t*>malloc(4 * pool.table_size)
    if not (pool.first and pool.flags and pool.entries and pool.table):
        raise MemoryError()
    pool.first[0] = 0
    for i in range(pool.table_size):
        pool.table[i] = -1
    return 0


cdef void pool_free(Pool* pool) noexcept:
    free(pool.first)
    free(pool.flags)
    free(pool.entries)
    free(pool.table)


cdef int rehash(Pool* pool) except -1:
    cdef int32_t i, size = 2 * pool.table_size
    cdef uint64_t slot
    pool.table = <int32_t*>grown(pool.table, 4 * <Py_ssize_t>size)
    pool.table_size = size
    for i in range(size):
        pool.table[i] = -1
    for i in range(pool.n):
        slot = hashed(pool.entries + pool.first[i], pool.first[i + 1] - pool.first[i], pool.flags[i]) & (size - 1)
        while pool.table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        pool.table[slot] = i
    return 0


cdef uint64_t hashed(const Entry* entries, int32_t n, uint8_t flags) noexcept:
    cdef uint64_t h = flags + 1
    cdef int32_t i
    for i in range(n):
        h = mixed(h ^ (<uint64_t><uint32_t>entries[i].q << 32 | <uint32_t>entries[i].p)) + <uint32_t>entries[i].n
    return mixed(h)


cdef inline void put_pair(Pair* pairs, int32_t size, Pair pair) noexcept:
    cdef uint64_t slot = mixed(<uint64_t>pair.a << 32 | <uint32_t>pair.b) & (size - 1)
    while pairs[slot].b:
        slot = (slot + 1) & (size - 1)
    pairs[slot] = pair


cdef inline int entry_order(const Entry* a, const Entry* b) noexcept nogil:
    if a.q != b.q:
        return -1 if a.q < b.q else 1
    if a.n != b.n:
        return -1 if a.n < b.n else 1
    return (a.p > b.p) - (a.p < b.p)


cdef int compare_entries(const void* a, const void* b) noexcept nogil:
    return entry_order(<const Entry*>a, <const Entry*>b)


cdef void sort_entries(Entry* entries, int32_t n) noexcept:
    cdef int32_t i, j
    cdef Entry entry
    if n > 24:
        qsort(entries, n, sizeof(Entry), compare_entries)
        return
    for i in range(1, n):
        entry = entries[i]
        j = i
        while j > 0 and entry_order(&entries[j - 1], &entry) > 0:
            entries[j] = entries[j - 1]
            j -= 1
        entries[j] = entry


cdef int32_t translate(Pool* pool, int32_t i, const int32_t* new, Entry* out) noexcept:
    """A set's entries with new stack numbers, sorted; returns how many."""
    cdef int32_t n = pool.first[i + 1] - pool.first[i], k
    for k in range(n):
        out[k] = pool.entries[pool.first[i] + k]
        out[k].p = new[out[k].p]
    sort_entries(out, n)
    return n
