"""Block arithmetic: where the parts of a packed panel lie, and the tile bodies over them.

A panel is 16 rows of a matrix, interleaved: lane r of every vector belongs to row r. A quantized panel is
its blocks one after another, each with its scales (the header) before its codes, so that reading it is one
stream; two blocks share a group where that keeps the codes on cache lines. A layout is a width of codes and
a kind of scales:

    codes of 32 columns, 64 bytes per bit; byte j of a lane, group g: value 4g + j of the lane's row
      8 bits      vector g
      4 bits      vector g % 4, low nibbles for g < 4, high ones else
      5, 6 bits   the same, then the upper bits: bit g of every byte, or bits 2(g % 4).. of vector g / 4
      2 bits      bits 2(g % 4).. of vector g / 4
      3 bits      the same, then bit g of every byte for the upper bit
      1 bit       bit g of every byte
    scales of a block of 32 columns
      f16 d[16] (bf16 for e4), and f16 m[16] for m4 and m5
    scales of a block of 256 columns, with sub-blocks of 16 (k2 k3 k6 g1 g2) or 32
      f16 d[16], f16 dmin[16] where there are minima, then pairs of int8: scales [S / 2][16][2], minima
      the same; k2 has both in one byte (low nibble, high nibble)
    scales of a block of 256 columns without sub-blocks (s2 s8)
      f16 d[16], for s8 f32 d[16]

Codes are what the format's are, or stand in a table of 16 values: those of IQ4_NL in their own, signed; the
others, which all lie in -64..63, 64 too high, so that they are 7-bit codes like most.

A tile is one panel times T tokens. Each lane walks its row in order: integers inside a block are
exact, then one or two float fmas per block, so a row's value depends on nothing but the row and the token.
"""

from libc.stdint cimport int8_t, int32_t, uint8_t, uint16_t

from simd cimport *

cdef enum:
    L_F32 = 0
    L_F16 = 1
    L_BF16 = 2
    L_C8 = 3   # blocks of 32 from here on; codes minus half their range
    L_C4 = 4
    L_C5 = 5
    L_C1 = 6   # twice the code minus 1
    L_T4 = 7   # codes are looked up in a table: IQ4_NL
    L_E4 = 8   # MXFP4
    L_M4 = 9   # codes plus a minimum
    L_M5 = 10
    L_K2 = 11  # blocks of 256 from here on; minima
    L_K4 = 12
    L_K5 = 13
    L_K3 = 14  # codes minus half their range
    L_K6 = 15
    L_KT = 16  # codes are looked up in a table: IQ4_XS
    L_G1 = 17  # IQ1
    L_G2 = 18  # IQ2
    L_G3 = 19  # IQ3_XXS
    L_G3S = 20  # IQ3_S
    L_S2 = 21  # no sub-blocks; codes minus 1
    L_S8 = 22
    N_LAYOUTS = 23
    BIAS = 64  # what the entries of BIASED tables are too high by

# The values of the table layouts (ggml-common.h: kvalues_iq4nl, kvalues_mxfp4, and what the grids are made of).
# IQ2 and IQ3 have magnitudes, then the same negative. IQ1 has 8 * (-1, 0, 1) + 1, then 8 * (-1, 0, 1) - 1.
cdef extern from *:
    """
    static const signed char OX_IQ4_VALUES[16] = {
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    #define OX_BIASED(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) { \
        64 + a, 64 + b, 64 + c, 64 + d, 64 + e, 64 + f, 64 + g, 64 + h, \
        64 + i, 64 + j, 64 + k, 64 + l, 64 + m, 64 + n, 64 + o, 64 + p}
    static const signed char OX_E4_VALUES[16] = OX_BIASED(
        0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    static const signed char OX_G1_VALUES[16] = OX_BIASED(-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    static const signed char OX_G2_VALUES[16] = OX_BIASED(8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    static const signed char OX_G3_VALUES[16] = OX_BIASED(
        4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62);
    static const signed char OX_G3S_VALUES[16] = OX_BIASED(
        1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15);
    """
    const int8_t* IQ4_VALUES "OX_IQ4_VALUES"
    const int8_t* E4_VALUES "OX_E4_VALUES"
    const int8_t* G1_VALUES "OX_G1_VALUES"
    const int8_t* G2_VALUES "OX_G2_VALUES"
    const int8_t* G3_VALUES "OX_G3_VALUES"
    const int8_t* G3S_VALUES "OX_G3S_VALUES"

# --- facts; the compiler folds them, since a tile body's layout is a constant -------------------------

cdef inline int form_of(const int layout) noexcept nogil:
    """Columns per activation scale: 0 for floats, 32 or 256; a row is a whole number of them."""
    return 0 if layout <= L_BF16 else 32 if layout <= L_M5 else 256


cdef inline int code_bits(const int layout) noexcept nogil:
    if layout == L_C8 or layout == L_S8:
        return 8
    if layout == L_K6:
        return 6
    if layout == L_C5 or layout == L_M5 or layout == L_K5:
        return 5
    if layout == L_K3 or layout == L_G1 or layout == L_G2:
        return 3
    if layout == L_K2 or layout == L_S2:
        return 2
    return 1 if layout == L_C1 else 4


cdef inline bint has_biased_table(const int layout) noexcept nogil:
    return layout == L_E4 or L_G1 <= layout <= L_G3S


cdef inline const int8_t* table_of(const int layout) noexcept nogil:
    """16 values, or NULL where codes are values."""
    if layout == L_T4 or layout == L_KT:
        return IQ4_VALUES
    if layout == L_E4:
        return E4_VALUES
    if layout == L_G1:
        return G1_VALUES
    if layout == L_G2:
        return G2_VALUES
    if layout == L_G3:
        return G3_VALUES
    return G3S_VALUES if layout == L_G3S else NULL


cdef inline bint has_signed_codes(const int layout) noexcept nogil:
    return layout == L_C8 or layout == L_S8 or layout == L_T4 or layout == L_KT


cdef inline int code_excess(const int layout) noexcept nogil:
    """What the format's codes, or the table's values, are too high by."""
    if has_biased_table(layout):
        return BIAS
    if layout == L_C4:
        return 8
    if layout == L_C5:
        return 16
    if layout == L_K3:
        return 4
    if layout == L_K6:
        return 32
    return 1 if layout == L_C1 or layout == L_S2 else 0


cdef inline int dot_excess(const int layout) noexcept nogil:
    """What the numbers that are multiplied are too high by."""
    if has_signed_codes(layout):
        return 1 << OX_S8_SHIFT if OX_S8_SHIFT else 0
    return code_excess(layout)


cdef inline float unit_of(const int layout) noexcept nogil:
    """What a block's scale is multiplied with: a power of two, so that nothing is rounded."""
    if layout == L_G1 or layout == L_G2:
        return 0.125
    return 0.25 if layout == L_G3 else 1.0


cdef inline bint has_minima(const int layout) noexcept nogil:
    return L_M4 <= layout <= L_K5


cdef inline bint has_subs(const int layout) noexcept nogil:
    return L_K2 <= layout <= L_G3S


cdef inline bint has_subs_of_16(const int layout) noexcept nogil:
    return layout == L_K2 or layout == L_K3 or layout == L_K6 or layout == L_G1 or layout == L_G2


cdef inline int pair_bytes(const int layout) noexcept nogil:
    """Bytes of a superblock's sub-block scales, all 16 rows."""
    return 0 if not has_subs(layout) else 256 if has_subs_of_16(layout) else 128


cdef inline int header_bytes(const int layout) noexcept nogil:
    """Bytes of a block's scales, all 16 rows."""
    cdef int halves = 64 if has_minima(layout) or layout == L_S8 else 32
    if layout <= L_M5:
        return halves
    return halves + pair_bytes(layout) * (2 if has_minima(layout) and layout != L_K2 else 1)


cdef inline int group_blocks(const int layout) noexcept nogil:
    """Blocks whose headers stand together, so that they fill whole cache lines of 64 bytes."""
    return 2 if header_bytes(layout) % 64 else 1


cdef inline Py_ssize_t block_bytes(const int layout) noexcept nogil:
    """Bytes of a block, header and codes."""
    return header_bytes(layout) + form_of(layout) * 2 * code_bits(layout)


cdef inline Py_ssize_t header_at(const int layout, Py_ssize_t b) noexcept nogil:
    """Where the header of block ``b`` of a panel begins."""
    cdef Py_ssize_t first = b - b % group_blocks(layout)
    return first * block_bytes(layout) + (b - first) * header_bytes(layout)


cdef inline Py_ssize_t codes_at(const int layout, Py_ssize_t b) noexcept nogil:
    """Where the codes of block ``b`` of a panel begin."""
    cdef Py_ssize_t first = b - b % group_blocks(layout)
    return (first * block_bytes(layout) + group_blocks(layout) * header_bytes(layout)
            + (b - first) * form_of(layout) * 2 * code_bits(layout))


cdef inline Py_ssize_t panel_bytes(int layout, Py_ssize_t cols) noexcept nogil:
    """Bytes of one panel of 16 rows: up to the end of the last block's codes."""
    if layout <= L_BF16:
        return cols * (64 if layout == L_F32 else 32)
    return codes_at(layout, cols // form_of(layout) - 1) + form_of(layout) * 2 * code_bits(layout)


cdef inline int block_cols(int layout) noexcept nogil:
    """A row must be a whole number of these columns."""
    return max(1, form_of(layout))


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
            ox_prefetch(panel + p * stride + (64 if layout == L_F32 else 32) * k + OX_AHEAD)
            for t in range(T):
                acc[p * T + t] = f32_fma(w, f32_set1(a.values[k * T + t]), acc[p * T + t])


cdef inline u8x64 code_group(const int layout, const uint8_t* c, const int g) noexcept nogil:
    """Group ``g`` of 8 of 32 columns' codes."""
    cdef u8x64 w
    if code_bits(layout) == 8:
        return u8_load(c + 64 * g)
    if code_bits(layout) >= 4:
        w = u8_load(c + 64 * (g & 3))
        w = u8_low4(w) if g < 4 else u8_high4(w)
        if code_bits(layout) == 5:
            return u8_or(w, u8_move(u8_load(c + 256), g, 4, 0x10))
        if code_bits(layout) == 6:
            return u8_or(w, u8_move(u8_load(c + 256 + 64 * (g >> 2)), 2 * (g & 3), 4, 0x30))
        return w if table_of(layout) == NULL else u8_lookup(table_of(layout), w)
    if code_bits(layout) == 1:
        return u8_move(u8_load(c), g, 1, 0x02)
    w = u8_move(u8_load(c + 64 * (g >> 2)), 2 * (g & 3), 0, 0x03)
    if code_bits(layout) == 3:
        w = u8_or(w, u8_move(u8_load(c + 128), g, 2, 0x04))
    return w if table_of(layout) == NULL else u8_lookup(table_of(layout), w)


cdef inline int groups_in_16_bits(const int layout) noexcept nogil:
    """Groups whose products are added in 16 bits before they are widened, where the target gains by it:
    each adds two products of a code below 2^bits and one up to 127."""
    if not OX_SUMS_OF_16 or has_signed_codes(layout) or has_biased_table(layout):
        return 1
    return min(4 if has_subs_of_16(layout) else 8, 1 << max(0, 7 - code_bits(layout)))


cdef inline void add_group(const int layout, const int T, i32x16* part, i32x16* run, const uint8_t* c, const int g,
                           const int8_t* x) noexcept nogil:
    """Adds 4 columns times T tokens, through ``run`` where several groups are added in 16 bits first."""
    cdef u8x64 w = code_group(layout, c, g)
    cdef u8x64 v
    cdef int held = groups_in_16_bits(layout)
    cdef int t
    for t in range(T):
        v = u8_set4(x + 4 * (g * T + t))
        if has_signed_codes(layout):
            part[t] = s8_dot(part[t], w, v)
        elif held == 1:
            part[t] = u7_dot(part[t], w, v)
        else:
            run[t] = u7_dot16(run[t] if g % held else i32_zero(), w, v)
            if g % held == held - 1:
                part[t] = i16_dot(part[t], run[t], i32_set1(0x00010001))


cdef inline void prefetch(const uint8_t* p, const int n) noexcept nogil:
    """Asks for the ``n`` bytes that stand some blocks further on, be it in the next panel."""
    cdef int i
    for i in range(0, n, 64):
        ox_prefetch(p + OX_AHEAD + i)


cdef inline void add_first_16(const int layout, const int T, i32x16* part, i32x16* run, const uint8_t* c,
                              const int8_t* x) noexcept nogil:
    add_group(layout, T, part, run, c, 0, x)
    add_group(layout, T, part, run, c, 1, x)
    add_group(layout, T, part, run, c, 2, x)
    add_group(layout, T, part, run, c, 3, x)


cdef inline void add_last_16(const int layout, const int T, i32x16* part, i32x16* run, const uint8_t* c,
                             const int8_t* x) noexcept nogil:
    add_group(layout, T, part, run, c, 4, x)
    add_group(layout, T, part, run, c, 5, x)
    add_group(layout, T, part, run, c, 6, x)
    add_group(layout, T, part, run, c, 7, x)


cdef inline f32x16 block_scale(const int layout, const uint8_t* header) noexcept nogil:
    cdef f32x16 d
    if layout == L_S8:
        return f32_load(<const float*>header)
    if layout == L_E4:
        return f32_load_bf16(<const uint16_t*>header)
    d = f32_load_f16(<const uint16_t*>header)
    return d if unit_of(layout) == 1 else f32_mul(d, f32_set1(unit_of(layout)))


cdef inline void block_tile(const int layout, const int T, const uint8_t* panel, Py_ssize_t cols, const Tile* a,
                            f32x16* acc) noexcept nogil:
    """Layouts with blocks of 32 columns: acc (T)."""
    cdef Py_ssize_t b
    cdef const uint8_t* header
    cdef const uint8_t* c
    cdef const int8_t* x = a.codes
    cdef i32x16 part[8]
    cdef i32x16 run[8]
    cdef f32x16 d, m, da
    cdef int t
    for t in range(T):
        acc[t] = f32_zero()
    for b in range(cols // 32):
        header = panel + header_at(layout, b)
        c = panel + codes_at(layout, b)
        prefetch(header, header_bytes(layout))
        prefetch(c, 64 * code_bits(layout))
        for t in range(T):
            # what the codes are too high by, times minus the sum of the activations
            part[t] = i32_set1(a.nsum[b * T + t] * dot_excess(layout)) if dot_excess(layout) else i32_zero()
        add_first_16(layout, T, part, run, c, x)
        if T == 1:  # a second chain of sums hides the latency of the first
            part[1] = i32_zero()
            add_last_16(layout, T, part + 1, run, c, x)
            part[0] = i32_add(part[0], part[1])
        else:
            add_last_16(layout, T, part, run, c, x)
        d = block_scale(layout, header)
        if has_minima(layout):
            m = f32_sub(f32_zero(), f32_load_f16(<const uint16_t*>header + 16))
        for t in range(T):
            da = f32_set1(a.scale[b * T + t])
            acc[t] = f32_fma(f32_from_i32(part[t]), f32_mul(d, da), acc[t])
            if has_minima(layout):
                acc[t] = f32_fma(f32_from_i32(i32_set1(a.nsum[b * T + t])), f32_mul(m, da), acc[t])
        x = x + 32 * T


cdef inline i32x16 scale_pairs(const int layout, const uint8_t* header, const int i) noexcept nogil:
    """The ``i``-th pair of sub-block scales as 16-bit integers."""
    if not has_subs(layout):
        return i32_set1(0x00010001)
    if layout == L_K2:
        return i16_low4(i16_load_u8(header + 64 + 32 * i))
    return i16_load_i8(<const int8_t*>header + (64 if has_minima(layout) else 32) + 32 * i)


cdef inline i32x16 minimum_pairs(const int layout, const uint8_t* header, const int i) noexcept nogil:
    if layout == L_K2:
        return i16_high4(i16_load_u8(header + 64 + 32 * i))
    return i16_load_i8(<const int8_t*>header + 64 + pair_bytes(layout) + 32 * i)


cdef inline i32x16 add_sub(const int layout, i32x16 total, i32x16 part, i32x16 scale) noexcept nogil:
    """Adds a sub-block's sum, times its scale if it has one."""
    return i32_add(total, i32_mul(part, scale) if has_subs(layout) else part)


cdef inline void super_tile(const int layout, const int T, const uint8_t* panel, Py_ssize_t cols, const Tile* a,
                            f32x16* acc) noexcept nogil:
    """Layouts with blocks of 256 columns, with integer scales of 16 or 32 or without: acc (T)."""
    cdef Py_ssize_t b
    cdef const uint8_t* header
    cdef const uint8_t* c
    cdef const int8_t* x = a.codes
    cdef const int32_t* sums = a.sums16 if has_subs_of_16(layout) else a.sums32
    cdef i32x16 part[8]
    cdef i32x16 run[8]
    cdef i32x16 total[8]
    cdef i32x16 pairs, even, odd
    cdef f32x16 d, m, da
    cdef int i, t
    cdef int n_pairs = 8 if has_subs_of_16(layout) else 4
    for t in range(T):
        acc[t] = f32_zero()
    for b in range(cols // 256):
        header = panel + header_at(layout, b)
        c = panel + codes_at(layout, b)
        prefetch(header, header_bytes(layout))
        for t in range(T):
            total[t] = i32_zero()
        for i in range(n_pairs):
            pairs = scale_pairs(layout, header, i)
            prefetch(c, (64 if has_subs_of_16(layout) else 128) * code_bits(layout))
            even = i32_sar(i32_shl(pairs, 16), 16)
            odd = i32_sar(pairs, 16)
            for t in range(T):
                part[t] = i32_zero()
            add_first_16(layout, T, part, run, c, x)
            if not has_subs_of_16(layout):
                add_last_16(layout, T, part, run, c, x)
                c = c + 64 * code_bits(layout)
                x = x + 32 * T
            for t in range(T):
                total[t] = add_sub(layout, total[t], part[t], even)
                part[t] = i32_zero()
            if not has_subs_of_16(layout):
                add_first_16(layout, T, part, run, c, x)
            add_last_16(layout, T, part, run, c, x)
            for t in range(T):
                total[t] = add_sub(layout, total[t], part[t], odd)
            c = c + 64 * code_bits(layout)
            x = x + 32 * T
        d = block_scale(layout, header)
        if dot_excess(layout) or has_minima(layout):
            for t in range(T):
                part[t] = i32_zero()
            for i in range(n_pairs):
                pairs = minimum_pairs(layout, header, i) if has_minima(layout) else scale_pairs(layout, header, i)
                for t in range(T):
                    part[t] = i16_dot(part[t], pairs, i32_set1(sums[(b * n_pairs + i) * T + t]))
        for t in range(T):
            da = f32_set1(a.scale[b * T + t])
            if dot_excess(layout):
                total[t] = i32_sub(total[t], i32_mul(part[t], i32_set1(dot_excess(layout))))
            acc[t] = f32_fma(f32_from_i32(total[t]), f32_mul(d, da), acc[t])
            if has_minima(layout):
                m = f32_sub(f32_zero(), f32_load_f16(<const uint16_t*>header + 16))
                acc[t] = f32_fma(f32_from_i32(part[t]), f32_mul(m, da), acc[t])


cdef inline void code_tile(const int layout, const int T, const uint8_t* panel, Py_ssize_t cols,
                           const Tile* a, f32x16* acc) noexcept nogil:
    """One panel of a quantized layout times T tokens: acc (T)."""
    if layout <= L_M5:
        block_tile(layout, T, panel, cols, a, acc)
    else:
        super_tile(layout, T, panel, cols, a, acc)
