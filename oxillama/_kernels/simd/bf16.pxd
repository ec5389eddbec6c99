"""Numbers of pairs of bf16: how they are rounded, and whether an instruction multiplies such pairs as two fmas do.

Numbers below 2^-56 become 0, so that products, and sums of them, are multiples of 2^-126: none is subnormal. Others are
rounded to nearest even; a NaN stays one.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp

from oxillama._kernels.simd.simd cimport *

cdef extern from "cpu.h" nogil:
    int ox_cpu_has(const char* name)

cdef enum:
    LEAST_BF16 = 0x2380  # 2^-56


cdef inline Py_ssize_t paired(Py_ssize_t n) noexcept nogil:
    """Numbers of whole pairs."""
    return (n + 1) & ~<Py_ssize_t>1


cdef inline uint16_t bf16_from(float x) noexcept nogil:
    """One number of a pair."""
    cdef uint16_t h = ox_bf16_from_f32(x)
    return h if ox_f32_from_bf16(LEAST_BF16) <= x or x <= -ox_f32_from_bf16(LEAST_BF16) or x != x else 0


cdef inline f32x16 to_bf16(f32x16 x) noexcept nogil:
    """16 numbers of pairs; the lower half of each word is not cleared."""
    cdef f32x16 size = f32_abs(x)
    cdef i32x16 bits = i32_from_bits(x)
    cdef i32x16 last = i32_sub(i32_zero(), i32_sar(i32_shl(bits, 15), 31))  # the last bit that stays
    cdef f32x16 rounded = f32_from_bits(i32_add(i32_add(bits, i32_set1(0x7FFF)), last))
    # x + x: an infinity, or a NaN whose upper half is one
    rounded = f32_select_lt(size, f32_set1(ox_f32_from_bits(0x7F800000)), rounded, f32_add(x, x))
    return f32_select_lt(size, f32_set1(ox_f32_from_bits(LEAST_BF16 << 16)), f32_zero(), rounded)


cdef inline f32x16 rounded_bf16(f32x16 x) noexcept nogil:
    """16 numbers of pairs as floats."""
    return f32_from_bits(i32_shl(i32_sar(i32_from_bits(to_bf16(x)), 16), 16))


cdef inline bint is_bf16_dot(int way) noexcept nogil:
    """Whether 64 random vectors get the bits of `bf16_fma` by a way to multiply pairs, and those of `to_bf16`.

    The ways are 0 `bf16_dot`, 1 the products in the other order, 2 their rounded sum added.
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
    """Whether the processor has an instruction for pairs that does what `bf16_fma` says."""
    return OX_BF16_DOT and ox_cpu_has("avx512_bf16") and is_bf16_dot(0)
