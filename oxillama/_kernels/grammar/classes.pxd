"""Classes of characters that some rows of ranges do not tell apart."""

from libc.stdint cimport int32_t, int64_t, uint64_t

from oxillama._kernels.grammar.dfa cimport Arc
from oxillama._kernels.grammar.partitions cimport Partition


cdef class Classes:
    cdef uint64_t* begins       # a bit for each code point with which an interval begins
    cdef int32_t* first         # the first code point of each interval, and what follows the last one
    cdef Partition parts        # the intervals in classes
    cdef int32_t* number        # of each interval, that of its class
    cdef int64_t* column        # the row's target for each interval
    cdef int32_t n_intervals
    cdef readonly int32_t n
    cdef int note(self, const Arc* row, int32_t n) except -1
    cdef void cut(self, int32_t point) noexcept
    cdef int settle(self) except -1
    cdef int split(self, const Arc* row, int32_t n) except -1
    cdef int32_t sample(self, int32_t k) noexcept
    cdef int fill(self, const Arc* row, int32_t n, int32_t* targets) except -1
    cdef int32_t interval(self, int32_t point) noexcept
