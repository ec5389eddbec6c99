"""Addresses of the states of a batch's sequences, and of the records of their rows: checked once, then pointers.

A sequence keeps a *state*, an array of floats in which each layer has a range. A pass reads the states of its
sequences from one array and writes them to another, or to the same, which saves a third of the memory traffic.

Rows that may be rolled back (open rows) do not change the state: for each of them the pass records the inputs of the
layers' memories. The next pass applies the records of the accepted rows to the state before its own rows: scans
without matrix products. Rows in the state are called settled.
"""

cimport numpy as cnp
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from bisect import bisect_left

from oxillama._kernels.arrays cimport PY_SSIZE_T_MAX, f32_data, f32_out, fits, i32_data
from oxillama._kernels.debugging cimport ensure

cnp.import_array()


cdef class StateBatch:
    """The batch rows of each sequence, and the states of the sequences.

    Args:
        before: float32 (floats,) for each sequence, the state before the pass; None for zeros
        after: float32 (floats,) for each sequence, receives the state after the pass; may be the array in ``before``
        row_start: int32 (sequences + 1,), the batch rows of each sequence
        floats: number of floats of a state
        earlier: for each sequence the records, float32 (record_floats,), of the rows between the state in ``before``
            and its first row in the batch
        recorded: for each sequence arrays float32 (record_floats,), which receive the records of its last rows
        settled: int32 (sequences,), how many of its rows, earlier ones first, go into the state in ``after``
        record_floats: number of floats of a record
    """

    def __cinit__(self, before: Sequence[np.ndarray | None], after: Sequence[np.ndarray], cnp.ndarray row_start,
                  Py_ssize_t floats, earlier: Sequence[Sequence[np.ndarray]], recorded: Sequence[Sequence[np.ndarray]],
                  cnp.ndarray settled, Py_ssize_t record_floats):
        cdef Py_ssize_t s, n, n_earlier = 0, n_recorded = 0
        cdef const int* starts
        cdef const int* ends
        self.owners = tuple(before), tuple(after), tuple(map(tuple, earlier)), tuple(map(tuple, recorded))
        first, last, early, late = self.owners
        self.n_sequences = n = len(last)
        self.floats, self.record_floats = floats, record_floats
        for name, found in (("before", first), ("earlier", early), ("recorded", late)):
            if len(found) != n:
                raise ValueError(f"{name}: expected one for each of {n} sequences, got {len(found)}")
        if floats < 0 or record_floats < 0:
            raise ValueError(f"floats: expected integers >= 0, got {floats} and {record_floats}")
        starts, ends = i32_data(row_start, n + 1, "row_start"), i32_data(settled, n, "settled")
        self.before = <const float**>calloc(n + 1, sizeof(float*))
        self.after = <float**>calloc(n + 1, sizeof(float*))
        self.earlier = <const float**>calloc(sum(map(len, early)) + 1, sizeof(float*))
        self.recorded = <float**>calloc(sum(map(len, late)) + 1, sizeof(float*))
        self.row_start = <int*>calloc(n + 1, sizeof(int))
        self.earlier_start = <int*>calloc(n + 1, sizeof(int))
        self.recorded_start = <int*>calloc(n + 1, sizeof(int))
        self.settled = <int*>calloc(n + 1, sizeof(int))
        if (self.before == NULL or self.after == NULL or self.earlier == NULL or self.recorded == NULL
                or self.row_start == NULL or self.earlier_start == NULL or self.recorded_start == NULL
                or self.settled == NULL):
            raise MemoryError
        memcpy(self.row_start, starts, (n + 1) * sizeof(int))
        memcpy(self.settled, ends, n * sizeof(int))
        if self.row_start[0] != 0:
            raise ValueError(f"row_start: expected 0 first, got {self.row_start[0]}")
        for s in range(n):
            rows = <Py_ssize_t>self.row_start[s + 1] - self.row_start[s]
            if rows < 0:
                raise ValueError(f"sequence {s}: expected a row count >= 0, got {rows}")
            if len(late[s]) > rows:
                raise ValueError(f"recorded: expected at most {rows} rows of sequence {s}, got {len(late[s])}")
            if not 0 <= self.settled[s] <= rows + len(early[s]):
                raise ValueError(f"settled: expected 0 to {rows + len(early[s])} for sequence {s}, "
                                 f"got {self.settled[s]}")
            self.before[s] = NULL if first[s] is None else f32_data(first[s], floats, "before")
            self.after[s] = f32_out(last[s], floats, "after")
            for row in early[s]:
                self.earlier[n_earlier] = f32_data(row, record_floats, "earlier")
                n_earlier += 1
            for row in late[s]:
                self.recorded[n_recorded] = f32_out(row, record_floats, "recorded")
                n_recorded += 1
            self.earlier_start[s + 1], self.recorded_start[s + 1] = n_earlier, n_recorded
            self.has_open_rows |= self.settled[s] < rows + len(early[s])
        self.n_rows = self.row_start[n]
        self.n_scanned = self.n_rows + n_earlier
        self.is_plain = not n_earlier and not self.has_open_rows
        self.check_owners()

    def __dealloc__(self):
        free(self.before)
        free(self.after)
        free(self.earlier)
        free(self.recorded)
        free(self.row_start)
        free(self.earlier_start)
        free(self.recorded_start)
        free(self.settled)
        free(self.spare)

    cdef int check_owners(self) except -1:
        """Raises ValueError if memory that is written overlaps other states or records."""
        cdef Py_ssize_t i, size = self.floats * <Py_ssize_t>sizeof(float)
        cdef Py_ssize_t record = self.record_floats * <Py_ssize_t>sizeof(float)
        written = [(<uintptr_t>self.after[i], size) for i in range(self.n_sequences)]
        written += [(<uintptr_t>self.recorded[i], record) for i in range(self.recorded_start[self.n_sequences])]
        written.sort()
        for i in range(len(written) - 1):
            if written[i][0] + written[i][1] > written[i + 1][0]:
                raise ValueError("after, recorded: expected a state and records of its own for each sequence, "
                                 "got some that overlap")
        for i in range(self.n_sequences):
            if self.before[i] != NULL and self.before[i] != self.after[i]:
                self.check_read(written, <uintptr_t>self.before[i], size, "before", "state")
        for i in range(self.earlier_start[self.n_sequences]):
            self.check_read(written, <uintptr_t>self.earlier[i], record, "earlier", "record")
        return 0

    cdef int check_read(self, list written, uintptr_t at, Py_ssize_t size, str name, str what) except -1:
        """Raises ValueError if memory that is read is also written."""
        i = bisect_left(written, (at, 0))
        if (i < len(written) and written[i][0] - at < size
                or i and written[i - 1][0] + written[i - 1][1] > at):
            raise ValueError(f"{name}: expected a {what} that no other pass writes, got one that overlaps")
        return 0

    cdef int check(self, Py_ssize_t offset, Py_ssize_t count, Py_ssize_t size) except -1:
        """Raises ValueError unless ``count`` * ``size`` floats from ``offset`` on lie within a state."""
        if offset < 0 or not fits(count, size, self.floats - offset):
            raise ValueError(f"offset: expected {count} x {size} floats within the {self.floats} of a state, "
                             f"got {offset}")
        return 0

    cdef float* take(self, Py_ssize_t s, Py_ssize_t at, Py_ssize_t n) noexcept nogil:
        """The state after the pass of sequence ``s``, from ``at`` on; its n floats are copied from the state before."""
        cdef float* memory = self.after[s] + at
        ensure(0 <= s < self.n_sequences and 0 <= at <= self.floats - n)
        if self.before[s] == NULL:
            memset(memory, 0, n * sizeof(float))
        elif self.before[s] != self.after[s]:
            memcpy(memory, self.before[s] + at, n * sizeof(float))
        return memory

    # --- records ----------------------------------------------------------------------------------

    cdef int check_record(self, Py_ssize_t record, Py_ssize_t n) except -1:
        """Raises ValueError unless ``n`` floats from ``record`` on lie within a record."""
        if record < 0 or not fits(n, 1, self.record_floats - record):
            raise ValueError(f"record: expected {n} floats within the {self.record_floats} of a record, got {record}")
        return 0

    cdef void note(self, Py_ssize_t record, const float* x, Py_ssize_t step, Py_ssize_t n) noexcept nogil:
        """Copies ``n`` floats of each recorded row to its record; row r of the batch is at x + r * step."""
        cdef Py_ssize_t s, i, end, first
        for s in range(self.n_sequences):
            first, end = self.recorded_start[s], self.recorded_start[s + 1]
            for i in range(first, end):
                memcpy(self.recorded[i] + record, x + (self.row_start[s + 1] - end + i) * step, n * sizeof(float))

    cdef int grow_spare(self, int threads, Py_ssize_t n) except -1:
        """Allocates ``n`` floats for each thread: the memory of open rows."""
        if not self.has_open_rows or not fits(threads, n, PY_SSIZE_T_MAX // <Py_ssize_t>sizeof(float)):
            n = 0
        if threads * n > self.spare_floats:
            free(self.spare)
            self.spare_floats = 0
            self.spare = <float*>malloc(threads * n * sizeof(float))
            if self.spare == NULL:
                raise MemoryError
            self.spare_floats = threads * n
        return 0
