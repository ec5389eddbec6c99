"""Regular languages: expressions over characters, and boolean combinations of deterministic automata.

A `Language` is an expression of rules (no references) compiled to a nondeterministic automaton without epsilon
edges, one state per position of a character (Glushkov, 1961); sets of states are rows of bits. `meet` runs
deterministic automata in parallel, with an optional count of characters: intersections, complements and
bounds of length.
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from oxillama._kernels.grammar.classes cimport Classes
from oxillama._kernels.grammar.dfa cimport Arc, Arcs, Dfa, add_arc
from oxillama._kernels.grammar.machines cimport Machine
from oxillama._kernels.grammar.memory cimport grown, lowest_bit

from itertools import repeat

from oxillama.errors import GrammarError
from oxillama._kernels.grammar.node_types import Alt, Chars, Repeat, Seq, Text

cdef enum:
    LAST_POINT = 0x10FFFF
    MAX_POSITIONS = 10_000  # maximum number in one expression, with its repetitions written out
    MAX_DEPTH = 2_000       # maximum depth of nested expressions
    MAX_LENGTH = 1 << 30
    MAX_AUTOMATA = 10_000


cdef class Language:
    """The automaton of an expression. State 0 is the start, state i the i-th character of the expression.

    Raises:
        GrammarError: the expression has more than `MAX_POSITIONS` characters, repetitions written out.
        TypeError: the expression has nodes that are no expressions over characters.
    """

    cdef list set_of            # (positions): number of the position's set of characters
    cdef list follow            # (positions): the possible next states, as the bits of an integer
    cdef object accepting       # states in which the string may end
    cdef readonly list sets     # type: list[Any]; the sets of characters, as ranges
    cdef dict set_numbers
    cdef dict known_takers
    cdef Dfa found              # the deterministic automaton, once it was requested
    cdef Arcs ranges            # ranges of all sets, each with the number of its set
    cdef int32_t* first_range   # (sets): first range of the set; its ranges end where the next set's begin

    def __cinit__(self, object node: Node):
        cdef int32_t i, low, high
        cdef list first, last
        self.sets, self.set_numbers, self.set_of, self.follow, self.known_takers = [], {}, [-1], [0], {}
        first, last, empty = self.node(node, 0)
        self.link([0], first)
        self.accepting = bits_of(last) | bool(empty)
        self.first_range = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>len(self.sets) + 1))
        for i in range(<int32_t>len(self.sets)):
            self.first_range[i] = self.ranges.n
            for low, high in self.sets[i]:
                add_arc(&self.ranges, low, high, i)
        self.first_range[len(self.sets)] = self.ranges.n

    def __dealloc__(self):
        free(self.ranges.items)
        free(self.first_range)

    @cython.critical_section
    def automaton(self) -> Dfa:
        """The deterministic automaton.

        Raises:
            GrammarError: the automaton would need too many states.
        """
        cdef Subsets subsets
        cdef bytes start
        if self.found is None:
            subsets = Subsets(self)
            start = (1).to_bytes(4 * subsets.width, "little")
            self.found = subsets.automaton(<const int32_t*><const uint8_t*>start)
        return self.found

    @cython.critical_section
    def accepts(self, str text not None) -> bool:
        """Whether the whole text belongs to the language."""
        cdef object states = 1, after, lowest
        cdef int32_t point
        for point in text:
            after = 0
            while states:
                lowest = states & -states
                after |= self.follow[lowest.bit_length() - 1]
                states ^= lowest
            states = after & self.takers(point)
        return (states & self.accepting) != 0

    cdef object takers(self, int32_t point):
        """The states that reading a code point may lead to, as bits."""
        cdef int32_t i, q
        cdef list takes
        if point not in self.known_takers:
            takes = [self.takes(i, point) for i in range(<int32_t>len(self.sets))]
            self.known_takers[point] = bits_of(
                [q for q in range(1, <int32_t>len(self.follow)) if takes[self.set_of[q]]]
            )
        return self.known_takers[point]

    cdef bint takes(self, int32_t number, int32_t point) noexcept:
        """Whether a set of characters contains the code point."""
        cdef int32_t low = self.first_range[number], high = self.first_range[number + 1], middle
        while low < high:
            middle = (low + high) >> 1
            if self.ranges.items[middle].last < point:
                low = middle + 1
            else:
                high = middle
        return low < self.first_range[number + 1] and self.ranges.items[low].first <= point

    # ------------------------------------------------------------------ nodes
    # Each method returns the first positions, the last positions, and whether the node can be empty.

    cdef tuple node(self, object node, int depth):
        cdef object kind = type(node)
        cdef list first, last, starts, ends
        cdef bint empty
        if depth > MAX_DEPTH:
            raise RecursionError()
        if kind is Chars:
            first = [self.position(node.ranges)]
            return first, first, False
        if kind is Text:
            return self.text(node.text)
        if kind is Seq:
            return self.in_a_row(node.items, len(node.items), False, depth)
        if kind is Alt:
            first, last, empty = [], [], False
            for item in node.items:
                starts, ends, skippable = self.node(item, depth + 1)
                first += starts
                last += ends
                empty = empty or skippable
            return first, last, empty
        if kind is Dfa:
            return self.states_of(node)
        if kind is not Repeat:
            raise TypeError(f"node: expected an expression over characters, got {kind.__name__}")
        copies = max(node.least, 1) if node.most is None else node.most
        return self.in_a_row(repeat(node.item, copies), node.least, node.most is None, depth)

    cdef int32_t position(self, tuple ranges) except -1:
        number = self.set_numbers.get(ranges)
        if number is None:
            number = self.set_numbers[ranges] = len(self.sets)
            self.sets.append(ranges)
        if len(self.follow) > MAX_POSITIONS:
            raise GrammarError(
                f"regex: expected at most {MAX_POSITIONS} characters, repetitions written out, got more"
            )
        self.set_of.append(number)
        self.follow.append(0)
        return <int32_t>len(self.follow) - 1

    cdef tuple text(self, str text):
        cdef int32_t point, q
        cdef list found = [self.position(((point, point),)) for point in text]
        for q in found[1:]:
            self.follow[q - 1] |= 1 << q
        return found[:1], found[len(found) - 1:] if found else [], not found

    cdef tuple states_of(self, Dfa node):
        """Adds a position for each range of the automaton and the state that it leads to."""
        cdef list into = [[] for _ in range(node.n_states)]   # the positions that lead to each state
        cdef list after = [[] for _ in range(node.n_states)]  # the possible next positions
        cdef dict known = {}
        cdef Arc arc
        cdef int32_t q, i
        for q in range(node.n_states):
            for i in range(node.first[q], node.first[q + 1]):
                arc = node.arcs[i]
                key = arc.first, arc.last, arc.target
                if key not in known:
                    known[key] = self.position(((arc.first, arc.last),))
                    into[arc.target].append(known[key])
                after[q].append(known[key])
        for q in range(node.n_states):
            self.link(into[q], after[q])
        return after[0], [p for q in range(node.n_states) if node.ends[q] for p in into[q]], bool(node.ends[0])

    cdef tuple in_a_row(self, object items, Py_ssize_t least, bint goes_on, int depth):
        """Items in sequence; items after the first ``least`` may be missing.

        ``goes_on``: the last item may be repeated any number of times.
        """
        cdef list first = [], last = []
        cdef list reach = []  # positions after which the next item may begin
        cdef list starts = [], ends = []
        cdef bint empty = True
        cdef Py_ssize_t i
        for i, item in enumerate(items):
            starts, ends, skippable = self.node(item, depth + 1)
            self.link(reach, starts)
            if empty:
                first = first + starts
            reach = reach + ends if skippable else ends
            empty = empty and skippable
            if i + 1 == least:
                last = list(reach)
            elif i + 1 > least:
                last += ends
        if goes_on:
            self.link(ends, starts)
        return first, last, empty or least == 0

    cdef int link(self, list sources, list targets) except -1:
        """Allows the targets after each of the sources."""
        cdef object bits = bits_of(targets)
        cdef int32_t q
        for q in sources:
            self.follow[q] |= bits
        return 0


cdef object bits_of(list numbers):
    """An integer in which the bits of these numbers are set."""
    cdef bytearray bits = bytearray((max(numbers, default=0) >> 3) + 1)
    cdef int32_t q
    for q in numbers:
        bits[q >> 3] |= 1 << (q & 7)
    return int.from_bytes(bits, "little")


# ---------------------------------------------------------------------- deterministic automata


cdef class Subsets(Machine):
    """The deterministic automaton of a language: its state is the set of states that the language may be in."""

    cdef int32_t words          # words of a set of states
    cdef bytes follow           # (positions, words): the possible next states
    cdef bytes takers           # (classes, words): the states that reading a class may lead to
    cdef bytes accepting        # (words)
    cdef bytearray after        # (words): the possible next states, for any character

    def __cinit__(self, Language language):
        cdef int32_t k, i, q, n_bytes
        cdef Arc* arcs = language.ranges.items
        self.words, self.classes = <int32_t>(len(language.follow) + 63) // 64, Classes()
        self.width, n_bytes = 2 * self.words, 8 * self.words
        self.classes.note(arcs, language.ranges.n)
        self.classes.settle()
        for i in range(<int32_t>len(language.sets)):
            q = language.first_range[i]
            self.classes.split(arcs + q, language.first_range[i + 1] - q)
        takers = [language.takers(self.classes.sample(k)) for k in range(self.classes.n)]
        self.follow = b"".join([states.to_bytes(n_bytes, "little") for states in language.follow])
        self.takers = b"".join([states.to_bytes(n_bytes, "little") for states in takers])
        self.accepting, self.after = language.accepting.to_bytes(n_bytes, "little"), bytearray(n_bytes)

    cdef int begin(self, const int32_t* state) noexcept:
        cdef const uint64_t* states = <const uint64_t*>state
        cdef const uint64_t* follow = <const uint64_t*><const uint8_t*>self.follow
        cdef const uint64_t* row
        cdef uint64_t* after = <uint64_t*><uint8_t*>self.after
        cdef int32_t i, k
        cdef uint64_t word
        memset(after, 0, 8 * <Py_ssize_t>self.words)
        for i in range(self.words):
            word = states[i]
            while word:
                row = follow + <Py_ssize_t>(64 * i + lowest_bit(word)) * self.words
                word &= word - 1
                for k in range(self.words):
                    after[k] |= row[k]
        return 0

    cdef bint step(self, const int32_t* state, int32_t k, int32_t* after) noexcept:
        cdef const uint64_t* takers = <const uint64_t*><const uint8_t*>self.takers + <Py_ssize_t>k * self.words
        cdef const uint64_t* may_come = <const uint64_t*><const uint8_t*>self.after
        cdef uint64_t* found = <uint64_t*>after
        cdef uint64_t any_one = 0
        cdef int32_t i
        for i in range(self.words):
            found[i] = may_come[i] & takers[i]
            any_one |= found[i]
        return any_one != 0

    cdef bint accepts(self, const int32_t* state) noexcept:
        cdef const uint64_t* states = <const uint64_t*>state
        cdef const uint64_t* accepting = <const uint64_t*><const uint8_t*>self.accepting
        cdef int32_t i
        for i in range(self.words):
            if states[i] & accepting[i]:
                return True
        return False


cdef class Product(Machine):
    """Several automata in parallel and a count: strings that the wanted ones accept and the unwanted ones do not.

    A state is the count and the state of each automaton, -1 for an automaton that can accept no more.
    """

    cdef list automata
    cdef int32_t n_wanted, n_automata, least, most, cap, whole
    cdef int32_t** tables       # per automaton (states, classes): the next state or -1
    cdef int32_t* always        # per unwanted automaton: a state in which all continuations are accepted, or -1
    cdef const uint8_t** ends

    def __cinit__(self, list automata: list[Dfa], int32_t n_wanted, int32_t least, int32_t most, int32_t whole):
        cdef Dfa dfa
        cdef int32_t i, q, n = <int32_t>len(automata)
        self.automata, self.n_automata, self.n_wanted, self.least, self.most = automata, n, n_wanted, least, most
        self.cap, self.whole = least if most < 0 else most, whole
        self.width, self.classes = n + 1, Classes()
        self.tables = <int32_t**>calloc(n + 1, sizeof(int32_t*))
        self.ends = <const uint8_t**>calloc(n + 1, sizeof(uint8_t*))
        self.always = <int32_t*>calloc(n + 1, 4)
        if not (self.tables and self.ends and self.always):
            raise MemoryError()
        for dfa in automata:
            self.classes.note(dfa.arcs, dfa.first[dfa.n_states])
        self.classes.settle()
        for dfa in automata:
            for q in range(dfa.n_states):
                self.classes.split(dfa.arcs + dfa.first[q], dfa.first[q + 1] - dfa.first[q])
        for i in range(n):
            self.tabulate(i, automata[i])

    def __dealloc__(self):
        cdef int32_t i
        if self.tables:
            for i in range(self.n_automata):
                free(self.tables[i])
        free(self.tables)
        free(self.ends)
        free(self.always)

    cdef int tabulate(self, int32_t i, Dfa dfa) except -1:
        """Makes the table of the i-th automaton: the next state for each class."""
        cdef int32_t q, k
        cdef int32_t* row = <int32_t*>grown(NULL, 4 * <Py_ssize_t>dfa.n_states * self.classes.n)
        self.tables[i], self.ends[i], self.always[i] = row, dfa.ends, -1
        for q in range(dfa.n_states):
            self.classes.fill(dfa.arcs + dfa.first[q], dfa.first[q + 1] - dfa.first[q], row)
            for k in range(self.classes.n):
                if row[k] != q:
                    break
            else:
                if dfa.ends[q]:
                    self.always[i] = q
            row += self.classes.n
        return 0

    cdef bint step(self, const int32_t* state, int32_t k, int32_t* after) noexcept:
        cdef int32_t i, q, count
        for i in range(self.n_automata):
            q = state[i + 1]
            if q >= 0:
                q = self.tables[i][<Py_ssize_t>q * self.classes.n + k]
            if q < 0 if i < self.n_wanted else q == self.always[i] and q >= 0:
                return False
            after[i + 1] = q
        count = state[0] + (after[1] < self.whole)
        after[0] = min(count, self.cap)
        return self.most < 0 or count <= self.most

    cdef bint accepts(self, const int32_t* state) noexcept:
        cdef int32_t i
        if state[0] < self.least:
            return False
        for i in range(self.n_automata):
            if (state[i + 1] >= 0 and self.ends[i][state[i + 1]]) != (i < self.n_wanted):
                return False
        return True


def meet(object wanted: Sequence[Dfa], object unwanted: Sequence[Dfa] = (), int32_t least=0,
         object most: int | None = None, object whole: int | None = None) -> Dfa:
    """The strings of ``least`` to ``most`` characters that all ``wanted`` automata accept, and no ``unwanted`` one.

    ``whole``: a character is counted where the first automaton enters a state below this number; None: at each step.

    Raises:
        GrammarError: the automaton would need too many states.
    """
    cdef list found = [*wanted, *unwanted]
    cdef Product product
    cdef int32_t end = -1 if most is None else most, n_wanted = <int32_t>len(wanted)
    cdef int32_t* start
    if not all([isinstance(one, Dfa) for one in found]) or len(found) > MAX_AUTOMATA:
        raise TypeError(f"wanted, unwanted: expected at most {MAX_AUTOMATA} Dfa objects, got others")
    if not 0 <= least <= MAX_LENGTH or (most is not None and not 0 <= end <= MAX_LENGTH):
        raise ValueError(f"least, most: expected 0 to {MAX_LENGTH}, got {least} and {most}")
    if n_wanted == len(found) == 1 and least == 0 and most is None:
        return found[0]
    if not n_wanted:
        found.insert(0, EVERYTHING)
        n_wanted = 1
    product = Product(found, n_wanted, least, end, MAX_LENGTH if whole is None else whole)
    start = <int32_t*>calloc(product.width, 4)
    try:
        if not start:
            raise MemoryError()
        return product.automaton(start)
    finally:
        free(start)


cdef Dfa EVERYTHING = Dfa((((0, LAST_POINT, 0),),), (0,))
