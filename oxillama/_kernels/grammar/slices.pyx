"""Slices of a vocabulary: the tokens that consist of certain characters, and the tokens that leave them.

A slice serves parser states that any text of these characters can follow (covers.pyx): nearly all tokens consist of
them and are known in advance. Tokens that begin with them and leave the set form small tries, one per leaving byte.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.trie cimport SET, Key, Nodes, Trie, entry_of, nodes_build, nodes_free

cdef Py_ssize_t MOST_BYTES = 12 << 20  # maximum size of a vocabulary's slices


cdef Slice slice_of(Trie trie, bytes chars):
    """The slice of a set of characters; its trie keeps the slices used last, up to `MOST_BYTES`."""
    cdef Slice found = trie.slices.pop(chars, None)
    if found is None:
        found = Slice.__new__(Slice)
        found.build(trie, chars)
        while trie.slices and trie.slice_bytes() + found.n_bytes > MOST_BYTES:
            del trie.slices[next(iter(trie.slices))]
    trie.slices[chars] = found
    return found


cdef class Slice:
    """The tokens that consist of certain characters."""

    def __dealloc__(self):
        cdef int i
        for i in range(256):
            if self.leaving[i]:
                nodes_free(self.leaving[i])
                free(self.leaving[i])
            free(self.upto[i])
        free(self.bits)

    cdef int build(self, Trie trie, const uint8_t* chars) except -1:
        cdef Nodes* nodes = &trie.nodes
        cdef int32_t i = 0, k, token
        cdef int at, byte
        cdef uint8_t* path
        memcpy(self.chars, chars, SET)
        self.n_words = trie.n_words
        self.n_bytes = 4096 + 4 * self.n_words
        self.bits = <uint32_t*>calloc(self.n_words, 4)
        if not self.bits:
            raise MemoryError()
        for byte in range(256):
            self.leaves[byte] = not chars[entry_of(byte)] and trie.byte_first[byte] < trie.byte_first[byte + 1]
        path = <uint8_t*>grown(NULL, trie.max_depth + 1)
        path[0] = BASE
        while i < nodes.n:
            at = following(path[nodes.at[i].depth - 1], nodes.at[i].byte, chars)
            if at >= LEAVES:
                i = nodes.at[i].skip
                continue
            path[nodes.at[i].depth] = at
            for k in range(nodes.token_first[i], nodes.token_first[i + 1]):
                token = nodes.order[k]
                self.bits[token >> 5] |= <uint32_t>1 << (token & 31)
            i += 1
        free(path)
        return 0

    cdef bint is_left(self, Trie trie, int32_t place) noexcept:
        """Whether a nonempty text of complete characters, all in the set, leads to the parent of a node."""
        cdef int32_t token = trie.nodes.order[trie.nodes.token_first[place]], i
        cdef int32_t n = trie.nodes.at[place].depth - 1
        cdef int at = BASE
        for i in range(trie.first[token], trie.first[token] + n):
            at = following(at, trie.data[i], self.chars)
            if at >= LEAVES:
                return False
        return n > 0 and at == BASE

    cdef Nodes* leaving_with(self, Trie trie, int byte) except NULL:
        """A trie of the tokens that leave the set with a byte, after at least one character."""
        cdef Nodes* nodes = &trie.nodes
        cdef int32_t i, k, place, token, end = 0, n = 0
        cdef Key* keys
        if self.leaving[byte] == NULL:
            keys = <Key*>grown(NULL, sizeof(Key) * (<Py_ssize_t>trie.n_tokens + 1))
            for i in range(trie.byte_first[byte], trie.byte_first[byte + 1]):
                place = trie.with_byte[i]
                if place >= end and self.is_left(trie, place):
                    end = nodes.at[place].skip
                    for k in range(nodes.token_first[place], nodes.token_first[end]):
                        token = nodes.order[k]
                        keys[n] = Key(trie.data + trie.first[token], trie.first[token + 1] - trie.first[token], token)
                        n += 1
            try:
                self.leaving[byte] = <Nodes*>calloc(1, sizeof(Nodes))
                if not self.leaving[byte]:
                    raise MemoryError()
                nodes_build(self.leaving[byte], keys, n)
            finally:
                free(keys)
            self.n_bytes += 4 * n + 12 * self.leaving[byte].n
        return self.leaving[byte]

    cdef const uint32_t* of_length(self, Trie trie, int32_t most) except NULL:
        """The tokens of the set with at most ``most`` characters; ``most`` is at most 255."""
        cdef int32_t token, i
        cdef uint32_t* bits
        if self.upto[most] == NULL:
            bits = <uint32_t*>malloc(4 * <Py_ssize_t>self.n_words)
            if not bits:
                raise MemoryError()
            memcpy(bits, self.bits, 4 * <Py_ssize_t>self.n_words)
            for i in range(trie.length_first[most + 1], trie.n_vocab):
                token = trie.by_length[i]
                bits[token >> 5] &= ~(<uint32_t>1 << (token & 31))
            self.upto[most] = bits
            self.n_bytes += 4 * self.n_words
        return self.upto[most]
