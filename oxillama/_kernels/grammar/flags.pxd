"""What the end of a state depends on, as other kernels see it."""

from libc.stdint cimport uint8_t

from oxillama._kernels.grammar.network cimport Program

cdef enum:  # of RTN states
    FINAL = 1
    CONSUMES = 2
    PURE_FINAL = 4
    ENDS_ALWAYS = 8
    ENDS_IF_ENOUGH = 16

cdef int set_flags(Program program, const uint8_t* is_final) except -1
