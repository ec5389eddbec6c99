"""Walks over the trie of a vocabulary with the parser state of each node, and over slices of it.

They collect the tokens that can follow, and the places (*dependents*) at which an open stack decides over the rest.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from oxillama._kernels.debugging cimport ensure
from oxillama._kernels.grammar.loops cimport Loop, Loops
from oxillama._kernels.grammar.mask_cache cimport Dependent, Found, MaskCache
from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.parser_states cimport ParserStates, stepped
from oxillama._kernels.grammar.rows cimport DEAD
from oxillama._kernels.grammar.slices cimport Slice, Tail, slice_of, valid_of
from oxillama._kernels.grammar.stacks cimport DEPENDENT, TAPED
from oxillama._kernels.grammar.trie cimport SET, WIDE, Kids, Node, Nodes, Trie, entry_of


cdef struct List:
    int32_t* items
    int32_t n, room


cdef class Walks:
    """A vocabulary, the parser states of a grammar, and what walks have found. Parameters: those of `Matcher`."""

    def __cinit__(self, Trie trie not None, ParserStates states not None):
        self.trie = trie
        self.states = states
        self.cache = MaskCache(states, trie.n_words)
        self.loops = Loops(states)
        self.slice_numbers = {}
        valid_of(trie)  # now, so that no mask takes its time
        self.large = self.sliced = self.max_dependents = 4096
        self.path_length = trie.max_depth + 1
        self.paths = <int32_t*>malloc(4 * <Py_ssize_t>self.path_length * (MAX_LEVEL + 2))
        if not self.paths:
            raise MemoryError()

    def __dealloc__(self):
        free(self.paths)

    cdef int visit(self, int32_t state, int32_t node, int level, Found* out) except -1:
        """Add the tokens below a node that can follow, item by item; a matcher knows how."""
        raise NotImplementedError

    cdef int follow(self, int32_t state, int32_t node, int level, Found* out) except -1:
        """Go on below a node with the parser state reached there, whose own tokens have been added."""
        cdef Nodes* nodes = &self.trie.nodes
        cdef Node at = nodes.at[node]
        if self.states.states.flags[state] & DEPENDENT:
            self.add_dependent(Dependent(nodes, node, -1, NULL), out)
        if at.skip == node + 1 or out.overflow:
            return 0
        if at.skip - node > self.large and level < MAX_LEVEL and not self.states.states.flags[state] & TAPED:
            return self.visit(state, node, level + 1, out)
        if at.skip - node > WIDE:
            return self.beside(state, NULL, node, level, out)
        return self.walk(state, nodes, node + 1, at.skip, at.depth, level, out)

    cdef int add_dependent(self, Dependent dependent, Found* out) except -1:
        """Keep a place at which the open stack was reached, if tokens go on from there."""
        if not dependent.loop and dependent.nodes.at[dependent.node].skip == dependent.node + 1:
            return 0
        if out.n_dependents >= self.max_dependents:
            out.overflow = True
            return 0
        if out.n_dependents == out.room:
            out.room = max(16, 2 * out.room)
            out.dependents = <Dependent*>grown(out.dependents, out.room * sizeof(Dependent))
        out.dependents[out.n_dependents] = dependent
        out.n_dependents += 1
        return 0

    cdef int32_t n_below(self, int32_t node) noexcept:
        """How many nodes are below one (-1: the root)."""
        return <int32_t>(self.trie.nodes.at[node].skip if node >= 0 else self.trie.nodes.n) - node - 1

    cdef int beside(self, int32_t state, const uint8_t* chars, int32_t node, int level, Found* out) except -1:
        """Add the tokens below a node that do not begin with one of these characters; all if there are none."""
        cdef Nodes* nodes = &self.trie.nodes
        cdef int32_t k, i, depth = nodes.at[node].depth if node >= 0 else 0
        cdef Kids kids
        self.trie.kids_of(node, &kids)
        for k in range(kids.n):
            if not (chars and chars[entry_of(kids.bytes[k])]) and stepped(self.states, state, kids.bytes[k]) != DEAD:
                i = kids.nodes[k]
                self.walk(state, nodes, i, nodes.at[i].skip, depth, level, out)
                if out.overflow:
                    break
        return 0

    cdef int32_t slice(self, int32_t node, const uint8_t* start, const uint8_t* loop) except -1:
        """The number of the slice of a loop below a node."""
        cdef object key = (node, start[:SET], loop[:SET]), found = self.slice_numbers.get(key)
        cdef Slice part
        if found is not None:
            return found
        part = slice_of(self.trie, node, start, loop)
        self.states.spend(part.n_nodes)  # other grammars may have made the slice, the work counts all the same
        self.states.charge(part.n_bytes)
        self.n_shared += part.n_bytes
        self.slice_numbers[key] = self.cache.add_slice(part)
        return self.slice_numbers[key]

    cdef int walk_tails(self, int32_t state, int32_t number, int level, Found* out) except -1:
        """Add the tokens whose part after a loop can follow a parser state."""
        cdef Slice part = <Slice>self.cache.slices[number]
        cdef Tail* tail
        cdef int byte
        for byte in range(256):
            if part.leaves[byte] and stepped(self.states, state, byte) != DEAD:
                tail = part.tail(self.trie, byte)
                self.walk(state, &tail.rests, 0, <int32_t>tail.rests.n, 0, level, out, PARTS * number + 2 * byte)
        return 0

    cdef int walk_whole(self, int32_t state, int32_t number, const uint8_t* leaves, int level, Found* out) except -1:
        """Add the tokens that leave a slice with one of these bytes and can follow a parser state."""
        cdef Slice part = <Slice>self.cache.slices[number]
        cdef Nodes* nodes
        cdef int byte
        for byte in range(256):
            if leaves[byte] and part.leaves[byte]:
                nodes = part.whole(self.trie, byte)
                self.walk(state, nodes, 0, <int32_t>nodes.n, 0, level, out, PARTS * number + 2 * byte + 1)
        return 0

    # ------------------------------------------------------------------ ways into a loop

    cdef int enter(self, int32_t state, Loop* loop, int32_t number, int32_t node, int level, Found* out) except -1:
        """Add the tokens below a node that begin with a character of a loop, though not all of those lead into it.

        The name of a property that is none of the known ones is such a place: any text leads into the loop, unless it
        is the beginning of a known name. Only those beginnings are walked. Tokens that are all loop are in the slice,
        less those that the walk sees end; those that leave the loop later are followed from their beginnings.
        """
        cdef ParserStates states = self.states
        cdef Nodes* nodes = &self.trie.nodes
        cdef int32_t* path = self.paths + <Py_ssize_t>self.path_length * level
        cdef int32_t top = nodes.at[node].depth if node >= 0 else 0, i, end, d, k, to, token, kid
        cdef int32_t outside = 0  # nodes before this one have left the loop before they got into it
        cdef const uint32_t* bits = self.cache.slice_bits[number]
        cdef List removed = List(NULL, 0, 0)
        cdef uint8_t leaves[256]
        cdef Kids kids
        cdef Py_ssize_t visits = 0
        memset(leaves, 0, 256)
        self.note_leaving(loop.to, number, leaves)
        self.trie.kids_of(node, &kids)
        path[top] = state
        try:
            for kid in range(kids.n):
                i = kids.nodes[kid]
                if not loop.loop[entry_of(kids.bytes[kid])] or self.joins(
                    stepped(states, state, kids.bytes[kid]), loop, kids.bytes[kid]
                ):
                    continue
                end = nodes.at[i].skip
                while i < end:
                    visits += 1
                    d = nodes.at[i].depth
                    to = stepped(states, path[d - 1], nodes.at[i].byte)
                    if i >= outside and not loop.loop[entry_of(nodes.at[i].byte)]:
                        outside = nodes.at[i].skip
                    if to == DEAD:
                        if i >= outside:
                            for k in range(nodes.token_first[i], nodes.token_first[nodes.at[i].skip]):
                                token = nodes.order[k]
                                if bits[token >> 5] >> (token & 31) & 1:
                                    push(&removed, token)
                        i = nodes.at[i].skip
                        continue
                    path[d] = to
                    if i >= outside and (
                        self.joins(to, loop, nodes.at[i].byte)
                        or self.is_free(to, loop, nodes.at[i].skip - i > self.large, number, leaves)
                    ):
                        i = nodes.at[i].skip
                        continue
                    for k in range(nodes.token_first[i], nodes.token_first[i + 1]):
                        token = nodes.order[k]
                        if not bits[token >> 5] >> (token & 31) & 1:
                            self.cache.put(&out.tokens, token)
                    if states.states.flags[to] & DEPENDENT:
                        self.add_dependent(Dependent(nodes, i, -1, NULL), out)
                        if out.overflow:
                            return 0
                    i += 1
            states.spend(visits)
            self.cache.put_slice(&out.tokens, number, removed.items, removed.n)
        finally:
            free(removed.items)
        for k in range(256):
            if leaves[k]:
                self.walk_entered(state, loop, number, k, leaves, level, out)
        return 0

    cdef int note_leaving(self, int32_t state, int32_t number, uint8_t* leaves) except -1:
        """Note the bytes that can follow a parser state where tokens leave the loop of a slice."""
        cdef Slice part = <Slice>self.cache.slices[number]
        cdef int byte
        for byte in range(256):
            if not leaves[byte] and part.leaves[byte]:
                leaves[byte] = stepped(self.states, state, byte) != DEAD
        return 0

    cdef bint joins(self, int32_t state, Loop* loop, uint8_t byte) except -1:
        """Whether the parser state after a byte is one that the loop comes to, if need be within a character."""
        return state == loop.to or (
            byte >= 0xC2 and loop.loop[entry_of(byte)] and state == stepped(self.states, loop.to, byte)
        )

    cdef bint is_free(
        self, int32_t state, Loop* loop, bint look, int32_t number, uint8_t* leaves
    ) except -1:
        """Whether a loop's characters lead from a parser state to itself; if not ``look``, as far as is known."""
        cdef Loop* own
        cdef const uint8_t* chars
        cdef int k
        if not look and not self.loops.is_known(state):
            return False
        own = self.loops.of(state)
        chars = own.cover if own.cover else own.loop if own.found and own.to == state and own.same else NULL
        if chars == NULL or self.states.states.flags[state] & DEPENDENT:
            return False
        for k in range(SET):
            if loop.loop[k] and not chars[k]:
                return False
        if own.cover:
            for k in range(256):
                leaves[k] = leaves[k] or own.leaves[k]
            return True
        self.note_leaving(state, number, leaves)
        return True

    cdef int walk_entered(
        self, int32_t state, Loop* loop, int32_t number, int byte, uint8_t* leaves, int level, Found* out
    ) except -1:
        """Add the tokens that leave a loop with a byte after they have got into it."""
        cdef ParserStates states = self.states
        cdef Slice part = <Slice>self.cache.slices[number]
        cdef Nodes* nodes = part.whole(self.trie, byte)
        cdef int32_t* path = self.paths + <Py_ssize_t>self.path_length * level
        cdef int32_t i = 0, d, k, to, inside = 0  # nodes before this one are inside of the loop
        cdef Py_ssize_t visits = 0
        path[0] = state
        while i < nodes.n:
            visits += 1
            d = nodes.at[i].depth
            to = stepped(states, path[d - 1], nodes.at[i].byte)
            if to == DEAD or (i >= inside and not loop.loop[entry_of(nodes.at[i].byte)]):
                i = nodes.at[i].skip
                continue
            path[d] = to
            if i >= inside:
                if self.joins(to, loop, nodes.at[i].byte) or self.is_free(to, loop, False, number, leaves):
                    inside = nodes.at[i].skip
            else:
                for k in range(nodes.token_first[i], nodes.token_first[i + 1]):
                    self.cache.put(&out.tokens, nodes.order[k])
                if states.states.flags[to] & DEPENDENT:
                    self.add_dependent(Dependent(nodes, i, PARTS * number + 2 * byte + 1, NULL), out)
                    if out.overflow:
                        break
            i += 1
        return states.spend(visits)

    cdef int walk(
        self, int32_t state, Nodes* nodes, int32_t i, int32_t end, int32_t depth, int level, Found* out,
        int32_t part=-1
    ) except -1:
        """Add the tokens of the nodes i ... end - 1, which lie below ``depth`` bytes that led to ``state``."""
        cdef ParserStates states = self.states
        cdef int32_t* path = self.paths + <Py_ssize_t>self.path_length * level
        cdef int32_t to, d, k
        cdef bint whole = nodes == &self.trie.nodes and level < MAX_LEVEL
        cdef Py_ssize_t visits = 0
        ensure(0 <= level <= MAX_LEVEL + 1 and 0 <= depth < self.path_length and end <= nodes.n)
        path[depth] = state
        while i < end:
            visits += 1
            d = nodes.at[i].depth
            to = stepped(states, path[d - 1], nodes.at[i].byte)
            if to == DEAD:
                i = nodes.at[i].skip
                continue
            path[d] = to
            for k in range(nodes.token_first[i], nodes.token_first[i + 1]):
                self.cache.put(&out.tokens, nodes.order[k])
            if whole and nodes.at[i].skip - i > min(self.large, WIDE):
                self.follow(to, i, level, out)
                if out.overflow:
                    break
                i = nodes.at[i].skip
                continue
            if states.states.flags[to] & DEPENDENT:
                self.add_dependent(Dependent(nodes, i, part, NULL), out)
                if out.overflow:
                    break
            i += 1
        return states.spend(visits)


cdef inline int push(List* list, int32_t item) except -1:
    if list.n == list.room:
        list.room = max(64, 2 * list.room)
        list.items = <int32_t*>grown(list.items, 4 * <Py_ssize_t>list.room)
    list.items[list.n] = item
    list.n += 1
    return 0
