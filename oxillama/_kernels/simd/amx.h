/* Products of bytes by AMX: tile registers of 16 rows of 64 bytes, Intel since Sapphire Rapids.
 *
 * C (16 tokens, 16 rows of a panel, int32) += A (16 tokens, K columns) times B (K columns of the panel), K being 64 or
 * 32. B is the order that a panel of bytes has in memory: 4 columns of its 16 rows, then the next 4. Sums are exact
 * modulo 2^32. Registers 0 to 3 are C, 4 and 5 A, 6 and 7 B.
 *
 * Every operation has two forms: instructions for OX_TARGET_AMX, and C that gives the same integers. With
 * OX_TARGET_AMX_EMULATED the kernels use the latter, so that any CPU with AVX-512 can test them. */
#ifndef OX_AMX_H
#define OX_AMX_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(OX_TARGET_AMX) || defined(OX_TARGET_AMX_EMULATED)
#define OX_AMX 1
#else
#define OX_AMX 0
#endif

#ifdef OX_TARGET_AMX
/* Own assembly: the intrinsics of gcc 12 do not say that `ldtilecfg` and `tileloadd` read memory, so that stores
 * before them may be left out. Numbers of registers have to be constants. */
#define amx_zero(c) __asm__ volatile("tilezero %%tmm" #c ::)
#define amx_load(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t :: "r"((const void *)(p)), "r"((ptrdiff_t)(stride)) : "memory")
#define amx_store(c, p) \
    __asm__ volatile("tilestored %%tmm" #c ", (%0,%1,1)" :: "r"((void *)(p)), "r"((ptrdiff_t)64) : "memory")
#define amx_dot_us(c, a, b) __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define amx_dot_ss(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

/* The shape of the 8 registers for K columns. */
static OX_INLINE void amx_columns(const int k) {
    struct { uint8_t palette, start, unused[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } shape;
    memset(&shape, 0, sizeof shape);
    shape.palette = 1;
    for (int i = 0; i < 8; i++) {
        shape.row_bytes[i] = i == 4 || i == 5 ? k : 64;
        shape.rows[i] = i < 6 ? 16 : k / 4;
    }
    __asm__ volatile("ldtilecfg %0" :: "m"(shape));
}
/* A thread needs it before its first operation: K = 64. */
static OX_INLINE void amx_configure(void) { amx_columns(64); }
/* Without it the system would save 8 KB at each change of threads. */
static OX_INLINE void amx_release(void) { __asm__ volatile("tilerelease" ::); }
#else

#if defined(_MSC_VER) && !defined(__clang__)
#define OX_THREAD_LOCAL __declspec(thread)
#else
#define OX_THREAD_LOCAL __thread
#endif
/* The registers of a thread. Using them without a shape ends the process, as with the instructions; so does a shape
 * that was not released. */
typedef union { uint8_t bytes[1024]; uint32_t sums[256]; } ox_tile_register;
static OX_THREAD_LOCAL struct { int columns; ox_tile_register tile[8]; } ox_tiles;

static inline ox_tile_register *ox_tile(int t) {
    if (!ox_tiles.columns) abort();
    return &ox_tiles.tile[t];
}
static inline void amx_columns(int k) {
    if (!ox_tiles.columns) abort();
    memset(&ox_tiles, 0, sizeof ox_tiles);
    ox_tiles.columns = k;
}
static inline void amx_configure(void) {
    if (ox_tiles.columns) abort();
    ox_tiles.columns = 64;
    amx_columns(64);
}
static inline void amx_release(void) { ox_tiles.columns = 0; }
static inline void amx_zero(int c) { memset(ox_tile(c), 0, 1024); }
static inline void amx_load(int t, const void *p, ptrdiff_t stride) {
    const int rows = t < 6 ? 16 : ox_tiles.columns / 4, n = t < 6 ? ox_tiles.columns : 64;
    for (int row = 0; row < rows; row++) memcpy(ox_tile(t)->bytes + 64 * row, (const uint8_t *)p + row * stride, n);
}
static inline void amx_store(int c, void *p) { memcpy(p, ox_tile(c), 1024); }
static inline void ox_tile_dot(int c, int a, int b, int is_signed) {
    uint32_t *sums = ox_tile(c)->sums;
    const uint8_t *x = ox_tile(a)->bytes, *w = ox_tile(b)->bytes;
    for (int t = 0; t < 16; t++)
        for (int k = 0; k < ox_tiles.columns; k++) {
            const int code = is_signed ? (int8_t)x[64 * t + k] : x[64 * t + k];
            for (int r = 0; r < 16; r++)
                sums[16 * t + r] += (uint32_t)(code * (int8_t)w[64 * (k / 4) + 4 * r + k % 4]);
        }
}
static inline void amx_dot_us(int c, int a, int b) { ox_tile_dot(c, a, b, 0); }
static inline void amx_dot_ss(int c, int a, int b) { ox_tile_dot(c, a, b, 1); }
#endif

/* Products of two A (the second only `if two`) and two B: registers 0 to 3 are the sums. */
static OX_INLINE void amx_begin(const int two) {
    amx_zero(0);
    amx_zero(1);
    if (two) {
        amx_zero(2);
        amx_zero(3);
    }
}
#define OX_AMX_STEP(dot) \
    amx_load(4, a, stride); \
    amx_load(6, b, 64); \
    amx_load(7, b2, 64); \
    dot(0, 4, 6); \
    dot(1, 4, 7); \
    if (two) { \
        amx_load(5, a2, stride); \
        dot(2, 5, 6); \
        dot(3, 5, 7); \
    }
/* Adds K columns: rows of A are `stride` bytes apart. Unsigned bytes of A times signed ones, or signed ones. */
static OX_INLINE void amx_add_us(const int two, const int8_t *a, const int8_t *a2, ptrdiff_t stride, const uint8_t *b,
                                 const uint8_t *b2) {
    OX_AMX_STEP(amx_dot_us)
}
static OX_INLINE void amx_add_ss(const int two, const int8_t *a, const int8_t *a2, ptrdiff_t stride, const uint8_t *b,
                                 const uint8_t *b2) {
    OX_AMX_STEP(amx_dot_ss)
}
/* The sums (1 or 2 of A, 2 of B, 16 tokens, 16 rows). */
static OX_INLINE void amx_end(const int two, int32_t *sums) {
    amx_store(0, sums);
    amx_store(1, sums + 256);
    if (two) {
        amx_store(2, sums + 512);
        amx_store(3, sums + 768);
    }
}

/* Codes without their excess times the scales of their rows (16 bits, each twice), 64 products p below 2^14 in
 * magnitude, as two bytes: p = 128 high + low. Both kinds of bytes are rows of B. */
static OX_INLINE void amx_split(u8x64 codes, i32x16 scales, const int excess, const int is_signed, uint8_t *high,
                                uint8_t *low) {
#if OX_AMX
    const __m512i bytes = _mm512_set1_epi16(255), bits = _mm512_set1_epi16(127), e = _mm512_set1_epi16((short)excess);
    __m512i p = is_signed ? _mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 8) : _mm512_and_si512(codes, bytes);
    __m512i q = is_signed ? _mm512_srai_epi16(codes, 8) : _mm512_srli_epi16(codes, 8);
    p = _mm512_mullo_epi16(_mm512_sub_epi16(p, e), scales);
    q = _mm512_mullo_epi16(_mm512_sub_epi16(q, e), scales);
    _mm512_storeu_si512(low, _mm512_or_si512(_mm512_and_si512(p, bits), _mm512_slli_epi16(_mm512_and_si512(q, bits), 8)));
    p = _mm512_and_si512(_mm512_srai_epi16(p, 7), bytes);
    _mm512_storeu_si512(high, _mm512_or_si512(p, _mm512_slli_epi16(_mm512_srai_epi16(q, 7), 8)));
#else
    (void)codes, (void)scales, (void)excess, (void)is_signed, (void)high, (void)low;
    abort(); /* not called */
#endif
}

#endif
