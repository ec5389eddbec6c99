"""Parser states of a grammar, and the transitions between them by bytes and tokens.

A parser state is a set of items (stacks.pyx). A lazily filled row (rows.pyx) maps a byte to the next parser state,
which is made by following edges (closure.pyx).
Threads may share the table: each Python method holds the critical section of its object.
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.debugging cimport ensure
from oxillama._kernels.grammar.closure cimport Closure
from oxillama._kernels.grammar.item_sets cimport Item
from oxillama._kernels.grammar.network cimport BYTES, TOKENS, Edge, List, takes
from oxillama._kernels.grammar.rows cimport DEAD, entry
from oxillama._kernels.grammar.stacks cimport (
    ABOVE, ACCEPTS, BELOW, BOTTOM, RESULT_FLAGS, TAPED, Stacks,
)

from oxillama._kernels.grammar.closure import NotBuilt
from oxillama.errors import GrammarError


cdef class ParserStates(Closure):
    """All parser states of a program that occurred so far. Parameters as for `Stacks`."""

    def __cinit__(self, object program: Any, Py_ssize_t limit, Py_ssize_t budget):
        self.n_token_sets = len(program.token_sets)

    cdef void allow(self, Py_ssize_t work) noexcept:
        self.n_made = 0
        Stacks.allow(self, work)

    cdef int mend(self, object error, int32_t state) except -1:
        """Builds the piece that an operation lacked, so that it can restart; raises other errors with their place."""
        if isinstance(error, NotBuilt):
            self.program.pieces.build(self.missing)  # its errors have their place
            try:
                self.catch_up()
                self.allow(self.allowed)
                return 0
            except GrammarError as found:
                error = found
        raise self.located(error, state) from None

    # ------------------------------------------------------------------ for Python

    @cython.critical_section
    def start(self) -> int:
        """The parser state before the first byte."""
        self.allow(self.budget)
        while True:
            try:
                self.begin()
                if self.program.accepts_empty:
                    self.made_flags = ACCEPTS
                self.add(0, 0, BOTTOM)  # state 0 is the start of the first piece
                return self.finish()
            except (NotBuilt, GrammarError) as error:
                self.mend(error, DEAD)

    @property
    def work(self) -> int:
        """Units of work that all operations have used so far."""
        return self.done + self.allowed - self.left

    @cython.critical_section
    def accepts(self, int32_t state) -> bool:
        """Whether the text may end here."""
        return (self.states.flags[self.checked_state(state)] & ACCEPTS) != 0

    @cython.critical_section
    def advance(self, int32_t state, bytes text not None) -> int:
        """The parser state after these bytes; 0 if they cannot follow."""
        cdef Py_ssize_t i = 0
        cdef const unsigned char* characters = text
        self.checked_state(state)
        while i < len(text) and state != DEAD:
            try:
                self.allow(self.budget)
                state = self.run(state, characters + i, 1)
                i += 1
            except (NotBuilt, GrammarError) as error:
                self.mend(error, state)
        return state

    @cython.critical_section
    def advance_token(self, int32_t state, int32_t after_bytes, bytes hits not None) -> int:
        """The parser state after a token.

        Args:
            state: before the token
            after_bytes: the parser state after its bytes; 0 if they cannot follow or do not count
            hits: for each token set of the program, whether it takes the token
        """
        self.checked_state(state)
        self.checked_state(after_bytes)
        if len(hits) != self.n_token_sets:
            raise ValueError(f"hits: expected {self.n_token_sets} flags, got {len(hits)}")
        self.allow(self.budget)
        while hits:
            try:
                return self.token_step(state, after_bytes, hits)
            except (NotBuilt, GrammarError) as error:
                self.mend(error, state)
        return after_bytes

    @cython.critical_section
    def next_token_sets(self, int32_t state) -> list[int]:
        """The token sets of the program that can follow, in ascending order."""
        cdef int32_t i, e, q, n
        cdef set found = set()
        self.checked_state(state)
        for i in range(self.states.first[state], self.states.first[state + 1]):
            q, n = self.states.items[i].q, self.states.items[i].n
            for e in range(self.edges[TOKENS].first[q], self.edges[TOKENS].first[q + 1]):
                if self.after(&self.edges[TOKENS].items[e], q, n) >= 0:
                    found.add(self.edges[TOKENS].items[e].what)
        return sorted(found)

    @cython.critical_section
    def located(self, object error: GrammarError, int32_t state) -> GrammarError:
        """The error of an operation on a parser state, with its place in the grammar if a piece knows it.

        The place is the rule of most items, in the parser state and in the one being made.
        """
        cdef dict found = {-1: 0}
        cdef int32_t i, unit
        self.checked_state(state)
        if not isinstance(error, GrammarError):
            raise TypeError(f"error: expected a GrammarError, got {type(error)}")
        if self.program.pieces is None:
            return error
        for i in range(self.states.first[state], self.states.first[state + 1]):
            self.count_unit(self.states.items[i], found)
        for i in range(self.n_made):
            self.count_unit(self.made[i], found)
        unit = max(found, key=found.get)
        return error if unit < 0 else GrammarError(self.program.pieces.located(unit, str(error)))

    cdef int count_unit(self, Item item, dict found) except -1:
        """Counts the unit of an item (-1: no unit); instead of a unit without a place, the unit that it returns to."""
        cdef list places = self.program.pieces.places
        cdef int32_t unit = self.unit_of(item.q)
        while unit >= 0 and not places[unit] and self.stacks.first[item.p] < self.stacks.first[item.p + 1]:
            item = self.stacks.items[self.stacks.first[item.p]]
            unit = self.unit_of(item.q)
            if unit < 0:
                return 0  # tail calls of shared rules leave no caller on the stack
        if unit < 0 or places[unit]:
            found[unit] = found.get(unit, 0) + 1
        return 0

    cdef int checked_state(self, int32_t state) except -1:
        if not 0 <= state < self.states.n:
            raise IndexError(f"state: expected 0 to {self.states.n - 1}, got {state}")
        return state

    # ------------------------------------------------------------------ steps

    cdef int run(self, int32_t state, const uint8_t* text, Py_ssize_t n) except -1:
        cdef Py_ssize_t i
        cdef int32_t next
        ensure(0 <= state < self.states.n)
        for i in range(n):
            next = entry(self.rows, state, text[i])[0]
            state = next if next >= 0 else self.next(state, text[i])
            if state == DEAD:
                break
        return state

    cdef int step(self, int32_t state, uint8_t byte) except -1:
        """Makes the step of a byte and stores the result, for all bytes that the same edges take."""
        cdef int32_t to
        ensure(not self.states.flags[state] & TAPED)
        self.begin()
        self.follow_edges(state, byte)
        to = self.finish()
        if self.registers.may_run_out and not self.is_alive(to):
            to = DEAD
        entry(self.rows, state, byte)[0] = to
        return to

    cdef int follow_edges(self, int32_t state, uint8_t byte) except -1:
        """Adds the items that a byte leads to."""
        cdef int32_t i, e, n
        cdef Item item
        cdef const Edge* edge
        cdef const List* edges = &self.edges[BYTES]
        for i in range(self.states.first[state], self.states.first[state + 1]):
            item = self.states.items[i]
            self.spend(1 + edges.first[item.q + 1] - edges.first[item.q])
            for e in range(edges.first[item.q], edges.first[item.q + 1]):
                edge = &edges.items[e]
                if takes(self.labels, edge.what, byte):
                    n = self.after(edge, item.q, item.n)
                    if n >= 0:
                        self.add(edge.target, n, item.p)
        return 0

    cdef int token_step(self, int32_t state, int32_t after_bytes, const uint8_t* hits) except -1:
        cdef int32_t i, e, n
        cdef Item item
        cdef const Edge* edge
        cdef const List* edges = &self.edges[TOKENS]
        cdef bint hit = False
        self.begin()
        for i in range(self.states.first[state], self.states.first[state + 1]):
            item = self.states.items[i]
            for e in range(edges.first[item.q], edges.first[item.q + 1]):
                edge = &edges.items[e]
                if hits[edge.what]:
                    n = self.after(edge, item.q, item.n)
                    if n >= 0:
                        self.add(edge.target, n, item.p)
                        hit = True
        if not hit:
            return after_bytes
        self.made_tape = self.tapes[after_bytes]
        self.made_flags |= self.states.flags[after_bytes] & RESULT_FLAGS
        for i in range(self.states.first[after_bytes], self.states.first[after_bytes + 1]):
            item = self.states.items[i]
            self.add(item.q, item.n, item.p)
        return self.finish()

    cdef int32_t abstract_count(self, int32_t q, int32_t n, int32_t reach) noexcept:
        """The abstract count for ``n`` if no text of up to ``reach`` bytes can make a difference, else ``n``."""
        cdef int32_t least = self.rtn[q].least, most = self.rtn[q].most
        if n >= ABOVE or most == 0:
            return n
        if most > 0 and most - self.rtn[q].slack - n <= reach:
            return n
        return ABOVE if n >= least else BELOW if least - n > reach else n

    cdef int popped(self, int32_t p) except -1:
        """The parser state after the end of a subnetwork that was called with this stack."""
        self.begin()
        self.pop(p)
        return self.finish()

    # ------------------------------------------------------------------ distinct members

    cdef int next(self, int32_t state, uint8_t byte) except -1:
        """A step that the row lacks. Steps within an open value are never stored: bytes of one column differ."""
        if self.states.flags[state] & TAPED:
            return self.taped_step(state, byte)
        return self.step(state, byte)

    cdef int taped_step(self, int32_t state, uint8_t byte) except -1:
        """A step within an open value, to a state in which the value can still differ from all earlier values."""
        cdef int32_t to = self.unjudged_step(state, byte)
        return to if self.is_alive(to) else DEAD

    cdef int unjudged_step(self, int32_t state, uint8_t byte) except -1:
        if entry(self.rows, state, byte)[0] == DEAD:
            return DEAD
        self.begin()
        self.made_tape = self.registers.longer(self.tapes[state], byte)
        self.follow_edges(state, byte)
        return self.finish()

    cdef bint is_alive(self, int32_t state) except -1:
        """Whether some text can continue; only in doubt if an open value may be forced to equal an earlier one."""
        if self.verdicts[state] == 2:
            return False
        if not self.states.flags[state] & TAPED or self.verdicts[state] == 1:
            return state != DEAD
        if not self.is_hot(state):
            self.verdicts[state] = 1
            return True
        return self.is_saved(state)

    cdef bint is_saved(self, int32_t state) except -1:
        """Whether a value that begins like an earlier one can still become a different one."""
        cdef list path = [], next_byte = []
        cdef int32_t at, to, byte
        path.append(state)
        next_byte.append(0)
        while path:
            at, byte = path[len(path) - 1], next_byte[len(path) - 1]
            if byte == 256:
                self.verdicts[at] = 2
                path.pop()
                next_byte.pop()
                continue
            next_byte[len(path) - 1] = byte + 1
            if self.registers.texts[self.tapes[at]].inside == 0 and (byte == 0x20 or 0x09 <= byte <= 0x0D):
                continue  # any text has a variant without this white space
            to = self.unjudged_step(at, <uint8_t>byte)
            if to == DEAD or self.verdicts[to] == 2:
                continue
            if not self.states.flags[to] & TAPED or self.verdicts[to] == 1 or not self.is_hot(to):
                for at in path:
                    self.verdicts[at] = 1
                return True
            path.append(to)
            next_byte.append(0)
        return False
