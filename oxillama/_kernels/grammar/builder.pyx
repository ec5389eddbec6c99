"""Rules to a recursive transition network (RTN): byte automata that call each other, as flat arrays.

A subnetwork is the automaton of one called rule. Its states have byte edges, epsilon edges, token edges and calls of
other subnetworks, each with the state to return to. A subnetwork never matches the empty string: a call of one that
could has an epsilon edge beside it. So only a subnetwork that begins with a call of itself, directly or not, could be
called for ever without reading anything; `left_recursion` rewrites those.

`x{m,n}` that would need many copies is one state with a count. An automaton of strings of bounded length carries the
count of their characters through all its states. Each edge says what it asks of the count (ENOUGH: it is at least the
source's least; MORE: what it becomes is at most the target's most) and what it makes of it (RESET, KEEP, NEXT, ONE).
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from oxillama._kernels.grammar.dfa cimport Arc, Arcs, Dfa, add_arc
from oxillama._kernels.grammar.memory cimport grown
from oxillama._kernels.grammar.registers cimport (
    ALL, ARGUMENT, AT_LEAST, BEGIN, BY_TEXT, END, END_JSON, FEWER, KIND, MARK, MARKS, REGISTER, SPARE,
)

import numpy as np

from oxillama.errors import GrammarError
from oxillama._kernels.grammar.nodes import INLINE_SIZE, is_nullable, repeat_copies, size
from oxillama.grammar.left_recursion import State, cycles, remove_left_recursion
from oxillama.grammar.counts import to_the_end
from oxillama.grammar.rules import Alt, Chars, Counted, Distinct, Ref, Repeat, Seq, Text

cdef enum:  # kinds of edges
    BYTES = 0
    TOKENS = 1
    CALLS = 2
    EPSILON = 3
    KINDS = 4

cdef enum:  # of edges, as parser_states.pyx reads them
    MORE = 1
    ENOUGH = 2
    COUNT_BITS = 12
    RESET = 0
    KEEP = 4
    NEXT = 8
    ONE = 12

cdef enum:  # of states, as parser_states.pyx reads them
    FINAL = 1
    CONSUMES = 2
    PURE_FINAL = 4
    ENDS_ALWAYS = 8
    ENDS_IF_ENOUGH = 16

cdef enum:
    UNIT = 1 << 29
    MAX_TOLD_APART = 1 << 22  # members that are told apart
    MAX_INLINE_DEPTH = 80  # of nodes and copied rules inside each other; deeper rules are called


# UTF-8 beyond ASCII: the points of each number of bytes, the bytes after the first, and the bits that mark the first.
cdef int32_t[3] FIRST_POINT = [0x80, 0x800, 0x10000]
cdef int32_t[3] LAST_POINT = [0x7FF, 0xFFFF, 0x10FFFF]
cdef int32_t[3] CONTINUED = [1, 2, 3]
cdef int32_t[3] LEAD = [0xC0, 0xE0, 0xF0]
cdef int32_t[2] BEYOND = [0x80, 0xE000]   # surrogates have no bytes
cdef int32_t[2] BEYOND_LAST = [0xD7FF, 0x10FFFF]


cdef struct Edge:
    int32_t source, what, op, target


cdef struct List:
    # Edges; after `sorted_by`, those of key k are items[first[k]] ... items[first[k + 1] - 1].
    Edge* items
    int32_t* first
    int32_t n, room


cdef class Builder:
    """Builds one piece of a network.

    Parameters
    ----------
    rules : nodes by name
    calls : oxillama.grammar.analysis.Calls
    nullable : names of the rules that match the empty text
    unit : the number of a name that has no rule; None: there are none
    most : states it may have; GrammarError beyond
    """

    cdef List[4] edges
    cdef int32_t n, room, most_states
    cdef int32_t* least
    cdef int32_t* most        # -1: no bound; with least = most = 0: no count
    cdef int32_t* slack
    cdef uint8_t* final
    cdef int32_t[256] byte_label
    cdef dict rules, sizes, number_of, labels
    cdef object called, unit
    cdef set nullable
    cdef list bodies, token_sets
    # Of each `Distinct`: (marked subnetworks, node, whether all is marked, gates, states from which more may come).
    cdef list gates
    cdef int depth
    cdef int32_t slack_of_registers  # of the `Distinct` under way

    def __cinit__(self, dict rules not None, object calls, set nullable not None, object unit, int32_t most):
        cdef int i
        if not 0 < most < UNIT:
            raise ValueError(f"most: expected 1 to 2**29 - 1 states, got {most}")
        try:
            self.rules, self.called, self.sizes = rules, calls.rules, calls.sizes
        except AttributeError as error:
            raise TypeError(f"calls: expected Calls, got {type(calls)}") from error
        self.nullable, self.unit, self.most_states = nullable, unit, most
        self.number_of, self.labels = {}, {}
        self.bodies, self.token_sets, self.gates = [], [], []
        for i in range(256):
            self.byte_label[i] = -1

    def __dealloc__(self):
        cdef int kind
        for kind in range(KINDS):
            free(self.edges[kind].items)
            free(self.edges[kind].first)
        free(self.least)
        free(self.most)
        free(self.slack)
        free(self.final)

    def build(self, str root not None):
        """The arrays of the piece, by the names that `Program` has for them.

        GrammarError where no text matches the root, or the states are too many.
        """
        cdef list starts = []
        cdef int32_t start, end
        if root not in self.rules:
            raise ValueError(f"root: expected the name of a rule, got {root!r}")
        self.subnetwork(root)
        while len(starts) < len(self.bodies):
            start = self.new()
            end = self.node(self.bodies[len(starts)], start)
            self.final[end] = 1
            starts.append(start)
        self.index()
        starts = [self.nonempty(start) for start in starts]
        self.index()
        self.without_left_recursion(starts)
        found = self.arrays(starts, root)
        found["token_sets"] = tuple(self.token_sets)
        found["accepts_empty"] = root in self.nullable
        return found

    # ------------------------------------------------------------------ states and edges

    cdef int32_t new(self) except -1:
        cdef int32_t room
        if self.n >= self.most_states:
            raise GrammarError(f"grammar: expected at most {self.most_states} states, got more")
        if self.n == self.room:
            room = max(64, 2 * self.room)
            self.least = <int32_t*>grown(self.least, 4 * <Py_ssize_t>room)
            self.most = <int32_t*>grown(self.most, 4 * <Py_ssize_t>room)
            self.slack = <int32_t*>grown(self.slack, 4 * <Py_ssize_t>room)
            self.final = <uint8_t*>grown(self.final, room)
            self.room = room
        self.least[self.n] = self.most[self.n] = self.slack[self.n] = 0
        self.final[self.n] = 0
        self.n += 1
        return self.n - 1

    cdef int add(self, int kind, int32_t source, int32_t what, int32_t op, int32_t target) except -1:
        cdef List* edges = &self.edges[kind]
        if edges.n == edges.room:
            edges.room = max(64, 2 * edges.room)
            edges.items = <Edge*>grown(edges.items, <Py_ssize_t>edges.room * sizeof(Edge))
        edges.items[edges.n] = Edge(source, what, op, target)
        edges.n += 1
        return 0

    cdef int32_t label(self, object bits) except -1:
        """The number of a set of bytes."""
        found = self.labels.get(bits)
        if found is None:
            found = self.labels[bits] = len(self.labels)
        return found

    cdef int32_t label_of(self, const uint8_t* taken) except -1:
        """The same of 256 bits, the lowest first."""
        return self.label(int.from_bytes(taken[:32], "little"))

    cdef int32_t subnetwork(self, str name) except? -1:
        """The number of a rule's subnetwork; of a unit, -1 less its number."""
        if self.unit is not None and name not in self.rules:
            return -1 - <int32_t>self.unit(name)
        found = self.number_of.get(name)
        if found is None:
            found = self.number_of[name] = len(self.bodies)
            self.bodies.append(self.rules[name])
        return found

    cdef bint is_called(self, object node):
        return node.name in self.called or node.name not in self.rules

    # ------------------------------------------------------------------ nodes
    # Each of these adds a way from ``start`` on and returns the state where the node has been matched.
    # ``start`` may have other edges, and is never come back to.

    cdef int32_t node(self, object node, int32_t start) except -1:
        cdef int32_t end
        cdef object kind = type(node)
        self.depth += 1
        if kind is Text:
            end = self.text(node.text, start)
        elif kind is Chars:
            end = self.new()
            self.character(node.ranges, start, end, {})
        elif kind is Seq:
            end = start
            for item in node.items:
                end = self.node(item, end)
        elif kind is Alt:
            end = self.new()
            for item in node.items:
                self.add(EPSILON, self.node(item, start), 0, RESET, end)
        elif kind is Ref:
            end = self.ref(node, start)
        elif kind is Repeat:
            end = self.repeat(node, start)
        elif kind is Counted:
            end = self.counted_dfa(node, start)
        else:
            end = (self.dfa(node, start) if kind is Dfa else self.distinct(node, start) if kind is Distinct
                   else self.tokens(node, start))
        self.depth -= 1
        return end

    cdef int32_t text(self, str text, int32_t start) except -1:
        cdef bytes data
        cdef const uint8_t* at
        cdef Py_ssize_t i
        cdef int32_t end
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return self.new()  # surrogates are in no text
        at = data
        for i in range(len(data)):
            end = self.new()
            if self.byte_label[at[i]] < 0:
                self.byte_label[at[i]] = self.label((<object>1) << at[i])
            self.add(BYTES, start, self.byte_label[at[i]], RESET, end)
            start = end
        return start

    cdef int32_t tokens(self, object node, int32_t start) except -1:
        cdef int32_t end = self.new()
        if not node.ids and not node.negated:
            return end  # no token is in the set
        if node not in self.token_sets:
            self.token_sets.append(node)
        self.add(TOKENS, start, self.token_sets.index(node), RESET, end)
        return end

    cdef int32_t ref(self, object node, int32_t start) except -1:
        cdef int32_t end
        if not self.is_called(node) and self.depth <= MAX_INLINE_DEPTH:
            return self.node(self.rules[node.name], start)
        end = self.new()
        self.add(CALLS, start, self.subnetwork(node.name), RESET, end)
        if node.name in self.nullable:
            self.add(EPSILON, start, 0, RESET, end)
        return end

    cdef int32_t dfa(self, Dfa node, int32_t start) except -1:
        """The automaton's states, one by one, and the states inside the characters between them."""
        cdef int32_t base = self.n, end, q, i, k, target
        cdef Arcs same = Arcs(NULL, 0, 0)
        cdef dict tails = {}
        for _ in range(node.n_states):
            self.new()
        end = self.new()
        self.add(EPSILON, start, 0, RESET, base)
        try:
            for q in range(node.n_states):
                for i in range(node.first[q], node.first[q + 1]):
                    target = node.arcs[i].target
                    for k in range(node.first[q], i):
                        if node.arcs[k].target == target:
                            break
                    else:
                        same.n = 0
                        for k in range(i, node.first[q + 1]):
                            if node.arcs[k].target == target:
                                add_arc(&same, node.arcs[k].first, node.arcs[k].last, target)
                        self.characters(&same, base + q, base + target, tails)
                if node.ends[q]:
                    self.add(EPSILON, base + q, 0, RESET, end)
        finally:
            free(same.items)
        return end

    cdef int character(
        self, object ranges, int32_t start, int32_t end, dict tails, int32_t asks=0, int32_t makes=RESET,
        tuple inside=None
    ) except -1:
        """As `characters`, for (first, last) pairs, ascending and disjoint."""
        cdef Arcs arcs = Arcs(NULL, 0, 0)
        try:
            for first, last in ranges:
                add_arc(&arcs, first, last, 0)
            self.characters(&arcs, start, end, tails, asks, makes, inside)
        finally:
            free(arcs.items)
        return 0

    cdef int characters(
        self, const Arcs* ranges, int32_t start, int32_t end, dict tails, int32_t asks=0, int32_t makes=RESET,
        tuple inside=None
    ) except -1:
        """A character of some ranges, from ``start`` to ``end``.

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
            self.add(BYTES, start, self.label_of(taken), asks | makes, end)
        if ranges.n == 0 or ranges.items[ranges.n - 1].last < 0x80:
            return 0
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
        finally:
            free(high.items)
        return 0

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
            found.append((self.label_of(taken[k]), targets[k]))
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

    cdef int32_t repeat(self, object node, int32_t start) except -1:
        cdef int32_t loop, end
        cdef list ends = []
        cdef Py_ssize_t i, least = node.least
        if node.most == 0:
            return start
        copies = repeat_copies(node, size(node.item, self.called, self.sizes))
        if copies is None:
            return self.counted(node, start)
        for i in range(copies if node.most is not None else least):
            if i >= least:
                ends.append(start)
            start = self.node(node.item, start)
        if node.most is None:
            loop = self.after_nothing(start)
            self.add(EPSILON, self.node(node.item, loop), 0, RESET, loop)
            return loop
        end = self.new()
        for source in (*ends, start):
            self.add(EPSILON, source, 0, RESET, end)
        return end

    cdef int32_t after_nothing(self, int32_t start) except -1:
        cdef int32_t state = self.new()
        self.add(EPSILON, start, 0, RESET, state)
        return state

    # ------------------------------------------------------------------ counts

    cdef int32_t counted(self, object node, int32_t start) except -1:
        """One state with a count; what it repeats is a character or a subnetwork of its own."""
        cdef int32_t loop = self.after_nothing(start), end = self.new()
        cdef dict tails = {}
        cdef tuple inside
        self.least[loop] = 0 if is_nullable(node.item, self.nullable) else node.least
        self.most[loop] = -1 if node.most is None else node.most
        self.add(EPSILON, loop, 0, ENOUGH | RESET, end)
        characters, spellings, others = self.split(node.item)
        inside = (self.least[loop], node.most, 1, 1)
        for chars in characters:
            self.character(chars.ranges, loop, loop, tails, MORE, NEXT, inside)
        for dfa in spellings:
            self.counted_spelling(dfa, loop, inside)
        if others:
            single = others[0] if len(others) == 1 else Alt(tuple(others))
            if isinstance(single, Ref):
                self.add(CALLS, loop, self.subnetwork(single.name), MORE | NEXT, loop)
            else:
                self.bodies.append(single)
                self.add(CALLS, loop, <int32_t>len(self.bodies) - 1, MORE | NEXT, loop)
        return end

    cdef tuple split(self, object node):
        """The alternatives of a node: single characters, automata that pass no state twice, others."""
        cdef list characters = [], spellings = [], others = [], todo = [node]
        cdef int budget = INLINE_SIZE
        while todo:
            node = todo.pop()
            if isinstance(node, Ref) and budget > 0 and not self.is_called(node):
                budget -= 1
                todo.append(self.rules[node.name])
            elif isinstance(node, Alt):
                todo += node.items
            elif isinstance(node, Chars):
                characters.append(node)
            elif isinstance(node, Text) and len(node.text) == 1:
                characters.append(Chars(((ord(node.text), ord(node.text)),)))
            elif isinstance(node, Dfa) and is_spelling(node):
                spellings.append(node)
            else:
                others.append(node)
        return characters, spellings, others

    cdef int counted_spelling(self, object dfa, int32_t loop, tuple inside) except -1:
        """An automaton that is left where it accepts: its states carry the count along."""
        cdef dict tails = {}, targets
        cdef list states = [
            loop if i == 0 or i in dfa.accepting else self.counting(inside) for i in range(len(dfa.edges))
        ]
        for state, edges in zip(states, dfa.edges):
            targets = {}
            for first, last, target in edges:
                targets.setdefault(states[target], []).append((first, last))
            for target, ranges in targets.items():
                asks, makes = MORE if state == loop else 0, NEXT if target == loop else KEEP
                self.character(ranges, state, target, tails, asks, makes, inside)
        return 0

    cdef int32_t counted_dfa(self, object node, int32_t start) except -1:
        """An automaton whose states carry the count of characters, each with its own bound.

        A state's bound is that of the whole less the characters that it needs to an end. So no bound is passed
        from which there is no end, and a count is far from all bounds if it is far from the lowest.
        """
        cdef list needs = to_the_end(node.dfa, node.whole), states = []
        cdef tuple rows = node.dfa.edges
        cdef int32_t end = self.new(), furthest = 1 + max([one for one in needs if one is not None], default=0)
        cdef int32_t needed, count, i
        cdef dict tails = {}, ranges
        for i in range(len(needs)):
            states.append(self.counting((node.least, node.most, needs[i] or 0, furthest)))
        self.add(EPSILON, start, 0, RESET, states[0])
        for i in range(len(needs)):
            ranges = {}
            for first, last, target in rows[i] if needs[i] is not None else ():
                if needs[target] is not None:
                    ranges.setdefault(target, []).append((first, last))
            for target, found in ranges.items():
                count = target < node.whole
                needed = needs[target] + count
                # from a state that needs no more than one character less, the count stays within its bound
                self.character(
                    found, states[i], states[target], tails, MORE if needed > needs[i] else 0, NEXT if count else KEEP,
                    (node.least, node.most, needed, furthest),
                )
        for accepting in node.dfa.accepting:
            self.add(EPSILON, states[accepting], 0, ENOUGH | RESET, end)
        return end

    cdef int32_t counting(self, tuple inside) except -1:
        """A new state, given the bounds, the fewest characters from it to an end, and the most of these of any."""
        cdef int32_t state = self.new()
        least, most, needed, furthest = inside
        self.least[state], self.most[state] = least, -1
        if most is not None:
            self.most[state] = max(0, most - needed)
            if self.most[state] == 0:  # the count is 0 here; with a least and no most it would be a register
                self.least[state] = 0
            self.slack[state] = furthest - needed
        return state

    # ------------------------------------------------------------------ members that are told apart

    cdef int32_t distinct(self, object node, int32_t start) except -1:
        """States with a register call what is told apart, and test and change the register by epsilon edges."""
        cdef int32_t most = -1 if node.most is None else node.most, bound = max(1, node.least, most), end = self.new()
        cdef int32_t at, i
        for place in node.places:
            for member in place:
                bound = max(bound, member.after, member.mark + 1, 0 if member.room is None else member.room)
        if bound >= MAX_TOLD_APART or not 0 <= node.marks < MAX_TOLD_APART:
            raise GrammarError(f"grammar: expected to tell at most {MAX_TOLD_APART - 1} members apart, got {bound} "
                               f"and {node.marks} that must come")
        self.slack_of_registers = node.marks << MARKS
        if any([member.by in ("text", "value") for place in node.places for member in place]):
            self.slack_of_registers |= BY_TEXT
        begins = [self.register(bound) for _ in node.places]
        ends = [self.register(bound) for _ in node.places]
        self.add(EPSILON, start, 0, RESET, begins[0])
        marked = {m.mark: self.callee(m.node) for place in node.places for m in place if m.by == "mark"}
        all_marked = all([member.by == "mark" for place in node.places for member in place])
        if all_marked:
            most = len(marked) if most < 0 else min(most, len(marked))
        gates = []
        self.gates.append((marked, node, all_marked, gates, ends))
        for i in range(len(node.places)):
            for member in node.places[i]:
                at = self.tested(begins[i], AT_LEAST, member.after, bound) if member.after else begins[i]
                if member.room is not None:
                    at = self.tested(at, SPARE, member.room, bound)
                self.member(member, at, ends[member.to], bound, node.may_run_out)
            at = self.tested(ends[i], FEWER, most, bound) if most >= 0 else ends[i]
            if node.separator is None:
                self.add(EPSILON, at, 0, KEEP, begins[i])
            else:
                self.add(CALLS, at, self.callee(node.separator), KEEP, begins[i])
            if node.ends[i]:
                at = self.register(bound)
                self.add(EPSILON, ends[i], 0, KEEP, at)
                gates.append(at)
                at = self.tested(at, ALL, 0, bound) if node.marks else at
                at = self.tested(at, AT_LEAST, node.least, bound) if node.least > 1 else at
                self.add(EPSILON, at, 0, RESET, end)
        return end

    cdef int member(self, object member, int32_t start, int32_t end, int32_t bound, bint may_run_out) except -1:
        """A member from ``start`` to ``end``."""
        cdef int32_t op = operation(BEGIN, may_run_out), at
        if member.by == "mark" or member.by == "nothing":
            op = operation(MARK, member.mark) if member.by == "mark" else KEEP
            at = end if member.rest is None else self.register(bound)
            self.add(CALLS, start, self.callee(member.node), op, at)
        else:
            at = self.register(bound)
            self.add(CALLS, start, self.callee(member.node), op, at)
            at = self.tested(at, END_JSON if member.by == "value" else END, 0, bound)
            if member.rest is None:
                self.add(EPSILON, at, 0, KEEP, end)
        if member.rest is not None:
            self.add(CALLS, at, self.callee(member.rest), KEEP, end)
        return 0

    cdef int32_t register(self, int32_t bound) except -1:
        """A new state whose count is a register."""
        cdef int32_t state = self.new()
        self.least[state], self.slack[state] = bound, self.slack_of_registers
        return state

    cdef int32_t tested(self, int32_t start, int32_t kind, int32_t argument, int32_t bound) except -1:
        """The state behind an operation on a register."""
        cdef int32_t state = self.register(bound)
        self.add(EPSILON, start, 0, operation(kind, argument), state)
        return state

    cdef int32_t callee(self, object node) except? -1:
        """The number of a subnetwork of the node's texts, none of which is empty."""
        if isinstance(node, Ref):
            return self.subnetwork(node.name)
        found = self.number_of.get(node)
        if found is None:
            found = self.number_of[node] = len(self.bodies)
            self.bodies.append(node)
        return found

    # ------------------------------------------------------------------ subnetworks that read something

    cdef int index(self) except -1:
        """Sort the edges by their sources."""
        cdef int kind
        for kind in range(KINDS):
            sort_edges(&self.edges[kind], self.n)
        return 0

    cdef int32_t nonempty(self, int32_t start) except -1:
        """A new start state without epsilon edges: it has the edges of all states that they lead to."""
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
                if (not edge.op & ENOUGH or self.least[q] == 0) and edge.target not in seen:
                    seen.add(edge.target)
                    todo.append(edge.target)
        return fresh

    cdef int without_left_recursion(self, list starts) except -1:
        """Rewrite the subnetworks that begin with a call of themselves; there are hardly ever any."""
        cdef int32_t q, kind, i
        cdef Edge edge
        cdef list graph = [], states
        cdef bint local = False
        for start in starts:
            q = start
            begins = [
                self.edges[CALLS].items[i].what
                for i in range(self.edges[CALLS].first[q], self.edges[CALLS].first[q + 1])
                if self.edges[CALLS].items[i].what >= 0
            ]
            graph.append(begins)
            local = local or len(begins) > 0
        if not local or not cycles(graph):
            return 0
        states = [State() for _ in range(self.n)]
        for kind in range(KINDS):
            for i in range(self.edges[kind].n):
                edge = self.edges[kind].items[i]
                states[edge.source].edges[kind].append((edge.what, edge.op, edge.target))
            self.edges[kind].n = 0
        for q in range(self.n):
            states[q].final = bool(self.final[q])
            if self.least[q] or self.most[q]:
                states[q].count = self.least[q], self.most[q], self.slack[q]
        remove_left_recursion(states, starts, self.most_states)
        while self.n < len(states):
            self.new()
        for q in range(self.n):
            self.final[q] = states[q].final
            self.least[q], self.most[q], self.slack[q] = states[q].count or (0, 0, 0)
            for kind in range(KINDS):
                for what, op, target in states[q].edges[kind]:
                    self.add(kind, q, what, op, target)
        self.index()
        return 0

    # ------------------------------------------------------------------ arrays

    cdef dict arrays(self, list starts, str root):
        """The states that texts can pass through, numbered anew."""
        cdef int32_t n = self.n, kept = 0, q, i, t, kind, what
        cdef int32_t* start_of = <int32_t*>malloc(4 * (len(starts) + 1))
        cdef uint8_t* live = <uint8_t*>calloc(n + 1, 1)
        cdef int32_t* alias = <int32_t*>malloc(4 * (<Py_ssize_t>n + 1))
        cdef int32_t* number = <int32_t*>malloc(4 * (<Py_ssize_t>n + 1))
        cdef int32_t* order = <int32_t*>malloc(4 * (<Py_ssize_t>n + 1))
        cdef Edge edge
        cdef int32_t[:, ::1] rows
        cdef int32_t[::1] first
        cdef dict found = {}
        try:
            if not (start_of and live and alias and number and order):
                raise MemoryError()
            for i in range(len(starts)):
                start_of[i] = starts[i]
            self.mark_live(start_of, <int32_t>len(starts), live)
            if not live[start_of[0]] and root not in self.nullable:
                raise GrammarError(f"grammar: no text matches the rule {root}")
            self.bound_marks(start_of, live)
            self.find_aliases(alias, live)
            for q in range(n):
                number[q] = -1
            number[start_of[0]] = 0
            order[0] = start_of[0]
            kept = 1
            i = 0
            while i < kept:  # grows while it is read
                kept = self.reach(order[i], alias, number, order, kept, start_of, live)
                i += 1
            for kind in range(KINDS):
                first_array, i = np.empty(kept + 1, np.int32), 0
                first = first_array
                rows_array = np.empty((self.edges[kind].n, 3), np.int32)
                rows = rows_array
                for q in range(kept):
                    first[q] = i
                    for t in range(self.edges[kind].first[order[q]], self.edges[kind].first[order[q] + 1]):
                        edge = self.edges[kind].items[t]
                        what = edge.what
                        if not self.passable(kind, &edge, start_of, live):
                            continue
                        if kind == CALLS:
                            what = number[start_of[what]] if what >= 0 else UNIT - 1 - what
                        rows[i, 0], rows[i, 1], rows[i, 2] = what, edge.op, number[alias[edge.target]]
                        i += 1
                first[kept] = i
                name = ("byte", "token", "calls", "epsilon")[kind]
                found[name + "_first"] = first_array
                found[name if kind >= CALLS else name + "_edges"] = rows_array[:i].copy()
            found["least"] = np.array([self.least[order[i]] for i in range(kept)], np.int32)
            found["most"] = np.array([self.most[order[i]] for i in range(kept)], np.int32)
            found["slack"] = np.array([self.slack[order[i]] for i in range(kept)], np.int32)
            final = bytes([self.final[order[i]] for i in range(kept)])
            found["flags"] = flags_of(final, found["least"], found)
            labels = b"".join([bits.to_bytes(32, "little") for bits in self.labels])
            found["labels"] = np.frombuffer(labels, np.uint8).reshape(-1, 32)
            found["start"] = 0
            return found
        finally:
            free(start_of)
            free(live)
            free(alias)
            free(number)
            free(order)

    cdef bint passable(self, int kind, const Edge* edge, const int32_t* start_of, const uint8_t* live) noexcept:
        """Whether a text can go along an edge."""
        return live[edge.target] and (kind != CALLS or edge.what < 0 or live[start_of[edge.what]])

    cdef int mark_live(self, const int32_t* start_of, int32_t n_starts, uint8_t* live) except -1:
        """The states from which the end of their subnetwork can be reached."""
        cdef List[4] into   # edges by target
        cdef List callers   # calls by callee
        cdef int32_t* todo = <int32_t*>malloc(4 * (<Py_ssize_t>self.n + 1))
        cdef uint8_t* counts = <uint8_t*>calloc(self.n + 1, 1)  # x of x{m,n} can be read
        cdef uint8_t* gated = <uint8_t*>calloc(self.n + 1, 1)
        cdef int32_t* callee_of = <int32_t*>malloc(4 * (<Py_ssize_t>self.n + 1))
        cdef int32_t n_todo = 0, q, i, kind
        cdef Edge edge
        memset(into, 0, sizeof(into))
        memset(&callers, 0, sizeof(List))
        try:
            if not (todo and counts and callee_of and gated):
                raise MemoryError()
            for kind in range(KINDS):
                copy_by_target(&self.edges[kind], &into[kind], self.n)
            copy_by_callee(&self.edges[CALLS], &callers, n_starts)
            for q in range(self.n):
                callee_of[q] = -1
                counts[q] = self.edges[BYTES].first[q + 1] > self.edges[BYTES].first[q]
                if self.final[q]:
                    live[q] = 1
                    todo[n_todo] = q
                    n_todo += 1
            for _marked, _node, _all_marked, gates, _ends in self.gates:
                for q in gates:
                    gated[q] = 1
            for i in range(n_starts):
                callee_of[start_of[i]] = i
            for i in range(self.edges[CALLS].n):
                if self.edges[CALLS].items[i].what < 0:
                    counts[self.edges[CALLS].items[i].source] = 1
            while True:
                if n_todo == 0:
                    n_todo = self.open_gates(gated, live, start_of, todo)
                    if n_todo == 0:
                        break
                n_todo -= 1
                q = todo[n_todo]
                for kind in range(KINDS):
                    for i in range(into[kind].first[q], into[kind].first[q + 1]):
                        edge = into[kind].items[i]
                        if live[edge.source] or gated[edge.source] or not self.passable(kind, &edge, start_of, live):
                            continue
                        if edge.op & ENOUGH and self.least[edge.source] and not counts[edge.source]:
                            continue
                        live[edge.source] = 1
                        todo[n_todo] = edge.source
                        n_todo += 1
                if callee_of[q] < 0:
                    continue
                for i in range(callers.first[callee_of[q]], callers.first[callee_of[q] + 1]):
                    edge = callers.items[i]
                    counts[edge.source] = 1
                    if not live[edge.source] and (live[edge.target] or self.ends_live(edge.source, live)):
                        live[edge.source] = 1
                        todo[n_todo] = edge.source
                        n_todo += 1
        finally:
            free(todo)
            free(counts)
            free(callee_of)
            free(gated)
            for kind in range(KINDS):
                free(into[kind].items)
                free(into[kind].first)
            free(callers.items)
            free(callers.first)
        return 0

    cdef int32_t open_gates(
        self, uint8_t* gated, uint8_t* live, const int32_t* start_of, int32_t* todo
    ) except -1:
        """Make the ends of `Distinct` nodes live whose members suffice; puts them in ``todo``, returns how many."""
        cdef int32_t q, i, found = 0
        for marked, node, all_marked, gates, _ends in self.gates:
            alive = {mark for mark, what in marked.items() if what < 0 or live[start_of[<int32_t>what]]}
            if not alive.issuperset(range(node.marks)) or (all_marked and len(alive) < node.least):
                continue
            for q in gates:
                if not gated[q]:
                    continue
                gated[q] = 0
                for i in range(self.edges[EPSILON].first[q], self.edges[EPSILON].first[q + 1]):
                    if live[self.edges[EPSILON].items[i].target]:
                        live[q] = 1
                if live[q]:
                    todo[found] = q
                    found += 1
        return found

    cdef int bound_marks(self, const int32_t* start_of, const uint8_t* live) except -1:
        """Have no separator follow when all members that can be written have come."""
        cdef int32_t q, i, n_live, argument
        for marked, _node, all_marked, _gates, ends in self.gates:
            if not all_marked:
                continue
            n_live = sum([what < 0 or live[start_of[<int32_t>what]] for what in marked.values()])
            for q in ends:
                for i in range(self.edges[EPSILON].first[q], self.edges[EPSILON].first[q + 1]):
                    argument = self.edges[EPSILON].items[i].op >> ARGUMENT
                    if self.edges[EPSILON].items[i].op == operation(FEWER, argument):
                        self.edges[EPSILON].items[i].op = operation(FEWER, min(argument, n_live))
        return 0

    cdef bint ends_live(self, int32_t q, const uint8_t* live) noexcept:
        """Whether an epsilon edge of a counting state leads to where the end can be reached."""
        cdef int32_t i
        for i in range(self.edges[EPSILON].first[q], self.edges[EPSILON].first[q + 1]):
            if live[self.edges[EPSILON].items[i].target]:
                return True
        return False

    cdef int find_aliases(self, int32_t* alias, const uint8_t* live) except -1:
        """For each state, the one it stands for: itself, unless all it has is one epsilon edge."""
        cdef int32_t q, i, kind, last, n
        for q in range(self.n):
            alias[q] = q
            n = 0
            for kind in range(EPSILON):
                n += self.edges[kind].first[q + 1] - self.edges[kind].first[q]
            i = self.edges[EPSILON].first[q]
            counts = self.least[q] or self.most[q]
            if n == 0 and self.edges[EPSILON].first[q + 1] == i + 1 and not self.final[q] and not counts:
                alias[q] = self.edges[EPSILON].items[i].target
        for q in range(self.n):
            last, n = q, 0
            while alias[last] != last and n <= self.n:
                last = alias[last]
                n += 1
            i = q
            while alias[i] != i and i != last and n > 0:
                kind = alias[i]
                alias[i] = last
                i = kind
                n -= 1
        return 0

    cdef int32_t reach(
        self, int32_t q, const int32_t* alias, int32_t* number, int32_t* order, int32_t kept, const int32_t* start_of,
        const uint8_t* live
    ) except -1:
        """Number what a state leads to; returns how many states are numbered."""
        cdef int32_t kind, i, k, target
        cdef Edge edge
        for kind in range(KINDS):
            for i in range(self.edges[kind].first[q], self.edges[kind].first[q + 1]):
                edge = self.edges[kind].items[i]
                if not self.passable(kind, &edge, start_of, live):
                    continue
                for k in range(2 if kind == CALLS and edge.what >= 0 else 1):
                    target = alias[edge.target] if k == 0 else start_of[edge.what]
                    if number[target] < 0:
                        number[target] = kept
                        order[kept] = target
                        kept += 1
        return kept


# --------------------------------------------------------------------------- flags

cdef object flags_of(bytes final, int32_t[::1] least, dict arrays):
    """What each state's end depends on."""
    cdef int32_t n = <int32_t>len(final), q, i, source
    cdef const uint8_t* is_final = final
    cdef int32_t[::1] byte_first = arrays["byte_first"], token_first = arrays["token_first"]
    cdef int32_t[::1] calls_first = arrays["calls_first"], epsilon_first = arrays["epsilon_first"]
    cdef int32_t[:, ::1] epsilon = arrays["epsilon"]
    cdef List into
    cdef uint8_t* can_end = <uint8_t*>calloc(n + 1, 1)
    cdef uint8_t* goes_on = <uint8_t*>calloc(n + 1, 1)
    cdef int32_t* todo = <int32_t*>malloc(4 * (n + epsilon_first[n] + 1))
    cdef int32_t n_todo = 0
    cdef Edge edge
    found = np.zeros(n, np.int32)
    cdef int32_t[::1] flags = found
    memset(&into, 0, sizeof(List))
    try:
        if not (can_end and goes_on and todo):
            raise MemoryError()
        into.items = <Edge*>malloc(sizeof(Edge) * (epsilon_first[n] + 1))
        if not into.items:
            raise MemoryError()
        for q in range(n):
            for i in range(epsilon_first[q], epsilon_first[q + 1]):
                into.items[i] = Edge(epsilon[i, 2], 0, epsilon[i, 1], q)  # reversed
            if is_final[q]:
                todo[n_todo] = q
                n_todo += 1
        into.n = into.room = epsilon_first[n]
        sort_edges(&into, n)
        while n_todo:
            n_todo -= 1
            q = todo[n_todo]
            if can_end[q]:
                continue
            can_end[q] = 1
            for i in range(into.first[q], into.first[q + 1]):
                edge = into.items[i]
                if edge.op & REGISTER:
                    continue  # the end depends on what came
                flags[edge.target] |= ENDS_IF_ENOUGH if edge.op & ENOUGH else ENDS_ALWAYS
                if not edge.op & ENOUGH or least[edge.target] == 0:
                    todo[n_todo] = edge.target
                    n_todo += 1
        for q in range(n):
            if byte_first[q + 1] > byte_first[q] or token_first[q + 1] > token_first[q]:
                flags[q] |= CONSUMES
            tests = False
            for i in range(epsilon_first[q], epsilon_first[q + 1]):
                tests = tests or epsilon[i, 1] & REGISTER
            if tests or flags[q] & CONSUMES or calls_first[q + 1] > calls_first[q]:
                todo[n_todo] = q
                n_todo += 1
        while n_todo:
            n_todo -= 1
            q = todo[n_todo]
            if not goes_on[q]:
                goes_on[q] = 1
                for i in range(into.first[q], into.first[q + 1]):
                    source = into.items[i].target
                    if not goes_on[source]:
                        todo[n_todo] = source
                        n_todo += 1
        for q in range(n):
            if is_final[q]:
                flags[q] |= ENDS_ALWAYS | FINAL
            if can_end[q] and not goes_on[q]:
                flags[q] |= PURE_FINAL
        return found
    finally:
        free(can_end)
        free(goes_on)
        free(todo)
        free(into.items)
        free(into.first)


# --------------------------------------------------------------------------- plain C

cdef int sort_edges(List* edges, int32_t n) except -1:
    """Sort edges by their sources, of which there are ``n``; equal ones stay in order."""
    cdef Edge* sorted_items = <Edge*>malloc(sizeof(Edge) * (edges.n + 1))
    cdef int32_t i, k, count = 0, total = 0
    if not sorted_items:
        raise MemoryError()
    free(edges.first)
    edges.first = <int32_t*>calloc(n + 2, 4)
    if not edges.first:
        free(sorted_items)
        raise MemoryError()
    for i in range(edges.n):
        edges.first[edges.items[i].source] += 1
    for k in range(n + 1):
        count = edges.first[k]
        edges.first[k] = total
        total += count
    for i in range(edges.n):
        k = edges.items[i].source
        sorted_items[edges.first[k]] = edges.items[i]
        edges.first[k] += 1
    for k in range(n, 0, -1):
        edges.first[k] = edges.first[k - 1]
    edges.first[0] = 0
    free(edges.items)
    edges.items, edges.room = sorted_items, edges.n
    return 0


cdef int copy_by_target(const List* edges, List* out, int32_t n) except -1:
    """The edges sorted by their targets: in the copy, source and target are as they were."""
    cdef int32_t i
    out.items = <Edge*>malloc(sizeof(Edge) * (edges.n + 1))
    if not out.items:
        raise MemoryError()
    for i in range(edges.n):
        out.items[i] = Edge(edges.items[i].target, edges.items[i].what, edges.items[i].op, edges.items[i].source)
    out.n = edges.n
    sort_edges(out, n)
    for i in range(edges.n):
        out.items[i].source, out.items[i].target = out.items[i].target, out.items[i].source
    return 0


cdef int copy_by_callee(const List* calls, List* out, int32_t n) except -1:
    """The calls of subnetworks of this piece, sorted by these."""
    cdef int32_t i
    cdef Edge edge
    out.items = <Edge*>malloc(sizeof(Edge) * (calls.n + 1))
    if not out.items:
        raise MemoryError()
    for i in range(calls.n):
        edge = calls.items[i]
        if edge.what >= 0:
            out.items[out.n] = Edge(edge.what, edge.source, edge.op, edge.target)
            out.n += 1
    sort_edges(out, n)
    for i in range(out.n):
        out.items[i].source, out.items[i].what = out.items[i].what, out.items[i].source
    return 0


cdef inline int32_t operation(int32_t kind, int32_t argument) noexcept:
    """An operation on a register, as edges hold it."""
    return REGISTER | kind << KIND | argument << ARGUMENT


cdef bint is_spelling(object dfa):
    """Whether no state leads back to the first, and those that accept lead nowhere."""
    if 0 in dfa.accepting or any([dfa.edges[q] for q in dfa.accepting]):
        return False
    return all([target != 0 for edges in dfa.edges for _, _, target in edges])
