"""Compiles rules to a recursive transition network (RTN): byte automata that call each other.

A subnetwork is the automaton of one called rule. Its states have byte edges, epsilon edges, token edges, and calls of
other subnetworks, each with the state to return to. A subnetwork never matches the empty string: if its rule does, each
call has a parallel epsilon edge. So endless calls that read nothing can only come from a subnetwork that begins with a
call of itself, directly or not; `Automata.without_left_recursion` rewrites these.

Nodes that match nothing build no states, so from every state some text leads to the end of its subnetwork.

An `x{m,n}` that would need many copies becomes one state with a count. An automaton of strings of bounded length
carries the count of their characters through all its states.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from oxillama._kernels.grammar.automata cimport Automata
from oxillama._kernels.grammar.dfa cimport Arcs, Dfa, add_arc
from oxillama._kernels.grammar.network cimport (
    BYTES, CALLS, ENOUGH, EPSILON, FINAL, KEEP, KINDS, MORE, NEXT, RESET, TOKENS, UNIT, Program, State,
)
from oxillama._kernels.grammar.pruning cimport program_of
from oxillama._kernels.grammar.registers cimport (
    ALL, AT_LEAST, BEGIN, BY_TEXT, END, END_JSON, FEWER, MARK, MARKS, SPARE, operation,
)

from oxillama.errors import GrammarError
from oxillama._kernels.grammar.nodes import INLINE_SIZE, is_nullable, matches, repeat_copies, size
from oxillama._kernels.grammar.node_types import Alt, Chars, Counted, Distinct, Ref, Repeat, Seq, Text

cdef enum:
    MAX_TOLD_APART = 1 << 22  # number of distinct members
    MAX_INLINE_DEPTH = 80  # nested nodes and copied rules; deeper rules are called
    NEVER = -1             # in place of a state: nothing matches


cdef struct Mark:
    # How much was built at a point in time, for `undo`.
    int32_t n
    int32_t[KINDS] n_edges


cdef class Builder(Automata):
    """Builds one piece of a network.

    Args:
        rules: nodes by name
        called: names of the rules that are called; the others are copied in place of their names
        known_sizes: approximate number of states of each rule, copies included
        nullable: names of the rules that match the empty text
        productive: names of the rules that match some text
        units: numbers of the rules that are other pieces, by name
        most: maximum number of states; GrammarError beyond
    """

    cdef dict rules, sizes, number_of, units
    cdef set called, nullable, productive
    cdef list bodies, token_sets
    cdef int depth
    cdef int32_t slack_of_registers  # slack of the registers of the current `Distinct`

    def __cinit__(self, dict rules not None: dict[str, Node], set called not None: set[str],
                  dict known_sizes not None: dict[str, int], set nullable not None: set[str],
                  set productive not None: set[str], dict units not None: dict[str, int], int32_t most):
        if not 0 < most < UNIT:
            raise ValueError(f"most: expected 1 to 2**29 - 1 states, got {most}")
        self.rules, self.called, self.sizes = rules, called, known_sizes
        self.nullable, self.productive, self.units, self.most_states = nullable, productive, units, most
        self.number_of = {}
        self.bodies, self.token_sets = [], []

    def build(self, str root not None, object pieces: Any = None) -> Program:
        """The piece, as a `Program`; ``pieces`` builds the subnetworks that it calls by number.

        Raises GrammarError if no text matches the root, or if there are too many states.
        """
        cdef Program found
        cdef list starts = []
        cdef int32_t start, end
        if root not in self.rules:
            raise ValueError(f"root: expected the name of a rule, got {root!r}")
        self.number_of[root] = 0
        self.bodies.append(self.rules[root])
        while len(starts) < len(self.bodies):
            start = self.new()
            end = self.node(self.bodies[len(starts)], start)
            if end != NEVER:
                self.rtn[end].flags = FINAL
            elif not starts:
                raise GrammarError(f"grammar: no text matches the rule {root}")
            starts.append(start)
        self.index()
        starts = [self.nonempty(start) for start in starts]
        self.index()
        self.without_left_recursion(starts)
        found = program_of(self, starts)
        found.token_sets, found.accepts_empty, found.pieces = tuple(self.token_sets), root in self.nullable, pieces
        return found

    cdef Mark mark(self) noexcept:
        cdef Mark found
        cdef int kind
        found.n = self.n_states
        for kind in range(KINDS):
            found.n_edges[kind] = self.edges[kind].n
        return found

    cdef void undo(self, const Mark* mark) noexcept:
        """Drops what was built since ``mark``."""
        cdef int kind
        self.n_states = mark.n
        for kind in range(KINDS):
            self.edges[kind].n = mark.n_edges[kind]

    cdef bint matches_something(self, object node) except -1:
        return matches(node, self.productive)

    # ------------------------------------------------------------------ rules

    cdef int32_t subnetwork(self, object what) except? -1:
        """The number of a rule's or a node's subnetwork; of another piece: -1 - its number."""
        cdef object known = self.number_of.get(what)
        if known is None and what in self.units:
            if not 0 <= self.units[what] < UNIT:
                raise ValueError(f"unit: expected numbers from 0 to 2**29 - 1, got {self.units[what]}")
            known = -1 - <int32_t>self.units[what]
        if known is None:
            known = self.number_of[what] = len(self.bodies)
            self.bodies.append(self.rules[what] if isinstance(what, str) else what)
        return known

    cdef bint is_called(self, object node):
        return node.name in self.called

    # ------------------------------------------------------------------ nodes
    # Each method adds a path from ``start`` and returns the state after the node's match, or `NEVER`; then all that it
    # added is useless. ``start`` may have other edges; no edge leads back to it.

    cdef int32_t node(self, object node, int32_t start) except -2:
        cdef int32_t end
        cdef object kind = type(node)
        self.depth += 1
        if kind is Text:
            end = self.text(node.text, start)
        elif kind is Chars:
            end = self.new()
            if not self.character(node.ranges, start, end, {}):
                end = NEVER
        elif kind is Seq:
            end = start
            for item in node.items:
                end = self.node(item, end)
                if end == NEVER:
                    break
        elif kind is Alt:
            end = self.alternatives(node, start)
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

    cdef int32_t alternatives(self, object node, int32_t start) except -2:
        cdef int32_t end = self.new(), last, found = NEVER
        cdef Mark before
        for item in node.items:
            before = self.mark()
            last = self.node(item, start)
            if last == NEVER:
                self.undo(&before)
            else:
                self.add(EPSILON, last, 0, RESET, end)
                found = end
        return found

    cdef int32_t text(self, str text, int32_t start) except -2:
        cdef bytes data
        cdef const uint8_t* at
        cdef uint8_t[32] taken
        cdef Py_ssize_t i
        cdef int32_t end
        memset(taken, 0, 32)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return NEVER  # no text has a surrogate
        at = data
        for i in range(len(data)):
            end = self.new()
            taken[at[i] >> 3] = 1 << (at[i] & 7)
            self.add(BYTES, start, self.label(taken), RESET, end)
            taken[at[i] >> 3] = 0
            start = end
        return start

    cdef int32_t tokens(self, object node, int32_t start) except -2:
        cdef int32_t end = self.new()
        if not node.ids and not node.negated:
            return NEVER
        if node not in self.token_sets:
            self.token_sets.append(node)
        self.add(TOKENS, start, self.token_sets.index(node), RESET, end)
        return end

    cdef int32_t ref(self, object node, int32_t start) except -2:
        cdef int32_t end
        if node.name not in self.productive:
            return NEVER
        if not self.is_called(node) and self.depth <= MAX_INLINE_DEPTH:
            return self.node(self.rules[node.name], start)
        end = self.new()
        self.add(CALLS, start, self.subnetwork(node.name), RESET, end)
        if node.name in self.nullable:
            self.add(EPSILON, start, 0, RESET, end)
        return end

    cdef int32_t dfa(self, Dfa node, int32_t start) except -2:
        """Builds the automaton's states one by one, and the states inside the characters between them."""
        cdef int32_t base = self.n_states, end, q, i, k, target
        cdef Arcs same = Arcs(NULL, 0, 0)
        cdef dict tails = {}
        cdef list needs = node.to_the_end()
        if needs[0] is None:
            return NEVER
        for _ in range(node.n_states):
            self.new()
        end = self.new()
        self.add(EPSILON, start, 0, RESET, base)
        try:
            for q in range(node.n_states):
                for i in range(node.first[q], node.first[q + 1]):
                    target = node.arcs[i].target
                    if needs[target] is None:
                        continue
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

    cdef int32_t repeat(self, object node, int32_t start) except -2:
        cdef int32_t loop, end, last
        cdef list ends = []
        cdef Py_ssize_t i, least = node.least
        cdef Mark before
        if node.most == 0:
            return start
        copies = repeat_copies(node, size(node.item, self.called, self.sizes))
        if copies is None:
            return self.counted(node, start)
        for i in range(copies if node.most is not None else least):
            if i >= least:
                ends.append(start)
            before = self.mark()
            last = self.node(node.item, start)
            if last == NEVER:
                self.undo(&before)
                return start if least == 0 else NEVER
            start = last
        if node.most is None:
            before = self.mark()
            loop = self.after_nothing(start)
            last = self.node(node.item, loop)
            if last == NEVER:
                self.undo(&before)
                return start
            self.add(EPSILON, last, 0, RESET, loop)
            return loop
        end = self.new()
        for source in (*ends, start):
            self.add(EPSILON, source, 0, RESET, end)
        return end

    cdef int32_t after_nothing(self, int32_t start) except -2:
        cdef int32_t state = self.new()
        self.add(EPSILON, start, 0, RESET, state)
        return state

    # ------------------------------------------------------------------ counts

    cdef int32_t counted(self, object node, int32_t start) except -2:
        """Builds one state with a count; it repeats characters, or a subnetwork."""
        cdef int32_t loop = self.after_nothing(start), end = self.new()
        cdef dict tails = {}
        cdef tuple inside
        self.rtn[loop].least = 0 if is_nullable(node.item, self.nullable) else node.least
        self.rtn[loop].most = -1 if node.most is None else node.most
        self.add(EPSILON, loop, 0, ENOUGH | RESET, end)
        characters, others = self.split(node.item)
        others = [one for one in others if self.matches_something(one)]
        inside = (self.rtn[loop].least, node.most, 1, 1)
        any_one = bool(others)
        for chars in characters:
            any_one = self.character(chars.ranges, loop, loop, tails, MORE, NEXT, inside) or any_one
        if others:
            single = others[0] if len(others) == 1 else Alt(tuple(others))
            single = single.name if isinstance(single, Ref) else single
            self.add(CALLS, loop, self.subnetwork(single), MORE | NEXT, loop)
        return end if any_one or node.least == 0 else NEVER

    cdef tuple split(self, object node):
        """The alternatives of a node: single characters, and all others."""
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

    cdef int32_t counted_dfa(self, object node, int32_t start) except -2:
        """Builds an automaton whose states carry the count of characters, each with its own bound.

        The bound of a state is the bound of the whole minus the characters that the state needs to an end. So no count
        passes a bound from which there is no end, and a count far from the lowest bound is far from all bounds.
        """
        cdef list needs = node.dfa.to_the_end(node.whole), states = []
        cdef tuple rows = node.dfa.edges
        cdef int32_t end = self.new(), furthest = 1 + max([one for one in needs if one is not None], default=0)
        cdef int32_t needed, count, i
        cdef dict tails = {}, ranges
        if needs[0] is None or (node.most is not None and needs[0] > node.most):
            return NEVER
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
                    continue  # too long already; a bound below 0 would become 0
                # on a shortest path to an end the count stays within its bound without a test
                self.character(
                    found, states[i], states[target], tails, MORE if needed > needs[i] else 0, NEXT if count else KEEP,
                    (node.least, node.most, needed, furthest),
                )
        for accepting in node.dfa.accepting:
            self.add(EPSILON, states[accepting], 0, ENOUGH | RESET, end)
        return end

    # ------------------------------------------------------------------ distinct members

    cdef int32_t distinct(self, object node, int32_t start) except -2:
        """Builds states with a register that call the distinct members; epsilon edges test and change the register."""
        cdef int32_t most = -1 if node.most is None else node.most, bound = max(1, node.least, most), end = self.new()
        cdef int32_t at, i
        cdef list places = self.places_with_ends(node)
        cdef set marks = {member.mark for place in places for member in place if member.by == "mark"}
        for place in node.places:
            for member in place:
                bound = max(bound, member.after, member.mark + 1, 0 if member.room is None else member.room)
        if bound >= MAX_TOLD_APART or not 0 <= node.marks < MAX_TOLD_APART:
            raise GrammarError(f"grammar: expected to tell at most {MAX_TOLD_APART - 1} members apart, got {bound} "
                               f"and {node.marks} that must come")
        if all([member.by == "mark" for place in node.places for member in place]):
            most = len(marks) if most < 0 else min(most, len(marks))
        if not places[0] or not marks.issuperset(range(node.marks)) or 0 <= most < node.least:
            return NEVER
        self.slack_of_registers = node.marks << MARKS
        if any([member.by in ("text", "value") for place in node.places for member in place]):
            self.slack_of_registers |= BY_TEXT
        begins = [self.register(bound) for _ in places]
        ends = [self.register(bound) for _ in places]
        self.add(EPSILON, start, 0, RESET, begins[0])
        for i in range(len(places)):
            for member in places[i]:
                at = self.tested(begins[i], AT_LEAST, member.after, bound) if member.after else begins[i]
                if member.room is not None:
                    at = self.tested(at, SPARE, member.room, bound)
                self.member(member, at, ends[member.to], bound, node.may_run_out)
            if places[i]:
                at = self.tested(ends[i], FEWER, most, bound) if most >= 0 else ends[i]
                if node.separator is None:
                    self.add(EPSILON, at, 0, KEEP, begins[i])
                else:
                    self.add(CALLS, at, self.callee(node.separator), KEEP, begins[i])
            if node.ends[i]:
                at = self.tested(ends[i], ALL, 0, bound) if node.marks else ends[i]
                at = self.tested(at, AT_LEAST, node.least, bound) if node.least > 1 else at
                self.add(EPSILON, at, 0, RESET, end)
        return end

    cdef list places_with_ends(self, object node):
        """The members of each place that match some text and from which further members lead to an end."""
        cdef list places = [
            [m for m in place if self.matches_something(m.node) and (m.rest is None or self.matches_something(m.rest))]
            for place in node.places
        ]
        cdef set open_places = {i for i, ends in enumerate(node.ends) if ends}
        cdef Py_ssize_t before = -1
        while before < len(open_places):
            before = len(open_places)
            open_places.update([i for i, place in enumerate(places) if any([m.to in open_places for m in place])])
        return [[m for m in place if m.to in open_places] for place in places]

    cdef int member(self, object member, int32_t start, int32_t end, int32_t bound, bint may_run_out) except -1:
        """Builds a member from ``start`` to ``end``."""
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
        self.rtn[state] = State(0, bound, 0, self.slack_of_registers)
        return state

    cdef int32_t tested(self, int32_t start, int32_t kind, int32_t argument, int32_t bound) except -1:
        """The state after an operation on a register."""
        cdef int32_t state = self.register(bound)
        self.add(EPSILON, start, 0, operation(kind, argument), state)
        return state

    cdef int32_t callee(self, object node) except? -1:
        """The number of the subnetwork for the node's nonempty texts."""
        return self.subnetwork(node.name if isinstance(node, Ref) else node)
