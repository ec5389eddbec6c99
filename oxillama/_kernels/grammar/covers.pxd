"""Declarations of covers.pyx: sets of characters of which any text can follow a parser state."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.parser_states cimport ParserStates


cdef class Cover:
    # A text of characters in ``chars`` (a set as in trie.pxd) can follow, and after that text no bytes but those in
    # ``leaves``. A state without such a set has None in both fields. ``loop`` is the parser state after each of these
    # characters; DEAD if the characters lead to several states.
    cdef int32_t loop
    cdef bytes chars, leaves


cdef class Covers:
    cdef ParserStates states
    cdef dict covers         # parser state -> its cover

    cdef Cover of(self, int32_t state, int32_t least)
    cdef int find(self, int32_t state, int32_t least, Cover cover) except -1
    cdef bint takes_all(
        self, int32_t state, const uint8_t* chars, uint8_t* leaves, Py_ssize_t left, int32_t* loop
    ) except -1
    cdef int32_t n_alive(self, int32_t state) except -1
    cdef bint goes_on(self, int32_t state, const uint8_t* chars) except -1
