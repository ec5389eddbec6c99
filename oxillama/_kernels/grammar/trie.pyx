"""The byte strings of a vocabulary as a flat, depth-first trie, and slices of it.

Strings are sorted by their first eight bytes as one number, then by the rest; the trie falls out of one pass
over them.

A slice serves a state of a grammar that reads any number of characters of one class (the inside of a JSON
string): nearly all tokens are only that, and are known beforehand. Of the others what counts is the part
after the loop, so those parts, each once, make a small trie of their own.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

cdef enum:
    SLICE_BYTES = 12 << 20  # that a vocabulary keeps
    NON_ASCII = 128  # in a slice's sets: all characters beyond ASCII

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
                    keys[k] = key_of(self.data + self.first[i], self.first[i + 1] - self.first[i], <int32_t>i, 0)
                    self.max_depth = max(self.max_depth, keys[k].length)
                    k += 1
            self.n_tokens = k
            nodes_build(&self.nodes, keys, k)
        finally:
            free(keys)

    def __dealloc__(self):
        nodes_free(&self.nodes)
        free(self.first)
        free(self.inside)

    @property
    def n_nodes(self):
        """Number of nodes; the root, the empty string, is none."""
        return self.nodes.n

    @property
    def n_bytes(self):
        """Memory held, in bytes."""
        own = len(self.joined) + 5 * self.n_vocab + 4 * self.n_tokens + 13 * self.nodes.n
        return own + self.slice_bytes

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

        ``start`` and ``loop`` say for each ASCII character, and for all others, whether the loop begins with it
        and goes on with it.
        """
        cdef object key = (node, start[:129], loop[:129])
        cdef Slice found = self.slices.pop(key, None)
        if found is None:
            found = Slice.__new__(Slice)
            found.build(self, node, start, loop)
            self.slice_bytes += found.n_bytes
            while self.slice_bytes > SLICE_BYTES and self.slices:
                self.slice_bytes -= (<Slice>self.slices.pop(next(iter(self.slices)))).n_bytes
        self.slices[key] = found
        return found


cdef class Slice:
    """The tokens below a node that begin with one character of a set and go on with a loop over another."""

    def __dealloc__(self):
        cdef int i
        if self.base is None:
            nodes_free(&self.nodes)
        else:  # the shape of the trie is the other slice's
            free(self.nodes.token_first)
            free(self.nodes.order)
        free(self.chars)
        free(self.bits)
        free(self.inside)
        for i in range(UPTO + 1):
            free(self.upto[i])

    cdef int build(self, Trie trie, int32_t node, const uint8_t* start, const uint8_t* loop) except -1:
        cdef Nodes* nodes = &trie.nodes
        cdef int32_t i = node + 1, end = nodes.skip[node] if node >= 0 else <int32_t>nodes.n
        cdef int32_t depth = nodes.depth[node] if node >= 0 else 0
        cdef int32_t d, k, token, length, n_keys = 0, n_inside = 0, count
        cdef int32_t most = nodes.token_first[end] - nodes.token_first[i]
        cdef int at
        cdef uint8_t* state = <uint8_t*>malloc(trie.max_depth + 1)
        cdef int32_t* chars = <int32_t*>malloc(4 * (trie.max_depth + 1))
        cdef Key* keys = <Key*>malloc(sizeof(Key) * (most + 1))
        cdef Key* inside = <Key*>malloc(sizeof(Key) * (most + 1))
        self.n_words = trie.n_words
        self.bits = <uint32_t*>calloc(self.n_words, 4)
        try:
            if not (state and chars and keys and inside and self.bits):
                raise MemoryError()
            state[depth] = START
            chars[depth] = 0
            while i < end:
                d = nodes.depth[i]
                at = following(state[d - 1], nodes.byte[i], start, loop)
                if at >= LEAVES:
                    if at == LEAVES:
                        for k in range(nodes.token_first[i], nodes.token_first[nodes.skip[i]]):
                            token = nodes.order[k]
                            length = trie.first[token + 1] - trie.first[token] - d + 1
                            keys[n_keys] = key_of(
                                trie.data + trie.first[token] + d - 1, length, token, chars[d - 1])
                            n_keys += 1
                    i = nodes.skip[i]
                    continue
                state[d] = at
                chars[d] = chars[d - 1] + (state[d - 1] == BASE or state[d - 1] == START)
                for k in range(nodes.token_first[i], nodes.token_first[i + 1]):
                    token = nodes.order[k]
                    self.bits[token >> 5] |= <uint32_t>1 << (token & 31)
                    inside[n_inside].token = token
                    inside[n_inside].chars = min(chars[d], 255)
                    n_inside += 1
                i += 1
            nodes_build(&self.nodes, keys, n_keys)
            self.chars = <uint8_t*>malloc(n_keys + 1)
            self.inside = <int32_t*>malloc(4 * (n_inside + 1))
            if not (self.chars and self.inside):
                raise MemoryError()
            for k in range(n_keys):
                self.chars[k] = <uint8_t>min(keys[k].chars, 255)
            count = 0
            for d in range(256):  # a counting sort by number of characters
                self.length_first[d] = 0
            for k in range(n_inside):
                self.length_first[inside[k].chars] += 1
            for d in range(256):
                count += self.length_first[d]
                self.length_first[d] = count - self.length_first[d]
            self.length_first[256] = count
            for k in range(n_inside):
                self.inside[self.length_first[inside[k].chars]] = inside[k].token
                self.length_first[inside[k].chars] += 1
            for d in range(255, 0, -1):
                self.length_first[d] = self.length_first[d - 1]
            self.length_first[0] = 0
            self.n_nodes = end - node - 1
            self.n_bytes = 4 * self.n_words * (2 + UPTO) + 13 * self.nodes.n + 5 * n_keys + 4 * n_inside
        finally:
            free(state)
            free(chars)
            free(keys)
            free(inside)
        return 0

    cdef Slice starting(self, Trie trie, int32_t node, const uint8_t* start):
        """This slice less the tokens whose first character is not in ``start``; without `of_length`."""
        cdef Slice made = Slice.__new__(Slice)
        cdef Nodes* nodes = &trie.nodes
        cdef int32_t i = node + 1, end = nodes.skip[node] if node >= 0 else <int32_t>nodes.n
        cdef int32_t depth = nodes.depth[node] if node >= 0 else 0
        cdef int32_t k, token, n_keys = self.nodes.token_first[self.nodes.n], kept = 0, at = 0
        made.base = self
        made.n_words = self.n_words
        made.nodes.n, made.nodes.byte = self.nodes.n, self.nodes.byte
        made.nodes.depth, made.nodes.skip = self.nodes.depth, self.nodes.skip
        made.bits = <uint32_t*>malloc(4 * self.n_words)
        made.chars = <uint8_t*>malloc(n_keys + 1)
        made.nodes.token_first = <int32_t*>malloc(4 * (self.nodes.n + 1))
        made.nodes.order = <int32_t*>malloc(4 * (n_keys + 1))
        if not (made.bits and made.chars and made.nodes.token_first and made.nodes.order):
            raise MemoryError()
        memcpy(made.bits, self.bits, 4 * self.n_words)
        while i < end:
            if not start[min(nodes.byte[i], NON_ASCII)]:
                for k in range(nodes.token_first[i], nodes.token_first[nodes.skip[i]]):
                    token = nodes.order[k]
                    made.bits[token >> 5] &= ~(<uint32_t>1 << (token & 31))
            i = nodes.skip[i]
        for k in range(n_keys):
            while at <= self.nodes.n and self.nodes.token_first[at] <= k:
                made.nodes.token_first[at] = kept
                at += 1
            token = self.nodes.order[k]
            if start[min(trie.data[trie.first[token] + depth], NON_ASCII)]:
                made.nodes.order[kept] = token
                made.chars[kept] = self.chars[k]
                kept += 1
        while at <= self.nodes.n:
            made.nodes.token_first[at] = kept
            at += 1
        made.n_nodes = self.nodes.n + n_keys
        made.n_bytes = 4 * self.n_words + 4 * self.nodes.n + 5 * n_keys
        return made

    cdef const uint32_t* of_length(self, int32_t most) except NULL:
        """The tokens that are all loop and at most ``most`` characters long, ``most`` up to UPTO."""
        cdef int32_t k, token
        cdef uint32_t* bits
        if self.upto[most] == NULL:
            bits = <uint32_t*>calloc(self.n_words, 4)
            if not bits:
                raise MemoryError()
            for k in range(self.length_first[most + 1]):
                token = self.inside[k]
                bits[token >> 5] |= <uint32_t>1 << (token & 31)
            self.upto[most] = bits
        return self.upto[most]


cdef inline int following(int at, uint8_t byte, const uint8_t* start, const uint8_t* loop) noexcept nogil:
    """Where the scan of a slice stands after a byte."""
    cdef const uint8_t* chars = start if at == START else loop
    if at == BASE or at == START:
        if byte < 0x80:
            if chars[byte]:
                return BASE
        elif chars[NON_ASCII]:
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
    free(nodes.byte)
    free(nodes.depth)
    free(nodes.skip)
    free(nodes.token_first)
    free(nodes.order)


cdef int nodes_build(Nodes* nodes, Key* keys, Py_ssize_t n) except -1:
    """Sort the keys, and make the trie of their strings."""
    cdef Py_ssize_t k, total = 0
    cdef int32_t depth = 0, shared, longest = 0, made = 0
    cdef int32_t* path
    cdef Key* spare = <Key*>malloc(sizeof(Key) * (n + 1))
    if not spare:
        raise MemoryError()
    merge_sort(keys, spare, n)
    free(spare)
    for k in range(n):
        total += keys[k].length - (common(&keys[k - 1], &keys[k]) if k else 0)
        longest = max(longest, keys[k].length)
    nodes.n = total
    nodes.byte = <uint8_t*>malloc(total + 1)
    nodes.depth = <int32_t*>malloc(4 * (total + 1))
    nodes.skip = <int32_t*>malloc(4 * (total + 1))
    nodes.token_first = <int32_t*>malloc(4 * (total + 1))
    nodes.order = <int32_t*>malloc(4 * (n + 1))
    path = <int32_t*>malloc(4 * (longest + 1))
    if not (nodes.byte and nodes.depth and nodes.skip and nodes.token_first and nodes.order and path):
        free(path)
        raise MemoryError()
    for k in range(n):
        nodes.order[k] = keys[k].token
        shared = common(&keys[k - 1], &keys[k]) if k else 0
        while depth > shared:
            nodes.skip[path[depth]] = made
            depth -= 1
        while depth < keys[k].length:
            nodes.byte[made] = keys[k].text[depth]
            nodes.token_first[made] = <int32_t>k
            depth += 1
            path[depth] = made
            nodes.depth[made] = depth
            made += 1
    while depth > 0:
        nodes.skip[path[depth]] = made
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
