"""What holds inside of the kernels, whatever they are given: checked where ``OXILLAMA_DEBUG`` is set, else gone."""

cdef extern from "<assert.h>" nogil:
    void ensure "assert"(bint condition)
