"""Deterministic finite automata over code points: the strings of a regular language.

An automaton is a node of a grammar's rules, so it is compared and hashed by its contents. States are numbers, 0 is
the start.
"""

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memset

from oxillama._kernels.grammar.memory cimport grown, mixed, sort_by

cdef enum:
    LAST_POINT = 0x10FFFF
    MOST_STATES = 1 << 24
    LARGE = 8           # approximate number of network states for a state with characters beyond ASCII

cdef object OWN = object()  # placeholder for edges: arrays are given afterwards

cdef class Dfa:
    """The strings of a regular language, as a deterministic automaton over code points. State 0 is the start.

    Args:
        edges: for each state its (first, last, target) ranges, ascending and disjoint
        accepting: states in which the string may end

    Raises:
        ValueError: edges that are not ascending, or that lead to a missing state.
    """

    def __cinit__(self, object edges: Sequence[Sequence[tuple[int, int, int]]], object accepting: Iterable[int]):
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
        """Takes ownership of these arrays."""
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
    def edges(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """Each state's (first, last, target) ranges, ascending and disjoint."""
        cdef int32_t q, i
        return tuple([
            tuple([
                (self.arcs[i].first, self.arcs[i].last, self.arcs[i].target)
                for i in range(self.first[q], self.first[q + 1])
            ])
            for q in range(self.n_states)
        ])

    @property
    def accepting(self) -> frozenset[int]:
        """The states in which the string may end."""
        cdef int32_t q
        return frozenset([q for q in range(self.n_states) if self.ends[q]])

    def size(self) -> int:
        """The approximate number of network states that the automaton makes."""
        cdef int32_t q, found = 0
        for q in range(self.n_states):
            found += 1 if self.is_ascii(q) else LARGE
        return found

    def accepts_empty(self) -> bool:
        """Whether the string may be empty."""
        return self.ends[0] != 0

    def holds_text(self) -> bool:
        """Whether the automaton accepts a text; strings with surrogates are no texts."""
        return self.to_the_end()[0] is not None

    def to_the_end(self, object spelled: int | None = None) -> list[int | None]:
        """Each state's fewest characters to an accepting state; None if no path leads to one.

        ``spelled``: only arcs into states below this number complete a character; None: all arcs do.
        """
        if spelled is None:
            self.needs = self.needs or self.fewest(self.n_states)
            return self.needs
        if not 0 <= spelled <= self.n_states:
            raise ValueError(f"spelled: expected 0 to {self.n_states} states, got {spelled}")
        return self.fewest(spelled)

    cdef list fewest(self, int32_t whole):
        cdef int32_t n = self.n_states, n_arcs = self.first[self.n_states], q, i, depth = 0, n_here = 0, n_next
        cdef int32_t* needs = <int32_t*>grown(NULL, 4 * (4 * <Py_ssize_t>n + 2 + 5 * <Py_ssize_t>n_arcs))
        cdef int32_t* first = needs + n         # arcs by target
        cdef int32_t* into = first + n + 2
        cdef int32_t* target = into + n_arcs
        cdef int32_t* source = target + n_arcs
        cdef int32_t* here = source + n_arcs
        cdef int32_t* next = here + n_arcs + n
        try:
            for q in range(n):
                needs[q] = -1
                if self.ends[q]:
                    here[n_here] = q
                    n_here += 1
                for i in range(self.first[q], self.first[q + 1]):
                    source[i], target[i] = q, n if is_surrogate(&self.arcs[i]) else self.arcs[i].target
            sort_by(target, n_arcs, n + 1, first, into)
            while n_here:
                n_next = 0
                while n_here:
                    n_here -= 1
                    q = here[n_here]
                    if needs[q] >= 0:
                        continue
                    needs[q] = depth
                    for i in range(first[q], first[q + 1]):
                        if needs[source[into[i]]] >= 0:
                            continue
                        if q < whole:
                            next[n_next] = source[into[i]]
                            n_next += 1
                        else:
                            here[n_here] = source[into[i]]
                            n_here += 1
                here, next, n_here = next, here, n_next
                depth += 1
            return [needs[q] if needs[q] >= 0 else None for q in range(n)]
        finally:
            free(needs)

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


cdef inline bint is_surrogate(const Arc* arc) noexcept:
    """Whether an arc has only lone surrogates, which no UTF-8 text has."""
    return 0xD800 <= arc.first and arc.last <= 0xDFFF


cdef Dfa made(int32_t n, Arcs* arcs, int32_t* first, uint8_t* ends):
    """An automaton that takes ownership of these arrays."""
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


def of_texts(object texts: Sequence[str], bint others) -> Dfa:
    """An automaton of exactly these strings; or, if ``others``, of every string but these.

    Takes time in the texts' length: it is the tree of their prefixes, and one state for all strings that left the tree.
    """
    cdef list tree = [{}], edges = []  # the continuations of each prefix, by their first code points
    cdef set ends = set()
    cdef int32_t q, point, start, away
    cdef str text
    cdef dict below
    for text in texts:
        q = 0
        for point in text:
            below = tree[q]
            if point not in below:
                below[point] = len(tree)
                tree.append({})
            q = below[point]
        ends.add(q)
    away = <int32_t>len(tree)
    for below in tree:
        row, start = [], 0
        for point in sorted(below):
            if others and start < point:
                row.append((start, point - 1, away))
            row.append((point, point, below[point]))
            start = point + 1
        if others and start <= LAST_POINT:
            row.append((start, LAST_POINT, away))
        edges.append(row)
    if others:
        edges.append([(0, LAST_POINT, away)])
    return Dfa(edges, [q for q in range(<int32_t>len(edges)) if (q in ends) != others])
