"""Regular languages: expressions over characters, and boolean combinations of deterministic automata.

A `Language` is an expression of rules (no references) compiled to a nondeterministic automaton without free
moves, one state per position of a character (Glushkov, 1961); sets of states are rows of bits. `meet` runs
deterministic automata side by side, with an optional count of characters: intersections, complements and
bounds of length.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from oxillama._kernels.grammar.classes cimport Classes
from oxillama._kernels.grammar.dfa cimport Arc, Arcs, Dfa, add_arc
from oxillama._kernels.grammar.machines cimport Machine
from oxillama._kernels.grammar.memory cimport grown

from oxillama.errors import GrammarError
from oxillama._kernels.grammar.node_types import Alt, Chars, Repeat, Seq, Text

cdef enum:
    LAST_POINT = 0x10FFFF
    MAX_POSITIONS = 10_000  # of one expression, its repetitions written out
    MAX_DEPTH = 2_000       # of expressions inside each other
    MAX_LENGTH = 1 << 30
    MAX_AUTOMATA = 10_000


cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    static int lowest_bit(unsigned long long x) { unsigned long i; _BitScanForward64(&i, x); return (int)i; }
    #else
    static int lowest_bit(unsigned long long x) { return __builtin_ctzll(x); }
    #endif
    """
    int lowest_bit(uint64_t x) noexcept nogil


cdef class Language:
    """The automaton of an expression. State 0 is the start, state i the i-th character of the expression.

    Raises
    ------
    GrammarError : the expression has more than `MAX_POSITIONS` characters, repetitions written out.
    TypeError : it has nodes that are no expressions over characters.
    """

    cdef readonly int32_t n_positions
    cdef int32_t words          # of a set of states
    cdef int32_t* set_of        # of each position, the number of its set of characters
    cdef uint64_t* follow       # (positions, words): the states that may come next
    cdef uint64_t* accepting    # (words): states in which the string may end
    cdef uint64_t* scratch      # (words)
    cdef readonly list sets     # the sets of characters, as ranges
    cdef dict set_numbers
    cdef Dfa found              # the deterministic automaton, once it was asked for
    cdef Arcs ranges            # of all sets, each with the number of its set
    cdef int32_t* first_range   # of each set; its ranges end where the next one's begin

    def __cinit__(self, object node):
        cdef int32_t i, low, high
        cdef list first, last
        self.sets, self.set_numbers = [], {}
        self.words = count(node, 0) + 64 >> 6
        self.set_of = <int32_t*>calloc(64 * <Py_ssize_t>self.words, 4)
        self.follow = <uint64_t*>calloc(64 * <Py_ssize_t>self.words * self.words, 8)
        self.accepting = <uint64_t*>calloc(self.words, 8)
        self.scratch = <uint64_t*>calloc(self.words, 8)
        if not (self.set_of and self.follow and self.accepting and self.scratch):
            raise MemoryError()
        self.n_positions = 1
        first, last, empty = self.node(node)
        self.link([0], first)
        for i in last:
            self.accepting[i >> 6] |= <uint64_t>1 << (i & 63)
        self.accepting[0] |= <uint64_t>bool(empty)
        self.first_range = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>len(self.sets) + 1))
        for i in range(<int32_t>len(self.sets)):
            self.first_range[i] = self.ranges.n
            for low, high in self.sets[i]:
                add_arc(&self.ranges, low, high, i)
        self.first_range[len(self.sets)] = self.ranges.n

    def __dealloc__(self):
        free(self.set_of)
        free(self.follow)
        free(self.accepting)
        free(self.scratch)
        free(self.ranges.items)
        free(self.first_range)

    def automaton(self):
        """The deterministic automaton.

        Raises
        ------
        GrammarError : it would need too many states.
        """
        cdef uint64_t* start
        if self.found is None:
            start = <uint64_t*>calloc(self.words, 8)
            try:
                if not start:
                    raise MemoryError()
                start[0] = 1
                self.found = Subsets(self).automaton(<const int32_t*>start)
            finally:
                free(start)
        return self.found

    def accepts(self, str text not None):
        """Whether the whole text belongs to the language."""
        cdef uint64_t* sets = <uint64_t*>calloc(2 * <Py_ssize_t>self.words, 8)
        cdef uint64_t* after = sets + self.words
        cdef uint64_t word
        cdef int32_t point, i, q
        if not sets:
            raise MemoryError()
        try:
            sets[0] = 1
            for point in text:
                self.after(sets, after)
                memset(sets, 0, 8 * <Py_ssize_t>self.words)
                for i in range(self.words):
                    word = after[i]
                    while word:
                        q = 64 * i + lowest_bit(word)
                        word &= word - 1
                        if self.takes(self.set_of[q], point):
                            sets[i] |= <uint64_t>1 << (q & 63)
            return self.ends(sets)
        finally:
            free(sets)

    cdef bint ends(self, const uint64_t* states) noexcept:
        """Whether the string may end in one of some states."""
        cdef int32_t i
        for i in range(self.words):
            if states[i] & self.accepting[i]:
                return True
        return False

    cdef int after(self, const uint64_t* states, uint64_t* found) noexcept:
        """The states that may come after any of these, whatever is read."""
        cdef int32_t i, k, words = self.words
        cdef uint64_t word
        cdef const uint64_t* row
        memset(found, 0, 8 * <Py_ssize_t>words)
        for i in range(words):
            word = states[i]
            while word:
                row = self.follow + <Py_ssize_t>(64 * i + lowest_bit(word)) * words
                word &= word - 1
                for k in range(words):
                    found[k] |= row[k]
        return 0

    cdef bint takes(self, int32_t number, int32_t point) noexcept:
        """Whether a set of characters has this one."""
        cdef int32_t low = self.first_range[number], high = self.first_range[number + 1], middle
        while low < high:
            middle = (low + high) >> 1
            if self.ranges.items[middle].last < point:
                low = middle + 1
            else:
                high = middle
        return low < self.first_range[number + 1] and self.ranges.items[low].first <= point

    # ------------------------------------------------------------------ nodes
    # Each gives the first positions, the last positions, and whether it can be empty.

    cdef tuple node(self, object node):
        cdef object kind = type(node)
        cdef list first, last, starts, ends
        cdef bint empty
        if kind is Chars:
            first = [self.position(node.ranges)]
            return first, first, False
        if kind is Text:
            return self.text(node.text)
        if kind is Seq:
            first, last, empty = [], [], True
            for item in node.items:
                starts, ends, skippable = self.node(item)
                self.link(last, starts)
                if empty:
                    first = first + starts
                last = last + ends if skippable else ends
                empty = empty and skippable
            return first, last, empty
        if kind is Alt:
            first, last, empty = [], [], False
            for item in node.items:
                starts, ends, skippable = self.node(item)
                first += starts
                last += ends
                empty = empty or skippable
            return first, last, empty
        return self.states_of(node) if kind is Dfa else self.repeat(node)

    cdef int32_t position(self, tuple ranges) except -1:
        number = self.set_numbers.get(ranges)
        if number is None:
            number = self.set_numbers[ranges] = len(self.sets)
            self.sets.append(ranges)
        if self.n_positions >= 64 * self.words:
            raise ValueError("node: expected an expression that stays as it is")
        self.set_of[self.n_positions] = number
        self.n_positions += 1
        return self.n_positions - 1

    cdef tuple text(self, str text):
        cdef int32_t point, q, first = self.n_positions, before = 0
        if not text:
            return [], [], True
        for point in text:
            q = self.position(((point, point),))
            if before:
                self.follow[<Py_ssize_t>before * self.words + (q >> 6)] |= <uint64_t>1 << (q & 63)
            before = q
        return [first], [before], False

    cdef tuple states_of(self, Dfa node):
        """A position for each range and state that it leads to."""
        cdef list into = [[] for _ in range(node.n_states)]   # the positions that lead to each state
        cdef list after = [[] for _ in range(node.n_states)]  # those that come next
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

    cdef tuple repeat(self, object node):
        cdef list first = [], last = []
        cdef list reach = []  # ends from which the next copy may begin
        cdef list starts = [], ends = []
        cdef bint empty = True
        cdef Py_ssize_t i, least = node.least
        for i in range(max(least, 1) if node.most is None else node.most):
            starts, ends, skippable = self.node(node.item)
            self.link(reach, starts)
            if empty:
                first = first + starts
            reach = reach + ends if skippable else ends
            empty = empty and skippable
            if i + 1 == least:
                last = list(reach)
            elif i + 1 > least:
                last += ends
        if node.most is None:
            self.link(ends, starts)
        return first, last, empty or least == 0

    cdef int link(self, list sources, list targets) except -1:
        """The targets may come after each of the sources."""
        cdef int32_t p, q
        cdef Py_ssize_t k
        cdef uint64_t* row
        memset(self.scratch, 0, 8 * <Py_ssize_t>self.words)
        for q in targets:
            self.scratch[q >> 6] |= <uint64_t>1 << (q & 63)
        for p in sources:
            row = self.follow + <Py_ssize_t>p * self.words
            for k in range(self.words):
                row[k] |= self.scratch[k]
        return 0


cdef int32_t count(object node, int depth) except -1:
    """The characters of an expression, repetitions written out."""
    cdef object kind = type(node), copies
    cdef int64_t found = 0
    if depth > MAX_DEPTH:
        raise RecursionError()
    if kind is Chars:
        return 1
    if kind is Text:
        found = len(node.text)
    elif kind is Seq or kind is Alt:
        for item in node.items:
            found += count(item, depth + 1)
    elif kind is Repeat:
        copies = max(node.least, 1) if node.most is None else node.most
        found = min(copies, MAX_LENGTH) * <int64_t>count(node.item, depth + 1)
    elif kind is Dfa:
        found = len({arc for row in node.edges for arc in row})
    else:
        raise TypeError(f"node: expected an expression over characters, got {kind.__name__}")
    if found > MAX_POSITIONS:
        raise GrammarError(
            f"regex: expected at most {MAX_POSITIONS} characters, repetitions written out, got more"
        )
    return <int32_t>found


# ---------------------------------------------------------------------- deterministic automata


cdef class Subsets(Machine):
    """The deterministic automaton of a language: a state is the set of states that it may be in."""

    cdef Language language
    cdef uint64_t* after        # the states that may come next, whatever is read
    cdef uint64_t* takers       # (classes, words): the states that reading a class may lead to

    def __cinit__(self, Language language):
        cdef int32_t k, i, q, n_sets = <int32_t>len(language.sets)
        cdef Arc* arcs = language.ranges.items
        self.language, self.width, self.classes = language, 2 * language.words, Classes()
        self.classes.note(arcs, language.ranges.n)
        self.classes.settle()
        for i in range(n_sets):
            q = language.first_range[i]
            self.classes.split(arcs + q, language.first_range[i + 1] - q)
        self.after = <uint64_t*>calloc(language.words, 8)
        self.takers = <uint64_t*>calloc(<Py_ssize_t>self.classes.n * language.words, 8)
        if not (self.after and self.takers):
            raise MemoryError()
        taken = [[language.takes(i, self.classes.sample[k]) for i in range(n_sets)] for k in range(self.classes.n)]
        for k in range(self.classes.n):
            takes = taken[k]
            for q in range(1, language.n_positions):
                if takes[language.set_of[q]]:
                    self.takers[<Py_ssize_t>k * language.words + (q >> 6)] |= <uint64_t>1 << (q & 63)

    def __dealloc__(self):
        free(self.after)
        free(self.takers)

    cdef int begin(self, const int32_t* state) noexcept:
        return self.language.after(<const uint64_t*>state, self.after)

    cdef bint step(self, const int32_t* state, int32_t k, int32_t* after) noexcept:
        cdef const uint64_t* takers = self.takers + <Py_ssize_t>k * self.language.words
        cdef uint64_t* found = <uint64_t*>after
        cdef uint64_t any_one = 0
        cdef int32_t i
        for i in range(self.language.words):
            found[i] = self.after[i] & takers[i]
            any_one |= found[i]
        return any_one != 0

    cdef bint accepts(self, const int32_t* state) noexcept:
        return self.language.ends(<const uint64_t*>state)


cdef class Product(Machine):
    """Several automata side by side and a count: the strings of the first ones that are not of the others.

    A state is the count and the state of each automaton, -1 for one that accepts nothing more.
    """

    cdef list automata
    cdef int32_t n_wanted, n_automata, least, most, cap
    cdef int32_t** tables       # of each automaton (states, classes): the next state or -1
    cdef int32_t* always        # of each unwanted automaton, a state in which whatever follows is accepted, or -1
    cdef const uint8_t** ends

    def __cinit__(self, list automata, int32_t n_wanted, int32_t least, int32_t most):
        cdef Dfa dfa
        cdef int32_t i, q, n = <int32_t>len(automata)
        self.automata, self.n_automata, self.n_wanted, self.least, self.most = automata, n, n_wanted, least, most
        self.cap = least if most < 0 else most
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
        """What the i-th automaton does with each class."""
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
        cdef int32_t i, q
        if state[0] == self.most:
            return False
        after[0] = min(state[0] + 1, self.cap)
        for i in range(self.n_automata):
            q = state[i + 1]
            if q >= 0:
                q = self.tables[i][<Py_ssize_t>q * self.classes.n + k]
            if q < 0 if i < self.n_wanted else q == self.always[i] and q >= 0:
                return False
            after[i + 1] = q
        return True

    cdef bint accepts(self, const int32_t* state) noexcept:
        cdef int32_t i
        if state[0] < self.least:
            return False
        for i in range(self.n_automata):
            if (state[i + 1] >= 0 and self.ends[i][state[i + 1]]) != (i < self.n_wanted):
                return False
        return True


def meet(object wanted, object unwanted=(), int32_t least=0, object most=None):
    """The strings of ``least`` to ``most`` characters that all of some automata accept, and none of others.

    Raises
    ------
    GrammarError : the automaton would need too many states.
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
    product = Product(found, n_wanted, least, end)
    start = <int32_t*>calloc(product.width, 4)
    try:
        if not start:
            raise MemoryError()
        return product.automaton(start)
    finally:
        free(start)


cdef Dfa EVERYTHING = Dfa((((0, LAST_POINT, 0),),), (0,))
