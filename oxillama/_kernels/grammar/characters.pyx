"""Characters to bytes: edges for each number of bytes that UTF-8 has, and states between them.

States inside of characters that go on alike are shared.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from oxillama._kernels.grammar.automata cimport Automata
from oxillama._kernels.grammar.dfa cimport Arc, Arcs, add_arc
from oxillama._kernels.grammar.network cimport BYTES, KEEP, RESET, State

# UTF-8 beyond ASCII: the points of each number of bytes, the bytes after the first, and the bits that mark the first.
cdef int32_t[3] FIRST_POINT = [0x80, 0x800, 0x10000]
cdef int32_t[3] LAST_POINT = [0x7FF, 0xFFFF, 0x10FFFF]
cdef int32_t[3] CONTINUED = [1, 2, 3]
cdef int32_t[3] LEAD = [0xC0, 0xE0, 0xF0]
cdef int32_t[2] BEYOND = [0x80, 0xE000]   # surrogates have no bytes
cdef int32_t[2] BEYOND_LAST = [0xD7FF, 0x10FFFF]


cdef class Characters(Automata):
    """Automata that read characters."""

    cdef bint character(
        self, object ranges, int32_t start, int32_t end, dict tails, int32_t asks=0, int32_t makes=RESET,
        tuple inside=None
    ) except -1:
        """As `characters`, for (first, last) pairs, ascending and disjoint."""
        cdef Arcs arcs = Arcs(NULL, 0, 0)
        try:
            for first, last in ranges:
                add_arc(&arcs, first, last, 0)
            return self.characters(&arcs, start, end, tails, asks, makes, inside)
        finally:
            free(arcs.items)

    cdef bint characters(
        self, const Arcs* ranges, int32_t start, int32_t end, dict tails, int32_t asks=0, int32_t makes=RESET,
        tuple inside=None
    ) except -1:
        """A character of some ranges, from ``start`` to ``end``; whether texts have any of them.

        ``tails`` holds the states inside of characters made so far. A character may ask something of a count and make
        something of it; states inside of it then carry the count as those of `counting` with ``inside``.
        """
        cdef uint8_t[32] taken
        cdef Arcs high = Arcs(NULL, 0, 0)
        cdef int32_t i, k, point, low, last
        cdef bint any_ascii = False
        cdef object key, beyond
        memset(taken, 0, 32)
        for i in range(ranges.n):
            for point in range(ranges.items[i].first, min(ranges.items[i].last, 0x7F) + 1):
                taken[point >> 3] |= 1 << (point & 7)
                any_ascii = True
        if any_ascii:
            self.add(BYTES, start, self.label(taken), asks | makes, end)
        if ranges.n == 0 or ranges.items[ranges.n - 1].last < 0x80:
            return any_ascii
        try:
            for i in range(ranges.n):
                for k in range(2):  # around the surrogates
                    low, last = max(ranges.items[i].first, BEYOND[k]), min(ranges.items[i].last, BEYOND_LAST[k])
                    if low > last:
                        continue
                    if high.n and high.items[high.n - 1].last + 1 == low:
                        high.items[high.n - 1].last = last
                    else:
                        add_arc(&high, low, last, 0)
            key = (end, 0, (<const uint8_t*>high.items)[:high.n * sizeof(Arc)])
            beyond = tails.get(key)
            if beyond is None:
                beyond = tails[key] = []
                for i in range(3):
                    self.branches(&high, FIRST_POINT[i], LAST_POINT[i], CONTINUED[i], LEAD[i], end, tails, makes,
                                  inside, beyond)
            for number, target in beyond:
                self.add(BYTES, start, number, asks | (RESET if inside is None else KEEP), target)
            return any_ascii or high.n > 0
        finally:
            free(high.items)

    cdef int branches(self, const Arcs* ranges, int32_t first, int32_t last, int32_t left, int32_t lead,
                      int32_t end, dict tails, int32_t makes, tuple inside, list found) except -1:
        """Where the first bytes of the points from ``first`` to ``last`` lead, ``left`` bytes being left after them:
        (label, state) pairs, appended to ``found``. ``lead``: what is added to the bits of a first byte.
        """
        cdef int32_t shift = 6 * left, byte, i, begin = 0, low, high, k, n = 0, before = -1
        cdef Arcs below = Arcs(NULL, 0, 0)
        cdef int32_t[64] targets
        cdef uint8_t[64][32] taken
        cdef bint whole, was_whole = False
        try:
            for byte in range(first >> shift, (last >> shift) + 1):
                below.n = 0
                while begin < ranges.n and ranges.items[begin].last < byte << shift:
                    begin += 1
                for i in range(begin, ranges.n):
                    low = max(max(ranges.items[i].first, first), byte << shift)
                    high = min(min(ranges.items[i].last, last), ((byte + 1) << shift) - 1)
                    if ranges.items[i].first > high:
                        break
                    if low <= high:
                        add_arc(&below, low - (byte << shift), high - (byte << shift), 0)
                if below.n == 0:
                    continue
                whole = below.items[0].first == 0 and below.items[0].last == (1 << shift) - 1
                if not (whole and was_whole):
                    before = end if left == 0 else self.tail(&below, left, end, tails, makes, inside)
                was_whole = whole
                for k in range(n):
                    if targets[k] == before:
                        break
                else:
                    k = n
                    n += 1
                    targets[k] = before
                    memset(taken[k], 0, 32)
                taken[k][(lead + byte) >> 3] |= 1 << (lead + byte & 7)
        finally:
            free(below.items)
        for k in range(n):
            found.append((self.label(taken[k]), targets[k]))
        return 0

    cdef int32_t tail(
        self, const Arcs* ranges, int32_t left, int32_t end, dict tails, int32_t makes, tuple inside
    ) except -1:
        """The state before the last ``left`` bytes of a character, of which the bits are in the ranges."""
        cdef int32_t state
        cdef object key = (end, left, (<const uint8_t*>ranges.items)[:ranges.n * sizeof(Arc)]), known = tails.get(key)
        cdef list found = []
        if known is not None:
            return known
        state = tails[key] = self.new() if inside is None else self.counting(inside)
        self.branches(ranges, 0, (1 << 6 * left) - 1, left - 1, 0x80, end, tails, makes, inside, found)
        for number, target in found:
            self.add(BYTES, state, number, makes if left == 1 or inside is None else KEEP, target)
        return state

    cdef int32_t counting(self, tuple inside) except -1:
        """A new state, given the bounds, the fewest characters from it to an end, and the most of these of any."""
        cdef int32_t state = self.new()
        least, most, needed, furthest = inside
        self.rtn[state] = State(0, least, -1, 0)
        if most is not None:
            # where the count is 0 there is no least: with it and no most it would be a register
            self.rtn[state] = State(0, least if most > needed else 0, max(0, most - needed), furthest - needed)
        return state
