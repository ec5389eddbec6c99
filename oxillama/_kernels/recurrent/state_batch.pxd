"""Addresses of states and records, for the scans of every target."""

from libc.stdint cimport uintptr_t


cdef class StateBatch:
    cdef tuple owners
    cdef const float** before
    cdef float** after
    cdef const float** earlier
    cdef float** recorded
    cdef int* row_start
    cdef int* earlier_start
    cdef int* recorded_start
    cdef int* settled
    cdef float* spare
    cdef Py_ssize_t n_sequences, n_rows, n_scanned, floats, record_floats, spare_floats
    cdef bint has_open_rows, is_plain  # open rows do not settle; plain: neither open rows nor records

    cdef int check_owners(self) except -1
    cdef int check_read(self, list written, uintptr_t at, Py_ssize_t size, str name, str what) except -1
    cdef int check(self, Py_ssize_t offset, Py_ssize_t count, Py_ssize_t size) except -1
    cdef float* take(self, Py_ssize_t s, Py_ssize_t at, Py_ssize_t n) noexcept nogil
    cdef int check_record(self, Py_ssize_t record, Py_ssize_t n) except -1
    cdef void note(self, Py_ssize_t record, const float* x, Py_ssize_t step, Py_ssize_t n) noexcept nogil
    cdef int grow_spare(self, int threads, Py_ssize_t n) except -1
