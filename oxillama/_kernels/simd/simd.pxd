"""The operations of simd/simd.h for Cython: a logical machine of 16 lanes."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int8_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "simd.h" nogil:
    ctypedef struct f32x16:
        pass
    ctypedef struct i32x16:
        pass
    ctypedef struct u8x64:
        pass

    const int OX_S8_SHIFT
    const int OX_A8_SHIFT
    const int OX_TILE
    const int OX_PANELS
    const int OX_SUMS_OF_16
    const int OX_BF16_DOT

    void ox_prefetch(const void* p)
    void ox_prefetch_far(const void* p)
    const int OX_AHEAD

    float ox_f32_from_bits(uint32_t u)
    float ox_f32_from_f16(uint16_t h)
    uint16_t ox_f16_from_f32(float f)
    float ox_f32_from_bf16(uint16_t h)
    uint16_t ox_bf16_from_f32(float f)

    f32x16 f32_zero()
    f32x16 f32_set1(float x)
    f32x16 f32_load(const float* p)
    void f32_store(float* p, f32x16 a)
    f32x16 f32_load_f16(const uint16_t* p)
    void f32_store_f16(uint16_t* p, f32x16 a)
    f32x16 f32_load_bf16(const uint16_t* p)
    void f32_store_bf16(uint16_t* p, f32x16 a)
    f32x16 bf16_round(uint16_t* p, f32x16 a)
    f32x16 f32_from_low16(u8x64 a)
    f32x16 f32_from_high16(u8x64 a)
    f32x16 f32_load_i8(const int8_t* p)
    f32x16 f32_add(f32x16 a, f32x16 b)
    f32x16 f32_sub(f32x16 a, f32x16 b)
    f32x16 f32_mul(f32x16 a, f32x16 b)
    f32x16 f32_div(f32x16 a, f32x16 b)
    f32x16 f32_fma(f32x16 a, f32x16 b, f32x16 c)
    f32x16 f32_max(f32x16 a, f32x16 b)
    f32x16 f32_abs(f32x16 a)
    f32x16 f32_select_lt(f32x16 a, f32x16 b, f32x16 x, f32x16 y)
    int f32_mask_lt(f32x16 a, f32x16 b)
    int f32_compress(float* p, f32x16 v, int mask)
    f32x16 f32_from_i32(i32x16 a)
    f32x16 f32_from_bits(i32x16 a)
    i32x16 i32_from_bits(f32x16 a)
    f32x16 f32_keep(f32x16 a)
    float f32_sum(f32x16 v)
    float f32_hmax(f32x16 v)

    i32x16 i32_zero()
    i32x16 i32_set1(int32_t x)
    i32x16 i32_load(const void* p)
    i32x16 i32_add(i32x16 a, i32x16 b)
    i32x16 i32_sub(i32x16 a, i32x16 b)
    i32x16 i32_mul(i32x16 a, i32x16 b)
    i32x16 i32_shl(i32x16 a, int n)
    i32x16 i32_sar(i32x16 a, int n)
    i32x16 i16_load_u8(const uint8_t* p)
    i32x16 i16_load_i8(const int8_t* p)
    void i32_store_i8(int8_t* p, i32x16 a)
    i32x16 i16_pair(i32x16 even, i32x16 odd)
    i32x16 i16_low4(i32x16 a)
    i32x16 i16_high4(i32x16 a)
    i32x16 i16_dot(i32x16 acc, i32x16 a, i32x16 b)

    u8x64 u8_load(const uint8_t* p)
    void u8_store(uint8_t* p, u8x64 a)
    u8x64 u8_set4(const int8_t* p)
    u8x64 u8_keep(u8x64 a)
    u8x64 u8_low4(u8x64 a)
    u8x64 u8_high4(u8x64 a)
    u8x64 u8_or(u8x64 a, u8x64 b)
    u8x64 u8_move(u8x64 a, int move_from, int move_to, int mask)
    u8x64 u8_lookup(const int8_t* table, u8x64 a)
    f32x16 bf16_fma(f32x16 acc, u8x64 w, u8x64 a)
    f32x16 bf16_dot(f32x16 acc, u8x64 w, u8x64 a)
    uint64_t ox_cycles()
    i32x16 u7_dot(i32x16 acc, u8x64 w, u8x64 a)
    i32x16 u7_dot16(i32x16 acc, u8x64 w, u8x64 a)
    i32x16 s8_dot(i32x16 acc, u8x64 w, u8x64 a)
    u8x64 s8_shifted(u8x64 a)
    i32x16 a8_dot(i32x16 acc, u8x64 w, u8x64 a)

    const int OX_MATRIX
    i32x16 mm_dot(const int half, i32x16 sums, u8x64 w, u8x64 v, const int8_t* x)
    i32x16 mm_pair(const int32_t* x)
    i32x16 mm_rows(const int half, i32x16 a)
    i32x16 mm_split(const int token, i32x16 low, i32x16 high)

    const int OX_AMX
    void amx_configure()
    void amx_columns(const int k)
    void amx_release()
    void amx_begin(const int two)
    void amx_add_us(const int two, const int8_t* a, const int8_t* a2, ptrdiff_t stride, const uint8_t* b,
                    const uint8_t* b2)
    void amx_add_ss(const int two, const int8_t* a, const int8_t* a2, ptrdiff_t stride, const uint8_t* b,
                    const uint8_t* b2)
    void amx_end(const int two, int32_t* sums)
    void amx_split(u8x64 codes, i32x16 scales, const int excess, const int is_signed, uint8_t* high, uint8_t* low)
