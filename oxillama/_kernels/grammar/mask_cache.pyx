"""Tokens found by walks over the trie, by (RTN state, count, trie node).

An entry holds the context-independent tokens and the dependents: the places at which the rest of a token
depends on the stack. Few tokens are a list. Nearly all tokens inside a JSON string are a slice of the vocabulary,
which is shared, so an entry names it and lists what differs. Only what is neither is a mask of its own.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from oxillama._kernels.grammar.memory cimport grown, mixed
from oxillama._kernels.grammar.parser_states cimport ParserStates
from oxillama._kernels.grammar.slices cimport Slice


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
        self.slices = []
        self.table_size = 256
        self.table = <int32_t*>grown(NULL, 4 * self.table_size)
        for i in range(self.table_size):
            self.table[i] = -1

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.n_entries):
            free_tokens(&self.entries[i].tokens)
            free(self.entries[i].dependents)
        free(self.entries)
        free(self.table)
        free(self.slice_bits)

    cdef int32_t add_slice(self, Slice slice) except -1:
        """The number of a slice, which lives as long as the cache."""
        cdef int32_t n = <int32_t>len(self.slices)
        self.slice_bits = <const uint32_t**>grown(<void*>self.slice_bits, (n + 1) * sizeof(void*))
        self.slice_bits[n] = slice.bits
        self.slices.append(slice)
        return n

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

    cdef int32_t keep(self, int32_t q, int32_t n, int32_t node, Found* found) except -1:
        """Make an entry; returns its number. ``found`` is empty afterwards."""
        cdef CacheEntry* entry
        if self.n_entries == self.room:
            self.room = max(64, 2 * self.room)
            self.entries = <CacheEntry*>grown(self.entries, self.room * sizeof(CacheEntry))
        if 2 * self.n_entries >= self.table_size:
            self.rehash()
        if found.overflow:
            clear(found)
            found.overflow = True
        self.shrink(&found.tokens)
        if found.n_dependents:
            found.dependents = <Dependent*>grown(found.dependents, found.n_dependents * sizeof(Dependent))
        self.states.charge(sizeof(CacheEntry) + 8 + found.n_dependents * <Py_ssize_t>sizeof(Dependent)
                           + 4 * (self.n_words if found.tokens.bits else found.tokens.n + found.tokens.n_removed))
        entry = &self.entries[self.n_entries]
        entry.q, entry.n, entry.node, entry.overflow = q, n, node, found.overflow
        entry.tokens = found.tokens
        entry.dependents, entry.n_dependents = found.dependents, found.n_dependents
        begin(found)
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

    # ------------------------------------------------------------------ sets of tokens

    cdef int put_more(self, Tokens* out, int32_t token) except -1:
        """Add a token to a list that is full."""
        if out.n == MAX_LIST:
            self.spill(out)
        else:
            out.room = max(16, 2 * out.room)
            out.list = <int32_t*>grown(out.list, 4 * <Py_ssize_t>out.room)
        return self.put(out, token)

    cdef int put_mask(self, Tokens* out, const uint32_t* bits) except -1:
        """Add the tokens of a mask."""
        cdef int32_t i
        cdef uint32_t* into
        if out.bits == NULL:
            self.spill(out)
        into = out.bits
        for i in range(self.n_words):
            into[i] |= bits[i]
        return 0

    cdef int put_slice(self, Tokens* out, int32_t slice, const int32_t* removed, int32_t n_removed) except -1:
        """Add the tokens of a slice, less some of them."""
        cdef int32_t i, k
        cdef uint8_t* was
        if out.bits == NULL and out.slice < 0 and n_removed <= MAX_LIST:
            out.slice, out.n_removed = slice, n_removed
            if n_removed:
                out.removed = <int32_t*>grown(NULL, 4 * <Py_ssize_t>n_removed)
                memcpy(out.removed, removed, 4 * n_removed)
            return 0
        if out.bits == NULL:
            if out.slice == slice and out.n_removed == n_removed == 0:
                return 0
            self.spill(out)
        if n_removed == 0:
            return self.put_mask(out, self.slice_bits[slice])
        was = <uint8_t*>grown(NULL, n_removed)
        for i in range(n_removed):
            k = removed[i]
            was[i] = out.bits[k >> 5] >> (k & 31) & 1
        self.put_mask(out, self.slice_bits[slice])
        for i in range(n_removed):
            k = removed[i]
            if not was[i]:
                out.bits[k >> 5] &= ~(<uint32_t>1 << (k & 31))
        free(was)
        return 0

    cdef int put_entry(self, Tokens* out, int32_t index) except -1:
        """Add an entry's tokens."""
        cdef Tokens tokens = self.entries[index].tokens
        cdef int32_t i
        if tokens.bits:
            return self.put_mask(out, tokens.bits)
        if tokens.slice >= 0:
            self.put_slice(out, tokens.slice, tokens.removed, tokens.n_removed)
        for i in range(tokens.n):
            self.put(out, tokens.list[i])
        return 0

    cdef int spill(self, Tokens* out) except -1:
        """Make a mask of what is a list."""
        cdef Tokens old = out[0]
        cdef int32_t i
        out.bits = <uint32_t*>calloc(self.n_words, 4)
        if not out.bits:
            raise MemoryError()
        out.list = out.removed = NULL
        out.n = out.room = out.n_removed = 0
        out.slice = -1
        try:
            if old.slice >= 0:
                self.put_slice(out, old.slice, old.removed, old.n_removed)
            for i in range(old.n):
                self.put(out, old.list[i])
        finally:
            free(old.list)
            free(old.removed)
        return 0

    cdef int shrink(self, Tokens* tokens) except -1:
        """Make a list of a mask that has few tokens; give room back."""
        cdef int32_t i, k, count = 0
        cdef uint32_t* bits = tokens.bits
        cdef uint32_t word
        if bits:
            for i in range(self.n_words):
                count += popcount(bits[i])
            if count > MAX_LIST:
                return 0
            tokens.list = <int32_t*>grown(NULL, 4 * <Py_ssize_t>(count + 1))
            tokens.bits = NULL
            for i in range(self.n_words):
                word = bits[i]
                while word:
                    k = lowest_bit(word)
                    tokens.list[tokens.n] = 32 * i + k
                    tokens.n += 1
                    word &= word - 1
            tokens.room = tokens.n
            free(bits)
        elif tokens.n < tokens.room:
            tokens.list = <int32_t*>grown(tokens.list, 4 * <Py_ssize_t>(tokens.n + 1))
            tokens.room = tokens.n
        return 0


# --------------------------------------------------------------------------- plain C

cdef void begin(Found* found) noexcept:
    """Begin with no tokens and no dependents."""
    memset(found, 0, sizeof(Found))
    found.tokens.slice = -1


cdef void clear(Found* found) noexcept:
    """Free what a walk has found."""
    free_tokens(&found.tokens)
    free(found.dependents)
    begin(found)


cdef inline void free_tokens(Tokens* tokens) noexcept:
    free(tokens.bits)
    free(tokens.list)
    free(tokens.removed)


cdef inline uint64_t cache_hash(int32_t q, int32_t n, int32_t node) noexcept:
    return mixed((<uint64_t>q << 32 | <uint32_t>node) ^ <uint64_t>n << 20)


cdef inline int popcount(uint32_t word) noexcept nogil:
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return <int>((((word + (word >> 4)) & 0x0F0F0F0F) * <uint32_t>0x01010101) >> 24)


cdef inline int lowest_bit(uint32_t word) noexcept nogil:
    return popcount((word & (~word + 1)) - 1)
