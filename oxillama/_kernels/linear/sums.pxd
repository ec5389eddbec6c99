"""Integer sums of the codes of a panel times the codes of T tokens, and the scales that a block's header has.

The layout and T are constants wherever these functions are called.
"""

from libc.stdint cimport int8_t, int32_t, uint8_t, uint16_t

from oxillama._kernels.linear.jobs cimport Job, prefetch
from oxillama._kernels.packing.formats cimport *
from oxillama._kernels.packing.layouts cimport *
from oxillama._kernels.simd.simd cimport *


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
    """The codes of panel ``p``; `code_place` is the offset of those of a block."""
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
    cdef int i, g
    for p in range(job.first, job.last):
        for b in range(job.cols // form_of(layout)):
            prefetch(job.data + p * job.stride + header_at(layout, b), header_bytes(layout))
            c = job.data + p * job.stride + codes_at(layout, b)
            for i in range(form_of(layout) // 32):
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


cdef inline void add_first_16(const int layout, const bint unpacked, const int T, i32x16* part, i32x16* run,
                              const uint8_t* c, const int8_t* x) noexcept nogil:
    if in_matrix_order(T):
        add_8(layout, unpacked, 0, T, part, c, 0, x)
        add_8(layout, unpacked, 0, T, part, c, 2, x)
        add_8(layout, unpacked, 1, T, part, c, 0, x)
        add_8(layout, unpacked, 1, T, part, c, 2, x)
        return
    add_group(layout, unpacked, T, part, run, c, 0, x)
    add_group(layout, unpacked, T, part, run, c, 1, x)
    add_group(layout, unpacked, T, part, run, c, 2, x)
    add_group(layout, unpacked, T, part, run, c, 3, x)


cdef inline void add_last_16(const int layout, const bint unpacked, const int T, i32x16* part, i32x16* run,
                             const uint8_t* c, const int8_t* x) noexcept nogil:
    if in_matrix_order(T):
        add_8(layout, unpacked, 0, T, part, c, 4, x)
        add_8(layout, unpacked, 0, T, part, c, 6, x)
        add_8(layout, unpacked, 1, T, part, c, 4, x)
        add_8(layout, unpacked, 1, T, part, c, 6, x)
        return
    add_group(layout, unpacked, T, part, run, c, 4, x)
    add_group(layout, unpacked, T, part, run, c, 5, x)
    add_group(layout, unpacked, T, part, run, c, 6, x)
    add_group(layout, unpacked, T, part, run, c, 7, x)


cdef inline void add_32(const int layout, const bint unpacked, const int T, i32x16* part, i32x16* run, const uint8_t* c,
                        const int8_t* x) noexcept nogil:
    if in_matrix_order(T):
        add_half_of_32(layout, unpacked, 0, T, part, c, x)
        add_half_of_32(layout, unpacked, 1, T, part, c, x)
    else:
        add_first_16(layout, unpacked, T, part, run, c, x)
        add_last_16(layout, unpacked, T, part, run, c, x)


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
