"""Which tokens a grammar allows, as bitmasks.

The mask of a configuration is the union over its entries (state, count, stack), and an entry's tokens are found
in two parts. What a state allows without a look at its stack is found once, by a walk over the trie with an
open stack, and kept for all configurations with that state in them: a *local* mask, and the *escapes*, the
nodes at which the state's frame has ended and the rest of the token is up to the stack. Escapes are
then followed with the real stack; they are few.

Three things keep the walks short. Where the trie is large below a node, the walk stops and takes the union over
the entries there, so that the parts come from locals again. Where a state reads characters of one class in a
loop, a slice (trie.pyx) has nearly all of its tokens ready. And a count that no token can bring to its bound
is replaced by one that stands for all such counts (FAR, BELOW).
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from oxillama._kernels.grammar.configurations cimport (
    BELOW, DEAD, ESCAPES, FAR, FARAWAY, OPEN, Configurations, Entry, mixed,
)
from oxillama._kernels.grammar.trie cimport UPTO, Nodes, Slice, Trie

import time

from oxillama.errors import GrammarError

cnp.import_array()

cdef enum:
    KEPT = 64           # nodes below an escape, or escapes, for which what was found is kept
    OF_LOCALS = -(1 << 24)  # in place of a state, less a local's number: what its escapes came to
    MAX_LEVEL = 48      # walks inside walks; deeper ones go on plainly
    MAX_LIST = 512      # tokens of a local kept as a list and not as a mask
    MAX_VISITS = 20000000  # nodes for one mask

cdef struct Escape:
    # A node at which the frame has ended. Or, with ``loop``, any place along a run of these characters:
    # then ``nodes`` are what may follow the run.
    Nodes* nodes
    int32_t node, part  # the slice's number, -1 for the whole trie
    const uint8_t* loop


cdef struct Out:
    uint32_t* bits
    Escape* escapes
    int32_t n_escapes, room
    bint wide           # more escapes than are kept: what has been found is of no use


cdef struct Local:
    int32_t q, n, node
    int32_t n_tokens, n_escapes
    bint wide
    uint32_t* bits      # the tokens as a mask, or
    int32_t* tokens     # as a list
    Escape* escapes


cdef struct Loop:
    # What a configuration does with single characters: those in ``start`` lead to ``to``, which those in ``loop``
    # leave where it is. ASCII characters, and all others as one; covers: no other character can follow at all.
    # ends_run: 1 if only the counted entry takes them after a run, -1 if others do, 0 if that is not known yet.
    bint known, found, covers, same
    int32_t to, ends_run
    uint8_t start[129]
    uint8_t loop[129]


cdef struct Run:
    # The lengths that a run of a counted class may have; the state, its count and its stack; where the stack
    # returns to, -1 until that is known; whether the configurations met have true counts.
    int32_t least, most, q, n, p, config
    bint exact
    uint8_t byte        # a character of the class


cdef class Matcher:
    """The tokens of a vocabulary that can follow in each configuration.

    Attributes
    ----------
    large : nodes below one at which a walk takes the union over entries
    sliced : nodes below one for which slices are made
    min_loop : characters of a loop that is worth a slice
    max_escapes : escapes of a local; a state with more is walked with its real stack each time
    """

    cdef public int large, sliced, min_loop, max_escapes
    cdef readonly Trie trie
    cdef readonly Configurations configs
    cdef Local* locals
    cdef int32_t* table      # hash table of local numbers, -1 where free
    cdef int32_t n_locals, room, table_size
    cdef Loop** loops        # by configuration
    cdef int32_t loops_room
    cdef list slices         # those that escapes point into
    cdef int32_t* paths      # (levels, depths): configurations along the way of each walk
    cdef int32_t path_length
    cdef uint32_t* scratch   # (words)
    cdef uint8_t* text       # (depths): the bytes along a walk after a run
    cdef Py_ssize_t visits

    def __cinit__(self, Trie trie, Configurations configs):
        cdef int32_t i
        self.trie = trie
        self.configs = configs
        self.slices = []
        self.large, self.sliced, self.min_loop, self.max_escapes = 256, 4096, 16, 4096
        self.path_length = trie.max_depth + 1
        self.table_size = 256
        self.paths = <int32_t*>malloc(4 * <Py_ssize_t>self.path_length * (MAX_LEVEL + 2))
        self.table = <int32_t*>malloc(4 * self.table_size)
        self.scratch = <uint32_t*>malloc(4 * trie.n_words)
        self.text = <uint8_t*>malloc(trie.max_depth + 1)
        if not (self.paths and self.table and self.scratch and self.text):
            raise MemoryError()
        for i in range(self.table_size):
            self.table[i] = -1

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.n_locals):
            free(self.locals[i].bits)
            free(self.locals[i].tokens)
            free(self.locals[i].escapes)
        for i in range(self.loops_room):
            free(self.loops[i])
        free(self.locals)
        free(self.table)
        free(self.loops)
        free(self.paths)
        free(self.scratch)
        free(self.text)

    # ------------------------------------------------------------------ for Python

    def advance(self, int32_t config, int32_t token):
        """The configuration after a token's bytes; 0 where they cannot follow."""
        cdef int32_t first
        if not 0 <= token < self.trie.n_vocab:
            raise IndexError(f"token {token}: the vocabulary has {self.trie.n_vocab}")
        self.configs.checked_config(config)
        if not self.trie.inside[token]:
            return DEAD
        first = self.trie.first[token]
        return self.configs.run(config, self.trie.data + first, self.trie.first[token + 1] - first)

    def fill(self, int32_t config, cnp.ndarray mask):
        """Set the bits of all tokens of the trie that can follow.

        Parameters
        ----------
        config : a configuration
        mask : uint32 (words,); bit t % 32 of word t / 32 is token t. Other bits are left alone.
        """
        cdef Out out
        memset(&out, 0, sizeof(Out))
        self.configs.checked_config(config)
        out.bits = mask_data(mask, self.trie.n_vocab)
        self.visits = 0
        self.visit(config, -1, 0, &out)

    def prepare(self, double seconds):
        """Find the locals of all states at the root, those with the widest choice first, until time is up."""
        cdef Configurations c = self.configs
        cdef int32_t q, e, k, _k, width
        end = time.perf_counter() + seconds
        found = []
        for q in range(c.n_states):
            width = 0
            for e in range(c.byte_first[q], c.byte_first[q + 1]):
                for k in range(c.n_classes):
                    width += c.labels[c.byte_edges[3 * e] * c.n_classes + k]
            if width:
                found.append((-width, q))
        for _k, q in sorted(found):
            if time.perf_counter() > end:
                break
            self.visits = 0
            self.local(q, FAR if c.most[q] else 0, -1, 0)

    # ------------------------------------------------------------------ unions

    cdef int visit(self, int32_t config, int32_t node, int level, Out* out) except -1:
        """Add the tokens below a node that can follow, entry by entry."""
        cdef int32_t i, end = self.configs.configs.first[config + 1]
        cdef Entry entry
        for i in range(self.configs.configs.first[config], end):
            entry = self.configs.configs.entries[i]
            self.visit_entry(entry.q, entry.n, entry.p, node, level, out)
            if out.wide:
                break
        return 0

    cdef int visit_entry(self, int32_t q, int32_t n, int32_t p, int32_t node, int level, Out* out) except -1:
        cdef int32_t i, config, index
        n = self.abstracted(q, n)
        if n < FAR and self.configs.most[q]:
            return self.visit_counter(q, n, p, node, level, out)
        index = self.local(q, n, node, level)
        if self.locals[index].wide:
            return self.visit_plainly(q, n, p, node, level, out)
        self.take(&self.locals[index], out)
        if self.locals[index].n_escapes == 0:
            return 0
        config = self.configs.popped(p)
        for i in range(self.locals[index].n_escapes):
            if self.locals[index].escapes[i].loop and self.goes_on(config, self.locals[index].escapes[i].loop):
                return self.visit_plainly(q, n, p, node, level, out)
        if self.locals[index].n_escapes > KEPT:
            return self.take_kept(index, config, level, out)
        return self.follow_all(index, config, level, out)

    cdef int follow_all(self, int32_t index, int32_t config, int level, Out* out) except -1:
        """Follow the escapes of a local with the configuration that they lead to."""
        cdef Escape escape
        cdef int32_t i, count = self.locals[index].n_escapes
        for i in range(count):
            escape = self.locals[index].escapes[i]
            if escape.part < 0:
                self.follow(config, escape.node, level, out)
            else:
                if self.configs.configs.flags[config] & ESCAPES:
                    self.escape(escape, out)
                self.follow_part(config, escape, level, out)
            if out.wide:
                break
        return 0

    cdef int take_kept(self, int32_t index, int32_t config, int level, Out* out) except -1:
        """As `follow_all`, keeping what is found: many places share the configuration."""
        cdef int32_t i, kept = self.find(OF_LOCALS - index, 0, config)
        cdef Out found
        if kept < 0:
            self.open(&found)
            try:
                self.follow_all(index, config, level, &found)
                kept = self.keep(OF_LOCALS - index, 0, config, &found)
            except BaseException:
                free(found.bits)
                free(found.escapes)
                raise
        if self.locals[kept].wide:
            return self.follow_all(index, config, level, out)
        self.take(&self.locals[kept], out)
        for i in range(self.locals[kept].n_escapes):
            self.escape(self.locals[kept].escapes[i], out)
        return 0

    cdef void take(self, const Local* local, Out* out) noexcept:
        """Add the tokens of a local."""
        cdef int32_t i
        if local.bits:
            for i in range(self.trie.n_words):
                out.bits[i] |= local.bits[i]
        else:
            for i in range(local.n_tokens):
                out.bits[local.tokens[i] >> 5] |= <uint32_t>1 << (local.tokens[i] & 31)

    cdef int follow(self, int32_t config, int32_t node, int level, Out* out) except -1:
        """Go on below a node with the configuration reached there, whose own tokens have been added."""
        cdef Nodes* nodes = &self.trie.nodes
        if self.configs.configs.flags[config] & ESCAPES:
            self.escape(Escape(nodes, node, -1, NULL), out)
        if nodes.skip[node] == node + 1 or out.wide:
            return 0
        if nodes.skip[node] - node > self.large and level < MAX_LEVEL:
            return self.visit(config, node, level + 1, out)
        return self.walk(config, nodes, node + 1, nodes.skip[node], nodes.depth[node], level, out)

    cdef int follow_part(self, int32_t config, Escape escape, int level, Out* out) except -1:
        """Go on in a slice: all of it after a run, or below a node. What is found is kept if it may be long."""
        cdef Nodes* nodes = escape.nodes
        cdef int32_t i = 0, end = <int32_t>nodes.n, depth = 0, index, count
        cdef Out found
        if not escape.loop:
            i, end, depth = escape.node + 1, nodes.skip[escape.node], nodes.depth[escape.node]
        if end - i <= KEPT:
            return self.walk(config, nodes, i, end, depth, level, out, escape.part)
        index = self.find(-1 - escape.part, i, config)
        if index < 0:
            self.open(&found)
            try:
                self.walk(config, nodes, i, end, depth, level, &found, escape.part)
                index = self.keep(-1 - escape.part, i, config, &found)
            except BaseException:
                free(found.bits)
                free(found.escapes)
                raise
        if self.locals[index].wide:
            return self.walk(config, nodes, i, end, depth, level, out, escape.part)
        self.take(&self.locals[index], out)
        count = self.locals[index].n_escapes
        for i in range(count):
            self.escape(self.locals[index].escapes[i], out)
        return 0

    cdef bint goes_on(self, int32_t config, const uint8_t* loop) except -1:
        """Whether any character of a loop can follow."""
        cdef int32_t byte
        for byte in range(128):
            if loop[byte] and self.stepped(config, byte) != DEAD:
                return True
        if loop[128]:
            for byte in range(0xC2, 0xF5):
                if self.stepped(config, byte) != DEAD:
                    return True
        return False

    cdef int escape(self, Escape escape, Out* out) except -1:
        """Keep a place at which the open stack was reached, if tokens go on from there."""
        if not escape.loop and escape.nodes.skip[escape.node] == escape.node + 1:
            return 0
        if out.n_escapes == self.max_escapes:
            out.wide = True
            return 0
        if out.n_escapes == out.room:
            out.room = max(16, 2 * out.room)
            out.escapes = <Escape*>grown(out.escapes, out.room * sizeof(Escape))
        out.escapes[out.n_escapes] = escape
        out.n_escapes += 1
        return 0

    cdef int32_t abstracted(self, int32_t q, int32_t n) noexcept:
        """The count that stands for ``n`` where no one token can make a difference."""
        cdef int32_t least = self.configs.least[q], most = self.configs.most[q]
        if n >= FAR or most == 0:
            return n
        if most > 0 and most - n <= self.trie.max_depth:
            return n
        return FAR if n >= least else BELOW if least - n > self.trie.max_depth else n

    # ------------------------------------------------------------------ locals

    cdef int32_t local(self, int32_t q, int32_t n, int32_t node, int level) except -1:
        """The number of the local of a state and a count below a node (-1: the root)."""
        cdef int32_t config, known = self.find(q, n, node)
        cdef Out out
        cdef Entry entry = Entry(q, n, OPEN)
        if known >= 0:
            return known
        config = self.configs.intern(&self.configs.configs, &entry, 1, 0)
        self.open(&out)
        try:
            self.below(config, node, level, &out)
            return self.keep(q, n, node, &out)
        except BaseException:
            free(out.bits)
            free(out.escapes)
            raise

    cdef int32_t find(self, int32_t q, int32_t n, int32_t node) noexcept:
        cdef uint64_t slot = local_hash(q, n, node) & (self.table_size - 1)
        cdef int32_t i
        while self.table[slot] >= 0:
            i = self.table[slot]
            if self.locals[i].q == q and self.locals[i].n == n and self.locals[i].node == node:
                return i
            slot = (slot + 1) & (self.table_size - 1)
        return -1

    cdef int open(self, Out* out) except -1:
        memset(out, 0, sizeof(Out))
        out.bits = <uint32_t*>calloc(self.trie.n_words, 4)
        if not out.bits:
            raise MemoryError()
        return 0

    cdef int32_t keep(self, int32_t q, int32_t n, int32_t node, Out* out) except -1:
        cdef Local* local
        cdef int32_t i, k, count = 0
        cdef uint32_t word
        if self.n_locals == self.room:
            self.room = max(64, 2 * self.room)
            self.locals = <Local*>grown(self.locals, self.room * sizeof(Local))
        if 2 * self.n_locals >= self.table_size:
            self.rehash()
        local = &self.locals[self.n_locals]
        memset(local, 0, sizeof(Local))
        local.q, local.n, local.node, local.wide = q, n, node, out.wide
        if not out.wide:
            for i in range(self.trie.n_words):
                count += popcount(out.bits[i])
            if count <= MAX_LIST:
                local.tokens = <int32_t*>malloc(4 * (count + 1))
                if not local.tokens:
                    raise MemoryError()
                for i in range(self.trie.n_words):
                    word = out.bits[i]
                    while word:
                        k = lowest_bit(word)
                        local.tokens[local.n_tokens] = 32 * i + k
                        local.n_tokens += 1
                        word &= word - 1
            else:
                local.bits = out.bits
                out.bits = NULL
            local.escapes, local.n_escapes = out.escapes, out.n_escapes
            out.escapes = NULL
        free(out.bits)
        free(out.escapes)
        self.configs.charge(sizeof(Local) + 8 + local.n_escapes * <Py_ssize_t>sizeof(Escape)
                            + 4 * (self.trie.n_words if local.bits else local.n_tokens))
        self.n_locals += 1
        self.enter(self.n_locals - 1)
        return self.n_locals - 1

    cdef int enter(self, int32_t i) noexcept:
        cdef Local* local = &self.locals[i]
        cdef uint64_t slot = local_hash(local.q, local.n, local.node) & (self.table_size - 1)
        while self.table[slot] >= 0:
            slot = (slot + 1) & (self.table_size - 1)
        self.table[slot] = i
        return 0

    cdef int rehash(self) except -1:
        cdef int32_t i
        self.table = <int32_t*>grown(self.table, 8 * <Py_ssize_t>self.table_size)
        self.table_size *= 2
        for i in range(self.table_size):
            self.table[i] = -1
        for i in range(self.n_locals):
            self.enter(i)
        return 0

    # ------------------------------------------------------------------ walks

    cdef int visit_plainly(self, int32_t q, int32_t n, int32_t p, int32_t node, int level, Out* out) except -1:
        """Add an entry's tokens below a node by a walk with its real stack."""
        cdef Entry entry = Entry(q, n, p)
        return self.below(self.configs.intern(&self.configs.configs, &entry, 1, 0), node, level, out)

    cdef int below(self, int32_t config, int32_t node, int level, Out* out) except -1:
        """Add the tokens below a node that can follow a configuration, with a slice if there is one for it."""
        cdef Nodes* nodes = &self.trie.nodes
        cdef int32_t i = node + 1, end = nodes.skip[node] if node >= 0 else <int32_t>nodes.n
        cdef int32_t depth = nodes.depth[node] if node >= 0 else 0
        cdef int32_t number
        cdef Loop* loop
        cdef Slice part
        if end - i > self.sliced:
            loop = self.loop(config)
            if loop.found:
                number = self.slice(node, loop)
                part = <Slice>self.slices[number]
                if self.configs.configs.flags[loop.to] & ESCAPES:
                    self.escape(Escape(&part.nodes, 0, number, &loop.loop[0]), out)
                for depth in range(self.trie.n_words):
                    out.bits[depth] |= part.bits[depth]
                self.walk(loop.to, &part.nodes, 0, <int32_t>part.nodes.n, 0, level, out, number)
                return self.beside(config, loop, node, level, out)
        return self.walk(config, nodes, i, end, depth, level, out)

    cdef int beside(self, int32_t config, Loop* loop, int32_t node, int level, Out* out) except -1:
        """Add the tokens below a node that do not begin with a loop's first characters."""
        cdef Nodes* nodes = &self.trie.nodes
        cdef int32_t i = node + 1, end = nodes.skip[node] if node >= 0 else <int32_t>nodes.n
        cdef int32_t depth = nodes.depth[node] if node >= 0 else 0
        while i < end and not out.wide:
            if not loop.start[min(nodes.byte[i], 128)]:
                self.walk(config, nodes, i, nodes.skip[i], depth, level, out)
            i = nodes.skip[i]
        return 0

    cdef int32_t slice(self, int32_t node, Loop* loop) except -1:
        """The number of a loop's slice."""
        cdef Slice part = self.trie.slice_of(node, loop.start, loop.loop)
        if part not in self.slices:
            self.configs.charge(part.n_bytes)
            self.slices.append(part)
        return self.slices.index(part)

    cdef int walk(
        self, int32_t config, Nodes* nodes, int32_t i, int32_t end, int32_t depth, int level, Out* out,
        int32_t part=-1
    ) except -1:
        """Add the tokens of the nodes i ... end - 1, which lie below ``depth`` bytes that led to ``config``."""
        cdef Configurations configs = self.configs
        cdef int32_t* path = self.paths + <Py_ssize_t>self.path_length * level
        cdef int32_t to, token, d, k
        cdef bint whole = nodes == &self.trie.nodes and level < MAX_LEVEL
        path[depth] = config
        while i < end:
            self.visits += 1
            d = nodes.depth[i]
            to = configs.rows[<Py_ssize_t>path[d - 1] * configs.n_classes + configs.class_of[nodes.byte[i]]]
            if to < 0:
                to = configs.step(path[d - 1], configs.class_of[nodes.byte[i]])
            if to == DEAD:
                i = nodes.skip[i]
                continue
            path[d] = to
            for k in range(nodes.token_first[i], nodes.token_first[i + 1]):
                token = nodes.order[k]
                out.bits[token >> 5] |= <uint32_t>1 << (token & 31)
            if whole and nodes.skip[i] - i > self.large:
                self.follow(to, i, level, out)
                if out.wide:
                    break
                i = nodes.skip[i]
                continue
            if configs.configs.flags[to] & ESCAPES:
                self.escape(Escape(nodes, i, part, NULL), out)
                if out.wide:
                    break
            i += 1
        if self.visits > MAX_VISITS:
            raise GrammarError(f"grammar: one mask needs more than {MAX_VISITS} steps")
        return 0

    # ------------------------------------------------------------------ loops

    cdef Loop* loop(self, int32_t config) except NULL:
        """What a configuration does with single characters, found once."""
        cdef int32_t room
        if config >= self.loops_room:
            room = max(256, 2 * config)
            self.loops = <Loop**>grown(self.loops, room * sizeof(void*))
            memset(self.loops + self.loops_room, 0, (room - self.loops_room) * sizeof(void*))
            self.loops_room = room
        if self.loops[config] == NULL:
            self.configs.charge(sizeof(Loop) + 8)
            self.loops[config] = <Loop*>calloc(1, sizeof(Loop))
            if not self.loops[config]:
                raise MemoryError()
        if not self.loops[config].known:
            self.find_loop(config, self.loops[config])
            self.loops[config].known = True
        return self.loops[config]

    cdef int find_loop(self, int32_t config, Loop* loop) except -1:
        cdef int32_t[128] after
        cdef int32_t byte, i, best = 0, count
        cdef bint alive = False
        for byte in range(128):
            after[byte] = self.stepped(config, byte)
        for byte in range(128):  # where most characters lead
            if after[byte] == DEAD or after[byte] == loop.to:
                continue
            count = 0
            for i in range(128):
                count += after[i] == after[byte]
            if count > best:
                best, loop.to = count, after[byte]
        if best < self.min_loop:
            return 0
        count = 0
        loop.covers = loop.same = True
        for byte in range(128):
            loop.start[byte] = after[byte] == loop.to
            loop.loop[byte] = self.stepped(loop.to, byte) == loop.to
            loop.covers = loop.covers and (loop.start[byte] or after[byte] == DEAD)
            loop.same = loop.same and loop.start[byte] == loop.loop[byte]
            count += loop.loop[byte]
        loop.start[128] = self.all_lead_to(config, loop.to, &alive)
        loop.covers = loop.covers and (loop.start[128] or not alive)
        loop.loop[128] = self.all_lead_to(loop.to, loop.to, &alive)
        loop.same = loop.same and loop.start[128] == loop.loop[128]
        loop.found = count >= self.min_loop
        return 0

    cdef int32_t stepped(self, int32_t config, int32_t byte) except -1:
        cdef uint8_t text = <uint8_t>byte
        return self.configs.run(config, &text, 1)

    cdef bint all_lead_to(self, int32_t config, int32_t to, bint* alive) except -1:
        """Whether every character beyond ASCII leads from one configuration to another; ``alive``: any to anywhere."""
        cdef int32_t lead, inside
        cdef bint all_do = True
        alive[0] = False
        for lead in range(0xC2, 0xF5):
            inside = self.stepped(config, lead)
            alive[0] = alive[0] or inside != DEAD
            if all_do and not self.tails_lead_to(inside, lead, to):
                all_do = False
        return all_do

    cdef bint tails_lead_to(self, int32_t config, int32_t lead, int32_t to) except -1:
        """Whether every valid rest of a character, after its first byte, leads to a configuration."""
        cdef int32_t low = 0x80, high = 0xBF, more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        cdef int32_t byte, inside, previous = -1, second, third
        if config == DEAD:
            return False
        if lead == 0xE0:
            low = 0xA0
        elif lead == 0xED:
            high = 0x9F
        elif lead == 0xF0:
            low = 0x90
        elif lead == 0xF4:
            high = 0x8F
        for byte in range(low, high + 1):
            inside = self.stepped(config, byte)
            if inside == previous:
                continue
            previous = inside
            if more == 1:
                if inside != to:
                    return False
                continue
            second = -1
            for third in range(0x80, 0xC0):
                if inside == DEAD:
                    return False
                if more == 2:
                    if self.stepped(inside, third) != to:
                        return False
                elif self.stepped(inside, third) != second:
                    second = self.stepped(inside, third)
                    if not self.last_leads_to(second, to):
                        return False
        return True

    cdef bint last_leads_to(self, int32_t config, int32_t to) except -1:
        cdef int32_t byte
        if config == DEAD:
            return False
        for byte in range(0x80, 0xC0):
            if self.stepped(config, byte) != to:
                return False
        return True

    # ------------------------------------------------------------------ counts near a bound

    cdef int visit_counter(self, int32_t q, int32_t n, int32_t p, int32_t node, int level, Out* out) except -1:
        """Add the tokens of a state whose count a token may bring to its bound.

        If what is counted is a class that a slice stands for, and what comes after the count begins with none of
        it, then a token is a run of the class and a rest that no longer depends on the count: only the
        length of the run does.
        """
        cdef Nodes* nodes = &self.trie.nodes
        cdef int32_t end = nodes.skip[node] if node >= 0 else <int32_t>nodes.n
        cdef int32_t least = max(0, self.configs.least[q] - n), i, k
        cdef Entry entry = Entry(q, FAR, OPEN)
        cdef Run run
        cdef Loop* loop
        cdef Slice part
        cdef const uint32_t* bits
        if end - node <= self.sliced or self.trie.max_depth > 254:
            return self.visit_plainly(q, n, p, node, level, out)
        loop = self.loop(self.configs.intern(&self.configs.configs, &entry, 1, 0))
        if not (loop.found and loop.covers and loop.same and self.ends_run(loop, &entry)):
            return self.visit_plainly(q, n, p, node, level, out)
        run = Run(least, 0, q, n, p, -1, False, 0)
        while not loop.loop[run.byte]:
            run.byte += 1
        if self.configs.configs.flags[loop.to] & ESCAPES:
            run.config = self.configs.popped(p)
            if self.goes_on(run.config, &loop.loop[0]) or self.configs.configs.flags[run.config] & ESCAPES:
                return self.visit_plainly(q, n, p, node, level, out)
        run.most = self.trie.max_depth  # no token has more characters
        if self.configs.most[q] > 0:
            run.most = min(run.most, self.configs.most[q] - n)
        if run.most <= 0:
            return 0
        part = <Slice>self.slices[self.slice(node, loop)]
        if run.most <= UPTO:
            bits = part.of_length(run.most)
        else:
            bits = self.scratch
            memcpy(self.scratch, part.bits, 4 * self.trie.n_words)
            for i in range(part.length_first[run.most + 1], part.length_first[256]):
                k = part.inside[i]
                self.scratch[k >> 5] &= ~(<uint32_t>1 << (k & 31))
        for i in range(self.trie.n_words):
            out.bits[i] |= bits[i]
        self.walk_after_run(loop.to, part, 0, <int32_t>part.nodes.n, 0, &run, level, out)
        if self.configs.configs.flags[loop.to] & ESCAPES and not out.wide:
            run.exact = True
            self.walk_after_run(run.config, part, 0, <int32_t>part.nodes.n, 0, &run, level, out)
        return 0

    cdef bint ends_run(self, Loop* loop, const Entry* counted) except -1:
        """Whether a character of the loop can only be counted: no other entry takes one after a run."""
        cdef int32_t i, n = 0, first = self.configs.configs.first[loop.to]
        cdef int32_t count = self.configs.configs.first[loop.to + 1] - first
        cdef Entry* others
        if loop.ends_run == 0:
            others = <Entry*>grown(NULL, (count + 1) * sizeof(Entry))
            try:
                for i in range(first, first + count):
                    if memcmp(&self.configs.configs.entries[i], counted, sizeof(Entry)):
                        others[n] = self.configs.configs.entries[i]
                        n += 1
                i = self.configs.intern(&self.configs.configs, others, n, 0)
            finally:
                free(others)
            loop.ends_run = -1 if self.goes_on(i, &loop.loop[0]) else 1
        return loop.ends_run > 0

    cdef int walk_after_run(
        self, int32_t config, Slice part, int32_t i, int32_t end, int32_t depth, Run* run, int level, Out* out
    ) except -1:
        """As `walk`, over a slice, for the tokens whose run has the right length."""
        cdef Configurations configs = self.configs
        cdef Nodes* nodes = &part.nodes
        cdef int32_t* path
        cdef int32_t to, token, d, k
        cdef Run returned
        if level > MAX_LEVEL:
            raise GrammarError("grammar: a token ends too many rules inside each other")
        path = self.paths + <Py_ssize_t>self.path_length * level
        path[depth] = config
        while i < end and not out.wide:
            self.visits += 1
            d = nodes.depth[i]
            self.text[d - 1] = nodes.byte[i]
            to = configs.rows[<Py_ssize_t>path[d - 1] * configs.n_classes + configs.class_of[nodes.byte[i]]]
            if to < 0:
                to = configs.step(path[d - 1], configs.class_of[nodes.byte[i]])
            if to == DEAD:
                i = nodes.skip[i]
                continue
            path[d] = to
            if not run.exact and configs.configs.flags[to] & FARAWAY:  # the counted state may come again
                self.walk_exactly(part, i, run, level + 1, out)
                i = nodes.skip[i]
                continue
            for k in range(nodes.token_first[i], nodes.token_first[i + 1]):
                if run.least <= part.chars[k] <= run.most:
                    token = nodes.order[k]
                    out.bits[token >> 5] |= <uint32_t>1 << (token & 31)
            if configs.configs.flags[to] & ESCAPES and nodes.skip[i] > i + 1:
                if run.exact:
                    out.wide = True  # an escape would have to say which runs it is for
                    return 0
                if run.config < 0:
                    run.config = configs.popped(run.p)
                if configs.configs.flags[run.config] & ESCAPES:
                    out.wide = True
                    return 0
                returned = run[0]
                returned.exact = True
                self.walk_after_run(run.config, part, i + 1, nodes.skip[i], d, &returned, level + 1, out)
            i += 1
        return 0

    cdef int walk_exactly(self, Slice part, int32_t node, Run* run, int level, Out* out) except -1:
        """Add the tokens at and below a slice's node, for each length of run with its own count."""
        cdef Nodes* nodes = &part.nodes
        cdef int32_t k, depth = nodes.depth[node], after, config, longest = 0
        cdef Run one = run[0]
        cdef Entry entry = Entry(run.q, run.n, run.p)
        for k in range(nodes.token_first[node], nodes.token_first[nodes.skip[node]]):
            longest = max(longest, part.chars[k])
        config = self.configs.intern(&self.configs.configs, &entry, 1, 0)
        one.exact = True
        for k in range(1, min(longest, run.most) + 1):
            config = self.stepped(config, run.byte)
            if config == DEAD or out.wide:
                break
            after = self.configs.run(config, self.text, depth - 1)
            if after != DEAD:
                one.least = one.most = k
                self.walk_after_run(after, part, node, node + 1, depth - 1, &one, level, out)
                after = self.stepped(after, nodes.byte[node])
                if after != DEAD:
                    self.walk_after_run(after, part, node + 1, nodes.skip[node], depth, &one, level, out)
        return 0


# --------------------------------------------------------------------------- plain C

cdef inline uint64_t local_hash(int32_t q, int32_t n, int32_t node) noexcept:
    return mixed((<uint64_t>q << 32 | <uint32_t>node) ^ <uint64_t>n << 20)


cdef inline int popcount(uint32_t word) noexcept nogil:
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return <int>((((word + (word >> 4)) & 0x0F0F0F0F) * <uint32_t>0x01010101) >> 24)


cdef inline int lowest_bit(uint32_t word) noexcept nogil:
    return popcount((word & (~word + 1)) - 1)


cdef void* grown(void* old, Py_ssize_t n) except NULL:
    cdef void* new = realloc(old, n)
    if not new:
        raise MemoryError()
    return new


cdef uint32_t* mask_data(cnp.ndarray mask, Py_ssize_t n_vocab) except NULL:
    if cnp.PyArray_TYPE(mask) != cnp.NPY_UINT32 or not cnp.PyArray_IS_C_CONTIGUOUS(mask):
        raise TypeError(f"mask: needs a C-contiguous array of uint32, got {mask.dtype}")
    if 32 * cnp.PyArray_SIZE(mask) < n_vocab:
        raise ValueError(f"mask: needs {n_vocab} bits, has {32 * cnp.PyArray_SIZE(mask)}")
    return <uint32_t*>cnp.PyArray_DATA(mask)
