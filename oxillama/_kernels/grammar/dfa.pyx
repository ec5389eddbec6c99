"""Deterministic finite automata over code points: the strings of a regular language.

An automaton is a node of a grammar's rules, so it is compared and hashed by what it holds. States are numbers, 0
is the start. Those made of tables are reduced: states that accept the same strings are merged (Moore, 1956), those
that accept none are dropped.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy, memset

from oxillama._kernels.grammar.memory cimport grown, mixed

cdef enum:
    LAST_POINT = 0x10FFFF
    MOST_STATES = 1 << 24
    LARGE = 8           # states of a network that a state with characters beyond ASCII makes, roughly
    MERGE_WORK = 4_000_000  # of looking for equal states: rounds times states times classes

cdef object OWN = object()  # in place of edges: arrays are given afterwards

cdef class Dfa:
    """A string of a regular language, given as a deterministic automaton over code points. State 0 starts.

    Parameters
    ----------
    edges : for each state its (first, last, target), ascending and disjoint
    accepting : states in which the string may end

    Raises
    ------
    ValueError : edges that are not ascending, or lead to a state that there is not.
    """

    def __cinit__(self, object edges, object accepting):
        cdef Arcs arcs = Arcs(NULL, 0, 0)
        cdef int32_t n, q = 0, first, last, target, before, state
        cdef int32_t* starts = NULL
        cdef uint8_t* ends = NULL
        if edges is OWN:
            return
        if not 0 < len(edges) < MOST_STATES:
            raise ValueError(f"edges: expected 1 to {MOST_STATES} states, got {len(edges)}")
        n = <int32_t>len(edges)
        try:
            starts = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>n + 1))
            ends = <uint8_t*>grown(NULL, n)
            memset(ends, 0, n)
            for row in edges:
                if q >= n:
                    raise ValueError("edges: expected a sequence that stays as it is")
                starts[q] = arcs.n
                before = -1
                for first, last, target in row:
                    if not (before < first <= last <= LAST_POINT and 0 <= target < n):
                        raise ValueError(f"edges: expected ascending ranges that lead to states below {n}, got "
                                         f"{(first, last, target)} after {before}")
                    before = last
                    add_arc(&arcs, first, last, target)
                q += 1
            if q != n:
                raise ValueError("edges: expected a sequence that stays as it is")
            starts[n] = arcs.n
            for state in accepting:
                if not 0 <= state < n:
                    raise ValueError(f"accepting: expected states below {n}, got {state}")
                ends[state] = 1
        except BaseException:
            free(arcs.items)
            free(starts)
            free(ends)
            raise
        self.take(n, &arcs, starts, ends)

    def __dealloc__(self):
        free(self.arcs)
        free(self.first)
        free(self.ends)

    cdef int take(self, int32_t n, Arcs* arcs, int32_t* first, uint8_t* ends) except -1:
        """Own these arrays."""
        cdef uint64_t h = n
        cdef int32_t i
        self.n_states, self.arcs, self.first, self.ends = n, arcs.items, first, ends
        for i in range(first[n]):
            h = mixed(h ^ (<uint64_t>arcs.items[i].first << 32 | <uint64_t>arcs.items[i].last)) + arcs.items[i].target
        for i in range(n):
            h = mixed(h + 2 * <uint64_t>first[i] + ends[i])
        self.hash = <Py_hash_t>(h >> 2)
        return 0

    cdef bint is_ascii(self, int32_t state) noexcept:
        """Whether all characters that a state takes are ASCII."""
        cdef int32_t end = self.first[state + 1]
        return end == self.first[state] or self.arcs[end - 1].last < 0x80

    @property
    def edges(self):
        """For each state its (first, last, target), ascending and disjoint."""
        cdef int32_t q, i
        return tuple([
            tuple([
                (self.arcs[i].first, self.arcs[i].last, self.arcs[i].target)
                for i in range(self.first[q], self.first[q + 1])
            ])
            for q in range(self.n_states)
        ])

    @property
    def accepting(self):
        """The states in which the string may end."""
        cdef int32_t q
        return frozenset([q for q in range(self.n_states) if self.ends[q]])

    def size(self):
        """Roughly how many states of a network it makes."""
        cdef int32_t q, found = 0
        for q in range(self.n_states):
            found += 1 if self.is_ascii(q) else LARGE
        return found

    def accepts_empty(self):
        """Whether the string may be empty."""
        return self.ends[0] != 0

    def holds_text(self):
        """Whether it accepts a string; none with a surrogate is one."""
        cdef int32_t q, i, n = 1
        cdef uint8_t* seen
        cdef int32_t* todo
        cdef Arc arc
        seen = <uint8_t*>calloc(self.n_states, 1)
        todo = <int32_t*>malloc(4 * <Py_ssize_t>self.n_states)
        try:
            if not (seen and todo):
                raise MemoryError()
            todo[0] = 0
            seen[0] = 1
            while n:
                n -= 1
                q = todo[n]
                if self.ends[q]:
                    return True
                for i in range(self.first[q], self.first[q + 1]):
                    arc = self.arcs[i]
                    if not seen[arc.target] and not (0xD800 <= arc.first and arc.last <= 0xDFFF):
                        seen[arc.target] = 1
                        todo[n] = arc.target
                        n += 1
            return False
        finally:
            free(seen)
            free(todo)

    def __hash__(self):
        return self.hash

    def __eq__(self, object other):
        cdef Dfa one
        cdef int32_t n = self.n_states
        if not isinstance(other, Dfa):
            return NotImplemented
        one = <Dfa>other
        if n != one.n_states or self.hash != one.hash:
            return False
        return (
            memcmp(self.first, one.first, 4 * (<Py_ssize_t>n + 1)) == 0
            and memcmp(self.ends, one.ends, n) == 0
            and (self.first[n] == 0 or memcmp(self.arcs, one.arcs, self.first[n] * sizeof(Arc)) == 0)  # may be NULL
        )

    def __repr__(self):
        return f"Dfa({self.edges}, {self.accepting})"

    def __reduce__(self):
        return Dfa, (self.edges, self.accepting)


cdef Dfa made(int32_t n, Arcs* arcs, int32_t* first, uint8_t* ends):
    """An automaton that owns these arrays."""
    cdef Dfa found = Dfa.__new__(Dfa, OWN, OWN)
    found.take(n, arcs, first, ends)
    return found


cdef int add_arc(Arcs* arcs, int32_t first, int32_t last, int32_t target) except -1:
    if arcs.n == arcs.room:
        arcs.room = max(64, 2 * arcs.room)
        arcs.items = <Arc*>grown(arcs.items, <Py_ssize_t>arcs.room * sizeof(Arc))
    arcs.items[arcs.n] = Arc(first, last, target)
    arcs.n += 1
    return 0


# ---------------------------------------------------------------------- some strings, or all but some


cdef struct Branch:
    # A place in the tree of beginnings: its first continuation, and the next one of the place before it.
    int32_t point, below, beside
    bint ends


def of_texts(object texts, bint others):
    """Exactly these strings; or, if ``others``, every string but these.

    Takes time in the texts' length: the tree of their beginnings, and one state for whatever has left it.
    """
    cdef Branch* tree = NULL
    cdef Arcs arcs = Arcs(NULL, 0, 0)
    cdef int32_t* first = NULL
    cdef uint8_t* ends = NULL
    cdef int32_t n = 1, room = 256, q, place, next, before, point, away
    cdef str text
    cdef Dfa found
    tree = <Branch*>grown(NULL, room * sizeof(Branch))
    try:
        tree[0] = Branch(0, 0, 0, False)
        for text in texts:
            q = 0
            for point in text:
                before, next = -1, tree[q].below
                while next and tree[next].point < point:
                    before, next = next, tree[next].beside
                if not next or tree[next].point != point:
                    if n == room:
                        if room >= MOST_STATES:
                            raise MemoryError()
                        room *= 2
                        tree = <Branch*>grown(tree, <Py_ssize_t>room * sizeof(Branch))
                    tree[n] = Branch(point, 0, next, False)
                    if before < 0:
                        tree[q].below = n
                    else:
                        tree[before].beside = n
                    next = n
                    n += 1
                q = next
            tree[q].ends = True
        away = n
        first = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>n + 2))
        ends = <uint8_t*>grown(NULL, n + 1)
        for q in range(n):
            first[q] = arcs.n
            ends[q] = tree[q].ends != others
            place, point = tree[q].below, 0
            while place:
                if others and point < tree[place].point:
                    add_arc(&arcs, point, tree[place].point - 1, away)
                add_arc(&arcs, tree[place].point, tree[place].point, place)
                point = tree[place].point + 1
                place = tree[place].beside
            if others and point <= LAST_POINT:
                add_arc(&arcs, point, LAST_POINT, away)
        first[n] = arcs.n
        if others:
            add_arc(&arcs, 0, LAST_POINT, away)
            ends[away] = 1
            n += 1
            first[n] = arcs.n
        found = made(n, &arcs, first, ends)
        arcs.items, first, ends = NULL, NULL, NULL
        return found
    finally:
        free(tree)
        free(arcs.items)
        free(first)
        free(ends)


# ---------------------------------------------------------------------- tables


def reduced(object table, object accepting, object classes):
    """The automaton of a table of states and classes of characters.

    Parameters
    ----------
    table : for each state the next one by class; of one length
    accepting : states in which the string may end
    classes : for each class its ranges (first, last) of code points; no two overlap
    """
    cdef int32_t n = <int32_t>len(table), width = <int32_t>len(classes), q = 0, k, target
    cdef int32_t* rows = NULL
    cdef uint8_t* ends = NULL
    if not 0 < len(table) < MOST_STATES or not 0 < len(classes) <= LAST_POINT + 1:
        raise ValueError(f"table: expected states and classes, got {len(table)} and {len(classes)}")
    try:
        rows = <int32_t*>grown(NULL, 4 * <Py_ssize_t>n * width)
        ends = <uint8_t*>grown(NULL, n)
        memset(ends, 0, n)
        for row in table:
            if q >= n or len(row) != width:
                raise ValueError(f"table: expected {n} rows of {width}, got others")
            k = 0
            for target in row:
                if not 0 <= target < n or k >= width:
                    raise ValueError(f"table: expected states below {n}, got {target}")
                rows[<Py_ssize_t>q * width + k] = target
                k += 1
            if k != width:
                raise ValueError(f"table: expected {n} rows of {width}, got others")
            q += 1
        if q != n:
            raise ValueError(f"table: expected {n} rows of {width}, got others")
        for target in accepting:
            if not 0 <= target < n:
                raise ValueError(f"accepting: expected states below {n}, got {target}")
            ends[target] = 1
        return of_table(rows, n, ends, classes)
    finally:
        free(rows)
        free(ends)


cdef int by_first(const void* a, const void* b) noexcept nogil:
    return ((<const Arc*>a).first > (<const Arc*>b).first) - ((<const Arc*>a).first < (<const Arc*>b).first)


cdef Dfa of_table(const int32_t* rows, int32_t n, const uint8_t* accepting, object classes):
    """The same of arrays: ``rows`` (n, classes), ``accepting`` (n,)."""
    cdef Arcs ranges = Arcs(NULL, 0, 0), arcs = Arcs(NULL, 0, 0)
    cdef int32_t width = <int32_t>len(classes), k = 0, q, i, t, kept, low, high, before = -1
    cdef int32_t* block = NULL
    cdef int32_t* sample = NULL
    cdef uint8_t* live = NULL
    cdef int32_t* number = NULL
    cdef int32_t* order = NULL
    cdef int32_t* first = NULL
    cdef uint8_t* ends = NULL
    cdef Dfa found
    try:
        for pairs in classes:  # all ranges in ascending order, each with its class
            if k >= width:
                raise ValueError("classes: expected a sequence that stays as it is")
            for low, high in pairs:
                if not 0 <= low <= high <= LAST_POINT:
                    raise ValueError(f"classes: expected ranges of code points, got {(low, high)}")
                add_arc(&ranges, low, high, k)
            k += 1
        if ranges.n:
            qsort(ranges.items, ranges.n, sizeof(Arc), by_first)
        for i in range(ranges.n):
            if ranges.items[i].first <= before:
                raise ValueError(f"classes: expected ranges that do not overlap, got {ranges.items[i].first} twice")
            before = ranges.items[i].last
        block = <int32_t*>grown(NULL, 4 * <Py_ssize_t>n)
        sample = <int32_t*>grown(NULL, 4 * <Py_ssize_t>n)
        number = <int32_t*>grown(NULL, 4 * <Py_ssize_t>n)
        order = <int32_t*>grown(NULL, 4 * <Py_ssize_t>n)
        live = <uint8_t*>calloc(n, 1)
        if not live:
            raise MemoryError()
        merge(rows, n, width, accepting, block, sample)
        mark_live(rows, n, width, accepting, live)
        first = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>n + 1))
        ends = <uint8_t*>grown(NULL, n)
        for q in range(n):
            number[q] = -1
        number[block[0]], order[0], kept, i, first[0] = 0, sample[block[0]], 1, 0, 0
        while i < kept and live[0]:  # grows while it is read
            q = order[i]
            first[i] = arcs.n
            ends[i] = accepting[q]
            for k in range(ranges.n):
                t = rows[<Py_ssize_t>q * width + ranges.items[k].target]
                if not live[t]:
                    continue
                t = block[t]
                if number[t] < 0:
                    number[t], order[kept] = kept, sample[t]
                    kept += 1
                low, high, t = ranges.items[k].first, ranges.items[k].last, number[t]
                if arcs.n > first[i] and arcs.items[arcs.n - 1].target == t and arcs.items[arcs.n - 1].last + 1 == low:
                    arcs.items[arcs.n - 1].last = high
                else:
                    add_arc(&arcs, low, high, t)
            i += 1
        if not live[0]:
            ends[0] = 0
        first[kept] = arcs.n
        found = made(kept, &arcs, first, ends)
        arcs.items, first, ends = NULL, NULL, NULL
        return found
    finally:
        free(ranges.items)
        free(arcs.items)
        free(block)
        free(sample)
        free(live)
        free(number)
        free(order)
        free(first)
        free(ends)


cdef int merge(
    const int32_t* rows, int32_t n, int32_t width, const uint8_t* accepting, int32_t* block, int32_t* sample,
) except -1:
    """A number for each state, one for all that accept the same strings; and a state of each number.

    Automata that count take as many rounds as they count, and have hardly any equal states: after `MERGE_WORK`
    every state stays what it is.
    """
    cdef int32_t size = 16, q, k, n_blocks = 0, slot, other
    cdef int32_t* table
    cdef int32_t* new
    cdef const int32_t* row
    cdef const int32_t* of_other
    cdef uint64_t h
    cdef bint same
    while size < 2 * n:
        size *= 2
    table = <int32_t*>malloc(4 * <Py_ssize_t>size)
    new = <int32_t*>malloc(4 * <Py_ssize_t>n)
    try:
        if not (table and new):
            raise MemoryError()
        for q in range(n):
            block[q] = accepting[q]
            n_blocks |= 1 << accepting[q]
        n_blocks = 2 if n_blocks == 3 else 1
        for _ in range(1 + MERGE_WORK // (<int64_t>n * width)):
            memset(table, 0xFF, 4 * <Py_ssize_t>size)
            k = 0
            for q in range(n):
                row = rows + <Py_ssize_t>q * width
                h = block[q]
                for slot in range(width):
                    h = (h ^ <uint64_t>block[row[slot]]) * <uint64_t>0x9E3779B97F4A7C15
                    h ^= h >> 29
                slot = <int32_t>(mixed(h) & <uint64_t>(size - 1))
                while True:
                    other = table[slot]
                    if other < 0:
                        table[slot] = q
                        sample[k] = q
                        new[q] = k
                        k += 1
                        break
                    if block[other] == block[q]:
                        of_other = rows + <Py_ssize_t>other * width
                        same = alike(row, of_other, block, width)
                        if same:
                            new[q] = new[other]
                            break
                    slot = (slot + 1) & (size - 1)
            memcpy(block, new, 4 * <Py_ssize_t>n)
            if k == n_blocks:
                return 0
            n_blocks = k
        for q in range(n):
            block[q] = sample[q] = q
        return 0
    finally:
        free(table)
        free(new)


cdef inline bint alike(const int32_t* a, const int32_t* b, const int32_t* block, int32_t width) noexcept:
    cdef int32_t k
    for k in range(width):
        if block[a[k]] != block[b[k]]:
            return False
    return True


cdef int mark_live(const int32_t* rows, int32_t n, int32_t width, const uint8_t* accepting, uint8_t* live) except -1:
    """The states from which an accepting one can be reached."""
    cdef Py_ssize_t i, n_edges = <Py_ssize_t>n * width
    cdef int32_t q, left = 0
    cdef int32_t* first = <int32_t*>calloc(n + 2, 4)   # edges by target
    cdef int32_t* sources = <int32_t*>malloc(4 * (n_edges + 1))
    cdef int32_t* todo = <int32_t*>malloc(4 * <Py_ssize_t>n)
    try:
        if not (first and sources and todo):
            raise MemoryError()
        for i in range(n_edges):
            first[rows[i] + 2] += 1
        for q in range(n):
            first[q + 2] += first[q + 1]
        for i in range(n_edges):
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
        return 0
    finally:
        free(first)
        free(sources)
        free(todo)
