"""Elementary functions made of the operations of simd.h, not of a math library: every target gives the same bits."""

from libc.math cimport INFINITY, NAN
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from oxillama._kernels.simd.simd cimport *


cdef inline f32x16 exp16(f32x16 x) noexcept nogil:
    """e^x within 1 ulp for -87.3 <= x <= 88; below that exactly 0, above it e^88; NaN stays NaN."""
    cdef f32x16 top = f32_set1(88.0)
    return exp_below16(f32_select_lt(top, x, top, x))


cdef inline f32x16 exp_below16(f32x16 x) noexcept nogil:
    """`exp16` for numbers up to 88.

    x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite's two-part ln 2), a polynomial of degree 6
    for e^r, times 2^n, which is exact. The coefficients are 1, 1, and the degree-4 interpolation
    of (e^r - 1 - r) / r^2 at Chebyshev's nodes: its error is at most 1e-8, Taylor's series has 1.3e-7.
    """
    cdef f32x16 magic = f32_set1(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer
    cdef f32x16 low = f32_set1(-87.3)
    cdef f32x16 y = f32_max(low, x)  # NaN stays NaN
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


cdef inline f32x16 exp_to_bf16(f32x16 x) noexcept nogil:
    """e^x within 1e-4 e^x for -38.8 <= x <= 0, to be rounded to bf16; below that, where e^x is about 2^-56, exactly 0.

    2^n times a polynomial of degree 3 for 2^r with |r| <= 1/2, interpolated at Chebyshev's nodes. NaN stays NaN.
    """
    cdef f32x16 low = f32_set1(-38.8)
    cdef f32x16 magic = f32_set1(12583039.0)  # 1.5 * 2^23 + 127: rounds to an integer, adds the exponent's bias
    cdef f32x16 y = f32_mul(f32_max(low, x), f32_set1(1.44269504))
    cdef f32x16 n = f32_add(y, magic)
    cdef f32x16 power = f32_from_bits(i32_shl(i32_from_bits(n), 23))
    cdef f32x16 r = f32_sub(y, f32_sub(n, magic))
    cdef f32x16 p = f32_fma(f32_set1(5.58382832e-2), r, f32_set1(0.242639482))
    p = f32_fma(p, r, f32_set1(0.693136752))
    p = f32_fma(p, r, f32_set1(0.999924541))
    return f32_select_lt(x, low, f32_zero(), f32_mul(p, power))


cdef inline f32x16 over_logistic16(f32x16 numerator, f32x16 x) noexcept nogil:
    """numerator / (1 + e^-x): sigmoid(x) for a numerator of 1, SiLU(x) for x."""
    return f32_div(numerator, f32_add(f32_set1(1.0), exp16(f32_sub(f32_zero(), x))))


cdef inline f32x16 tanh16(f32x16 x) noexcept nogil:
    """tanh x within 2 ulp; NaN stays NaN.

    Below 0.5625 an odd polynomial: (tanh x / x - 1) / x^2 interpolated in x^2 at Chebyshev's nodes, error 5e-9.
    Above, 1 - 2 / (e^2|x| + 1) with the sign of x.
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
    """ln x, relative error below 1e-15; -inf for 0, NaN for x < 0, inf for inf.

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


cdef inline f32x16 erfc16(f32x16 x) noexcept nogil:
    """1 - erf x within 6 ulp up to 9.3, beyond that 0 like exp16; NaN stays NaN.

    e^-x^2 times a polynomial in w = (|x| - 2) / (|x| + 2) over 1 + 2|x|: w maps the half line to a finite
    interval (Schonfelder, Math. Comp. 32, 1978), on which degree 9 at Chebyshev's nodes has an error of 2.5e-8.
    The rounding error of x^2 is corrected to first order. For negative x: 2 - erfc(|x|).
    """
    cdef f32x16 two = f32_set1(2.0), zero = f32_zero(), top = f32_set1(10.0)
    cdef f32x16 a = f32_select_lt(top, f32_abs(x), top, f32_abs(x))
    cdef f32x16 w = f32_div(f32_sub(a, two), f32_add(a, two))
    cdef f32x16 square = f32_mul(a, a), lost = f32_fma(a, a, f32_sub(zero, f32_mul(a, a)))
    cdef f32x16 power = exp16(f32_sub(zero, square)), p
    power = f32_fma(power, f32_sub(zero, lost), power)
    p = f32_fma(f32_set1(-4.28746309e-4), w, f32_set1(-1.27448223e-3))
    p = f32_fma(p, w, f32_set1(1.32424431e-3))
    p = f32_fma(p, w, f32_set1(8.67044553e-3))
    p = f32_fma(p, w, f32_set1(-8.05695262e-3))
    p = f32_fma(p, w, f32_set1(-5.42151853e-2))
    p = f32_fma(p, w, f32_set1(1.64054111e-1))
    p = f32_fma(p, w, f32_set1(-1.66030407e-1))
    p = f32_fma(p, w, f32_set1(-9.27639082e-2))
    p = f32_fma(p, w, f32_set1(1.27697837))
    p = f32_mul(power, f32_div(p, f32_fma(two, a, f32_set1(1.0))))
    return f32_select_lt(x, zero, f32_sub(two, p), p)


cdef inline f32x16 softplus16(f32x16 x) noexcept nogil:
    """ln(1 + e^x) within 3 ulp down to -87.3, below that 0; NaN stays NaN.

    max(x, 0) + ln(1 + u) with u = e^-|x|, and ln(1 + u) = 2 artanh s for s = u / (2 + u) <= 1/3, by a
    polynomial of degree 4 in s^2, error 1e-9.
    """
    cdef f32x16 zero = f32_zero()
    cdef f32x16 u = exp16(f32_sub(zero, f32_abs(x)))
    cdef f32x16 s = f32_div(u, f32_add(u, f32_set1(2.0))), z = f32_mul(s, s), p
    p = f32_fma(f32_set1(1.16121642e-1), z, f32_set1(1.08532883e-1))
    p = f32_fma(p, z, f32_set1(1.42961785e-1))
    p = f32_fma(p, z, f32_set1(1.99998528e-1))
    p = f32_fma(p, z, f32_set1(3.33333343e-1))
    p = f32_fma(f32_mul(s, z), p, s)
    return f32_add(f32_max(zero, x), f32_add(p, p))
