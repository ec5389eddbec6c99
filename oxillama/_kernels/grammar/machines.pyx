"""Machines: deterministic automata whose states are rows of integers, and the minimal automata made of them.

A machine computes the next state for a state and a class of characters. Its automaton is built by following all steps
from the start. States from which no string ends are dropped, states that accept the same strings are merged.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from oxillama._kernels.grammar.classes cimport Classes
from oxillama._kernels.grammar.dfa cimport Arcs, Dfa, add_arc, made
from oxillama._kernels.grammar.memory cimport grown, mixed
from oxillama._kernels.grammar.partitions cimport Partition, begin_partition, end_partition, refine

from oxillama.errors import GrammarError

cdef enum:
    MAX_STATES = 50_000         # maximum number in one machine
    MAX_WORK = 60_000_000       # states * classes * work of a step
    STEP_WORK = 16              # work of a step, besides the integers of the state
    MERGE_WORK = 100_000_000    # edges visited to find equal states, plus
    STATE_WORK = 8              # ... this many per state


cdef class Machine:
    """The base class of machines; it stores the states found so far."""

    def __dealloc__(self):
        free(self.states)
        free(self.table)

    cdef int begin(self, const int32_t* state) noexcept:
        """Prepares for steps from this state."""
        return 0

    cdef bint step(self, const int32_t* state, int32_t k, int32_t* after) noexcept:
        """Writes the state after a character of class ``k``; False if there is no such state."""
        return False

    cdef bint accepts(self, const int32_t* state) noexcept:
        """Whether the string may end in this state."""
        return False

    cdef Dfa automaton(self, const int32_t* start):
        """The minimal automaton with this start state.

        Raises:
            GrammarError: the machine has too many states.
        """
        cdef int32_t q = 0, k, n_classes = self.classes.n, rows_room = 0
        cdef int64_t unit = <int64_t>n_classes * (self.width + STEP_WORK)
        cdef int32_t most = <int32_t>min(MAX_STATES, 1 + MAX_WORK // unit)
        cdef int32_t* rows = NULL
        cdef int32_t* here = NULL
        cdef uint8_t* ends = NULL
        self.n, self.room, self.table_size = 0, 64, 256
        self.states = <int32_t*>grown(self.states, 4 * <Py_ssize_t>self.room * self.width)
        self.table = <int32_t*>grown(self.table, 4 * <Py_ssize_t>self.table_size)
        memset(self.table, 0xFF, 4 * <Py_ssize_t>self.table_size)
        try:
            here = <int32_t*>grown(NULL, 8 * <Py_ssize_t>self.width)
            self.numbered(start)
            while q < self.n:  # the number grows in the loop
                if q == rows_room:
                    rows_room = max(64, 2 * rows_room)
                    rows = <int32_t*>grown(rows, 4 * <Py_ssize_t>rows_room * n_classes)
                memcpy(here, self.states + <Py_ssize_t>q * self.width, 4 * <Py_ssize_t>self.width)
                self.begin(here)
                for k in range(n_classes):
                    rows[<Py_ssize_t>q * n_classes + k] = \
                        self.numbered(here + self.width) if self.step(here, k, here + self.width) else -1
                if self.n > most:
                    raise GrammarError(f"expected an automaton of at most {most} states, got more")
                q += 1
            ends = <uint8_t*>grown(NULL, self.n)
            for q in range(self.n):
                ends[q] = 1 if self.accepts(self.states + <Py_ssize_t>q * self.width) else 0
            return of_table(rows, self.n, ends, self.classes)
        finally:
            free(rows)
            free(here)
            free(ends)

    cdef int32_t* slot_of(self, const int32_t* state) noexcept:
        """The slot of a state's number in the hash table, or the free slot for it."""
        cdef uint64_t h = 0
        cdef int32_t i, slot
        for i in range(self.width):
            h = (h ^ <uint64_t>state[i]) * <uint64_t>0x9E3779B97F4A7C15
            h ^= h >> 32
        slot = <int32_t>(mixed(h) & <uint64_t>(self.table_size - 1))
        while self.table[slot] >= 0 and memcmp(
            self.states + <Py_ssize_t>self.table[slot] * self.width, state, 4 * <Py_ssize_t>self.width
        ):
            slot = (slot + 1) & (self.table_size - 1)
        return &self.table[slot]

    cdef int32_t numbered(self, const int32_t* state) except -1:
        """The number of a state; a new state gets the next number."""
        cdef int32_t* slot = self.slot_of(state)
        cdef int32_t i
        if slot[0] >= 0:
            return slot[0]
        if self.n == self.room:
            self.room *= 2
            self.states = <int32_t*>grown(self.states, 4 * <Py_ssize_t>self.room * self.width)
        memcpy(self.states + <Py_ssize_t>self.n * self.width, state, 4 * <Py_ssize_t>self.width)
        slot[0] = self.n
        self.n += 1
        if 2 * self.n > self.table_size:
            self.table_size *= 2
            self.table = <int32_t*>grown(self.table, 4 * <Py_ssize_t>self.table_size)
            memset(self.table, 0xFF, 4 * <Py_ssize_t>self.table_size)
            for i in range(self.n):
                self.slot_of(self.states + <Py_ssize_t>i * self.width)[0] = i
        return self.n - 1


# ---------------------------------------------------------------------- tables


cdef Dfa of_table(const int32_t* rows, int32_t n, const uint8_t* accepting, Classes classes):
    """The automaton of a table; states without a path to an end are dropped, and equal states are merged.

    Args:
        rows: (n, classes): the next state by class of characters, or -1.
        accepting: (n,): whether the string may end.
    """
    cdef Arcs arcs = Arcs(NULL, 0, 0)
    cdef Partition sets
    cdef int32_t k, q, t, i = 0, kept = 1
    cdef int32_t* number = <int32_t*>grown(NULL, 8 * (<Py_ssize_t>n + 1))
    cdef int32_t* order = number + n + 1
    cdef int32_t* first = NULL
    cdef uint8_t* ends = NULL
    cdef Dfa found
    memset(&sets, 0, sizeof(Partition))
    try:
        first = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>n + 1))
        ends = <uint8_t*>grown(NULL, n)
        begin_partition(&sets, n + 1)
        part_states(&sets, rows, n, classes.n, accepting)
        memset(number, 0xFF, 4 * (<Py_ssize_t>n + 1))
        number[sets.number[0]] = order[0] = 0
        while i < kept:  # the number grows in the loop
            q = order[i]
            first[i] = arcs.n
            ends[i] = accepting[q]
            for k in range(classes.n_intervals):
                t = rows[<Py_ssize_t>q * classes.n + classes.number[k]]
                t = sets.number[n if t < 0 else t]
                if t == sets.number[n]:
                    continue
                if number[t] < 0:
                    number[t], order[kept] = kept, sets.sample[t]
                    kept += 1
                t = number[t]
                if arcs.n > first[i] and arcs.items[arcs.n - 1].target == t \
                        and arcs.items[arcs.n - 1].last + 1 == classes.first[k]:
                    arcs.items[arcs.n - 1].last = classes.first[k + 1] - 1
                else:
                    add_arc(&arcs, classes.first[k], classes.first[k + 1] - 1, t)
            i += 1
        first[kept] = arcs.n
        found = made(kept, &arcs, first, ends)
        arcs.items, first, ends = NULL, NULL, NULL
        return found
    finally:
        free(arcs.items)
        free(number)
        free(first)
        free(ends)
        end_partition(&sets)


cdef int part_states(
    Partition* sets, const int32_t* rows, int32_t n, int32_t width, const uint8_t* accepting
) except -1:
    """Parts the states that accept different strings; element ``n`` stands for a state that accepts nothing.

    The states of a set are parted by the sets that they lead to, until nothing changes (Moore, 1956). The first sets
    are the states with equally many fewest characters to an end, so a string of fixed length takes few rounds. If more
    than `MERGE_WORK` would be needed, no states are merged but those that accept nothing.
    """
    cdef int64_t* keys = <int64_t*>grown(NULL, 8 * (<Py_ssize_t>n + 1))
    cdef int32_t q, k, before = 0
    cdef int64_t left = MERGE_WORK
    cdef uint64_t h
    try:
        find_needs(rows, n, width, accepting, keys)
        refine(sets, keys)
        while before < sets.n_sets and left > 0:
            before = sets.n_sets
            left -= <int64_t>n * (width + STATE_WORK)
            for q in range(n + 1):
                h = 0
                for k in range(width):
                    h = (h ^ <uint64_t>led_to(sets, rows, n, width, q, k)) * <uint64_t>0x9E3779B97F4A7C15
                    h ^= h >> 32
                keys[q] = <int64_t>h
            refine(sets, keys)
        if before < sets.n_sets or not are_alike(sets, rows, n, width):
            for q in range(n + 1):
                sets.sample[q] = q
                sets.number[q] = n if sets.number[q] == sets.number[n] else q
        return 0
    finally:
        free(keys)


cdef inline int32_t led_to(
    const Partition* sets, const int32_t* rows, int32_t n, int32_t width, int32_t q, int32_t k
) noexcept:
    """The set that state ``q`` leads to with a class of characters."""
    cdef int32_t t = -1 if q == n else rows[<Py_ssize_t>q * width + k]
    return sets.number[n if t < 0 else t]


cdef bint are_alike(const Partition* sets, const int32_t* rows, int32_t n, int32_t width) noexcept:
    """Whether the states of each set lead to the same sets; equal hashes do not prove it."""
    cdef int32_t q, k
    for q in range(n):
        for k in range(width):
            if led_to(sets, rows, n, width, q, k) != led_to(sets, rows, n, width, sets.sample[sets.number[q]], k):
                return False
    return True


cdef void find_needs(
    const int32_t* rows, int32_t n, int32_t width, const uint8_t* accepting, int64_t* needs
) noexcept:
    """The fewest characters from each state to an end, -1 without a path to one; needs[n] = -1.

    Rounds visit the states in alternating order, because most edges lead to states of higher numbers.
    """
    cdef int32_t i, q, k, t, rounds = 0
    cdef int64_t least
    cdef bint changed = True
    for q in range(n):
        needs[q] = 0 if accepting[q] else -1
    needs[n] = -1
    while changed:
        changed = False
        for i in range(n):
            q = i if rounds & 1 else n - 1 - i
            least = needs[q]
            for k in range(width):
                t = rows[<Py_ssize_t>q * width + k]
                if t >= 0 and needs[t] >= 0 and (least < 0 or needs[t] + 1 < least):
                    least = needs[t] + 1
                    changed = True
            needs[q] = least
        rounds += 1
