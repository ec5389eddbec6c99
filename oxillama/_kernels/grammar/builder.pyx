"""Rules to a recursive transition network (RTN): byte automata that call each other.

A subnetwork is the automaton of one called rule. Its states have byte edges, epsilon edges, token edges and calls of
other subnetworks, each with the state to return to. A subnetwork never matches the empty string: a call of one that
could has an epsilon edge beside it. So only a subnetwork that begins with a call of itself, directly or not, could be
called for ever without reading anything; `Automata.without_left_recursion` rewrites those.

`x{m,n}` that would need many copies is one state with a count. An automaton of strings of bounded length carries the
count of their characters through all its states.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from oxillama._kernels.grammar.characters cimport Characters
from oxillama._kernels.grammar.dfa cimport Arcs, Dfa, add_arc
from oxillama._kernels.grammar.edges cimport BYTES, CALLS, ENOUGH, EPSILON, KEEP, MORE, NEXT, RESET, TOKENS
from oxillama._kernels.grammar.network cimport UNIT, Program
from oxillama._kernels.grammar.pruning cimport pruned
from oxillama._kernels.grammar.registers cimport (
    ALL, AT_LEAST, BEGIN, BY_TEXT, END, END_JSON, FEWER, MARK, MARKS, SPARE, operation,
)

from oxillama.errors import GrammarError
from oxillama._kernels.grammar.nodes import INLINE_SIZE, is_nullable, repeat_copies, size
from oxillama._kernels.grammar.node_types import Alt, Chars, Counted, Distinct, Ref, Repeat, Seq, Text

cdef enum:
    MAX_TOLD_APART = 1 << 22  # members that are told apart
    MAX_INLINE_DEPTH = 80  # of nodes and copied rules inside each other; deeper rules are called


cdef class Builder(Characters):
    """Builds one piece of a network.

    Parameters
    ----------
    rules : nodes by name
    called : names of the rules that are called, not copied in place of their name
    known_sizes : roughly how many states each rule makes, copies included
    nullable : names of the rules that match the empty text
    unit : the number of a name that has no rule; None: there are none
    most : states it may have; GrammarError beyond
    """

    cdef int32_t[256] byte_label
    cdef dict rules, sizes, number_of
    cdef object unit
    cdef set called, nullable
    cdef list bodies, token_sets
    # Of each `Distinct`: (marked subnetworks, node, whether all is marked, gates, states from which more may come).
    cdef list gates
    cdef int depth
    cdef int32_t slack_of_registers  # of the `Distinct` under way

    def __cinit__(self, dict rules not None, set called not None, dict known_sizes not None, set nullable not None,
                  object unit, int32_t most):
        cdef int i
        if not 0 < most < UNIT:
            raise ValueError(f"most: expected 1 to 2**29 - 1 states, got {most}")
        self.rules, self.called, self.sizes = rules, called, known_sizes
        self.nullable, self.unit, self.most_states = nullable, unit, most
        self.number_of = {}
        self.bodies, self.token_sets, self.gates = [], [], []
        for i in range(256):
            self.byte_label[i] = -1

    def build(self, str root not None, object units=None):
        """The piece, as a `Program`, with the ``units`` that build what it calls by number.

        GrammarError where no text matches the root, or the states are too many.
        """
        cdef Program found
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
        found.token_sets, found.accepts_empty, found.units = tuple(self.token_sets), root in self.nullable, units
        return found

    # ------------------------------------------------------------------ rules

    cdef int32_t subnetwork(self, str name) except? -1:
        """The number of a rule's subnetwork; of a unit, -1 less its number."""
        cdef int32_t unit
        if self.unit is not None and name not in self.rules:
            unit = self.unit(name)
            if not 0 <= unit < UNIT:
                raise ValueError(f"unit: expected numbers from 0 to 2**29 - 1, got {unit}")
            return -1 - unit
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
        cdef uint8_t[32] taken
        cdef Py_ssize_t i
        cdef int32_t end
        memset(taken, 0, 32)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return self.new()  # surrogates are in no text
        at = data
        for i in range(len(data)):
            end = self.new()
            if self.byte_label[at[i]] < 0:
                taken[at[i] >> 3] = 1 << (at[i] & 7)
                self.byte_label[at[i]] = self.label(taken)
                taken[at[i] >> 3] = 0
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
        characters, others = self.split(node.item)
        inside = (self.least[loop], node.most, 1, 1)
        for chars in characters:
            self.character(chars.ranges, loop, loop, tails, MORE, NEXT, inside)
        if others:
            single = others[0] if len(others) == 1 else Alt(tuple(others))
            if isinstance(single, Ref):
                self.add(CALLS, loop, self.subnetwork(single.name), MORE | NEXT, loop)
            else:
                self.bodies.append(single)
                self.add(CALLS, loop, <int32_t>len(self.bodies) - 1, MORE | NEXT, loop)
        return end

    cdef tuple split(self, object node):
        """The alternatives of a node: single characters, and others."""
        cdef list characters = [], others = [], todo = [node]
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
            else:
                others.append(node)
        return characters, others

    cdef int32_t counted_dfa(self, object node, int32_t start) except -1:
        """An automaton whose states carry the count of characters, each with its own bound.

        A state's bound is that of the whole less the characters that it needs to an end. So no bound is passed
        from which there is no end, and a count is far from all bounds if it is far from the lowest.
        """
        cdef list needs = node.dfa.to_the_end(node.whole), states = []
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
                if node.most is not None and needed > node.most:
                    continue  # too long from the start; a bound below 0 would be one of 0
                # from a state that needs no more than one character less, the count stays within its bound
                self.character(
                    found, states[i], states[target], tails, MORE if needed > needs[i] else 0, NEXT if count else KEEP,
                    (node.least, node.most, needed, furthest),
                )
        for accepting in node.dfa.accepting:
            self.add(EPSILON, states[accepting], 0, ENOUGH | RESET, end)
        return end

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
