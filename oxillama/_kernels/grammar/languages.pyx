"""Boolean combinations of regular languages as deterministic automata.

A `Language` is an expression of rules (no references) compiled to a nondeterministic automaton without free
moves, one state per position of a character (Glushkov, 1961); sets of states are rows of bits. `determinise` runs
several of them side by side with an optional count of characters, and a test of their verdicts says what is
accepted: that makes intersection, union, complement and bounds of length one construction.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from oxillama._kernels.grammar.dfa cimport Arc, Arcs, Dfa, add_arc, of_table
from oxillama._kernels.grammar.memory cimport grown, mixed

from oxillama.errors import GrammarError

cdef enum:
    LAST_POINT = 0x10FFFF
    MAX_POSITIONS = 10_000  # of one expression, its repetitions written out
    MAX_STATES = 4_000      # of a deterministic automaton
    MAX_WORK = 400_000      # its states times its classes of characters
    MAX_DEPTH = 2_000       # of expressions inside each other
    MAX_LENGTH = 1 << 30


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
        return self.automaton(node) if kind is Dfa else self.repeat(node)

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

    cdef tuple automaton(self, Dfa node):
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


# ---------------------------------------------------------------------- several side by side


cdef class Product:
    """The deterministic automaton of several languages and a count, as far as it has been made.

    A state is the count and the languages' sets of states, one after another.
    """

    cdef list languages
    cdef int32_t width          # words of a state
    cdef int32_t n, room, table_size
    cdef uint64_t* states
    cdef int32_t* table         # hash table of the states' numbers, -1 where free

    def __cinit__(self, list languages):
        cdef Language language
        self.languages, self.width = languages, 1
        for language in languages:
            self.width += language.words
        self.room, self.table_size = 64, 256
        self.states = <uint64_t*>grown(NULL, 8 * <Py_ssize_t>self.room * self.width)
        self.table = <int32_t*>grown(NULL, 4 * <Py_ssize_t>self.table_size)
        memset(self.table, 0xFF, 4 * <Py_ssize_t>self.table_size)

    def __dealloc__(self):
        free(self.states)
        free(self.table)

    cdef int32_t* free_slot(self, const uint64_t* state) noexcept:
        """Where a state's number stands in the table, or would stand."""
        cdef uint64_t h = 0
        cdef int32_t i, slot
        for i in range(self.width):
            h = (h ^ state[i]) * <uint64_t>0x9E3779B97F4A7C15
            h ^= h >> 32
        slot = <int32_t>(mixed(h) & <uint64_t>(self.table_size - 1))
        while self.table[slot] >= 0 and memcmp(
            self.states + <Py_ssize_t>self.table[slot] * self.width, state, 8 * <Py_ssize_t>self.width
        ):
            slot = (slot + 1) & (self.table_size - 1)
        return &self.table[slot]

    cdef int32_t number(self, const uint64_t* state) except -1:
        """The number of a state, which is new if it was not met before."""
        cdef int32_t* slot = self.free_slot(state)
        cdef int32_t i
        if slot[0] >= 0:
            return slot[0]
        if self.n == self.room:
            self.room *= 2
            self.states = <uint64_t*>grown(self.states, 8 * <Py_ssize_t>self.room * self.width)
        memcpy(self.states + <Py_ssize_t>self.n * self.width, state, 8 * <Py_ssize_t>self.width)
        slot[0] = self.n
        self.n += 1
        if 2 * self.n > self.table_size:
            self.table_size *= 2
            self.table = <int32_t*>grown(self.table, 4 * <Py_ssize_t>self.table_size)
            memset(self.table, 0xFF, 4 * <Py_ssize_t>self.table_size)
            for i in range(self.n):
                self.free_slot(self.states + <Py_ssize_t>i * self.width)[0] = i
        return self.n - 1

    cdef tuple verdicts(self, int32_t state):
        """For each language whether the string may end."""
        cdef const uint64_t* at = self.states + <Py_ssize_t>state * self.width + 1
        cdef Language language
        cdef list found = []
        for language in self.languages:
            found.append(language.ends(at))
            at += language.words
        return tuple(found)

    cdef int after(self, int32_t state, uint64_t* found) except -1:
        """The states of each language that may come after one, whatever is read."""
        cdef const uint64_t* at = self.states + <Py_ssize_t>state * self.width + 1
        cdef Language language
        for language in self.languages:
            language.after(at, found)
            at += language.words
            found += language.words
        return 0


def determinise(object languages, object accept, int32_t least=0, object most=None):
    """The strings of ``least`` to ``most`` characters for which ``accept`` likes the languages' verdicts.

    Raises
    ------
    GrammarError : the automaton needs more than `MAX_STATES` states.
    """
    cdef list found = list(languages), classes
    cdef Product product
    cdef Language language
    cdef int32_t cap, q, k, i, width, n_classes, end = -1 if most is None else most
    cdef uint64_t* masks = NULL
    cdef uint64_t* after = NULL
    cdef uint64_t* target = NULL
    cdef int32_t* rows = NULL
    cdef uint8_t* ends = NULL
    cdef int32_t rows_room = 0, number
    cdef uint64_t n
    cdef dict known = {}
    if not all([isinstance(one, Language) for one in found]):
        raise TypeError("languages: expected Language objects, got others")
    if not 0 <= least <= MAX_LENGTH or (most is not None and not 0 <= end <= MAX_LENGTH):
        raise ValueError(f"least, most: expected 0 to {MAX_LENGTH}, got {least} and {most}")
    cap = least if most is None else end + 1
    classes = character_classes([ranges for language in found for ranges in language.sets])
    n_classes = <int32_t>len(classes)
    product = Product(found)
    width = product.width
    try:
        masks = <uint64_t*>calloc(<Py_ssize_t>n_classes * width, 8)
        after = <uint64_t*>calloc(width, 8)
        target = <uint64_t*>calloc(width, 8)
        if not (masks and after and target):
            raise MemoryError()
        for k in range(n_classes):
            positions_of(found, classes[k][0][0], masks + <Py_ssize_t>k * width + 1)
        i = 1
        for language in found:
            target[i] = 1
            i += language.words
        product.number(target)
        q = 0
        while q < product.n:  # grows while it is walked
            if q * <Py_ssize_t>n_classes >= rows_room:
                rows_room = max(256 * n_classes, 2 * rows_room)
                rows = <int32_t*>grown(rows, 4 * (<Py_ssize_t>rows_room + n_classes))
            product.after(q, after + 1)
            n = product.states[<Py_ssize_t>q * width]
            for k in range(n_classes):
                target[0] = min(n + 1, <uint64_t>cap)
                for i in range(1, width):
                    target[i] = after[i] & masks[<Py_ssize_t>k * width + i]
                number = product.number(target)
                rows[<Py_ssize_t>q * n_classes + k] = number
            if product.n > MAX_STATES or product.n * <Py_ssize_t>n_classes > MAX_WORK:
                raise GrammarError(f"expected an automaton of at most {MAX_STATES} states, got more")
            q += 1
        ends = <uint8_t*>calloc(product.n, 1)
        if not ends:
            raise MemoryError()
        for q in range(product.n):
            n = product.states[<Py_ssize_t>q * width]
            if n < <uint64_t>least or (end >= 0 and n > <uint64_t>end):
                continue
            verdicts = product.verdicts(q)
            if verdicts not in known:
                known[verdicts] = bool(accept(verdicts))
            ends[q] = known[verdicts]
        return of_table(rows, product.n, ends, classes)
    finally:
        free(masks)
        free(after)
        free(target)
        free(rows)
        free(ends)


cdef int positions_of(list languages, int32_t point, uint64_t* mask) except -1:
    """The states of each language that reading this code point may lead to."""
    cdef Language language
    cdef int32_t q
    cdef list takes
    for language in languages:
        takes = [language.takes(q, point) for q in range(<int32_t>len(language.sets))]
        for q in range(1, language.n_positions):
            if takes[language.set_of[q]]:
                mask[q >> 6] |= <uint64_t>1 << (q & 63)
        mask += language.words
    return 0


cdef list character_classes(list sets):
    """All code points in classes that no set tells apart, each as ranges."""
    cdef dict events = {0: 0}, classes = {}
    cdef object bit = 1  # there may be more sets than a machine word has bits
    for ranges in dict.fromkeys(sets):
        for first, last in ranges:
            events[first] = events.get(first, 0) ^ bit
            events[last + 1] = events.get(last + 1, 0) ^ bit
        bit <<= 1
    events.pop(LAST_POINT + 1, None)
    points = sorted(events)
    signature = 0
    for point, after in zip(points, [*points[1:], LAST_POINT + 1]):
        signature ^= events[point]
        classes.setdefault(signature, []).append((point, after - 1))
    return [tuple(ranges) for ranges in classes.values()]


# Below the functions: the package of the nodes asks for these while it is being imported.
from oxillama.grammar.rules import Alt, Chars, Repeat, Seq, Text  # noqa: E402
