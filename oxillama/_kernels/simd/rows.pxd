"""Helpers of the row-wise kernels: partial vectors, when threads are worth starting, softmax."""

from libc.string cimport memcpy

from oxillama._kernels.arrays cimport check_threads
from oxillama._kernels.simd.mathfun cimport exp16
from oxillama._kernels.simd.simd cimport *


cdef enum:
    PARALLEL_FROM = 1 << 16  # elements; for fewer, starting threads costs more than it saves


cdef inline bint is_small(Py_ssize_t elements) noexcept nogil:
    """Whether a call should stay in the caller's thread and keep the GIL: a parallel region costs a microsecond even
    for one thread, and getting back a contended GIL costs ten."""
    return elements < PARALLEL_FROM


cdef inline int threads_for(Py_ssize_t elements, int n_threads) except -1:
    check_threads(n_threads)
    return 1 if is_small(elements) else n_threads


cdef inline f32x16 load_part(const float* p, Py_ssize_t left, float fill) noexcept nogil:
    """16 elements; if fewer are left, ``left`` elements, then ``fill``."""
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


cdef inline float softmax_row(const float* x, Py_ssize_t d, float* out) noexcept nogil:
    """out = softmax(x); returns the sum of exp(x - max(x)), at least 1 unless x has NaN, +inf or only -inf."""
    cdef Py_ssize_t k
    cdef float minus = -1e39  # -inf as a float
    cdef f32x16 top = f32_set1(minus), sums = f32_zero(), v
    cdef float total
    for k in range(0, d, 16):
        top = f32_max(load_part(x + k, d - k, minus), top)
    top = f32_set1(f32_hmax(top))
    for k in range(0, d, 16):
        v = exp16(f32_sub(load_part(x + k, d - k, minus), top))
        sums = f32_add(sums, v)
        store_part(out + k, v, d - k)
    total = f32_sum(sums)
    v = f32_set1(<float>1.0 / total)
    for k in range(0, d, 16):
        store_part(out + k, f32_mul(load_part(out + k, d - k, 0.0), v), d - k)
    return total
