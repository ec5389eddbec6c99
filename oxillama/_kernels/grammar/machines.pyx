"""Machines: deterministic automata whose states are rows of integers, and the smallest automata of these.

A machine says where a state leads for each class of characters. Its automaton is made by following it from the
start. States from which no string ends are dropped, those that accept the same strings are merged.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from oxillama._kernels.grammar.classes cimport Classes
from oxillama._kernels.grammar.dfa cimport Arcs, Dfa, add_arc, made
from oxillama._kernels.grammar.memory cimport grown, mixed

from oxillama.errors import GrammarError

cdef enum:
    MAX_STATES = 50_000         # of a machine
    MAX_WORK = 60_000_000       # its states times classes times what a state takes
    STEP_WORK = 16              # what a step takes, besides the integers of the state
    MOST_MERGED = 1_000_000     # edges of a table whose equal states are merged


cdef class Machine:
    """The base of machines, as far as they have been followed."""

    def __dealloc__(self):
        free(self.states)
        free(self.table)

    cdef int begin(self, const int32_t* state) noexcept:
        """Steps from this state are asked for."""
        return 0

    cdef bint step(self, const int32_t* state, int32_t k, int32_t* after) noexcept:
        """The state after a character of class ``k``; False if there is none."""
        return False

    cdef bint accepts(self, const int32_t* state) noexcept:
        """Whether the string may end."""
        return False

    cdef Dfa automaton(self, const int32_t* start):
        """The automaton from a state on.

        Raises
        ------
        GrammarError : the machine has too many states.
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
            while q < self.n:  # grows while it is walked
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
        """Where a state's number stands in the table, or would stand."""
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
        """The number of a state, which is new if it was not met before."""
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


cdef Dfa of_table(int32_t* rows, int32_t n, const uint8_t* accepting, Classes classes):
    """The automaton of a table, without what leads to no end and with equal states merged.

    Parameters
    ----------
    rows : (n, classes): for each state the next one by class of characters, -1 for none. Changed.
    accepting : (n,): whether the string may end.
    """
    cdef Arcs arcs = Arcs(NULL, 0, 0)
    cdef int32_t width = classes.n, k, q, i = 0, t, kept = 1
    cdef Py_ssize_t at
    cdef int32_t* block = <int32_t*>grown(NULL, 4 * 4 * (<Py_ssize_t>n + 1))
    cdef int32_t* sample = block + n + 1
    cdef int32_t* number = sample + n + 1
    cdef int32_t* order = number + n + 1
    cdef int32_t* first = NULL
    cdef uint8_t* ends = NULL
    cdef Dfa found
    try:
        first = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>n + 1))
        ends = <uint8_t*>grown(NULL, n)
        drop_dead(rows, n, width, accepting)
        merge(rows, n, width, accepting, block + 1, sample)
        memset(number, 0xFF, 4 * (<Py_ssize_t>n + 1))
        number[block[1]] = order[0] = 0
        while i < kept:  # grows while it is read
            q = order[i]
            first[i] = arcs.n
            ends[i] = accepting[q]
            for k in range(classes.n_intervals):
                at = <Py_ssize_t>q * width + classes.number[k]
                t = rows[at]
                if t < 0:
                    continue
                t = block[t + 1]
                if number[t] < 0:
                    number[t], order[kept] = kept, sample[t]
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
        free(block)
        free(first)
        free(ends)


cdef int drop_dead(int32_t* rows, int32_t n, int32_t width, const uint8_t* accepting) except -1:
    """Leave out what leads to states from which no accepting one can be reached."""
    cdef Py_ssize_t i, n_edges = <Py_ssize_t>n * width
    cdef int32_t q, left = 0
    cdef int32_t* first = <int32_t*>grown(NULL, 4 * (3 * (<Py_ssize_t>n + 2) + n_edges))   # edges by target
    cdef int32_t* live = first + n + 2
    cdef int32_t* todo = live + n + 2
    cdef int32_t* sources = todo + n + 2
    try:
        memset(first, 0, 8 * (<Py_ssize_t>n + 2))  # and live
        for i in range(n_edges):
            if rows[i] >= 0:
                first[rows[i] + 2] += 1
        for q in range(n):
            first[q + 2] += first[q + 1]
        for i in range(n_edges):
            if rows[i] >= 0:
                sources[first[rows[i] + 1]] = <int32_t>(i // width)
                first[rows[i] + 1] += 1
        for q in range(n):
            if accepting[q]:
                live[q] = 1
                todo[left] = q
                left += 1
        while left:
            left -= 1
            q = todo[left]
            for i in range(first[q], first[q + 1]):
                if not live[sources[i]]:
                    live[sources[i]] = 1
                    todo[left] = sources[i]
                    left += 1
        for i in range(n_edges):
            if rows[i] >= 0 and not live[rows[i]]:
                rows[i] = -1
        return 0
    finally:
        free(first)


# ---------------------------------------------------------------------- equal states


cdef struct Partition:
    # Elements in sets: those of set s are elements[first[s]] ... elements[end[s] - 1], its marked ones in front.
    int32_t* elements
    int32_t* place      # by element: where it stands
    int32_t* set_of     # by element, -1: in none
    int32_t* first      # by set
    int32_t* end
    int32_t* marked     # how many elements of a set are
    int32_t* touched    # the sets that have marked elements
    int32_t n_sets, n_touched


cdef int begin_partition(Partition* p, int32_t n) except -1:
    """Room for n elements, in no set yet, in one block that begins with ``elements``."""
    cdef Py_ssize_t room = <Py_ssize_t>n + 1
    p.elements = <int32_t*>grown(NULL, 7 * 4 * room)
    p.place, p.set_of, p.first = p.elements + room, p.elements + 2 * room, p.elements + 3 * room
    p.end, p.marked, p.touched = p.elements + 4 * room, p.elements + 5 * room, p.elements + 6 * room
    memset(p.set_of, 0xFF, 4 * room)
    memset(p.marked, 0, 4 * room)
    return 0


cdef inline void put_last(Partition* p, int32_t element, int32_t at) noexcept:
    """An element of the set that is being filled, which ends with ``at``."""
    p.elements[at] = element
    p.place[element] = at
    p.set_of[element] = p.n_sets


cdef inline void close_set(Partition* p, int32_t first, int32_t end) noexcept:
    if end > first:
        p.first[p.n_sets], p.end[p.n_sets] = first, end
        p.n_sets += 1


cdef inline void mark(Partition* p, int32_t element) noexcept:
    cdef int32_t s = p.set_of[element], at = p.place[element], to = p.first[s] + p.marked[s]
    if at < to:
        return  # it is marked
    if p.marked[s] == 0:
        p.touched[p.n_touched] = s
        p.n_touched += 1
    p.elements[at] = p.elements[to]
    p.place[p.elements[at]] = at
    p.elements[to] = element
    p.place[element] = to
    p.marked[s] += 1


cdef void split_sets(Partition* p) noexcept:
    """Part the marked elements of each set from the others; the smaller part becomes the new set."""
    cdef int32_t s, middle, i
    while p.n_touched:
        p.n_touched -= 1
        s = p.touched[p.n_touched]
        middle = p.first[s] + p.marked[s]
        p.marked[s] = 0
        if middle == p.end[s]:
            continue
        if middle - p.first[s] <= p.end[s] - middle:
            p.first[p.n_sets], p.end[p.n_sets], p.first[s] = p.first[s], middle, middle
        else:
            p.first[p.n_sets], p.end[p.n_sets], p.end[s] = middle, p.end[s], middle
        for i in range(p.first[p.n_sets], p.end[p.n_sets]):
            p.set_of[p.elements[i]] = p.n_sets
        p.n_sets += 1


cdef int merge(
    const int32_t* rows, int32_t n, int32_t width, const uint8_t* accepting, int32_t* block, int32_t* sample,
) except -1:
    """A number for each state, one for all that accept the same strings; and a state of each number.

    There is room for a state -1, which nothing comes from. No edge leads to a state from which no string ends.
    States and edges are parted in turns: states by the sets of the edges that leave them, edges by the sets of the
    states that they lead to (Valmari and Lehtinen, 2008), in m log n steps. A table of more than `MOST_MERGED` edges
    keeps its states.
    """
    cdef int32_t n_edges = <int32_t>min(<int64_t>n * width, MOST_MERGED + 1), q, i, k, count = 0, b = 1, c = 0
    cdef Partition states, edges
    cdef int32_t* first = NULL    # edges by target, and then these
    cdef int32_t* into
    (block - 1)[0] = -1
    if n_edges > MOST_MERGED:
        for q in range(n):
            block[q] = sample[q] = q
        return 0
    memset(&states, 0, sizeof(Partition))
    memset(&edges, 0, sizeof(Partition))
    try:
        begin_partition(&states, n)
        begin_partition(&edges, n_edges)
        first = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>n + 2 + n_edges))
        memset(first, 0, 4 * (<Py_ssize_t>n + 2))
        into = first + n + 2
        for q in range(n):
            put_last(&states, q, q)
        close_set(&states, 0, n)
        for q in range(n):
            if accepting[q]:
                mark(&states, q)
        split_sets(&states)
        for k in range(width):
            i = count
            for q in range(n):
                if rows[q * width + k] >= 0:
                    put_last(&edges, q * width + k, count)
                    first[rows[q * width + k] + 2] += 1
                    count += 1
            close_set(&edges, i, count)
        for q in range(n):
            first[q + 2] += first[q + 1]
        for i in range(n_edges):
            if rows[i] >= 0:
                into[first[rows[i] + 1]] = i
                first[rows[i] + 1] += 1
        while c < edges.n_sets:
            for i in range(edges.first[c], edges.end[c]):
                mark(&states, edges.elements[i] // width)
            split_sets(&states)
            c += 1
            while b < states.n_sets:
                for i in range(states.first[b], states.end[b]):
                    q = states.elements[i]
                    for k in range(first[q], first[q + 1]):
                        mark(&edges, into[k])
                split_sets(&edges)
                b += 1
        for q in range(n):
            block[q] = states.set_of[q]
            sample[block[q]] = q
        return 0
    finally:
        free(states.elements)
        free(edges.elements)
        free(first)
