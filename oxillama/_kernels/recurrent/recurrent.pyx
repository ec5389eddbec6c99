"""Recurrent mixers: causal convolution, selective scans, token shift, RWKV's memories.

A sequence keeps a *state*, floats in which each layer has a range of its own. A pass reads the states of its
sequences in one place and writes them to another, or to the same, which saves a third of the memory traffic.

Rows that may be taken back do not go into the state: the pass records what enters the layers' memories in each of
them. The next pass puts the records of those that stayed into the state before its own rows: scans without matrices.

Threads share out channels, 16 at a time, or heads; the tokens of a sequence go through one after the other, each
with the same operations in the same order. So a row's bits depend on the tokens before it and on nothing else.
Memories are stored in blocks (rows, 16): 16 channels side by side, padded where there are fewer.
"""

cimport numpy as cnp
from cython.parallel cimport prange, threadid
from libc.math cimport sqrt
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from bisect import bisect_left

from oxillama._kernels.arrays cimport (
    PY_SSIZE_T_MAX, check_apart, check_dimensions, f32_data, f32_out, f32_rows, f32_rows_out, fits, i32_data, rows_of)
from oxillama._kernels.debugging cimport ensure
from oxillama._kernels.recurrent.scans cimport Recurrence, Scan, Wkv, replay, scan
from oxillama._kernels.simd.mathfun cimport exp16, over_logistic16, softplus16
from oxillama._kernels.simd.rows cimport load_part, store_part, threads_for
from oxillama._kernels.simd.simd cimport *

cnp.import_array()

# Blocks are handed out 8 at a time: their memories, a few kilobytes each, lie side by side and are read in one go.


cdef inline Py_ssize_t blocks(Py_ssize_t n) noexcept nogil:
    """Blocks of 16 that hold ``n`` channels."""
    return (n + 15) // 16


cdef class StateBatch:
    """Where the rows of a batch stand, and where the states of their sequences are.

    Parameters
    ----------
    before : float32 (floats,) for each sequence, the state that each pass begins with; None for zeros
    after : float32 (floats,) for each sequence, the state that it leaves; the array in ``before`` or one of its own
    row_start : int32 (sequences + 1,), the batch rows of each sequence
    floats : of a state
    earlier : for each sequence the records, float32 (record_floats,), of the rows between the state in ``before``
        and its first row in the batch
    recorded : for each sequence arrays float32 (record_floats,), into which its last rows are recorded
    settled : int32 (sequences,), how many of its rows, earlier ones first, go into the state that it leaves
    record_floats : of a record
    """

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
    cdef bint has_open_rows, is_plain  # rows that do not settle; nor any records

    def __cinit__(self, before, after, cnp.ndarray row_start, Py_ssize_t floats, earlier, recorded,
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
        """That nothing which is written is another's, too."""
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
        """That memory which is read is not written."""
        i = bisect_left(written, (at, 0))
        if (i < len(written) and written[i][0] - at < size
                or i and written[i - 1][0] + written[i - 1][1] > at):
            raise ValueError(f"{name}: expected a {what} that no other pass writes, got one that overlaps")
        return 0

    cdef int check(self, Py_ssize_t offset, Py_ssize_t count, Py_ssize_t size) except -1:
        """That ``count`` pieces of ``size`` floats from ``offset`` on lie within a state."""
        if offset < 0 or not fits(count, size, self.floats - offset):
            raise ValueError(f"offset: expected {count} x {size} floats within the {self.floats} of a state, "
                             f"got {offset}")
        return 0

    cdef float* take(self, Py_ssize_t s, Py_ssize_t at, Py_ssize_t n) noexcept nogil:
        """A part of the state of sequence ``s``, where the pass leaves it."""
        cdef float* memory = self.after[s] + at
        ensure(0 <= s < self.n_sequences and 0 <= at <= self.floats - n)
        if self.before[s] == NULL:
            memset(memory, 0, n * sizeof(float))
        elif self.before[s] != self.after[s]:
            memcpy(memory, self.before[s] + at, n * sizeof(float))
        return memory

    # --- records ----------------------------------------------------------------------------------

    cdef int check_record(self, Py_ssize_t record, Py_ssize_t n) except -1:
        """That ``n`` floats from ``record`` on lie within a record."""
        if record < 0 or not fits(n, 1, self.record_floats - record):
            raise ValueError(f"record: expected {n} floats within the {self.record_floats} of a record, got {record}")
        return 0

    cdef void note(self, Py_ssize_t record, const float* x, Py_ssize_t step, Py_ssize_t n) noexcept nogil:
        """Records the ``n`` floats at ``x`` of each row; rows are ``step`` floats apart."""
        cdef Py_ssize_t s, i, end, first
        for s in range(self.n_sequences):
            first, end = self.recorded_start[s], self.recorded_start[s + 1]
            for i in range(first, end):
                memcpy(self.recorded[i] + record, x + (self.row_start[s + 1] - end + i) * step, n * sizeof(float))

    cdef int grow_spare(self, int threads, Py_ssize_t n) except -1:
        """A memory of ``n`` floats for each thread, for rows that do not go into the state."""
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

    cdef void scan_rows(self, Recurrence* c, Py_ssize_t s, float* spare) noexcept nogil:
        """All rows of a sequence: those that settle in the state's memory, the others in a copy of it."""
        cdef Py_ssize_t early = self.earlier_start[s], late = self.earlier_start[s + 1]
        cdef Py_ssize_t rows = self.row_start[s + 1] - self.row_start[s], settled = self.settled[s]
        cdef Py_ssize_t sure = min(early + settled, late)
        replay(c, self.earlier + early, sure - early)
        c.first, c.end = 0, settled - (sure - early)
        scan(c)
        if settled == rows + late - early:
            return
        memcpy(spare, c.memory, 16 * c.n * sizeof(float))
        c.memory = spare
        replay(c, self.earlier + sure, late - sure)
        c.first, c.end = c.end, rows
        scan(c)

    # --- convolution and shift --------------------------------------------------------------------

    def conv(self, Py_ssize_t offset, Py_ssize_t record, cnp.ndarray x, Py_ssize_t column, cnp.ndarray weight, bias,
             bint silu, cnp.ndarray out, int n_threads):
        """Causal convolution of each channel with its own taps, plus a bias, and its SiLU if ``silu``.

        Parameters
        ----------
        offset : of the state's (taps - 1, channels) floats, the rows before the first, oldest first
        record : offset of a record's (channels,) floats
        x : float32 (rows, width), channels from ``column`` on
        weight : float32 (taps, channels), the newest last
        bias : float32 (channels,) or None
        out : float32 (rows, channels), another array than x
        """
        check_dimensions(weight, 2, "weight")
        check_dimensions(x, 2, "x")
        cdef Py_ssize_t taps = weight.shape[0], d = weight.shape[1], width = x.shape[1], task
        cdef Py_ssize_t per = blocks(d)
        cdef const float* xp = f32_rows(x, self.n_rows, width, "x")
        cdef const float* wp = f32_data(weight, 0, "weight")
        cdef const float* bp = NULL if bias is None else f32_data(bias, d, "bias")
        cdef float* op = f32_rows_out(out, self.n_rows, d, "out")
        cdef int threads = threads_for(self.n_rows * d * taps, n_threads)
        check_apart(x, out, "x, out")
        self.check(offset, taps - 1, d)
        self.check_record(record, d)
        if not 0 <= column <= width - d:
            raise ValueError(f"conv: expected {d} channels within rows of {width}, got column {column}")
        for task in prange(self.n_sequences * per, nogil=True, schedule="dynamic", chunksize=4, num_threads=threads):
            self.conv_block(task // per, offset, record, task % per * 16, xp + column, width, wp, bp, taps, d, silu, op)
        self.note(record, xp + column, width, d)

    cdef void conv_block(self, Py_ssize_t s, Py_ssize_t offset, Py_ssize_t record, Py_ssize_t c, const float* x,
                         Py_ssize_t width, const float* weight, const float* bias, Py_ssize_t taps, Py_ssize_t d,
                         bint silu, float* out) noexcept nogil:
        cdef Py_ssize_t first = self.row_start[s], n = self.row_start[s + 1] - first, r, t, left = d - c
        cdef Py_ssize_t settled = self.settled[s] - (self.earlier_start[s + 1] - self.earlier_start[s])
        cdef float* new = self.after[s] + offset + c
        cdef f32x16 y, v
        x += first * width + c
        for r in range(n):
            y = f32_zero() if bias == NULL else load_part(bias + c, left, 0.0)
            for t in range(taps):
                if r + t >= taps - 1:
                    v = load_part(x + (r + t - (taps - 1)) * width, left, 0.0)
                else:
                    v = self.input_at(s, r + t - (taps - 1), x, width, record + c, offset + c, taps, d, left)
                y = f32_fma(load_part(weight + t * d + c, left, 0.0), v, y)
            if silu:
                y = over_logistic16(y, y)
            store_part(out + (first + r) * d + c, y, left)
        for t in range(taps - 1):  # ascending: what is read has not been written yet, if both are one place
            v = self.input_at(s, settled + t - (taps - 1), x, width, record + c, offset + c, taps, d, left)
            store_part(new + t * d, v, left)

    cdef f32x16 input_at(self, Py_ssize_t s, Py_ssize_t r, const float* x, Py_ssize_t width, Py_ssize_t record,
                         Py_ssize_t at, Py_ssize_t taps, Py_ssize_t d, Py_ssize_t left) noexcept nogil:
        """Row ``r`` of a sequence's block; those before its first from records, then from the old state."""
        if r >= 0:
            return load_part(x + r * width, left, 0.0)
        r += self.earlier_start[s + 1]
        if r >= self.earlier_start[s]:
            return load_part(self.earlier[r] + record, left, 0.0)
        if self.before[s] == NULL:
            return f32_zero()
        return load_part(self.before[s] + at + (taps - 1 + r - self.earlier_start[s]) * d, left, 0.0)

    def shift(self, Py_ssize_t offset, Py_ssize_t record, cnp.ndarray x, cnp.ndarray out):
        """out (rows, d) = the row before each row of x (rows, d) in its sequence; the state's (d,) floats at
        ``offset`` hold the last, the record's (d,) at ``record`` each."""
        check_dimensions(x, 2, "x")
        cdef Py_ssize_t d = x.shape[1], s, first, end, early, late, settled
        cdef const float* xp = f32_rows(x, self.n_rows, d, "x")
        cdef float* op = f32_rows_out(out, self.n_rows, d, "out")
        cdef float* last
        check_apart(x, out, "x, out")
        self.check(offset, 1, d)
        self.check_record(record, d)
        for s in range(self.n_sequences):
            first, end = self.row_start[s], self.row_start[s + 1]
            early, late, settled = self.earlier_start[s], self.earlier_start[s + 1], self.settled[s]
            last = self.take(s, offset, d)
            if end > first:
                memcpy(op + first * d, last if late == early else self.earlier[late - 1] + record, d * sizeof(float))
                memcpy(op + (first + 1) * d, xp + first * d, (end - first - 1) * d * sizeof(float))
            if settled > late - early:
                memcpy(last, xp + (first + settled - (late - early) - 1) * d, d * sizeof(float))
            elif settled:
                memcpy(last, self.earlier[early + settled - 1] + record, d * sizeof(float))
        self.note(record, xp, d, d)

    # --- scans ------------------------------------------------------------------------------------

    def selective_scan(self, Py_ssize_t offset, Py_ssize_t record, cnp.ndarray x, cnp.ndarray dt, cnp.ndarray a,
                       cnp.ndarray d, cnp.ndarray bc, Py_ssize_t b_column, Py_ssize_t c_column, cnp.ndarray z,
                       Py_ssize_t z_column, cnp.ndarray out, int n_threads):
        """h = h exp(dt A) + dt B x; out = (C h + D x) silu(z), with dt = softplus(dt).

        Parameters
        ----------
        offset : of the state's (blocks, n, 16) floats
        record : offset of a record's 2 * channels + n floats: x, dt, B
        x, dt, out : float32 (rows, channels)
        d : float32 (channels,)
        a : float32 (blocks, n, 16)
        bc : float32 (rows, width), B (n,) at ``b_column`` and C at ``c_column``
        z : float32 (rows, width), the gate at ``z_column``
        """
        for name, array, dimensions in (("x", x, 2), ("a", a, 3), ("bc", bc, 2), ("z", z, 2)):
            check_dimensions(array, dimensions, name)
        cdef Py_ssize_t channels = x.shape[1], n = a.shape[1], per = blocks(channels), task
        cdef Py_ssize_t width = bc.shape[1]
        if a.shape[0] != per or a.shape[2] != 16:
            raise ValueError(f"a: expected {per} blocks of (n, 16), got {a.shape[0]} of ({n}, {a.shape[2]})")
        if (not 0 <= b_column <= width - n or not 0 <= c_column <= width - n
                or not 0 <= z_column <= z.shape[1] - channels):
            raise ValueError(f"selective_scan: expected columns within rows of {width} and {z.shape[1]}, "
                             f"got {b_column}, {c_column} and {z_column}")
        cdef Scan c
        c.n, c.x_step, c.dt_step, c.out_step, c.b_step, c.z_step = n, channels, channels, channels, width, z.shape[1]
        c.x = f32_rows(x, self.n_rows, channels, "x")
        c.dt = f32_rows(dt, self.n_rows, channels, "dt")
        c.a = f32_data(a, 0, "a")
        c.d = f32_data(d, channels, "d")
        c.b = f32_rows(bc, self.n_rows, width, "bc") + b_column
        c.c = c.b - b_column + c_column
        c.z = f32_rows(z, self.n_rows, c.z_step, "z") + z_column
        c.out = f32_rows_out(out, self.n_rows, channels, "out")
        self.check(offset, per * n, 16)
        self.check_record(record, 2 * channels + n)
        c.x_at, c.dt_at, c.b_at, c.decay_at = record, record + channels, record + 2 * channels, record
        cdef int threads = threads_for(4 * self.n_scanned * channels * n, n_threads)
        for name, array in (("x", x), ("dt", dt), ("bc", bc), ("z", z)):
            check_apart(array, out, f"{name}, out")
        self.grow_spare(threads, 16 * n)
        for task in prange(self.n_sequences * per, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
            self.channel_task(c, task // per, task % per, channels, offset, self.spare + threadid() * 16 * n)
        self.note(c.x_at, c.x, channels, channels)
        self.note(c.dt_at, c.dt, channels, channels)
        self.note(c.b_at, c.b, width, n)

    cdef void channel_task(self, Scan c, Py_ssize_t s, Py_ssize_t block, Py_ssize_t channels,
                           Py_ssize_t offset, float* spare) noexcept nogil:
        cdef Scan other
        cdef Py_ssize_t first = self.row_start[s], at = 16 * block
        c.left = channels - at
        c.x += first * c.x_step + at
        c.dt += first * c.dt_step + at
        c.b += first * c.b_step
        c.c += first * c.b_step
        c.z += first * c.z_step + at
        c.out += first * c.out_step + at
        c.a += at * c.n
        c.d += at
        c.x_at += at
        c.dt_at += at
        c.memory = self.take(s, offset + at * c.n, 16 * c.n)
        if self.is_plain:
            c.first, c.end = 0, self.row_start[s + 1] - first
            scan(&c)
        else:
            other = c  # c itself stays in registers
            self.scan_rows(&other, s, spare)

    def head_scan(self, Py_ssize_t offset, Py_ssize_t record, Py_ssize_t heads, Py_ssize_t groups, Py_ssize_t n,
                  cnp.ndarray xbc, cnp.ndarray dt, cnp.ndarray decay, cnp.ndarray d, cnp.ndarray z,
                  Py_ssize_t z_column, cnp.ndarray out, int n_threads):
        """h = h decay + dt B x; out = (C h + D x) silu(z), head by head; heads of a group share B and C.

        Parameters
        ----------
        offset : of the state's (heads, blocks of a head, n, 16) floats
        record : offset of a record's heads * dim + groups * n + 2 * heads floats: x, B, dt, decay
        xbc : float32 (rows, heads * dim + 2 groups * n), x, then B, then C
        dt, decay : float32 (rows, heads)
        d : float32 (heads,)
        z : float32 (rows, width), the gate at ``z_column``
        out : float32 (rows, heads * dim)
        """
        for name, array in (("out", out), ("xbc", xbc), ("z", z)):
            check_dimensions(array, 2, name)
        cdef Py_ssize_t inner = out.shape[1], width = xbc.shape[1], task
        if heads < 1 or groups < 1 or inner % heads or heads % groups or not 0 <= z_column <= z.shape[1] - inner:
            raise ValueError(f"head_scan: expected {inner} channels in whole heads and groups, and z within its rows, "
                             f"got {heads} heads, {groups} groups, column {z_column}")
        if n < 1 or not fits(groups, n, width // 2) or inner + 2 * groups * n != width:
            raise ValueError(f"n: expected {inner} channels and 2 x {groups} x n within rows of {width}, got {n}")
        cdef Py_ssize_t dim = inner // heads, per = heads * blocks(dim)
        cdef Scan c
        c.n, c.x_step, c.dt_step, c.b_step, c.z_step, c.out_step = n, width, heads, width, z.shape[1], inner
        c.a = NULL
        c.x = f32_rows(xbc, self.n_rows, width, "xbc")
        c.b = c.x + inner
        c.c = c.b + groups * n
        c.dt = f32_rows(dt, self.n_rows, heads, "dt")
        c.decay = f32_rows(decay, self.n_rows, heads, "decay")
        c.d = f32_data(d, heads, "d")
        c.z = f32_rows(z, self.n_rows, c.z_step, "z") + z_column
        c.out = f32_rows_out(out, self.n_rows, inner, "out")
        if not fits(n, 16, PY_SSIZE_T_MAX):
            raise ValueError(f"n: expected a memory that fits a state, got {n}")
        self.check(offset, per, 16 * n)
        self.check_record(record, inner + groups * n + 2 * heads)
        c.x_at, c.b_at, c.dt_at = record, record + inner, record + inner + groups * n
        c.decay_at = c.dt_at + heads
        cdef int threads = threads_for(self.n_scanned * inner * n, n_threads)
        for name, array in (("xbc", xbc), ("dt", dt), ("decay", decay), ("z", z)):
            check_apart(array, out, f"{name}, out")
        self.grow_spare(threads, 16 * n)
        for task in prange(self.n_sequences * per, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
            self.head_task(c, task // per, task % per, heads, groups, dim, offset, self.spare + threadid() * 16 * n)
        self.note(c.x_at, c.x, width, inner + groups * n)
        self.note(c.dt_at, c.dt, heads, heads)
        self.note(c.decay_at, c.decay, heads, heads)

    cdef void head_task(self, Scan c, Py_ssize_t s, Py_ssize_t block, Py_ssize_t heads, Py_ssize_t groups,
                        Py_ssize_t dim, Py_ssize_t offset, float* spare) noexcept nogil:
        cdef Scan other
        cdef Py_ssize_t first = self.row_start[s], head = block // blocks(dim), within = block % blocks(dim) * 16
        cdef Py_ssize_t at = head * dim + within, group = head // (heads // groups)
        c.left = dim - within
        c.x += first * c.x_step + at
        c.b += first * c.b_step + group * c.n
        c.c += first * c.b_step + group * c.n
        c.dt += first * c.dt_step + head
        c.decay += first * c.dt_step + head
        c.d += head
        c.z += first * c.z_step + at
        c.out += first * c.out_step + at
        c.x_at += at
        c.b_at += group * c.n
        c.dt_at += head
        c.decay_at += head
        c.memory = self.take(s, offset + block * 16 * c.n, 16 * c.n)
        if self.is_plain:
            c.first, c.end = 0, self.row_start[s + 1] - first
            scan(&c)
        else:
            other = c  # c itself stays in registers
            self.scan_rows(&other, s, spare)

    def wkv(self, Py_ssize_t offset, Py_ssize_t record, Py_ssize_t heads, cnp.ndarray r, cnp.ndarray w,
            cnp.ndarray k, cnp.ndarray v, cnp.ndarray out, int n_threads,
            cnp.ndarray u=None, cnp.ndarray a=None, cnp.ndarray b=None):
        """RWKV's memory: version 6 with ``u``, version 7 with ``a`` and ``b``.

        Parameters
        ----------
        offset : of the state's (heads, blocks of a head, dim, 16) floats
        record : offset of a record's (3, heads * dim) floats: w, k, v; in version 7 also a, b
        r, w, k, v, a, b, out : float32 (rows, heads * dim); w are decays
        u : float32 (heads * dim,)
        """
        check_dimensions(r, 2, "r")
        cdef Py_ssize_t d = r.shape[1], task
        if heads < 1 or d % heads:
            raise ValueError(f"wkv: expected {d} channels in whole heads, got {heads} heads")
        cdef Py_ssize_t dim = d // heads, per = heads * blocks(dim), n = self.n_rows
        cdef Wkv c
        cdef bint seventh = u is None
        c.n, c.step = dim, d
        c.r = f32_rows(r, n, d, "r")
        c.w = f32_rows(w, n, d, "w")
        c.k = f32_rows(k, n, d, "k")
        c.v = f32_rows(v, n, d, "v")
        c.out = f32_rows_out(out, n, d, "out")
        c.u = NULL if seventh else f32_data(u, d, "u")
        c.a = f32_rows(a, n, d, "a") if seventh else NULL
        c.b = f32_rows(b, n, d, "b") if seventh else NULL
        if not fits(dim, 16, PY_SSIZE_T_MAX):
            raise ValueError(f"wkv: expected heads that fit a state, got {dim} channels")
        self.check(offset, per, 16 * dim)
        if not fits(5, d, PY_SSIZE_T_MAX):
            raise ValueError(f"wkv: expected channels that fit a record, got {d}")
        self.check_record(record, (5 if seventh else 3) * d)
        c.record_at, c.record_step, c.within = record, d, 0
        cdef int threads = threads_for(self.n_scanned * d * dim, n_threads)
        for name, array in (("r", r), ("w", w), ("k", k), ("v", v), ("a", a), ("b", b)):
            if array is not None:
                check_apart(array, out, f"{name}, out")
        self.grow_spare(threads, 16 * dim)
        for task in prange(self.n_sequences * per, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
            self.wkv_task(c, task // per, task % per, dim, offset, self.spare + threadid() * 16 * dim)
        self.note(record, c.w, d, d)
        self.note(record + d, c.k, d, d)
        self.note(record + 2 * d, c.v, d, d)
        if seventh:
            self.note(record + 3 * d, c.a, d, d)
            self.note(record + 4 * d, c.b, d, d)

    cdef void wkv_task(self, Wkv c, Py_ssize_t s, Py_ssize_t block, Py_ssize_t dim, Py_ssize_t offset,
                       float* spare) noexcept nogil:
        cdef Wkv other
        cdef Py_ssize_t first = self.row_start[s], within = block % blocks(dim) * 16
        cdef Py_ssize_t head = block // blocks(dim) * dim, at = first * c.step + head
        c.left = dim - within
        c.r += at
        c.w += at
        c.k += at
        c.v += at + within
        c.out += at + within
        c.record_at += head
        c.within = within
        c.memory = self.take(s, offset + block * 16 * dim, 16 * dim)
        if c.u == NULL:
            c.a += at
            c.b += at
        else:
            c.u += head
        if self.is_plain:
            c.first, c.end = 0, self.row_start[s + 1] - first
            scan(&c)
        else:
            other = c  # c itself stays in registers
            self.scan_rows(&other, s, spare)


# --- row by row ------------------------------------------------------------------------------------------


def head_steps(cnp.ndarray x, Py_ssize_t column, cnp.ndarray bias, cnp.ndarray a, cnp.ndarray dt, cnp.ndarray decay):
    """dt = softplus(x + bias) and decay = exp(dt a).

    Parameters
    ----------
    x : float32 (rows, width), heads from ``column`` on
    bias, a : float32 (heads,)
    dt, decay : float32 (rows, heads)
    """
    cdef Py_ssize_t n = rows_of(x, "x"), width = x.shape[1], heads, i, k
    cdef const float* xp = f32_data(x, 0, "x")
    cdef const float* bp = f32_data(bias, 0, "bias")
    heads = cnp.PyArray_SIZE(bias)
    cdef const float* ap = f32_data(a, heads, "a")
    cdef float* dp = f32_rows_out(dt, n, heads, "dt")
    cdef float* ep = f32_rows_out(decay, n, heads, "decay")
    cdef f32x16 v
    check_apart(dt, decay, "dt, decay")
    check_apart(x, dt, "x, dt")
    check_apart(x, decay, "x, decay")
    if not 0 <= column <= width - heads:
        raise ValueError(f"head_steps: expected {heads} heads within rows of {width}, got column {column}")
    with nogil:
        for i in range(n):
            for k in range(0, heads, 16):
                v = f32_add(load_part(xp + i * width + column + k, heads - k, 0.0), load_part(bp + k, heads - k, 0.0))
                v = softplus16(v)
                store_part(dp + i * heads + k, v, heads - k)
                store_part(ep + i * heads + k, exp16(f32_mul(v, load_part(ap + k, heads - k, 0.0))), heads - k)


def unit_heads(cnp.ndarray x, Py_ssize_t heads, float least):
    """Divides each head of x float32 (rows, heads * dim) by its length, or by ``least`` if that is longer."""
    cdef Py_ssize_t n = rows_of(x, "x"), dim, i, k
    cdef float* xp = f32_out(x, 0, "x")
    cdef f32x16 sums, v
    if heads < 1 or x.shape[1] % heads:
        raise ValueError(f"heads: expected {x.shape[1]} channels in whole heads, got {heads} heads")
    n, dim = n * heads, x.shape[1] // heads
    with nogil:
        for i in range(n):
            sums = f32_zero()
            for k in range(0, dim, 16):
                v = load_part(xp + i * dim + k, dim - k, 0.0)
                sums = f32_fma(v, v, sums)
            v = f32_set1(<float>(1.0 / max(sqrt(<double>f32_sum(sums)), <double>least)))
            for k in range(0, dim, 16):
                store_part(xp + i * dim + k, f32_mul(load_part(xp + i * dim + k, dim - k, 0.0), v), dim - k)


def add_bonus(cnp.ndarray r, cnp.ndarray k, cnp.ndarray weight, cnp.ndarray v, Py_ssize_t heads, cnp.ndarray out):
    """out += (sum over a head of r k weight) v; float32 (rows, heads * dim), weight (heads * dim,)."""
    cdef Py_ssize_t n = rows_of(r, "r"), d = r.shape[1], dim, i, j, at, part
    cdef const float* rp = f32_data(r, 0, "r")
    cdef const float* kp = f32_rows(k, n, d, "k")
    cdef const float* wp = f32_data(weight, d, "weight")
    cdef const float* vp = f32_rows(v, n, d, "v")
    cdef float* op = f32_rows_out(out, n, d, "out")
    cdef f32x16 sums, y
    if heads < 1 or d % heads:
        raise ValueError(f"heads: expected {d} channels in whole heads, got {heads} heads")
    for name, array in (("r", r), ("k", k), ("v", v)):
        check_apart(array, out, f"{name}, out")
    n, dim = n * heads, d // heads
    with nogil:
        for i in range(n):
            sums = f32_zero()
            part = i % heads * dim
            for j in range(0, dim, 16):
                at = i * dim + j
                y = f32_mul(load_part(rp + at, dim - j, 0.0), load_part(wp + part + j, dim - j, 0.0))
                sums = f32_fma(load_part(kp + at, dim - j, 0.0), y, sums)
            y = f32_set1(f32_sum(sums))
            for j in range(0, dim, 16):
                at = i * dim + j
                store_part(op + at, f32_fma(load_part(vp + at, dim - j, 0.0), y, load_part(op + at, dim - j, 0.0)),
                           dim - j)
