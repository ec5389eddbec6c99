"""Recurrent mixers: causal convolution, selective scans, token shift, RWKV.

Threads divide the channels, 16 at a time, or the heads. The tokens of a sequence are processed in order, each with the
same operations in the same order, so a row's bits depend on the tokens up to it and on nothing else. Memories are
stored in blocks (rows, 16) of 16 adjacent channels, padded if there are fewer.
"""

cimport numpy as cnp
from cython.parallel cimport prange, threadid
from libc.math cimport sqrt
from libc.string cimport memcpy, memmove, memset

from oxillama._kernels.arrays cimport (
    PY_SSIZE_T_MAX, check_apart, check_dimensions, f32_data, f32_out, f32_rows, f32_rows_out, fits, rows_of)
from oxillama._kernels.recurrent.scans cimport Scan, Wkv, blocks, scan_rows
from oxillama._kernels.recurrent.state_batch cimport StateBatch
from oxillama._kernels.simd.mathfun cimport exp16, over_logistic16, softplus16
from oxillama._kernels.simd.rows cimport load_part, store_part, threads_for
from oxillama._kernels.simd.simd cimport *

cnp.import_array()

# Threads take 8 blocks at a time: their memories, a few kilobytes each, are adjacent and are read as one stream.


# --- convolution and shift -------------------------------------------------------------------------------


cdef enum:
    CONV_BLOCKS = 8  # blocks of channels in a task


# A convolution: rows of x are ``width`` floats apart, rows of the old state (from ``at``), the weight and out ``d``.
cdef struct Taps:
    const float* x
    const float* weight
    const float* bias
    Py_ssize_t width, record, at, taps, d
    bint silu


def causal_conv1d(StateBatch states not None, Py_ssize_t offset, Py_ssize_t record, cnp.ndarray x, Py_ssize_t column,
                  cnp.ndarray weight, bias: np.ndarray | None, bint silu, cnp.ndarray out, int n_threads):
    """Causal convolution of each channel with its own taps, plus a bias, then SiLU if ``silu``.

    Args:
        offset: start of the layer's (taps - 1, channels) floats in a state: the rows before the first, oldest first
        record: start of the layer's (channels,) floats in a record
        x: float32 (rows, width), channels from ``column`` on
        weight: float32 (taps, channels), the weight of the newest row last
        bias: float32 (channels,) or None
        out: float32 (rows, channels), another array than x
    """
    check_dimensions(weight, 2, "weight")
    check_dimensions(x, 2, "x")
    cdef Py_ssize_t taps = weight.shape[0], d = weight.shape[1], width = x.shape[1], task
    cdef Py_ssize_t per = (blocks(d) + CONV_BLOCKS - 1) // CONV_BLOCKS
    cdef const float* xp = f32_rows(x, states.n_rows, width, "x")
    cdef const float* wp = f32_data(weight, 0, "weight")
    cdef const float* bp = NULL if bias is None else f32_data(bias, d, "bias")
    cdef float* op = f32_rows_out(out, states.n_rows, d, "out")
    cdef int threads = threads_for(states.n_rows * d * taps, n_threads)
    check_apart(x, out, "x, out")
    states.check(offset, taps - 1, d)
    states.check_record(record, d)
    if not 0 <= column <= width - d:
        raise ValueError(f"causal_conv1d: expected {d} channels within rows of {width}, got column {column}")
    for task in prange(states.n_sequences * per, nogil=True, schedule="dynamic", num_threads=threads):
        conv_task(states, task // per, offset, record, task % per * 16 * CONV_BLOCKS, xp + column, width, wp, bp, taps,
                  d, silu, op)
    states.note(record, xp + column, width, d)


cdef void conv_task(StateBatch states, Py_ssize_t s, Py_ssize_t offset, Py_ssize_t record, Py_ssize_t c, const float* x,
                    Py_ssize_t width, const float* weight, const float* bias, Py_ssize_t taps, Py_ssize_t d, bint silu,
                    float* out) noexcept nogil:
    """Computes up to `CONV_BLOCKS` blocks of channels from ``c`` on, row by row, as rows are far apart in memory."""
    cdef Taps f
    cdef Py_ssize_t n = states.row_start[s + 1] - states.row_start[s], end = min(c + 16 * CONV_BLOCKS, d)
    cdef Py_ssize_t settled = states.settled[s] - (states.earlier_start[s + 1] - states.earlier_start[s]), r, t, k
    cdef const float* row
    cdef float* new = states.after[s] + offset
    f.x, f.width, f.record, f.at = x + states.row_start[s] * width, width, record, offset
    f.weight, f.bias, f.taps, f.d, f.silu = weight, bias, taps, d, silu
    out += states.row_start[s] * d
    if end - c == 16 * CONV_BLOCKS:
        for r in range(n):
            conv_row(CONV_BLOCKS, True, states, s, &f, r, c, out + r * d)
    else:
        for r in range(n):
            for k in range(c, end, 16):
                conv_row(1, False, states, s, &f, r, k, out + r * d)
    for t in range(taps - 1):  # ascending order reads a row before it is overwritten, if before and after are one state
        row = input_row(states, s, &f, settled + t - (taps - 1))
        if row == NULL:
            memset(new + t * d + c, 0, (end - c) * sizeof(float))
        else:
            memmove(new + t * d + c, row + c, (end - c) * sizeof(float))


cdef inline void conv_row(const int B, const bint whole, StateBatch states, Py_ssize_t s, Taps* f, Py_ssize_t r,
                          Py_ssize_t c, float* out) noexcept nogil:
    """Computes B blocks of channels of one row; if not ``whole``, B is 1 and the block may be partial."""
    cdef f32x16 y[CONV_BLOCKS]
    cdef f32x16 v
    cdef const float* row
    cdef const float* weight
    cdef Py_ssize_t t
    cdef int b
    for b in range(B):
        y[b] = f32_zero()
        if f.bias != NULL:
            y[b] = f32_load(f.bias + c + 16 * b) if whole else load_part(f.bias + c, f.d - c, 0.0)
    for t in range(f.taps):
        row = input_row(states, s, f, r + t - (f.taps - 1))
        weight = f.weight + t * f.d + c
        for b in range(B):
            v = f32_zero()
            if row != NULL:
                v = f32_load(row + c + 16 * b) if whole else load_part(row + c, f.d - c, 0.0)
            y[b] = f32_fma(f32_load(weight + 16 * b) if whole else load_part(weight, f.d - c, 0.0), v, y[b])
    for b in range(B):
        if f.silu:
            y[b] = over_logistic16(y[b], y[b])
        if whole:
            f32_store(out + c + 16 * b, y[b])
        else:
            store_part(out + c, y[b], f.d - c)


cdef inline const float* input_row(StateBatch states, Py_ssize_t s, Taps* f, Py_ssize_t r) noexcept nogil:
    """Row ``r`` of a sequence; for r < 0 from the records, then from the old state; NULL means zeros."""
    if r >= 0:
        return f.x + r * f.width
    r += states.earlier_start[s + 1]
    if r >= states.earlier_start[s]:
        return states.earlier[r] + f.record
    if states.before[s] == NULL:
        return NULL
    return states.before[s] + f.at + (f.taps - 1 + r - states.earlier_start[s]) * f.d


def shift(StateBatch states not None, Py_ssize_t offset, Py_ssize_t record, cnp.ndarray x, cnp.ndarray out):
    """out (rows, d) = the row before each row of x (rows, d) in its sequence. The last row is kept as (d,) floats: in
    the state at ``offset``, in records at ``record``."""
    check_dimensions(x, 2, "x")
    cdef Py_ssize_t d = x.shape[1], s, first, end, early, late, settled
    cdef const float* xp = f32_rows(x, states.n_rows, d, "x")
    cdef float* op = f32_rows_out(out, states.n_rows, d, "out")
    cdef float* last
    check_apart(x, out, "x, out")
    states.check(offset, 1, d)
    states.check_record(record, d)
    for s in range(states.n_sequences):
        first, end = states.row_start[s], states.row_start[s + 1]
        early, late, settled = states.earlier_start[s], states.earlier_start[s + 1], states.settled[s]
        last = states.take(s, offset, d)
        if end > first:
            memcpy(op + first * d, last if late == early else states.earlier[late - 1] + record, d * sizeof(float))
            memcpy(op + (first + 1) * d, xp + first * d, (end - first - 1) * d * sizeof(float))
        if settled > late - early:
            memcpy(last, xp + (first + settled - (late - early) - 1) * d, d * sizeof(float))
        elif settled:
            memcpy(last, states.earlier[early + settled - 1] + record, d * sizeof(float))
    states.note(record, xp, d, d)


# --- scans -----------------------------------------------------------------------------------------------


def selective_scan(StateBatch states not None, Py_ssize_t offset, Py_ssize_t record, cnp.ndarray x, cnp.ndarray dt,
                   cnp.ndarray a, cnp.ndarray d, cnp.ndarray bc, Py_ssize_t b_column, Py_ssize_t c_column,
                   cnp.ndarray z, Py_ssize_t z_column, cnp.ndarray out, int n_threads):
    """h = h exp(dt A) + dt B x; out = (C h + D x) silu(z), with dt = softplus(dt).

    Args:
        offset: start of the layer's (blocks, n, 16) floats in a state
        record: start of the layer's 2 * channels + n floats in a record: x, dt, B
        x, dt, out: float32 (rows, channels)
        d: float32 (channels,)
        a: float32 (blocks, n, 16)
        bc: float32 (rows, width), B (n,) at ``b_column`` and C at ``c_column``
        z: float32 (rows, width), the gate at ``z_column``
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
    c.x = f32_rows(x, states.n_rows, channels, "x")
    c.dt = f32_rows(dt, states.n_rows, channels, "dt")
    c.a = f32_data(a, 0, "a")
    c.d = f32_data(d, channels, "d")
    c.b = f32_rows(bc, states.n_rows, width, "bc") + b_column
    c.c = c.b - b_column + c_column
    c.z = f32_rows(z, states.n_rows, c.z_step, "z") + z_column
    c.out = f32_rows_out(out, states.n_rows, channels, "out")
    states.check(offset, per * n, 16)
    states.check_record(record, 2 * channels + n)
    c.x_at, c.dt_at, c.b_at, c.decay_at = record, record + channels, record + 2 * channels, record
    cdef int threads = threads_for(4 * states.n_scanned * channels * n, n_threads)
    for name, array in (("x", x), ("dt", dt), ("bc", bc), ("z", z)):
        check_apart(array, out, f"{name}, out")
    c.floats = 16 * c.n
    states.grow_spare(threads, c.floats)
    for task in prange(states.n_sequences * per, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        channel_task(states, c, task // per, task % per, channels, offset, states.spare + threadid() * c.floats)
    states.note(c.x_at, c.x, channels, channels)
    states.note(c.dt_at, c.dt, channels, channels)
    states.note(c.b_at, c.b, width, n)


cdef void channel_task(StateBatch states, Scan c, Py_ssize_t s, Py_ssize_t block, Py_ssize_t channels,
                       Py_ssize_t offset, float* spare) noexcept nogil:
    cdef Py_ssize_t first = states.row_start[s], at = 16 * block
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
    scan_rows(states, c, s, offset + at * c.n, spare)


def head_scan(StateBatch states not None, Py_ssize_t offset, Py_ssize_t record, Py_ssize_t heads, Py_ssize_t groups,
              Py_ssize_t n, cnp.ndarray xbc, cnp.ndarray dt, cnp.ndarray decay, cnp.ndarray d, cnp.ndarray z,
              Py_ssize_t z_column, cnp.ndarray out, int n_threads):
    """h = h decay + dt B x; out = (C h + D x) silu(z), head by head; heads of a group share B and C.

    Args:
        offset: start of the layer's (heads, blocks of a head, n, 16) floats in a state
        record: start of the layer's heads * dim + groups * n + 2 * heads floats in a record: x, B, dt, decay
        xbc: float32 (rows, heads * dim + 2 groups * n), x, then B, then C
        dt, decay: float32 (rows, heads)
        d: float32 (heads,)
        z: float32 (rows, width), the gate at ``z_column``
        out: float32 (rows, heads * dim)
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
    c.x = f32_rows(xbc, states.n_rows, width, "xbc")
    c.b = c.x + inner
    c.c = c.b + groups * n
    c.dt = f32_rows(dt, states.n_rows, heads, "dt")
    c.decay = f32_rows(decay, states.n_rows, heads, "decay")
    c.d = f32_data(d, heads, "d")
    c.z = f32_rows(z, states.n_rows, c.z_step, "z") + z_column
    c.out = f32_rows_out(out, states.n_rows, inner, "out")
    if not fits(n, 16, PY_SSIZE_T_MAX):
        raise ValueError(f"n: expected a memory that fits a state, got {n}")
    states.check(offset, per, 16 * n)
    states.check_record(record, inner + groups * n + 2 * heads)
    c.x_at, c.b_at, c.dt_at = record, record + inner, record + inner + groups * n
    c.decay_at = c.dt_at + heads
    cdef int threads = threads_for(states.n_scanned * inner * n, n_threads)
    for name, array in (("xbc", xbc), ("dt", dt), ("decay", decay), ("z", z)):
        check_apart(array, out, f"{name}, out")
    c.floats = 16 * c.n
    states.grow_spare(threads, c.floats)
    for task in prange(states.n_sequences * per, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        head_task(states, c, task // per, task % per, heads, groups, dim, offset, states.spare + threadid() * c.floats)
    states.note(c.x_at, c.x, width, inner + groups * n)
    states.note(c.dt_at, c.dt, heads, heads)
    states.note(c.decay_at, c.decay, heads, heads)


cdef void head_task(StateBatch states, Scan c, Py_ssize_t s, Py_ssize_t block, Py_ssize_t heads, Py_ssize_t groups,
                    Py_ssize_t dim, Py_ssize_t offset, float* spare) noexcept nogil:
    cdef Py_ssize_t first = states.row_start[s], head = block // blocks(dim), within = block % blocks(dim) * 16
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
    scan_rows(states, c, s, offset + block * 16 * c.n, spare)


def wkv(StateBatch states not None, Py_ssize_t offset, Py_ssize_t record, Py_ssize_t heads, cnp.ndarray r,
        cnp.ndarray w, cnp.ndarray k, cnp.ndarray v, cnp.ndarray out, int n_threads, cnp.ndarray u=None,
        cnp.ndarray a=None, cnp.ndarray b=None):
    """RWKV's recurrence: version 6 with ``u``, version 7 with ``a`` and ``b``.

    Args:
        offset: start of the layer's (heads, blocks of a head, dim, 16) floats in a state
        record: start of the layer's (3, heads * dim) floats in a record: w, k, v; in version 7 also a, b
        r, w, k, v, a, b, out: float32 (rows, heads * dim); w are the decays
        u: float32 (heads * dim,)
    """
    check_dimensions(r, 2, "r")
    cdef Py_ssize_t d = r.shape[1], task
    if heads < 1 or d % heads:
        raise ValueError(f"wkv: expected {d} channels in whole heads, got {heads} heads")
    cdef Py_ssize_t dim = d // heads, per = heads * blocks(dim), n = states.n_rows
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
    states.check(offset, per, 16 * dim)
    if not fits(5, d, PY_SSIZE_T_MAX):
        raise ValueError(f"wkv: expected channels that fit a record, got {d}")
    states.check_record(record, (5 if seventh else 3) * d)
    c.record_at, c.record_step, c.within = record, d, 0
    cdef int threads = threads_for(states.n_scanned * d * dim, n_threads)
    for name, array in (("r", r), ("w", w), ("k", k), ("v", v), ("a", a), ("b", b)):
        if array is not None:
            check_apart(array, out, f"{name}, out")
    c.floats = 16 * c.n
    states.grow_spare(threads, c.floats)
    for task in prange(states.n_sequences * per, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        wkv_task(states, c, task // per, task % per, dim, offset, states.spare + threadid() * c.floats)
    states.note(record, c.w, d, d)
    states.note(record + d, c.k, d, d)
    states.note(record + 2 * d, c.v, d, d)
    if seventh:
        states.note(record + 3 * d, c.a, d, d)
        states.note(record + 4 * d, c.b, d, d)


cdef void wkv_task(StateBatch states, Wkv c, Py_ssize_t s, Py_ssize_t block, Py_ssize_t dim, Py_ssize_t offset,
                   float* spare) noexcept nogil:
    cdef Py_ssize_t first = states.row_start[s], within = block % blocks(dim) * 16
    cdef Py_ssize_t head = block // blocks(dim) * dim, at = first * c.step + head
    c.left = dim - within
    c.r += at
    c.w += at
    c.k += at
    c.v += at + within
    c.out += at + within
    c.record_at += head
    c.within = within
    if c.u == NULL:
        c.a += at
        c.b += at
    else:
        c.u += head
    scan_rows(states, c, s, offset + block * 16 * dim, spare)


# --- row by row ------------------------------------------------------------------------------------------


def head_steps(cnp.ndarray x, Py_ssize_t column, cnp.ndarray bias, cnp.ndarray a, cnp.ndarray dt, cnp.ndarray decay,
               int n_threads):
    """dt = softplus(x + bias) and decay = exp(dt a).

    Args:
        x: float32 (rows, width), heads from ``column`` on
        bias, a: float32 (heads,)
        dt, decay: float32 (rows, heads)
    """
    cdef Py_ssize_t n = rows_of(x, "x"), width = x.shape[1], heads, i
    cdef const float* xp = f32_data(x, 0, "x")
    cdef const float* bp = f32_data(bias, 0, "bias")
    heads = cnp.PyArray_SIZE(bias)
    cdef const float* ap = f32_data(a, heads, "a")
    cdef float* dp = f32_rows_out(dt, n, heads, "dt")
    cdef float* ep = f32_rows_out(decay, n, heads, "decay")
    cdef int threads = threads_for(n * heads, n_threads)
    check_apart(dt, decay, "dt, decay")
    check_apart(x, dt, "x, dt")
    check_apart(x, decay, "x, decay")
    if not 0 <= column <= width - heads:
        raise ValueError(f"head_steps: expected {heads} heads within rows of {width}, got column {column}")
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        step_row(xp + i * width + column, bp, ap, heads, dp + i * heads, ep + i * heads)


cdef void step_row(const float* x, const float* bias, const float* a, Py_ssize_t heads, float* dt,
                   float* decay) noexcept nogil:
    cdef Py_ssize_t k
    cdef f32x16 v
    for k in range(0, heads, 16):
        v = softplus16(f32_add(load_part(x + k, heads - k, 0.0), load_part(bias + k, heads - k, 0.0)))
        store_part(dt + k, v, heads - k)
        store_part(decay + k, exp16(f32_mul(v, load_part(a + k, heads - k, 0.0))), heads - k)


def unit_heads(cnp.ndarray x, Py_ssize_t heads, float least):
    """Divides each head of x, float32 (rows, heads * dim), in place by max(its Euclidean length, ``least``)."""
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
