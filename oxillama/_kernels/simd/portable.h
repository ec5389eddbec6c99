/* Plain C with arrays of 16, for any compiler and any machine. */
#include <math.h>

typedef struct { float v[16]; } f32x16;
typedef struct { int32_t v[16]; } i32x16;
typedef struct { uint8_t v[64]; } u8x64;

#define OX_S8_SHIFT 0
#define OX_TILE 4
#define OX_PANELS 1

#define OX_EACH(type, expr) do { type r; for (int i = 0; i < 16; i++) r.v[i] = (expr); return r; } while (0)
#define OX_BYTES(expr) do { u8x64 r; for (int i = 0; i < 64; i++) r.v[i] = (uint8_t)(expr); return r; } while (0)

/* a * b + c with one rounding. Without a hardware fma: the product is exact in double, the sum is
 * rounded to odd there, and rounding that to float is then the same as rounding once
 * (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). */
static OX_INLINE float f32_fma1(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
    return fmaf(a, b, c);
#else
    const double p = (double)a * (double)b, z = (double)c;
    double s = p + z;
    const double t = s - p;
    const double e = (p - (s - t)) + (z - t);
    uint64_t u;
    memcpy(&u, &s, 8);
    if (e != 0.0 && !(u & 1) && e == e) {
        u = (e > 0.0) == (s > 0.0) ? u + 1 : u - 1;
        memcpy(&s, &u, 8);
    }
    return (float)s;
#endif
}

static OX_INLINE f32x16 f32_set1(float x) { OX_EACH(f32x16, x); }
static OX_INLINE f32x16 f32_zero(void) { return f32_set1(0.0f); }
static OX_INLINE f32x16 f32_load(const float *p) { OX_EACH(f32x16, p[i]); }
static OX_INLINE void f32_store(float *p, f32x16 a) { memcpy(p, a.v, 64); }
static OX_INLINE f32x16 f32_load_f16(const uint16_t *p) { OX_EACH(f32x16, ox_f32_from_f16(p[i])); }
static OX_INLINE void f32_store_f16(uint16_t *p, f32x16 a) {
    for (int i = 0; i < 16; i++) p[i] = ox_f16_from_f32(a.v[i]);
}
static OX_INLINE f32x16 f32_load_bf16(const uint16_t *p) { OX_EACH(f32x16, ox_f32_from_bf16(p[i])); }
static OX_INLINE uint32_t ox_word(const uint8_t *p) { uint32_t u; memcpy(&u, p, 4); return u; }
static OX_INLINE f32x16 f32_from_low16(u8x64 a) { OX_EACH(f32x16, ox_f32_from_bits(ox_word(a.v + 4 * i) << 16)); }
static OX_INLINE f32x16 f32_from_high16(u8x64 a) {
    OX_EACH(f32x16, ox_f32_from_bits(ox_word(a.v + 4 * i) & 0xffff0000u));
}
static OX_INLINE f32x16 f32_load_i8(const int8_t *p) { OX_EACH(f32x16, (float)p[i]); }
static OX_INLINE f32x16 f32_add(f32x16 a, f32x16 b) { OX_EACH(f32x16, a.v[i] + b.v[i]); }
static OX_INLINE f32x16 f32_sub(f32x16 a, f32x16 b) { OX_EACH(f32x16, a.v[i] - b.v[i]); }
static OX_INLINE f32x16 f32_mul(f32x16 a, f32x16 b) { OX_EACH(f32x16, a.v[i] * b.v[i]); }
static OX_INLINE f32x16 f32_div(f32x16 a, f32x16 b) { OX_EACH(f32x16, a.v[i] / b.v[i]); }
static OX_INLINE f32x16 f32_fma(f32x16 a, f32x16 b, f32x16 c) { OX_EACH(f32x16, f32_fma1(a.v[i], b.v[i], c.v[i])); }
static OX_INLINE f32x16 f32_max(f32x16 a, f32x16 b) { OX_EACH(f32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static OX_INLINE f32x16 f32_abs(f32x16 a) { OX_EACH(f32x16, ox_f32_from_bits(ox_bits_from_f32(a.v[i]) & 0x7fffffffu)); }
static OX_INLINE f32x16 f32_select_lt(f32x16 a, f32x16 b, f32x16 x, f32x16 y) {
    OX_EACH(f32x16, a.v[i] < b.v[i] ? x.v[i] : y.v[i]);
}
static OX_INLINE int f32_mask_lt(f32x16 a, f32x16 b) {
    int mask = 0;
    for (int i = 0; i < 16; i++) mask |= (a.v[i] < b.v[i]) << i;
    return mask;
}
static OX_INLINE int f32_compress(float *p, f32x16 v, int mask) { return ox_compress(p, v.v, mask); }
static OX_INLINE f32x16 f32_from_i32(i32x16 a) { OX_EACH(f32x16, (float)a.v[i]); }
static OX_INLINE f32x16 f32_from_bits(i32x16 a) { f32x16 r; memcpy(&r, &a, 64); return r; }
static OX_INLINE i32x16 i32_from_bits(f32x16 a) { i32x16 r; memcpy(&r, &a, 64); return r; }

/* The order of sums for every target: lanes 8 apart, then 4, 2, 1. */
static OX_INLINE float f32_sum(f32x16 a) {
    for (int n = 8; n; n >>= 1)
        for (int i = 0; i < n; i++) a.v[i] = a.v[i] + a.v[i + n];
    return a.v[0];
}
static OX_INLINE float f32_hmax(f32x16 a) {
    for (int n = 8; n; n >>= 1)
        for (int i = 0; i < n; i++) a.v[i] = a.v[i] > a.v[i + n] ? a.v[i] : a.v[i + n];
    return a.v[0];
}

static OX_INLINE i32x16 i32_set1(int32_t x) { OX_EACH(i32x16, x); }
static OX_INLINE i32x16 i32_zero(void) { return i32_set1(0); }
static OX_INLINE i32x16 i32_load(const void *p) { i32x16 r; memcpy(r.v, p, 64); return r; }
static OX_INLINE i32x16 i32_add(i32x16 a, i32x16 b) { OX_EACH(i32x16, (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i])); }
static OX_INLINE i32x16 i32_sub(i32x16 a, i32x16 b) { OX_EACH(i32x16, (int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i])); }
static OX_INLINE i32x16 i32_mul(i32x16 a, i32x16 b) { OX_EACH(i32x16, (int32_t)((uint32_t)a.v[i] * (uint32_t)b.v[i])); }
static OX_INLINE i32x16 i32_shl(i32x16 a, int n) { OX_EACH(i32x16, (int32_t)((uint32_t)a.v[i] << n)); }
static OX_INLINE i32x16 i32_sar(i32x16 a, int n) { OX_EACH(i32x16, a.v[i] >> n); }

/* An i32x16 can hold 16 pairs of 16-bit integers: the even one in the low half. */
static OX_INLINE int32_t ox_pair(int a, int b) { return (int32_t)(((uint32_t)a & 0xffffu) | ((uint32_t)b << 16)); }
static OX_INLINE i32x16 i16_load_u8(const uint8_t *p) { OX_EACH(i32x16, ox_pair(p[2 * i], p[2 * i + 1])); }
static OX_INLINE i32x16 i16_load_i8(const int8_t *p) { OX_EACH(i32x16, ox_pair(p[2 * i], p[2 * i + 1])); }
static OX_INLINE void i32_store_i8(int8_t *p, i32x16 a) {
    for (int i = 0; i < 16; i++) p[i] = (int8_t)a.v[i];
}
static OX_INLINE i32x16 i16_pair(i32x16 even, i32x16 odd) { OX_EACH(i32x16, ox_pair(even.v[i], odd.v[i])); }
static OX_INLINE i32x16 i16_low4(i32x16 a) { OX_EACH(i32x16, a.v[i] & 0x000f000f); }
static OX_INLINE i32x16 i16_high4(i32x16 a) { OX_EACH(i32x16, (a.v[i] >> 4) & 0x000f000f); }
static OX_INLINE i32x16 i16_dot(i32x16 acc, i32x16 a, i32x16 b) {
    OX_EACH(i32x16, acc.v[i] + (int16_t)a.v[i] * (int16_t)b.v[i] + (a.v[i] >> 16) * (b.v[i] >> 16));
}

static OX_INLINE u8x64 u8_load(const uint8_t *p) { u8x64 r; memcpy(r.v, p, 64); return r; }
static OX_INLINE void u8_store(uint8_t *p, u8x64 a) { memcpy(p, a.v, 64); }
static OX_INLINE u8x64 u8_set4(const int8_t *p) { OX_BYTES(p[i & 3]); }
static OX_INLINE u8x64 u8_keep(u8x64 a) { return a; }
static OX_INLINE f32x16 f32_keep(f32x16 a) { return a; }
static OX_INLINE u8x64 u8_low4(u8x64 a) { OX_BYTES(a.v[i] & 0x0f); }
static OX_INLINE u8x64 u8_high4(u8x64 a) { OX_BYTES(a.v[i] >> 4); }
static OX_INLINE u8x64 u8_or(u8x64 a, u8x64 b) { OX_BYTES(a.v[i] | b.v[i]); }
static OX_INLINE u8x64 u8_move(u8x64 a, int from, int to, int mask) { OX_BYTES(((a.v[i] >> from) << to) & mask); }
static OX_INLINE u8x64 u8_lookup(const int8_t *table, u8x64 a) { OX_BYTES(table[a.v[i]]); }
static OX_INLINE i32x16 u7_dot(i32x16 acc, u8x64 w, u8x64 a) {
    OX_EACH(i32x16, acc.v[i] + (int8_t)a.v[4 * i] * w.v[4 * i] + (int8_t)a.v[4 * i + 1] * w.v[4 * i + 1]
                  + (int8_t)a.v[4 * i + 2] * w.v[4 * i + 2] + (int8_t)a.v[4 * i + 3] * w.v[4 * i + 3]);
}
static OX_INLINE i32x16 s8_dot(i32x16 acc, u8x64 w, u8x64 a) {
    OX_EACH(i32x16, acc.v[i] + (int8_t)a.v[4 * i] * (int8_t)w.v[4 * i] + (int8_t)a.v[4 * i + 1] * (int8_t)w.v[4 * i + 1]
                  + (int8_t)a.v[4 * i + 2] * (int8_t)w.v[4 * i + 2] + (int8_t)a.v[4 * i + 3] * (int8_t)w.v[4 * i + 3]);
}
