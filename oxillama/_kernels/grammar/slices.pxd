"""Slices of a vocabulary, as other kernels see them."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from oxillama._kernels.grammar.trie cimport SET, UPTO, Key, Nodes, Trie


cdef struct Tail:
    # What follows a loop and begins with one byte; each part is made when it is asked for.
    Nodes rests         # each once
    uint8_t* chars      # (tokens of rests): characters before it, at most 255
    Nodes whole         # the same tokens with the loops before them
    bint has_rests, has_whole


cdef class Slice:
    cdef uint32_t* bits      # the tokens that are all loop
    cdef uint32_t* upto[UPTO + 1]
    cdef Tail* tails[256]
    cdef dict leading        # by byte: the places at or below which something leads, see `corrections.pyx`
    cdef uint8_t start[SET]  # characters that it begins with
    cdef uint8_t loop[SET]   # ... and goes on with
    cdef uint8_t leaves[256]  # whether tokens may leave the loop with a byte
    cdef int n_words
    cdef int32_t node, depth  # that the slice is below
    cdef int32_t above       # characters up to that node
    cdef Py_ssize_t n_nodes  # that were looked at to make it
    cdef readonly Py_ssize_t n_bytes

    cdef int build(self, Trie trie, int32_t node, const uint8_t* start, const uint8_t* loop) except -1
    cdef int take(self, Trie trie) except -1
    cdef void leave_out(self, Trie trie) noexcept
    cdef int32_t places(self, Trie trie, int byte, int32_t* found, uint8_t* chars) noexcept
    cdef list leading_places(self, Trie trie, int byte, const uint8_t* leads)
    cdef int32_t loop_before(self, Trie trie, int32_t place) noexcept
    cdef Tail* own_tail(self, int byte) except NULL
    cdef Tail* tail(self, Trie trie, int byte) except NULL
    cdef Nodes* whole(self, Trie trie, int byte) except NULL
    cdef Key* keys_of(self, Trie trie, int byte, bint whole, int32_t* n) except NULL
    cdef const uint32_t* of_length(self, Trie trie, int32_t most) except NULL
    cdef int drop_longer(self, Trie trie, int32_t most, uint32_t* bits) noexcept


cdef Slice slice_of(Trie trie, int32_t node, const uint8_t* start, const uint8_t* loop)
cdef Slice valid_of(Trie trie)
