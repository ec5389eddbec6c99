"""Sets of characters of which any text can follow a parser state.

If a parser state has such a set, a slice of the vocabulary (slices.pyx) has nearly all its tokens: inside of a JSON
string, of an unknown name, of free text.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memset

from oxillama._kernels.grammar.parser_states cimport ParserStates, stepped
from oxillama._kernels.grammar.rows cimport DEAD
from oxillama._kernels.grammar.slices cimport BASE, LEAVES, following
from oxillama._kernels.grammar.stacks cimport DEPENDENT, TAPED
from oxillama._kernels.grammar.trie cimport BEYOND_ASCII, OF_E2, SET, entry_of

cdef enum:
    COVER_WORK = 50000   # units of work to find one set
    MOST_PAIRS = 4096    # maximum number of (parser state, place inside a character) pairs that the texts lead through


cdef class Cover:
    """A set of characters, or no set. Only kernels make one."""


cdef class Covers:
    """The covers of parser states, each found once."""

    def __cinit__(self, ParserStates states not None):
        self.states, self.covers = states, {}

    cdef Cover of(self, int32_t state, int32_t least):
        """The cover of a parser state; ``least``: ASCII characters that a set needs to be worth a slice."""
        cdef Cover found = self.covers.get(state)
        if found is None:
            found = Cover.__new__(Cover)
            self.find(state, least, found)
            self.states.charge(64 if found.chars is None else 512)
            self.covers[state] = found
        return found

    cdef int find(self, int32_t state, int32_t least, Cover cover) except -1:
        """Finds a set: the characters after which about as many characters can follow as before."""
        cdef uint8_t[SET] chars
        cdef uint8_t[256] leaves
        cdef int32_t byte, to, last = DEAD, n = 0, half = self.n_alive(state), beyond
        cdef bint good = False
        cdef Py_ssize_t left = self.states.left - COVER_WORK
        if half < least or self.states.states.flags[state] & TAPED:
            return 0
        half = (half + 1) // 2
        for byte in range(128):  # not the quotation mark and other characters with few successors
            to = stepped(self.states, state, byte)
            if to != last:
                last = to
                good = to != DEAD and not self.states.states.flags[to] & DEPENDENT and self.n_alive(to) >= half
            chars[byte] = good
            n += good
        if n < least:
            return 0
        for beyond in range(2, -1, -1):
            chars[BEYOND_ASCII], chars[OF_E2] = beyond > 0, beyond > 1
            memset(leaves, 0, 256)
            if self.takes_all(state, chars, leaves, left, &cover.loop):
                cover.chars, cover.leaves = chars[:SET], leaves[:256]
                break
            if self.states.left < left:
                break
        return 0

    cdef bint takes_all(
        self, int32_t state, const uint8_t* chars, uint8_t* leaves, Py_ssize_t left, int32_t* loop
    ) except -1:
        """Whether any text of these characters can follow; notes in ``leaves`` which other bytes can follow such texts.

        Also False when at most ``left`` units of work are left.
        """
        cdef list todo = [<long long>state << 4 | BASE]
        cdef set seen = set()
        cdef int32_t byte, to, at, after, last, last_after
        cdef long long pair
        loop[0] = -1
        while todo:
            pair = todo.pop()
            state, at, last, last_after = <int32_t>(pair >> 4), <int32_t>(pair & 15), DEAD, -1
            self.states.spend(4)
            if self.states.left < left or len(seen) > MOST_PAIRS:
                return False
            for byte in range(256):
                after = following(at, <uint8_t>byte, chars)
                if after >= LEAVES:
                    if after == LEAVES and not leaves[byte]:
                        leaves[byte] = stepped(self.states, state, byte) != DEAD
                    continue
                to = stepped(self.states, state, byte)
                if to == last and after == last_after:
                    continue
                if to == DEAD or self.states.states.flags[to] & DEPENDENT:
                    return False
                last, last_after = to, after
                if after == BASE:
                    loop[0] = to if loop[0] in (-1, to) else DEAD
                pair = <long long>to << 4 | after
                if pair not in seen:
                    seen.add(pair)
                    todo.append(pair)
        return True

    cdef int32_t n_alive(self, int32_t state) except -1:
        """The number of ASCII characters that can follow."""
        cdef int32_t byte, n = 0
        for byte in range(128):
            n += stepped(self.states, state, byte) != DEAD
        return n

    cdef bint goes_on(self, int32_t state, const uint8_t* chars) except -1:
        """Whether any of the characters can follow."""
        cdef int32_t byte
        for byte in range(0xF5):
            if chars[entry_of(byte)] and stepped(self.states, state, byte) != DEAD:
                return True
        return False
