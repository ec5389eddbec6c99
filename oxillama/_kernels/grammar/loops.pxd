"""What parser states do with single characters."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.parser_states cimport ParserStates


cdef struct Loop:
    # Characters in ``start`` lead to the parser state ``to``; those in ``loop`` lead from ``to`` to itself. Any text
    # of characters in ``cover`` can follow, whatever states it leads through, and after it, of other bytes, only those
    # in ``leaves``; NULL where ``loop`` tells as much. These are sets as trie.pxd has them; ``leaves`` has all
    # bytes.
    # known: the fields are filled in; found: there is a loop worth a slice; covers: no character outside of
    # ``start`` can follow; same: ``start`` equals ``loop``; inside: it is part of it.
    # ends_run: 1 if only the counted item takes a character of the loop after a run, -1 if others do, 0 unknown.
    bint known, found, covers, same, inside
    int32_t to, ends_run
    const uint8_t* start
    const uint8_t* loop
    const uint8_t* cover
    const uint8_t* leaves


cdef class Loops:
    cdef ParserStates states
    cdef Loop** loops        # by parser state
    cdef int32_t room, min_loop
    cdef dict sets           # the sets of characters, each once

    cdef bint is_known(self, int32_t state) noexcept
    cdef Loop* of(self, int32_t state) except NULL
    cdef const uint8_t* kept(self, const uint8_t* chars, Py_ssize_t n) except NULL
    cdef int find_cover(self, int32_t state, Loop* loop) except -1
    cdef bint is_covered(self, int32_t state, const uint8_t* chars, uint8_t* leaves) except -1
    cdef int32_t n_alive(self, int32_t state) except -1
    cdef int find_loop(self, int32_t state, Loop* loop) except -1
    cdef bint goes_on(self, int32_t state, const uint8_t* loop) except -1
    cdef bint ends_run(self, Loop* loop, const Item* counted) except -1
    cdef bint repeats(self, int32_t state, int32_t byte, int32_t first) noexcept
    cdef int all_lead_to(self, int32_t state, int32_t to, uint8_t* chars, bint* alive) except -1
    cdef bint tails_lead_to(self, int32_t state, int32_t lead, int32_t to) except -1
    cdef bint last_leads_to(self, int32_t state, int32_t to) except -1
