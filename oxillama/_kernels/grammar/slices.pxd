"""Declarations of slices.pyx: slices of a vocabulary."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from oxillama._kernels.grammar.trie cimport SET, Key, Nodes, Trie, entry_of

cdef enum:  # state of a scan through a text of characters; 1 to 3: continuation bytes that a character still needs
    BASE = 0
    AFTER_E0 = 5
    AFTER_ED = 6
    AFTER_F0 = 7
    AFTER_F4 = 8
    LEAVES = 9
    DIES = 10


cdef class Slice:
    cdef uint32_t* bits        # tokens of the slice's characters; the last character may be incomplete
    cdef uint32_t* upto[256]   # n -> tokens of at most n characters
    cdef Nodes* leaving[256]   # byte -> trie of the tokens that leave the set with this byte
    cdef uint8_t chars[SET]
    cdef uint8_t leaves[256]   # byte -> whether tokens may leave the set with this byte
    cdef int n_words
    cdef readonly Py_ssize_t n_bytes

    cdef int build(self, Trie trie, const uint8_t* chars) except -1
    cdef bint is_left(self, Trie trie, int32_t place) noexcept
    cdef Nodes* leaving_with(self, Trie trie, int byte) except NULL
    cdef const uint32_t* of_length(self, Trie trie, int32_t most) except NULL


cdef Slice slice_of(Trie trie, bytes chars)


cdef inline int following(int at, uint8_t byte, const uint8_t* chars) noexcept nogil:
    """The state of the scan after a byte, for a text of these characters."""
    if at == BASE:
        if not chars[entry_of(byte)]:
            return LEAVES
        if byte < 0x80:
            return BASE
        if byte < 0xC2 or byte > 0xF4:
            return DIES
        if byte < 0xE0:
            return 1
        if byte < 0xF0:
            return AFTER_E0 if byte == 0xE0 else AFTER_ED if byte == 0xED else 2
        return AFTER_F0 if byte == 0xF0 else AFTER_F4 if byte == 0xF4 else 3
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
