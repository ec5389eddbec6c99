"""The byte strings of a vocabulary as a flat, depth-first trie.

Strings are sorted by their first eight bytes as one number, then by the rest; the trie falls out of one pass
over them. Tokens of equal bytes are chained.
"""

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp


cdef struct Key:
    uint64_t head
    int32_t token


cdef int nodes_alloc(Nodes* nodes, Py_ssize_t n) except -1:
    nodes.n = n
    nodes.byte = <uint8_t*>malloc(n + 1)
    nodes.depth = <int32_t*>malloc(4 * (n + 1))
    nodes.skip = <int32_t*>malloc(4 * (n + 1))
    nodes.token = <int32_t*>malloc(4 * (n + 1))
    if not (nodes.byte and nodes.depth and nodes.skip and nodes.token):
        raise MemoryError()
    return 0


cdef void nodes_free(Nodes* nodes) noexcept:
    free(nodes.byte)
    free(nodes.depth)
    free(nodes.skip)
    free(nodes.token)


cdef class Trie:
    """Built once from the strings of the tokens; read-only, so threads may share it.

    Parameters
    ----------
    strings : list of bytes, by token id
    inside : bytes of the same length: 1 where the token belongs in the trie
    """

    def __cinit__(self, list strings, bytes inside):
        cdef Py_ssize_t i, n = len(strings)
        cdef bytes joined = b"".join(strings)
        cdef const uint8_t* flags = inside
        if n != len(inside):
            raise ValueError(f"inside: expected {n} flags, got {len(inside)}")
        if n == 0 or n >= 1 << 30 or len(joined) >= 1 << 31:
            raise ValueError(f"strings: expected 1 to 2**30 tokens of up to 2**31 bytes, got {n} of {len(joined)}")
        self.owner = joined
        self.data = joined
        self.n_vocab = <int>n
        self.same = <int32_t*>malloc(4 * n)
        self.first = <int32_t*>malloc(4 * (n + 1))
        self.inside = <uint8_t*>malloc(n)
        if not (self.same and self.first and self.inside):
            raise MemoryError()
        self.first[0] = 0
        for i in range(n):
            self.first[i + 1] = self.first[i] + <int32_t>len(<bytes>strings[i])
            self.inside[i] = flags[i] and self.first[i + 1] > self.first[i]
            self.same[i] = -1
        self.build()

    def __dealloc__(self):
        nodes_free(&self.nodes)
        free(self.same)
        free(self.first)
        free(self.inside)

    @property
    def n_nodes(self):
        """Number of nodes; the root, the empty string, is none."""
        return self.nodes.n

    @property
    def n_bytes(self):
        """Memory held, in bytes."""
        return len(self.owner) + 9 * self.n_vocab + 13 * self.nodes.n

    def token_bytes(self, int token):
        """The bytes of a token, whether it is in the trie or not."""
        if not 0 <= token < self.n_vocab:
            raise IndexError(token)
        return self.data[self.first[token]:self.first[token + 1]]

    def holds(self, int token):
        """Whether the token is in the trie."""
        return 0 <= token < self.n_vocab and self.inside[token] != 0

    cdef int build(self) except -1:
        cdef Py_ssize_t n = 0, i, k, made = 0, total = 0
        cdef int32_t* path
        cdef int32_t token, before, depth, length, shared, last = 0
        cdef Key* keys = <Key*>malloc(2 * sizeof(Key) * self.n_vocab)
        cdef const uint8_t* text
        if not keys:
            raise MemoryError()
        for i in range(self.n_vocab):
            if self.inside[i]:
                length = self.first[i + 1] - self.first[i]
                total += length
                self.max_depth = max(self.max_depth, length)
                keys[n].token = <int32_t>i
                keys[n].head = head_of(self.data + self.first[i], length)
                n += 1
        self.n_tokens = n
        merge_sort(keys, keys + self.n_vocab, n, self.data, self.first)
        path = <int32_t*>calloc(self.max_depth + 1, 4)
        if not path:
            free(keys)
            raise MemoryError()
        # once to count the nodes, once to make them
        for k in range(2):
            depth = 0
            made = 0
            before = -1
            for i in range(n):
                token = keys[i].token
                text = self.data + self.first[token]
                length = self.first[token + 1] - self.first[token]
                shared = common(self.data, self.first, before, token) if before >= 0 else 0
                if k:
                    while depth > shared:
                        self.nodes.skip[path[depth]] = <int32_t>made
                        depth -= 1
                    depth = shared
                    if shared == length:  # the same string again
                        self.same[last] = token
                        last = token
                        before = token
                        continue
                    while depth < length:
                        self.nodes.byte[made] = text[depth]
                        depth += 1
                        path[depth] = <int32_t>made
                        self.nodes.depth[made] = depth
                        self.nodes.token[made] = -1
                        made += 1
                    self.nodes.token[made - 1] = token
                    last = token
                else:
                    made += length - shared
                before = token
            if not k:
                if nodes_alloc(&self.nodes, made) < 0:
                    return -1
            else:
                while depth > 0:
                    self.nodes.skip[path[depth]] = <int32_t>made
                    depth -= 1
        free(keys)
        free(path)
        return 0


cdef inline uint64_t head_of(const uint8_t* text, int32_t length) noexcept nogil:
    """The first eight bytes as a big-endian number, zeros after the end."""
    cdef uint64_t head = 0
    cdef int32_t i
    for i in range(8):
        head = head << 8 | (text[i] if i < length else 0)
    return head


cdef inline int32_t common(const uint8_t* data, const int32_t* first, int32_t a, int32_t b) noexcept nogil:
    """How many bytes two tokens begin with together."""
    cdef int32_t n = min(first[a + 1] - first[a], first[b + 1] - first[b]), i = 0
    while i < n and data[first[a] + i] == data[first[b] + i]:
        i += 1
    return i


cdef inline bint ordered(const Key* a, const Key* b, const uint8_t* data, const int32_t* first) noexcept nogil:
    """Whether ``a`` is not after ``b``."""
    cdef int32_t n, m
    cdef int order
    if a.head != b.head:
        return a.head < b.head
    n = first[a.token + 1] - first[a.token]
    m = first[b.token + 1] - first[b.token]
    order = memcmp(data + first[a.token], data + first[b.token], min(n, m))
    return order < 0 or (order == 0 and n <= m)


cdef void merge_sort(Key* keys, Key* spare, Py_ssize_t n, const uint8_t* data, const int32_t* first) noexcept nogil:
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
                if b == end_b or (a < end_a and ordered(source + a, source + b, data, first)):
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
