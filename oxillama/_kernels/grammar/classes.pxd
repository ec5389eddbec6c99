"""Classes of characters that some rows of ranges do not tell apart."""

from libc.stdint cimport int32_t, uint8_t, uint64_t

from oxillama._kernels.grammar.dfa cimport Arc


cdef enum:
    PAGE = 1 << 10                      # code points
    N_PAGES = (0x10FFFF + PAGE) // PAGE


cdef class Classes:
    cdef uint64_t* begins       # a bit for each code point with which an interval begins
    cdef uint8_t[N_PAGES] used  # whether any begins in a page
    cdef int32_t* first         # the first code point of each interval, and what follows the last one
    cdef int32_t* number        # of each interval, that of its class
    cdef int32_t* sample        # a code point of each class
    cdef int32_t* split_number  # the same after a row has split them, while it does
    cdef int32_t* column        # the row's target for each interval
    cdef int32_t* table         # hash table of intervals, -1 where free
    cdef int32_t n_intervals, table_size
    cdef readonly int32_t n
    cdef int note(self, const Arc* row, int32_t n) except -1
    cdef void cut(self, int32_t point) noexcept
    cdef int settle(self) except -1
    cdef int split(self, const Arc* row, int32_t n) except -1
    cdef int fill(self, const Arc* row, int32_t n, int32_t* targets) except -1
    cdef int32_t interval(self, int32_t point) noexcept
