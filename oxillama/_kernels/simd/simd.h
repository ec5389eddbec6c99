/* The interface between the kernels and the instruction sets.
 *
 * A logical machine with 16 lanes: f32x16 (floats), i32x16 (32-bit integers, or 16 pairs of
 * 16-bit ones) and u8x64 (16 groups of 4 bytes). Every header below implements the same operations with
 * the same results, bit for bit: no operation chooses its own order of a sum over lanes, every fma is
 * explicit, and integers never saturate. OX_TARGET_* is set by setup.py, one per build.
 */
#ifndef OX_SIMD_H
#define OX_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER) && !defined(__clang__)
#define OX_INLINE __forceinline
#else
#define OX_INLINE inline __attribute__((always_inline))
#endif

/* Only explicit fmas. setup.py passes -ffp-contract=off to compilers that know it; MSVC before 2022 contracts
 * even with /fp:precise, unless this pragma forbids it. */
#if defined(_MSC_VER) && !defined(__clang__)
#pragma fp_contract(off)
#endif

/* A hint that the cache line at p will be read soon; any address is allowed. */
#if !defined(_MSC_VER) || defined(__clang__)
#define ox_prefetch(p) __builtin_prefetch(p)
#elif defined(_M_X64)
#include <intrin.h>
#define ox_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
#else
#define ox_prefetch(p) ((void)(p))
#endif
/* Prefetches for a later read: into the second-level cache, which can wait for many lines at a time. */
#if !defined(_MSC_VER) || defined(__clang__)
#define ox_prefetch_far(p) __builtin_prefetch(p, 0, 2)
#elif defined(_M_X64)
#define ox_prefetch_far(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)
#else
#define ox_prefetch_far(p) ((void)(p))
#endif
#define OX_AHEAD 2048 /* bytes from the current read to the prefetch: hides the memory's latency at full speed */

static OX_INLINE float ox_f32_from_bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static OX_INLINE uint32_t ox_bits_from_f32(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

/* IEEE half to float, exact, denormals and NaN payloads included. */
static OX_INLINE float ox_f32_from_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t rest = h & 0x7fffu;
    if (rest < 0x0400u) { /* zero and denormals: the value is rest * 2^-24 */
        const float f = (float)rest * ox_f32_from_bits(0x33800000u);
        return ox_f32_from_bits(ox_bits_from_f32(f) | sign);
    }
    if (rest > 0x7c00u) return ox_f32_from_bits(sign | 0x7fc00000u | (rest << 13)); /* quiet NaN */
    if (rest == 0x7c00u) return ox_f32_from_bits(sign | 0x7f800000u);
    return ox_f32_from_bits(sign | ((rest << 13) + 0x38000000u));
}

/* Float to IEEE half, round to nearest even, overflow to infinity. */
static OX_INLINE uint16_t ox_f16_from_f32(float f) {
    const uint32_t u = ox_bits_from_f32(f);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x47800000u) return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below the smallest normal half: adding 0.5 rounds at 2^-24 */
        const float r = ox_f32_from_bits(a) + 0.5f;
        return (uint16_t)(sign | (ox_bits_from_f32(r) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

static OX_INLINE float ox_f32_from_bf16(uint16_t h) { return ox_f32_from_bits((uint32_t)h << 16); }

static OX_INLINE uint16_t ox_bf16_from_f32(float f) { /* round to nearest even, NaN stays NaN */
    const uint32_t u = ox_bits_from_f32(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Moves the lanes that `mask` selects to the front of `p`, which has room for 16; returns their number. */
static OX_INLINE int ox_compress(float *p, const float *lanes, int mask) {
    int n = 0;
    for (int i = 0; i < 16; i++) {
        memcpy(p + n, lanes + i, 4);
        n += mask >> i & 1;
    }
    return n;
}

#if defined(OX_TARGET_AVX512) || defined(OX_TARGET_AMX) || defined(OX_TARGET_AMX_EMULATED)
#include "avx512.h"
#elif defined(OX_TARGET_AVX2) || defined(OX_TARGET_AVXVNNI)
#include "avx2.h"
#elif defined(OX_TARGET_NEON) || defined(OX_TARGET_I8MM)
#include "neon.h"
#else
#include "portable.h"
#endif

/* Signed codes times activations with an excess of 2^OX_A8_SHIFT, or without an excess. */
#ifndef OX_A8_SHIFT
#define OX_A8_SHIFT 0
#define a8_dot s8_dot
#endif

/* acc + the products of two pairs of bf16 in each lane: the product of the upper halves is added first, then the
 * product of the lower halves, each with one rounding. If OX_BF16_DOT is 1 and the CPU has the instruction, bf16_dot
 * does the same in one, provided that no sum or product is subnormal. */
static OX_INLINE f32x16 bf16_fma(f32x16 acc, u8x64 w, u8x64 a) {
    acc = f32_fma(f32_from_high16(w), f32_from_high16(a), acc);
    return f32_fma(f32_from_low16(w), f32_from_low16(a), acc);
}
#ifndef OX_BF16_DOT
#define OX_BF16_DOT 0
#define bf16_dot bf16_fma
#define ox_cycles() 0
/* Rounds 16 floats that are 0 or at least 2^-56 in magnitude to bf16: stores them, and returns them as floats. */
static OX_INLINE f32x16 bf16_round(uint16_t *p, f32x16 a) {
    float lanes[16];
    f32_store(lanes, a);
    for (int i = 0; i < 16; i++) lanes[i] = ox_f32_from_bf16(p[i] = ox_bf16_from_f32(lanes[i]));
    return f32_load(lanes);
}
/* Stores 16 floats as bf16, by their upper halves. */
static OX_INLINE void f32_store_bf16(uint16_t *p, f32x16 a) {
    float lanes[16];
    f32_store(lanes, a);
    for (int i = 0; i < 16; i++) p[i] = (uint16_t)(ox_bits_from_f32(lanes[i]) >> 16);
}
#endif

/* If OX_MATRIX is 1, an instruction multiplies 2 rows by 2 tokens, 8 columns at a time. Its sums are in matrix order:
 * for 2 tokens one vector (8 rows, 2 tokens) for rows 0 to 7 of a panel, half 0, and one for rows 8 to 15, half 1.
 * mm_dot adds the products of half the rows of w and v, 4 columns each, with the codes x (2 tokens, 8 columns).
 * mm_pair is (x[0], x[1]) for each row, mm_rows a value of each row for both tokens. mm_split turns the sums of both
 * halves into the sums of the first token, or the second, for 16 rows. */
#ifndef OX_MATRIX
#define OX_MATRIX 0
#define mm_dot(half, sums, w, v, x) ((void)(w), (void)(v), (sums))
#define mm_pair(x) i32_set1(*(x))
#define mm_rows(half, a) (a)
#define mm_split(token, low, high) ((void)(high), (low))
#endif

/* Signed codes as the unsigned ones that s8_dot multiplies: with the excess of 2^OX_S8_SHIFT. */
static OX_INLINE u8x64 s8_shifted(u8x64 a) {
#if OX_S8_SHIFT
    return ox_s8_shifted(a);
#else
    return a;
#endif
}

/* Where one instruction computes dot products into 32 bits, sums in 16 bits gain nothing. */
#ifndef OX_SUMS_OF_16
#define OX_SUMS_OF_16 0
#define u7_dot16 u7_dot
#endif

#include "amx.h"

#endif
