"""The byte strings of a vocabulary as a flat, depth-first trie, and slices of it.

Strings are sorted by their first eight bytes as one number, then by the rest; the trie falls out of one pass
over them.

A slice serves a state of a grammar that reads any number of characters of one class (the inside of a JSON
string): nearly all tokens are only that, and are known beforehand. Of the others what counts is the part
after the loop, so those parts, each once, make small tries of their own, one for each byte that they begin with.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp

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
        return own + self.slice_bytes()

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

        ``start`` and ``loop`` say for each ASCII character, and for all others, whether the loop begins with it
        and goes on with it.
        """
        cdef object key = (node, start[:129], loop[:129])
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
        free(self.inside)
        free(self.places)
        free(self.place_chars)

    cdef int build(self, Trie trie, int32_t node, const uint8_t* start, const uint8_t* loop) except -1:
        cdef Nodes* nodes = &trie.nodes
        cdef int32_t i = node + 1, end = nodes.skip[node] if node >= 0 else <int32_t>nodes.n
        cdef int32_t d, k, n_places = 0, n_inside = 0, most = nodes.token_first[end] - nodes.token_first[i]
        cdef int at
        cdef uint8_t* state = <uint8_t*>malloc(trie.max_depth + 1)
        cdef int32_t* chars = <int32_t*>malloc(4 * (trie.max_depth + 1))
        cdef int32_t* found = <int32_t*>malloc(4 * (<Py_ssize_t>end - i + 1))     # places
        cdef uint8_t* counts = <uint8_t*>malloc(<Py_ssize_t>end - i + most + 1)  # characters: of places, of tokens
        cdef int32_t* tokens = <int32_t*>malloc(4 * (<Py_ssize_t>most + 1))
        cdef uint8_t* lengths = counts + (end - i)
        self.depth = d = nodes.depth[node] if node >= 0 else 0
        self.n_words = trie.n_words
        self.n_nodes = end - i
        self.bits = <uint32_t*>calloc(self.n_words, 4)
        try:
            if not (state and chars and found and counts and tokens and self.bits):
                raise MemoryError()
            state[d] = START
            chars[d] = 0
            while i < end:
                d = nodes.depth[i]
                at = following(state[d - 1], nodes.byte[i], start, loop)
                if at >= LEAVES:
                    if at == LEAVES:
                        found[n_places] = i
                        counts[n_places] = <uint8_t>min(chars[d - 1], 255)
                        n_places += 1
                    i = nodes.skip[i]
                    continue
                state[d] = at
                chars[d] = chars[d - 1] + (state[d - 1] == BASE or state[d - 1] == START)
                for k in range(nodes.token_first[i], nodes.token_first[i + 1]):
                    tokens[n_inside] = nodes.order[k]
                    self.bits[tokens[n_inside] >> 5] |= <uint32_t>1 << (tokens[n_inside] & 31)
                    lengths[n_inside] = <uint8_t>min(chars[d], 255)
                    n_inside += 1
                i += 1
            self.places = <int32_t*>malloc(4 * (n_places + 1))
            self.place_chars = <uint8_t*>malloc(n_places + 1)
            self.inside = <int32_t*>malloc(4 * (n_inside + 1))
            if not (self.places and self.place_chars and self.inside):
                raise MemoryError()
            for i in range(n_places):
                self.place_first[nodes.byte[found[i]] + 1] += 1
            for k in range(256):
                self.place_first[k + 1] += self.place_first[k]
            for i in range(n_places):
                k = nodes.byte[found[i]]
                self.places[self.place_first[k]] = found[i]
                self.place_chars[self.place_first[k]] = counts[i]
                self.place_first[k] += 1
            shift(self.place_first)
            for i in range(n_inside):
                self.length_first[lengths[i] + 1] += 1
            for k in range(256):
                self.length_first[k + 1] += self.length_first[k]
            for i in range(n_inside):
                self.inside[self.length_first[lengths[i]]] = tokens[i]
                self.length_first[lengths[i]] += 1
            shift(self.length_first)
            self.n_bytes = 2048 + 4 * self.n_words + 5 * n_places + 4 * n_inside
        finally:
            free(state)
            free(chars)
            free(found)
            free(counts)
            free(tokens)
        return 0

    cdef Key* keys_of(self, Trie trie, int byte, bint whole, int32_t* n) except NULL:
        """The tokens that leave the loop with a byte: the rest of each, or all of it."""
        cdef Nodes* nodes = &trie.nodes
        cdef int32_t i, k, place, token, from_
        cdef Key* keys
        n[0] = 0
        for i in range(self.place_first[byte], self.place_first[byte + 1]):
            n[0] += nodes.token_first[nodes.skip[self.places[i]]] - nodes.token_first[self.places[i]]
        keys = <Key*>malloc(sizeof(Key) * (n[0] + 1))
        if not keys:
            raise MemoryError()
        n[0] = 0
        for i in range(self.place_first[byte], self.place_first[byte + 1]):
            place = self.places[i]
            from_ = self.depth if whole else nodes.depth[place] - 1
            for k in range(nodes.token_first[place], nodes.token_first[nodes.skip[place]]):
                token = nodes.order[k]
                keys[n[0]] = key_of(trie.data + trie.first[token] + from_,
                                    trie.first[token + 1] - trie.first[token] - from_, token, self.place_chars[i])
                n[0] += 1
        return keys

    cdef Tail* tail(self, Trie trie, int byte) except NULL:
        """What leaves the loop with a byte."""
        cdef int32_t n, k
        cdef Key* keys
        cdef Tail* made = self.tails[byte]
        if made:
            return made
        made = <Tail*>calloc(1, sizeof(Tail))
        if not made:
            raise MemoryError()
        keys = self.keys_of(trie, byte, False, &n)
        try:
            nodes_build(&made.rests, keys, n)
            made.chars = <uint8_t*>malloc(n + 1)
            if not made.chars:
                raise MemoryError()
            for k in range(n):
                made.chars[k] = <uint8_t>keys[k].chars
        finally:
            free(keys)
        self.tails[byte] = made
        self.n_bytes += sizeof(Tail) + 5 * n + 13 * made.rests.n
        return made

    cdef Nodes* whole(self, Trie trie, int byte) except NULL:
        """The tokens that leave the loop with a byte."""
        cdef int32_t n
        cdef Key* keys
        cdef Tail* made = self.tail(trie, byte)
        if not made.has_whole:
            keys = self.keys_of(trie, byte, True, &n)
            try:
                nodes_build(&made.whole, keys, n)
            finally:
                free(keys)
            made.has_whole = True
            self.n_bytes += 4 * n + 13 * made.whole.n
        return &made.whole

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
            self.n_bytes += 4 * self.n_words
        return self.upto[most]


cdef void shift(int32_t* first) noexcept:
    """Where each of 256 groups begins, from where each ends."""
    cdef int k
    for k in range(255, 0, -1):
        first[k] = first[k - 1]
    first[0] = 0


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
