"""The byte strings of a vocabulary as a flat, depth-first trie, and slices of it.

Strings are sorted by their first eight bytes as one number, then by the rest; the trie falls out of one pass
over them.

A slice serves a state of a grammar that reads any number of characters of one class (the inside of a JSON
string): nearly all tokens are only that, and are known beforehand. Of the others what counts is the part
after the loop, so those parts, each once, make small tries of their own, one for each byte that they begin with.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from oxillama._kernels.grammar.memory cimport grown

cdef enum:
    SLICE_BYTES = 12 << 20  # that a vocabulary keeps

cdef enum:  # where the scan of a slice stands; numbers up to 3 are bytes that a character still needs
    BASE = 0
    START = 4
    AFTER_E0 = 5
    AFTER_ED = 6
    AFTER_F0 = 7
    AFTER_F4 = 8
    LEAVES = 9
    DIES = 10


cdef class Trie:
    """Built once from the strings of the tokens; read-only, so threads may share it.

    Parameters
    ----------
    strings : list of bytes, by token id
    inside : bytes of the same length: 1 where the token belongs in the trie
    """

    def __cinit__(self, list strings not None, bytes inside not None):
        cdef tuple texts = tuple(strings)
        cdef Py_ssize_t i, n = len(texts), k = 0
        for text in texts:
            if type(text) is not bytes:
                raise TypeError(f"strings: expected bytes, got {type(text)}")
        cdef bytes joined = b"".join(texts)
        cdef const uint8_t* flags = inside
        cdef uint8_t[SET] all_chars
        cdef Slice valid
        cdef Key* keys
        if n != len(inside):
            raise ValueError(f"inside: expected {n} flags, got {len(inside)}")
        if n == 0 or n >= 1 << 30 or len(joined) >= 1 << 31:
            raise ValueError(f"strings: expected 1 to 2**30 tokens of up to 2**31 bytes, got {n} of {len(joined)}")
        self.slices = {}
        self.joined = joined
        self.data = joined
        self.n_vocab = <int>n
        self.n_words = (self.n_vocab + 31) // 32
        self.first = <int32_t*>malloc(4 * (n + 1))
        self.inside = <uint8_t*>malloc(n)
        keys = <Key*>malloc(sizeof(Key) * n)
        try:
            if not (self.first and self.inside and keys):
                raise MemoryError()
            self.first[0] = 0
            for i in range(n):
                self.first[i + 1] = self.first[i] + <int32_t>len(<bytes>texts[i])
                self.inside[i] = flags[i] and self.first[i + 1] > self.first[i]
                if self.inside[i]:
                    if self.first[i + 1] - self.first[i] > 0xFFFF:
                        raise ValueError(f"strings: expected tokens of up to 65535 bytes, got {len(<bytes>texts[i])}")
                    keys[k] = key_of(self.data + self.first[i], self.first[i + 1] - self.first[i], <int32_t>i, 0)
                    self.max_depth = max(self.max_depth, keys[k].length)
                    k += 1
            self.n_tokens = k
            nodes_build(&self.nodes, keys, k)
        finally:
            free(keys)
        self.note_characters()
        self.sort_by_byte()
        self.find_wide()
        memset(all_chars, 1, SET)
        valid = Slice.__new__(Slice)
        valid.build(self, -1, all_chars, all_chars)
        self.valid = valid

    def __dealloc__(self):
        nodes_free(&self.nodes)
        free(self.first)
        free(self.inside)
        free(self.chars)
        free(self.long_tokens)
        free(self.with_byte)
        free(self.wide)
        free(self.kid_first)
        free(self.kid_nodes)
        free(self.kid_bytes)

    cdef int note_characters(self) except -1:
        """Count the characters of all tokens."""
        cdef int32_t token, i, n
        self.chars = <uint8_t*>malloc(self.n_vocab)
        self.long_tokens = <int32_t*>malloc(4 * self.n_vocab)
        if not (self.chars and self.long_tokens):
            raise MemoryError()
        for token in range(self.n_vocab):
            n = 0
            for i in range(self.first[token], self.first[token + 1]):
                n += self.data[i] & 0xC0 != 0x80
            self.chars[token] = <uint8_t>min(n, 255)
            if n > UPTO:
                self.long_tokens[self.n_long] = token
                self.n_long += 1
        self.long_tokens = <int32_t*>grown(self.long_tokens, 4 * (<Py_ssize_t>self.n_long + 1))
        return 0

    cdef int sort_by_byte(self) except -1:
        """Sort the nodes by their bytes; those of one byte stay in order."""
        cdef int32_t i, k
        self.with_byte = <int32_t*>malloc(4 * (self.nodes.n + 1))
        if not self.with_byte:
            raise MemoryError()
        for i in range(<int32_t>self.nodes.n):
            self.byte_first[self.nodes.at[i].byte + 1] += 1
        for k in range(256):
            self.byte_first[k + 1] += self.byte_first[k]
        for i in range(<int32_t>self.nodes.n):
            k = self.nodes.at[i].byte
            self.with_byte[self.byte_first[k]] = i
            self.byte_first[k] += 1
        for k in range(256, 0, -1):
            self.byte_first[k] = self.byte_first[k - 1]
        self.byte_first[0] = 0
        return 0

    cdef int find_wide(self) except -1:
        """Keep the kids of the root and of nodes with many below them: kids of theirs are far apart in memory."""
        cdef int32_t i, n = 0
        cdef Kids kids
        for i in range(-1, <int32_t>self.nodes.n):
            if i < 0 or self.nodes.at[i].skip - i > WIDE:
                self.kids_of(i, &kids)
                self.wide = <int32_t*>grown(self.wide, 4 * (<Py_ssize_t>self.n_wide + 1))
                self.kid_first = <int32_t*>grown(self.kid_first, 4 * (<Py_ssize_t>self.n_wide + 2))
                self.kid_nodes = <int32_t*>grown(self.kid_nodes, 4 * (<Py_ssize_t>n + 256))
                self.kid_bytes = <uint8_t*>grown(self.kid_bytes, n + 256)
                memcpy(self.kid_nodes + n, kids.nodes, 4 * kids.n)
                memcpy(self.kid_bytes + n, kids.bytes, kids.n)
                self.wide[self.n_wide], self.kid_first[self.n_wide] = i, n
                n += kids.n
                self.kid_first[self.n_wide + 1] = n
                self.n_wide += 1
        return 0

    cdef void kids_of(self, int32_t node, Kids* kids) noexcept:
        cdef int32_t low = 0, high = self.n_wide, middle, i = node + 1
        cdef int32_t end = self.nodes.at[node].skip if node >= 0 else <int32_t>self.nodes.n
        while low < high:
            middle = (low + high) >> 1
            if self.wide[middle] < node:
                low = middle + 1
            else:
                high = middle
        if low < self.n_wide and self.wide[low] == node:
            kids.n = self.kid_first[low + 1] - self.kid_first[low]
            kids.nodes, kids.bytes = self.kid_nodes + self.kid_first[low], self.kid_bytes + self.kid_first[low]
            return
        kids.n, kids.nodes, kids.bytes = 0, kids.own_nodes, kids.own_bytes
        while i < end:
            kids.own_nodes[kids.n], kids.own_bytes[kids.n] = i, self.nodes.at[i].byte
            kids.n += 1
            i = self.nodes.at[i].skip

    @property
    def n_nodes(self):
        """Number of nodes; the root, the empty string, is none."""
        return self.nodes.n

    @property
    def n_bytes(self):
        """Memory held, in bytes."""
        own = len(self.joined) + 6 * self.n_vocab + 4 * (self.n_tokens + self.n_long) + 16 * self.nodes.n
        return own + self.valid.n_bytes + self.slice_bytes()

    cdef Py_ssize_t slice_bytes(self) except -1:
        cdef Slice part
        cdef Py_ssize_t n = 0
        for part in self.slices.values():
            n += part.n_bytes
        return n

    def token_bytes(self, int token):
        """The bytes of a token, whether it is in the trie or not."""
        if not 0 <= token < self.n_vocab:
            raise IndexError(token)
        return self.data[self.first[token]:self.first[token + 1]]

    def holds(self, int token):
        """Whether the token is in the trie."""
        return 0 <= token < self.n_vocab and self.inside[token] != 0

    cdef Slice slice_of(self, int32_t node, const uint8_t* start, const uint8_t* loop):
        """The slice of the tokens below a node; those used last are kept, up to `SLICE_BYTES`.

        ``start`` and ``loop`` are the sets of the characters that the loop begins and goes on with.
        """
        cdef object key = (node, start[:SET], loop[:SET])
        cdef Slice found = self.slices.pop(key, None)
        if found is None:
            found = Slice.__new__(Slice)
            found.build(self, node, start, loop)
            while self.slices and self.slice_bytes() + found.n_bytes > SLICE_BYTES:
                del self.slices[next(iter(self.slices))]
        self.slices[key] = found
        return found


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
        while i < end:
            d = nodes.at[i].depth
            at = following(state[d - 1], nodes.at[i].byte, self.start, self.loop)
            if at >= LEAVES:
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
        memcpy(self.bits, trie.valid.bits, 4 * <Py_ssize_t>self.n_words)
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

    cdef bint may_leave(self, Trie trie, int byte) noexcept:
        """Whether tokens may leave the loop with a byte: it is not the loop's, and some token has it."""
        return not self.loop[entry_of(byte)] and trie.byte_first[byte] < trie.byte_first[byte + 1]

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


# --------------------------------------------------------------------------- building

cdef inline Key key_of(const uint8_t* text, int32_t length, int32_t token, int32_t chars) noexcept nogil:
    cdef Key made
    cdef int32_t i
    made.head = 0
    for i in range(8):
        made.head = made.head << 8 | (text[i] if i < length else 0)
    made.text, made.length, made.token, made.chars = text, length, token, chars
    return made


cdef void nodes_free(Nodes* nodes) noexcept:
    free(nodes.at)
    free(nodes.token_first)
    free(nodes.order)


cdef int nodes_build(Nodes* nodes, Key* keys, Py_ssize_t n) except -1:
    """Sort the keys, and make the trie of their strings."""
    cdef Py_ssize_t k, total = 0
    cdef int32_t depth = 0, shared, longest = 0, made = 0
    cdef int32_t* path
    cdef Key* spare
    if not are_sorted(keys, n):
        spare = <Key*>malloc(sizeof(Key) * (n + 1))
        if not spare:
            raise MemoryError()
        merge_sort(keys, spare, n)
        free(spare)
    for k in range(n):
        total += keys[k].length - (common(&keys[k - 1], &keys[k]) if k else 0)
        longest = max(longest, keys[k].length)
    nodes.n = total
    nodes.at = <Node*>malloc(sizeof(Node) * (total + 1))
    nodes.token_first = <int32_t*>malloc(4 * (total + 1))
    nodes.order = <int32_t*>malloc(4 * (n + 1))
    path = <int32_t*>malloc(4 * (longest + 1))
    if not (nodes.at and nodes.token_first and nodes.order and path):
        free(path)
        raise MemoryError()
    for k in range(n):
        nodes.order[k] = keys[k].token
        shared = common(&keys[k - 1], &keys[k]) if k else 0
        while depth > shared:
            nodes.at[path[depth]].skip = made
            depth -= 1
        while depth < keys[k].length:
            nodes.at[made].byte = keys[k].text[depth]
            nodes.token_first[made] = <int32_t>k
            depth += 1
            path[depth] = made
            nodes.at[made].depth = <uint16_t>depth
            made += 1
    while depth > 0:
        nodes.at[path[depth]].skip = made
        depth -= 1
    nodes.token_first[made] = <int32_t>n
    # A node's tokens come before those of the nodes below it: all keys of one string stand together.
    free(path)
    return 0


cdef inline int32_t common(const Key* a, const Key* b) noexcept nogil:
    """How many bytes two strings begin with together."""
    cdef int32_t n = min(a.length, b.length), i = 0
    while i < n and a.text[i] == b.text[i]:
        i += 1
    return i


cdef inline bint ordered(const Key* a, const Key* b) noexcept nogil:
    """Whether ``a`` is not after ``b``."""
    cdef int order
    if a.head != b.head:
        return a.head < b.head
    order = memcmp(a.text, b.text, min(a.length, b.length))
    return order < 0 or (order == 0 and a.length <= b.length)


cdef bint are_sorted(const Key* keys, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t k
    for k in range(1, n):
        if not ordered(keys + k - 1, keys + k):
            return False
    return True


cdef void merge_sort(Key* keys, Key* spare, Py_ssize_t n) noexcept nogil:
    """Stable, bottom up; the result is in ``keys``."""
    cdef Py_ssize_t width = 1, start, i, a, b, end_a, end_b
    cdef Key* source = keys
    cdef Key* target = spare
    while width < n:
        start = 0
        while start < n:
            i = a = start
            end_a = b = min(start + width, n)
            end_b = min(start + 2 * width, n)
            start = end_b
            while i < end_b:
                if b == end_b or (a < end_a and ordered(source + a, source + b)):
                    target[i] = source[a]
                    a += 1
                else:
                    target[i] = source[b]
                    b += 1
                i += 1
        source, target = target, source
        width *= 2
    if source != keys:
        for i in range(n):
            keys[i] = source[i]
