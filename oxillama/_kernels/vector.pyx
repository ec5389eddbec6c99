"""Row-wise kernels: norms, rotary embedding, gated activations, softmax.

Each row is computed by one thread, in one order: sums run in 16 strided accumulators (lane i adds
elements i, i + 16, ...), then in the fixed tree of `f32_sum`.
"""

cimport numpy as cnp
from cython.parallel cimport prange
from libc.math cimport sqrt
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from arrays cimport f32_data, i32_data, checked
from mathfun cimport exp16, over_logistic16
from simd cimport *

cnp.import_array()

cdef enum:
    PARALLEL_FROM = 1 << 16  # elements; below it starting threads costs more than it saves


cdef inline int threads_for(Py_ssize_t elements, int n_threads) noexcept nogil:
    return n_threads if elements >= PARALLEL_FROM else 1


cdef inline f32x16 load_part(const float* p, Py_ssize_t left, float fill) noexcept nogil:
    """16 elements, or ``left`` of them and then ``fill``."""
    cdef float lanes[16]
    cdef Py_ssize_t i
    if left >= 16:
        return f32_load(p)
    for i in range(16):
        lanes[i] = p[i] if i < left else fill
    return f32_load(lanes)


cdef inline void store_part(float* p, f32x16 v, Py_ssize_t left) noexcept nogil:
    cdef float lanes[16]
    if left >= 16:
        f32_store(p, v)
        return
    f32_store(lanes, v)
    memcpy(p, lanes, left * sizeof(float))


cdef void rms_norm_row(const float* x, const float* weight, Py_ssize_t d, float eps, float* out) noexcept nogil:
    cdef f32x16 sums = f32_zero(), v, scale
    cdef Py_ssize_t k
    for k in range(0, d, 16):
        v = load_part(x + k, d - k, 0.0)
        sums = f32_fma(v, v, sums)
    scale = f32_set1(<float>(1.0 / sqrt(f32_sum(sums) / <double>d + eps)))
    for k in range(0, d, 16):
        v = f32_mul(load_part(x + k, d - k, 0.0), scale)
        store_part(out + k, f32_mul(v, load_part(weight + k, d - k, 0.0)), d - k)


def rms_norm(cnp.ndarray x, cnp.ndarray weight, float eps, cnp.ndarray out, int n_threads):
    """out = x / sqrt(mean(x^2) + eps) * weight, row by row (Zhang and Sennrich, 2019).

    Parameters
    ----------
    x, out : float32 (n, d)
    weight : float32 (d,)
    """
    cdef Py_ssize_t n = x.shape[0], d = x.shape[1], i
    cdef const float* xp = f32_data(x, n * d, "x")
    cdef const float* wp = f32_data(weight, d, "weight")
    cdef float* op = f32_data(out, n * d, "out")
    cdef int threads = threads_for(n * d, n_threads)
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        rms_norm_row(xp + i * d, wp, d, eps, op + i * d)


cdef void swiglu_row(const float* gate, const float* up, Py_ssize_t d, float* out) noexcept nogil:
    cdef Py_ssize_t k
    cdef f32x16 g
    for k in range(0, d, 16):
        g = load_part(gate + k, d - k, 0.0)
        store_part(out + k, f32_mul(over_logistic16(g, g), load_part(up + k, d - k, 0.0)), d - k)


def swiglu(cnp.ndarray gate_up, cnp.ndarray out, int n_threads):
    """out = silu(gate) * up (Shazeer, "GLU Variants Improve Transformer", 2020).

    Parameters
    ----------
    gate_up : float32 (n, 2 d), the gate's columns first
    out : float32 (n, d)
    """
    cdef Py_ssize_t n = out.shape[0], d = out.shape[1], i
    cdef const float* gp = f32_data(gate_up, 2 * n * d, "gate_up")
    cdef float* op = f32_data(out, n * d, "out")
    cdef int threads = threads_for(n * d, n_threads)
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        swiglu_row(gp + 2 * i * d, gp + (2 * i + 1) * d, d, op + i * d)


def sigmoid(cnp.ndarray x, cnp.ndarray out):
    """out = 1 / (1 + exp(-x)), element by element; both float32 of one size."""
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x), k
    cdef const float* xp = f32_data(x, n, "x")
    cdef float* op = f32_data(out, n, "out")
    for k in range(0, n, 16):
        store_part(op + k, over_logistic16(f32_set1(1.0), load_part(xp + k, n - k, 0.0)), n - k)


def head_norm(cnp.ndarray x, Py_ssize_t heads, Py_ssize_t head_dim, cnp.ndarray weight, float eps, int n_threads):
    """Root-mean-square norm of each head in place: `rms_norm` over ``head_dim`` elements at a time.

    Parameters
    ----------
    x : float32 (n, width); its first ``heads * head_dim`` columns are normalized
    weight : float32 (head_dim,)
    """
    cdef Py_ssize_t n = x.shape[0], width = x.shape[1], i
    cdef float* xp = f32_data(x, n * width, "x")
    cdef const float* wp = f32_data(weight, head_dim, "weight")
    cdef float* row
    cdef int threads = threads_for(n * width, n_threads)
    if heads < 0 or head_dim < 1 or heads * head_dim > width:
        raise ValueError(f"head_norm: {heads} heads of {head_dim} do not fit rows of {width}")
    for i in prange(n * heads, nogil=True, schedule="dynamic", chunksize=64, num_threads=threads):
        row = xp + i // heads * width + i % heads * head_dim
        rms_norm_row(row, wp, head_dim, eps, row)


# pi / 2 in three parts; the first two hold 33 bits, so that products with k < 2^20 are exact (fdlibm's split)
cdef double PIO2_1 = 1.57079632673412561417e+00
cdef double PIO2_2 = 6.07710050630396597660e-11
cdef double PIO2_3 = 2.02226624879595063154e-21


cdef inline void sincos64(double a, double* s, double* c) noexcept nogil:
    """sin and cos in plain double arithmetic, error below 1e-11 for 0 <= a <= 1e6."""
    cdef double k = (a * 0.63661977236758134308 + 6755399441055744.0) - 6755399441055744.0
    cdef double r = ((a - k * PIO2_1) - k * PIO2_2) - k * PIO2_3
    cdef double z = r * r
    cdef double sine = 1.0 / 362880 - z / 39916800
    cdef double cosine = -1.0 / 3628800 + z / 479001600
    sine = r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * sine)))
    cosine = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * cosine))))
    cdef int quadrant = <int>(<long long>k & 3)
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

    Parameters
    ----------
    positions : int32 (n,), below 10^6
    frequencies : float64 (m,), radians per position
    out : float32 (n, 2, m), cosines then sines
    """
    cdef Py_ssize_t n = positions.shape[0], m = frequencies.shape[0], i, j
    cdef const int* pp = i32_data(positions, n, "positions")
    cdef const double* fp = <const double*>checked(frequencies, cnp.NPY_FLOAT64, m, "frequencies")
    cdef float* op = f32_data(out, 2 * n * m, "out")
    cdef double s, c
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


def rope(cnp.ndarray x, Py_ssize_t heads, Py_ssize_t head_dim, cnp.ndarray table, bint neox, int n_threads):
    """Rotates pairs of the first 2 m dimensions of each head in place (Su et al., RoFormer, 2021).

    Parameters
    ----------
    x : float32 (n, width); its first ``heads * head_dim`` columns are rotated
    table : float32 (n, 2, m) from `rope_table`
    neox : pairs are (i, i + m) if true, (2 i, 2 i + 1) if not
    """
    cdef Py_ssize_t n = x.shape[0], width = x.shape[1], m = table.shape[2], i
    cdef float* xp = f32_data(x, n * width, "x")
    cdef const float* tp = f32_data(table, 2 * n * m, "table")
    if heads * head_dim > width or 2 * m > head_dim:
        raise ValueError(f"rope: {heads} heads of {head_dim} with {m} pairs do not fit rows of {width}")
    cdef int threads = threads_for(n * width, n_threads)
    for i in prange(n, nogil=True, schedule="dynamic", chunksize=8, num_threads=threads):
        rope_row(xp + i * width, heads, head_dim, tp + 2 * i * m, m, m if neox else 1, 1 if neox else 2)


def softmax(cnp.ndarray x, cnp.ndarray out):
    """out = exp(x - max(x)) / sum, over one row; -inf gives exactly 0. Returns False if x holds NaN or +inf
    or nothing but -inf (then ``out`` is meaningless).

    Parameters
    ----------
    x, out : float32 (d,)
    """
    cdef Py_ssize_t d = cnp.PyArray_SIZE(x), k
    cdef const float* xp = f32_data(x, d, "x")
    cdef float* op = f32_data(out, d, "out")
    cdef float minus = -float("inf")
    cdef f32x16 top = f32_set1(minus), sums = f32_zero(), v
    cdef float most, total
    with nogil:
        for k in range(0, d, 16):
            top = f32_max(load_part(xp + k, d - k, minus), top)
        most = f32_hmax(top)
        top = f32_set1(most)
        for k in range(0, d, 16):
            v = exp16(f32_sub(load_part(xp + k, d - k, minus), top))
            sums = f32_add(sums, v)
            store_part(op + k, v, d - k)
        total = f32_sum(sums)
        v = f32_set1(<float>1.0 / total)
        for k in range(0, d, 16):
            store_part(op + k, f32_mul(load_part(op + k, d - k, 0.0), v), d - k)
    return total >= 1.0 and total - total == 0.0


def apply_mask(cnp.ndarray logits, cnp.ndarray mask):
    """Sets the logits to -inf whose bit is not set.

    Parameters
    ----------
    logits : float32 (n,)
    mask : uint32 (at least n / 32,); bit t % 32 of word t / 32 stands for logit t
    """
    cdef Py_ssize_t n = cnp.PyArray_SIZE(logits), words = n >> 5, i
    cdef float* x = f32_data(logits, n, "logits")
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
