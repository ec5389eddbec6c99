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


cdef inline f32x16 erfc16(f32x16 x) noexcept nogil:
    """1 - erf x within 6 ulp up to 9.3, beyond that 0 like exp16; NaN stays NaN.

    e^-x^2 times a polynomial in w = (|x| - 2) / (|x| + 2) over 1 + 2|x|: w maps the half line to a finite
    interval (Schonfelder, Math. Comp. 32, 1978), on which degree 9 at Chebyshev's nodes is 2.5e-8 off.
    What x^2 loses by rounding is put back to first order. 2 - that for negative x.
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
    polynomial of degree 4 in s^2, 1e-9 off.
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
