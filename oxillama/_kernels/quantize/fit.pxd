"""Least squares for the quantizer: scales, offsets and codes of 16 small blocks at a time.

One lane is one block, so no sum crosses lanes and every target computes the same bits. Element i of lane r is
``x[16 * i + r]``, its weight ``w[16 * i + r]``. A *fit* tries a range of scales: a scale determines the codes, the
codes determine the best scale (and offset) by least squares, and the result with the smallest error is kept; then
codes and scale are computed in turn for a few rounds, as in Lloyd's algorithm ("Least squares quantization in PCM",
1982).
"""

from oxillama._kernels.packing.formats cimport VALUES_T4
from oxillama._kernels.simd.simd cimport (
    f32x16, f32_abs, f32_add, f32_div, f32_load, f32_max, f32_mul, f32_select_lt, f32_set1, f32_sub, f32_zero)

cdef inline f32x16 nearest(f32x16 v, float low, float high) noexcept nogil:
    """The nearest integer within [low, high]; ``low`` for NaN."""
    cdef f32x16 most = f32_set1(high)
    cdef f32x16 magic = f32_set1(12582912.0)  # 1.5 * 2^23: adding it removes the fraction
    v = f32_max(v, f32_set1(low))
    v = f32_select_lt(v, most, v, most)
    return f32_sub(f32_add(v, magic), magic)


cdef inline f32x16 nearest_uneven(f32x16 v) noexcept nogil:
    """The nearest of the 16 values of IQ4_NL and IQ4_XS; of two equally near the lower; for NaN the lowest."""
    cdef f32x16 found = f32_set1(<float>VALUES_T4[0])
    cdef int i
    for i in range(15):
        found = f32_select_lt(f32_set1(<float>0.5 * <float>(VALUES_T4[i] + VALUES_T4[i + 1])), v,
                              f32_set1(<float>VALUES_T4[i + 1]), found)
    return found


cdef inline f32x16 code_of(const bint uneven, f32x16 v, float low, float high) noexcept nogil:
    return nearest_uneven(v) if uneven else nearest(v, low, high)


cdef inline f32x16 inverse(f32x16 v) noexcept nogil:
    """1 / v, or 0 if v is too small to divide by."""
    cdef f32x16 tiny = f32_set1(1e-30)
    cdef f32x16 safe = f32_select_lt(f32_abs(v), tiny, f32_set1(1.0), v)
    return f32_select_lt(f32_abs(v), tiny, f32_zero(), f32_div(f32_set1(1.0), safe))


# Weighted sums in each lane: of w, w x, w x^2, and with codes q of w q, w q^2, w x q.
cdef struct Sums:
    f32x16 w, x, xx, q, qq, xq


cdef inline Sums sums_of(const float* x, const float* w, int n) noexcept nogil:
    """The sums without codes; the sums with codes are 0."""
    cdef Sums s
    cdef f32x16 xi, wi
    cdef int i
    s.w = s.x = s.xx = s.q = s.qq = s.xq = f32_zero()
    for i in range(n):
        xi, wi = f32_load(x + 16 * i), f32_load(w + 16 * i)
        s.w = f32_add(s.w, wi)
        s.x = f32_add(s.x, f32_mul(wi, xi))
        s.xx = f32_add(s.xx, f32_mul(f32_mul(wi, xi), xi))
    return s


cdef inline void add_codes(const bint uneven, const float* x, const float* w, int n, f32x16 start, f32x16 inv,
                           float low, float high, Sums* s) noexcept nogil:
    """Sets the sums with codes, for the codes nearest to (x - start) * inv."""
    cdef f32x16 xi, wi, q, wq
    cdef int i
    s.q = s.qq = s.xq = f32_zero()
    for i in range(n):
        xi, wi = f32_load(x + 16 * i), f32_load(w + 16 * i)
        q = code_of(uneven, f32_mul(f32_sub(xi, start), inv), low, high)
        wq = f32_mul(wi, q)
        s.q = f32_add(s.q, wq)
        s.qq = f32_add(s.qq, f32_mul(wq, q))
        s.xq = f32_add(s.xq, f32_mul(wq, xi))


cdef inline f32x16 error_of(const bint uneven, const float* x, const float* w, int n, f32x16 scale, f32x16 start,
                            float low, float high) noexcept nogil:
    """Weighted squared error of scale * q + start, with the nearest codes q."""
    cdef f32x16 inv = inverse(scale), e, error = f32_zero()
    cdef f32x16 xi
    cdef int i
    for i in range(n):
        xi = f32_load(x + 16 * i)
        e = code_of(uneven, f32_mul(f32_sub(xi, start), inv), low, high)
        e = f32_sub(xi, f32_add(f32_mul(scale, e), start))
        error = f32_add(error, f32_mul(f32_mul(f32_load(w + 16 * i), e), e))
    return error


# The result of a fit: x is about scale * q + start.
cdef struct Found:
    f32x16 scale, start, error


cdef inline void try_affine(Sums* s, const bint negative, Found* best) noexcept nogil:
    """Least squares of x by scale * q + start, kept if better; ``negative`` bounds start to <= 0."""
    cdef f32x16 zero = f32_zero()
    cdef f32x16 inv = inverse(f32_sub(f32_mul(s.w, s.qq), f32_mul(s.q, s.q)))
    cdef f32x16 scale = f32_mul(f32_sub(f32_mul(s.w, s.xq), f32_mul(s.x, s.q)), inv)
    cdef f32x16 start = f32_mul(f32_sub(f32_mul(s.qq, s.x), f32_mul(s.q, s.xq)), inv)
    cdef f32x16 error
    if negative:
        scale = f32_select_lt(zero, start, f32_mul(s.xq, inverse(s.qq)), scale)
        start = f32_select_lt(zero, start, zero, start)
    error = f32_sub(s.xx, f32_add(f32_mul(scale, s.xq), f32_mul(start, s.x)))
    error = f32_select_lt(zero, scale, error, f32_set1(3e38))
    best.scale = f32_select_lt(error, best.error, scale, best.scale)
    best.start = f32_select_lt(error, best.error, start, best.start)
    best.error = f32_select_lt(error, best.error, error, best.error)


cdef inline Found fit_affine(const float* x, const float* w, int n, float most, const bint negative,
                             int steps) noexcept nogil:
    """The best scale and start for codes 0 to ``most``."""
    cdef Sums s = sums_of(x, w, n)
    cdef Found best
    cdef f32x16 zero = f32_zero(), low = f32_load(x), high = f32_load(x), xi, inv, span
    cdef int i, t
    for i in range(1, n):
        xi = f32_load(x + 16 * i)
        low = f32_select_lt(xi, low, xi, low)
        high = f32_max(high, xi)
    if negative:
        low = f32_select_lt(zero, low, zero, low)
    best.scale = zero
    best.start = f32_mul(s.x, inverse(s.w))
    if negative:
        best.start = f32_select_lt(zero, best.start, zero, best.start)
    best.error = f32_mul(f32_sub(s.xx, f32_mul(best.start, s.x)), f32_set1(1.0001))
    inv = inverse(f32_sub(high, low))
    for t in range(steps):
        span = f32_set1(most * (1.0 - 0.15 / most) + 0.12 * (t - 0.3 * steps))
        add_codes(False, x, w, n, low, f32_mul(span, inv), 0.0, most, &s)
        try_affine(&s, negative, &best)
    for _ in range(3):
        add_codes(False, x, w, n, best.start, inverse(best.scale), 0.0, most, &s)
        try_affine(&s, negative, &best)
    return best


cdef inline void try_scale(Sums* s, Found* best) noexcept nogil:
    """Least squares of x by scale * q, kept if better."""
    cdef f32x16 scale = f32_mul(s.xq, inverse(s.qq))
    cdef f32x16 error = f32_sub(s.xx, f32_mul(scale, s.xq))
    best.scale = f32_select_lt(error, best.error, scale, best.scale)
    best.error = f32_select_lt(error, best.error, error, best.error)


cdef inline Found fit_scale(const bint uneven, const float* x, const float* w, int n, float low, float high, int steps
                            ) noexcept nogil:
    """The best scale, of either sign, for codes from ``low`` < 0 to ``high``."""
    cdef Sums s = sums_of(x, w, n)
    cdef Found best
    cdef f32x16 zero = f32_zero(), largest = f32_zero(), xi, inv
    cdef float step = 2 if uneven else 0.1
    cdef int i, t
    for i in range(n):
        xi = f32_load(x + 16 * i)
        largest = f32_select_lt(f32_abs(largest), f32_abs(xi), xi, largest)
    best.scale = best.start = zero
    best.error = s.xx
    inv = inverse(largest)
    for t in range(steps):  # scales that map the largest value to about ``low``, then to about ``high``
        add_codes(uneven, x, w, n, zero, f32_mul(f32_set1(low - step * (t - 0.5 * steps)), inv), low, high, &s)
        try_scale(&s, &best)
        add_codes(uneven, x, w, n, zero, f32_mul(f32_set1(high + step * (t - 0.2 * steps)), inv), low, high, &s)
        try_scale(&s, &best)
    for _ in range(3):
        add_codes(uneven, x, w, n, zero, inverse(best.scale), low, high, &s)
        try_scale(&s, &best)
    return best
