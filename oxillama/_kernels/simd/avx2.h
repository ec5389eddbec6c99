/* AVX2 with FMA and F16C: two registers make the logical vector. With OX_TARGET_AVXVNNI the dot products of bytes are
 * instructions of AVX-VNNI, or of AVX-512 VNNI on 256 bits where the compiler has flags for these instead. */
#include <immintrin.h>

typedef struct { __m256 lo, hi; } f32x16;
typedef struct { __m256i lo, hi; } i32x16;
typedef i32x16 u8x64;

#define OX_TILE 4
#define OX_PANELS 1

#define OX_F2(name, op) \
    static OX_INLINE f32x16 name(f32x16 a, f32x16 b) { \
        f32x16 r = {op(a.lo, b.lo), op(a.hi, b.hi)}; return r; }
#define OX_I2(name, op) \
    static OX_INLINE i32x16 name(i32x16 a, i32x16 b) { \
        i32x16 r = {op(a.lo, b.lo), op(a.hi, b.hi)}; return r; }

static OX_INLINE f32x16 f32_set1(float x) { f32x16 r = {_mm256_set1_ps(x), _mm256_set1_ps(x)}; return r; }
static OX_INLINE f32x16 f32_zero(void) { return f32_set1(0.0f); }
static OX_INLINE f32x16 f32_load(const float *p) {
    f32x16 r = {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
    return r;
}
static OX_INLINE void f32_store(float *p, f32x16 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
static OX_INLINE f32x16 f32_load_f16(const uint16_t *p) {
    f32x16 r = {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
    return r;
}
static OX_INLINE void f32_store_f16(uint16_t *p, f32x16 a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static OX_INLINE f32x16 f32_load_bf16(const uint16_t *p) {
    const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    const __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)));
    f32x16 r = {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
    return r;
}
static OX_INLINE f32x16 f32_from_low16(i32x16 a) {
    f32x16 r = {_mm256_castsi256_ps(_mm256_slli_epi32(a.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(a.hi, 16))};
    return r;
}
static OX_INLINE f32x16 f32_from_high16(i32x16 a) {
    const __m256i m = _mm256_set1_epi32((int32_t)0xffff0000);
    f32x16 r = {_mm256_castsi256_ps(_mm256_and_si256(a.lo, m)), _mm256_castsi256_ps(_mm256_and_si256(a.hi, m))};
    return r;
}
static OX_INLINE f32x16 f32_load_i8(const int8_t *p) {
    f32x16 r = {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))))};
    return r;
}
OX_F2(f32_add, _mm256_add_ps)
OX_F2(f32_sub, _mm256_sub_ps)
OX_F2(f32_mul, _mm256_mul_ps)
OX_F2(f32_div, _mm256_div_ps)
OX_F2(f32_max, _mm256_max_ps)
static OX_INLINE f32x16 f32_fma(f32x16 a, f32x16 b, f32x16 c) {
    f32x16 r = {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
    return r;
}
static OX_INLINE f32x16 f32_abs(f32x16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    f32x16 r = {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
    return r;
}
static OX_INLINE f32x16 f32_select_lt(f32x16 a, f32x16 b, f32x16 x, f32x16 y) {
    f32x16 r = {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
    return r;
}
static OX_INLINE int f32_mask_lt(f32x16 a, f32x16 b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ))
         | _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)) << 8;
}
static OX_INLINE int f32_compress(float *p, f32x16 v, int mask) {
    float lanes[16];
    f32_store(lanes, v);
    return ox_compress(p, lanes, mask);
}
static OX_INLINE f32x16 f32_from_i32(i32x16 a) {
    f32x16 r = {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
    return r;
}
static OX_INLINE f32x16 f32_from_bits(i32x16 a) {
    f32x16 r = {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
    return r;
}
static OX_INLINE i32x16 i32_from_bits(f32x16 a) {
    i32x16 r = {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
    return r;
}
static OX_INLINE float f32_sum(f32x16 v) {
    const __m256 a = _mm256_add_ps(v.lo, v.hi);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
static OX_INLINE float f32_hmax(f32x16 v) {
    const __m256 a = _mm256_max_ps(v.lo, v.hi);
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

static OX_INLINE i32x16 i32_set1(int32_t x) { i32x16 r = {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; return r; }
static OX_INLINE i32x16 i32_zero(void) { i32x16 r = {_mm256_setzero_si256(), _mm256_setzero_si256()}; return r; }
static OX_INLINE i32x16 i32_load(const void *p) {
    i32x16 r = {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
    return r;
}
OX_I2(i32_add, _mm256_add_epi32)
OX_I2(i32_sub, _mm256_sub_epi32)
OX_I2(i32_mul, _mm256_mullo_epi32)
static OX_INLINE i32x16 i32_shl(i32x16 a, int n) {
    i32x16 r = {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
    return r;
}
static OX_INLINE i32x16 i32_sar(i32x16 a, int n) {
    i32x16 r = {_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)};
    return r;
}
static OX_INLINE i32x16 i16_load_u8(const uint8_t *p) {
    i32x16 r = {_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(p + 16)))};
    return r;
}
static OX_INLINE i32x16 i16_load_i8(const int8_t *p) {
    i32x16 r = {_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p + 16)))};
    return r;
}
static OX_INLINE void i32_store_i8(int8_t *p, i32x16 a) { /* low bytes, no saturation needed */
    const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                          0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i lo = _mm256_shuffle_epi8(a.lo, pick), hi = _mm256_shuffle_epi8(a.hi, pick);
    const __m128i l = _mm_unpacklo_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
    const __m128i h = _mm_unpacklo_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1));
    _mm_storeu_si128((__m128i *)p, _mm_unpacklo_epi64(l, h));
}
static OX_INLINE i32x16 i16_pair(i32x16 even, i32x16 odd) {
    i32x16 r = {_mm256_blend_epi16(even.lo, _mm256_slli_epi32(odd.lo, 16), 0xaa),
                _mm256_blend_epi16(even.hi, _mm256_slli_epi32(odd.hi, 16), 0xaa)};
    return r;
}
static OX_INLINE i32x16 i16_low4(i32x16 a) {
    const __m256i m = _mm256_set1_epi16(15);
    i32x16 r = {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)};
    return r;
}
static OX_INLINE i32x16 i16_high4(i32x16 a) {
    i32x16 r = {_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)};
    return r;
}
static OX_INLINE i32x16 i16_dot(i32x16 acc, i32x16 a, i32x16 b) {
    i32x16 r = {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo)),
                _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi))};
    return r;
}

static OX_INLINE u8x64 u8_load(const uint8_t *p) {
    u8x64 r = {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))};
    return r;
}
static OX_INLINE void u8_store(uint8_t *p, u8x64 a) {
    _mm256_storeu_si256((__m256i *)p, a.lo);
    _mm256_storeu_si256((__m256i *)(p + 32), a.hi);
}
static OX_INLINE u8x64 u8_set4(const int8_t *p) {
    int32_t x;
    memcpy(&x, p, 4);
    return i32_set1(x);
}
static OX_INLINE u8x64 u8_keep(u8x64 a) { return a; }
static OX_INLINE f32x16 f32_keep(f32x16 a) { return a; }
static OX_INLINE u8x64 u8_low4(u8x64 a) {
    const __m256i m = _mm256_set1_epi8(0x0f);
    u8x64 r = {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)};
    return r;
}
static OX_INLINE u8x64 u8_high4(u8x64 a) {
    const __m256i m = _mm256_set1_epi8(0x0f);
    u8x64 r = {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), m), _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), m)};
    return r;
}
OX_I2(u8_or, _mm256_or_si256)
static OX_INLINE __m256i ox_move(__m256i a, int from, int to, int mask) {
    const __m256i at = from < to ? _mm256_sll_epi16(a, _mm_cvtsi32_si128(to - from))
                                 : _mm256_srl_epi16(a, _mm_cvtsi32_si128(from - to));
    return _mm256_and_si256(at, _mm256_set1_epi8((char)mask));
}
static OX_INLINE u8x64 u8_move(u8x64 a, int from, int to, int mask) {
    u8x64 r = {ox_move(a.lo, from, to, mask), ox_move(a.hi, from, to, mask)};
    return r;
}
static OX_INLINE u8x64 u8_lookup(const int8_t *table, u8x64 a) {
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    u8x64 r = {_mm256_shuffle_epi8(t, a.lo), _mm256_shuffle_epi8(t, a.hi)};
    return r;
}
#ifdef OX_TARGET_AVXVNNI
#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && !defined(__AVXVNNI__)
#define ox_dpbusd _mm256_dpbusd_epi32
#else
#define ox_dpbusd _mm256_dpbusd_avx_epi32
#endif
#define OX_S8_SHIFT 7
static OX_INLINE i32x16 u7_dot(i32x16 acc, u8x64 w, u8x64 a) {
    i32x16 r = {ox_dpbusd(acc.lo, w.lo, a.lo), ox_dpbusd(acc.hi, w.hi, a.hi)};
    return r;
}
/* As in avx512.h: the activations get the excess of 128 when they are quantized, and the codes stay signed. */
#define OX_A8_SHIFT 7
static OX_INLINE i32x16 a8_dot(i32x16 acc, u8x64 w, u8x64 a) { return u7_dot(acc, a, w); }
static OX_INLINE u8x64 ox_s8_shifted(u8x64 a) {
    const __m256i excess = _mm256_set1_epi8((char)0x80);
    u8x64 r = {_mm256_xor_si256(a.lo, excess), _mm256_xor_si256(a.hi, excess)};
    return r;
}
static OX_INLINE i32x16 s8_dot(i32x16 acc, u8x64 w, u8x64 a) { return u7_dot(acc, ox_s8_shifted(w), a); }
#else
#define OX_S8_SHIFT 0
#define OX_SUMS_OF_16 1
/* vpmaddubsw saturates at 16 bits: 7-bit codes stay below it (2 * 127 * 127 = 32258). */
static OX_INLINE __m256i ox_u7_dot(__m256i acc, __m256i w, __m256i a) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1)));
}
static OX_INLINE i32x16 u7_dot(i32x16 acc, u8x64 w, u8x64 a) {
    i32x16 r = {ox_u7_dot(acc.lo, w.lo, a.lo), ox_u7_dot(acc.hi, w.hi, a.hi)};
    return r;
}
/* Half of u7_dot: sums of two products, in 16 bits. i16_dot with ones completes the dot product. */
static OX_INLINE i32x16 u7_dot16(i32x16 acc, u8x64 w, u8x64 a) {
    i32x16 r = {_mm256_add_epi16(acc.lo, _mm256_maddubs_epi16(w.lo, a.lo)),
                _mm256_add_epi16(acc.hi, _mm256_maddubs_epi16(w.hi, a.hi))};
    return r;
}
/* Signed codes: |w| times (a with the sign of w); |w| <= 128 and |a| <= 127 stay below 32768. */
static OX_INLINE i32x16 s8_dot(i32x16 acc, u8x64 w, u8x64 a) {
    i32x16 r = {ox_u7_dot(acc.lo, _mm256_abs_epi8(w.lo), _mm256_sign_epi8(a.lo, w.lo)),
                ox_u7_dot(acc.hi, _mm256_abs_epi8(w.hi), _mm256_sign_epi8(a.hi, w.hi))};
    return r;
}
#endif
