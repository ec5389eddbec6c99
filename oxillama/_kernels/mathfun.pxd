"""Elementary functions over 16 lanes: our own operations, so that every target gives the same bits."""

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
