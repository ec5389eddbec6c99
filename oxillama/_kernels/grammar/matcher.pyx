"""The tokens that a grammar allows, as bitmasks.

The mask of a parser state is the union of the masks of its items (RTN state, count, stack). A walk over the trie with
an open stack finds the tokens of an item that do not depend on its stack, once for each RTN state and count, and the
places inside tokens at which its subnetwork has ended (*dependents*). The remaining bytes of those tokens form a small
trie, which is walked with the real stack. If a set of characters covers a parser state (covers.pyx), a slice of the
vocabulary has nearly all of its tokens. A count that no token can bring to a bound is replaced by an abstract count,
which represents all such counts (ABOVE, BELOW).
"""

cimport cython
cimport numpy as cnp
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc

from oxillama._kernels.arrays cimport checked
from oxillama._kernels.grammar.corrections cimport Corrections
from oxillama._kernels.grammar.covers cimport Cover, Covers
from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.parser_states cimport ParserStates, stepped
from oxillama._kernels.grammar.rows cimport DEAD
from oxillama._kernels.grammar.slices cimport Slice, slice_of
from oxillama._kernels.grammar.stacks cimport ABOVE, DEPENDENT, OPEN, REGISTERED
from oxillama._kernels.grammar.trie cimport Key, Nodes, Trie, entry_of, nodes_build, nodes_free

from oxillama._kernels.grammar.closure import NotBuilt
from oxillama.errors import GrammarError

cnp.import_array()

cdef enum:
    MAX_LIST = 1024         # maximum number of tokens in a list; more become a mask
    WORDS_OF_WORK = 64      # words of a mask that count as one unit of work


cdef struct Dependent:
    # A node at which the subnetwork has ended, so that the remaining bytes of a token depend on the stack.
    Nodes* nodes
    int32_t node


cdef class Allowed:
    """Tokens that can follow: a slice, and further tokens as a list or a mask; and the dependents of a walk.

    ``overflow``: there are more dependents than are kept, so the tokens are incomplete.
    """

    cdef Slice slice
    cdef uint32_t* bits
    cdef int32_t* tokens
    cdef Dependent* dependents
    cdef Nodes rests        # remaining bytes of the tokens with dependents
    cdef int32_t n_tokens, room, n_dependents, dependents_room, n_words
    cdef bint owns_bits, overflow

    def __dealloc__(self):
        if self.owns_bits:
            free(self.bits)
        free(self.tokens)
        free(self.dependents)
        nodes_free(&self.rests)

    cdef inline int put(self, int32_t token) except -1:
        if self.bits == NULL and self.n_tokens == self.room:
            self.make_room()
        if self.bits:
            self.bits[token >> 5] |= <uint32_t>1 << (token & 31)
        else:
            self.tokens[self.n_tokens] = token
            self.n_tokens += 1
        return 0

    cdef int make_room(self) except -1:
        """Makes room for a longer list; replaces a list that is too long by a mask."""
        cdef int32_t i
        if self.room < MAX_LIST:
            self.room = max(16, 2 * self.room)
            self.tokens = <int32_t*>grown(self.tokens, 4 * <Py_ssize_t>self.room)
            return 0
        self.bits = <uint32_t*>calloc(self.n_words, 4)
        if not self.bits:
            raise MemoryError()
        self.owns_bits = True
        for i in range(self.n_tokens):
            self.put(self.tokens[i])
        self.n_tokens = 0
        return 0

    cdef int put_mask(self, const uint32_t* bits) noexcept:
        cdef int32_t i
        for i in range(self.n_words):
            self.bits[i] |= bits[i]
        return 0

    cdef int put_all(self, Allowed other) except -1:
        """Adds another object's tokens to the mask."""
        cdef int32_t i
        if other.slice is not None:
            self.put_mask(other.slice.bits)
        if other.bits:
            self.put_mask(other.bits)
        for i in range(other.n_tokens):
            self.put(other.tokens[i])
        return 0

    cdef int add_dependent(self, Nodes* nodes, int32_t node, int32_t most) except -1:
        """Keeps a node at which the open stack was reached, if tokens continue after it."""
        if nodes.at[node].skip == node + 1:
            return 0
        if self.n_dependents >= most:
            self.overflow = True
            return 0
        if self.n_dependents == self.dependents_room:
            self.dependents_room = max(16, 2 * self.dependents_room)
            self.dependents = <Dependent*>grown(self.dependents, self.dependents_room * sizeof(Dependent))
        self.dependents[self.n_dependents] = Dependent(nodes, node)
        self.n_dependents += 1
        return 0

    cdef Py_ssize_t n_bytes(self) noexcept:
        return 200 + 4 * (self.room + self.n_words * self.owns_bits) + 16 * self.rests.n


cdef class Matcher:
    """The tokens of a vocabulary that can follow in each parser state.

    Attributes:
        sliced: number of trie nodes above which slices are made
        min_loop: number of ASCII characters from which a set is worth a slice
        max_dependents: maximum number kept per item; items with more are walked with their real stacks each time
        n_shared: bytes of slices that other grammars over the vocabulary use too
    """

    cdef public int32_t sliced, min_loop, max_dependents
    cdef readonly Trie trie
    cdef readonly ParserStates states
    cdef readonly Py_ssize_t n_shared
    cdef Covers covers
    cdef Corrections corrections
    cdef dict known          # allowed tokens by RTN state and count
    cdef dict slices         # slices by their characters
    cdef int32_t* path       # (depths): parser states along the path of a walk

    def __cinit__(self, Trie trie not None, ParserStates states not None):
        self.trie, self.states = trie, states
        self.covers, self.corrections = Covers(states), Corrections(trie, states)
        self.known, self.slices = {}, {}
        self.sliced, self.min_loop, self.max_dependents = 4096, 16, 4096
        self.path = <int32_t*>malloc(4 * <Py_ssize_t>(trie.max_depth + 1))
        if not self.path:
            raise MemoryError()

    def __dealloc__(self):
        free(self.path)

    # ------------------------------------------------------------------ for Python

    def advance(self, int32_t state, int32_t token) -> int:
        """The parser state after a token's bytes; 0 if they cannot follow."""
        cdef int32_t first
        if not 0 <= token < self.trie.n_vocab:
            raise IndexError(f"token {token}: the vocabulary has {self.trie.n_vocab}")
        with cython.critical_section(self.trie, self.states):
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

    def compute_bitmask(self, int32_t state, cnp.ndarray mask):
        """Sets the bits of the trie's tokens that can follow.

        Args:
            state: a parser state
            mask: uint32 (words,), zeros. Bit t % 32 of word t / 32 is the bit of token t.
        """
        cdef Allowed out = self.empty()
        with cython.critical_section(self.trie, self.states):
            self.states.checked_state(state)
            out.bits = <uint32_t*>checked(mask, cnp.NPY_UINT32, self.trie.n_words, "mask", True)
            self.states.allow(self.states.budget)
            while True:
                try:
                    if self.states.states.flags[state] & REGISTERED:
                        self.add_registered(state, out)
                    else:
                        self.add_items(state, out)
                    break
                except (NotBuilt, GrammarError) as error:
                    self.states.mend(error, state)

    cdef Allowed empty(self):
        cdef Allowed found = Allowed.__new__(Allowed)
        found.n_words = self.trie.n_words
        return found

    cdef int add_registered(self, int32_t state, Allowed out) except -1:
        """`add_items`, if an open container has distinct members."""
        cdef int32_t abstract = self.states.abstracted(state)
        self.add_items(abstract, out)
        return self.corrections.correct(state, abstract, out.bits)

    # ------------------------------------------------------------------ items

    cdef int add_items(self, int32_t state, Allowed out) except -1:
        """Adds the tokens that can follow a parser state to a mask, item by item."""
        cdef int32_t i
        cdef Item item
        for i in range(self.states.states.first[state], self.states.states.first[state + 1]):
            item = self.states.states.items[i]
            item.n = self.states.abstract_count(item.q, item.n, self.trie.max_depth)
            self.add_item(item, out)
        return 0

    cdef int add_item(self, Item item, Allowed out) except -1:
        cdef Allowed found
        self.states.spend(1 + self.trie.n_words // WORDS_OF_WORK)
        if item.n < ABOVE and self.states.rtn[item.q].most and not self.states.is_register(item.q):
            return self.add_counting(item, out)
        found = self.allowed(item.q, item.n)
        if found.overflow:
            return self.add(self.state_of(item), out)
        out.put_all(found)
        if found.rests.n:
            self.walk(self.states.popped(item.p), &found.rests, 0, <int32_t>found.rests.n, out)
        return 0

    cdef int32_t state_of(self, Item item) except -1:
        return self.states.intern(&self.states.states, &item, 1, 0)

    cdef Allowed allowed(self, int32_t q, int32_t n):
        """The tokens that can follow an RTN state and a count, with any stack."""
        cdef object key = <long long>q << 32 | n
        cdef Allowed found = self.known.get(key)
        if found is None:
            found = self.empty()
            self.add(self.state_of(Item(q, n, OPEN)), found)
            if not found.overflow:
                self.find_rests(found)
            self.states.charge(found.n_bytes())
            self.known[key] = found
        return found

    cdef int find_rests(self, Allowed found) except -1:
        """Makes a trie of the remaining bytes of the tokens with dependents."""
        cdef int32_t i, k, n = 0, token, begin
        cdef Dependent one
        cdef Key* keys
        if found.n_dependents == 0:
            return 0
        for i in range(found.n_dependents):
            one = found.dependents[i]
            n += one.nodes.token_first[one.nodes.at[one.node].skip] - one.nodes.token_first[one.node + 1]
        self.states.spend(n)
        keys = <Key*>grown(NULL, sizeof(Key) * (<Py_ssize_t>n + 1))
        n = 0
        for i in range(found.n_dependents):
            one = found.dependents[i]
            for k in range(one.nodes.token_first[one.node + 1], one.nodes.token_first[one.nodes.at[one.node].skip]):
                token = one.nodes.order[k]
                begin = self.trie.first[token] + one.nodes.at[one.node].depth
                keys[n] = Key(self.trie.data + begin, self.trie.first[token + 1] - begin, token)
                n += 1
        try:
            nodes_build(&found.rests, keys, n)
        finally:
            free(keys)
        free(found.dependents)
        found.dependents, found.n_dependents, found.dependents_room = NULL, 0, 0
        return 0

    cdef int add_counting(self, Item item, Allowed out) except -1:
        """Adds the tokens of an item whose count a token may bring to a bound.

        If the counted node is a set of characters that leads back to the item, and no other item takes them,
        then of the tokens of these characters exactly the short enough ones can follow.
        """
        cdef int32_t state = self.state_of(item), most = 255, i
        cdef Cover cover
        cdef Item counted = Item(item.q, ABOVE, OPEN), other
        if self.trie.nodes.n > self.sliced and self.trie.max_depth < 255:  # else lengths are unknown
            cover = self.covers.of(self.state_of(counted), self.min_loop)
            if cover.chars is not None and cover.loop != DEAD:
                for i in range(self.states.states.first[cover.loop], self.states.states.first[cover.loop + 1]):
                    other = self.states.states.items[i]
                    if (other.q != counted.q or other.n != counted.n or other.p != counted.p) and self.covers.goes_on(
                        self.state_of(other), cover.chars
                    ):
                        break
                else:
                    if self.states.rtn[item.q].most > 0:
                        most = min(most, self.states.rtn[item.q].most - item.n)
                    return self.add_covered(state, cover, most, out)
        if self.states.rtn[item.q].most > 0:  # no set of characters can be repeated beyond the bound
            return self.add_beside(state, NULL, out)
        return self.add(state, out)

    # ------------------------------------------------------------------ walks

    cdef int add(self, int32_t state, Allowed out) except -1:
        """Adds the tokens that can follow a parser state by walks, with a slice if it has a cover."""
        cdef Cover cover
        if self.trie.nodes.n > self.sliced:
            cover = self.covers.of(state, self.min_loop)
            if cover.chars is not None:
                return self.add_covered(state, cover, -1, out)
        return self.add_beside(state, NULL, out)

    cdef int add_covered(self, int32_t state, Cover cover, int32_t most, Allowed out) except -1:
        """Adds the tokens of a cover, of at most ``most`` characters (-1: of any length), and all others by walks."""
        cdef Slice part = self.slice(cover.chars)
        cdef const uint8_t* leaves = cover.leaves
        cdef Nodes* nodes
        cdef int byte
        if most >= 0:
            out.put_mask(part.of_length(self.trie, most))
        elif out.bits:
            out.put_mask(part.bits)
        else:
            out.slice = part
        for byte in range(256):
            if leaves[byte] and part.leaves[byte] and not out.overflow:
                nodes = part.leaving_with(self.trie, byte)
                self.walk(state, nodes, 0, <int32_t>nodes.n, out)
        return self.add_beside(state, cover.chars, out)

    cdef Slice slice(self, bytes chars):
        cdef Slice found = self.slices.get(chars)
        if found is None:
            found = self.slices[chars] = slice_of(self.trie, chars)
            self.states.spend(self.trie.nodes.n)  # charged even if another grammar has made the slice before
            self.states.charge(found.n_bytes)
            self.n_shared += found.n_bytes
        return found

    cdef int add_beside(self, int32_t state, const uint8_t* chars, Allowed out) except -1:
        """Adds the tokens that do not begin with one of these characters; without characters, all tokens."""
        cdef Nodes* nodes = &self.trie.nodes
        cdef int32_t i = 0
        while i < nodes.n and not out.overflow:
            if not (chars and chars[entry_of(nodes.at[i].byte)]):
                if stepped(self.states, state, nodes.at[i].byte) != DEAD:
                    self.walk(state, nodes, i, nodes.at[i].skip, out)
            i = nodes.at[i].skip
        return 0

    cdef int walk(self, int32_t state, Nodes* nodes, int32_t i, int32_t end, Allowed out) except -1:
        """Adds the tokens of nodes i ... end - 1 that can follow a parser state."""
        cdef ParserStates states = self.states
        cdef int32_t* path = self.path
        cdef int32_t to, d, k
        cdef Py_ssize_t visits = 0
        path[0] = state
        while i < end:
            visits += 1
            d = nodes.at[i].depth
            to = stepped(states, path[d - 1], nodes.at[i].byte)
            if to == DEAD:
                i = nodes.at[i].skip
                continue
            path[d] = to
            for k in range(nodes.token_first[i], nodes.token_first[i + 1]):
                out.put(nodes.order[k])
            if states.states.flags[to] & DEPENDENT:
                out.add_dependent(nodes, i, self.max_dependents)
                if out.overflow:
                    break
            i += 1
        return states.spend(visits)
