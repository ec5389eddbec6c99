"""What the end of a state depends on, as other kernels see it."""

from libc.stdint cimport int32_t

cdef enum:  # of RTN states; oxillama.grammar.program
    FINAL = 1
    CONSUMES = 2
    PURE_FINAL = 4
    ENDS_ALWAYS = 8
    ENDS_IF_ENOUGH = 16

cdef object flags_of(bytearray final, const int32_t[::1] least, dict arrays)
