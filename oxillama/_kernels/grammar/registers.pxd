"""Declarations of registers.pyx: registers of distinct values."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef enum:  # op of an edge: an operation on a register is REGISTER | kind << KIND | argument << ARGUMENT
    REGISTER = 16
    KIND = 5
    ARGUMENT = 8
    BEGIN = 0      # a value begins that must differ; argument 1: possibly all values have occurred
    MARK = 1       # the member with the argument as its mark begins; refused if it occurred before
    END = 2        # the value has ended; refused if its text occurred before
    END_JSON = 3   # the value has ended; refused if an equal JSON value occurred before
    AT_LEAST = 4   # refused if fewer members occurred
    FEWER = 5      # refused unless fewer members occurred
    ALL = 6        # refused unless all required marks occurred
    SPARE = 7      # refused unless fewer members occurred, required marks not counted

cdef enum:
    OF_TEXT = 1 << 24   # key of a member: OF_TEXT + number of its text, or its mark

cdef enum:  # slack of a register's RTN states; most is 0, least the highest number that operations compare with
    BY_TEXT = 1     # members differ by their texts, too
    MARKS = 1       # shift: marks below this are required

cdef enum:  # abstract registers: the part that one token cannot change
    SOME = (1 << 30) + 2
    FRESH_BIT = 1  # within the token a value began, or an object or array ended
    ALL_BIT = 2
    SIZE = 2       # shift: number of members, the open one included


cdef struct Text:
    int32_t parent, depth
    uint8_t byte, inside  # ``inside``: 1 within a string of JSON, 2 after a backslash there


cdef struct Members:
    int32_t rest, key, size


cdef struct Register:
    int32_t members, begin  # ``begin``: depth of the tape at which the open value began, -1: no open value


cdef class Registers:
    cdef Text* texts
    cdef Members* sets
    cdef Register* registers
    cdef dict text_numbers, set_numbers, register_numbers   # `pair` of the parts -> number
    cdef int32_t texts_room, sets_room, registers_room
    cdef readonly int32_t n_texts, n_sets, n_registers
    cdef readonly Py_ssize_t n_bytes
    cdef bint may_run_out
    cdef set cold            # (members, text) pairs: no member begins with the text

    cdef int32_t longer(self, int32_t text, uint8_t byte) except -1
    cdef int32_t suffix(self, int32_t text, int32_t begin) except -1
    cdef bytes bytes_of(self, int32_t text, int32_t begin)
    cdef int32_t with_member(self, int32_t members, int32_t key) except -1
    cdef int32_t with_mark(self, int32_t members, int32_t mark) except -1
    cdef int32_t number(self, int32_t members, int32_t begin) except -1
    cdef bint has(self, int32_t members, int32_t key) noexcept
    cdef bint begins_member(self, int32_t text, int32_t key) noexcept
    cdef int32_t marks(self, int32_t members, int32_t most) noexcept
    cdef bint is_hot(self, int32_t members, int32_t text) except -1
    cdef int32_t after(self, int32_t op, int32_t n, int32_t needed, int32_t tape) except -2
    cdef int32_t abstract(self, int32_t n, int32_t least, int32_t needed) noexcept


cdef inline object pair(int32_t a, int32_t b):
    """Two numbers as the key of a dict."""
    return <long long>a << 32 | <uint32_t>b


cdef inline int32_t operation(int32_t kind, int32_t argument) noexcept:
    """An operation on a register, in the form of an edge's op."""
    return REGISTER | kind << KIND | argument << ARGUMENT
