"""Block arithmetic: where the parts of a packed panel lie, and the tile bodies over them.

A panel is 16 rows of a matrix, interleaved: lane r of every vector belongs to row r. Quantized
panels hold their scales first (padded to 64 bytes), then their codes; a vector of codes holds for
each lane four values that are consecutive along the row.

    f32 f16 bf16   [cols][16]
    c8             f16 scale [cols/32][16]            | code i8 [cols/4][16][4]
    c4             f16 scale [cols/32][16]            | code    [cols/32][4][16][4]: byte j of vector v is
                                                        value 4v+j (low nibble) and 16+4v+j (high)
    k4             per 256: f16 d[16], f16 dmin[16], scale u8 [8][16], min u8 [4][16][2], codes as c4 [8]
    k6             per 256: f16 d[16], scale i8 [8][16][2] | per 32: nibbles as c4, then 2-bit planes [2][16][4]

A tile is one panel times T tokens. Each lane walks its row in order: integers inside a block are
exact, then one float fma per block, so a row's value depends on nothing but the row and the token.
"""

from libc.stdint cimport int8_t, int32_t, uint8_t, uint16_t

from simd cimport *

cdef enum:
    L_F32 = 0
    L_F16 = 1
    L_BF16 = 2
    L_C8 = 3
    L_C4 = 4
    L_K4 = 5
    L_K6 = 6
    N_LAYOUTS = 7

cdef enum:
    K4_BYTES = 2368  # one superblock of 256 columns, all 16 rows
    K4_HEADER = 320
    K6_HEADER = 288
    K6_CODES = 3072


cdef inline Py_ssize_t padded(Py_ssize_t n) noexcept nogil:
    return (n + 63) & ~<Py_ssize_t>63


cdef inline Py_ssize_t scales_bytes(int layout, Py_ssize_t cols) noexcept nogil:
    """Bytes of a panel's scale region; the codes start there."""
    if layout == L_C8 or layout == L_C4:
        return padded(cols // 32 * 32)
    if layout == L_K6:
        return padded(cols // 256 * K6_HEADER)
    return 0


cdef inline Py_ssize_t panel_bytes(int layout, Py_ssize_t cols) noexcept nogil:
    """Bytes of one panel of 16 rows."""
    if layout == L_F32:
        return cols * 64
    if layout == L_F16 or layout == L_BF16:
        return cols * 32
    if layout == L_C8:
        return scales_bytes(layout, cols) + cols * 16
    if layout == L_C4:
        return scales_bytes(layout, cols) + cols * 8
    if layout == L_K4:
        return cols // 256 * K4_BYTES
    return scales_bytes(layout, cols) + cols // 256 * K6_CODES


cdef inline int block_cols(int layout) noexcept nogil:
    """A row must be a whole number of these columns."""
    if layout <= L_BF16:
        return 1
    return 32 if layout <= L_C4 else 256


# Activations of a tile of T tokens, interleaved as the tile reads them.
cdef struct Tile:
    const float* values      # (cols, T), float layouts
    const int8_t* codes      # (cols / 4, T, 4)
    const float* scale       # (blocks, T), a block being 32 or 256 columns
    const int32_t* nsum      # (cols / 32, T): minus the sum of a block's codes
    const int32_t* sums16    # (cols / 32, T): sums over 16 columns, in pairs of int16
    const int32_t* sums32    # (cols / 64, T): sums over 32 columns, in pairs of int16


cdef inline f32x16 float_load(const int layout, const uint8_t* p, Py_ssize_t k) noexcept nogil:
    if layout == L_F32:
        return f32_load(<const float*>p + 16 * k)
    if layout == L_F16:
        return f32_load_f16(<const uint16_t*>p + 16 * k)
    return f32_load_bf16(<const uint16_t*>p + 16 * k)


cdef inline void float_tile(const int layout, const int P, const int T, const uint8_t* panel, Py_ssize_t stride,
                            Py_ssize_t cols, const Tile* a, f32x16* acc) noexcept nogil:
    """P panels, ``stride`` bytes apart, times T tokens: acc (P, T). Several panels hide the fma's latency."""
    cdef Py_ssize_t k
    cdef int p, t
    cdef f32x16 w
    for p in range(P):
        for t in range(T):
            acc[p * T + t] = f32_zero()
    for k in range(cols):
        for p in range(P):
            w = float_load(layout, panel + p * stride, k)
            for t in range(T):
                acc[p * T + t] = f32_fma(w, f32_set1(a.values[k * T + t]), acc[p * T + t])


cdef inline void code_step(const int T, i32x16* part, u8x64 w, const int8_t* a) noexcept nogil:
    cdef int t
    for t in range(T):
        part[t] = u7_dot(part[t], w, u8_set4(a + 4 * t))


cdef inline void nibbles_32(const int T, i32x16* part, const uint8_t* codes, const int8_t* a) noexcept nogil:
    """Adds 32 columns of 4-bit codes times T tokens."""
    cdef int v
    cdef u8x64 raw
    for v in range(4):
        raw = u8_load(codes + 64 * v)
        code_step(T, part, u8_low4(raw), a + 4 * T * v)
        code_step(T, part, u8_high4(raw), a + 4 * T * (v + 4))


cdef inline void c8_tile(const int T, const uint8_t* panel, Py_ssize_t cols, const Tile* a, f32x16* acc) noexcept nogil:
    cdef Py_ssize_t b, n = cols // 32
    cdef const uint16_t* scale = <const uint16_t*>panel
    cdef const uint8_t* codes = panel + scales_bytes(L_C8, cols)
    cdef const int8_t* x = a.codes
    cdef i32x16 part[8]
    cdef f32x16 d
    cdef u8x64 w
    cdef int g, t
    for t in range(T):
        acc[t] = f32_zero()
    for b in range(n):
        for t in range(T):
            part[t] = i32_shl(i32_set1(a.nsum[b * T + t]), OX_S8_SHIFT) if OX_S8_SHIFT else i32_zero()
        for g in range(8):
            w = u8_load(codes + 512 * b + 64 * g)
            for t in range(T):
                part[t] = s8_dot(part[t], w, u8_set4(x + (b * 8 + g) * 4 * T + 4 * t))
        d = f32_load_f16(scale + 16 * b)
        for t in range(T):
            acc[t] = f32_fma(f32_from_i32(part[t]), f32_mul(d, f32_set1(a.scale[b * T + t])), acc[t])


cdef inline void c4_tile(const int T, const uint8_t* panel, Py_ssize_t cols, const Tile* a, f32x16* acc) noexcept nogil:
    cdef Py_ssize_t b, n = cols // 32
    cdef const uint16_t* scale = <const uint16_t*>panel
    cdef const uint8_t* codes = panel + scales_bytes(L_C4, cols)
    cdef i32x16 part[8]
    cdef f32x16 d
    cdef int t
    for t in range(T):
        acc[t] = f32_zero()
    for b in range(n):
        for t in range(T):
            part[t] = i32_shl(i32_set1(a.nsum[b * T + t]), 3)  # codes are 8 too high
        nibbles_32(T, part, codes + 256 * b, a.codes + b * 32 * T)
        d = f32_load_f16(scale + 16 * b)
        for t in range(T):
            acc[t] = f32_fma(f32_from_i32(part[t]), f32_mul(d, f32_set1(a.scale[b * T + t])), acc[t])


cdef inline void k4_tile(const int T, const uint8_t* panel, Py_ssize_t cols, const Tile* a, f32x16* acc) noexcept nogil:
    cdef Py_ssize_t b, n = cols // 256
    cdef const uint8_t* block
    cdef i32x16 part[8]
    cdef i32x16 total[8]
    cdef i32x16 least[8]
    cdef i32x16 scale
    cdef f32x16 d, dmin, da
    cdef int s, t
    for t in range(T):
        acc[t] = f32_zero()
    for b in range(n):
        block = panel + b * K4_BYTES
        for t in range(T):
            total[t] = i32_zero()
        for s in range(8):
            for t in range(T):
                part[t] = i32_zero()
            nibbles_32(T, part, block + K4_HEADER + 256 * s, a.codes + (b * 8 + s) * 32 * T)
            scale = i32_load_u8(block + 64 + 16 * s)
            for t in range(T):
                total[t] = i32_add(total[t], i32_mul(part[t], scale))
        for t in range(T):
            least[t] = i32_zero()
        for s in range(4):
            scale = i16_load_u8(block + 192 + 32 * s)
            for t in range(T):
                least[t] = i16_dot(least[t], scale, i32_set1(a.sums32[(b * 4 + s) * T + t]))
        d = f32_load_f16(<const uint16_t*>block)
        dmin = f32_sub(f32_zero(), f32_load_f16(<const uint16_t*>block + 16))
        for t in range(T):
            da = f32_set1(a.scale[b * T + t])
            acc[t] = f32_fma(f32_from_i32(total[t]), f32_mul(d, da), acc[t])
            acc[t] = f32_fma(f32_from_i32(least[t]), f32_mul(dmin, da), acc[t])


cdef inline void k6_tile(const int T, const uint8_t* panel, Py_ssize_t cols, const Tile* a, f32x16* acc) noexcept nogil:
    cdef Py_ssize_t b, n = cols // 256
    cdef const uint8_t* header
    cdef const uint8_t* codes = panel + scales_bytes(L_K6, cols)
    cdef const uint8_t* c
    cdef const int8_t* x
    cdef i32x16 part[8]
    cdef i32x16 total[8]
    cdef i32x16 pairs, scale
    cdef u8x64 plane
    cdef f32x16 d
    cdef int s, v, t
    for t in range(T):
        acc[t] = f32_zero()
    for b in range(n):
        header = panel + b * K6_HEADER
        for t in range(T):
            total[t] = i32_zero()
        for s in range(8):
            # codes are 32 too high: 16 columns share a scale, so take scale * 32 * sum off
            pairs = i16_load_i8(<const int8_t*>header + 32 + 32 * s)
            c = codes + b * K6_CODES + 384 * s
            x = a.codes + (b * 8 + s) * 32 * T
            for t in range(T):
                part[t] = i32_zero()
            plane = u8_load(c + 256)
            for v in range(4):
                code_step(T, part, u8_join2(u8_low4(u8_load(c + 64 * v)), plane, v), x + 4 * T * v)
            scale = i32_sar(i32_shl(pairs, 16), 16)
            for t in range(T):
                total[t] = i32_add(total[t], i32_mul(part[t], scale))
                part[t] = i32_zero()
            plane = u8_load(c + 320)
            for v in range(4):
                code_step(T, part, u8_join2(u8_high4(u8_load(c + 64 * v)), plane, v), x + 4 * T * (v + 4))
            scale = i32_sar(pairs, 16)
            for t in range(T):
                total[t] = i32_add(total[t], i32_mul(part[t], scale))
        for t in range(T):
            part[t] = i32_zero()
        for s in range(8):
            pairs = i16_load_i8(<const int8_t*>header + 32 + 32 * s)
            for t in range(T):
                part[t] = i16_dot(part[t], pairs, i32_set1(a.sums16[(b * 8 + s) * T + t]))
        d = f32_load_f16(<const uint16_t*>header)
        for t in range(T):
            total[t] = i32_sub(total[t], i32_shl(part[t], 5))
            acc[t] = f32_fma(f32_from_i32(total[t]), f32_mul(d, f32_set1(a.scale[b * T + t])), acc[t])


cdef inline void code_tile(const int layout, const int T, const uint8_t* panel, Py_ssize_t cols,
                           const Tile* a, f32x16* acc) noexcept nogil:
    """One panel of a quantized layout times T tokens: acc (T)."""
    if layout == L_C8:
        c8_tile(T, panel, cols, a, acc)
    elif layout == L_C4:
        c4_tile(T, panel, cols, a, acc)
    elif layout == L_K4:
        k4_tile(T, panel, cols, a, acc)
    else:
        k6_tile(T, panel, cols, a, acc)
