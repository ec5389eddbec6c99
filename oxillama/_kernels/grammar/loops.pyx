"""Loops over a class of characters: where a parser state reads any number of them.

A loop is what lets a slice of the vocabulary (slices.pyx) stand for nearly all tokens.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.parser_states cimport ParserStates, stepped
from oxillama._kernels.grammar.rows cimport DEAD, are_alike, last_alike
from oxillama._kernels.grammar.stacks cimport DEPENDENT
from oxillama._kernels.grammar.trie cimport BEYOND_ASCII, OF_E2, SET, entry_of

cdef enum:
    MOST_WAYS_OUT = 8  # ASCII characters that leave a loop; with more, most tokens do
    COVER_WORK = 50000  # units of work to find out whether it covers
    MOST_COVERED = 512  # parser states that texts of a set of characters may lead through


cdef class Loops:
    """The loops of parser states, each found once.

    Attributes
    ----------
    min_loop : characters of a loop that is worth a slice
    """

    def __cinit__(self, ParserStates states not None):
        self.states = states
        self.min_loop = 16
        self.sets = {}

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.room):
            free(self.loops[i])
        free(self.loops)

    cdef bint is_known(self, int32_t state) noexcept:
        """Whether `of` has been asked for a parser state."""
        return state < self.room and self.loops[state] != NULL and self.loops[state].known

    cdef Loop* of(self, int32_t state) except NULL:
        """What a parser state does with single characters, found once."""
        cdef int32_t room
        if state >= self.room:
            room = max(256, 2 * state)
            self.loops = <Loop**>grown(self.loops, room * sizeof(void*))
            memset(self.loops + self.room, 0, (room - self.room) * sizeof(void*))
            self.room = room
        if self.loops[state] == NULL:
            self.states.charge(sizeof(Loop) + 8)
            self.loops[state] = <Loop*>calloc(1, sizeof(Loop))
            if not self.loops[state]:
                raise MemoryError()
        if not self.loops[state].known:
            self.find_loop(state, self.loops[state])
            self.loops[state].known = True
        return self.loops[state]

    cdef int find_loop(self, int32_t state, Loop* loop) except -1:
        cdef int32_t[128] after
        cdef uint8_t[SET] start, inner
        cdef int32_t byte, i, best = 0, count, n_inner = 0
        cdef bint alive = False
        memset(loop, 0, sizeof(Loop))
        for byte in range(128):
            after[byte] = stepped(self.states, state, byte)
        for byte in range(128):  # where most characters lead
            if after[byte] == DEAD or after[byte] == loop.to:
                continue
            count = 0
            for i in range(128):
                count += after[i] == after[byte]
            if count > best:
                best, loop.to = count, after[byte]
        if best >= self.min_loop:
            loop.covers = loop.same = loop.inside = True
            for byte in range(128):
                start[byte] = after[byte] == loop.to
                inner[byte] = stepped(self.states, loop.to, byte) == loop.to
                loop.covers = loop.covers and (start[byte] or after[byte] == DEAD)
                n_inner += inner[byte]
            self.all_lead_to(state, loop.to, start, &alive)
            loop.covers = loop.covers and (start[OF_E2] or not alive)
            self.all_lead_to(loop.to, loop.to, inner, &alive)
            for byte in range(SET):
                loop.same = loop.same and start[byte] == inner[byte]
                loop.inside = loop.inside and start[byte] <= inner[byte]
            loop.found = n_inner >= self.min_loop and self.n_alive(loop.to) - n_inner <= MOST_WAYS_OUT
            loop.start, loop.loop = self.kept(start, SET), self.kept(inner, SET)
        if not (loop.found and loop.inside and not loop.same):
            self.find_cover(state, loop)
        return 0

    cdef int find_cover(self, int32_t state, Loop* loop) except -1:
        """Find a set of characters of which any text can follow. Where it is the loop's own, it tells nothing."""
        cdef uint8_t[SET] chars
        cdef uint8_t[256] leaves
        cdef int32_t byte, to, last = DEAD, n = 0, least = self.n_alive(state)
        cdef bint alive = False, good = False
        if least < self.min_loop:
            return 0
        least = (least + 1) // 2
        for byte in range(128):  # not the quotation mark and what else has little to follow it
            to = stepped(self.states, state, byte)
            if to != last:
                last, good = to, to != DEAD and self.n_alive(to) >= least
            chars[byte] = good
            n += good
        to = self.states.run(state, <const uint8_t*>b"\xc2\x80", 2)
        self.all_lead_to(state, to, chars, &alive)
        if n < self.min_loop or (loop.found and loop.same and memcmp(chars, loop.loop, SET) == 0):
            return 0
        memset(leaves, 0, 256)
        if self.is_covered(state, chars, leaves):
            loop.cover, loop.leaves = self.kept(chars, SET), self.kept(leaves, 256)
        return 0

    cdef bint is_covered(self, int32_t state, const uint8_t* chars, uint8_t* leaves) except -1:
        """Whether any text of these characters can follow; notes which other bytes can follow such texts."""
        cdef int32_t[MOST_COVERED] found
        cdef int32_t n = 1, i = 0, k, byte, to, last
        cdef uint8_t[SET] own
        cdef bint alive = False
        cdef Py_ssize_t left = self.states.left - COVER_WORK
        found[0] = state
        while i < n:  # grows while it is read
            state, last = found[i], -1
            i += 1
            if self.states.left < left:
                return False
            for byte in range(256):
                to = stepped(self.states, state, byte)
                if not chars[entry_of(byte)]:
                    leaves[byte] = leaves[byte] or to != DEAD
                    continue
                if byte >= 0x80:
                    if byte > 0x80:
                        continue
                    to = self.states.run(state, <const uint8_t*>b"\xc2\x80", 2)
                    self.all_lead_to(state, to, own, &alive)
                    if own[BEYOND_ASCII] < chars[BEYOND_ASCII] or own[OF_E2] < chars[OF_E2]:
                        return False
                if to == last:
                    continue
                if to == DEAD or self.states.states.flags[to] & DEPENDENT:
                    return False
                last, k = to, 0
                while k < n and found[k] != to:
                    k += 1
                if k == n:
                    if n == MOST_COVERED:
                        return False
                    found[n] = to
                    n += 1
        return True

    cdef int32_t n_alive(self, int32_t state) except -1:
        """How many ASCII characters can follow."""
        cdef int32_t byte, n = 0
        for byte in range(128):
            n += stepped(self.states, state, byte) != DEAD
        return n

    cdef const uint8_t* kept(self, const uint8_t* chars, Py_ssize_t n) except NULL:
        """A set that lives as long as this object."""
        cdef bytes found = self.sets.setdefault(chars[:n], chars[:n])
        return found

    cdef inline bint repeats(self, int32_t state, int32_t byte, int32_t first) noexcept:
        """Whether a byte leads to where the byte before leads, of those from ``first`` on."""
        return byte > first and are_alike(&self.states.rows, state, <uint8_t>byte, <uint8_t>(byte - 1))

    cdef int all_lead_to(self, int32_t state, int32_t to, uint8_t* chars, bint* alive) except -1:
        """Note in a set whether the characters beyond ASCII lead from one parser state to another, which is not DEAD.

        ``alive``: whether any leads anywhere.
        """
        cdef int32_t lead, inside
        alive[0] = False
        chars[BEYOND_ASCII] = chars[OF_E2] = to != DEAD
        for lead in range(0xC2, 0xF5):
            if self.repeats(state, lead, 0xC2) and lead not in (0xE0, 0xE1, 0xE2, 0xE3, 0xED, 0xEE, 0xF0, 0xF1, 0xF4):
                continue  # the rests of the characters are those of the lead before
            inside = stepped(self.states, state, lead)
            alive[0] = alive[0] or inside != DEAD
            if chars[entry_of(lead)] and not self.tails_lead_to(inside, lead, to):
                chars[entry_of(lead)] = False
        chars[OF_E2] = chars[OF_E2] and chars[BEYOND_ASCII]
        return 0

    cdef bint tails_lead_to(self, int32_t state, int32_t lead, int32_t to) except -1:
        """Whether every valid rest of a character, after its first byte, leads to a parser state."""
        cdef int32_t low = 0x80, high = 0xBF, more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        cdef int32_t byte, inside, previous = -1, second, third, after
        if state == DEAD:
            return False
        if lead == 0xE0:
            low = 0xA0
        elif lead == 0xED:
            high = 0x9F
        elif lead == 0xF0:
            low = 0x90
        elif lead == 0xF4:
            high = 0x8F
        byte = low - 1
        while byte < high:
            inside = stepped(self.states, state, byte + 1)
            byte = last_alike(&self.states.rows, state, byte + 1, high)
            if inside == previous:
                continue
            previous = inside
            if more == 1:
                if inside != to:
                    return False
                continue
            if inside == DEAD:
                return False
            second = -1
            third = 0x7F
            while third < 0xBF:
                after = stepped(self.states, inside, third + 1)
                third = last_alike(&self.states.rows, inside, third + 1, 0xBF)
                if more == 2:
                    if after != to:
                        return False
                elif after != second:
                    second = after
                    if not self.last_leads_to(second, to):
                        return False
        return True

    cdef bint last_leads_to(self, int32_t state, int32_t to) except -1:
        cdef int32_t byte = 0x7F
        while byte < 0xBF:
            if state == DEAD or stepped(self.states, state, byte + 1) != to:
                return False
            byte = last_alike(&self.states.rows, state, byte + 1, 0xBF)
        return True

    cdef bint goes_on(self, int32_t state, const uint8_t* loop) except -1:
        """Whether any character of a loop can follow."""
        cdef int32_t byte
        for byte in range(128):
            if loop[byte] and stepped(self.states, state, byte) != DEAD:
                return True
        if loop[BEYOND_ASCII]:
            for byte in range(0xC2, 0xF5):
                if not loop[entry_of(byte)] or self.repeats(state, byte, 0xC2):
                    continue
                if stepped(self.states, state, byte) != DEAD:
                    return True
        return False

    cdef bint ends_run(self, Loop* loop, const Item* counted) except -1:
        """Whether a character of the loop can only be counted: no other item takes one after a run."""
        cdef int32_t i, n = 0, first = self.states.states.first[loop.to]
        cdef int32_t count = self.states.states.first[loop.to + 1] - first
        cdef Item* others
        if loop.ends_run == 0:
            others = <Item*>grown(NULL, (count + 1) * sizeof(Item))
            try:
                for i in range(first, first + count):
                    if memcmp(&self.states.states.items[i], counted, sizeof(Item)):
                        others[n] = self.states.states.items[i]
                        n += 1
                i = self.states.intern(&self.states.states, others, n, 0)
            finally:
                free(others)
            loop.ends_run = -1 if self.goes_on(i, loop.loop) else 1
        return loop.ends_run > 0
