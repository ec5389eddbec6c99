"""Classes of characters: code points that have the same target in every row of ranges.

A row is the edges of an automaton's state, or a set of characters: ranges, each with a target. First all rows are
noted, then their bounds cut the code points into intervals, then each row splits the classes of these intervals.
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
    """All code points, in classes. Each row is given to `note` and, after `settle`, to `split`."""

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
        """Notes the bounds of a row that will split the classes."""
        cdef int32_t i
        for i in range(n):
            self.cut(row[i].first)
            if row[i].last < LAST_POINT:
                self.cut(row[i].last + 1)
        return 0

    cdef void cut(self, int32_t point) noexcept:
        """Begins an interval at a code point."""
        if not self.begins[point >> 6] >> (point & 63) & 1:
            self.begins[point >> 6] |= <uint64_t>1 << (point & 63)
            self.n_intervals += 1

    cdef int settle(self) except -1:
        """Ends the noting of rows: makes one class of all intervals."""
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
        """The interval of a code point; beyond the last code point, the number of intervals."""
        cdef int32_t low = 0, high = self.n_intervals, middle
        while low < high:
            middle = (low + high) >> 1
            if self.first[middle + 1] <= point:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int split(self, const Arc* row, int32_t n) except -1:
        """Splits the classes by their targets in this row."""
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
        """A code point of class ``k``."""
        return self.first[self.parts.sample[k]]

    cdef int fill(self, const Arc* row, int32_t n, int32_t* targets) except -1:
        """Writes the target of each class in a row that has split them; -1 for no target."""
        cdef int32_t i, k
        memset(targets, 0xFF, 4 * <Py_ssize_t>self.n)
        for i in range(n):
            for k in range(self.interval(row[i].first), self.interval(row[i].last + 1)):
                targets[self.number[k]] = row[i].target
        return 0
