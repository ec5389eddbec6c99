/* Arm NEON with the dot-product extension: four registers make the logical vector. */
#include <arm_neon.h>
#include <math.h>

typedef struct { float32x4_t q[4]; } f32x16;
typedef struct { int32x4_t q[4]; } i32x16;
typedef struct { int8x16_t q[4]; } u8x64;

#define OX_S8_SHIFT 0
#define OX_PANELS 1
#ifdef OX_TARGET_I8MM
#define OX_TILE 8
#define OX_MATRIX 1
#else
#define OX_TILE 4
#endif

#define OX_Q(type, expr) do { type r; for (int i = 0; i < 4; i++) r.q[i] = (expr); return r; } while (0)

static OX_INLINE f32x16 f32_set1(float x) { OX_Q(f32x16, vdupq_n_f32(x)); }
static OX_INLINE f32x16 f32_zero(void) { return f32_set1(0.0f); }
static OX_INLINE f32x16 f32_load(const float *p) { OX_Q(f32x16, vld1q_f32(p + 4 * i)); }
static OX_INLINE void f32_store(float *p, f32x16 a) { for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.q[i]); }
static OX_INLINE f32x16 f32_load_f16(const uint16_t *p) {
    OX_Q(f32x16, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
static OX_INLINE void f32_store_f16(uint16_t *p, f32x16 a) {
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.q[i])));
}
static OX_INLINE f32x16 f32_load_bf16(const uint16_t *p) {
    OX_Q(f32x16, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
static OX_INLINE f32x16 f32_from_low16(u8x64 a) {
    OX_Q(f32x16, vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_s8(a.q[i]), 16)));
}
static OX_INLINE f32x16 f32_from_high16(u8x64 a) {
    OX_Q(f32x16, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s8(a.q[i]), vdupq_n_u32(0xffff0000u))));
}
static OX_INLINE f32x16 f32_load_i8(const int8_t *p) {
    const int16x8_t lo = vmovl_s8(vld1_s8(p)), hi = vmovl_s8(vld1_s8(p + 8));
    f32x16 r = {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)))}};
    return r;
}
static OX_INLINE f32x16 f32_add(f32x16 a, f32x16 b) { OX_Q(f32x16, vaddq_f32(a.q[i], b.q[i])); }
static OX_INLINE f32x16 f32_sub(f32x16 a, f32x16 b) { OX_Q(f32x16, vsubq_f32(a.q[i], b.q[i])); }
static OX_INLINE f32x16 f32_mul(f32x16 a, f32x16 b) { OX_Q(f32x16, vmulq_f32(a.q[i], b.q[i])); }
static OX_INLINE f32x16 f32_div(f32x16 a, f32x16 b) { OX_Q(f32x16, vdivq_f32(a.q[i], b.q[i])); }
static OX_INLINE f32x16 f32_fma(f32x16 a, f32x16 b, f32x16 c) { OX_Q(f32x16, vfmaq_f32(c.q[i], a.q[i], b.q[i])); }
static OX_INLINE f32x16 f32_max(f32x16 a, f32x16 b) { /* b if either is NaN, as in the other headers */
    OX_Q(f32x16, vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}
static OX_INLINE f32x16 f32_abs(f32x16 a) { OX_Q(f32x16, vabsq_f32(a.q[i])); }
static OX_INLINE f32x16 f32_select_lt(f32x16 a, f32x16 b, f32x16 x, f32x16 y) {
    OX_Q(f32x16, vbslq_f32(vcltq_f32(a.q[i], b.q[i]), x.q[i], y.q[i]));
}
static OX_INLINE int f32_mask_lt(f32x16 a, f32x16 b) {
    const uint32_t values[4] = {1, 2, 4, 8};
    const uint32x4_t bits = vld1q_u32(values);
    int mask = 0;
    for (int i = 0; i < 4; i++) mask |= (int)vaddvq_u32(vandq_u32(vcltq_f32(a.q[i], b.q[i]), bits)) << 4 * i;
    return mask;
}
static OX_INLINE int f32_compress(float *p, f32x16 v, int mask) {
    float lanes[16];
    f32_store(lanes, v);
    return ox_compress(p, lanes, mask);
}
static OX_INLINE f32x16 f32_from_i32(i32x16 a) { OX_Q(f32x16, vcvtq_f32_s32(a.q[i])); }
static OX_INLINE f32x16 f32_from_bits(i32x16 a) { OX_Q(f32x16, vreinterpretq_f32_s32(a.q[i])); }
static OX_INLINE i32x16 i32_from_bits(f32x16 a) { OX_Q(i32x16, vreinterpretq_s32_f32(a.q[i])); }

static OX_INLINE float f32_sum(f32x16 a) {
    const float32x4_t v = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
    const float32x2_t w = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(w, 0) + vget_lane_f32(w, 1);
}
static OX_INLINE float f32_hmax(f32x16 a) {
    float v[16];
    f32_store(v, a);
    for (int n = 8; n; n >>= 1)
        for (int i = 0; i < n; i++) v[i] = v[i] > v[i + n] ? v[i] : v[i + n];
    return v[0];
}

static OX_INLINE i32x16 i32_set1(int32_t x) { OX_Q(i32x16, vdupq_n_s32(x)); }
static OX_INLINE i32x16 i32_zero(void) { return i32_set1(0); }
static OX_INLINE i32x16 i32_load(const void *p) { OX_Q(i32x16, vld1q_s32((const int32_t *)p + 4 * i)); }
static OX_INLINE i32x16 i32_add(i32x16 a, i32x16 b) { OX_Q(i32x16, vaddq_s32(a.q[i], b.q[i])); }
static OX_INLINE i32x16 i32_sub(i32x16 a, i32x16 b) { OX_Q(i32x16, vsubq_s32(a.q[i], b.q[i])); }
static OX_INLINE i32x16 i32_mul(i32x16 a, i32x16 b) { OX_Q(i32x16, vmulq_s32(a.q[i], b.q[i])); }
static OX_INLINE i32x16 i32_shl(i32x16 a, int n) { OX_Q(i32x16, vshlq_s32(a.q[i], vdupq_n_s32(n))); }
static OX_INLINE i32x16 i32_sar(i32x16 a, int n) { OX_Q(i32x16, vshlq_s32(a.q[i], vdupq_n_s32(-n))); }
static OX_INLINE i32x16 i16_load_u8(const uint8_t *p) {
    OX_Q(i32x16, vreinterpretq_s32_u16(vmovl_u8(vld1_u8(p + 8 * i))));
}
static OX_INLINE i32x16 i16_load_i8(const int8_t *p) {
    OX_Q(i32x16, vreinterpretq_s32_s16(vmovl_s8(vld1_s8(p + 8 * i))));
}
static OX_INLINE void i32_store_i8(int8_t *p, i32x16 a) {
    const int16x8_t lo = vcombine_s16(vmovn_s32(a.q[0]), vmovn_s32(a.q[1]));
    const int16x8_t hi = vcombine_s16(vmovn_s32(a.q[2]), vmovn_s32(a.q[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
}
static OX_INLINE i32x16 i16_pair(i32x16 even, i32x16 odd) { OX_Q(i32x16, vsliq_n_s32(even.q[i], odd.q[i], 16)); }
static OX_INLINE i32x16 i16_low4(i32x16 a) { OX_Q(i32x16, vandq_s32(a.q[i], vdupq_n_s32(0x000f000f))); }
static OX_INLINE i32x16 i16_high4(i32x16 a) {
    OX_Q(i32x16, vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(a.q[i]), 4)));
}
static OX_INLINE int32x4_t ox_i16_dot(int32x4_t acc, int32x4_t a, int32x4_t b) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return vaddq_s32(acc, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}
static OX_INLINE i32x16 i16_dot(i32x16 acc, i32x16 a, i32x16 b) { OX_Q(i32x16, ox_i16_dot(acc.q[i], a.q[i], b.q[i])); }

static OX_INLINE u8x64 u8_load(const uint8_t *p) { OX_Q(u8x64, vld1q_s8((const int8_t *)p + 16 * i)); }
static OX_INLINE void u8_store(uint8_t *p, u8x64 a) {
    for (int i = 0; i < 4; i++) vst1q_s8((int8_t *)p + 16 * i, a.q[i]);
}
static OX_INLINE u8x64 u8_set4(const int8_t *p) {
    int32_t x;
    memcpy(&x, p, 4);
    OX_Q(u8x64, vreinterpretq_s8_s32(vdupq_n_s32(x)));
}
static OX_INLINE u8x64 u8_keep(u8x64 a) { return a; }
static OX_INLINE f32x16 f32_keep(f32x16 a) { return a; }
static OX_INLINE u8x64 u8_low4(u8x64 a) { OX_Q(u8x64, vandq_s8(a.q[i], vdupq_n_s8(0x0f))); }
static OX_INLINE u8x64 u8_high4(u8x64 a) {
    OX_Q(u8x64, vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(a.q[i]), 4)));
}
static OX_INLINE u8x64 u8_or(u8x64 a, u8x64 b) { OX_Q(u8x64, vorrq_s8(a.q[i], b.q[i])); }
static OX_INLINE u8x64 u8_move(u8x64 a, int from, int to, int mask) {
    OX_Q(u8x64, vandq_s8(vreinterpretq_s8_u8(
        vshlq_u8(vreinterpretq_u8_s8(a.q[i]), vdupq_n_s8((int8_t)(to - from)))), vdupq_n_s8((int8_t)mask)));
}
static OX_INLINE u8x64 u8_lookup(const int8_t *table, u8x64 a) {
    OX_Q(u8x64, vqtbl1q_s8(vld1q_s8(table), vreinterpretq_u8_s8(a.q[i])));
}
static OX_INLINE i32x16 u7_dot(i32x16 acc, u8x64 w, u8x64 a) { OX_Q(i32x16, vdotq_s32(acc.q[i], w.q[i], a.q[i])); }
static OX_INLINE i32x16 s8_dot(i32x16 acc, u8x64 w, u8x64 a) { return u7_dot(acc, w, a); }

#ifdef OX_TARGET_I8MM
static OX_INLINE i32x16 mm_dot(const int half, i32x16 sums, u8x64 w, u8x64 v, const int8_t *x) {
    const int8x16_t a = vld1q_s8(x);
    for (int i = 0; i < 2; i++) {
        const int32x4_t p = vreinterpretq_s32_s8(w.q[2 * half + i]), q = vreinterpretq_s32_s8(v.q[2 * half + i]);
        sums.q[2 * i] = vmmlaq_s32(sums.q[2 * i], vreinterpretq_s8_s32(vzip1q_s32(p, q)), a);
        sums.q[2 * i + 1] = vmmlaq_s32(sums.q[2 * i + 1], vreinterpretq_s8_s32(vzip2q_s32(p, q)), a);
    }
    return sums;
}
static OX_INLINE i32x16 mm_pair(const int32_t *x) { OX_Q(i32x16, vcombine_s32(vld1_s32(x), vld1_s32(x))); }
static OX_INLINE i32x16 mm_rows(const int half, i32x16 a) {
    const int32x4_t p = a.q[2 * half], q = a.q[2 * half + 1];
    i32x16 r = {{vzip1q_s32(p, p), vzip2q_s32(p, p), vzip1q_s32(q, q), vzip2q_s32(q, q)}};
    return r;
}
static OX_INLINE i32x16 mm_split(const int token, i32x16 low, i32x16 high) {
    i32x16 r;
    for (int i = 0; i < 4; i++) {
        const i32x16 *half = i < 2 ? &low : &high;
        const int32x4_t p = half->q[i % 2 * 2], q = half->q[i % 2 * 2 + 1];
        r.q[i] = token ? vuzp2q_s32(p, q) : vuzp1q_s32(p, q);
    }
    return r;
}
#endif
