"""Spellings of the characters of JSON strings, as an automaton.

A character may be raw or escaped (RFC 8259, section 7), beyond the first 65,536 as two escaped UTF-16 code units.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from oxillama._kernels.grammar.dfa cimport Arc, Arcs, Dfa, add_arc, made
from oxillama._kernels.grammar.memory cimport grown

cdef enum:
    LAST_POINT = 0x10FFFF
    NONE = -1
    MOST_SHORTS = 8
    PAIR_BITS = 10      # bits of a character in the second code unit of a pair
    MIDDLE = 2          # level of the digit in the middle of a code unit
    UNIT_END = 3        # level of the last digit of a code unit
    PAIR_MIDDLE = 5     # level of the second digit of a pair's second unit

# Characters that may be raw between the quotes; lone surrogates have no UTF-8.
cdef int32_t[4] RAW_FIRST = [0x20, 0x23, 0x5D, 0xE000]
cdef int32_t[4] RAW_LAST = [0x21, 0x5B, 0xD7FF, LAST_POINT]
# Characters with an escape letter, in the order of the letters.
cdef int32_t[8] SHORT = [0x22, 0x2F, 0x5C, 0x08, 0x0C, 0x0A, 0x0D, 0x09]
cdef int32_t[8] LETTER = [0x22, 0x2F, 0x5C, 0x62, 0x66, 0x6E, 0x72, 0x74]
# Characters that may be escaped by number, for each kind of spelling: json.dumps never escapes printable ASCII so, and
# ONE_WAY allows it only for control characters without a letter. In the order of their first code units.
cdef int32_t[12] NUMBERED_FIRST = [0x00, 0x7F, 0x10000, 0xE000, 0x00, 0x10000, 0xE000, 1, 0x00, 0x0B, 0x0E, 1]
cdef int32_t[12] NUMBERED_LAST = [0x1F, 0xD7FF, LAST_POINT, 0xFFFF, 0xD7FF, LAST_POINT, 0xFFFF, 0, 0x07, 0x0B, 0x1F, 0]
# The position of a character is the 16 bits of its first code unit, then the 10 free bits of the second one of a pair.
# Levels are the hexadecimal digits of a unit and the first two of a second unit, which begins with D and then C to
# F. Per level: the lowest bit of the digit in the position, the digit's lowest value, the number of its values.
cdef int32_t[6] SHIFT = [22, 18, 14, 10, 10, 8]
cdef int32_t[6] LOWEST = [0, 0, 0, 0, 13, 12]
cdef int32_t[6] DIGITS = [16, 16, 16, 16, 1, 4]

cpdef enum:
    # The allowed spellings: all of ``json.dumps``, with ``ensure_ascii`` or without; all of JSON; or a single spelling
    # per character, as ``json.dumps`` without ``ensure_ascii`` has.
    DUMPED = 0
    EVERY_WAY = 1
    ONE_WAY = 2


cdef class Speller:
    """States of the text's automaton, made on demand; equal states are made once."""

    cdef Arcs arcs          # arcs of all states; arcs of one state are adjacent
    cdef int32_t* begin     # (states): first arc of the state
    cdef int32_t* count
    cdef int32_t n, room
    cdef int32_t ways
    cdef dict known         # states by their arcs

    def __cinit__(self, int32_t ways):
        self.ways, self.known = ways, {}

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
        """Sets the arcs of a state; adjacent arcs with the same target become one."""
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
        """Sets the arcs of a state to the spellings of its characters."""
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
        """The state after a backslash; NONE if no escape is possible."""
        cdef Arc[MOST_SHORTS + 1] shorts
        cdef Arcs numbered = Arcs(NULL, 0, 0)
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
            for k in range(4 * self.ways, 4 * self.ways + 4):
                for i in range(n):
                    low, high = max(arcs[i].first, NUMBERED_FIRST[k]), min(arcs[i].last, NUMBERED_LAST[k])
                    if low <= high < 0x10000:
                        add_arc(&numbered, low << PAIR_BITS, ((high + 1) << PAIR_BITS) - 1, arcs[i].target)
                    elif low <= high:  # a pair: -1 - target marks it
                        add_arc(&numbered, (0xD800 << PAIR_BITS) + low - 0x10000,
                                (0xD800 << PAIR_BITS) + high - 0x10000, -1 - arcs[i].target)
            if n_shorts == 0 and numbered.n == 0:
                return NONE
            key = b"e%d " % n_shorts + (<const uint8_t*>shorts)[:n_shorts * sizeof(Arc)] + bytes_of(&numbered)
            found = self.known.get(key)
            if found is not None:
                return found
            state = self.known[key] = self.new()
            if numbered.n:
                shorts[n_shorts] = Arc(0x75, 0x75, self.digits(&numbered, 0))
                n_shorts += 1
            self.finish(state, shorts, n_shorts)
            return state
        finally:
            free(numbered.items)

    cdef int32_t digits(self, const Arcs* positions, int32_t level) except -1:
        """The state before the hexadecimal digit of ``level``, for characters whose lower bits are in ``positions``."""
        cdef bytes key = b"d%d " % level + bytes_of(positions)
        cdef int32_t digit, i, low, high, state, k, n_arcs = 0
        cdef int32_t[16] target
        cdef Arc[22] arcs
        cdef Arcs inside = Arcs(NULL, 0, 0), before = Arcs(NULL, 0, 0)
        cdef const Arc* one
        known = self.known.get(key)
        if known is not None:
            return known
        state = self.known[key] = self.new()
        memset(target, 0xFF, sizeof(target))  # NONE
        try:
            for digit in range(DIGITS[level]):
                low, high = digit << SHIFT[level], ((digit + 1) << SHIFT[level]) - 1
                inside, before = before, inside
                inside.n = 0
                for i in range(positions.n):
                    one = &positions.items[i]
                    if one.first <= high and one.last >= low:
                        add_arc(&inside, max(one.first, low) - low, min(one.last, high) - low, one.target)
                k = LOWEST[level] + digit
                if inside.n and inside.n == before.n and level != PAIR_MIDDLE and \
                        memcmp(inside.items, before.items, inside.n * sizeof(Arc)) == 0:
                    target[k] = target[k - 1]
                elif inside.n:
                    target[k] = self.after_digit(&inside, level)
        finally:
            free(inside.items)
            free(before.items)
        for k in range(22):  # 0 to 9, A to F, a to f
            digit = k if k < 16 else k - 6
            if target[digit] != NONE and (self.ways != ONE_WAY or not 10 <= k < 16):
                i = digit + (0x30 if k < 10 else 0x37 if k < 16 else 0x57)
                arcs[n_arcs] = Arc(i, i, target[digit])
                n_arcs += 1
        self.finish(state, arcs, n_arcs)
        return state

    cdef int32_t after_digit(self, Arcs* positions, int32_t level) except -1:
        """The state after the digit of ``level``."""
        cdef int32_t slash, letter, i
        cdef bytes key
        cdef Arc arc
        if level == PAIR_MIDDLE:  # the rest is like the middle of any unit
            for i in range(positions.n):
                arc = positions.items[i]
                positions.items[i] = Arc(arc.first << PAIR_BITS, ((arc.last + 1) << PAIR_BITS) - 1, -1 - arc.target)
            return self.digits(positions, MIDDLE)
        if level != UNIT_END:
            return self.digits(positions, level + 1)
        if positions.items[0].target >= 0:  # not a pair
            return positions.items[0].target
        key = b"p" + bytes_of(positions)
        found = self.known.get(key)
        if found is not None:
            return found
        slash = self.known[key] = self.new()
        letter = self.new()
        arc = Arc(0x5C, 0x5C, letter)
        self.finish(slash, &arc, 1)
        arc = Arc(0x75, 0x75, self.digits(positions, level + 1))
        self.finish(letter, &arc, 1)
        return slash

    cdef Dfa result(self, Dfa dfa):
        """The automaton; its first states are the states of ``dfa`` and accept if these do."""
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


cdef bytes bytes_of(const Arcs* arcs):
    return (<const uint8_t*>arcs.items)[:arcs.n * sizeof(Arc)] if arcs.n else b""


def spell(Dfa dfa not None, int ways=DUMPED) -> Dfa:
    """The automaton of the JSON spellings, without quotes, of the strings of ``dfa``.

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
