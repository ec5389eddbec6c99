"""Assertions on the kernels' internal invariants: checked in builds with ``OXILLAMA_DEBUG``, otherwise compiled out."""

cdef extern from "<assert.h>" nogil:
    void ensure "assert"(bint condition)
