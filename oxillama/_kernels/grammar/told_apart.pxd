"""What parser states know of containers whose members are told apart, as other kernels see it."""

from libc.stdint cimport int32_t

from oxillama._kernels.grammar.stacks cimport Stacks

cdef tuple open_in(Stacks stacks, int32_t state)
cdef bint is_hot(Stacks stacks, int32_t state) except -1
cdef int32_t abstracted(Stacks stacks, int32_t state) except -1
