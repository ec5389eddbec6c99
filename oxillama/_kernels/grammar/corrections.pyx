"""Corrections of a mask by the values that an array or object already has.

The mask of a parser state with registers is first made with abstract registers, for which all values are new, so that
cached masks are shared. It is wrong for few tokens, which are then followed with the real registers: tokens that
continue an open value like an earlier value, and tokens within which another value begins or an object or array ends.
The latter have a bracket or a comma, so they are found in advance.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.parser_states cimport ParserStates, stepped
from oxillama._kernels.grammar.registers cimport OF_TEXT, Registers
from oxillama._kernels.grammar.rows cimport DEAD
from oxillama._kernels.grammar.stacks cimport FRESH, TAPED
from oxillama._kernels.grammar.trie cimport Key, Nodes, Trie, nodes_build, nodes_free


cdef class Leads:
    """A trie of the tokens within which a value may begin, or an object or array end. Only kernels make one."""

    def __dealloc__(self):
        nodes_free(&self.nodes)

    cdef int build(self, Trie trie) except -1:
        cdef Key* keys = <Key*>grown(NULL, sizeof(Key) * (trie.n_tokens + 1))
        cdef int32_t i, token, length, n = 0
        try:
            for i in range(<int32_t>trie.n_tokens):
                token = trie.nodes.order[i]
                length = trie.first[token + 1] - trie.first[token]
                if may_lead(trie.data + trie.first[token], length):
                    keys[n] = Key(trie.data + trie.first[token], length, token)
                    n += 1
            return nodes_build(&self.nodes, keys, n)
        finally:
            free(keys)


cdef class Corrections:
    """Corrects masks over a trie, for the parser states of one table."""

    def __cinit__(self, Trie trie not None, ParserStates states not None):
        self.trie, self.states = trie, states
        self.fresh = {}
        self.path = <int32_t*>malloc(4 * (trie.max_depth + 2))
        if not self.path:
            raise MemoryError()

    def __dealloc__(self):
        free(self.path)

    cdef int correct(self, int32_t state, int32_t abstract, uint32_t* bits) except -1:
        """Corrects the mask of a parser state, which was made with abstract registers."""
        cdef bytes text
        cdef const uint8_t* data
        cdef int32_t node, to = -1
        cdef uint8_t first = 0
        if self.leads is None:
            if self.trie.leads is None:
                self.trie.leads = Leads.__new__(Leads)
                (<Leads>self.trie.leads).build(self.trie)
                self.states.spend(self.trie.n_tokens // 8)
            self.leads = self.trie.leads
        for node, text in self.fresh_nodes(abstract):
            data = text
            if to < 0 or data[0] != first:
                first = data[0]
                to = stepped(self.states, state, first)
            self.decide(&self.leads.nodes, node, self.states.run(to, data + 1, len(text) - 1), bits)
        if self.states.states.flags[state] & TAPED:
            self.old_values(state, bits)
        return 0

    # ------------------------------------------------------------------ values that begin or end within a token

    cdef list fresh_nodes(self, int32_t abstract):
        """The highest nodes of `Leads` at which a value has begun or a bracket has closed, with the bytes to each node.
        """
        cdef Nodes* nodes = &self.leads.nodes
        cdef int32_t i = 0, d, first
        cdef uint8_t flags
        cdef Py_ssize_t visits = 0
        cdef list found = self.fresh.get(abstract)
        if found is not None:
            return found
        found = []
        self.path[0] = abstract
        while i < nodes.n:
            visits += 1
            d = nodes.at[i].depth
            self.path[d] = stepped(self.states, self.path[d - 1], nodes.at[i].byte)
            flags = self.states.states.flags[self.path[d]]
            if flags & FRESH:
                first = self.trie.first[nodes.order[nodes.token_first[i]]]
                found.append((i, self.trie.data[first:first + d]))
            i = nodes.at[i].skip if flags & FRESH or self.path[d] == DEAD else i + 1
        self.states.spend(visits)
        self.states.charge(100 + 100 * len(found))
        self.fresh[abstract] = found
        return found

    # ------------------------------------------------------------------ values that came before

    cdef int old_values(self, int32_t state, uint32_t* bits) except -1:
        cdef Registers registers = self.states.registers
        cdef int32_t n, text, one
        cdef list rests
        for n in self.states.open_in(state):
            text = registers.suffix(self.states.tapes[state], registers.registers[n].begin)
            one = registers.registers[n].members
            rests = []
            while one:
                if registers.begins_member(text, registers.sets[one].key):
                    rests.append(registers.bytes_of(registers.sets[one].key - OF_TEXT, registers.texts[text].depth))
                one = registers.sets[one].rest
            self.follow(-1, state, [rest for rest in rests if rest], 0, False, bits)
        return 0

    cdef int follow(self, int32_t node, int32_t state, list rests, int32_t at, bint complete, uint32_t* bits) except -1:
        """Decides over the tokens below a node that continue an open value like earlier values.

        ``rests``: the remaining bytes of these values, from ``at`` on. ``complete``: the open value equals an earlier
        value, unless it continues, which only numbers can.
        """
        cdef Nodes* nodes = &self.trie.nodes
        cdef int32_t i = node + 1, end = nodes.at[node].skip if node >= 0 else <int32_t>nodes.n, to
        cdef dict groups = {}
        cdef list below
        cdef uint8_t byte
        cdef bint space, inside = self.states.registers.texts[self.states.tapes[state]].inside != 0
        cdef bytes rest
        for rest in rests:
            groups.setdefault(rest[at], []).append(rest)
        while i < end and (groups or complete):
            byte = nodes.at[i].byte
            space = not inside and (byte == 0x20 or 0x09 <= byte <= 0x0D)
            below = rests if space else groups.get(byte)
            if below is None and not (complete and not goes_on(byte)):
                i = nodes.at[i].skip
                continue
            self.states.spend(1)
            to = stepped(self.states, state, byte)
            if to == DEAD or below is None or (space and complete):
                self.decide(nodes, i, to, bits)
            else:
                self.allow(nodes, i, bits)
                longer = below if space else [rest for rest in below if len(rest) > at + 1]
                self.follow(i, to, longer, at + (not space), len(longer) < len(below), bits)
            i = nodes.at[i].skip
        return 0

    cdef int decide(self, Nodes* nodes, int32_t node, int32_t state, uint32_t* bits) except -1:
        """Decides with the real registers over the tokens at and below a node, which leads to ``state``."""
        cdef int32_t i = node, end = nodes.at[node].skip, d
        self.path[nodes.at[node].depth] = state
        while i < end:
            self.states.spend(1)
            d = nodes.at[i].depth
            if i > node:
                self.path[d] = stepped(self.states, self.path[d - 1], nodes.at[i].byte)
            if self.path[d] == DEAD:
                self.forbid(nodes, i, bits)
                i = nodes.at[i].skip
            else:
                self.allow(nodes, i, bits)
                i += 1
        return 0

    # ------------------------------------------------------------------ bits

    cdef void allow(self, Nodes* nodes, int32_t node, uint32_t* bits) noexcept:
        """Sets the bits of the tokens that end at a node."""
        cdef int32_t k
        for k in range(nodes.token_first[node], nodes.token_first[node + 1]):
            bits[nodes.order[k] >> 5] |= <uint32_t>1 << (nodes.order[k] & 31)

    cdef void forbid(self, Nodes* nodes, int32_t node, uint32_t* bits) noexcept:
        """Clears the bits of the tokens at and below a node."""
        cdef int32_t k
        for k in range(nodes.token_first[node], nodes.token_first[nodes.at[node].skip]):
            bits[nodes.order[k] >> 5] &= ~(<uint32_t>1 << (nodes.order[k] & 31))


# --------------------------------------------------------------------------- plain C

cdef inline bint goes_on(uint8_t byte) noexcept:
    """Whether a byte can continue a number."""
    return 0x30 <= byte <= 0x39 or byte in (0x2B, 0x2D, 0x2E, 0x45, 0x65)


cdef bint may_lead(const uint8_t* text, int32_t n) noexcept:
    """Whether a token has a bracket or a comma, or begins with white space before the start of a value.

    A value that starts at the token's first byte may have begun before.
    """
    cdef int32_t i = 0
    while i < n and (text[i] == 0x20 or 0x09 <= text[i] <= 0x0D):
        i += 1
    if 0 < i < n and (0x30 <= text[i] <= 0x39 or text[i] in (0x22, 0x2D, 0x66, 0x6E, 0x74)):
        return True
    for i in range(n):
        if text[i] in (0x2C, 0x5B, 0x5D, 0x7B, 0x7D):
            return True
    return False
