"""Classes of characters that some rows of ranges do not tell apart.

A row is what a state of an automaton takes, or a set of characters: ranges, each with a target. First all rows are
noted, then their bounds cut the code points into intervals, then each row splits the classes of these.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from oxillama._kernels.grammar.dfa cimport Arc
from oxillama._kernels.grammar.memory cimport grown, lowest_bit
from oxillama._kernels.grammar.partitions cimport begin_partition, end_partition, refine

cdef enum:
    LAST_POINT = 0x10FFFF
    WORDS = (LAST_POINT + 64) // 64


cdef class Classes:
    """All code points in classes. Rows are given to `note`, then, after `settle`, to `split`."""

    def __cinit__(self):
        self.begins = <uint64_t*>calloc(WORDS, 8)
        if not self.begins:
            raise MemoryError()
        self.cut(0)

    def __dealloc__(self):
        free(self.begins)
        free(self.first)
        free(self.column)
        end_partition(&self.parts)

    cdef int note(self, const Arc* row, int32_t n) except -1:
        """A row that is going to split the classes."""
        cdef int32_t i
        for i in range(n):
            self.cut(row[i].first)
            if row[i].last < LAST_POINT:
                self.cut(row[i].last + 1)
        return 0

    cdef void cut(self, int32_t point) noexcept:
        """An interval begins with a code point."""
        if not self.begins[point >> 6] >> (point & 63) & 1:
            self.begins[point >> 6] |= <uint64_t>1 << (point & 63)
            self.n_intervals += 1

    cdef int settle(self) except -1:
        """All rows are noted: one class of all intervals."""
        cdef int32_t i, n = 0
        cdef uint64_t word
        begin_partition(&self.parts, self.n_intervals)
        self.n, self.number = 1, self.parts.number
        self.first = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>self.n_intervals + 1))
        self.column = <int64_t*>grown(NULL, 8 * <Py_ssize_t>self.n_intervals)
        for i in range(WORDS):
            word = self.begins[i]
            while word:
                self.first[n] = 64 * i + lowest_bit(word)
                word &= word - 1
                n += 1
        self.first[n] = LAST_POINT + 1
        return 0

    cdef int32_t interval(self, int32_t point) noexcept:
        """The interval of a code point; of one beyond the last, how many there are."""
        cdef int32_t low = 0, high = self.n_intervals, middle
        while low < high:
            middle = (low + high) >> 1
            if self.first[middle + 1] <= point:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int split(self, const Arc* row, int32_t n) except -1:
        """Tell apart what has different targets in this row."""
        cdef int32_t i, k
        if self.n == self.n_intervals:
            return 0
        memset(self.column, 0xFF, 8 * <Py_ssize_t>self.n_intervals)
        for i in range(n):
            for k in range(self.interval(row[i].first), self.interval(row[i].last + 1)):
                self.column[k] = row[i].target
        refine(&self.parts, self.column)
        self.n, self.number = self.parts.n_sets, self.parts.number
        return 0

    cdef int32_t sample(self, int32_t k) noexcept:
        """A code point of a class."""
        return self.first[self.parts.sample[k]]

    cdef int fill(self, const Arc* row, int32_t n, int32_t* targets) except -1:
        """The target of each class in a row, which has split them; -1 for none."""
        cdef int32_t i, k
        memset(targets, 0xFF, 4 * <Py_ssize_t>self.n)
        for i in range(n):
            for k in range(self.interval(row[i].first), self.interval(row[i].last + 1)):
                targets[self.number[k]] = row[i].target
        return 0
