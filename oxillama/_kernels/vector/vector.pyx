"""Row-wise kernels: norms, rotary embedding, gated activations, softmax.

Each row is computed by one thread in a fixed order: sums run in 16 strided accumulators (lane i adds
elements i, i + 16, ...), then in the tree of `f32_sum`.
"""

cimport numpy as cnp
from cython.parallel cimport prange
from libc.math cimport NAN, sqrt
from libc.stdint cimport int64_t, uint32_t

from oxillama._kernels.arrays cimport (
    check_apart, check_dimensions, check_same_or_apart, checked, f32_data, f32_out, f32_rows, f32_rows_out, fits,
    i32_data, rows_of)
from oxillama._kernels.simd.mathfun cimport erfc16, exp16, over_logistic16, softplus16, tanh16
from oxillama._kernels.simd.rows cimport is_small, load_part, softmax_row, store_part, threads_for
from oxillama._kernels.simd.simd cimport *

cnp.import_array()

# --- norms -------------------------------------------------------------------------------------------


cdef inline float mean_of(const float* x, Py_ssize_t d) noexcept nogil:
    """The mean of a row."""
    cdef f32x16 sums = f32_zero()
    cdef Py_ssize_t k
    for k in range(0, d, 16):
        sums = f32_add(load_part(x + k, d - k, 0.0), sums)
    return <float>(f32_sum(sums) / <double>d)


cdef inline float squares_about(float centre, const float* x, Py_ssize_t d) noexcept nogil:
    """The sum of (x - centre)^2 over a row."""
    cdef f32x16 sums = f32_zero(), middle = f32_set1(centre), v
    cdef Py_ssize_t k
    for k in range(0, d, 16):
        v = f32_sub(load_part(x + k, d - k, centre), middle)
        sums = f32_fma(v, v, sums)
    return f32_sum(sums)


cdef void norm_row(const float* x, const float* weight, const float* bias, Py_ssize_t d, float eps, bint centred,
                   bint accumulate, float* out) noexcept nogil:
    """Computes a row of `rms_norm`, or of `layer_norm` if ``centred``; weight and bias may be NULL."""
    cdef float centre = mean_of(x, d) if centred else 0
    cdef f32x16 middle = f32_set1(centre), v
    cdef f32x16 scale = f32_set1(<float>(1.0 / sqrt(squares_about(centre, x, d) / <double>d + eps)))
    cdef Py_ssize_t k
    for k in range(0, d, 16):
        v = f32_mul(f32_sub(load_part(x + k, d - k, 0.0), middle), scale)
        if weight != NULL:
            v = f32_mul(v, load_part(weight + k, d - k, 0.0))
        if bias != NULL:
            v = f32_add(v, load_part(bias + k, d - k, 0.0))
        if accumulate:
            v = f32_add(load_part(out + k, d - k, 0.0), v)
        store_part(out + k, v, d - k)


cdef void norm_rows(cnp.ndarray x, weight, bias, float eps, bint centred, cnp.ndarray out, int n_threads,
                    bint accumulate) except *:
    cdef Py_ssize_t n = rows_of(x, "x"), d = x.shape[1], i
    cdef const float* xp = f32_data(x, 0, "x")
    cdef const float* wp = NULL if weight is None else f32_data(weight, d, "weight")
    cdef const float* bp = NULL if bias is None else f32_data(bias, d, "bias")
    cdef float* op = f32_rows_out(out, n, d, "out")
    cdef int threads = threads_for(n * d, n_threads)
    check_same_or_apart(x, out, "x, out")
    if is_small(n * d):
        for i in range(n):
            norm_row(xp + i * d, wp, bp, d, eps, centred, accumulate, op + i * d)
        return
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        norm_row(xp + i * d, wp, bp, d, eps, centred, accumulate, op + i * d)


def rms_norm(cnp.ndarray x, weight: np.ndarray | None, float eps, cnp.ndarray out, int n_threads,
             bias: np.ndarray | None = None, bint accumulate=False):
    """out = x / sqrt(mean(x^2) + eps) * weight + bias, row by row (Zhang and Sennrich, 2019); added if ``accumulate``.

    Args:
        x, out: float32 (n, d); they may be one array
        weight, bias: float32 (d,), or None
    """
    norm_rows(x, weight, bias, eps, False, out, n_threads, accumulate)


def layer_norm(cnp.ndarray x, weight: np.ndarray | None, float eps, cnp.ndarray out, int n_threads,
               bias: np.ndarray | None = None, bint accumulate=False):
    """out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, row by row (Ba, Kiros and Hinton, 2016); added to out
    if ``accumulate``. Arguments as for `rms_norm`.
    """
    norm_rows(x, weight, bias, eps, True, out, n_threads, accumulate)


cdef void norm_heads(float* x, const float* weight, const float* bias, Py_ssize_t heads, Py_ssize_t head_dim,
                     float eps, bint centred) noexcept nogil:
    """Normalizes the heads of one row in place."""
    cdef Py_ssize_t h, at
    for h in range(heads):
        at = h * head_dim
        norm_row(x + at, NULL if weight == NULL else weight + at, NULL if bias == NULL else bias + at, head_dim, eps,
                 centred, False, x + at)


def head_norm(cnp.ndarray x, Py_ssize_t heads, Py_ssize_t head_dim, weight: np.ndarray | None, float eps, int n_threads,
              Py_ssize_t column=0, bint centred=False, bias: np.ndarray | None = None):
    """Norm of each head in place: `rms_norm`, or `layer_norm` if ``centred``, over ``head_dim`` elements.

    Args:
        x: float32 (n, width); its ``heads * head_dim`` columns from ``column`` on are normalized
        weight, bias: float32 (heads, head_dim), or None
    """
    cdef Py_ssize_t n = rows_of(x, "x"), width = x.shape[1], i
    cdef float* xp = f32_out(x, 0, "x")
    cdef const float* wp
    cdef const float* bp
    if head_dim < 1 or not 0 <= column <= width or not fits(heads, head_dim, width - column):
        raise ValueError(f"head_norm: expected heads within rows of {width}, got {heads} of {head_dim} at {column}")
    wp = NULL if weight is None else f32_data(weight, heads * head_dim, "weight")
    bp = NULL if bias is None else f32_data(bias, heads * head_dim, "bias")
    cdef int threads = threads_for(n * heads * head_dim, n_threads)
    if is_small(n * heads * head_dim):
        for i in range(n):
            norm_heads(xp + i * width + column, wp, bp, heads, head_dim, eps, centred)
        return
    for i in prange(n, nogil=True, schedule="dynamic", num_threads=threads):
        norm_heads(xp + i * width + column, wp, bp, heads, head_dim, eps, centred)


# --- activations -------------------------------------------------------------------------------------


cdef enum:
    SILU, GELU, GELU_ERF, GELU_QUICK, RELU, RELU_SQUARED, SIGMOID, TANH, SOFTPLUS, EXP, ERFC, SILU_CLAMPED

ACTIVATIONS: dict[str, int] = {
    "silu": SILU,                  # x sigmoid(x)
    "gelu": GELU,                  # its tanh form: x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
    "gelu_erf": GELU_ERF,          # x (1 + erf(x / sqrt(2))) / 2
    "gelu_quick": GELU_QUICK,      # x sigmoid(1.702 x)
    "relu": RELU,
    "relu_squared": RELU_SQUARED,  # max(x, 0)^2
    "sigmoid": SIGMOID,
    "tanh": TANH,
    "softplus": SOFTPLUS,          # ln(1 + e^x)
    "exp": EXP,                    # at most e^88
    "erfc": ERFC,                  # 1 - erf x
    "silu_clamped": SILU_CLAMPED,  # y sigmoid(1.702 y), y = min(x, 7); gates clip(up, -7, 7) + 1
}
"""The names that `activate` and `gate` know. Functions with an exponential err by a few ulp (see mathfun.pxd)."""


cdef inline f32x16 activated(const int kind, f32x16 x) noexcept nogil:
    cdef f32x16 y
    if kind == SILU:
        return over_logistic16(x, x)
    if kind == GELU:
        y = f32_fma(f32_mul(x, x), f32_set1(0.0713548163), f32_set1(1.59576912))
        return over_logistic16(x, f32_mul(x, y))
    if kind == GELU_ERF:
        y = erfc16(f32_mul(x, f32_set1(-0.707106781)))
        return f32_mul(f32_mul(x, f32_set1(0.5)), y)
    if kind == GELU_QUICK:
        return over_logistic16(x, f32_mul(x, f32_set1(1.702)))
    if kind == RELU:
        return f32_max(f32_zero(), x)
    if kind == RELU_SQUARED:
        y = f32_max(f32_zero(), x)
        return f32_mul(y, y)
    if kind == SIGMOID:
        return over_logistic16(f32_set1(1.0), x)
    if kind == TANH:
        return tanh16(x)
    if kind == SOFTPLUS:
        return softplus16(x)
    if kind == EXP:
        return exp16(x)
    if kind == ERFC:
        return erfc16(x)
    y = f32_set1(7.0)
    x = f32_select_lt(y, x, y, x)
    return over_logistic16(x, f32_mul(x, f32_set1(1.702)))


cdef inline f32x16 gated(const int kind, f32x16 g, f32x16 u) noexcept nogil:
    cdef f32x16 most
    if kind == SILU_CLAMPED:
        most = f32_set1(7.0)
        u = f32_select_lt(most, u, most, u)
        most = f32_set1(-7.0)
        u = f32_add(f32_select_lt(u, most, most, u), f32_set1(1.0))
    return f32_mul(activated(kind, g), u)


cdef inline void run_kind(const int kind, const float* x, const float* up, Py_ssize_t d, float* out) noexcept nogil:
    cdef Py_ssize_t k
    cdef f32x16 v
    for k in range(0, d, 16):
        v = load_part(x + k, d - k, 0.0)
        v = activated(kind, v) if up == NULL else gated(kind, v, load_part(up + k, d - k, 0.0))
        store_part(out + k, v, d - k)


cdef void run_row(int kind, const float* x, const float* up, Py_ssize_t d, float* out) noexcept nogil:
    """out = activation(x), times ``up`` unless that is NULL."""
    if kind == SILU:
        run_kind(SILU, x, up, d, out)
    elif kind == GELU:
        run_kind(GELU, x, up, d, out)
    elif kind == GELU_ERF:
        run_kind(GELU_ERF, x, up, d, out)
    elif kind == GELU_QUICK:
        run_kind(GELU_QUICK, x, up, d, out)
    elif kind == RELU:
        run_kind(RELU, x, up, d, out)
    elif kind == RELU_SQUARED:
        run_kind(RELU_SQUARED, x, up, d, out)
    elif kind == SIGMOID:
        run_kind(SIGMOID, x, up, d, out)
    elif kind == TANH:
        run_kind(TANH, x, up, d, out)
    elif kind == SOFTPLUS:
        run_kind(SOFTPLUS, x, up, d, out)
    elif kind == EXP:
        run_kind(EXP, x, up, d, out)
    elif kind == ERFC:
        run_kind(ERFC, x, up, d, out)
    else:
        run_kind(SILU_CLAMPED, x, up, d, out)


cdef int kind_of(str name) except -1:
    if name not in ACTIVATIONS:
        raise ValueError(f"name: expected one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


def activate(cnp.ndarray x, str name, cnp.ndarray out, int n_threads):
    """out = activation(x), element by element.

    Args:
        x, out: float32 (n, d), or any other shape as one row; they may be one array
        name: one of `ACTIVATIONS`
    """
    cdef int kind = kind_of(name)
    cdef const float* xp = f32_data(x, 0, "x")
    cdef Py_ssize_t size = cnp.PyArray_SIZE(x), n = x.shape[0] if x.ndim > 1 and size else 1, d = size // n, i
    cdef float* op = f32_out(out, size, "out")
    cdef int threads = threads_for(size, n_threads)
    check_same_or_apart(x, out, "x, out")
    if is_small(size):
        for i in range(n):
            run_row(kind, xp + i * d, NULL, d, op + i * d)
        return
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        run_row(kind, xp + i * d, NULL, d, op + i * d)


def gate(cnp.ndarray gate_up, str name, cnp.ndarray out, int n_threads):
    """out = activation(gate) * up (Shazeer, "GLU Variants Improve Transformer", 2020).

    Args:
        gate_up: float32 (n, 2 d), the gate's columns first
        name: one of `ACTIVATIONS`
        out: float32 (n, d)
    """
    cdef int kind = kind_of(name)
    cdef Py_ssize_t n = rows_of(out, "out"), d = out.shape[1], i
    cdef float* op = f32_out(out, 0, "out")
    cdef const float* gp = f32_rows(gate_up, n, 2 * d, "gate_up")
    cdef int threads = threads_for(n * d, n_threads)
    check_apart(gate_up, out, "gate_up, out")
    if is_small(n * d):
        for i in range(n):
            run_row(kind, gp + 2 * i * d, gp + (2 * i + 1) * d, d, op + i * d)
        return
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        run_row(kind, gp + 2 * i * d, gp + (2 * i + 1) * d, d, op + i * d)


def gate_heads(cnp.ndarray x, Py_ssize_t heads, cnp.ndarray gates, Py_ssize_t column, Py_ssize_t step, str name,
               int n_threads):
    """x *= activation(gates), in place; the gates of head h begin at column ``column + h * step``.

    Args:
        x: float32 (n, heads * dim)
        gates: float32 (n, width)
        name: one of `ACTIVATIONS`
    """
    cdef int kind = kind_of(name)
    cdef Py_ssize_t n = rows_of(x, "x"), width, dim, i, at
    cdef float* xp = f32_out(x, 0, "x")
    if heads < 1 or x.shape[1] < heads or x.shape[1] % heads:
        raise ValueError(f"heads: expected {x.shape[1]} channels in whole heads, got {heads} heads")
    dim = x.shape[1] // heads
    check_dimensions(gates, 2, "gates")
    width = gates.shape[1]
    cdef const float* gp = f32_rows(gates, n, width, "gates")
    if step < 0 or not 0 <= column <= width - dim or not fits(heads - 1, step, width - dim - column):
        raise ValueError(f"gate_heads: expected {heads} heads of {dim} within rows of {width}, "
                         f"got column {column} and step {step}")
    check_apart(x, gates, "x, gates")
    cdef int threads = threads_for(n * heads * dim, n_threads)
    for i in prange(n * heads, nogil=True, schedule="dynamic", chunksize=32, num_threads=threads):
        at = i * dim
        run_row(kind, gp + i // heads * width + column + i % heads * step, xp + at, dim, xp + at)


# --- scales and sums -----------------------------------------------------------------------------------


cdef void cut_row(float* x, Py_ssize_t d, float scale) noexcept nogil:
    """Computes a row of `cut`."""
    cdef float centre = mean_of(x, d)
    cdef double deviation = sqrt(squares_about(centre, x, d) / <double>max(1, d - 1))
    cdef f32x16 least = f32_set1(<float>(centre + scale * deviation)), v
    cdef Py_ssize_t k
    for k in range(0, d, 16):
        v = f32_sub(load_part(x + k, d - k, 0.0), least)
        store_part(x + k, f32_max(f32_zero(), v), d - k)


def cut(cnp.ndarray x, Py_ssize_t d, float scale, int n_threads):
    """x = max(0, x - (mean(x) + scale std(x))) for the first ``d`` columns, row by row and in place.

    std divides by d - 1. Only gates far above the others stay above 0 (Gemma 3n, 2025).

    Args:
        x: float32 (n, width)
    """
    cdef Py_ssize_t n = rows_of(x, "x"), width = x.shape[1], i
    cdef float* xp = f32_out(x, 0, "x")
    if not 1 <= d <= width:
        raise ValueError(f"cut: expected 1 to {width} columns, got {d}")
    cdef int threads = threads_for(n * d, n_threads)
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        cut_row(xp + i * width, d, scale)


cdef void cap_part(float* x, Py_ssize_t d, float cap) noexcept nogil:
    cdef Py_ssize_t k
    cdef f32x16 most = f32_set1(cap)
    for k in range(0, d, 16):
        store_part(x + k, f32_mul(tanh16(f32_div(load_part(x + k, d - k, 0.0), most)), most), d - k)


def soft_cap(cnp.ndarray x, float cap, int n_threads):
    """x = cap tanh(x / cap), in place; float32 of any shape (Bello et al., 2016)."""
    cdef float* xp = f32_out(x, 0, "x")
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x), i
    cdef int threads = threads_for(n, n_threads)
    for i in prange((n + 4095) // 4096, nogil=True, schedule="dynamic", num_threads=threads):
        cap_part(xp + 4096 * i, min(<Py_ssize_t>4096, n - 4096 * i), cap)


cdef void add_row(float* x, const float* y, float factor, Py_ssize_t d) noexcept nogil:
    cdef Py_ssize_t k
    cdef f32x16 f = f32_set1(factor)
    for k in range(0, d, 16):
        store_part(x + k, f32_fma(load_part(y + k, d - k, 0.0), f, load_part(x + k, d - k, 0.0)), d - k)


def add_scaled(cnp.ndarray x, cnp.ndarray y, float factor, int n_threads):
    """x += factor * y, rounded once; both float32 (n, d)."""
    cdef Py_ssize_t n = rows_of(y, "y"), d = y.shape[1], i
    cdef const float* yp = f32_data(y, 0, "y")
    cdef float* xp = f32_rows_out(x, n, d, "x")
    cdef int threads = threads_for(n * d, n_threads)
    check_same_or_apart(x, y, "x, y")
    if is_small(n * d):
        for i in range(n):
            add_row(xp + i * d, yp + i * d, factor, d)
        return
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        add_row(xp + i * d, yp + i * d, factor, d)


cdef void add_columns(float* x, const int* rows, const float* factors, const float* y, Py_ssize_t m, Py_ssize_t d,
                      Py_ssize_t first, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(m):
        add_row(x + rows[i] * d + first, y + i * d + first, factors[i], count)


def add_rows(cnp.ndarray x, cnp.ndarray rows, cnp.ndarray factors, cnp.ndarray y, int n_threads):
    """x[rows[i]] += factors[i] * y[i], in the order of i, each rounded once.

    Args:
        x: float32 (n, d)
        rows: int32 (m,)
        factors: float32 (m,)
        y: float32 (m, d)
    """
    cdef Py_ssize_t m = rows_of(y, "y"), d = y.shape[1], i
    cdef const float* yp = f32_data(y, 0, "y")
    cdef float* xp = f32_rows_out(x, 0, d, "x")
    cdef Py_ssize_t n = x.shape[0]
    cdef const int* rp = i32_data(rows, m, "rows")
    cdef const float* fp = f32_data(factors, m, "factors")
    cdef int threads = threads_for(m * d, n_threads)
    check_apart(x, y, "x, y")
    check_apart(x, rows, "x, rows")
    for i in range(m):
        if not 0 <= rp[i] < n:
            raise ValueError(f"rows: expected 0 to {n - 1}, got {rp[i]}")
    # a row may occur several times, so threads divide the columns
    for i in prange((d + 255) // 256, nogil=True, schedule="dynamic", num_threads=threads):
        add_columns(xp, rp, fp, yp, m, d, i * 256, min(256, d - i * 256))


# --- streams of hidden states --------------------------------------------------------------------------


cdef enum:
    MAX_STREAMS = 64
    MAX_BALANCED = 16  # streams whose numbers fit a vector


cdef void mix_row(const float* x, const float* weights, const float* added, const float* factors, Py_ssize_t streams,
                  Py_ssize_t outputs, Py_ssize_t d, float* out) noexcept nogil:
    cdef f32x16 parts[MAX_STREAMS]
    cdef f32x16 total
    cdef Py_ssize_t k, s, t
    for k in range(0, d, 16):
        for s in range(streams):
            parts[s] = load_part(x + s * d + k, d - k, 0.0)
        for t in range(outputs):
            total = f32_zero()
            for s in range(streams):
                total = f32_fma(parts[s], f32_set1(weights[t * streams + s]), total)
            if added != NULL:
                total = f32_fma(load_part(added + k, d - k, 0.0), f32_set1(factors[t]), total)
            store_part(out + t * d + k, total, d - k)


def mix_streams(cnp.ndarray x, Py_ssize_t streams, cnp.ndarray weights, cnp.ndarray out, int n_threads,
                added: np.ndarray | None = None, factors: np.ndarray | None = None):
    """Stream t of out = sum over s of weights[t, s] * stream s of x, in order, then + factors[t] * added, all fused
    (hyper-connections: Zhu et al., 2024).

    Args:
        x: float32 (n, width), at most 64 streams side by side in its first streams * d columns
        weights: float32 (n, outputs streams)
        out: float32 (n, outputs d); it may be x if x has no other columns
        added: float32 (n, d), with factors float32 (n, outputs); None for neither
    """
    if not 1 <= streams <= MAX_STREAMS:
        raise ValueError(f"streams: expected 1 to {MAX_STREAMS}, got {streams}")
    check_dimensions(out, 2, "out")
    check_dimensions(weights, 2, "weights")
    cdef Py_ssize_t n = rows_of(x, "x"), width = x.shape[1], outputs = weights.shape[1] // streams, d, i
    d = out.shape[1] // outputs if outputs else 0
    if d < 1 or d * outputs != out.shape[1] or not fits(streams, d, width):
        raise ValueError(f"mix_streams: expected {streams} whole streams, got {width} columns for {out.shape[1]}")
    cdef const float* xp = f32_data(x, 0, "x")
    cdef const float* wp = f32_rows(weights, n, outputs * streams, "weights")
    cdef float* op = f32_rows_out(out, n, outputs * d, "out")
    if (added is None) != (factors is None):
        raise ValueError("factors: expected them with added alone, got one of both")
    cdef const float* ap = NULL if added is None else f32_rows(added, n, d, "added")
    cdef const float* fp = NULL if factors is None else f32_rows(factors, n, outputs, "factors")
    cdef int threads = threads_for(n * width * outputs, n_threads)
    check_same_or_apart(x, out, "x, out")
    for name, array in (("weights", weights), ("added", added), ("factors", factors)):
        if array is not None:
            check_apart(out, array, f"out, {name}")
    if (outputs > streams or width != streams * d) and cnp.PyArray_DATA(x) == cnp.PyArray_DATA(out):
        raise ValueError(f"out: expected another array than x for other columns than {width}, got {outputs * d}")
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        mix_row(xp + i * width, wp + i * outputs * streams, NULL if ap == NULL else ap + i * d,
                NULL if fp == NULL else fp + i * outputs, streams, outputs, d, op + i * outputs * d)


cdef void balance_row(float* x, Py_ssize_t s, float epsilon, Py_ssize_t rounds) noexcept nogil:
    cdef Py_ssize_t i, j, _r
    cdef float top
    for i in range(s):
        top = x[i * s]
        for j in range(1, s):
            top = x[i * s + j] if x[i * s + j] > top else top
        store_part(x + i * s, exp16(f32_sub(load_part(x + i * s, s, 0.0), f32_set1(top))), s)
        divide(x + i * s, s, 1, 0)
        for j in range(s):
            x[i * s + j] += epsilon
    for _r in range(rounds):
        if _r:
            for i in range(s):
                divide(x + i * s, s, 1, epsilon)
        for j in range(s):
            divide(x + j, s, s, epsilon)


cdef inline void divide(float* x, Py_ssize_t n, Py_ssize_t step, float least) noexcept nogil:
    """Divides n numbers that lie ``step`` apart by their sum, in order, plus ``least``."""
    cdef Py_ssize_t i
    cdef float total = x[0]
    for i in range(1, n):
        total = total + x[i * step]
    total = total + least
    for i in range(n):
        x[i * step] /= total


def balance(cnp.ndarray x, Py_ssize_t streams, float epsilon, Py_ssize_t rounds, int n_threads):
    """Each row's matrix becomes almost doubly stochastic (Sinkhorn and Knopp, 1967), in place: a softmax of each row of
    the matrix, plus epsilon; then its columns are divided by their sums + epsilon; then ``rounds`` - 1 times its rows
    and its columns are.

    Args:
        x: float32 (n, streams * streams), at most 16 streams
    """
    if not (1 <= streams <= MAX_BALANCED and 1 <= rounds <= 1000):
        raise ValueError(f"balance: expected 1 to {MAX_BALANCED} streams and 1 to 1000 rounds, got {streams}, {rounds}")
    cdef Py_ssize_t n = rows_of(x, "x"), i
    cdef float* xp = f32_rows_out(x, n, streams * streams, "x")
    cdef int threads = threads_for(8 * n * rounds * streams * streams, n_threads)
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        balance_row(xp + i * streams * streams, streams, epsilon, rounds)


# --- rotary embedding ----------------------------------------------------------------------------------


# pi / 2 in three parts; the first two have 33 bits, so that products with k < 2^20 are exact (fdlibm's split)
cdef double PIO2_1 = 1.57079632673412561417e+00
cdef double PIO2_2 = 6.07710050630396597660e-11
cdef double PIO2_3 = 2.02226624879595063154e-21


cdef inline void sincos64(double a, double* s, double* c) noexcept nogil:
    """sin and cos in plain double arithmetic, error below 1e-11 for 0 <= a <= 1e6; NaN for |a| > 1e15."""
    if not -1e15 <= a <= 1e15:
        s[0] = c[0] = NAN
        return
    cdef double k = (a * 0.63661977236758134308 + 6755399441055744.0) - 6755399441055744.0
    cdef double r = ((a - k * PIO2_1) - k * PIO2_2) - k * PIO2_3
    cdef double z = r * r
    cdef double sine = 1.0 / 362880 - z / 39916800
    cdef double cosine = -1.0 / 3628800 + z / 479001600
    sine = r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * sine)))
    cosine = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * cosine))))
    cdef int quadrant = <int>(<int64_t>k & 3)
    if quadrant == 0:
        s[0] = sine
        c[0] = cosine
    elif quadrant == 1:
        s[0] = cosine
        c[0] = -sine
    elif quadrant == 2:
        s[0] = -sine
        c[0] = -cosine
    else:
        s[0] = -cosine
        c[0] = sine


def rope_table(cnp.ndarray positions, cnp.ndarray frequencies, float magnitude, cnp.ndarray out):
    """Cosines and sines of position * frequency, times ``magnitude``.

    Args:
        positions: int32 (n,), below 10^6
        frequencies: float64 (m,), radians per position; an angle beyond 1e15 gives NaN
        out: float32 (n, 2, m), cosines then sines
    """
    cdef const int* pp = i32_data(positions, 0, "positions")
    cdef const double* fp = <const double*>checked(frequencies, cnp.NPY_FLOAT64, 0, "frequencies")
    cdef Py_ssize_t n = cnp.PyArray_SIZE(positions), m = cnp.PyArray_SIZE(frequencies), i, j
    cdef float* op = f32_out(out, 0, "out")
    cdef double s, c
    check_dimensions(out, 3, "out")
    if out.shape[0] < n or out.shape[1] != 2 or out.shape[2] != m:
        raise ValueError(f"out: expected at least {n} rows of 2 x {m}, "
                         f"got {out.shape[0]} of {out.shape[1]} x {out.shape[2]}")
    with nogil:
        for i in range(n):
            for j in range(m):
                sincos64(pp[i] * fp[j], &s, &c)
                op[2 * i * m + j] = <float>c * magnitude
                op[(2 * i + 1) * m + j] = <float>s * magnitude


cdef void rope_row(float* x, Py_ssize_t heads, Py_ssize_t head_dim, const float* table, Py_ssize_t m,
                   Py_ssize_t apart, Py_ssize_t step) noexcept nogil:
    cdef Py_ssize_t _h, i
    cdef const float* c = table
    cdef const float* s = table + m
    cdef float a, b
    for _h in range(heads):
        for i in range(m):
            a = x[i * step]
            b = x[i * step + apart]
            x[i * step] = a * c[i] - b * s[i]
            x[i * step + apart] = a * s[i] + b * c[i]
        x += head_dim


def rope(cnp.ndarray x, Py_ssize_t heads, Py_ssize_t head_dim, cnp.ndarray table, bint neox, int n_threads,
         Py_ssize_t column=0):
    """Rotates m pairs of dimensions of each head in place (Su et al., RoFormer, 2021).

    Args:
        x: float32 (n, width); heads begin ``head_dim`` apart from ``column`` on, and the first 2 m dimensions of each
            head rotate
        table: float32 (n, 2, m) from `rope_table`
        neox: pairs are (i, i + m) if true, (2 i, 2 i + 1) if not
    """
    cdef Py_ssize_t n = rows_of(x, "x"), width = x.shape[1], m, i
    cdef float* xp = f32_out(x, 0, "x")
    cdef const float* tp = f32_data(table, 0, "table")
    check_dimensions(table, 3, "table")
    m = table.shape[2]
    if table.shape[0] < n or table.shape[1] != 2:
        raise ValueError(f"table: expected at least {n} rows of 2 x {m}, "
                         f"got {table.shape[0]} of {table.shape[1]} x {m}")
    if (heads < 1 or 2 * m > head_dim or not 0 <= column <= width - 2 * m
            or not fits(heads - 1, head_dim, width - 2 * m - column)):
        raise ValueError(f"rope: expected heads within rows of {width}, got {heads} of {head_dim} with {m} pairs")
    cdef int threads = threads_for(n * heads * m, n_threads)
    cdef Py_ssize_t apart = m if neox else 1, step = 1 if neox else 2
    if is_small(n * heads * m):
        for i in range(n):
            rope_row(xp + i * width + column, heads, head_dim, tp + 2 * i * m, m, apart, step)
        return
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        rope_row(xp + i * width + column, heads, head_dim, tp + 2 * i * m, m, apart, step)


# --- softmax -------------------------------------------------------------------------------------------


def softmax(cnp.ndarray x, cnp.ndarray out) -> bool:
    """out = exp(x - max(x)) / sum, over one row; -inf gives exactly 0. Returns False if x has NaN or +inf
    or only -inf (then ``out`` is meaningless).

    Args:
        x, out: float32 (d,)
    """
    cdef const float* xp = f32_data(x, 0, "x")
    cdef Py_ssize_t d = cnp.PyArray_SIZE(x)
    cdef float* op = f32_out(out, d, "out")
    cdef float total
    check_same_or_apart(x, out, "x, out")
    with nogil:
        total = softmax_row(xp, d, op)
    return total >= 1.0 and total - total == 0.0


def apply_mask(cnp.ndarray logits, cnp.ndarray mask):
    """Sets the logits whose bit is 0 to -inf.

    Args:
        logits: float32 (n,)
        mask: uint32 (at least n / 32,); bit t % 32 of word t / 32 is the bit of logit t
    """
    cdef float* x = f32_out(logits, 0, "logits")
    cdef Py_ssize_t n = cnp.PyArray_SIZE(logits), words = n >> 5, i
    cdef const uint32_t* bits = <const uint32_t*>checked(mask, cnp.NPY_UINT32, (n + 31) // 32, "mask")
    cdef float minus = -float("inf")
    cdef uint32_t word
    cdef int b
    with nogil:
        for i in range(words):
            word = bits[i]
            if word == 0:
                for b in range(32):
                    x[b] = minus
            elif word != <uint32_t>0xFFFFFFFF:
                for b in range(32):
                    x[b] = x[b] if (word >> b) & 1 else minus
            x += 32
        for b in range(<int>(n & 31)):
            x[b] = x[b] if (bits[words] >> b) & 1 else minus
