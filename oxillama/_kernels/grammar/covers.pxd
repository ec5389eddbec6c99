"""Sets of characters of which any text can follow a parser state."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.parser_states cimport ParserStates


cdef struct Cover:
    # Any text of characters in ``chars`` (a set as trie.pxd has them) can follow, and after it, of other bytes, only
    # those in ``leaves``; NULL where there is no such set. ``loop``: the parser state that each of them leads to,
    # DEAD where they are several.
    bint known
    int32_t loop
    const uint8_t* chars
    const uint8_t* leaves


cdef class Covers:
    cdef ParserStates states
    cdef Cover* covers       # by parser state
    cdef int32_t room
    cdef dict sets           # each set of characters or bytes once

    cdef Cover* of(self, int32_t state, int32_t least) except NULL
    cdef const uint8_t* kept(self, const uint8_t* chars, Py_ssize_t n) except NULL
    cdef int find(self, int32_t state, int32_t least, Cover* cover) except -1
    cdef bint takes_all(
        self, int32_t state, const uint8_t* chars, uint8_t* leaves, Py_ssize_t left, int32_t* loop
    ) except -1
    cdef int32_t n_alive(self, int32_t state) except -1
    cdef bint goes_on(self, int32_t state, const uint8_t* chars) except -1
