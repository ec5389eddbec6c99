"""Declarations of stacks.pyx: the stacks of a grammar's parser states."""

from libc.stdint cimport int32_t, uint8_t

from oxillama._kernels.grammar.item_sets cimport Item, Pool
from oxillama._kernels.grammar.network cimport Network
from oxillama._kernels.grammar.registers cimport Registers
from oxillama._kernels.grammar.rows cimport Rows

cdef enum:
    MAX_WIDTH = 4096   # items of one parser state or stack
    BOTTOM = 0         # the stack below the root
    OPEN = 1           # a stack of unknown contents
    ACCEPTS = 1        # flag: the text may end here
    DEPENDENT = 2      # flag: what follows depends on the open stack
    RESULT_FLAGS = 3   # ACCEPTS and DEPENDENT
    ABSTRACT = 4       # flag: an item has an abstract count
    REGISTERED = 8     # flag: an open container has members that differ by their texts
    TAPED = 16         # flag: also, a value of it is open, so that its bytes are kept
    FRESH = 32         # flag: with an abstract register; a value began or a container ended within the token
    ABOVE = 1 << 30    # abstract count: at least m of {m,n}, and no token can bring it to n
    BELOW = ABOVE + 1  # abstract count: less than m of {m,n}, and no token can bring it to m


cdef class Stacks(Network):
    cdef Pool stacks, states
    cdef Rows rows           # the parser state after each byte
    cdef int32_t kept_room
    cdef Py_ssize_t network_bytes
    # distinct members of containers
    cdef Registers registers
    cdef int32_t* tapes      # (states): bytes since the first open value began, 0: no open value
    cdef uint8_t* verdicts   # (states): whether a TAPED state has a continuation: 1 yes, 2 no, 0 unknown
    cdef int32_t made_tape
    cdef Py_ssize_t register_bytes
    cdef dict open_values    # stack -> its registers with an open value
    cdef dict abstracts      # stack -> the stack with abstract registers
    cdef dict unions         # two stacks -> their union
    cdef readonly Py_ssize_t n_bytes, limit
    cdef public Py_ssize_t budget
    cdef Py_ssize_t allowed, left  # work of the current operation
    cdef Py_ssize_t done           # work of earlier operations

    cdef int catch_up(self) except -1
    cdef bint is_register(self, int32_t q) noexcept
    cdef bint is_told_apart(self, int32_t q) noexcept
    cdef int32_t drop_subsumed(self, Item* items, int32_t n) noexcept
    cdef int push(self, int32_t q, int32_t n, int32_t p) except -1
    cdef int unite(self, int32_t a, int32_t b, int depth) except -1
    cdef int charge(self, Py_ssize_t more) except -1
    cdef void allow(self, Py_ssize_t work) noexcept
    cdef int intern(self, Pool* pool, const Item* items, int32_t n, uint8_t flags) except -1
    cdef tuple open_in(self, int32_t state)
    cdef list unknown_below(self, int32_t p, uint8_t flag, dict known)
    cdef tuple open_in_stack(self, int32_t p)
    cdef int32_t abstracted(self, int32_t state) except -1
    cdef int32_t abstracted_set(self, Pool* pool, int32_t number) except -1
    cdef bint is_hot(self, int32_t state) except -1

    cdef inline int spend(self, Py_ssize_t work) except -1:
        self.left -= work
        if self.left < 0:
            self.raise_overspent()
        return 0

    cdef int raise_overspent(self) except -1
