"""What parser states do with single characters."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.parser_states cimport ParserStates


cdef struct Loop:
    # What a parser state does with single characters: those in ``start`` lead to ``to``, which those in ``loop``
    # leave where it is. ASCII characters, and all others as one; covers: no other character can follow at all.
    # ends_run: 1 if only the counted item takes them after a run, -1 if others do, 0 if that is not known yet.
    bint known, found, covers, same
    int32_t to, ends_run
    uint8_t start[129]
    uint8_t loop[129]


cdef class Loops:
    cdef ParserStates states
    cdef Loop** loops        # by parser state
    cdef int32_t room, min_loop

    cdef Loop* of(self, int32_t state) except NULL
    cdef int find_loop(self, int32_t state, Loop* loop) except -1
    cdef int32_t stepped(self, int32_t state, int32_t byte) except -1
    cdef bint goes_on(self, int32_t state, const uint8_t* loop) except -1
    cdef bint ends_run(self, Loop* loop, const Item* counted) except -1
    cdef bint all_lead_to(self, int32_t state, int32_t to, bint* alive) except -1
    cdef bint tails_lead_to(self, int32_t state, int32_t lead, int32_t to) except -1
    cdef bint last_leads_to(self, int32_t state, int32_t to) except -1
