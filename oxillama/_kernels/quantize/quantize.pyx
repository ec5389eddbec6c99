"""From floats to the blocks of a GGUF file: `quantize`.

Without an importance, Q4_0 to Q8_0 follow the formulas of the `gguf` package bit for bit. All other cases search for
the least weighted squared error, with 16 small blocks in the lanes of a vector (fit.pxd):

1. every block of 16 or 32 gets its best scale (and minimum);
2. the two half floats of a superblock are set so that the largest scale (minimum) takes the largest integer of its
   field;
3. then in turn, while the error falls: the integers of each block move to the best of their neighbours, with the
   nearest codes for each; and the half floats are computed by least squares for these integers and codes.

The weight of an element is the importance of its column (a mean squared activation), or 1. The result of a row
depends on the row and the importance only: not on threads, nor on the target.
"""

cimport numpy as cnp
from cython.parallel cimport prange
from libc.float cimport FLT_MAX
from libc.math cimport INFINITY, floorf, nextafterf, sqrtf
from libc.stdint cimport int8_t, int16_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from oxillama._kernels.arrays cimport PY_SSIZE_T_MAX, check_apart, check_threads, f32_data, fits, u8_out
from oxillama._kernels.grammar.memory cimport lowest_bit
from oxillama._kernels.packing.formats cimport (
    BF16, F16, F32, IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS, NVFP4, Q2_0, Q2_0_G128, Q2_K,
    Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, TQ1_0, TQ2_0, VALUES_T4, format_block_bytes, format_block_len)
from oxillama._kernels.packing.unpack cimport e5m3_of_e4m3, e5m3_value
from oxillama._kernels.quantize.blocks cimport *
from oxillama._kernels.quantize.fit cimport (
    Found, Sums, add_codes, code_of, error_of, fit_affine, fit_scale, inverse, nearest, sums_of)
from oxillama._kernels.simd.simd cimport (
    f32x16, f32_abs, f32_add, f32_from_bits, f32_hmax, f32_load, f32_load_i8, f32_mask_lt, f32_max, f32_mul,
    f32_select_lt, f32_set1, f32_store, f32_sub, f32_sum, f32_zero, i32_add, i32_from_bits, i32_mul, i32_sar, i32_set1,
    i32_shl, i32_store_i8, i32_zero, i32x16, ox_bf16_from_f32, ox_f16_from_f32, ox_f32_from_f16)

from oxillama.base.formats import FORMAT_BY_ID, FORMATS, WRITABLE

cnp.import_array()

WRITABLE_IDS = frozenset(FORMATS[name].id for name in WRITABLE)

cdef enum:  # effort of a superblock's search; more gains little (docs/decisions/0009)
    STARTS = 2
    TURNS = 2


cdef inline float half(float value) noexcept nogil:
    """The nearest finite half float."""
    if value > 65504.0:
        return 65504.0
    if value < -65504.0:
        return -65504.0
    return ox_f32_from_f16(ox_f16_from_f32(value))


# --- blocks of 32 ---------------------------------------------------------------------------------

cdef inline uint8_t truncated(float v, int most) noexcept nogil:
    if not v > 0:
        return 0
    return <uint8_t>most if v >= most else <uint8_t>v


cdef void plain_nibbles(const int format_id, const float* x, uint8_t* out) noexcept nogil:
    """Q4_0 and Q5_0: the largest magnitude gets the lowest code. Q4_1 and Q5_1: [min, max] spans all codes."""
    cdef uint8_t codes[32]
    cdef float low = x[0], high = x[0], largest = x[0], d, inv
    cdef int top = levels(format_id) - 1, i
    for i in range(32):
        low = x[i] if x[i] < low else low
        high = x[i] if x[i] > high else high
        if (x[i] if x[i] >= 0 else -x[i]) > (largest if largest >= 0 else -largest):
            largest = x[i]
    d = (high - low) / <float>top if has_minimum(format_id) else largest / <float>(-(top + 1) // 2)
    inv = <float>1.0 / d if d != 0 else 0
    for i in range(32):
        if has_minimum(format_id):
            codes[i] = truncated((x[i] - low) * inv + <float>0.5, top)
        else:
            codes[i] = truncated(x[i] * inv + (<float>((top + 1) // 2) + <float>0.5), top)
    put_nibble_block(format_id, codes, d, low, out)


cdef void plain_bytes(const float* x, uint8_t* out) noexcept nogil:
    """Q8_0: the largest magnitude becomes 127, ties are rounded away from zero."""
    cdef float largest = 0, d, inv, a, b
    cdef int i
    for i in range(32):
        a = x[i] if x[i] >= 0 else -x[i]
        largest = a if a > largest else largest
    d = largest / <float>127.0
    inv = <float>1.0 / d if d != 0 else 0
    put_half(out, d)
    for i in range(32):
        a = x[i] * inv
        a = a if a >= 0 else -a
        b = floorf(a)
        b = b + floorf(2 * (a - b))
        b = b if b < 127 else 127
        out[2 + i] = <uint8_t><int8_t>(b if x[i] >= 0 else -b)


# --- 16 small blocks side by side -----------------------------------------------------------------

cdef struct Lanes:
    float x[512]
    float w[512]
    float q[512]
    int n


cdef void fill(Lanes* a, const float* x, const float* importance, Py_ssize_t left, int n) noexcept nogil:
    """Loads 16 blocks of n columns; columns from ``left`` on are zero."""
    cdef int lane, i
    a.n = n
    for lane in range(16):
        for i in range(n):
            a.x[16 * i + lane] = x[n * lane + i] if n * lane < left else 0
            a.w[16 * i + lane] = importance[n * lane + i] if importance != NULL and n * lane < left else 1


cdef inline bint all_below(f32x16 v, float most) noexcept nogil:
    """Whether every lane is a number below ``most``."""
    return f32_mask_lt(v, f32_set1(most)) == 0xFFFF


cdef void find_codes(const bint uneven, Lanes* a, f32x16 scale, f32x16 start, float low, float high) noexcept nogil:
    cdef f32x16 inv = inverse(scale)
    cdef int i
    for i in range(a.n):
        f32_store(a.q + 16 * i, code_of(uneven, f32_mul(f32_sub(f32_load(a.x + 16 * i), start), inv), low, high))


cdef inline bint is_uneven(const int format_id) noexcept nogil:
    """Whether codes are indices of a table of 16 values."""
    return format_id == IQ4_NL or format_id == IQ4_XS


cdef inline uint8_t code_from(const int format_id, float value, int low) noexcept nogil:
    """The code of a quantized value."""
    cdef int code = 0
    if not is_uneven(format_id):
        return <uint8_t>(<int>value - low)
    while VALUES_T4[code] < <int>value:
        code += 1
    return <uint8_t>code


cdef bint fitted_nibbles(const int format_id, const float* x, const float* importance, Py_ssize_t cols,
                         uint8_t* out) noexcept nogil:
    """Quantizes a row to Q4_0 to Q5_1 or IQ4_NL by least squares; returns whether all errors are finite."""
    cdef Lanes a
    cdef Found found
    cdef bint good = True
    cdef float scale[16]
    cdef float start[16]
    cdef uint8_t codes[32]
    cdef int top = levels(format_id) - 1, lane, i
    cdef int low = 0 if has_minimum(format_id) else -127 if is_uneven(format_id) else -(top + 1) // 2
    cdef int high = 113 if is_uneven(format_id) else low + top
    cdef Py_ssize_t b, at
    for at in range((cols + 511) // 512):
        b = 512 * at
        fill(&a, x + b, importance + b if importance != NULL else NULL, cols - b, 32)
        if has_minimum(format_id):
            found = fit_affine(a.x, a.w, 32, <float>top, False, 20)
        else:
            found = fit_scale(is_uneven(format_id), a.x, a.w, 32, <float>low, <float>high, 12)
        good = good and all_below(found.error, 3e38)
        f32_store(scale, found.scale)
        f32_store(start, found.start)
        for lane in range(16):
            scale[lane], start[lane] = half(scale[lane]), half(start[lane])
        find_codes(is_uneven(format_id), &a, f32_load(scale), f32_load(start), <float>low, <float>high)
        for lane in range(16):
            if b + 32 * lane < cols:
                for i in range(32):
                    codes[i] = code_from(format_id, a.q[16 * i + lane], low)
                put_nibble_block(format_id, codes, scale[lane], start[lane],
                                 out + (b // 32 + lane) * format_block_bytes(format_id))
    return good


# --- superblocks of 256 ---------------------------------------------------------------------------
#
# Integers of 16 lanes, and half floats of their superblocks: scale of a lane = d * scale, start = -dmin * minimum.
cdef struct Fields:
    float scale[16]
    float minimum[16]
    float d[16]
    float dmin[16]
    float error[16]  # error of the lane's superblock


cdef inline bint has_minima(const int format_id) noexcept nogil:
    return format_id == Q2_K or format_id == Q4_K or format_id == Q5_K


cdef inline int sub_len(const int format_id) noexcept nogil:
    return 32 if format_id == Q4_K or format_id == Q5_K or format_id == IQ4_XS else 16


cdef inline float top_code(const int format_id) noexcept nogil:
    """The largest code; in formats without minima half of the number of codes. Not used for IQ4_XS."""
    if format_id == Q2_K:
        return 3
    if format_id == Q4_K:
        return 15
    if format_id == Q5_K:
        return 31
    return 4 if format_id == Q3_K else 32


cdef inline float top_scale(const int format_id) noexcept nogil:
    """The largest integer of a scale or minimum; in formats without minima the magnitude of the lowest scale."""
    if format_id == Q2_K:
        return 15
    if format_id == Q3_K or format_id == IQ4_XS:
        return 32
    return 128 if format_id == Q6_K else 63


cdef inline int reach(const int format_id, bint first) noexcept nogil:
    """How far the search goes from the present integers. With minima it tries pairs, so its cost is the square."""
    if has_minima(format_id):
        return 2 if first else 1
    return 6 if first else 3


cdef inline f32x16 bounded(const int format_id, f32x16 scale) noexcept nogil:
    cdef float top = top_scale(format_id)
    return nearest(scale, 0 if has_minima(format_id) else -top, top if has_minima(format_id) else top - 1)


cdef inline void choose_halves(const int format_id, const float* scale, const float* start, float shrink, int first,
                               int last, Fields* f) noexcept nogil:
    """Sets d and dmin of a superblock so that the largest scale and minimum of its lanes fit their fields."""
    cdef float largest = 0, low = 0, d, dmin
    cdef int lane
    for lane in range(first, last):
        if (scale[lane] if scale[lane] >= 0 else -scale[lane]) > (largest if largest >= 0 else -largest):
            largest = scale[lane]
        low = start[lane] if start[lane] < low else low
    d = half(largest / (top_scale(format_id) * shrink * (1 if has_minima(format_id) else -1)))
    dmin = half(-low / (top_scale(format_id) * shrink))
    for lane in range(first, last):
        f.d[lane], f.dmin[lane], f.error[lane] = d, dmin, 3e38


cdef inline void improve_integers(const int format_id, const Lanes* a, Fields* f, int steps, float* error
                                  ) noexcept nogil:
    """Moves each lane's integers to the best ones within ``steps``; writes the least error of each lane."""
    cdef f32x16 scale = f32_load(f.scale), minimum = f32_load(f.minimum)
    cdef f32x16 d = f32_load(f.d), dmin = f32_load(f.dmin), zero = f32_zero()
    cdef f32x16 best_scale = scale, best_minimum = minimum, s, m, e
    cdef float top = top_code(format_id)
    cdef f32x16 least = f32_set1(3e38)
    cdef int i, j
    cdef int side = 2 * steps + 1
    for i in range(side):
        for j in range(side if has_minima(format_id) else 1):
            # 0, 1, -1, 2, -2: the present integers first, so that they win ties
            s = bounded(format_id, f32_add(scale, f32_set1(<float>((i + 1) // 2 * (1 if i & 1 else -1)))))
            if has_minima(format_id):
                m = bounded(format_id, f32_add(minimum, f32_set1(<float>((j + 1) // 2 * (1 if j & 1 else -1)))))
                e = error_of(is_uneven(format_id), a.x, a.w, a.n, f32_mul(d, s), f32_sub(zero, f32_mul(dmin, m)), 0,
                             top)
            else:
                m = zero
                e = error_of(is_uneven(format_id), a.x, a.w, a.n, f32_mul(d, s), zero, -top, top - 1)
            best_scale = f32_select_lt(e, least, s, best_scale)
            best_minimum = f32_select_lt(e, least, m, best_minimum)
            least = f32_select_lt(e, least, e, least)
    f32_store(f.scale, best_scale)
    f32_store(f.minimum, best_minimum)
    f32_store(error, least)


cdef inline void solve_halves(const int format_id, const Lanes* a, int per, Fields* f) noexcept nogil:
    """Computes d and dmin of each superblock by least squares, for its integers and the nearest codes."""
    cdef Sums s = sums_of(a.x, a.w, a.n)
    cdef float w[16]
    cdef float x[16]
    cdef float q[16]
    cdef float qq[16]
    cdef float xq[16]
    cdef double pp, pm, mm, xp, xm, det, d, dmin
    cdef float top = top_code(format_id)
    cdef int at, first, lane
    cdef f32x16 zero = f32_zero()
    cdef f32x16 inv = inverse(f32_mul(f32_load(f.d), f32_load(f.scale)))
    if has_minima(format_id):
        add_codes(False, a.x, a.w, a.n, f32_sub(zero, f32_mul(f32_load(f.dmin), f32_load(f.minimum))), inv, 0, top, &s)
    else:
        add_codes(is_uneven(format_id), a.x, a.w, a.n, zero, inv, -top, top - 1, &s)
    f32_store(w, s.w)
    f32_store(x, s.x)
    f32_store(q, s.q)
    f32_store(qq, s.qq)
    f32_store(xq, s.xq)
    for at in range(16 // per):
        first = per * at
        pp = pm = mm = xp = xm = 0
        for lane in range(first, first + per):
            pp += <double>f.scale[lane] * f.scale[lane] * qq[lane]
            xp += <double>f.scale[lane] * xq[lane]
            if has_minima(format_id):
                pm += <double>f.scale[lane] * f.minimum[lane] * q[lane]
                mm += <double>f.minimum[lane] * f.minimum[lane] * w[lane]
                xm += <double>f.minimum[lane] * x[lane]
        d, dmin = f.d[first], f.dmin[first]
        det = pp * mm - pm * pm
        if det > 1e-6 * pp * mm:
            d, dmin = (xp * mm - xm * pm) / det, (xp * pm - xm * pp) / det
        if pp > 0 and (mm == 0 or dmin < 0):
            d, dmin = xp / pp, 0
        if d > 0 or not has_minima(format_id):
            for lane in range(first, first + per):
                f.d[lane], f.dmin[lane] = half(<float>d), half(<float>dmin)


cdef inline void keep_better(const Fields* f, const float* error, int per, Fields* best) noexcept nogil:
    """Copies the superblocks whose error has fallen to ``best``."""
    cdef double total
    cdef int at, first, lane
    for at in range(16 // per):
        first, total = per * at, 0
        for lane in range(first, first + per):
            total += error[lane]
        if total < best.error[first]:
            for lane in range(first, first + per):
                best.scale[lane], best.minimum[lane] = f.scale[lane], f.minimum[lane]
                best.d[lane], best.dmin[lane], best.error[lane] = f.d[lane], f.dmin[lane], <float>total


cdef bint fit_super(const int format_id, const Lanes* a, Fields* best) noexcept nogil:
    """Finds the fields of the superblocks in 16 lanes; returns whether all errors are finite."""
    cdef int per = 256 // sub_len(format_id), at, start_at, turn, lane
    cdef Found found
    cdef Fields f
    cdef float scale[16]
    cdef float start[16]
    cdef float error[16]
    cdef f32x16 negative
    if has_minima(format_id):
        found = fit_affine(a.x, a.w, a.n, top_code(format_id), True, 20)
    elif is_uneven(format_id):
        found = fit_scale(True, a.x, a.w, a.n, -127, 113, 12)
    else:
        found = fit_scale(False, a.x, a.w, a.n, -top_code(format_id), top_code(format_id) - 1, 12)
    f32_store(scale, found.scale)
    f32_store(start, found.start)
    memset(best, 0, sizeof(Fields))
    for lane in range(16):
        best.error[lane] = 3e38
    for start_at in range(STARTS):
        for at in range(16 // per):
            choose_halves(format_id, scale, start, 1 - <float>0.04 * start_at, per * at, per * (at + 1), &f)
        f32_store(f.scale, bounded(format_id, f32_mul(found.scale, inverse(f32_load(f.d)))))
        negative = f32_sub(f32_zero(), found.start)
        f32_store(f.minimum, bounded(format_id, f32_mul(negative, inverse(f32_load(f.dmin)))))
        for turn in range(TURNS):
            improve_integers(format_id, a, &f, reach(format_id, turn == 0), error)
            keep_better(&f, error, per, best)
            solve_halves(format_id, a, per, &f)
        improve_integers(format_id, a, &f, reach(format_id, False), error)
        keep_better(&f, error, per, best)
    return all_below(f32_load(best.error), 3e38)


cdef bint super_row(const int format_id, const float* x, const float* importance, Py_ssize_t cols,
                    uint8_t* out) noexcept nogil:
    """Quantizes a row to a K-quant or IQ4_XS; returns whether all errors are finite."""
    cdef bint good = True
    cdef Lanes a
    cdef Fields f
    cdef uint8_t codes[256]
    cdef uint8_t* block
    cdef int n = sub_len(format_id), per = 256 // n, at, first, lane, i
    cdef float top = top_code(format_id)
    cdef float low = 0 if has_minima(format_id) else -top
    cdef f32x16 start
    cdef Py_ssize_t b, group
    for group in range((cols + 16 * n - 1) // (16 * n)):
        b = 16 * n * group
        fill(&a, x + b, importance + b if importance != NULL else NULL, cols - b, n)
        good = fit_super(format_id, &a, &f) and good
        start = f32_sub(f32_zero(), f32_mul(f32_load(f.dmin), f32_load(f.minimum)))
        if not has_minima(format_id):
            start = f32_zero()
        find_codes(is_uneven(format_id), &a, f32_mul(f32_load(f.d), f32_load(f.scale)), start, low,
                   top if has_minima(format_id) else top - 1)
        for at in range(16 // per):
            first = per * at
            if b + n * first < cols:
                block = out + (b + n * first) // 256 * format_block_bytes(format_id)
                memset(block, 0, format_block_bytes(format_id))
                for lane in range(per):
                    for i in range(n):
                        codes[n * lane + i] = code_from(format_id, a.q[16 * i + first + lane], <int>low)
                put_fields(format_id, f.scale + first, f.minimum + first, f.d[first], f.dmin[first], block)
                put_codes(format_id, codes, block)
    return good


include "grids.pxi"


# --- ternary --------------------------------------------------------------------------------------

cdef inline i32x16 ternary(const float* x, f32x16 inv) noexcept nogil:
    """16 codes 0, 1, 2 of the values -1, 0, 1: ties are rounded away from zero, NaN becomes 1."""
    cdef f32x16 below = f32_set1(<float>0.49999997), v = f32_mul(f32_load(x), inv)  # the largest float below 0.5
    cdef f32x16 one = f32_from_bits(i32_set1(1)), two = f32_from_bits(i32_set1(2))
    cdef f32x16 low = f32_select_lt(v, f32_sub(f32_zero(), below), f32_zero(), one)
    return i32_from_bits(f32_select_lt(below, v, two, low))


cdef inline i32x16 five_digits(const float* x, int step, f32x16 inv) noexcept nogil:
    """16 numbers of five base-3 digits, as fractions of 256 rounded up; digit k comes from x[step * k]."""
    cdef i32x16 n = ternary(x, inv)
    cdef int k
    for k in range(1, 5):
        n = i32_add(i32_mul(n, i32_set1(3)), ternary(x + step * k, inv))
    # (256 n + 242) // 243 for n < 243
    cdef i32x16 rest = i32_add(i32_mul(n, i32_set1(13)), i32_set1(242))
    return i32_add(n, i32_sar(i32_mul(rest, i32_set1(4316)), 20))


cdef void ternary_block(const int format_id, const float* x, uint8_t* out) noexcept nogil:
    """TQ1_0 and TQ2_0: the scale is the largest magnitude, codes are -1, 0 and 1."""
    cdef f32x16 most = f32_zero(), inv
    cdef float largest
    cdef int i, k, number
    cdef i32x16 codes
    cdef int8_t digits[16]
    for i in range(16):
        most = f32_max(most, f32_abs(f32_load(x + 16 * i)))
    largest = f32_hmax(most)
    inv = f32_set1(<float>1.0 / largest if largest != 0 else 0)
    if format_id == TQ2_0:
        for i in range(4):
            codes = i32_zero()
            for k in range(4):
                codes = i32_add(codes, i32_shl(ternary(x + 128 * (i >> 1) + 16 * (i & 1) + 32 * k, inv), 2 * k))
            i32_store_i8(<int8_t*>out + 16 * i, codes)
        put_half(out + 64, largest)
        return
    i32_store_i8(<int8_t*>out, five_digits(x, 32, inv))
    i32_store_i8(<int8_t*>out + 16, five_digits(x + 16, 32, inv))
    i32_store_i8(<int8_t*>out + 32, five_digits(x + 160, 16, inv))
    i32_store_i8(digits, ternary(x + 240, inv))
    for i in range(4):
        number = 0
        for k in range(4):
            number = 3 * number + digits[4 * k + i]
        out[48 + i] = <uint8_t>((3 * number * 256 + 242) // 243)
    put_half(out + 52, largest)


cdef void pair_block(const int n, const float* x, uint8_t* out) noexcept nogil:
    """Q2_0: the scale is the largest magnitude, codes are -1, 0 and 1; a byte has four consecutive codes."""
    cdef f32x16 most = f32_zero(), inv
    cdef float largest
    cdef int8_t codes[16]
    cdef int i, k
    for i in range(n // 16):
        most = f32_max(most, f32_abs(f32_load(x + 16 * i)))
    largest = f32_hmax(most)
    inv = f32_set1(<float>1.0 / largest if largest != 0 else 0)
    for i in range(n // 16):
        i32_store_i8(codes, ternary(x + 16 * i, inv))
        for k in range(4):
            out[2 + 4 * i + k] = <uint8_t>(codes[4 * k] | (codes[4 * k + 1] << 2) | (codes[4 * k + 2] << 4)
                                           | (codes[4 * k + 3] << 6))
    put_half(out, largest)


# --- values of 4 bits -----------------------------------------------------------------------------

cdef inline uint8_t e4m3_of(float scale) noexcept nogil:
    """The nearest scale of NVFP4, ties up, by ggml's rules (ggml-impl.h): up to 240, and 448 above that."""
    cdef uint32_t bits
    cdef int code
    memcpy(&bits, &scale, 4)
    if scale < <float>0.015625:
        code = <int>(scale * 512 + <float>0.5)
        return <uint8_t>(code if code < 7 else 7)
    code = <int>((bits + 0x80000) >> 20) - 960
    return <uint8_t>(code if code < 120 else 126)


cdef inline f32x16 closer(const int code, const int value, f32x16 x, f32x16 d, i32x16 sign, f32x16* least,
                          f32x16 found) noexcept nogil:
    """``found``, with ``code`` and the sign in lanes where value * d is nearer to the magnitude x than before."""
    cdef f32x16 error = f32_abs(f32_sub(f32_mul(f32_set1(<float>value), d), x))
    found = f32_select_lt(error, least[0], f32_from_bits(i32_add(i32_set1(code), sign)), found)
    least[0] = f32_select_lt(error, least[0], error, least[0])
    return found


cdef void nvfp4_block(const float* x, uint8_t* out) noexcept nogil:
    """The scale of 16 values is their largest magnitude / 6. Each code is the nearest one; at a tie the lower one."""
    cdef f32x16 v, size, least, d, found, zero = f32_zero()
    cdef i32x16 sign
    cdef int8_t codes[16]
    cdef int s, i
    for s in range(4):
        v = f32_load(x + 16 * s)
        size = f32_abs(v)
        out[s] = e4m3_of(f32_hmax(size) / <float>6.0)
        d = f32_set1(e5m3_value(e5m3_of_e4m3(out[s])))
        sign = i32_from_bits(f32_select_lt(v, zero, f32_from_bits(i32_set1(8)), zero))
        found, least = zero, size
        found = closer(1, 1, size, d, sign, &least, found)
        found = closer(2, 2, size, d, sign, &least, found)
        found = closer(3, 3, size, d, sign, &least, found)
        found = closer(4, 4, size, d, sign, &least, found)
        found = closer(5, 6, size, d, sign, &least, found)
        found = closer(6, 8, size, d, sign, &least, found)
        found = closer(7, 12, size, d, sign, &least, found)
        i32_store_i8(codes, i32_from_bits(found))
        for i in range(8):
            out[4 + 8 * s + i] = <uint8_t>(codes[i] | (codes[i + 8] << 4))


# --- rows -----------------------------------------------------------------------------------------

cdef inline void plain_row(const int format_id, const float* x, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint16_t h
    if format_id == F32:
        memcpy(out, x, 4 * cols)
    elif format_id == F16 or format_id == BF16:
        for i in range(cols):
            h = ox_f16_from_f32(x[i]) if format_id == F16 else ox_bf16_from_f32(x[i])
            memcpy(out + 2 * i, &h, 2)
    elif format_id == TQ1_0 or format_id == TQ2_0:
        for i in range(cols // 256):
            ternary_block(format_id, x + 256 * i, out + format_block_bytes(format_id) * i)
    elif format_id == Q2_0:
        for i in range(cols // 64):
            pair_block(64, x + 64 * i, out + 18 * i)
    elif format_id == Q2_0_G128:
        for i in range(cols // 128):
            pair_block(128, x + 128 * i, out + 34 * i)
    elif format_id == NVFP4:
        for i in range(cols // 64):
            nvfp4_block(x + 64 * i, out + 36 * i)
    elif format_id == Q8_0:
        for i in range(cols // 32):
            plain_bytes(x + 32 * i, out + 34 * i)
    else:
        for i in range(cols // 32):
            plain_nibbles(format_id, x + 32 * i, out + format_block_bytes(format_id) * i)


cdef bint quantize_row(int format_id, const Grid* g, const float* x, const float* importance, Py_ssize_t cols,
                       uint8_t* out) noexcept nogil:
    """Quantizes one row; returns whether all errors are finite. Each branch passes its format as a constant."""
    if format_id == Q2_K:
        return super_row(Q2_K, x, importance, cols, out)
    elif format_id == Q3_K:
        return super_row(Q3_K, x, importance, cols, out)
    elif format_id == Q4_K:
        return super_row(Q4_K, x, importance, cols, out)
    elif format_id == Q5_K:
        return super_row(Q5_K, x, importance, cols, out)
    elif format_id == Q6_K:
        return super_row(Q6_K, x, importance, cols, out)
    elif format_id == IQ4_NL:
        return fitted_nibbles(IQ4_NL, x, importance, cols, out)
    elif format_id == IQ4_XS:
        return super_row(IQ4_XS, x, importance, cols, out)
    elif format_id == IQ1_S:
        return grid_row(IQ1_S, g, x, importance, cols, out)
    elif format_id == IQ1_M:
        return grid_row(IQ1_M, g, x, importance, cols, out)
    elif format_id == IQ2_XXS:
        return grid_row(IQ2_XXS, g, x, importance, cols, out)
    elif format_id == IQ2_XS:
        return grid_row(IQ2_XS, g, x, importance, cols, out)
    elif format_id == IQ2_S:
        return grid_row(IQ2_S, g, x, importance, cols, out)
    elif format_id == IQ3_XXS:
        return grid_row(IQ3_XXS, g, x, importance, cols, out)
    elif format_id == IQ3_S:
        return grid_row(IQ3_S, g, x, importance, cols, out)
    elif importance != NULL and format_id == Q4_0:
        return fitted_nibbles(Q4_0, x, importance, cols, out)
    elif importance != NULL and format_id == Q4_1:
        return fitted_nibbles(Q4_1, x, importance, cols, out)
    elif importance != NULL and format_id == Q5_0:
        return fitted_nibbles(Q5_0, x, importance, cols, out)
    elif importance != NULL and format_id == Q5_1:
        return fitted_nibbles(Q5_1, x, importance, cols, out)
    plain_row(format_id, x, cols, out)
    return True


cdef fill_grid(int format_id, tables, Grid* g):
    """Points ``g`` to the tables of neighbours.py."""
    cdef cnp.ndarray values = tables.values, entries = tables.entries, exact = tables.exact
    cdef int i, k, base = 8 if is_iq3(format_id) else 3, place
    g.values = <const int8_t*>cnp.PyArray_DATA(values)
    g.entries = <const uint16_t*>cnp.PyArray_DATA(entries)
    g.exact = <const uint8_t*>cnp.PyArray_DATA(exact)
    for i in range(256):
        g.places[i], place = 0, 1
        for k in range(8):
            g.places[i] += <uint16_t>(place if (i >> k) & 1 else 0)
            place = place * base


cdef bint all_within(const float* x, Py_ssize_t n, float least, float most) noexcept nogil:
    """Whether all elements lie between the bounds; NaN does not."""
    cdef Py_ssize_t i
    cdef bint good
    cdef int mask = 0xffff
    cdef f32x16 v, low = f32_set1(nextafterf(least, -INFINITY)), high = f32_set1(nextafterf(most, INFINITY))
    for i in range(n >> 4):
        v = f32_load(x + 16 * i)
        mask &= f32_mask_lt(low, v) & f32_mask_lt(v, high)  # NaN is in neither mask
    good = mask == 0xffff
    for i in range(n & ~15, n):
        good = good & (x[i] >= least) & (x[i] <= most)
    return good


def quantize(int format_id, cnp.ndarray x, Py_ssize_t rows, Py_ssize_t cols, cnp.ndarray importance: np.ndarray | None,
             cnp.ndarray out, int n_threads=1):
    """Converts rows of floats to whole blocks.

    Args:
        format_id: the id of one of `formats.WRITABLE`
        x: float32 (rows, cols). Formats with scales: magnitudes up to ``most`` of the format, 65504 for scales of
            half floats. F32, F16 and BF16: any number; a number too large for F16 becomes an infinity
        importance: float32 (cols,), finite and above 0, or None; ignored for Q8_0, TQ1_0, TQ2_0, Q2_0, NVFP4 and
            floats
        out: uint8, the rows as a file stores them

    Raises:
        ValueError: a value or an importance exceeds these bounds, or errors weighted with the importance overflow.
    """
    cdef int block_len = format_block_len(format_id)
    if format_id not in WRITABLE_IDS:
        raise ValueError(f"format_id: expected a format that can be written, got {format_id}")
    if rows < 1 or cols < 1 or cols % block_len or not fits(rows, cols, PY_SSIZE_T_MAX // 8):
        raise ValueError(f"shape: expected rows of blocks of {block_len}, got {rows} x {cols}")
    cdef Py_ssize_t row_bytes = cols // block_len * format_block_bytes(format_id), r
    cdef const float* xp = f32_data(x, rows * cols, "x")
    cdef const float* wp = f32_data(importance, cols, "importance") if importance is not None else NULL
    cdef uint8_t* op = u8_out(out, rows * row_bytes, "out")
    cdef int bad = 0
    cdef Grid g
    cdef object tables  # keeps the memory alive that g points to
    if is_grid(format_id):
        from oxillama._kernels.quantize.neighbours import neighbours  # lazy import
        tables = neighbours(format_id)
        fill_grid(format_id, tables, &g)
    check_apart(x, out, "x, out")
    check_threads(n_threads)
    cdef float most = FORMAT_BY_ID[format_id].most
    if block_len > 1 and not all_within(xp, rows * cols, -most, most):
        raise ValueError(f"x: expected values from {-most:.6g} to {most:.6g}, got others")
    if wp != NULL and not all_within(wp, cols, <float>1e-45, FLT_MAX):
        raise ValueError("importance: expected finite numbers above 0, got others")
    for r in prange(rows, nogil=True, schedule="dynamic", num_threads=n_threads if rows > 1 else 1):
        bad += 0 if quantize_row(format_id, &g, xp + r * cols, wp, cols, op + r * row_bytes) else 1
    if bad:
        raise ValueError("importance: expected numbers whose products with squared values are finite, got larger ones")
