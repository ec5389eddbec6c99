"""Registers: the values that occurred in an array with distinct items, or in an object.

The items of such a container are called by RTN states whose count is the number of a register: a set of members, and
the place at which the open value began. A member is known by a mark, a number that the grammar gives it, or by its
text. Texts are nodes of one trie, sets are lists that share their tails, and each is stored once; so a register is a
number like any count. White space between the tokens of JSON is no part of a text.

The bytes since the start of the first open value are the *tape*. All items of a parser state have read the same
bytes, so a parser state has one tape, and items only need the place at which their value began.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free

from oxillama._kernels.grammar.memory cimport grown

from oxillama._kernels.grammar.json_values import fingerprint

cdef enum:
    MOST_SIZE = (1 << 24) - 1  # highest number of members in an abstract register
    MOST_COLD = 4096           # maximum number of (members, text) pairs that are kept

cdef class Registers:
    """The registers of one table of parser states. Register 0 and text 0 are empty."""

    def __cinit__(self):
        self.n_texts = self.n_sets = 1
        self.text_numbers, self.set_numbers, self.register_numbers = {}, {}, {}
        self.texts_room = self.sets_room = self.registers_room = 64
        self.texts = <Text*>grown(NULL, 64 * sizeof(Text))
        self.sets = <Members*>grown(NULL, 64 * sizeof(Members))
        self.registers = <Register*>grown(NULL, 64 * sizeof(Register))
        self.texts[0] = Text(-1, 0, 0, 0)
        self.sets[0] = Members(0, -1, 0)
        self.cold = set()
        self.number(0, -1)

    def __dealloc__(self):
        free(self.texts)
        free(self.sets)
        free(self.registers)

    # ------------------------------------------------------------------ texts

    cdef int32_t longer(self, int32_t text, uint8_t byte) except -1:
        """A text with one more byte; white space outside of strings is dropped."""
        cdef Text* old = &self.texts[text]
        cdef uint8_t inside = old.inside
        cdef int32_t found, depth = old.depth + 1
        if inside == 0 and (byte == 0x20 or 0x09 <= byte <= 0x0D):
            return text
        found = self.text_numbers.setdefault(pair(text, byte), self.n_texts)
        if found == self.n_texts:
            if inside == 2:
                inside = 1
            elif byte == 0x22:
                inside = 1 - inside
            elif inside and byte == 0x5C:
                inside = 2
            if found == self.texts_room:
                self.texts_room *= 2
                self.texts = <Text*>grown(self.texts, self.texts_room * sizeof(Text))
            self.texts[found] = Text(text, depth, byte, inside)
            self.n_texts += 1
            self.n_bytes += 128
        return found

    cdef bytes bytes_of(self, int32_t text, int32_t begin):
        """The bytes of a text from depth ``begin`` on."""
        cdef int32_t n = self.texts[text].depth - begin
        cdef uint8_t* data = <uint8_t*>grown(NULL, n + 1)
        cdef int32_t i = n
        while i:
            i -= 1
            data[i] = self.texts[text].byte
            text = self.texts[text].parent
        try:
            return data[:n]
        finally:
            free(data)

    cdef int32_t suffix(self, int32_t text, int32_t begin) except -1:
        """The text from depth ``begin`` on, as a text that starts at depth 0."""
        cdef int32_t found = 0
        if begin == 0:
            return text
        for byte in self.bytes_of(text, begin):
            found = self.longer(found, byte)
        return found

    # ------------------------------------------------------------------ sets

    cdef int32_t with_member(self, int32_t members, int32_t key) except -1:
        cdef int32_t found = self.set_numbers.setdefault(pair(members, key), self.n_sets)
        if found == self.n_sets:
            if found == self.sets_room:
                self.sets_room *= 2
                self.sets = <Members*>grown(self.sets, self.sets_room * sizeof(Members))
            self.sets[found] = Members(members, key, self.sets[members].size + 1)
            self.n_sets += 1
            self.n_bytes += 128
        return found

    cdef int32_t with_mark(self, int32_t members, int32_t mark) except -1:
        """Adds a mark to a set. Marks follow texts, the highest first, so that a set does not depend on an order."""
        cdef list above = []
        cdef int32_t key
        while members and self.sets[members].key > mark:
            above.append(self.sets[members].key)
            members = self.sets[members].rest
        members = self.with_member(members, mark)
        for key in reversed(above):
            members = self.with_member(members, key)
        return members

    cdef bint has(self, int32_t members, int32_t key) noexcept:
        while members:
            if self.sets[members].key == key:
                return True
            if self.sets[members].key < key < OF_TEXT:
                return False
            members = self.sets[members].rest
        return False

    cdef bint begins_member(self, int32_t text, int32_t key) noexcept:
        """Whether a member is a text that begins with ``text``."""
        cdef int32_t depth = self.texts[text].depth, other = key - OF_TEXT
        if other < 0:
            return False
        while self.texts[other].depth > depth:
            other = self.texts[other].parent
        return other == text

    cdef bint is_hot(self, int32_t members, int32_t text) except -1:
        """Whether some member begins with ``text``."""
        cdef int32_t one = members
        if members == 0:
            return False
        if pair(members, text) not in self.cold and pair(members, max(0, self.texts[text].parent)) not in self.cold:
            while one:
                if self.begins_member(text, self.sets[one].key):
                    return True
                one = self.sets[one].rest
        if len(self.cold) == MOST_COLD:
            self.cold.clear()
        self.cold.add(pair(members, text))
        return False

    # ------------------------------------------------------------------ registers

    cdef int32_t number(self, int32_t members, int32_t begin) except -1:
        cdef int32_t found = self.register_numbers.setdefault(pair(members, begin), self.n_registers)
        if found == self.n_registers:
            if found == self.registers_room:
                self.registers_room *= 2
                self.registers = <Register*>grown(self.registers, self.registers_room * sizeof(Register))
            self.registers[found] = Register(members, begin)
            self.n_registers += 1
            self.n_bytes += 120
        return found

    cdef int32_t after(self, int32_t op, int32_t n, int32_t needed, int32_t tape) except -2:
        """The register after an edge; -1 if the edge refuses.

        ``needed``: marks below this are required. ``tape`` has the bytes read so far.
        """
        cdef int32_t kind = op >> KIND & 7, argument = op >> ARGUMENT, key, members
        if n >= SOME:
            return abstract_after(kind, argument, n)
        members = self.registers[n].members
        if kind == BEGIN:
            self.may_run_out = self.may_run_out or argument
            return self.number(members, self.texts[tape].depth)
        if kind == MARK:
            return -1 if self.has(members, argument) else self.number(self.with_mark(members, argument), -1)
        if kind == END or kind == END_JSON:
            if kind == END:
                key = OF_TEXT + self.suffix(tape, self.registers[n].begin)
            else:
                key = 0
                for byte in fingerprint(self.bytes_of(tape, self.registers[n].begin)):
                    key = self.longer(key, byte)
                key += OF_TEXT
            return -1 if self.has(members, key) else self.number(self.with_member(members, key), -1)
        if kind == AT_LEAST:
            return n if self.sets[members].size >= argument else -1
        if kind == FEWER:
            return n if self.sets[members].size < argument else -1
        if kind == SPARE:
            return n if self.sets[members].size - self.marks(members, needed) < argument else -1
        return n if self.marks(members, needed) == needed else -1

    cdef int32_t marks(self, int32_t members, int32_t most) noexcept:
        """The number of marks below ``most`` that occurred."""
        cdef int32_t found = 0
        while members:
            found += self.sets[members].key < most
            members = self.sets[members].rest
        return found

    cdef int32_t abstract(self, int32_t n, int32_t least, int32_t needed) noexcept:
        """The abstract register of n: shared by registers that differ only for tokens which end or begin a value."""
        cdef int32_t members = self.registers[n].members
        cdef int32_t size = self.sets[members].size + (self.registers[n].begin >= 0)
        return SOME + (min(size, least) << SIZE) + ALL_BIT * (self.marks(members, needed) == needed)


# --------------------------------------------------------------------------- plain C

cdef int32_t abstract_after(int32_t kind, int32_t argument, int32_t n) noexcept:
    cdef int32_t size = (n - SOME) >> SIZE
    cdef bint fresh = (n - SOME) & FRESH_BIT
    if kind == BEGIN or kind == MARK:
        return n + (size < MOST_SIZE) * (1 << SIZE) + (0 if fresh else FRESH_BIT)
    if kind == END_JSON:
        return n if fresh else n + FRESH_BIT
    if fresh or kind == END or kind == SPARE:
        return n  # the token is checked again with the real register
    if kind == AT_LEAST:
        return n if size >= argument else -1
    if kind == FEWER:
        return n if size < argument else -1
    return n if (n - SOME) & ALL_BIT else -1
