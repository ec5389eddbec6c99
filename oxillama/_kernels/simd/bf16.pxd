"""Pairs of bf16 numbers: their rounding, and whether an instruction multiplies pairs with the bits of two fmas.

Magnitudes below 2^-56 become 0, so that products and their sums are multiples of 2^-126: none is subnormal. Other
numbers are rounded to nearest even; a NaN stays a NaN.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from oxillama._kernels.simd.simd cimport *

cdef extern from "cpu.h" nogil:
    int ox_cpu_has(const char* name)

cdef enum:
    LEAST_BF16 = 0x2380  # 2^-56


cdef inline Py_ssize_t paired(Py_ssize_t n) noexcept nogil:
    """n rounded up to an even number."""
    return (n + 1) & ~<Py_ssize_t>1


cdef inline uint16_t bf16_from(float x) noexcept nogil:
    """x as a number of a pair."""
    cdef uint16_t h = ox_bf16_from_f32(x)
    return h if ox_f32_from_bf16(LEAST_BF16) <= x or x <= -ox_f32_from_bf16(LEAST_BF16) or x != x else 0


cdef inline f32x16 to_bf16(f32x16 x) noexcept nogil:
    """16 numbers of pairs, in the upper halves of the words; the lower halves are not cleared."""
    cdef f32x16 size = f32_abs(x)
    cdef i32x16 bits = i32_from_bits(x)
    cdef i32x16 last = i32_sub(i32_zero(), i32_sar(i32_shl(bits, 15), 31))  # the lowest bit of the upper half
    cdef f32x16 rounded = f32_from_bits(i32_add(i32_add(bits, i32_set1(0x7FFF)), last))
    # x + x: an infinity, or a NaN whose upper half is a NaN
    rounded = f32_select_lt(size, f32_set1(ox_f32_from_bits(0x7F800000)), rounded, f32_add(x, x))
    return f32_select_lt(size, f32_set1(ox_f32_from_bits(LEAST_BF16 << 16)), f32_zero(), rounded)


cdef inline f32x16 rounded_bf16(f32x16 x) noexcept nogil:
    """16 floats, rounded to numbers of pairs."""
    return f32_from_bits(i32_shl(i32_sar(i32_from_bits(to_bf16(x)), 16), 16))


cdef inline bint is_bf16_dot(int way) noexcept nogil:
    """Whether a way to multiply pairs gives the bits of `bf16_fma` for 64 random vectors; for `bf16_dot` also whether
    `bf16_round` gives the bits of `to_bf16`.

    The ways: 0 `bf16_dot`; 1 fused multiply-adds in the opposite order; 2 acc + round(sum of both products).
    """
    cdef uint32_t w[16]
    cdef uint32_t a[16]
    cdef float c[16]
    cdef float wanted[16]
    cdef float found[16]
    cdef uint16_t halves[16]
    cdef uint32_t state = 1
    cdef f32x16 acc, sum
    cdef u8x64 u, v
    cdef int i, _r
    for _r in range(64):
        for i in range(16):
            state = state * 1664525 + 1013904223
            w[i] = (state >> 3 & <uint32_t>0x81FF81FF) + <uint32_t>0x3E003E00  # both signs, 2^-3 to 2^1
            state = state * 1664525 + 1013904223
            a[i] = (state >> 3 & <uint32_t>0x81FF81FF) + <uint32_t>0x3E003E00
            state = state * 1664525 + 1013904223
            c[i] = <float><int32_t>state * <float>9.313226e-10
        acc, u, v = f32_load(c), u8_load(<const uint8_t*>w), u8_load(<const uint8_t*>a)
        f32_store(wanted, bf16_fma(acc, u, v))
        if way == 0:
            sum = bf16_dot(acc, u, v)
        elif way == 1:
            sum = f32_fma(f32_from_high16(u), f32_from_high16(v),
                          f32_fma(f32_from_low16(u), f32_from_low16(v), acc))
        else:
            sum = f32_add(acc, f32_fma(f32_from_high16(u), f32_from_high16(v),
                                       f32_mul(f32_from_low16(u), f32_from_low16(v))))
        f32_store(found, sum)
        if memcmp(wanted, found, sizeof(found)):
            return False
        if way == 0:
            f32_store(wanted, rounded_bf16(acc))
            f32_store(found, bf16_round(halves, acc))
            if memcmp(wanted, found, sizeof(found)):
                return False
    return True


cdef inline bint has_bf16_dot() noexcept nogil:
    """Whether the CPU has an instruction for pairs that gives the bits of `bf16_fma`."""
    return OX_BF16_DOT and ox_cpu_has("avx512_bf16") and is_bf16_dot(0)


cdef inline uint64_t cycles_of_pairs(const bint dot) noexcept nogil:
    """Cycles of 768 products of pairs by `bf16_dot`, or by fused multiply-adds of numbers that are floats already."""
    cdef uint8_t zeros[64]
    cdef f32x16 sums[12]  # enough to hide the latency
    cdef f32x16 x, total = f32_zero()
    cdef u8x64 w
    cdef uint64_t begin
    cdef int i, _r
    memset(zeros, 0, sizeof(zeros))
    x, w = f32_keep(f32_zero()), u8_keep(u8_load(zeros))
    for i in range(12):
        sums[i] = f32_zero()
    begin = ox_cycles()
    for _r in range(64):
        for i in range(12):
            sums[i] = bf16_dot(sums[i], w, w) if dot else f32_fma(x, x, f32_fma(x, x, sums[i]))
    for i in range(12):
        total = f32_add(total, sums[i])
    return ox_cycles() - begin if f32_sum(total) == 0 else 0


cdef inline bint is_bf16_dot_faster() noexcept nogil:
    """Whether `bf16_dot` is faster than two fused multiply-adds, by the shortest of 8 measurements of each.

    Zen 4 multiplies pairs twice as fast with the instruction, Emerald Rapids half as fast.
    """
    cdef uint64_t dot = <uint64_t>-1, fma = <uint64_t>-1
    cdef int _r
    for _r in range(8):
        dot, fma = min(dot, cycles_of_pairs(True)), min(fma, cycles_of_pairs(False))
    return dot <= fma
