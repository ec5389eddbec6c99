"""Elementary functions of our own operations, so that every target gives the same bits: no math library."""

from libc.math cimport INFINITY, NAN
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from simd cimport *


cdef inline f32x16 exp16(f32x16 x) noexcept nogil:
    """e^x within 1 ulp for -87.3 <= x <= 88; below that exactly 0, above it e^88; NaN stays NaN.

    x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite's two-part ln 2), a polynomial of degree 6
    for e^r, times 2^n, which is exact. Its coefficients are 1, 1, and those of the degree-4 interpolation
    of (e^r - 1 - r) / r^2 at Chebyshev's nodes: 1e-8 off at most, where Taylor's series is at 1.3e-7.
    """
    cdef f32x16 magic = f32_set1(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer
    cdef f32x16 low = f32_set1(-87.3)
    cdef f32x16 top = f32_set1(88.0)
    cdef f32x16 y = f32_select_lt(x, low, low, f32_select_lt(top, x, top, x))
    cdef f32x16 n = f32_fma(y, f32_set1(1.44269504), magic)
    cdef f32x16 p, r
    cdef f32x16 power = f32_from_bits(i32_add(i32_shl(i32_from_bits(n), 23), i32_set1(127 << 23)))
    n = f32_sub(n, magic)
    r = f32_fma(n, f32_set1(-0.693359375), y)
    r = f32_fma(n, f32_set1(2.12194440e-4), r)
    p = f32_fma(f32_set1(1.39262131e-3), r, f32_set1(8.36320315e-3))
    p = f32_fma(p, r, f32_set1(4.16665561e-2))
    p = f32_fma(p, r, f32_set1(1.66665763e-1))
    p = f32_fma(p, r, f32_set1(0.5))
    p = f32_fma(p, r, f32_set1(1.0))
    p = f32_fma(p, r, f32_set1(1.0))
    return f32_select_lt(x, low, f32_zero(), f32_mul(p, power))


cdef inline f32x16 over_logistic16(f32x16 numerator, f32x16 x) noexcept nogil:
    """numerator / (1 + e^-x): the sigmoid of x for 1, its SiLU for x."""
    return f32_div(numerator, f32_add(f32_set1(1.0), exp16(f32_sub(f32_zero(), x))))


cdef inline f32x16 tanh16(f32x16 x) noexcept nogil:
    """tanh x within 2 ulp; NaN stays NaN.

    Below 0.5625 an odd polynomial: (tanh x / x - 1) / x^2 interpolated in x^2 at Chebyshev's nodes, 5e-9 off.
    Above, 1 - 2 / (e^2|x| + 1) with the sign put back.
    """
    cdef f32x16 zero = f32_zero(), one = f32_set1(1.0)
    cdef f32x16 a = f32_abs(x), z = f32_mul(x, x), p, far
    p = f32_fma(f32_set1(-6.52557239e-3), z, f32_set1(2.12633535e-2))
    p = f32_fma(p, z, f32_set1(-5.39017543e-2))
    p = f32_fma(p, z, f32_set1(1.33330733e-1))
    p = f32_fma(p, z, f32_set1(-3.33333313e-1))
    p = f32_fma(f32_mul(x, z), p, x)
    far = f32_sub(one, f32_div(f32_set1(2.0), f32_add(exp16(f32_add(a, a)), one)))
    far = f32_select_lt(x, zero, f32_sub(zero, far), far)
    return f32_select_lt(a, f32_set1(0.5625), p, far)


cdef inline double power_of_two(int64_t n) noexcept nogil:
    """2^n for -1022 <= n <= 1023."""
    cdef uint64_t bits = <uint64_t>(n + 1023) << 52
    cdef double x
    memcpy(&x, &bits, 8)
    return x


cdef inline double exp64(double x) noexcept nogil:
    """e^x, relative error below 4e-16; 0 below -700, inf above 709.

    x = n ln 2 + r with |r| <= ln 2 / 2, Taylor's series to r^13 / 13! (the next term is 4e-18), times 2^n.
    """
    cdef double n, r, p
    cdef int i
    if x != x:
        return x
    if x < -700.0:
        return 0.0
    if x > 709.0:
        return INFINITY
    n = (x * 1.44269504088896340736 + 6755399441055744.0) - 6755399441055744.0
    r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10
    p = 1.0
    for i in range(13, 0, -1):
        p = 1.0 + r * p / i
    return p * power_of_two(<int64_t>n) if n < 1024.0 else p * power_of_two(1023) * 2.0


cdef inline double log64(double x) noexcept nogil:
    """ln x, error below 1e-15 of it; -inf for 0, NaN below, inf for inf.

    x = 2^n m with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.172, by the
    series to s^23 / 23 (the next term is 4e-21).
    """
    cdef uint64_t bits
    cdef double n = 0, s, z, p
    cdef int i
    if not x > 0.0:
        return -INFINITY if x == 0.0 else NAN
    if x > 1.7976931348623157e308:
        return x
    if x < 2.2250738585072014e-308:
        x = x * 18014398509481984.0  # 2^54
        n = -54
    memcpy(&bits, &x, 8)
    n = n + <double>(<int64_t>(bits >> 52) - 1023)
    bits = (bits << 12 >> 12) | <uint64_t>0x3FF0000000000000U  # the exponent of [1, 2)
    memcpy(&x, &bits, 8)
    if x > 1.4142135623730951:
        x = x * 0.5
        n = n + 1
    s = (x - 1.0) / (x + 1.0)
    z = s * s
    p = 0.0
    for i in range(23, 1, -2):
        p = z * (p + 1.0 / i)
    return n * 6.93147180369123816490e-01 + (2.0 * s + (2.0 * s * p + n * 1.90821492927058770002e-10))
