"""Rules to a recursive transition network (RTN): byte automata that call each other.

A subnetwork is the automaton of one called rule. Its states have byte edges, epsilon edges, token edges and calls of
other subnetworks, each with the state to return to. A subnetwork never matches the empty string: a call of one that
could has an epsilon edge beside it. So only a subnetwork that begins with a call of itself, directly or not, could be
called for ever without reading anything; `left_recursion` rewrites those.

`x{m,n}` that would need many copies is one state with a count. An automaton of strings of bounded length carries the
count of their characters through all its states.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from oxillama._kernels.grammar.automata cimport Automata
from oxillama._kernels.grammar.dfa cimport Arc, Arcs, Dfa, add_arc
from oxillama._kernels.grammar.edges cimport (
    BYTES, CALLS, ENOUGH, EPSILON, KEEP, KINDS, MORE, NEXT, RESET, TOKENS, Edge,
)
from oxillama._kernels.grammar.network cimport UNIT
from oxillama._kernels.grammar.pruning cimport pruned
from oxillama._kernels.grammar.registers cimport (
    ALL, AT_LEAST, BEGIN, END, END_JSON, FEWER, MARK, MARKS, NEEDED, SPARE, operation,
)

from oxillama.errors import GrammarError
from oxillama._kernels.grammar.nodes import INLINE_SIZE, is_nullable, repeat_copies, size
from oxillama.grammar.left_recursion import cycles, remove_left_recursion
from oxillama.grammar.rtn_state import State
from oxillama.grammar.counts import to_the_end
from oxillama.grammar.rules import Alt, Chars, Counted, Distinct, Ref, Repeat, Seq, Text
from oxillama.grammar.utf8 import byte_tree

cdef enum:
    MAX_TOLD_APART = 1 << 22  # members that are told apart
    MAX_MARKS = 64  # of members that must be there
    MAX_INLINE_DEPTH = 80  # of nodes and copied rules inside each other; deeper rules are called


# UTF-8 beyond ASCII: the points of each number of bytes, the bytes after the first, and the bits that mark the first.
cdef int32_t[3] FIRST_POINT = [0x80, 0x800, 0x10000]
cdef int32_t[3] LAST_POINT = [0x7FF, 0xFFFF, 0x10FFFF]
cdef int32_t[3] CONTINUED = [1, 2, 3]
cdef int32_t[3] LEAD = [0xC0, 0xE0, 0xF0]
cdef int32_t[2] BEYOND = [0x80, 0xE000]   # surrogates have no bytes
cdef int32_t[2] BEYOND_LAST = [0xD7FF, 0x10FFFF]


cdef class Builder(Automata):
    """Builds one piece of a network.

    Parameters
    ----------
    rules : nodes by name
    calls : oxillama.grammar.analysis.Calls
    nullable : names of the rules that match the empty text
    unit : the number of a name that has no rule; None: there are none
    most : states it may have; GrammarError beyond
    """

    cdef int32_t[256] byte_label
    cdef dict rules, sizes, number_of
    cdef object called, unit
    cdef set nullable
    cdef list bodies, token_sets
    # Of each `Distinct`: (marked subnetworks, node, whether all is marked, gates, states from which more may come).
    cdef list gates
    cdef int depth

    def __cinit__(self, dict rules not None, object calls, set nullable not None, object unit, int32_t most):
        cdef int i
        if not 0 < most < UNIT:
            raise ValueError(f"most: expected 1 to 2**29 - 1 states, got {most}")
        try:
            self.rules, self.called, self.sizes = rules, calls.rules, calls.sizes
        except AttributeError as error:
            raise TypeError(f"calls: expected Calls, got {type(calls)}") from error
        self.nullable, self.unit, self.most_states = nullable, unit, most
        self.number_of = {}
        self.bodies, self.token_sets, self.gates = [], [], []
        for i in range(256):
            self.byte_label[i] = -1

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
        found = pruned(self, starts, self.gates, root in self.nullable)
        if found is None:
            raise GrammarError(f"grammar: no text matches the rule {root}")
        found["token_sets"] = tuple(self.token_sets)
        found["accepts_empty"] = root in self.nullable
        return found

    # ------------------------------------------------------------------ rules

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
            self.character(byte_tree(node.ranges), start, end, {})
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

    cdef int character(self, tuple tree, int32_t start, int32_t end, dict tails) except -1:
        """A character from ``start`` to ``end``; ``tails`` holds the states inside characters made so far."""
        for bits, below in tree:
            if below is None:
                self.add(BYTES, start, self.label(bits), RESET, end)
                continue
            found = tails.get(below)
            if found is None:
                found = tails[below] = self.new()
                self.character(below, found, end, tails)
            self.add(BYTES, start, self.label(bits), RESET, found)
        return 0

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

    cdef int characters(self, const Arcs* ranges, int32_t start, int32_t end, dict tails) except -1:
        """A character of some ranges, from ``start`` to ``end``."""
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
            self.add(BYTES, start, self.label_of(taken), RESET, end)
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
                    self.branches(&high, FIRST_POINT[i], LAST_POINT[i], CONTINUED[i], LEAD[i], end, tails, beyond)
            for number, target in beyond:
                self.add(BYTES, start, number, RESET, target)
        finally:
            free(high.items)
        return 0

    cdef int branches(self, const Arcs* ranges, int32_t first, int32_t last, int32_t left, int32_t lead,
                      int32_t end, dict tails, list found) except -1:
        """Where the first bytes of the points from ``first`` to ``last`` lead, ``left`` bytes being left after them:
        (label, state) pairs, appended to ``found``. ``lead``: what is added to the bits of a first byte.
        """
        cdef int32_t shift = 6 * left, byte, i, low, high, k, n = 0, before = -1
        cdef Arcs inside = Arcs(NULL, 0, 0)
        cdef int32_t[64] targets
        cdef uint8_t[64][32] taken
        cdef bint whole, was_whole = False
        try:
            for byte in range(first >> shift, (last >> shift) + 1):
                inside.n = 0
                for i in range(ranges.n):
                    low = max(max(ranges.items[i].first, first), byte << shift)
                    high = min(min(ranges.items[i].last, last), ((byte + 1) << shift) - 1)
                    if low <= high:
                        add_arc(&inside, low - (byte << shift), high - (byte << shift), 0)
                if inside.n == 0:
                    continue
                whole = inside.items[0].first == 0 and inside.items[0].last == (1 << shift) - 1
                if not (whole and was_whole):
                    before = end if left == 0 else self.tail(&inside, left, end, tails)
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
            free(inside.items)
        for k in range(n):
            found.append((self.label_of(taken[k]), targets[k]))
        return 0

    cdef int32_t tail(self, const Arcs* ranges, int32_t left, int32_t end, dict tails) except -1:
        """The state before the last ``left`` bytes of a character, of which the bits are in the ranges."""
        cdef int32_t state
        cdef object key = (end, left, (<const uint8_t*>ranges.items)[:ranges.n * sizeof(Arc)]), known = tails.get(key)
        cdef list found = []
        if known is not None:
            return known
        state = tails[key] = self.new()
        self.branches(ranges, 0, (1 << 6 * left) - 1, left - 1, 0x80, end, tails, found)
        for number, target in found:
            self.add(BYTES, state, number, RESET, target)
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
            self.counted_character(byte_tree(chars.ranges), loop, loop, MORE, NEXT, tails, inside)
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
                self.counted_character(byte_tree(tuple(ranges)), state, target, asks, makes, tails, inside)
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
                self.counted_character(
                    byte_tree(tuple(found)), states[i], states[target], MORE if needed > needs[i] else 0,
                    NEXT if count else KEEP, tails,
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

    cdef int counted_character(
        self, tuple tree, int32_t start, int32_t end, int32_t asks, int32_t makes, dict tails, tuple inside
    ) except -1:
        """A character from ``start`` to ``end``; states inside of it are those of `counting` with ``inside``."""
        for bits, below in tree:
            if below is None:
                self.add(BYTES, start, self.label(bits), asks | makes, end)
                continue
            found = tails.get((end, below))
            if found is None:
                found = tails[end, below] = self.counting(inside)
                self.counted_character(below, found, end, 0, makes, tails, inside)
            self.add(BYTES, start, self.label(bits), asks | KEEP, found)
        return 0

    # ------------------------------------------------------------------ members that are told apart

    cdef int32_t distinct(self, object node, int32_t start) except -1:
        """States with a register call what is told apart, and test and change the register by epsilon edges."""
        cdef int32_t most = -1 if node.most is None else node.most, bound = max(1, node.least, most), end = self.new()
        cdef int32_t at, i
        for place in node.places:
            for member in place:
                bound = max(bound, member.after, member.mark + 1, 0 if member.room is None else member.room << NEEDED)
        if bound >= MAX_TOLD_APART or not 0 <= node.marks < MAX_MARKS:
            raise GrammarError(f"grammar: expected to tell at most {MAX_TOLD_APART - 1} members apart and to need at "
                               f"most {MAX_MARKS - 1} of them, got {bound} and {node.marks}")
        bound |= node.marks << MARKS
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
                    at = self.tested(at, SPARE, member.room << NEEDED | node.marks, bound)
                at = self.member(member, at, bound, node.may_run_out)
                self.add(EPSILON, at, 0, KEEP, ends[member.to])
            at = self.tested(ends[i], FEWER, most, bound) if most >= 0 else ends[i]
            self.add(CALLS, at, self.callee(node.separator), KEEP, begins[i])
            if node.ends[i]:
                at = self.register(bound)
                self.add(EPSILON, ends[i], 0, KEEP, at)
                gates.append(at)
                at = self.tested(at, ALL, node.marks, bound) if node.marks else at
                at = self.tested(at, AT_LEAST, node.least, bound) if node.least > 1 else at
                self.add(EPSILON, at, 0, RESET, end)
        return end

    cdef int32_t member(self, object member, int32_t start, int32_t bound, bint may_run_out) except -1:
        """The state behind a member."""
        cdef int32_t at = self.register(bound), op = KEEP
        if member.by == "mark":
            op = operation(MARK, member.mark)
        elif member.by != "nothing":
            op = operation(BEGIN, may_run_out)
        self.add(CALLS, start, self.callee(member.node), op, at)
        if member.by in ("text", "value"):
            at = self.tested(at, END_JSON if member.by == "value" else END, 0, bound)
        if member.rest is not None:
            start, at = at, self.register(bound)
            self.add(CALLS, start, self.callee(member.rest), KEEP, at)
        return at

    cdef int32_t register(self, int32_t bound) except -1:
        """A new state whose count is a register."""
        cdef int32_t state = self.new()
        self.least[state] = bound
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

    # ------------------------------------------------------------------ left recursion

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
                if kind == EPSILON:
                    states[edge.source].epsilon.append((edge.op, edge.target))
                else:
                    states[edge.source].of_kind(kind).append((edge.what, edge.op, edge.target))
        for q in range(self.n):
            states[q].final = bool(self.final[q])
            if self.least[q] or self.most[q]:
                states[q].count = self.least[q], self.most[q], self.slack[q]
        remove_left_recursion(states, starts, self.most_states)
        for kind in range(KINDS):
            self.edges[kind].n = 0
        while self.n < len(states):
            self.new()
        for q in range(self.n):
            self.final[q] = states[q].final
            self.least[q], self.most[q], self.slack[q] = states[q].count or (0, 0, 0)
            for kind in range(KINDS):
                if kind == EPSILON:
                    for op, target in states[q].epsilon:
                        self.add(EPSILON, q, 0, op, target)
                else:
                    for what, op, target in states[q].of_kind(kind):
                        self.add(kind, q, what, op, target)
        self.index()
        return 0


# --------------------------------------------------------------------------- plain C

cdef bint is_spelling(object dfa):
    """Whether no state leads back to the first, and those that accept lead nowhere."""
    if 0 in dfa.accepting or any([dfa.edges[q] for q in dfa.accepting]):
        return False
    return all([target != 0 for edges in dfa.edges for _, _, target in edges])
