"""Tokens found by walks over the trie, by (RTN state, count, trie node).

An entry holds the context-independent tokens, as a mask or a short list, and the dependents: the places at
which the rest of a token depends on the stack.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from oxillama._kernels.grammar.memory cimport grown, mixed
from oxillama._kernels.grammar.parser_states cimport ParserStates

cdef enum:
    MAX_LIST = 512      # tokens of an entry kept as a list and not as a mask


cdef class MaskCache:
    """Entries, never dropped; they live as long as the parser states.

    Parameters
    ----------
    states : ParserStates, charged for the memory
    n_words : length of a mask
    """

    def __cinit__(self, ParserStates states not None, int32_t n_words):
        cdef int32_t i
        if n_words < 1:
            raise ValueError(f"n_words: expected an integer >= 1, got {n_words}")
        self.states = states
        self.n_words = n_words
        self.table_size = 256
        self.table = <int32_t*>grown(NULL, 4 * self.table_size)
        for i in range(self.table_size):
            self.table[i] = -1

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.n_entries):
            free(self.entries[i].bits)
            free(self.entries[i].tokens)
            free(self.entries[i].dependents)
        free(self.entries)
        free(self.table)

    cdef int32_t find(self, int32_t q, int32_t n, int32_t node) noexcept:
        """The number of an entry, -1 where there is none."""
        cdef uint64_t slot = cache_hash(q, n, node) & (self.table_size - 1)
        cdef int32_t i
        while self.table[slot] >= 0:
            i = self.table[slot]
            if self.entries[i].q == q and self.entries[i].n == n and self.entries[i].node == node:
                return i
            slot = (slot + 1) & (self.table_size - 1)
        return -1

    cdef int open(self, Found* found) except -1:
        """Begin with no tokens and no dependents."""
        memset(found, 0, sizeof(Found))
        found.bits = <uint32_t*>calloc(self.n_words, 4)
        if not found.bits:
            raise MemoryError()
        return 0

    cdef int32_t keep(self, int32_t q, int32_t n, int32_t node, Found* found) except -1:
        """Make an entry; returns its number. ``found`` is empty afterwards."""
        cdef CacheEntry* entry
        cdef int32_t i, k, count = 0
        cdef uint32_t word
        if self.n_entries == self.room:
            self.room = max(64, 2 * self.room)
            self.entries = <CacheEntry*>grown(self.entries, self.room * sizeof(CacheEntry))
        if 2 * self.n_entries >= self.table_size:
            self.rehash()
        for i in range(self.n_words):
            count += popcount(found.bits[i])
        self.states.charge(sizeof(CacheEntry) + 8 + found.n_dependents * <Py_ssize_t>sizeof(Dependent)
                           + 4 * (count if count <= MAX_LIST else self.n_words))
        entry = &self.entries[self.n_entries]
        memset(entry, 0, sizeof(CacheEntry))
        entry.q, entry.n, entry.node, entry.overflow = q, n, node, found.overflow
        if not found.overflow:
            if count <= MAX_LIST:
                entry.tokens = <int32_t*>malloc(4 * (count + 1))
                if not entry.tokens:
                    raise MemoryError()
                for i in range(self.n_words):
                    word = found.bits[i]
                    while word:
                        k = lowest_bit(word)
                        entry.tokens[entry.n_tokens] = 32 * i + k
                        entry.n_tokens += 1
                        word &= word - 1
            else:
                entry.bits = found.bits
                found.bits = NULL
            entry.dependents, entry.n_dependents = found.dependents, found.n_dependents
            found.dependents = NULL
        free(found.bits)
        free(found.dependents)
        found.bits, found.dependents = NULL, NULL  # nothing is left for the caller to free
        self.n_entries += 1
        self.insert(self.n_entries - 1)
        return self.n_entries - 1

    cdef int insert(self, int32_t i) noexcept:
        cdef CacheEntry* entry = &self.entries[i]
        cdef uint64_t slot = cache_hash(entry.q, entry.n, entry.node) & (self.table_size - 1)
        while self.table[slot] >= 0:
            slot = (slot + 1) & (self.table_size - 1)
        self.table[slot] = i
        return 0

    cdef int rehash(self) except -1:
        cdef int32_t i
        self.table = <int32_t*>grown(self.table, 8 * <Py_ssize_t>self.table_size)
        self.table_size *= 2
        for i in range(self.table_size):
            self.table[i] = -1
        for i in range(self.n_entries):
            self.insert(i)
        return 0

    cdef void add_tokens(self, int32_t index, Found* found) noexcept:
        """Add an entry's tokens."""
        cdef const CacheEntry* entry = &self.entries[index]
        cdef int32_t i
        if entry.bits:
            for i in range(self.n_words):
                found.bits[i] |= entry.bits[i]
        else:
            for i in range(entry.n_tokens):
                found.bits[entry.tokens[i] >> 5] |= <uint32_t>1 << (entry.tokens[i] & 31)


# --------------------------------------------------------------------------- plain C

cdef inline uint64_t cache_hash(int32_t q, int32_t n, int32_t node) noexcept:
    return mixed((<uint64_t>q << 32 | <uint32_t>node) ^ <uint64_t>n << 20)


cdef inline int popcount(uint32_t word) noexcept nogil:
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return <int>((((word + (word >> 4)) & 0x0F0F0F0F) * <uint32_t>0x01010101) >> 24)


cdef inline int lowest_bit(uint32_t word) noexcept nogil:
    return popcount((word & (~word + 1)) - 1)
