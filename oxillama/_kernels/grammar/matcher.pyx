"""Which tokens a grammar allows, as bitmasks.

The mask of a parser state is the union of the masks of its items (RTN state, count, stack). An item's tokens
are found in two parts. Its context-independent tokens do not depend on the stack: a walk over the trie with
an open stack finds them once for each RTN state. The same walk finds the context-dependent places
(*dependents*): trie nodes at which the item's subnetwork has ended inside a token, so that the stack decides
over the rest. Both are kept in a `MaskCache`; the few dependents are then followed with the real stack.

Three things keep the walks short. Where many trie nodes lie below one, the walk stops and takes the union of
the items' cached masks there. Where an item reads characters of one class in a loop, a slice (slices.pyx) holds
nearly all of its tokens. A count that no token can bring to a bound is replaced by an abstract count, which
stands for all such counts (ABOVE, BELOW).
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from oxillama._kernels.arrays cimport checked
from oxillama._kernels.grammar.corrections cimport Corrections
from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.loops cimport Loop
from oxillama._kernels.grammar.mask_cache cimport Dependent, Found, begin, clear
from oxillama._kernels.grammar.parser_states cimport ParserStates, stepped
from oxillama._kernels.grammar.rows cimport DEAD
from oxillama._kernels.grammar.slices cimport Slice, Tail
from oxillama._kernels.grammar.stacks cimport ABOVE, ABSTRACT, DEPENDENT, OPEN, REGISTERED
from oxillama._kernels.grammar.told_apart cimport abstracted
from oxillama._kernels.grammar.trie cimport UPTO, Node, Nodes, Trie
from oxillama._kernels.grammar.walks cimport MAX_LEVEL, PARTS, Walks

from oxillama._kernels.grammar.closure import NotBuilt
from oxillama.errors import GrammarError

cnp.import_array()

cdef enum:
    MANY = 64               # dependents, or trie nodes below one: with more, the result is cached
    OF_ENTRY = -(1 << 30)   # cache key in place of an RTN state: this less the entry whose dependents were followed
    WORDS_OF_WORK = 64      # words of a mask that count as one unit of work


cdef struct Run:
    # The lengths that a run of a counted class may have; the item (q, n, p); the parser state after a return to
    # its stack, -1 until that is known; whether all counts are exact.
    int32_t least, most, q, n, p, state
    bint exact
    uint8_t byte        # a character of the class


cdef class Matcher(Walks):
    """The tokens of a vocabulary that can follow in each parser state.

    Attributes
    ----------
    large : trie nodes below one at which a walk takes the union over items
    sliced : trie nodes below one for which slices are made
    min_loop : characters of a loop that is worth a slice
    max_dependents : dependents of a cache entry; an item with more is walked with its real stack each time
    n_shared : bytes of slices that other grammars over the vocabulary use too
    """

    cdef Corrections corrections
    cdef uint32_t* scratch   # (words)
    cdef uint8_t* text       # (depths): the bytes along a walk after a run

    def __cinit__(self, Trie trie not None, ParserStates states not None):
        self.corrections = Corrections(trie, states, self.loops)
        self.scratch = <uint32_t*>malloc(4 * trie.n_words)
        self.text = <uint8_t*>malloc(trie.max_depth + 1)
        if not (self.scratch and self.text):
            raise MemoryError()

    def __dealloc__(self):
        free(self.scratch)
        free(self.text)

    @property
    def min_loop(self):
        return self.loops.min_loop

    @min_loop.setter
    def min_loop(self, int32_t n):
        self.loops.min_loop = n

    # ------------------------------------------------------------------ for Python

    def advance(self, int32_t state, int32_t token):
        """The parser state after a token's bytes; 0 where they cannot follow."""
        cdef int32_t first
        if not 0 <= token < self.trie.n_vocab:
            raise IndexError(f"token {token}: the vocabulary has {self.trie.n_vocab}")
        self.states.checked_state(state)
        if not self.trie.inside[token]:
            return DEAD
        first = self.trie.first[token]
        self.states.allow(self.states.budget)
        while True:
            try:
                return self.states.run(state, self.trie.data + first, self.trie.first[token + 1] - first)
            except (NotBuilt, GrammarError) as error:
                self.states.mend(error, state)

    def fill(self, int32_t state, cnp.ndarray mask):
        """Set the bits of all tokens of the trie that can follow.

        Parameters
        ----------
        state : a parser state
        mask : uint32 (words,); bit t % 32 of word t / 32 is token t. Other bits are left alone.
        """
        cdef Found out
        begin(&out)
        self.states.checked_state(state)
        out.tokens.bits = <uint32_t*>checked(mask, cnp.NPY_UINT32, self.trie.n_words, "mask", True)
        self.states.allow(self.states.budget)
        while True:
            try:
                if self.states.states.flags[state] & REGISTERED:
                    self.fill_registered(state, &out)
                else:
                    self.visit(state, -1, 0, &out)
                break
            except (NotBuilt, GrammarError) as error:
                self.states.mend(error, state)

    cdef int fill_registered(self, int32_t state, Found* out) except -1:
        """As `fill`, where members of an open container are told apart."""
        cdef int32_t i, abstract = abstracted(self.states, state)
        cdef Found found
        begin(&found)
        found.tokens.bits = <uint32_t*>calloc(self.trie.n_words, 4)
        if not found.tokens.bits:
            raise MemoryError()
        try:
            self.visit(abstract, -1, 0, &found)
            self.corrections.correct(state, abstract, found.tokens.bits)
            for i in range(self.trie.n_words):
                out.tokens.bits[i] |= found.tokens.bits[i]
        finally:
            clear(&found)
        return 0

    def prepare(self, Py_ssize_t work):
        """Fill the cache with all RTN states at the root, those with the widest choice first, for ``work`` units."""
        cdef ParserStates c = self.states
        cdef int32_t q, e, width
        widths = [int.from_bytes(bits).bit_count() for bits in c.network.label_numbers]  # in the order of numbers
        found = []
        for q in range(c.n_states):
            width = 0
            for e in range(c.byte_first[q], c.byte_first[q + 1]):
                width += widths[c.byte_edges[3 * e]]
            if width:
                found.append((-width, q))
        c.allow(work)
        try:
            for _width, q in sorted(found):
                self.cached(q, ABOVE if c.most[q] else 0, -1, 0)
        except GrammarError:  # all the work is done; what is missing is found when a mask needs it
            pass

    # ------------------------------------------------------------------ unions

    cdef int visit(self, int32_t state, int32_t node, int level, Found* out) except -1:
        """Add the tokens below a node that can follow, item by item."""
        cdef int32_t i, end = self.states.states.first[state + 1]
        cdef Item item
        for i in range(self.states.states.first[state], end):
            item = self.states.states.items[i]
            self.visit_item(item.q, item.n, item.p, node, level, out)
            if out.overflow:
                break
        return 0

    cdef int visit_item(self, int32_t q, int32_t n, int32_t p, int32_t node, int level, Found* out) except -1:
        cdef int32_t i, state, index
        cdef const uint8_t* loop
        n = self.states.abstract_count(q, n, self.trie.max_depth)
        if n < ABOVE and self.states.most[q]:
            return self.visit_counter(q, n, p, node, level, out)
        self.states.spend(1 + self.trie.n_words // WORDS_OF_WORK)
        index = self.cached(q, n, node, level)
        if self.cache.entries[index].overflow:
            return self.visit_plainly(q, n, p, node, level, out)
        self.cache.put_entry(&out.tokens, index)
        if self.cache.entries[index].n_dependents == 0:
            return 0
        state = self.states.popped(p)
        for i in range(self.cache.entries[index].n_dependents):
            loop = self.cache.entries[index].dependents[i].loop
            if loop and self.loops.goes_on(state, loop):
                return self.visit_plainly(q, n, p, node, level, out)
        if self.cache.entries[index].n_dependents > MANY:
            return self.take_cached(index, state, level, out)
        return self.follow_all(index, state, level, out)

    cdef int follow_all(self, int32_t index, int32_t state, int level, Found* out) except -1:
        """Follow the dependents of a cache entry with the parser state after the subnetwork's end."""
        cdef Dependent dependent
        cdef int32_t i, count = self.cache.entries[index].n_dependents
        self.states.spend(count)
        for i in range(count):
            dependent = self.cache.entries[index].dependents[i]
            if dependent.part < 0:
                self.follow(state, dependent.node, level, out)
            else:
                if self.states.states.flags[state] & DEPENDENT:
                    self.add_dependent(dependent, out)
                self.follow_part(state, dependent, level, out)
            if out.overflow:
                break
        return 0

    cdef int take_cached(self, int32_t index, int32_t state, int level, Found* out) except -1:
        """As `follow_all`, keeping what is found: many places share the parser state."""
        cdef int32_t i, kept = self.cache.find(OF_ENTRY - index, 0, state)
        cdef Found found
        if kept < 0:
            begin(&found)
            try:
                self.follow_all(index, state, level, &found)
                kept = self.cache.keep(OF_ENTRY - index, 0, state, &found)
            except BaseException:
                clear(&found)
                raise
        if self.cache.entries[kept].overflow:
            return self.follow_all(index, state, level, out)
        self.cache.put_entry(&out.tokens, kept)
        for i in range(self.cache.entries[kept].n_dependents):
            self.add_dependent(self.cache.entries[kept].dependents[i], out)
        return 0

    cdef int follow_part(self, int32_t state, Dependent dependent, int level, Found* out) except -1:
        """Go on in a slice: all of it after a run, or below a node. What is found is kept if it may be long."""
        cdef Node at
        cdef int32_t i = 0, index
        cdef Found found
        if not dependent.loop:
            at = dependent.nodes.at[dependent.node]
            i = dependent.node + 1
            if at.skip - i <= MANY:
                return self.walk(state, dependent.nodes, i, at.skip, at.depth, level, out, dependent.part)
        index = self.cache.find(-1 - dependent.part, i, state)
        if index < 0:
            begin(&found)
            try:
                self.walk_part(state, dependent, level, &found)
                index = self.cache.keep(-1 - dependent.part, i, state, &found)
            except BaseException:
                clear(&found)
                raise
        if self.cache.entries[index].overflow:
            return self.walk_part(state, dependent, level, out)
        self.cache.put_entry(&out.tokens, index)
        for i in range(self.cache.entries[index].n_dependents):
            self.add_dependent(self.cache.entries[index].dependents[i], out)
        return 0

    cdef int walk_part(self, int32_t state, Dependent dependent, int level, Found* out) except -1:
        """As `follow_part`, without a cache."""
        cdef Nodes* nodes = dependent.nodes
        cdef int32_t node = dependent.node
        if dependent.loop:
            return self.walk_tails(state, dependent.part // PARTS, level, out)
        return self.walk(state, nodes, node + 1, nodes.at[node].skip, nodes.at[node].depth, level, out, dependent.part)

    # ------------------------------------------------------------------ the cache

    cdef int32_t cached(self, int32_t q, int32_t n, int32_t node, int level) except -1:
        """The cache entry of an RTN state and a count below a node (-1: the root)."""
        cdef int32_t state, known = self.cache.find(q, n, node)
        cdef Found out
        cdef Item item = Item(q, n, OPEN)
        if known >= 0:
            return known
        state = self.states.intern(&self.states.states, &item, 1, 0)
        begin(&out)
        try:
            self.below(state, node, level, &out)
            return self.cache.keep(q, n, node, &out)
        except BaseException:
            clear(&out)
            raise

    cdef int visit_plainly(self, int32_t q, int32_t n, int32_t p, int32_t node, int level, Found* out) except -1:
        """Add an item's tokens below a node by a walk with its real stack."""
        cdef Item item = Item(q, n, p)
        return self.below(self.states.intern(&self.states.states, &item, 1, 0), node, level, out)

    cdef int below(self, int32_t state, int32_t node, int level, Found* out) except -1:
        """Add the tokens below a node that can follow a parser state, with a slice if there is one for it."""
        cdef int32_t number
        cdef const uint8_t* chars = NULL
        cdef bint ends
        cdef Loop* loop
        if self.n_below(node) > self.sliced:
            loop = self.loops.of(state)
            if loop.cover:
                chars = loop.cover
                number = self.slice(node, chars, chars)
                self.cache.put_slice(&out.tokens, number, NULL, 0)
                self.walk_whole(state, number, loop.leaves, level, out)
            elif loop.found:
                ends = self.states.states.flags[loop.to] & DEPENDENT
                if loop.inside and not loop.same and not ends:
                    chars = loop.loop
                    self.enter(state, loop, self.slice(node, chars, chars), node, level, out)
                else:
                    chars = loop.start
                    number = self.slice(node, chars, loop.loop)
                    if ends:
                        self.add_dependent(Dependent(NULL, 0, PARTS * number, loop.loop), out)
                    self.cache.put_slice(&out.tokens, number, NULL, 0)
                    self.walk_tails(loop.to, number, level, out)
        return self.beside(state, chars, node, level, out)

    # ------------------------------------------------------------------ counts near a bound

    cdef int visit_counter(self, int32_t q, int32_t n, int32_t p, int32_t node, int level, Found* out) except -1:
        """Add the tokens of an item whose count a token may bring to a bound.

        If what is counted is a class that a slice stands for, and what comes after the count begins with none of
        it, then a token is a run of the class and a rest that no longer depends on the count: only the
        length of the run does.
        """
        cdef Nodes* nodes = &self.trie.nodes
        cdef int32_t end = nodes.at[node].skip if node >= 0 else <int32_t>nodes.n
        cdef int32_t least = max(0, self.states.least[q] - n)
        cdef Item item = Item(q, ABOVE, OPEN)
        cdef Run run
        cdef Loop* loop
        if end - node <= self.sliced or self.trie.max_depth > 254:
            return self.visit_plainly(q, n, p, node, level, out)
        loop = self.loops.of(self.states.intern(&self.states.states, &item, 1, 0))
        if not (loop.found and loop.same and self.loops.ends_run(loop, &item)):
            return self.visit_plainly(q, n, p, node, level, out)
        run = Run(least, 0, q, n, p, -1, False, 0)
        while not loop.loop[run.byte]:
            run.byte += 1
        if self.states.states.flags[loop.to] & DEPENDENT:
            run.state = self.states.popped(p)
            if self.loops.goes_on(run.state, loop.loop) or self.states.states.flags[run.state] & DEPENDENT:
                return self.visit_plainly(q, n, p, node, level, out)
        run.most = self.trie.max_depth  # no token has more characters
        if self.states.most[q] > 0:
            run.most = min(run.most, self.states.most[q] - n)
        if run.most > 0:
            self.runs(loop, &run, node, level, out)
        if loop.covers or out.overflow:
            return 0
        item = Item(q, n, p)
        return self.beside(self.states.intern(&self.states.states, &item, 1, 0), loop.start, node, level, out)

    cdef int runs(self, Loop* loop, Run* run, int32_t node, int level, Found* out) except -1:
        """Add the tokens that begin with a run of a counted class."""
        cdef Slice part = <Slice>self.cache.slices[self.slice(node, loop.start, loop.loop)]
        cdef const uint32_t* bits
        if run.most <= UPTO:
            bits = part.of_length(self.trie, run.most)
        else:
            bits = self.scratch
            memcpy(self.scratch, part.bits, 4 * self.trie.n_words)
            part.drop_longer(self.trie, run.most, self.scratch)
        self.cache.put_mask(&out.tokens, bits)
        self.walk_runs(loop.to, part, run, level, out)
        if self.states.states.flags[loop.to] & DEPENDENT and not out.overflow:
            run.exact = True
            self.walk_runs(run.state, part, run, level, out)
        return 0

    cdef int walk_runs(self, int32_t state, Slice part, Run* run, int level, Found* out) except -1:
        """As `walk_tails`, for the tokens whose run has the right length."""
        cdef Tail* tail
        cdef int byte
        for byte in range(256):
            if part.leaves[byte] and stepped(self.states, state, byte) != DEAD:
                tail = part.tail(self.trie, byte)
                self.walk_after_run(state, tail, 0, <int32_t>tail.rests.n, 0, run, level, out)
        return 0

    cdef int walk_after_run(
        self, int32_t state, Tail* tail, int32_t i, int32_t end, int32_t depth, Run* run, int level, Found* out
    ) except -1:
        """As `walk`, over rests, for the tokens whose run has the right length."""
        cdef ParserStates states = self.states
        cdef Nodes* nodes = &tail.rests
        cdef int32_t* path
        cdef int32_t to, d, k
        cdef Run returned
        if level > MAX_LEVEL:
            raise GrammarError("grammar: expected at most 48 rules ended inside each other by one token, got more")
        path = self.paths + <Py_ssize_t>self.path_length * level
        path[depth] = state
        while i < end and not out.overflow:
            states.spend(1)
            d = nodes.at[i].depth
            self.text[d - 1] = nodes.at[i].byte
            to = stepped(states, path[d - 1], nodes.at[i].byte)
            if to == DEAD:
                i = nodes.at[i].skip
                continue
            path[d] = to
            if not run.exact and states.states.flags[to] & ABSTRACT:  # the counted state may come again
                self.walk_exactly(tail, i, run, level + 1, out)
                i = nodes.at[i].skip
                continue
            for k in range(nodes.token_first[i], nodes.token_first[i + 1]):
                if run.least <= tail.chars[k] <= run.most:
                    self.cache.put(&out.tokens, nodes.order[k])
            if states.states.flags[to] & DEPENDENT and nodes.at[i].skip > i + 1:
                if run.exact:
                    out.overflow = True  # a dependent would have to name its runs
                    return 0
                if run.state < 0:
                    run.state = states.popped(run.p)
                if states.states.flags[run.state] & DEPENDENT:
                    out.overflow = True
                    return 0
                returned = run[0]
                returned.exact = True
                self.walk_after_run(run.state, tail, i + 1, nodes.at[i].skip, d, &returned, level + 1, out)
            i += 1
        return 0

    cdef int walk_exactly(self, Tail* tail, int32_t node, Run* run, int level, Found* out) except -1:
        """Add the tokens at and below a node of the rests, for each length of run with its own count."""
        cdef Nodes* nodes = &tail.rests
        cdef int32_t k, depth = nodes.at[node].depth, after, state, longest = 0
        cdef Run one = run[0]
        cdef Item item = Item(run.q, run.n, run.p)
        for k in range(nodes.token_first[node], nodes.token_first[nodes.at[node].skip]):
            longest = max(longest, tail.chars[k])
        state = self.states.intern(&self.states.states, &item, 1, 0)
        one.exact = True
        for k in range(1, min(longest, run.most) + 1):
            state = stepped(self.states, state, run.byte)
            if state == DEAD or out.overflow:
                break
            after = self.states.run(state, self.text, depth - 1)
            if after != DEAD:
                one.least = one.most = k
                self.walk_after_run(after, tail, node, node + 1, depth - 1, &one, level, out)
                after = stepped(self.states, after, nodes.at[node].byte)
                if after != DEAD:
                    self.walk_after_run(after, tail, node + 1, nodes.at[node].skip, depth, &one, level, out)
        return 0
