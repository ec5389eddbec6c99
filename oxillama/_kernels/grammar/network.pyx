"""A grammar's recursive transition network (RTN), put together from pieces.

A piece is a `Program`: the states of some subnetworks. Others, *units*, are called by number and may be built when
they are first called; the piece of one is then appended. Numbers of states and labels never change.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from oxillama._kernels.grammar.memory cimport grown

import numpy as np

cnp.import_array()

cdef int32_t MOST = (1 << 30) - 1


cdef class Network:
    """The pieces of a program so far.

    Parameters
    ----------
    program : oxillama.grammar.program.Program; its arrays, and those of its units, are checked and copied
    """

    def __cinit__(self, object program):
        self.program = program
        self.label_numbers = {}
        try:
            self.append(program, None)
        except AttributeError as error:
            raise TypeError(f"program: expected a Program, got {type(program)}") from error
        self.start = program.start

    def __dealloc__(self):
        free(self.flags)
        free(self.least)
        free(self.most)
        free(self.slack)
        cdef int kind
        for kind in range(4):
            free(self.edges_of(kind).rows)
            free(self.edges_of(kind).first)
        free(self.labels)
        free(self.unit_start)

    cdef Edges* edges_of(self, int kind) noexcept:
        if kind == 0:
            return &self.bytes
        if kind == 1:
            return &self.tokens
        return &self.calls if kind == 2 else &self.epsilon

    cdef Py_ssize_t held(self) noexcept:
        """Bytes of memory."""
        cdef Py_ssize_t edges = self.bytes.n + self.tokens.n + self.calls.n + self.epsilon.n
        return 32 * <Py_ssize_t>self.n_states + 12 * edges + LABEL_BYTES * self.n_labels + 4 * self.n_units

    cdef int catch_up(self) except -1:
        """Append the pieces that were built since; 1 if there were any."""
        cdef list built = self.program.units.built
        cdef int found = 0
        while self.n_pieces < len(built):
            unit, piece = built[self.n_pieces]
            self.append(piece, unit)
            self.n_pieces += 1
            found = 1
        return found

    cdef int append(self, object piece, object unit) except -1:
        """Append a piece: all is checked first, so that one that is refused changes nothing."""
        cdef cnp.ndarray flags, least, most, slack, labels
        cdef list numbers
        cdef int32_t n, base = self.n_states, i, k, number
        cdef list edges = []
        cdef Edges* into
        cdef int32_t* rows
        cdef int32_t* first
        if isinstance(piece, int):  # the unit is another one by a second name
            self.name_unit(unit, self.unit_start[<int32_t>piece])
            return 0
        labels = checked_array("labels", piece.labels, cnp.NPY_UINT8, 2, 0, 255)
        if not 0 < len(piece.flags) < MOST_STATES - base or cnp.PyArray_DIM(labels, 1) != LABEL_BYTES:
            raise ValueError(f"program: expected 1 to 2**29 states and labels of 32 bytes, got {len(piece.flags)} and "
                             f"{labels.shape[1]}")
        n = <int32_t>len(piece.flags)
        if not 0 <= piece.start < n:
            raise ValueError(f"program: expected a start below {n}, got {piece.start}")
        flags = checked_array("flags", piece.flags, cnp.NPY_INT32, 1, 0, MOST, n)
        least = checked_array("least", piece.least, cnp.NPY_INT32, 1, 0, MOST, n)
        most = checked_array("most", piece.most, cnp.NPY_INT32, 1, -1, MOST, n)
        slack = checked_array("slack", piece.slack, cnp.NPY_INT32, 1, 0, MOST, n)
        edges.append(checked_edges(piece, "byte_edges", "byte_first", n, labels.shape[0] - 1))
        edges.append(checked_edges(piece, "token_edges", "token_first", n, len(self.program.token_sets) - 1))
        edges.append(checked_edges(piece, "calls", "calls_first", n, n - 1 if piece.units is None else MOST))
        edges.append(checked_edges(piece, "epsilon", "epsilon_first", n, MOST))
        for i in range(<int32_t>labels.shape[0]):
            if takes(<const uint8_t*>cnp.PyArray_DATA(labels), i, 255):
                raise ValueError(f"program.labels: expected none with byte 255, which is in no text, got it in {i}")
        self.make_room(n, edges)
        numbers = [
            self.take_label(<const uint8_t*>cnp.PyArray_DATA(labels) + LABEL_BYTES * i)
            for i in range(<int32_t>labels.shape[0])
        ]
        memcpy(self.flags + base, cnp.PyArray_DATA(flags), 4 * n)
        memcpy(self.least + base, cnp.PyArray_DATA(least), 4 * n)
        memcpy(self.most + base, cnp.PyArray_DATA(most), 4 * n)
        memcpy(self.slack + base, cnp.PyArray_DATA(slack), 4 * n)
        for k in range(4):
            into = self.edges_of(k)
            rows = <int32_t*>cnp.PyArray_DATA(<cnp.ndarray>edges[k][0])
            first = <int32_t*>cnp.PyArray_DATA(<cnp.ndarray>edges[k][1])
            for i in range(first[n]):
                number = rows[3 * i]
                if k == 0:
                    number = <int32_t>numbers[number]
                elif k == 2 and number < UNIT:
                    number += base
                into.rows[3 * (into.n + i)] = number
                into.rows[3 * (into.n + i) + 1] = rows[3 * i + 1]
                into.rows[3 * (into.n + i) + 2] = rows[3 * i + 2] + base
            for i in range(n + 1):
                into.first[base + i] = into.n + first[i]
            into.n += first[n]
        self.n_states += n
        if unit is not None:
            self.name_unit(unit, base + <int32_t>piece.start)
        return 0

    cdef int name_unit(self, int32_t unit, int32_t start) except -1:
        cdef int32_t i, room
        if unit >= self.n_units:
            room = max(64, 2 * unit)
            self.unit_start = <int32_t*>grown(self.unit_start, 4 * <Py_ssize_t>room)
            for i in range(self.n_units, room):
                self.unit_start[i] = -1
            self.n_units = room
        self.unit_start[unit] = start
        return 0

    cdef int32_t unit_of(self, int32_t q) noexcept:
        """The unit of a state, if every piece begins with its start; -1 in the first piece."""
        cdef int32_t i, found = -1, start = 0
        for i in range(self.n_units):
            if start < self.unit_start[i] <= q:
                found, start = i, self.unit_start[i]
        return found

    cdef int make_room(self, int32_t n, list edges) except -1:
        cdef int32_t k, more
        cdef Edges* into
        if self.n_states + n > self.states_room:
            self.states_room = self.n_states + n if self.n_states == 0 else 2 * (self.n_states + n)
            self.flags = <int32_t*>grown(self.flags, 4 * <Py_ssize_t>self.states_room)
            self.least = <int32_t*>grown(self.least, 4 * <Py_ssize_t>self.states_room)
            self.most = <int32_t*>grown(self.most, 4 * <Py_ssize_t>self.states_room)
            self.slack = <int32_t*>grown(self.slack, 4 * <Py_ssize_t>self.states_room)
            for k in range(4):
                into = self.edges_of(k)
                into.first = <int32_t*>grown(into.first, 4 * (<Py_ssize_t>self.states_room + 1))
        for k in range(4):
            into = self.edges_of(k)
            more = edges[k][2]
            if into.n + more > into.room or into.rows == NULL:
                into.room = 1 + (more if into.n == 0 else 2 * (into.n + more))
                into.rows = <int32_t*>grown(into.rows, 12 * <Py_ssize_t>into.room)
        return 0

    cdef int32_t take_label(self, const uint8_t* bits) except -1:
        """The number of a label."""
        cdef object key = bits[:LABEL_BYTES], known = self.label_numbers.get(key)
        if known is not None:
            return known
        if self.n_labels == self.labels_room:
            self.labels = <uint8_t*>grown(self.labels, 2 * LABEL_BYTES * (16 + <Py_ssize_t>self.n_labels))
            self.labels_room = 2 * (16 + self.n_labels)
        memcpy(self.labels + LABEL_BYTES * self.n_labels, bits, LABEL_BYTES)
        self.label_numbers[key] = self.n_labels
        self.n_labels += 1
        return self.n_labels - 1


cdef cnp.ndarray checked_array(str name, object values, int kind, int dimensions, int64_t low, int64_t high,
                               Py_ssize_t length=-1):
    """An array of a piece, in one block of memory, checked."""
    cdef cnp.ndarray array
    cdef const int32_t* numbers
    cdef Py_ssize_t i
    cdef int64_t least = high, most = low
    if not isinstance(values, np.ndarray) or cnp.PyArray_TYPE(values) != kind or values.ndim != dimensions:
        raise TypeError(f"program.{name}: expected an array of {np.dtype('u1' if kind == cnp.NPY_UINT8 else 'i4')} in "
                        f"{dimensions} dimensions, got {getattr(values, 'dtype', type(values))}")
    if length >= 0 and len(values) != length:
        raise ValueError(f"program.{name}: expected {length} rows, got {len(values)}")
    array = values if cnp.PyArray_IS_C_CONTIGUOUS(values) else np.ascontiguousarray(values)
    if kind == cnp.NPY_INT32:
        numbers = <const int32_t*>cnp.PyArray_DATA(array)
        for i in range(cnp.PyArray_SIZE(array)):
            least = min(least, <int64_t>numbers[i])
            most = max(most, <int64_t>numbers[i])
        if least < low or most > high:
            raise ValueError(f"program.{name}: expected {low} to {high}, got {least} to {most}")
    return array


cdef tuple checked_edges(object piece, str name, str first, int32_t n, int64_t most):
    """Edges (what, op, target), of which ``what`` is at most ``most``; and where each state's begin."""
    cdef cnp.ndarray edges = checked_array(name, getattr(piece, name), cnp.NPY_INT32, 2, 0, MOST)
    cdef int32_t n_edges = <int32_t>len(edges)
    cdef cnp.ndarray starts = checked_array(first, getattr(piece, first), cnp.NPY_INT32, 1, 0, n_edges, n + 1)
    cdef const int32_t* rows = <const int32_t*>cnp.PyArray_DATA(edges)
    cdef const int32_t* begin = <const int32_t*>cnp.PyArray_DATA(starts)
    cdef bint is_call = name == "calls"
    cdef int32_t i, what
    if cnp.PyArray_DIM(edges, 1) != 3:
        raise ValueError(f"program.{name}: expected rows of 3, got {edges.shape[1]}")
    for i in range(n_edges):
        what = rows[3 * i]
        if rows[3 * i + 2] >= n or what > most or (is_call and n <= what < UNIT):
            raise ValueError(f"program.{name}: expected numbers up to {most} and states below {n}, got others")
    if begin[0] != 0 or begin[n] != n_edges:
        raise ValueError(f"program.{first}: expected ascending numbers from 0 to {n_edges}, got others")
    for i in range(n):
        if begin[i] > begin[i + 1]:
            raise ValueError(f"program.{first}: expected ascending numbers from 0 to {n_edges}, got others")
    return edges, starts, n_edges
