"""How the characters of a JSON string are written: the automaton of the strings' spellings.

A character may stand raw or escaped (RFC 8259, section 7), beyond the first 65,536 as two escaped UTF-16 code units.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from oxillama._kernels.grammar.dfa cimport Arc, Arcs, Dfa, add_arc, made
from oxillama._kernels.grammar.memory cimport grown

cdef enum:
    LAST_POINT = 0x10FFFF
    NONE = -1
    UNITS = 4       # hexadecimal digits of a code unit
    MOST_SHORTS = 8

# What may stand raw between the quotes; lone surrogates have no UTF-8.
cdef int32_t[4] RAW_FIRST = [0x20, 0x23, 0x5D, 0xE000]
cdef int32_t[4] RAW_LAST = [0x21, 0x5B, 0xD7FF, LAST_POINT]
# Characters with an escape of their own, in the order of its letter.
cdef int32_t[8] SHORT = [0x22, 0x2F, 0x5C, 0x08, 0x0C, 0x0A, 0x0D, 0x09]
cdef int32_t[8] LETTER = [0x22, 0x2F, 0x5C, 0x62, 0x66, 0x6E, 0x72, 0x74]
# Control characters without one.
cdef int32_t[3] BARE_FIRST = [0x00, 0x0B, 0x0E]
cdef int32_t[3] BARE_LAST = [0x07, 0x0B, 0x1F]

cpdef enum:
    # How characters may be written: in all ways of ``json.dumps``, with ``ensure_ascii`` or without; in every way
    # that JSON has; in one way, that of ``json.dumps`` without ``ensure_ascii``.
    DUMPED = 0
    EVERY_WAY = 1
    ONE_WAY = 2


cdef struct Piece:
    # Code units from ``first`` to ``last`` lead to the state ``where``; or to a pair's other half, -2 less the number
    # of the list of these.
    int32_t first, last, where


cdef struct Pieces:
    Piece* items
    int32_t n, room


cdef class Speller:
    """States of the text's automaton, made as they are needed; equal ones are made once."""

    cdef Arcs arcs          # of all states, those of one together
    cdef int32_t* begin     # of each state; room for two more
    cdef int32_t* count
    cdef int32_t n, room
    cdef int32_t ways
    cdef dict known         # states by what they take
    cdef dict list_numbers  # lists of the other halves of pairs
    cdef list lists

    def __cinit__(self, int32_t ways):
        self.ways = ways
        self.known, self.list_numbers, self.lists = {}, {}, []

    def __dealloc__(self):
        free(self.arcs.items)
        free(self.begin)
        free(self.count)

    cdef int32_t new(self) except -1:
        cdef int32_t room
        if self.n == self.room:
            room = max(64, 2 * self.room)
            self.begin = <int32_t*>grown(self.begin, 4 * <Py_ssize_t>room)
            self.count = <int32_t*>grown(self.count, 4 * <Py_ssize_t>room)
            self.room = room
        self.begin[self.n] = self.count[self.n] = 0
        self.n += 1
        return self.n - 1

    cdef int finish(self, int32_t state, const Arc* arcs, int32_t n) except -1:
        """Give a state its arcs; neighbours with one target become one."""
        cdef int32_t i, begin = self.arcs.n
        for i in range(n):
            if self.arcs.n > begin and self.arcs.items[self.arcs.n - 1].target == arcs[i].target and \
                    self.arcs.items[self.arcs.n - 1].last + 1 == arcs[i].first:
                self.arcs.items[self.arcs.n - 1].last = arcs[i].last
            else:
                add_arc(&self.arcs, arcs[i].first, arcs[i].last, arcs[i].target)
        self.begin[state], self.count[state] = begin, self.arcs.n - begin
        return 0

    cdef int character(self, int32_t state, const Arc* arcs, int32_t n) except -1:
        """The spellings of the characters of a state."""
        cdef Arcs found = Arcs(NULL, 0, 0)
        cdef int32_t i, k, low, high, backslash = self.escape(arcs, n)
        cdef bint done = backslash == NONE
        try:
            for i in range(n):
                for k in range(4):
                    low, high = max(arcs[i].first, RAW_FIRST[k]), min(arcs[i].last, RAW_LAST[k])
                    if low > high:
                        continue
                    if not done and low > 0x5C:
                        add_arc(&found, 0x5C, 0x5C, backslash)
                        done = True
                    add_arc(&found, low, high, arcs[i].target)
            if not done:
                add_arc(&found, 0x5C, 0x5C, backslash)
            return self.finish(state, found.items, found.n)
        finally:
            free(found.items)

    cdef int32_t escape(self, const Arc* arcs, int32_t n) except -2:
        """The state after a backslash; NONE if nothing can follow it."""
        cdef Arc[MOST_SHORTS + 1] shorts
        cdef Pieces by_number = Pieces(NULL, 0, 0)
        cdef int32_t i, k, n_shorts = 0, state, low, high
        cdef bytes key
        try:
            for k in range(MOST_SHORTS):
                if SHORT[k] == 0x2F and self.ways != EVERY_WAY:
                    continue
                for i in range(n):
                    if arcs[i].first <= SHORT[k] <= arcs[i].last:
                        shorts[n_shorts] = Arc(LETTER[k], LETTER[k], arcs[i].target)
                        n_shorts += 1
            for i in range(n):
                if self.ways == EVERY_WAY:
                    add_piece(&by_number, arcs[i].first, arcs[i].last, arcs[i].target)
                elif self.ways == ONE_WAY:  # the control characters without a letter
                    for k in range(3):
                        low, high = max(arcs[i].first, BARE_FIRST[k]), min(arcs[i].last, BARE_LAST[k])
                        if low <= high:
                            add_piece(&by_number, low, high, arcs[i].target)
                else:  # json.dumps never writes a printable ASCII character by its number
                    if arcs[i].first <= 0x1F:
                        add_piece(&by_number, arcs[i].first, min(arcs[i].last, 0x1F), arcs[i].target)
                    if arcs[i].last >= 0x7F:
                        add_piece(&by_number, max(arcs[i].first, 0x7F), arcs[i].last, arcs[i].target)
            if n_shorts == 0 and by_number.n == 0:
                return NONE
            key = b"e%d " % n_shorts + (<const uint8_t*>shorts)[:n_shorts * sizeof(Arc)] + bytes_of(&by_number)
            found = self.known.get(key)
            if found is not None:
                return found
            state = self.known[key] = self.new()
            if by_number.n:
                k = self.units(&by_number)
                if k != NONE:
                    shorts[n_shorts] = Arc(0x75, 0x75, k)
                    n_shorts += 1
            self.finish(state, shorts, n_shorts)
            return state
        finally:
            free(by_number.items)

    cdef int32_t units(self, const Pieces* points) except -2:
        """The state before the digits of the code units that begin a character; NONE where there are none."""
        cdef Pieces found = Pieces(NULL, 0, 0), halves = Pieces(NULL, 0, 0)
        cdef int32_t i, a, b, start, end, end_of_first, target, unit = NONE   # of which the halves are being gathered
        try:
            for i in range(points.n):
                a, b, target = points.items[i].first, points.items[i].last, points.items[i].where
                if a <= 0xD7FF:
                    add_piece(&found, a, min(b, 0xD7FF), target)
                if b >= 0xE000 and a <= 0xFFFF:
                    add_piece(&found, max(a, 0xE000), min(b, 0xFFFF), target)
                if b < 0x10000:
                    continue
                a, b = max(a, 0x10000) - 0x10000, b - 0x10000
                start, end = (a + 0x3FF) >> 10, ((b + 1) >> 10) - 1   # high surrogates of which all halves are in
                if a >> 10 < start:
                    end_of_first = min(b - ((a >> 10) << 10), 0x3FF)
                    unit = self.half(&found, &halves, unit, a >> 10, a & 0x3FF, end_of_first, target)
                if start <= end:
                    unit = self.half(&found, &halves, unit, NONE, 0, 0, 0)
                    add_piece(&halves, 0xDC00, 0xDFFF, target)
                    add_piece(&found, 0xD800 + start, 0xD800 + end, -2 - self.list_number(&halves))
                    halves.n = 0
                if b >> 10 > end and b >> 10 >= start:
                    unit = self.half(&found, &halves, unit, b >> 10, 0, b & 0x3FF, target)
            self.half(&found, &halves, unit, NONE, 0, 0, 0)
            sort_pieces(&found)
            return self.digits(found.items, found.n, UNITS) if found.n else NONE
        finally:
            free(found.items)
            free(halves.items)

    cdef int32_t half(self, Pieces* found, Pieces* halves, int32_t old, int32_t unit, int32_t low, int32_t high,
                      int32_t target) except -2:
        """Note the other halves of a high surrogate; those of the one before are done if it is another."""
        if old != NONE and old != unit:
            add_piece(found, 0xD800 + old, 0xD800 + old, -2 - self.list_number(halves))
            halves.n = 0
        if unit != NONE:
            add_piece(halves, 0xDC00 + low, 0xDC00 + high, target)
        return unit

    cdef int32_t list_number(self, const Pieces* pieces) except -1:
        cdef bytes key = bytes_of(pieces)
        found = self.list_numbers.get(key)
        if found is None:
            found = self.list_numbers[key] = len(self.lists)
            self.lists.append(key)
        return found

    cdef int32_t digits(self, const Piece* pieces, int32_t n, int32_t left) except -1:
        """The state before the last ``left`` hexadecimal digits of a code unit."""
        cdef bytes key = b"d%d " % left + (<const uint8_t*>pieces)[:n * sizeof(Piece)]
        cdef int32_t size = 1 << 4 * (left - 1), digit, i, low, high, state, k, n_arcs = 0
        cdef int32_t[16] target
        cdef Arc[22] arcs
        cdef Pieces inside = Pieces(NULL, 0, 0)
        known = self.known.get(key)
        if known is not None:
            return known
        state = self.known[key] = self.new()
        try:
            for digit in range(16):
                low, high = digit * size, (digit + 1) * size - 1
                inside.n = 0
                for i in range(n):
                    if pieces[i].first <= high and pieces[i].last >= low:
                        add_piece(&inside, max(pieces[i].first, low) - low, min(pieces[i].last, high) - low,
                                  pieces[i].where)
                if inside.n == 0:
                    target[digit] = NONE
                elif left > 1:
                    target[digit] = self.digits(inside.items, inside.n, left - 1)
                else:
                    target[digit] = self.after_unit(inside.items[0].where)
        finally:
            free(inside.items)
        for k in range(22):  # 0 to 9, A to F, a to f
            digit = k if k < 16 else k - 6
            if target[digit] != NONE and (self.ways != ONE_WAY or not 10 <= k < 16):
                i = digit + (0x30 if k < 10 else 0x37 if k < 16 else 0x57)
                arcs[n_arcs] = Arc(i, i, target[digit])
                n_arcs += 1
        self.finish(state, arcs, n_arcs)
        return state

    cdef int32_t after_unit(self, int32_t where) except -1:
        """Where a code unit leads: on, or to the other half of a pair."""
        cdef int32_t slash, letter
        cdef bytes halves
        cdef Arc arc
        if where >= 0:
            return where
        found = self.known.get(where)
        if found is not None:
            return found
        slash = self.known[where] = self.new()
        letter = self.new()
        arc = Arc(0x5C, 0x5C, letter)
        self.finish(slash, &arc, 1)
        halves = self.lists[-2 - where]
        arc = Arc(0x75, 0x75, self.digits(<const Piece*><const uint8_t*>halves, len(halves) // sizeof(Piece), UNITS))
        self.finish(letter, &arc, 1)
        return slash

    cdef Dfa result(self, Dfa dfa):
        """The automaton; its first states are those of ``dfa``, and accept where they do."""
        cdef Arcs arcs = Arcs(NULL, 0, 0)
        cdef int32_t* first = NULL
        cdef uint8_t* ends = NULL
        cdef int32_t q
        cdef Dfa found
        try:
            arcs.items = <Arc*>grown(NULL, (<Py_ssize_t>self.arcs.n + 1) * sizeof(Arc))
            first = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>self.n + 1))
            ends = <uint8_t*>grown(NULL, self.n)
            for q in range(self.n):
                first[q] = arcs.n
                ends[q] = q < dfa.n_states and dfa.ends[q]
                if self.count[q]:
                    memcpy(arcs.items + arcs.n, self.arcs.items + self.begin[q], self.count[q] * sizeof(Arc))
                arcs.n += self.count[q]
            first[self.n] = arcs.n
            found = made(self.n, &arcs, first, ends)
            arcs.items, first, ends = NULL, NULL, NULL
            return found
        finally:
            free(arcs.items)
            free(first)
            free(ends)


cdef int add_piece(Pieces* pieces, int32_t first, int32_t last, int32_t where) except -1:
    """Append a piece, or lengthen the last one."""
    cdef Piece* old
    if pieces.n:
        old = &pieces.items[pieces.n - 1]
        if old.where == where and old.last + 1 == first:
            old.last = last
            return 0
    if pieces.n == pieces.room:
        pieces.room = max(16, 2 * pieces.room)
        pieces.items = <Piece*>grown(pieces.items, <Py_ssize_t>pieces.room * sizeof(Piece))
    pieces.items[pieces.n] = Piece(first, last, where)
    pieces.n += 1
    return 0


cdef int sort_pieces(Pieces* pieces) noexcept:
    """By the first code unit. Two ascending runs at most are out of order: surrogates come behind all others."""
    cdef int32_t i, k
    cdef Piece one
    for i in range(1, pieces.n):
        one, k = pieces.items[i], i
        while k > 0 and pieces.items[k - 1].first > one.first:
            pieces.items[k] = pieces.items[k - 1]
            k -= 1
        pieces.items[k] = one
    return 0


cdef bytes bytes_of(const Pieces* pieces):
    return (<const uint8_t*>pieces.items)[:pieces.n * sizeof(Piece)] if pieces.n else b""


def spell(Dfa dfa not None, int ways=DUMPED):
    """The automaton of the JSON spellings (quotes left out) of the strings of ``dfa``.

    ``ways``: `DUMPED`, `EVERY_WAY` or `ONE_WAY`.
    """
    cdef Speller speller = Speller(ways)
    cdef int32_t q
    if not DUMPED <= ways <= ONE_WAY:
        raise ValueError(f"ways: expected DUMPED, EVERY_WAY or ONE_WAY, got {ways}")
    for _ in range(dfa.n_states):
        speller.new()
    for q in range(dfa.n_states):
        speller.character(q, dfa.arcs + dfa.first[q], dfa.first[q + 1] - dfa.first[q])
    return speller.result(dfa)
