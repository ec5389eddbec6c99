"""Classes of characters that some rows of ranges do not tell apart.

A row is what a state of an automaton takes, or a set of characters: ranges, each with a target. First all rows are
noted, then their bounds cut the code points into intervals, then each row splits the classes of these.
"""

from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from oxillama._kernels.grammar.dfa cimport Arc
from oxillama._kernels.grammar.memory cimport grown, mixed

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
        free(self.number)
        free(self.sample)
        free(self.split_number)
        free(self.column)
        free(self.table)

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
            self.used[point // PAGE] = True
            self.n_intervals += 1

    cdef int settle(self) except -1:
        """All rows are noted: one class of all intervals."""
        cdef int32_t page, point, n = self.n_intervals
        self.n, self.table_size = 1, 16
        while self.table_size < 2 * n:
            self.table_size *= 2
        self.first = <int32_t*>grown(NULL, 4 * (<Py_ssize_t>n + 1))
        self.number = <int32_t*>grown(NULL, 4 * <Py_ssize_t>n)
        self.sample = <int32_t*>grown(NULL, 4 * <Py_ssize_t>n)
        self.split_number = <int32_t*>grown(NULL, 4 * <Py_ssize_t>n)
        self.column = <int32_t*>grown(NULL, 4 * <Py_ssize_t>n)
        self.table = <int32_t*>grown(NULL, 4 * <Py_ssize_t>self.table_size)
        memset(self.number, 0, 4 * <Py_ssize_t>n)
        self.sample[0] = 0
        n = 0
        for page in range(N_PAGES):
            if not self.used[page]:
                continue
            for point in range(page * PAGE, (page + 1) * PAGE):
                if self.begins[point >> 6] >> (point & 63) & 1:
                    self.first[n] = point
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
        cdef int32_t i, k, slot, found = 0
        cdef int32_t* old = self.number
        if self.n == self.n_intervals:
            return 0
        memset(self.column, 0xFF, 4 * <Py_ssize_t>self.n_intervals)
        for i in range(n):
            for k in range(self.interval(row[i].first), self.interval(row[i].last + 1)):
                self.column[k] = row[i].target
        memset(self.table, 0xFF, 4 * <Py_ssize_t>self.table_size)
        for i in range(self.n_intervals):  # the table holds the first interval of each new class
            slot = <int32_t>(
                mixed(<uint64_t>old[i] << 32 ^ <uint64_t>self.column[i]) & <uint64_t>(self.table_size - 1)
            )
            k = self.table[slot]
            while k >= 0 and (old[k] != old[i] or self.column[k] != self.column[i]):
                slot = (slot + 1) & (self.table_size - 1)
                k = self.table[slot]
            if k < 0:
                self.table[slot] = i
                self.sample[found] = self.first[i]
                self.split_number[i] = found
                found += 1
            else:
                self.split_number[i] = self.split_number[k]
        self.number, self.split_number, self.n = self.split_number, old, found
        return 0

    cdef int fill(self, const Arc* row, int32_t n, int32_t* targets) except -1:
        """The target of each class in a row, which has split them; -1 for none."""
        cdef int32_t i, k
        memset(targets, 0xFF, 4 * <Py_ssize_t>self.n)
        for i in range(n):
            for k in range(self.interval(row[i].first), self.interval(row[i].last + 1)):
                targets[self.number[k]] = row[i].target
        return 0
