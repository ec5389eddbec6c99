"""Byte automata under construction: states, edges from state to state, and characters as edges.

The operation of an edge has a condition on a count (ENOUGH: count >= least of the source; MORE: the new count <= most
of the target) and the new count (RESET, KEEP, NEXT, ONE).
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from oxillama._kernels.grammar.dfa cimport Arc, Arcs, add_arc
from oxillama._kernels.grammar.network cimport (
    BYTES, CALLS, COUNT_BITS, ENOUGH, EPSILON, FINAL, KEEP, KINDS, MORE, NEXT, ONE, RESET, Edge, List, Program, State,
    add_edge,
)
from oxillama._kernels.grammar.registers cimport REGISTER

from oxillama.errors import GrammarError


# UTF-8 beyond ASCII, by the number of bytes: code points, continuation bytes, and the leading bits of the first byte.
cdef int32_t[3] FIRST_POINT = [0x80, 0x800, 0x10000]
cdef int32_t[3] LAST_POINT = [0x7FF, 0xFFFF, 0x10FFFF]
cdef int32_t[3] CONTINUED = [1, 2, 3]
cdef int32_t[3] LEAD = [0xC0, 0xE0, 0xF0]
cdef int32_t[2] BEYOND = [0x80, 0xE000]   # surrogates have no bytes
cdef int32_t[2] BEYOND_LAST = [0xD7FF, 0x10FFFF]


cdef class Automata(Program):
    """States and edges, numbered in the order in which they are added."""

    def __cinit__(self):
        self.labels = {}

    cdef int32_t new(self) except -1:
        if self.n_states >= self.most_states:
            raise GrammarError(f"grammar: expected at most {self.most_states} states, got more")
        self.make_room(1)
        self.rtn[self.n_states] = State(0, 0, 0, 0)
        self.n_states += 1
        return self.n_states - 1

    cdef int add(self, int kind, int32_t source, int32_t what, int32_t op, int32_t target) except -1:
        return add_edge(&self.edges[kind], Edge(source, what, op, target))

    cdef int32_t label(self, const uint8_t* taken) except -1:
        """The number of a set of bytes: 256 bits, the lowest first."""
        cdef bytes bits = taken[:32]
        found = self.labels.get(bits)
        if found is None:
            found = self.labels[bits] = len(self.labels)
        return found

    cdef int32_t nonempty(self, int32_t start) except -1:
        """A new start state without epsilon edges: it copies the other edges of all states reached by epsilon edges."""
        cdef int32_t fresh = self.new(), q, i, kind, count
        cdef Edge edge
        cdef set seen = {start}
        cdef list todo = [start]
        while todo:
            q = todo.pop()
            for kind in range(EPSILON):
                for i in range(self.edges[kind].first[q], self.edges[kind].first[q + 1]):
                    edge = self.edges[kind].items[i]
                    count = ONE if edge.op & COUNT_BITS == NEXT else RESET
                    op = edge.op if edge.op & REGISTER else edge.op & MORE | count
                    self.add(kind, fresh, edge.what, op, edge.target)
            for i in range(self.edges[EPSILON].first[q], self.edges[EPSILON].first[q + 1]):
                edge = self.edges[EPSILON].items[i]
                if (not edge.op & ENOUGH or self.rtn[q].least == 0) and edge.target not in seen:
                    seen.add(edge.target)
                    todo.append(edge.target)
        return fresh

    # ------------------------------------------------------------------ left recursion

    cdef int without_left_recursion(self, list starts) except -1:
        """Rewrites the subnetworks that can call themselves before they read a byte.

        In a cycle of such subnetworks, every match of a goal A begins with a match of some subnetwork B of the cycle
        that itself begins without a call into the cycle. B then begins every subnetwork C that starts by calling B, and
        so on up to A: the left-corner transform (Rosenkrantz and Lewis, 1970). Each goal gets a copy of the cycle's
        bodies, in which the end of B leads to the state that C returns to after its call of B.

        ``starts``: the start state of each subnetwork, changed in place. Edges are sorted, before and after.
        """
        cdef list first_calls = [self.callees(start) for start in starts]
        cdef list found = cycles(first_calls) if any(first_calls) else []
        for cycle in found:
            bodies = {number: self.body(starts[number]) for number in cycle}
            for goal, start in [(goal, self.copy_for_goal(goal, bodies, starts)) for goal in cycle]:
                starts[goal] = start
        return self.index() if found else 0

    cdef list callees(self, int32_t q):
        """The subnetworks of this piece that a state calls."""
        cdef List* calls = &self.edges[CALLS]
        cdef int32_t i
        return [calls.items[i].what for i in range(calls.first[q], calls.first[q + 1]) if calls.items[i].what >= 0]

    cdef list body(self, int32_t start):
        """The states of a subnetwork without its start, to which no edge leads."""
        cdef list found = [start]
        cdef set seen = {start}
        cdef int32_t q, i, kind, target
        for q in found:  # the list grows in the loop
            for kind in range(KINDS):
                for i in range(self.edges[kind].first[q], self.edges[kind].first[q + 1]):
                    target = self.edges[kind].items[i].target
                    if target not in seen:
                        seen.add(target)
                        found.append(target)
        return found[1:]

    cdef int32_t copy_for_goal(self, int32_t goal, dict bodies, list starts) except -1:
        """The start state of a copy of a cycle's bodies that matches ``goal``."""
        cdef int32_t start = self.new(), q, fresh, i, kind, other
        cdef Edge edge
        cdef dict copy = {}
        for body in bodies.values():
            for q in body:
                fresh = copy[q] = self.new()
                self.rtn[fresh] = self.rtn[q]
                self.rtn[fresh].flags = 0
        for number, body in bodies.items():
            for q in (*body, starts[number]):
                fresh = copy.get(q, start)
                for kind in range(KINDS):
                    for i in range(self.edges[kind].first[q], self.edges[kind].first[q + 1]):
                        edge = self.edges[kind].items[i]
                        if kind != CALLS or fresh != start or edge.what not in bodies:
                            self.add(kind, fresh, edge.what, edge.op, copy[edge.target])
                if self.rtn[q].flags & FINAL:
                    self.rtn[fresh].flags = FINAL if number == goal else 0
                    for caller in bodies:
                        other = starts[caller]
                        for i in range(self.edges[CALLS].first[other], self.edges[CALLS].first[other + 1]):
                            edge = self.edges[CALLS].items[i]
                            if edge.what == number:
                                self.add(EPSILON, fresh, 0, edge.op, copy[edge.target])
        return start

    # ------------------------------------------------------------------ characters
    # Edges for each number of bytes in UTF-8, and states between them. Characters with the same remaining bytes share
    # these states.

    cdef bint character(
        self, object ranges, int32_t start, int32_t end, dict tails, int32_t asks=0, int32_t makes=RESET,
        tuple inside=None
    ) except -1:
        """`characters` for (first, last) pairs, ascending and disjoint."""
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
        """Adds a character of some ranges, from ``start`` to ``end``; returns whether a text can have such a character.

        ``tails`` has the states made so far inside characters. ``asks`` and ``makes`` are the condition on a count and
        the new count; states inside a character then carry the count and are made by `counting` with ``inside``.
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
                for k in range(2):  # below and above the surrogates
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
        """Appends to ``found`` (label, state) pairs for the first bytes of the code points from ``first`` to ``last``,
        ``left`` bytes following them. ``lead``: the leading bits of a first byte.
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
        """The state before the last ``left`` bytes of a character, whose bits lie in the ranges."""
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
        """A new state. ``inside``: least, most, its fewest characters to an end, their maximum over all states."""
        cdef int32_t state = self.new()
        least, most, needed, furthest = inside
        self.rtn[state] = State(0, least, -1, 0)
        if most is not None:
            # a bound of 0 must come without a least: a state with a least and a bound of 0 is a register
            self.rtn[state] = State(0, least if most > needed else 0, max(0, most - needed), furthest - needed)
        return state


@cython.wraparound(True)
cdef list cycles(list graph):
    """The strongly connected components that contain a cycle (Tarjan, 1972), without recursion."""
    cdef dict index = {}
    cdef dict low = {}  # higher than all numbers, once the component is complete
    cdef list stack = [], found = []
    for root in range(len(graph)):
        path = [] if root in index else [(root, iter(graph[root]))]
        while path:
            node, rest = path[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
            below = next(rest, None)
            if below is not None and below not in index:
                path.append((below, iter(graph[below])))
            elif below is not None:
                low[node] = min(low[node], low[below])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    component = [stack.pop()]
                    while component[-1] != node:
                        component.append(stack.pop())
                    low.update(dict.fromkeys(component, len(graph)))
                    if len(component) > 1 or node in graph[node]:
                        found.append(component)
    return found
