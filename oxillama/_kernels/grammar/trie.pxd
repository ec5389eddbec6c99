"""Declarations of trie.pyx: the vocabulary as a trie."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t

cdef enum:  # a set of characters: one entry for each ASCII character, and two for all others
    BEYOND_ASCII = 128  # all others, except the next entry's
    OF_E2 = 129         # first byte E2: two of them end lines (U+2028, U+2029); only set with all others
    SET = 130


cdef inline int entry_of(int byte) noexcept nogil:
    """The entry of a set for the characters that begin with a byte."""
    return byte if byte < 0x80 else OF_E2 if byte == 0xE2 else BEYOND_ASCII


cdef struct Node:
    int32_t skip         # the next node that is not below this one
    uint16_t depth       # number of bytes up to this node
    uint8_t byte


cdef struct Nodes:
    # Depth first: the nodes below i are i + 1 ... at[i].skip - 1, and a node's next sibling is at[i].skip.
    # Tokens are in the order of their nodes: tokens that end at i are order[token_first[i]] up to
    # order[token_first[i + 1] - 1], tokens at or below i up to order[token_first[at[i].skip] - 1].
    Py_ssize_t n
    Node* at
    int32_t* token_first
    int32_t* order


cdef struct Key:
    const uint8_t* text
    int32_t length, token


cdef class Trie:
    cdef Nodes nodes
    cdef readonly int n_vocab, n_words, max_depth
    cdef readonly Py_ssize_t n_tokens
    cdef const uint8_t* data
    cdef int32_t* first      # (n_vocab + 1): offset of each token's bytes in data
    cdef uint8_t* inside     # (n_vocab): whether the token is in the trie
    cdef int32_t* by_length  # (n_vocab): tokens by number of characters; n characters begin at length_first[n]
    cdef int32_t length_first[257]  # more than 255 characters count as 255
    cdef int32_t* with_byte  # (nodes): sorted by bytes; nodes with byte b begin at byte_first[b]
    cdef int32_t byte_first[257]
    cdef object joined
    cdef dict slices         # slices of `slices.pyx`
    cdef object leads        # the `Leads` of `corrections.pyx`, once they were requested

    cdef int sort_tokens_and_nodes(self) except -1
    cdef Py_ssize_t slice_bytes(self) except -1


cdef void nodes_free(Nodes* nodes) noexcept
cdef int nodes_build(Nodes* nodes, Key* keys, Py_ssize_t n) except -1
