"""The vocabulary as a trie, as other kernels see it."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t

cdef enum:  # a set of characters: an entry for each one of ASCII, and two for the others
    BEYOND_ASCII = 128  # all others, but perhaps those of the next entry
    OF_E2 = 129         # those whose first byte is E2, two of which end lines (U+2028, U+2029); only with all others
    SET = 130


cdef inline int entry_of(int byte) noexcept nogil:
    """Where a set says whether it has the characters that begin with a byte."""
    return byte if byte < 0x80 else OF_E2 if byte == 0xE2 else BEYOND_ASCII


cdef struct Node:
    int32_t skip         # the next node that is not below this one
    uint16_t depth       # the bytes up to and with this node's own
    uint8_t byte


cdef struct Nodes:
    # Depth first: the nodes below i are i + 1 ... at[i].skip - 1, and a node's next sibling is at[i].skip.
    # Tokens are in the order of their nodes: those that end at i are order[token_first[i] ...] up to
    # token_first[i + 1], those at or below it go on up to token_first[at[i].skip].
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
    cdef int32_t* first      # (n_vocab + 1): where each token's bytes begin in data
    cdef uint8_t* inside     # (n_vocab): whether the token is in the trie
    cdef int32_t* by_length  # (n_vocab): tokens by their characters, those of n from length_first[n] on
    cdef int32_t length_first[257]  # more than 255 count as 255
    cdef int32_t* with_byte  # (nodes): sorted by their bytes, those of byte b from byte_first[b] on
    cdef int32_t byte_first[257]
    cdef object joined
    cdef dict slices         # those of `slices.pyx`
    cdef object leads        # the `Leads` of `corrections.pyx`, once they were asked for

    cdef int sort_tokens_and_nodes(self) except -1
    cdef Py_ssize_t slice_bytes(self) except -1


cdef void nodes_free(Nodes* nodes) noexcept
cdef int nodes_build(Nodes* nodes, Key* keys, Py_ssize_t n) except -1
