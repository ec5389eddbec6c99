/* AVX-512 with VNNI: one register is the whole logical vector. */
#include <immintrin.h>

typedef __m512 f32x16;
typedef __m512i i32x16;
typedef __m512i u8x64;

/* vpdpbusd multiplies unsigned by signed bytes: signed codes get an excess of 128, and the surplus
 * 128 * sum(a) of the products is subtracted at the start of the block. */
#define OX_S8_SHIFT 7
#define OX_TILE 8 /* tokens in the largest tile: what the registers hold */
#define OX_PANELS 2 /* panels that a tile of byte codes multiplies together, with half of its tokens at a time */

static OX_INLINE f32x16 f32_zero(void) { return _mm512_setzero_ps(); }
static OX_INLINE f32x16 f32_set1(float x) { return _mm512_set1_ps(x); }
static OX_INLINE f32x16 f32_load(const float *p) { return _mm512_loadu_ps(p); }
static OX_INLINE void f32_store(float *p, f32x16 a) { _mm512_storeu_ps(p, a); }
static OX_INLINE f32x16 f32_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static OX_INLINE void f32_store_f16(uint16_t *p, f32x16 a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static OX_INLINE f32x16 f32_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static OX_INLINE f32x16 f32_from_low16(__m512i a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
static OX_INLINE f32x16 f32_from_high16(__m512i a) {
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int32_t)0xffff0000)));
}
static OX_INLINE f32x16 f32_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static OX_INLINE f32x16 f32_add(f32x16 a, f32x16 b) { return _mm512_add_ps(a, b); }
static OX_INLINE f32x16 f32_sub(f32x16 a, f32x16 b) { return _mm512_sub_ps(a, b); }
static OX_INLINE f32x16 f32_mul(f32x16 a, f32x16 b) { return _mm512_mul_ps(a, b); }
static OX_INLINE f32x16 f32_div(f32x16 a, f32x16 b) { return _mm512_div_ps(a, b); }
static OX_INLINE f32x16 f32_fma(f32x16 a, f32x16 b, f32x16 c) { return _mm512_fmadd_ps(a, b, c); }
static OX_INLINE f32x16 f32_max(f32x16 a, f32x16 b) { return _mm512_max_ps(a, b); }
static OX_INLINE f32x16 f32_abs(f32x16 a) { return _mm512_abs_ps(a); }
static OX_INLINE f32x16 f32_select_lt(f32x16 a, f32x16 b, f32x16 x, f32x16 y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
static OX_INLINE int f32_mask_lt(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static OX_INLINE int f32_compress(float *p, f32x16 v, int mask) {
    _mm512_storeu_ps(p, _mm512_maskz_compress_ps((__mmask16)mask, v)); /* not to memory: that is slow on Zen */
    return _mm_popcnt_u32((unsigned)mask);
}
static OX_INLINE f32x16 f32_from_i32(i32x16 a) { return _mm512_cvtepi32_ps(a); }
static OX_INLINE f32x16 f32_from_bits(i32x16 a) { return _mm512_castsi512_ps(a); }
static OX_INLINE i32x16 i32_from_bits(f32x16 a) { return _mm512_castps_si512(a); }

static OX_INLINE float f32_sum(f32x16 v) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
static OX_INLINE float f32_hmax(f32x16 v) {
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

static OX_INLINE i32x16 i32_zero(void) { return _mm512_setzero_si512(); }
static OX_INLINE i32x16 i32_set1(int32_t x) { return _mm512_set1_epi32(x); }
static OX_INLINE i32x16 i32_load(const void *p) { return _mm512_loadu_si512(p); }
static OX_INLINE i32x16 i32_add(i32x16 a, i32x16 b) { return _mm512_add_epi32(a, b); }
static OX_INLINE i32x16 i32_sub(i32x16 a, i32x16 b) { return _mm512_sub_epi32(a, b); }
static OX_INLINE i32x16 i32_mul(i32x16 a, i32x16 b) { return _mm512_mullo_epi32(a, b); }
static OX_INLINE i32x16 i32_shl(i32x16 a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
static OX_INLINE i32x16 i32_sar(i32x16 a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
static OX_INLINE i32x16 i16_load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)p));
}
static OX_INLINE i32x16 i16_load_i8(const int8_t *p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}
static OX_INLINE void i32_store_i8(int8_t *p, i32x16 a) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a));
}
static OX_INLINE i32x16 i16_pair(i32x16 even, i32x16 odd) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, even, _mm512_slli_epi32(odd, 16));
}
static OX_INLINE i32x16 i16_low4(i32x16 a) { return _mm512_and_si512(a, _mm512_set1_epi16(15)); }
static OX_INLINE i32x16 i16_high4(i32x16 a) { return _mm512_srli_epi16(a, 4); } /* of values below 256 */
static OX_INLINE i32x16 i16_dot(i32x16 acc, i32x16 a, i32x16 b) { return _mm512_dpwssd_epi32(acc, a, b); }

static OX_INLINE u8x64 u8_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
static OX_INLINE void u8_store(uint8_t *p, u8x64 a) { _mm512_storeu_si512(p, a); }
static OX_INLINE u8x64 u8_set4(const int8_t *p) {
    int32_t x;
    memcpy(&x, p, 4);
    return _mm512_set1_epi32(x);
}
/* Keeps `a` in a register for several products; else the compiler reads it from memory for each of them. */
#ifdef __GNUC__
#define OX_KEEP(a) __asm__("" : "+v"(a))
#else
#define OX_KEEP(a) (void)0
#endif
static OX_INLINE u8x64 u8_keep(u8x64 a) { OX_KEEP(a); return a; }
static OX_INLINE f32x16 f32_keep(f32x16 a) { OX_KEEP(a); return a; }
static OX_INLINE u8x64 u8_low4(u8x64 a) { return _mm512_and_si512(a, _mm512_set1_epi8(0x0f)); }
static OX_INLINE u8x64 u8_high4(u8x64 a) {
    return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(0x0f));
}
static OX_INLINE u8x64 u8_or(u8x64 a, u8x64 b) { return _mm512_or_si512(a, b); }
/* Moves bit `from` of every byte to bit `to`, and masks the bytes. */
static OX_INLINE u8x64 u8_move(u8x64 a, int from, int to, int mask) {
    const __m512i at = from < to ? _mm512_sll_epi16(a, _mm_cvtsi32_si128(to - from))
                                 : _mm512_srl_epi16(a, _mm_cvtsi32_si128(from - to));
    return _mm512_and_si512(at, _mm512_set1_epi8((char)mask));
}
static OX_INLINE u8x64 u8_lookup(const int8_t *table, u8x64 a) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), a);
}
/* Sums of 4 products: codes of at most 7 bits times signed bytes. */
static OX_INLINE i32x16 u7_dot(i32x16 acc, u8x64 w, u8x64 a) { return _mm512_dpbusd_epi32(acc, w, a); }
/* a8_dot: the activations get the excess of 128 when they are quantized, and the codes stay signed. */
#define OX_A8_SHIFT 7
static OX_INLINE i32x16 a8_dot(i32x16 acc, u8x64 w, u8x64 a) { return _mm512_dpbusd_epi32(acc, a, w); }
static OX_INLINE u8x64 ox_s8_shifted(u8x64 a) { return _mm512_xor_si512(a, _mm512_set1_epi8((char)0x80)); }
static OX_INLINE i32x16 s8_dot(i32x16 acc, u8x64 w, u8x64 a) { return u7_dot(acc, ox_s8_shifted(w), a); }
/* Sums of 2 products of bf16 in one instruction. It is written in assembly: not every CPU of this target has the
 * instruction, and a compiler that may use it may use it anywhere. `has_bf16_dot` of bf16.pxd asks first. */
#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#define OX_BF16_DOT 1
#define ox_cycles() __rdtsc()
static OX_INLINE f32x16 bf16_dot(f32x16 acc, u8x64 w, u8x64 a) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(w), "v"(a));
    return acc;
}
static OX_INLINE f32x16 bf16_round(uint16_t *p, f32x16 a) {
    __m256i halves;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(a));
    _mm256_storeu_si256((__m256i *)p, halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
static OX_INLINE void f32_store_bf16(uint16_t *p, f32x16 a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16)));
}
#endif
