"""The tile bodies: one packed panel times T tokens.

Each lane walks its row in order: integers inside a block are exact, then one or two float fmas per block, so a
product of a row and a token depends on nothing else.

In each body the layout and T are constants, so the compiler removes the branches that depend on them.
"""

from libc.stdint cimport int8_t, int32_t, uint8_t, uint16_t

from oxillama._kernels.packing.formats cimport *
from oxillama._kernels.packing.layouts cimport *
from oxillama._kernels.packing.unpack cimport E5M3_UNIT
from oxillama._kernels.simd.bf16 cimport paired
from oxillama._kernels.simd.simd cimport *

cdef enum:
    FAR_AHEAD = 8192  # in place of OX_AHEAD where tiles multiply for as long as the memory takes to read
    ROW_PAD = 64      # bytes between the tokens of r8 and b8: rows of 2^n bytes would share a few sets of the cache
    MAX_TILE = 24   # panels * tokens: accumulators of a tile
    MAX_SUMS = 24
    HALF_COLS = 256  # columns of a panel of rows that one half multiplies before the other half does


# Activations of a tile of T tokens, interleaved as the tile reads them.
cdef struct Tile:
    const float* values      # (cols, T) of float layouts; of pairs bf16 (cols / 2, T, 2), or float32 (cols, T)
    # AMX takes codes as (cols / 64, 16, 64) or (cols / 32, 16, 32), OX_MATRIX as (cols / 8, T, 8).
    const int8_t* codes      # (cols / 4, T, 4); of r8 and b8 (T, cols + ROW_PAD)
    const float* scale       # (blocks, T), a block being 32 or 256 columns; of r8 and b8 (T, spans)
    const int32_t* nsum      # (cols / 32, T): minus the sum of a block's codes
    const int32_t* nsum16    # (cols / 16, T): minus the sum of 16 codes
    const int32_t* sums16    # (cols / 32, T): sums over 16 columns, in pairs of int16
    const int32_t* sums32    # (cols / 64, T): sums over 32 columns, in pairs of int16


# Some panels of one matrix times one tile of tokens.
cdef struct Job:
    const uint8_t* data
    Py_ssize_t stride, rows, cols
    Py_ssize_t first, last    # panels
    Tile tile
    float* out                # row 0 of the matrix, for the first token of the tile
    Py_ssize_t ld             # floats between tokens in out
    int done                  # tokens at the start of the tile whose results another tile writes
    const float* bias
    float scale               # factor of the whole matrix
    bint accumulate
    bint dots                 # activations of pairs are bf16, for the instruction that multiplies a pair
    bint cold                 # the panels come from memory, so the tile prefetches within them
    # what a cold tile computes once for all tokens: codes of the panels as bytes, (panels, cols / 4, 16, 4), or for AMX
    # codes times scales, 8192 bytes a block
    uint8_t* products
    const uint8_t* next       # this tile's share of later panels, which it prefetches
    Py_ssize_t step           # bytes of ``next`` to prefetch per 32 columns of a panel; 0: none


cdef inline const uint8_t* share(const Job* job, Py_ssize_t p) noexcept nogil:
    """The part of ``job.next`` that is prefetched together with panel ``p``."""
    return job.next + (p - job.first) * job.step * (job.cols // 32)


cdef inline const uint8_t* ask(const uint8_t* next, Py_ssize_t step) noexcept nogil:
    """Prefetches ``step`` bytes from ``next`` on, which are needed some panels later; returns their end."""
    cdef Py_ssize_t i
    for i in range(0, step, 64):
        ox_prefetch_far(next + i)
    return next + step


cdef inline void prefetch(const uint8_t* p, const int n) noexcept nogil:
    """Prefetches ``n`` bytes that lie OX_AHEAD bytes after ``p``, possibly in the next panel."""
    cdef int i
    for i in range(0, n, 64):
        ox_prefetch(p + OX_AHEAD + i)


cdef inline void put(f32x16 v, float* out, float scale, const float* bias, Py_ssize_t rows,
                     bint accumulate) noexcept nogil:
    """Writes up to 16 rows of one token: out = scale * v (+ bias), added to the old ``out`` if ``accumulate``."""
    cdef float lanes[16]
    cdef Py_ssize_t r
    v = f32_mul(v, f32_set1(scale))
    if rows >= 16:
        if bias != NULL:
            v = f32_add(v, f32_load(bias))
        if accumulate:
            v = f32_add(f32_load(out), v)
        f32_store(out, v)
        return
    f32_store(lanes, v)
    for r in range(rows):
        if bias != NULL:
            lanes[r] = lanes[r] + bias[r]
        out[r] = out[r] + lanes[r] if accumulate else lanes[r]


cdef inline void put_panel(const Job* job, const int T, Py_ssize_t p, int first, const f32x16* acc) noexcept nogil:
    """Writes the results of panel ``p`` for T tokens of the tile, from token ``first`` on."""
    cdef const float* bias = <const float*>NULL if job.bias == NULL else job.bias + 16 * p
    cdef int t
    for t in range(T):
        put(acc[t], job.out + (first + t) * job.ld + 16 * p, job.scale, bias, job.rows - 16 * p, job.accumulate)


# --- the integer sums and the scales of a block ---------------------------------------------------------

cdef inline u8x64 code_group(const int layout, const uint8_t* c, const int g) noexcept nogil:
    """Codes of columns 4 g .. 4 g + 3, of the 32 columns whose codes begin at ``c``."""
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


cdef inline u8x64 group_of(const int layout, const bint unpacked, const uint8_t* c, const int g) noexcept nogil:
    """`code_group` of a panel, or of unpacked codes."""
    return u8_load(c + 64 * g) if unpacked else code_group(layout, c, g)


cdef inline i32x16 code_dot(const int layout, const bint unpacked, i32x16 acc, u8x64 w, u8x64 x) noexcept nogil:
    """acc + products of the codes of 4 columns, as `group_of` returns them, and the codes of a token."""
    if has_signed_codes(layout) and not (unpacked and OX_S8_SHIFT):
        return s8_dot(acc, w, x)
    return u7_dot(acc, w, x)


cdef inline Py_ssize_t bytes_of_32(const int layout, const bint unpacked) noexcept nogil:
    """Bytes of the codes of 32 columns in 16 rows."""
    return 512 if unpacked else 64 * code_bits(layout)


cdef inline const uint8_t* codes_of(const bint unpacked, const Job* job, Py_ssize_t p) noexcept nogil:
    """The codes of panel ``p``. `code_place` is the offset of a block's codes."""
    return job.products + (p - job.first) * 16 * job.cols if unpacked else job.data + p * job.stride


cdef inline Py_ssize_t code_place(const int layout, const bint unpacked, Py_ssize_t b) noexcept nogil:
    return 16 * form_of(layout) * b if unpacked else codes_at(layout, b)


cdef inline void unpack_panels(const int layout, const bint shifted, const Job* job) noexcept nogil:
    """Unpacks the codes of the panels to bytes in ``job.products``, (panels, cols / 4, 16, 4).

    If ``shifted``, signed codes get the excess with which vectors multiply them.
    """
    cdef const uint8_t* c
    cdef u8x64 w
    cdef uint8_t* out = job.products
    cdef Py_ssize_t p, b
    cdef int _i, g
    for p in range(job.first, job.last):
        for b in range(job.cols // form_of(layout)):
            prefetch(job.data + p * job.stride + header_at(layout, b), header_bytes(layout))
            c = job.data + p * job.stride + codes_at(layout, b)
            for _i in range(form_of(layout) // 32):
                prefetch(c, 64 * code_bits(layout))
                for g in range(8):
                    w = code_group(layout, c, g)
                    u8_store(out + 64 * g, s8_shifted(w) if shifted and has_signed_codes(layout) else w)
                c = c + 64 * code_bits(layout)
                out = out + 512


cdef inline int groups_in_16_bits(const int layout) noexcept nogil:
    """Groups whose products are summed in 16 bits before they are widened, on targets where that is faster. Each
    group adds two products of a code below 2^bits and an activation up to 127."""
    if not OX_SUMS_OF_16 or has_signed_codes(layout) or has_biased_table(layout):
        return 1
    return min(4 if has_subs_of_16(layout) else 8, 1 << max(0, 7 - code_bits(layout)))


cdef inline void add_group(const int layout, const bint unpacked, const int T, i32x16* part, i32x16* run,
                           const uint8_t* c, const int g, const int8_t* x) noexcept nogil:
    """Adds 4 columns times T tokens to ``part``, or first to the 16-bit sums ``run`` of several groups."""
    cdef u8x64 w = group_of(layout, unpacked, c, g)
    cdef u8x64 v
    cdef int held = groups_in_16_bits(layout)
    cdef int t
    for t in range(T):
        v = u8_set4(x + 4 * (g * T + t))
        if held == 1:
            part[t] = code_dot(layout, unpacked, part[t], w, v)
        else:
            run[t] = u7_dot16(run[t] if g % held else i32_zero(), w, v)
            if g % held == held - 1:
                part[t] = i16_dot(part[t], run[t], i32_set1(0x00010001))


cdef inline bint in_matrix_order(const int T) noexcept nogil:
    """Whether the sums of T tokens are (2 halves, T / 2 pairs of tokens) vectors in matrix order (simd.h), until
    `to_rows`."""
    return OX_MATRIX and T > 1


cdef inline i32x16 per_token(const int T, const int32_t* values, const int t) noexcept nogil:
    """The value of each token for the ``t``-th of T vectors of sums."""
    return mm_pair(values + 2 * (t % (T // 2))) if in_matrix_order(T) else i32_set1(values[t])


cdef inline i32x16 per_row(const int T, i32x16 values, const int t) noexcept nogil:
    """The value of each row for the ``t``-th of T vectors of sums."""
    return mm_rows(t >= T // 2, values) if in_matrix_order(T) else values


cdef inline void to_rows(const int T, i32x16* part) noexcept nogil:
    """Arranges the sums of T tokens by token: vector t has the 16 rows of token t."""
    cdef i32x16 low[4]
    cdef i32x16 high[4]
    cdef int t
    if in_matrix_order(T):
        for t in range(T // 2):
            low[t], high[t] = part[t], part[T // 2 + t]
        for t in range(T // 2):
            part[2 * t] = mm_split(0, low[t], high[t])
            part[2 * t + 1] = mm_split(1, low[t], high[t])


cdef inline void add_8(const int layout, const bint unpacked, const int half, const int T, i32x16* part,
                       const uint8_t* c, const int g, const int8_t* x) noexcept nogil:
    """Adds 8 columns, groups ``g`` and ``g + 1``, of half a panel times T tokens to ``part`` in matrix order."""
    cdef u8x64 w = group_of(layout, unpacked, c, g)
    cdef u8x64 v = group_of(layout, unpacked, c, g + 1)
    cdef int t
    for t in range(T // 2):
        part[half * (T // 2) + t] = mm_dot(half, part[half * (T // 2) + t], w, v, x + 4 * g * T + 16 * t)


cdef inline void add_half_of_32(const int layout, const bint unpacked, const int half, const int T, i32x16* part,
                                const uint8_t* c, const int8_t* x) noexcept nogil:
    add_8(layout, unpacked, half, T, part, c, 0, x)
    add_8(layout, unpacked, half, T, part, c, 2, x)
    add_8(layout, unpacked, half, T, part, c, 4, x)
    add_8(layout, unpacked, half, T, part, c, 6, x)


cdef inline void add_16(const int layout, const bint unpacked, const int T, i32x16* part, i32x16* run,
                        const uint8_t* c, const int g, const int8_t* x) noexcept nogil:
    """Adds 16 of 32 columns, from group ``g`` on, times T tokens to ``part``."""
    if in_matrix_order(T):
        add_8(layout, unpacked, 0, T, part, c, g, x)
        add_8(layout, unpacked, 0, T, part, c, g + 2, x)
        add_8(layout, unpacked, 1, T, part, c, g, x)
        add_8(layout, unpacked, 1, T, part, c, g + 2, x)
        return
    add_group(layout, unpacked, T, part, run, c, g, x)
    add_group(layout, unpacked, T, part, run, c, g + 1, x)
    add_group(layout, unpacked, T, part, run, c, g + 2, x)
    add_group(layout, unpacked, T, part, run, c, g + 3, x)


cdef inline void add_32(const int layout, const bint unpacked, const int T, i32x16* part, i32x16* run, const uint8_t* c,
                        const int8_t* x) noexcept nogil:
    if in_matrix_order(T):
        add_half_of_32(layout, unpacked, 0, T, part, c, x)
        add_half_of_32(layout, unpacked, 1, T, part, c, x)
    else:
        add_16(layout, unpacked, T, part, run, c, 0, x)
        add_16(layout, unpacked, T, part, run, c, 4, x)


cdef inline void add_whole_block(const int layout, const bint unpacked, const int T, i32x16* part, i32x16* run,
                                 const uint8_t* c, const int8_t* x) noexcept nogil:
    """`add_32` for all columns with one scale: then the sums are arranged by token."""
    if T == 1:  # a second, independent sum hides the latency of the first
        part[1] = i32_zero()
        add_16(layout, unpacked, T, part, run, c, 0, x)
        add_16(layout, unpacked, T, part + 1, run, c, 4, x)
        part[0] = i32_add(part[0], part[1])
    else:
        add_32(layout, unpacked, T, part, run, c, x)
    to_rows(T, part)


cdef inline void add_two_blocks(const int layout, const bint unpacked, const int T, i32x16* even, i32x16* odd,
                                i32x16* run, const uint8_t* c, const int8_t* x) noexcept nogil:
    """Adds 32 columns times T tokens to ``even``, the next 32 to ``odd``; not for 16-bit sums: both share ``run``."""
    cdef const uint8_t* d = c + bytes_of_32(layout, unpacked)
    cdef const int8_t* y = x + 32 * T
    add_group(layout, unpacked, T, even, run, c, 0, x)
    add_group(layout, unpacked, T, odd, run, d, 0, y)
    add_group(layout, unpacked, T, even, run, c, 1, x)
    add_group(layout, unpacked, T, odd, run, d, 1, y)
    add_group(layout, unpacked, T, even, run, c, 2, x)
    add_group(layout, unpacked, T, odd, run, d, 2, y)
    add_group(layout, unpacked, T, even, run, c, 3, x)
    add_group(layout, unpacked, T, odd, run, d, 3, y)
    add_group(layout, unpacked, T, even, run, c, 4, x)
    add_group(layout, unpacked, T, odd, run, d, 4, y)
    add_group(layout, unpacked, T, even, run, c, 5, x)
    add_group(layout, unpacked, T, odd, run, d, 5, y)
    add_group(layout, unpacked, T, even, run, c, 6, x)
    add_group(layout, unpacked, T, odd, run, d, 6, y)
    add_group(layout, unpacked, T, even, run, c, 7, x)
    add_group(layout, unpacked, T, odd, run, d, 7, y)


cdef inline f32x16 block_scale(const int layout, const uint8_t* header) noexcept nogil:
    cdef f32x16 d
    if scale_bytes(layout) == 4:
        return f32_load(<const float*>header)
    if is_bf16(layout):
        return f32_load_bf16(<const uint16_t*>header)
    d = f32_load_f16(<const uint16_t*>header)
    return d if unit_of(layout) == 1 else f32_mul(d, f32_set1(unit_of(layout)))


cdef inline i32x16 excess_of_block(const int layout, i32x16 nsum) noexcept nogil:
    """- code excess * sum of the activations: corrects sums of codes that include the excess."""
    return i32_shl(nsum, excess_shift(layout)) if dot_excess(layout) else i32_zero()


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


cdef inline i32x16 add_subs(const int layout, i32x16 total, i32x16 even, i32x16 odd, i32x16 pairs) noexcept nogil:
    """Adds the sums of two sub-blocks, times their scales if they have any."""
    if not has_subs(layout):
        return i32_add(total, i32_add(even, odd))
    if has_subs_of_16(layout) and code_bits(layout) <= 3 and table_of(layout) == NULL:
        # 16 products of at most 7 x 127 fit 16 bits
        return i16_dot(total, i16_pair(even, odd), pairs)
    even = i32_mul(even, i32_sar(i32_shl(pairs, 16), 16))
    return i32_add(total, i32_add(even, i32_mul(odd, i32_sar(pairs, 16))))


cdef inline f32x16 add_span(const int layout, f32x16 acc, i32x16 part, f32x16 scale) noexcept nogil:
    """Adds the sums of a span times their scale; a whole row is the first span and the last one."""
    if layout == L_R8:
        return f32_mul(f32_from_i32(part), scale)
    return f32_fma(f32_from_i32(part), scale, acc)


# --- the tiles of each kind of layout -------------------------------------------------------------------

cdef inline void float_tile(const int layout, const int P, const int T, const uint8_t* panel, Py_ssize_t stride,
                            Py_ssize_t cols, const Tile* a, f32x16* acc) noexcept nogil:
    """P panels, ``stride`` bytes apart, times T tokens: acc (P, T). Several panels hide the fma's latency."""
    cdef Py_ssize_t k
    cdef int p, t
    cdef f32x16 w[4]
    cdef f32x16 x
    for p in range(P):
        for t in range(T):
            acc[p * T + t] = f32_zero()
    for k in range(cols):
        for p in range(P):
            ox_prefetch(panel + p * stride + 16 * scale_bytes(layout) * k + OX_AHEAD)
            w[p] = float_load(layout, panel + p * stride, k)
            if T == 1:  # a load at a time: four take the registers of the sums
                acc[p] = f32_fma(w[p], f32_set1(a.values[k]), acc[p])
        for t in range(T if T > 1 else 0):
            x = f32_keep(f32_set1(a.values[k * T + t]))
            for p in range(P):
                acc[p * T + t] = f32_fma(w[p], x, acc[p * T + t])


cdef inline void pair_tile(const bint dots, const int P, const int T, const uint8_t* panel, Py_ssize_t stride,
                           Py_ssize_t cols, const Tile* a, f32x16* acc) noexcept nogil:
    """P panels of pairs of columns, ``stride`` bytes apart, times T tokens: acc (P, T).

    Each lane adds the product of the odd column of a pair first, then the product of the even one.
    """
    cdef Py_ssize_t k
    cdef const float* x = a.values
    cdef u8x64 w[4]
    cdef u8x64 v
    cdef f32x16 f[4]
    cdef f32x16 y
    cdef int p, t
    for p in range(P):
        for t in range(T):
            acc[p * T + t] = f32_zero()
    for k in range(paired(cols) // 2):
        for p in range(P):
            w[p] = u8_load(panel + p * stride + 64 * k)
            ox_prefetch(panel + p * stride + 64 * k + OX_AHEAD)
        if dots:
            for t in range(T):
                v = u8_set4(<const int8_t*>(x + k * T + t))
                for p in range(P):
                    acc[p * T + t] = bf16_dot(acc[p * T + t], w[p], v)
        elif T == 1:  # a panel at a time: four take the registers of the sums
            for p in range(P):
                acc[p] = f32_fma(f32_from_high16(w[p]), f32_set1(x[2 * k + 1]), acc[p])
                acc[p] = f32_fma(f32_from_low16(w[p]), f32_set1(x[2 * k]), acc[p])
        else:
            for p in range(P):
                f[p] = f32_from_high16(w[p])
            for t in range(T):
                y = f32_keep(f32_set1(x[(2 * k + 1) * T + t]))
                for p in range(P):
                    acc[p * T + t] = f32_fma(f[p], y, acc[p * T + t])
            for p in range(P):
                f[p] = f32_from_low16(w[p])
            for t in range(T):
                y = f32_keep(f32_set1(x[2 * k * T + t]))
                for p in range(P):
                    acc[p * T + t] = f32_fma(f[p], y, acc[p * T + t])


cdef inline void prefetch_super(const int layout, const uint8_t* p, const int n) noexcept nogil:
    """`prefetch` for a layout with blocks of 256 columns.

    Sub-blocks of 16 are prefetched from farther ahead into the second-level cache: on Zen 4 a product of Q6_K and
    one token is 1.6 times as fast so, with sub-blocks of 32 a tenth slower.
    """
    cdef int i
    if not has_subs_of_16(layout):
        prefetch(p, n)
    else:
        for i in range(0, n, 64):
            ox_prefetch_far(p + FAR_AHEAD + i)


cdef inline void block_tile(const int layout, const bint unpacked, const int T, const Job* job, Py_ssize_t p,
                            f32x16* acc) noexcept nogil:
    """Panel ``p`` of a layout with blocks of 32 columns: acc (T)."""
    cdef const uint8_t* panel = job.data + p * job.stride
    cdef const uint8_t* codes = codes_of(unpacked, job, p)
    cdef const uint8_t* next = share(job, p)
    cdef const Tile* a = &job.tile
    cdef Py_ssize_t b
    cdef const uint8_t* header
    cdef const uint8_t* c
    cdef const int8_t* x = a.codes
    cdef i32x16 part[8]
    cdef i32x16 run[8]
    cdef int t
    for t in range(T):
        acc[t] = f32_zero()
    for b in range(job.cols // 32):
        header = panel + header_at(layout, b)
        c = codes + code_place(layout, unpacked, b)
        if job.cold and not unpacked:
            prefetch(header, header_bytes(layout))
            prefetch(c, 64 * code_bits(layout))
        if T > 1:
            next = ask(next, job.step)
        if has_halves(layout):
            add_halves(layout, unpacked, T, acc, part, run, header, c, x, a.scale + b * T, a.nsum16 + 2 * b * T)
            x = x + 32 * T
            continue
        for t in range(T):
            part[t] = excess_of_block(layout, per_token(T, a.nsum + b * T, t))
        add_whole_block(layout, unpacked, T, part, run, c, x)
        add_block(layout, T, acc, part, header, a.scale + b * T, a.nsum + b * T)
        x = x + 32 * T


cdef inline void add_block(const int layout, const int T, f32x16* acc, const i32x16* part, const uint8_t* header,
                           const float* scale, const int32_t* nsum) noexcept nogil:
    """acc += the block's integer sums * weight scale * activation scale (+ the minimum's term), for T tokens."""
    cdef f32x16 d = block_scale(layout, header)
    cdef f32x16 m, da
    cdef int t
    if has_minima(layout):
        m = f32_sub(f32_zero(), f32_load_f16(<const uint16_t*>header + 16))
    for t in range(T):
        da = f32_set1(scale[t])
        acc[t] = f32_fma(f32_from_i32(part[t]), f32_mul(d, da), acc[t])
        if has_minima(layout):
            acc[t] = f32_fma(f32_from_i32(i32_set1(nsum[t])), f32_mul(m, da), acc[t])


cdef inline f32x16 half_scale(const uint8_t* header, const int half) noexcept nogil:
    """The scales of one half of a block in 16 rows; ``header`` has a pair of bytes for each row."""
    cdef i32x16 pairs = i16_load_u8(header)
    return f32_mul(f32_from_bits(i32_shl(i32_sar(pairs, 16) if half else pairs, 20)), f32_set1(E5M3_UNIT))


cdef inline void add_halves(const int layout, const bint unpacked, const int T, f32x16* acc, i32x16* part,
                            i32x16* run, const uint8_t* header, const uint8_t* c, const int8_t* x,
                            const float* scale, const int32_t* nsum16) noexcept nogil:
    """Adds a block whose halves have scales: (sum of the first half) * scale is exact, one fma adds the second half.
    """
    cdef f32x16 first = half_scale(header, 0), last = half_scale(header, 1)
    cdef f32x16 sum[8]
    cdef int t
    for t in range(T):
        part[t] = excess_of_block(layout, per_token(T, nsum16, t))
    add_16(layout, unpacked, T, part, run, c, 0, x)
    to_rows(T, part)
    for t in range(T):
        sum[t] = f32_mul(f32_from_i32(part[t]), first)
        part[t] = excess_of_block(layout, per_token(T, nsum16 + T, t))
    add_16(layout, unpacked, T, part, run, c, 4, x)
    to_rows(T, part)
    for t in range(T):
        sum[t] = f32_fma(f32_from_i32(part[t]), last, sum[t])
        acc[t] = f32_fma(sum[t], f32_set1(scale[t]), acc[t])


cdef inline void byte_tile(const int layout, const bint unpacked, const int P, const int T, const Job* job,
                           Py_ssize_t p, int first, f32x16* acc) noexcept nogil:
    """P panels from ``p`` on, whose codes are bytes, times T tokens from ``first`` on of a tile of 8: acc (P, T).

    Each activation is loaded once for the codes of P panels.
    """
    cdef const uint8_t* panel = job.data + p * job.stride
    cdef const uint8_t* next = share(job, p + (first != 0))
    cdef const int8_t* x = job.tile.codes + 4 * first
    cdef i32x16 part[8]
    cdef u8x64 w, v
    cdef const uint8_t* codes = codes_of(unpacked, job, p)
    cdef Py_ssize_t apart = 16 * job.cols if unpacked else job.stride, b, at
    cdef int g, t, i
    for i in range(P * T):
        acc[i] = f32_zero()
    for b in range(job.cols // 32):
        at = code_place(layout, unpacked, b)
        for i in range(P * T):
            part[i] = excess_of_block(layout, i32_set1(job.tile.nsum[b * 8 + first + i % T]))
        for i in range(P):
            if job.cold and first == 0 and not unpacked:
                prefetch(panel + i * job.stride + header_at(layout, b), header_bytes(layout))
                prefetch(panel + i * job.stride + at, 512)
        next = ask(next, job.step)
        for g in range(8):
            for t in range(T):
                v = u8_keep(u8_set4(x + 4 * (g * 8 + t)))
                for i in range(P):
                    w = u8_load(codes + i * apart + at + 64 * g)
                    part[i * T + t] = code_dot(layout, unpacked, part[i * T + t], w, v)
        for i in range(P):
            add_block(layout, T, acc + i * T, part + i * T, panel + i * job.stride + header_at(layout, b),
                      job.tile.scale + b * 8 + first, job.tile.nsum + b * 8 + first)
        x = x + 32 * 8


cdef inline void add_row_group(const int P, const int T, const int chains, i32x16* part, const uint8_t* c,
                               Py_ssize_t stride, const int g, const int8_t* x, Py_ssize_t ld) noexcept nogil:
    """Adds 4 columns of P panels, whose codes begin at ``c``, times T tokens to the sums of chain ``g % chains``."""
    cdef i32x16* sums = part + g % chains * P * T
    cdef u8x64 w[4]
    cdef u8x64 v
    cdef int t, i
    for i in range(P):
        w[i] = u8_load(c + i * stride + 64 * g)
    for t in range(T):
        v = u8_keep(u8_set4(x + t * ld + 4 * g))
        for i in range(P):
            sums[i * T + t] = a8_dot(sums[i * T + t], w[i], v)


cdef inline void add_half_rows(const int layout, const int half, const int T, i32x16* part, const uint8_t* c,
                               Py_ssize_t cols, const int8_t* x) noexcept nogil:
    """Adds columns of half a panel of rows times T tokens to ``part`` in matrix order."""
    cdef Py_ssize_t b
    for b in range(cols // 32):
        add_half_of_32(layout, False, half, T, part, c + 512 * b, x + 32 * T * b)


cdef inline void row_matrix_tile(const int layout, const int T, const Job* job, Py_ssize_t p,
                                 f32x16* acc) noexcept nogil:
    """`row_tile` of one panel and T tokens by products of matrices.

    Each half of the panel takes HALF_COLS columns in turn: their codes stay in the cache for the other half.
    """
    cdef const uint8_t* header = job.data + p * job.stride
    cdef const uint8_t* next = share(job, p)
    cdef const uint8_t* c
    cdef const int8_t* x = job.tile.codes
    cdef i32x16 part[8]
    cdef f32x16 scale
    cdef Py_ssize_t spans = n_spans(layout, job.cols), left, n, s, i
    cdef int t
    for t in range(T):
        acc[t] = f32_zero()
    for s in range(spans):
        for t in range(T):
            part[t] = i32_zero()
        c = header + ROW_HEADER
        left = min(<Py_ssize_t>span_of(layout), job.cols - s * span_of(layout))
        while left:
            n = min(left, <Py_ssize_t>HALF_COLS)
            for i in range(n // 32):
                next = ask(next, job.step)
                if job.cold:
                    prefetch(c + 512 * i + 16 * HALF_COLS, 512)
            add_half_rows(layout, 0, T, part, c, n, x)
            add_half_rows(layout, 1, T, part, c, n, x)
            c = c + 16 * n
            x = x + n * T
            left = left - n
        to_rows(T, part)
        scale = f32_load(<const float*>header)
        for t in range(T):
            acc[t] = add_span(layout, acc[t], part[t], f32_mul(scale, f32_set1(job.tile.scale[t * spans + s])))
        header = c


cdef inline void row_tile(const int layout, const int P, const int T, const int chains, const Job* job, Py_ssize_t p,
                          f32x16* acc) noexcept nogil:
    """P panels of rows from ``p`` on times T tokens: acc (P, T). The sums are integers up to the end of a span.

    If P * T is small, ``chains`` independent sums for each result hide the latency of a product.
    """
    cdef const uint8_t* header = job.data + p * job.stride
    cdef const uint8_t* next = share(job, p)
    cdef const uint8_t* c
    cdef const int8_t* x = job.tile.codes
    cdef i32x16 part[MAX_SUMS]
    cdef f32x16 scale
    cdef Py_ssize_t ld = job.cols + ROW_PAD, spans = n_spans(layout, job.cols), s, _b
    cdef Py_ssize_t far = FAR_AHEAD - OX_AHEAD if T >= 8 else 0
    cdef int g, t, i
    for i in range(P * T):
        acc[i] = f32_zero()
    for s in range(spans):
        for i in range(P * T * chains):
            part[i] = i32_zero()
        for i in range(P):
            if OX_A8_SHIFT:
                for t in range(T):
                    part[i * T + t] = i32_sub(i32_zero(), i32_shl(i32_load(header + i * job.stride + 64), OX_A8_SHIFT))
            if job.cold and layout != L_R8:
                prefetch(header + i * job.stride + far, ROW_HEADER)
        c = header + ROW_HEADER
        for _b in range(min(<Py_ssize_t>span_of(layout), job.cols - s * span_of(layout)) // 32):
            if job.cold:
                for i in range(P):
                    prefetch(c + i * job.stride + far, 512)
            if T > 1:
                next = ask(next, P * job.step)
            add_row_group(P, T, chains, part, c, job.stride, 0, x, ld)
            add_row_group(P, T, chains, part, c, job.stride, 1, x, ld)
            add_row_group(P, T, chains, part, c, job.stride, 2, x, ld)
            add_row_group(P, T, chains, part, c, job.stride, 3, x, ld)
            add_row_group(P, T, chains, part, c, job.stride, 4, x, ld)
            add_row_group(P, T, chains, part, c, job.stride, 5, x, ld)
            add_row_group(P, T, chains, part, c, job.stride, 6, x, ld)
            add_row_group(P, T, chains, part, c, job.stride, 7, x, ld)
            x = x + 32
            c = c + 512
        for i in range(P):
            scale = f32_load(<const float*>(header + i * job.stride))
            for t in range(T):
                for g in range(1, chains):
                    part[i * T + t] = i32_add(part[i * T + t], part[(g * P + i) * T + t])
                acc[i * T + t] = add_span(layout, acc[i * T + t], part[i * T + t],
                                          f32_mul(scale, f32_set1(job.tile.scale[t * spans + s])))
        header = c


cdef inline void super_tile(const int layout, const bint unpacked, const int T, const Job* job, Py_ssize_t p,
                            f32x16* acc) noexcept nogil:
    """Panel ``p`` of a layout with blocks of 256 columns, whose sub-blocks of 16 or 32 may have scales: acc (T)."""
    cdef const uint8_t* panel = job.data + p * job.stride
    cdef const uint8_t* codes = codes_of(unpacked, job, p)
    cdef const uint8_t* next = share(job, p)
    cdef const Tile* a = &job.tile
    cdef Py_ssize_t b
    cdef const uint8_t* header
    cdef const uint8_t* c
    cdef const int8_t* x = a.codes
    cdef const int32_t* sums = a.sums16 if has_subs_of_16(layout) else a.sums32
    cdef i32x16 even[8]
    cdef i32x16 odd[8]
    cdef i32x16 run[8]
    cdef i32x16 total[8]
    cdef i32x16 pairs
    cdef f32x16 d, m, da
    cdef int i, t
    cdef int n_pairs = 8 if has_subs_of_16(layout) else 4
    for t in range(T):
        acc[t] = f32_zero()
    for b in range(job.cols // 256):
        header = panel + header_at(layout, b)
        c = codes + code_place(layout, unpacked, b)
        if job.cold and not unpacked:
            prefetch_super(layout, header, header_bytes(layout))
        for t in range(T):
            total[t] = i32_zero()
        for i in range(n_pairs):
            if job.cold and not unpacked:
                prefetch_super(layout, c, (64 if has_subs_of_16(layout) else 128) * code_bits(layout))
            if T > 1:
                next = ask(next, job.step)
            for t in range(T):
                even[t] = odd[t] = i32_zero()
            if has_subs_of_16(layout):
                add_16(layout, unpacked, T, even, run, c, 0, x)
                add_16(layout, unpacked, T, odd, run, c, 4, x)
            else:
                if T == 8 and not OX_MATRIX:  # twice as many independent sums hide the latency of a product
                    add_two_blocks(layout, unpacked, T, even, odd, run, c, x)
                else:
                    add_32(layout, unpacked, T, even, run, c, x)
                    add_32(layout, unpacked, T, odd, run, c + bytes_of_32(layout, unpacked), x + 32 * T)
                if T > 1:
                    next = ask(next, job.step)
                c = c + bytes_of_32(layout, unpacked)
                x = x + 32 * T
            pairs = scale_pairs(layout, header, i)
            for t in range(T):
                total[t] = add_subs(layout, total[t], even[t], odd[t], per_row(T, pairs, t))
            c = c + bytes_of_32(layout, unpacked)
            x = x + 32 * T
        to_rows(T, total)
        d = block_scale(layout, header)
        if dot_excess(layout) or has_minima(layout):
            for t in range(T):
                even[t] = i32_zero()
            for i in range(n_pairs):
                pairs = minimum_pairs(layout, header, i) if has_minima(layout) else scale_pairs(layout, header, i)
                for t in range(T):
                    even[t] = i16_dot(even[t], pairs, i32_set1(sums[(b * n_pairs + i) * T + t]))
        for t in range(T):
            da = f32_set1(a.scale[b * T + t])
            if dot_excess(layout):
                total[t] = i32_sub(total[t], i32_shl(even[t], excess_shift(layout)))
            acc[t] = f32_fma(f32_from_i32(total[t]), f32_mul(d, da), acc[t])
            if has_minima(layout):
                m = f32_sub(f32_zero(), f32_load_f16(<const uint16_t*>header + 16))
                acc[t] = f32_fma(f32_from_i32(even[t]), f32_mul(m, da), acc[t])


cdef inline void block_tiles(const int layout, const bint unpacked, const int T, const Job* job) noexcept nogil:
    cdef f32x16 acc[MAX_TILE]
    cdef Py_ssize_t p = job.first
    cdef int half
    if unpacked and job.cold:
        unpack_panels(layout, True, job)
    if OX_PANELS == 2 and T == 8 and (unpacked or layout == L_C8) and not has_halves(layout):
        while p + 2 <= job.last:
            for half in range(2):
                byte_tile(layout, unpacked, 2, 4, job, p, 4 * half, acc)
                put_panel(job, 4, p, 4 * half, acc)
                put_panel(job, 4, p + 1, 4 * half, acc + 4)
            p = p + 2
    for p in range(p, job.last):
        block_tile(layout, unpacked, T, job, p, acc)
        put_panel(job, T, p, 0, acc)


cdef inline void super_tiles(const int layout, const bint unpacked, const int T, const Job* job) noexcept nogil:
    cdef f32x16 acc[MAX_TILE]
    cdef Py_ssize_t p
    if unpacked and job.cold:
        unpack_panels(layout, True, job)
    for p in range(job.first, job.last):
        super_tile(layout, unpacked, T, job, p, acc)
        put_panel(job, T, p, 0, acc)


cdef inline void row_tiles(const int layout, const int P, const int T, const int chains, const int alone,
                           const Job* job) noexcept nogil:
    """Multiplies P panels at a time with ``chains`` chains of sums, then each remaining panel with ``alone`` chains."""
    cdef f32x16 acc[MAX_TILE]
    cdef Py_ssize_t p = job.first, i
    cdef int q
    if OX_MATRIX and T > 1:
        for p in range(job.first, job.last):
            row_matrix_tile(layout, T, job, p, acc)
            put_panel(job, T, p, 0, acc)
        return
    while p + P <= job.last:
        row_tile(layout, P, T, chains, job, p, acc)
        for q in range(P):
            put_panel(job, T, p + q, 0, acc + q * T)
        p = p + P
    for i in range(p, job.last):
        row_tile(layout, 1, T, alone, job, i, acc)
        put_panel(job, T, i, 0, acc)


cdef inline void any_float_tile(const int layout, const int P, const int T, const Job* job, Py_ssize_t p,
                                f32x16* acc) noexcept nogil:
    """P panels of floats from ``p`` on times T tokens: acc (P, T)."""
    cdef const uint8_t* panel = job.data + p * job.stride
    if not is_pairs(layout):
        float_tile(layout, P, T, panel, job.stride, job.cols, &job.tile, acc)
    elif OX_BF16_DOT and job.dots:
        pair_tile(True, P, T, panel, job.stride, job.cols, &job.tile, acc)
    else:
        pair_tile(False, P, T, panel, job.stride, job.cols, &job.tile, acc)


cdef inline int float_panels(const int T) noexcept nogil:
    """Panels that a float tile of T tokens multiplies together: the registers hold 16 sums where one is a vector of 16
    lanes, else 4."""
    cdef int sums = 16 if OX_TILE >= 8 and not OX_MATRIX else 4
    return max(1, min(4, sums // T))


cdef inline void float_tiles(const int layout, const int P, const int T, const Job* job) noexcept nogil:
    cdef f32x16 acc[MAX_TILE]
    cdef Py_ssize_t p = job.first, i
    cdef int q
    while p + P <= job.last:
        any_float_tile(layout, P, T, job, p, acc)
        for q in range(P):
            put_panel(job, T, p + q, 0, acc + q * T)
        p = p + P
    for i in range(p, job.last):
        any_float_tile(layout, 1, T, job, i, acc)
        put_panel(job, T, i, 0, acc)


# The bodies of a layout, with the tile size T as a constant. A function for each kind of layout: the compiler copies
# what is inlined, and removes the branches of other layouts afterwards.

cdef inline void row_layout(const int layout, int T, const Job* job) noexcept nogil:
    if OX_TILE >= 8 and T == 8:
        row_tiles(layout, OX_PANELS, 8, 1, 1, job)
    elif T == 4:
        row_tiles(layout, OX_PANELS, 4, 1, 1, job)
    elif T == 2:
        row_tiles(layout, 1, 2, 2, 2, job)
    else:
        row_tiles(layout, 1, 1, 4, 4, job)


cdef inline void float_layout(const int layout, int T, const Job* job) noexcept nogil:
    if OX_TILE >= 8 and T == 8:
        float_tiles(layout, float_panels(8), 8, job)
    elif T == 4:
        float_tiles(layout, float_panels(4), 4, job)
    elif T == 2:
        float_tiles(layout, float_panels(2), 2, job)
    else:
        float_tiles(layout, float_panels(1), 1, job)


cdef inline void block_layout(const int layout, int T, const Job* job) noexcept nogil:
    if OX_TILE >= 8 and T == 8:
        block_tiles(layout, False, 8, job)
    elif T == 4:
        block_tiles(layout, False, 4, job)
    elif T == 2:
        block_tiles(layout, False, 2, job)
    else:
        block_tiles(layout, False, 1, job)


cdef inline void super_layout(const int layout, int T, const Job* job) noexcept nogil:
    if OX_TILE >= 8 and T == 8:
        super_tiles(layout, False, 8, job)
    elif T == 4:
        super_tiles(layout, False, 4, job)
    elif T == 2:
        super_tiles(layout, False, 2, job)
    else:
        super_tiles(layout, False, 1, job)
