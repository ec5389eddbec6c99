"""The vocabulary as a trie, as other kernels see it."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

cdef enum:
    UPTO = 24  # a slice keeps masks of tokens of up to so many characters


cdef struct Nodes:
    # Depth first: the nodes below i are i + 1 ... skip[i] - 1, and a node's next sibling is skip[i].
    # Tokens are in the order of their nodes: those that end at i are order[token_first[i] ...] up to
    # token_first[i + 1], those at or below it go on up to token_first[skip[i]].
    Py_ssize_t n
    uint8_t* byte
    int32_t* depth    # the bytes up to and with this node's own
    int32_t* skip
    int32_t* token_first
    int32_t* order


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
    cdef object joined
    cdef dict slices
    cdef bytes leads         # what `corrections.pyx` has found out about the nodes; None before

    cdef Slice slice_of(self, int32_t node, const uint8_t* start, const uint8_t* loop)
    cdef Py_ssize_t slice_bytes(self) except -1


cdef struct Tail:
    # What follows a loop and begins with one byte.
    Nodes rests         # each once
    uint8_t* chars      # (tokens of rests): characters before it, at most 255
    Nodes whole         # the same tokens with the loops before them; made when it is asked for
    bint has_whole


cdef class Slice:
    cdef uint32_t* bits      # the tokens that are all loop
    cdef int32_t* inside     # the same as a list, by number of characters
    cdef int32_t length_first[257]  # where in that list the tokens of so many characters begin
    cdef uint32_t* upto[25]
    cdef int32_t* places     # nodes of the trie at which tokens leave the loop, by the byte with which they do
    cdef uint8_t* place_chars  # (places): characters before it, at most 255
    cdef int32_t place_first[257]
    cdef Tail* tails[256]
    cdef int n_words
    cdef int32_t depth       # of the node that the slice is below
    cdef Py_ssize_t n_nodes  # that were looked at to make it
    cdef Py_ssize_t n_bytes

    cdef int build(self, Trie trie, int32_t node, const uint8_t* start, const uint8_t* loop) except -1
    cdef Tail* tail(self, Trie trie, int byte) except NULL
    cdef Nodes* whole(self, Trie trie, int byte) except NULL
    cdef Key* keys_of(self, Trie trie, int byte, bint whole, int32_t* n) except NULL
    cdef const uint32_t* of_length(self, int32_t most) except NULL
