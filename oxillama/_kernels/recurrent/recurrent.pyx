"""Recurrent mixers: causal convolution, selective scans, token shift, RWKV's memories.

A sequence keeps a *state*, floats in which each layer has a range of its own. A pass reads the states of its
sequences in one place and writes them to another, or to the same, which saves a third of the memory traffic.

Threads share out channels, 16 at a time, or heads; the tokens of a sequence go through one after the other, each
with the same operations in the same order. So a row's bits depend on the tokens before it and on nothing else.
Memories are stored in blocks (rows, 16): 16 channels side by side, padded where there are fewer.
"""

cimport numpy as cnp
from cython.parallel cimport prange
from libc.math cimport sqrt
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from oxillama._kernels.arrays cimport checked, f32_data, i32_data
from oxillama._kernels.recurrent.scans cimport Scan, Wkv, scan_channels, scan_head, wkv6_block, wkv7_block
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
    before : int64 (sequences,), address of the state that each pass begins with, 0 for zeros
    after : int64 (sequences,), address of the float32 (floats,) that it leaves; may be the same
    row_start : int32 (sequences + 1,), the batch rows of each sequence
    floats : of a state
    """

    cdef cnp.ndarray before_, after_, row_start_
    cdef const int64_t* before
    cdef const int64_t* after
    cdef const int* row_start
    cdef Py_ssize_t n_sequences, n_rows, floats

    def __init__(self, cnp.ndarray before, cnp.ndarray after, cnp.ndarray row_start, Py_ssize_t floats):
        cdef Py_ssize_t s
        self.n_sequences = cnp.PyArray_SIZE(before)
        self.before = <const int64_t*>checked(before, cnp.NPY_INT64, self.n_sequences, "before")
        self.after = <const int64_t*>checked(after, cnp.NPY_INT64, self.n_sequences, "after")
        self.row_start = i32_data(row_start, self.n_sequences + 1, "row_start")
        self.before_, self.after_, self.row_start_ = before, after, row_start
        self.floats = floats
        if self.row_start[0] != 0:
            raise ValueError(f"row_start: expected 0 first, got {self.row_start[0]}")
        for s in range(self.n_sequences):
            if self.row_start[s + 1] < self.row_start[s]:
                raise ValueError(f"sequence {s}: expected a row count >= 0, "
                                 f"got {self.row_start[s + 1] - self.row_start[s]}")
            if self.after[s] == 0:
                raise ValueError(f"after: expected the address of a state for sequence {s}, got 0")
        self.n_rows = self.row_start[self.n_sequences]

    cdef int check(self, Py_ssize_t offset, Py_ssize_t n) except -1:
        if offset < 0 or offset + n > self.floats:
            raise ValueError(f"offset: expected {n} floats within the {self.floats} of a state, got {offset}")
        return 0

    cdef float* take(self, Py_ssize_t s, Py_ssize_t at, Py_ssize_t n) noexcept nogil:
        """A part of the state of sequence ``s``, where the pass leaves it."""
        cdef float* memory = <float*>self.after[s] + at
        if self.before[s] == 0:
            memset(memory, 0, n * sizeof(float))
        elif self.before[s] != self.after[s]:
            memcpy(memory, <const float*>self.before[s] + at, n * sizeof(float))
        return memory

    # --- convolution and shift --------------------------------------------------------------------

    def conv(self, Py_ssize_t offset, cnp.ndarray x, Py_ssize_t column, cnp.ndarray weight, bias, bint silu,
             cnp.ndarray out, int n_threads):
        """Causal convolution of each channel with its own taps, plus a bias, and its SiLU if ``silu``.

        Parameters
        ----------
        offset : of the state's (taps - 1, channels) floats, the rows before the first, oldest first
        x : float32 (rows, width), channels from ``column`` on
        weight : float32 (taps, channels), the newest last
        bias : float32 (channels,) or None
        out : float32 (rows, channels), another array than x
        """
        cdef Py_ssize_t taps = weight.shape[0], d = weight.shape[1], width = x.shape[1], task
        cdef Py_ssize_t per = blocks(d)
        cdef const float* xp = f32_data(x, self.n_rows * width, "x")
        cdef const float* wp = f32_data(weight, taps * d, "weight")
        cdef const float* bp = NULL if bias is None else f32_data(bias, d, "bias")
        cdef float* op = f32_data(out, self.n_rows * d, "out")
        cdef int threads = threads_for(self.n_rows * d * taps, n_threads)
        self.check(offset, (taps - 1) * d)
        if column < 0 or column + d > width or taps < 1:
            raise ValueError(f"conv: expected {d} channels within rows of {width}, got column {column}")
        for task in prange(self.n_sequences * per, nogil=True, schedule="dynamic", chunksize=4, num_threads=threads):
            self.conv_block(task // per, offset, task % per * 16, xp + column, width, wp, bp, taps, d, silu, op)

    cdef void conv_block(self, Py_ssize_t s, Py_ssize_t offset, Py_ssize_t c, const float* x, Py_ssize_t width,
                         const float* weight, const float* bias, Py_ssize_t taps, Py_ssize_t d, bint silu,
                         float* out) noexcept nogil:
        cdef Py_ssize_t first = self.row_start[s], n = self.row_start[s + 1] - first, r, t, left = d - c
        cdef const float* old = <const float*>self.before[s]
        cdef float* new = <float*>self.after[s] + offset + c
        cdef f32x16 y, v
        for r in range(n):
            y = f32_zero() if bias == NULL else load_part(bias + c, left, 0.0)
            for t in range(taps):
                v = self.earlier(old, offset + c, x + first * width + c, width, d, r + t - (taps - 1), taps, left)
                y = f32_fma(load_part(weight + t * d + c, left, 0.0), v, y)
            if silu:
                y = over_logistic16(y, y)
            store_part(out + (first + r) * d + c, y, left)
        for t in range(taps - 1):  # ascending: what is read has not been written yet, if both are one place
            v = self.earlier(old, offset + c, x + first * width + c, width, d, n + t - (taps - 1), taps, left)
            store_part(new + t * d, v, left)

    cdef f32x16 earlier(self, const float* old, Py_ssize_t at, const float* x, Py_ssize_t width, Py_ssize_t d,
                        Py_ssize_t r, Py_ssize_t taps, Py_ssize_t left) noexcept nogil:
        """Row ``r`` of a sequence's block; those before its first from the old state."""
        if r >= 0:
            return load_part(x + r * width, left, 0.0)
        if old == NULL:
            return f32_zero()
        return load_part(old + at + (taps - 1 + r) * d, left, 0.0)

    def shift(self, Py_ssize_t offset, cnp.ndarray x, cnp.ndarray out):
        """out (rows, d) = the row before each row of x (rows, d) in its sequence; the state's (d,) floats at
        ``offset`` hold the last."""
        cdef Py_ssize_t d = x.shape[1], s, first, end
        cdef const float* xp = f32_data(x, self.n_rows * d, "x")
        cdef float* op = f32_data(out, self.n_rows * d, "out")
        cdef float* last
        self.check(offset, d)
        for s in range(self.n_sequences):
            first, end = self.row_start[s], self.row_start[s + 1]
            last = self.take(s, offset, d)
            if end > first:
                memcpy(op + first * d, last, d * sizeof(float))
                memcpy(op + (first + 1) * d, xp + first * d, (end - first - 1) * d * sizeof(float))
                memcpy(last, xp + (end - 1) * d, d * sizeof(float))

    # --- scans ------------------------------------------------------------------------------------

    def selective_scan(self, Py_ssize_t offset, cnp.ndarray x, cnp.ndarray dt, cnp.ndarray a, cnp.ndarray d,
                       cnp.ndarray bc, Py_ssize_t b_column, Py_ssize_t c_column, cnp.ndarray z,
                       Py_ssize_t z_column, cnp.ndarray out, int n_threads):
        """h = h exp(dt A) + dt B x; out = (C h + D x) silu(z), with dt = softplus(dt).

        Parameters
        ----------
        offset : of the state's (blocks, n, 16) floats
        x, dt, out : float32 (rows, channels)
        d : float32 (channels,)
        a : float32 (blocks, n, 16)
        bc : float32 (rows, width), B (n,) at ``b_column`` and C at ``c_column``
        z : float32 (rows, width), the gate at ``z_column``
        """
        cdef Py_ssize_t channels = x.shape[1], n = a.shape[1], per = blocks(channels), task
        cdef Py_ssize_t width = bc.shape[1]
        cdef Scan c
        c.n, c.x_step, c.dt_step, c.out_step, c.b_step, c.z_step = n, channels, channels, channels, width, z.shape[1]
        c.x = f32_data(x, self.n_rows * channels, "x")
        c.dt = f32_data(dt, self.n_rows * channels, "dt")
        c.a = f32_data(a, per * n * 16, "a")
        c.d = f32_data(d, channels, "d")
        c.b = f32_data(bc, self.n_rows * width, "bc") + b_column
        c.c = c.b - b_column + c_column
        c.z = f32_data(z, self.n_rows * c.z_step, "z") + z_column
        c.out = f32_data(out, self.n_rows * channels, "out")
        cdef int threads = threads_for(4 * self.n_rows * channels * n, n_threads)
        self.check(offset, per * n * 16)
        if (min(b_column, c_column, z_column) < 0 or max(b_column, c_column) + n > width
                or z_column + channels > c.z_step):
            raise ValueError(f"selective_scan: expected columns within rows of {width} and {c.z_step}, "
                             f"got {b_column}, {c_column} and {z_column}")
        for task in prange(self.n_sequences * per, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
            self.channel_task(c, task // per, task % per, channels, offset)

    cdef void channel_task(self, Scan c, Py_ssize_t s, Py_ssize_t block, Py_ssize_t channels,
                           Py_ssize_t offset) noexcept nogil:
        cdef Py_ssize_t first = self.row_start[s], at = 16 * block
        c.rows, c.left = self.row_start[s + 1] - first, channels - at
        c.x += first * c.x_step + at
        c.dt += first * c.dt_step + at
        c.b += first * c.b_step
        c.c += first * c.b_step
        c.z += first * c.z_step + at
        c.out += first * c.out_step + at
        c.a += at * c.n
        c.d += at
        c.memory = self.take(s, offset + at * c.n, 16 * c.n)
        scan_channels(&c)

    def head_scan(self, Py_ssize_t offset, Py_ssize_t heads, Py_ssize_t groups, Py_ssize_t n, cnp.ndarray xbc,
                  cnp.ndarray dt, cnp.ndarray decay, cnp.ndarray d, cnp.ndarray z, Py_ssize_t z_column,
                  cnp.ndarray out, int n_threads):
        """h = h decay + dt B x; out = (C h + D x) silu(z), head by head; heads of a group share B and C.

        Parameters
        ----------
        offset : of the state's (heads, blocks of a head, n, 16) floats
        xbc : float32 (rows, heads * dim + 2 groups * n), x, then B, then C
        dt, decay : float32 (rows, heads)
        d : float32 (heads,)
        z : float32 (rows, width), the gate at ``z_column``
        out : float32 (rows, heads * dim)
        """
        cdef Py_ssize_t inner = out.shape[1], dim = inner // heads, width = inner + 2 * groups * n, task
        cdef Py_ssize_t per = heads * blocks(dim)
        cdef Scan c
        c.n, c.x_step, c.dt_step, c.b_step, c.z_step, c.out_step = n, width, heads, width, z.shape[1], inner
        c.a = NULL
        c.x = f32_data(xbc, self.n_rows * width, "xbc")
        c.b = c.x + inner
        c.c = c.b + groups * n
        c.dt = f32_data(dt, self.n_rows * heads, "dt")
        c.decay = f32_data(decay, self.n_rows * heads, "decay")
        c.d = f32_data(d, heads, "d")
        c.z = f32_data(z, self.n_rows * c.z_step, "z") + z_column
        c.out = f32_data(out, self.n_rows * inner, "out")
        cdef int threads = threads_for(self.n_rows * inner * n, n_threads)
        self.check(offset, per * n * 16)
        if heads * dim != inner or heads % groups or z_column < 0 or z_column + inner > c.z_step:
            raise ValueError(f"head_scan: expected {inner} channels in whole heads and groups, and z within its rows, "
                             f"got {heads} heads, {groups} groups, column {z_column}")
        for task in prange(self.n_sequences * per, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
            self.head_task(c, task // per, task % per, heads, groups, dim, offset)

    cdef void head_task(self, Scan c, Py_ssize_t s, Py_ssize_t block, Py_ssize_t heads, Py_ssize_t groups,
                        Py_ssize_t dim, Py_ssize_t offset) noexcept nogil:
        cdef Py_ssize_t first = self.row_start[s], head = block // blocks(dim), within = block % blocks(dim) * 16
        cdef Py_ssize_t at = head * dim + within, group = head // (heads // groups)
        c.rows, c.left = self.row_start[s + 1] - first, dim - within
        c.x += first * c.x_step + at
        c.b += first * c.b_step + group * c.n
        c.c += first * c.b_step + group * c.n
        c.dt += first * c.dt_step + head
        c.decay += first * c.dt_step + head
        c.d += head
        c.z += first * c.z_step + at
        c.out += first * c.out_step + at
        c.memory = self.take(s, offset + block * 16 * c.n, 16 * c.n)
        scan_head(&c)

    def wkv(self, Py_ssize_t offset, Py_ssize_t heads, cnp.ndarray r, cnp.ndarray w, cnp.ndarray k, cnp.ndarray v,
            cnp.ndarray out, int n_threads, cnp.ndarray u=None, cnp.ndarray a=None, cnp.ndarray b=None):
        """RWKV's memory: version 6 with ``u``, version 7 with ``a`` and ``b``.

        Parameters
        ----------
        offset : of the state's (heads, blocks of a head, dim, 16) floats
        r, w, k, v, a, b, out : float32 (rows, heads * dim); w are decays
        u : float32 (heads * dim,)
        """
        cdef Py_ssize_t d = r.shape[1], dim = d // heads, per = heads * blocks(dim), task, n = self.n_rows * d
        cdef Wkv c
        cdef bint seventh = u is None
        c.n, c.step = dim, d
        c.r = f32_data(r, n, "r")
        c.w = f32_data(w, n, "w")
        c.k = f32_data(k, n, "k")
        c.v = f32_data(v, n, "v")
        c.out = f32_data(out, n, "out")
        c.u = NULL if seventh else f32_data(u, d, "u")
        c.a = f32_data(a, n, "a") if seventh else NULL
        c.b = f32_data(b, n, "b") if seventh else NULL
        cdef int threads = threads_for(n * dim, n_threads)
        self.check(offset, per * dim * 16)
        if heads * dim != d:
            raise ValueError(f"wkv: expected {d} channels in whole heads, got {heads} heads")
        for task in prange(self.n_sequences * per, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
            self.wkv_task(c, task // per, task % per, dim, offset, seventh)

    cdef void wkv_task(self, Wkv c, Py_ssize_t s, Py_ssize_t block, Py_ssize_t dim, Py_ssize_t offset,
                       bint seventh) noexcept nogil:
        cdef Py_ssize_t first = self.row_start[s], within = block % blocks(dim) * 16
        cdef Py_ssize_t head = block // blocks(dim) * dim, at = first * c.step + head
        c.rows, c.left = self.row_start[s + 1] - first, dim - within
        c.r += at
        c.w += at
        c.k += at
        c.v += at + within
        c.out += at + within
        c.memory = self.take(s, offset + block * 16 * dim, 16 * dim)
        if seventh:
            c.a += at
            c.b += at
            wkv7_block(&c)
        else:
            c.u += head
            wkv6_block(&c)


# --- row by row ------------------------------------------------------------------------------------------


def head_steps(cnp.ndarray x, Py_ssize_t column, cnp.ndarray bias, cnp.ndarray a, cnp.ndarray dt, cnp.ndarray decay):
    """dt = softplus(x + bias) and decay = exp(dt a).

    Parameters
    ----------
    x : float32 (rows, width), heads from ``column`` on
    bias, a : float32 (heads,)
    dt, decay : float32 (rows, heads)
    """
    cdef Py_ssize_t n = x.shape[0], width = x.shape[1], heads = cnp.PyArray_SIZE(bias), i, k
    cdef const float* xp = f32_data(x, n * width, "x")
    cdef const float* bp = f32_data(bias, heads, "bias")
    cdef const float* ap = f32_data(a, heads, "a")
    cdef float* dp = f32_data(dt, n * heads, "dt")
    cdef float* ep = f32_data(decay, n * heads, "decay")
    cdef f32x16 v
    if column < 0 or column + heads > width:
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
    cdef Py_ssize_t n = x.shape[0] * heads, dim = x.shape[1] // heads, i, k
    cdef float* xp = f32_data(x, x.shape[0] * x.shape[1], "x")
    cdef f32x16 sums, v
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
    cdef Py_ssize_t d = r.shape[1], n = r.shape[0] * heads, dim = d // heads, i, j, at, part
    cdef const float* rp = f32_data(r, r.shape[0] * d, "r")
    cdef const float* kp = f32_data(k, r.shape[0] * d, "k")
    cdef const float* wp = f32_data(weight, d, "weight")
    cdef const float* vp = f32_data(v, r.shape[0] * d, "v")
    cdef float* op = f32_data(out, r.shape[0] * d, "out")
    cdef f32x16 sums, y
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
