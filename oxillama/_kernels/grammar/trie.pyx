"""The byte strings of a vocabulary as a flat, depth-first trie.

The strings are sorted; one pass over them then makes the trie.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcmp

from oxillama._kernels.grammar.memory cimport grown, sort_by


cdef class Trie:
    """Built once from the strings of the tokens; read-only, so threads may share it.

    Args:
        strings: list of bytes, by token id
        inside: bytes of the same length: 1 if the token belongs to the trie
    """

    def __cinit__(self, list strings not None: list[bytes], bytes inside not None):
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
                    if self.first[i + 1] - self.first[i] > 0xFFFF:
                        raise ValueError(f"strings: expected tokens of up to 65535 bytes, got {len(<bytes>texts[i])}")
                    keys[k] = Key(self.data + self.first[i], self.first[i + 1] - self.first[i], <int32_t>i)
                    self.max_depth = max(self.max_depth, keys[k].length)
                    k += 1
            self.n_tokens = k
            nodes_build(&self.nodes, keys, k)
        finally:
            free(keys)
        self.sort_tokens_and_nodes()

    def __dealloc__(self):
        nodes_free(&self.nodes)
        free(self.first)
        free(self.inside)
        free(self.by_length)
        free(self.with_byte)

    cdef int sort_tokens_and_nodes(self) except -1:
        """Sorts the tokens by number of characters, and the nodes by their bytes."""
        cdef int32_t n_nodes = <int32_t>self.nodes.n, token, i
        cdef int32_t* keys = <int32_t*>grown(NULL, 4 * <Py_ssize_t>max(self.n_vocab, n_nodes))
        try:
            for token in range(self.n_vocab):
                keys[token] = 0
                for i in range(self.first[token], self.first[token + 1]):
                    keys[token] += self.data[i] & 0xC0 != 0x80
                keys[token] = min(keys[token], 255)
            self.by_length = <int32_t*>grown(NULL, 4 * <Py_ssize_t>self.n_vocab)
            sort_by(keys, self.n_vocab, 256, self.length_first, self.by_length)
            for i in range(n_nodes):
                keys[i] = self.nodes.at[i].byte
            self.with_byte = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>n_nodes + 1))
            return sort_by(keys, n_nodes, 256, self.byte_first, self.with_byte)
        finally:
            free(keys)

    @property
    def n_bytes(self) -> int:
        """Memory held, in bytes."""
        return len(self.joined) + 9 * self.n_vocab + 4 * self.n_tokens + 16 * self.nodes.n + self.slice_bytes()

    cdef Py_ssize_t slice_bytes(self) except -1:
        return sum([part.n_bytes for part in self.slices.values()])

    def token_bytes(self, int token) -> bytes:
        """The bytes of a token, whether or not it is in the trie."""
        if not 0 <= token < self.n_vocab:
            raise IndexError(token)
        return self.data[self.first[token]:self.first[token + 1]]

    def holds(self, int token) -> bool:
        """Whether the token is in the trie."""
        return 0 <= token < self.n_vocab and self.inside[token] != 0


# --------------------------------------------------------------------------- building

cdef void nodes_free(Nodes* nodes) noexcept:
    free(nodes.at)
    free(nodes.token_first)
    free(nodes.order)


cdef int nodes_build(Nodes* nodes, Key* keys, Py_ssize_t n) except -1:
    """Sorts the keys, and makes the trie of their strings."""
    cdef Py_ssize_t k, total = 0
    cdef int32_t depth = 0, shared, longest = 0, made = 0
    cdef int32_t* path
    qsort(keys, n, sizeof(Key), compare_keys)
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
    # A node's tokens come before tokens of the nodes below it: keys with equal strings are adjacent.
    free(path)
    return 0


cdef inline int32_t common(const Key* a, const Key* b) noexcept nogil:
    """The number of bytes in the common prefix of two strings."""
    cdef int32_t n = min(a.length, b.length), i = 0
    while i < n and a.text[i] == b.text[i]:
        i += 1
    return i


cdef int compare_keys(const void* one, const void* other) noexcept nogil:
    """The order of strings; equal strings are ordered by their tokens."""
    cdef const Key* a = <const Key*>one
    cdef const Key* b = <const Key*>other
    cdef int order = memcmp(a.text, b.text, min(a.length, b.length))
    return order or a.length - b.length or a.token - b.token
