"""Declarations of classes.pyx: classes of characters with equal targets in some rows of ranges."""

from libc.stdint cimport int32_t, int64_t, uint64_t

from oxillama._kernels.grammar.dfa cimport Arc
from oxillama._kernels.grammar.partitions cimport Partition


cdef class Classes:
    cdef uint64_t* begins       # a bit for each code point at which an interval begins
    cdef int32_t* first         # (intervals + 1): first code point of each interval, then the end
    cdef Partition parts        # partition of the intervals into classes
    cdef int32_t* number        # (intervals): number of the interval's class
    cdef int64_t* column        # (intervals): target of the interval in the current row
    cdef int32_t n_intervals
    cdef readonly int32_t n
    cdef int note(self, const Arc* row, int32_t n) except -1
    cdef void cut(self, int32_t point) noexcept
    cdef int settle(self) except -1
    cdef int split(self, const Arc* row, int32_t n) except -1
    cdef int32_t sample(self, int32_t k) noexcept
    cdef int fill(self, const Arc* row, int32_t n, int32_t* targets) except -1
    cdef int32_t interval(self, int32_t point) noexcept
