"""The vocabulary as a trie, as other kernels see it."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    UPTO = 24  # a slice keeps masks of tokens of up to so many characters
    WIDE = 256  # nodes below one whose kids are kept

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


cdef struct Kids:
    # The nodes one byte below a node, and these bytes.
    int32_t n
    const int32_t* nodes
    const uint8_t* bytes
    int32_t[256] own_nodes  # of a node for which they are not kept
    uint8_t[256] own_bytes


cdef struct Key:
    uint64_t head     # the first eight bytes
    const uint8_t* text
    int32_t length, token, chars


cdef class Trie:
    cdef Nodes nodes
    cdef readonly int n_vocab, n_words, max_depth
    cdef readonly Py_ssize_t n_tokens
    cdef const uint8_t* data
    cdef int32_t* first      # (n_vocab + 1): where each token's bytes begin in data
    cdef uint8_t* inside     # (n_vocab): whether the token is in the trie
    cdef uint8_t* chars      # (n_vocab): bytes that begin a character, at most 255
    cdef int32_t* long_tokens  # those of more than UPTO characters
    cdef int32_t n_long
    cdef int32_t* with_byte  # (nodes): sorted by their bytes, those of byte b from byte_first[b] on
    cdef int32_t byte_first[257]
    cdef int32_t* wide       # nodes with more than WIDE below them, in order; the first one, -1, is the root
    cdef int32_t* kid_first  # (wide + 1): where the nodes one byte below each begin
    cdef int32_t* kid_nodes
    cdef uint8_t* kid_bytes
    cdef int32_t n_wide
    cdef object joined
    cdef dict slices         # those of `slices.pyx`
    cdef object valid        # ... the one of all tokens of characters, the last of which may be incomplete
    cdef bytes leads         # what `corrections.pyx` has found out about the nodes; None before

    cdef int note_characters(self) except -1
    cdef int sort_by_byte(self) except -1
    cdef int find_wide(self) except -1
    cdef Py_ssize_t slice_bytes(self) except -1
    cdef void kids_of(self, int32_t node, Kids* kids) noexcept


cdef Key key_of(const uint8_t* text, int32_t length, int32_t token, int32_t chars) noexcept nogil
cdef void nodes_free(Nodes* nodes) noexcept
cdef int nodes_build(Nodes* nodes, Key* keys, Py_ssize_t n) except -1
