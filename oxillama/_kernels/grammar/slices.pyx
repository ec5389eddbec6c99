"""Slices of a vocabulary: the tokens that are all loop, and what leaves the loop.

A slice serves a state of a grammar that reads any number of characters of one class (the inside of a JSON
string): nearly all tokens are only that, and are known beforehand. Of the others what counts is the part
after the loop, so those parts, each once, make small tries of their own, one for each byte that they begin with.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.trie cimport SET, UPTO, Key, Nodes, Trie, entry_of, key_of, nodes_build, nodes_free

cdef Py_ssize_t MOST_BYTES = 12 << 20  # that a vocabulary keeps

cdef enum:  # where the scan of a slice stands; numbers up to 3 are bytes that a character still needs
    BASE = 0
    START = 4
    AFTER_E0 = 5
    AFTER_ED = 6
    AFTER_F0 = 7
    AFTER_F4 = 8
    LEAVES = 9
    DIES = 10


cdef Slice slice_of(Trie trie, int32_t node, const uint8_t* start, const uint8_t* loop):
    """The slice of the tokens below a node; its trie keeps those used last, up to `MOST_BYTES`.

    ``start`` and ``loop`` are the sets of the characters that the loop begins and goes on with.
    """
    cdef object key = (node, start[:SET], loop[:SET])
    cdef Slice found = trie.slices.pop(key, None)
    if found is None:
        found = Slice.__new__(Slice)
        found.build(trie, node, start, loop)
        while trie.slices and trie.slice_bytes() + found.n_bytes > MOST_BYTES:
            del trie.slices[next(iter(trie.slices))]
    trie.slices[key] = found
    return found


cdef Slice valid_of(Trie trie):
    """The slice of all characters, from which others are made."""
    cdef uint8_t[SET] all_chars
    cdef Slice made
    if trie.valid is None:
        memset(all_chars, 1, SET)
        made = Slice.__new__(Slice)
        made.build(trie, -1, all_chars, all_chars)
        trie.valid = made
    return <Slice>trie.valid


cdef class Slice:
    """The tokens below a node that begin with one character of a set and go on with a loop over another."""

    def __dealloc__(self):
        cdef int i
        for i in range(256):
            if self.tails[i]:
                nodes_free(&self.tails[i].rests)
                nodes_free(&self.tails[i].whole)
                free(self.tails[i].chars)
                free(self.tails[i])
        for i in range(UPTO + 1):
            free(self.upto[i])
        free(self.bits)

    cdef int build(self, Trie trie, int32_t node, const uint8_t* start, const uint8_t* loop) except -1:
        cdef Nodes* nodes = &trie.nodes
        cdef int32_t k, token, others = 0
        cdef int byte
        self.leading = {}
        memcpy(self.start, start, SET)
        memcpy(self.loop, loop, SET)
        self.node, self.depth = node, nodes.at[node].depth if node >= 0 else 0
        if node >= 0:
            token = nodes.order[nodes.token_first[node]]
            for k in range(self.depth):
                self.above += trie.data[trie.first[token] + k] & 0xC0 != 0x80
        self.n_words = trie.n_words
        self.n_nodes = (nodes.at[node].skip if node >= 0 else nodes.n) - node - 1
        self.n_bytes = 2048 + 4 * self.n_words
        self.bits = <uint32_t*>calloc(self.n_words, 4)
        if not self.bits:
            raise MemoryError()
        for byte in range(256):
            if not loop[entry_of(byte)]:
                others += trie.byte_first[byte + 1] - trie.byte_first[byte]
                self.leaves[byte] = trie.byte_first[byte] < trie.byte_first[byte + 1]
        if node < 0 and trie.valid is not None and 4 * others < nodes.n and memcmp(start, loop, SET) == 0:
            self.leave_out(trie)
            return 0
        return self.take(trie)

    cdef int take(self, Trie trie) except -1:
        """Find the tokens that are all loop, from their beginnings."""
        cdef Nodes* nodes = &trie.nodes
        cdef int32_t i = self.node + 1, end = <int32_t>(i + self.n_nodes), d, k, token
        cdef int at
        cdef uint8_t* state = <uint8_t*>grown(NULL, trie.max_depth + 1)
        state[self.depth] = START
        memset(self.leaves, 0, 256)
        while i < end:
            d = nodes.at[i].depth
            at = following(state[d - 1], nodes.at[i].byte, self.start, self.loop)
            if at >= LEAVES:
                self.leaves[nodes.at[i].byte] |= at == LEAVES
                i = nodes.at[i].skip
                continue
            state[d] = at
            for k in range(nodes.token_first[i], nodes.token_first[i + 1]):
                token = nodes.order[k]
                self.bits[token >> 5] |= <uint32_t>1 << (token & 31)
            i += 1
        free(state)
        return 0

    cdef void leave_out(self, Trie trie) noexcept:
        """The same where few bytes are not in the loop: all tokens of characters but those with such bytes."""
        cdef Nodes* nodes = &trie.nodes
        cdef int32_t i, k, node, token, end = 0
        cdef int byte
        memcpy(self.bits, (<Slice>trie.valid).bits, 4 * <Py_ssize_t>self.n_words)
        for byte in range(256):
            if self.loop[entry_of(byte)]:
                continue
            end = 0
            for i in range(trie.byte_first[byte], trie.byte_first[byte + 1]):
                node = trie.with_byte[i]
                if node < end:
                    continue  # below the one before
                end = nodes.at[node].skip
                for k in range(nodes.token_first[node], nodes.token_first[end]):
                    token = nodes.order[k]
                    self.bits[token >> 5] &= ~(<uint32_t>1 << (token & 31))

    cdef int32_t places(self, Trie trie, int byte, int32_t* found, uint8_t* chars) noexcept:
        """The nodes at which tokens leave the loop with a byte, and the characters before each; returns how many."""
        cdef Nodes* nodes = &trie.nodes
        cdef int32_t top = self.node + 1, end = nodes.at[self.node].skip if self.node >= 0 else <int32_t>nodes.n
        cdef int32_t k = trie.byte_first[byte], last = trie.byte_first[byte + 1], n = 0, middle, high, before
        while top < end:
            if self.start[entry_of(nodes.at[top].byte)]:
                high = last
                while k < high:  # the first one below the node
                    middle = (k + high) >> 1
                    if trie.with_byte[middle] > top:
                        high = middle
                    else:
                        k = middle + 1
                while k < last and trie.with_byte[k] < nodes.at[top].skip:
                    before = self.loop_before(trie, trie.with_byte[k])
                    if before > 0:
                        found[n], chars[n] = trie.with_byte[k], <uint8_t>min(before, 255)
                        n += 1
                    k += 1
            top = nodes.at[top].skip
        return n

    cdef list leading_places(self, Trie trie, int byte, const uint8_t* leads):
        """The places of a byte that ``leads`` (nodes,) marks."""
        cdef list found = self.leading.get(byte)
        cdef int32_t most = trie.byte_first[byte + 1] - trie.byte_first[byte], i
        cdef int32_t* nodes
        cdef uint8_t* chars
        if found is None:
            nodes, chars = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>most + 1)), <uint8_t*>malloc(most + 1)
            try:
                if not chars:
                    raise MemoryError()
                found = [nodes[i] for i in range(self.places(trie, byte, nodes, chars)) if leads[nodes[i]]]
            finally:
                free(nodes)
                free(chars)
            self.leading[byte] = found
            self.n_bytes += 100 + 40 * len(found)
        return found

    cdef int32_t loop_before(self, Trie trie, int32_t place) noexcept:
        """The number of characters before a node, all of the loop; 0 where they are not."""
        cdef int32_t token = trie.nodes.order[trie.nodes.token_first[place]], n = 0, i
        cdef int at = START, before
        for i in range(trie.first[token] + self.depth, trie.first[token] + trie.nodes.at[place].depth - 1):
            before = at
            at = following(at, trie.data[i], self.start, self.loop)
            if at >= LEAVES:
                return 0
            n += before == BASE or before == START
        return n if at == BASE else 0

    cdef Key* keys_of(self, Trie trie, int byte, bint whole, int32_t* n) except NULL:
        """The tokens that leave the loop with a byte: the rest of each, or all of it."""
        cdef Nodes* nodes = &trie.nodes
        cdef int32_t most = trie.byte_first[byte + 1] - trie.byte_first[byte], i, k, place, token, from_, n_places
        cdef int32_t* found = <int32_t*>malloc(4 * (<Py_ssize_t>most + 1))
        cdef uint8_t* chars = <uint8_t*>malloc(most + 1)
        cdef Key* keys
        try:
            if not (found and chars):
                raise MemoryError()
            n_places = self.places(trie, byte, found, chars)
            n[0] = 0
            for i in range(n_places):
                n[0] += nodes.token_first[nodes.at[found[i]].skip] - nodes.token_first[found[i]]
            keys = <Key*>malloc(sizeof(Key) * (<Py_ssize_t>n[0] + 1))
            if not keys:
                raise MemoryError()
            n[0] = 0
            for i in range(n_places):
                place = found[i]
                from_ = self.depth if whole else nodes.at[place].depth - 1
                for k in range(nodes.token_first[place], nodes.token_first[nodes.at[place].skip]):
                    token = nodes.order[k]
                    keys[n[0]] = key_of(trie.data + trie.first[token] + from_,
                                        trie.first[token + 1] - trie.first[token] - from_, token, chars[i])
                    n[0] += 1
        finally:
            free(found)
            free(chars)
        return keys

    cdef Tail* tail(self, Trie trie, int byte) except NULL:
        """What leaves the loop with a byte."""
        cdef Tail* made = self.own_tail(byte)
        cdef int32_t n, k
        cdef Key* keys
        if made.has_rests:
            return made
        keys = self.keys_of(trie, byte, False, &n)
        try:
            nodes_build(&made.rests, keys, n)
            made.chars = <uint8_t*>grown(NULL, n + 1)
            for k in range(n):
                made.chars[k] = <uint8_t>keys[k].chars
        finally:
            free(keys)
        made.has_rests = True
        self.n_bytes += 5 * n + 12 * made.rests.n
        return made

    cdef Nodes* whole(self, Trie trie, int byte) except NULL:
        """The tokens that leave the loop with a byte."""
        cdef Tail* made = self.own_tail(byte)
        cdef int32_t n
        cdef Key* keys
        if made.has_whole:
            return &made.whole
        keys = self.keys_of(trie, byte, True, &n)
        try:
            nodes_build(&made.whole, keys, n)
        finally:
            free(keys)
        made.has_whole = True
        self.n_bytes += 4 * n + 12 * made.whole.n
        return &made.whole

    cdef Tail* own_tail(self, int byte) except NULL:
        if self.tails[byte] == NULL:
            self.tails[byte] = <Tail*>calloc(1, sizeof(Tail))
            if self.tails[byte] == NULL:
                raise MemoryError()
            self.n_bytes += sizeof(Tail)
        return self.tails[byte]

    cdef const uint32_t* of_length(self, Trie trie, int32_t most) except NULL:
        """The tokens that are all loop and at most ``most`` characters long, ``most`` up to UPTO."""
        cdef int32_t token
        cdef uint32_t* bits
        if self.upto[most] == NULL:
            bits = <uint32_t*>malloc(4 * <Py_ssize_t>self.n_words)
            if not bits:
                raise MemoryError()
            memcpy(bits, self.bits, 4 * <Py_ssize_t>self.n_words)
            for token in range(trie.n_vocab):
                if trie.chars[token] - self.above > most:
                    bits[token >> 5] &= ~(<uint32_t>1 << (token & 31))
            self.upto[most] = bits
            self.n_bytes += 4 * self.n_words
        return self.upto[most]

    cdef int drop_longer(self, Trie trie, int32_t most, uint32_t* bits) noexcept:
        """Clear the bits of tokens of more than ``most`` characters, ``most`` above UPTO."""
        cdef int32_t k, token
        for k in range(trie.n_long):
            token = trie.long_tokens[k]
            if trie.chars[token] - self.above > most:
                bits[token >> 5] &= ~(<uint32_t>1 << (token & 31))
        return 0


cdef inline int following(int at, uint8_t byte, const uint8_t* start, const uint8_t* loop) noexcept nogil:
    """Where the scan of a slice stands after a byte."""
    cdef const uint8_t* chars = start if at == START else loop
    if at == BASE or at == START:
        if byte < 0x80:
            if chars[byte]:
                return BASE
        elif chars[entry_of(byte)]:
            if byte < 0xC2 or byte > 0xF4:
                return DIES
            if byte < 0xE0:
                return 1
            if byte < 0xF0:
                return AFTER_E0 if byte == 0xE0 else AFTER_ED if byte == 0xED else 2
            return AFTER_F0 if byte == 0xF0 else AFTER_F4 if byte == 0xF4 else 3
        return DIES if at == START else LEAVES
    if byte < 0x80 or byte > 0xBF:
        return DIES
    if at <= 3:
        return at - 1
    if at == AFTER_E0:
        return 1 if byte >= 0xA0 else DIES
    if at == AFTER_ED:
        return 1 if byte < 0xA0 else DIES
    if at == AFTER_F0:
        return 2 if byte >= 0x90 else DIES
    return 2 if byte < 0x90 else DIES
