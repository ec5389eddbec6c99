"""The vocabulary as a trie, as other kernels see it."""

from libc.stdint cimport int32_t, uint8_t


cdef struct Nodes:
    # Depth first: the nodes below i are i + 1 ... skip[i] - 1, and a node's next sibling is skip[i].
    Py_ssize_t n
    uint8_t* byte
    int32_t* depth    # the bytes up to and with this node's own
    int32_t* skip
    int32_t* token    # one that ends here, -1 for none


cdef class Trie:
    cdef Nodes nodes
    cdef readonly int n_vocab, max_depth
    cdef readonly Py_ssize_t n_tokens
    cdef int32_t* same       # (n_vocab): another token of the same bytes, -1 for none
    cdef const uint8_t* data
    cdef int32_t* first      # (n_vocab + 1): where each token's bytes begin in data
    cdef uint8_t* inside     # (n_vocab): whether the token is in the trie
    cdef object owner

    cdef int build(self) except -1


cdef int nodes_alloc(Nodes* nodes, Py_ssize_t n) except -1
cdef void nodes_free(Nodes* nodes) noexcept
