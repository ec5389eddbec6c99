"""Layout of keys and values in a page, and the functions that write them.

A page holds ``page_size`` positions of every layer: per layer and head the keys, then the values, both in
panels of ``lanes`` = min(16, page_size) positions. Keys and values have a type each.

    page           [layer] { keys [head][panel], values [head][panel] }
    f32 f16 bf16   keys [key_dim][lanes]       values [lanes][value_pad]
    bf16 for both  keys [key_dim / 2][lanes][2], values [lanes / 2][value_pad][2], or [value_pad] if lanes = 1
    coded          per position and block of 32 dimensions: one or two halves, and the codes
                   keys [block] { halves [lanes], code bytes [bytes][lanes] }
                   values [block] { halves [lanes], code bytes [lanes][bytes] }

    coded types    halves                 code bytes
    q8_0           scale                  32: the codes, signed
    q4_0 iq4_nl    scale                  16: code i in the low half of byte i, code i + 16 in the high half
    q4_1           scale, minimum         the same
    q5_0           scale                  20: the same, then bit i % 8 of byte 16 + i / 8 for the fifth bit of code i
    q5_1           scale, minimum         the same

A key is stored dimension by dimension, so that a vector lane is a position and no score is summed over lanes. A
value is contiguous, padded with zeros to whole vectors of 16 (coded: blocks of 32). The stored bytes of a position
depend on its own key and value only.

Where both types are bf16, products take pairs: two dimensions of a key (an odd last dimension is paired with a zero),
or the values of two positions. Numbers below 2^-56 are stored as 0 (`simd/bf16.pxd`).

The walk over positions reads panels of 16 positions, floats or q8_0 codes, with one type for keys and values. Smaller
panels are gathered into panels of 16 first, other types are decoded to float32 on the way (`panels.pxd`).
Pages of keys without values have a ``value_dim`` of 0.
"""

from libc.math cimport fabsf
from libc.stdint cimport int8_t, uint8_t, uint16_t
from libc.string cimport memcpy, memset

from oxillama._kernels.packing.formats cimport (
    L_BF16, L_C4, L_C5, L_C8, L_F16, L_F32, L_M4, L_M5, L_T4, VALUES_T4, code_bits, code_excess, has_minima)
from oxillama._kernels.simd.bf16 cimport bf16_from, paired
from oxillama._kernels.simd.simd cimport *

cdef enum:
    LANES = 16
    KV_BLOCK = 32  # dimensions that share a scale
    HALF_NAN = 0x7e00


cdef struct Pages:
    Py_ssize_t n_layers, n_heads, key_dim, value_dim, value_pad, page_size, lanes
    Py_ssize_t key_bytes, value_bytes      # per position and head
    Py_ssize_t keys_bytes, layer_bytes
    int key_type, value_type
    int walk_type                          # layout of the panels that the walk reads
    Py_ssize_t walk_key_bytes, walk_value_bytes  # bytes of one position in these panels


cdef inline bint is_kv_type(int layout) noexcept nogil:
    return layout in (L_F32, L_F16, L_BF16, L_C8, L_C4, L_C5, L_M4, L_M5, L_T4)


cdef inline int kv_halves(const int kv_type) noexcept nogil:
    """Halves per block of 32 dimensions: the scale, and the minimum if the type has one."""
    return 2 if has_minima(kv_type) else 1


cdef inline int kv_code_bytes(const int kv_type) noexcept nogil:
    return KV_BLOCK // 8 * code_bits(kv_type)


cdef inline int kv_block_bytes(const int kv_type) noexcept nogil:
    """Bytes of a block of 32 dimensions at one position."""
    return 2 * kv_halves(kv_type) + kv_code_bytes(kv_type)


cdef inline Py_ssize_t kv_row_bytes(int kv_type, Py_ssize_t dim) noexcept nogil:
    """Bytes of ``dim`` numbers at one position."""
    if code_bits(kv_type):
        return (dim + KV_BLOCK - 1) // KV_BLOCK * kv_block_bytes(kv_type)
    return dim * (4 if kv_type == L_F32 else 2)


cdef inline Pages page_layout(Py_ssize_t n_layers, Py_ssize_t n_heads, Py_ssize_t key_dim, Py_ssize_t value_dim,
                              int key_type, int value_type, Py_ssize_t page_size) noexcept nogil:
    cdef Pages c
    cdef Py_ssize_t unit
    c.n_layers, c.n_heads, c.key_dim, c.value_dim = n_layers, n_heads, key_dim, value_dim
    c.key_type, c.value_type = key_type, value_type
    c.page_size, c.lanes = page_size, min(page_size, <Py_ssize_t>LANES)
    c.walk_type = key_type if code_bits(key_type) in (0, 8) and value_type == key_type else L_F32
    unit = KV_BLOCK if code_bits(value_type) else LANES
    c.value_pad = (value_dim + unit - 1) // unit * unit
    if c.walk_type == L_BF16:
        key_dim = paired(key_dim)
    c.key_bytes, c.value_bytes = kv_row_bytes(key_type, key_dim), kv_row_bytes(value_type, c.value_pad)
    c.walk_key_bytes, c.walk_value_bytes = kv_row_bytes(c.walk_type, key_dim), kv_row_bytes(c.walk_type, c.value_pad)
    c.keys_bytes = n_heads * page_size * c.key_bytes
    c.layer_bytes = c.keys_bytes + n_heads * page_size * c.value_bytes
    return c


cdef inline uint8_t* keys_at(const Pages* c, uint8_t* page, Py_ssize_t layer, Py_ssize_t head,
                             Py_ssize_t slot) noexcept nogil:
    """The panel of keys in which the page's position ``slot`` lies."""
    return page + layer * c.layer_bytes + (head * c.page_size + (slot & -c.lanes)) * c.key_bytes


cdef inline uint8_t* values_at(const Pages* c, uint8_t* page, Py_ssize_t layer, Py_ssize_t head,
                               Py_ssize_t slot) noexcept nogil:
    return page + layer * c.layer_bytes + c.keys_bytes + (head * c.page_size + (slot & -c.lanes)) * c.value_bytes


# --- writing -----------------------------------------------------------------------------------------

cdef inline void put(int kv_type, uint8_t* base, Py_ssize_t i, float x) noexcept nogil:
    if kv_type == L_F32:
        (<float*>base)[i] = x
    elif kv_type == L_F16:
        (<uint16_t*>base)[i] = ox_f16_from_f32(x)
    else:
        (<uint16_t*>base)[i] = ox_bf16_from_f32(x)


cdef inline void put_lanes(int kv_type, uint8_t* base, Py_ssize_t i, const float* x, Py_ssize_t left) noexcept nogil:
    """Writes 16 values of ``x``; if fewer are left, ``left`` values and then zeros."""
    cdef float lanes[LANES]
    cdef Py_ssize_t j
    if left < LANES:
        for j in range(LANES):
            lanes[j] = x[j] if j < left else 0
        x = lanes
    if kv_type == L_F32:
        memcpy(<float*>base + i, x, 64)
    elif kv_type == L_F16:
        f32_store_f16(<uint16_t*>base + i, f32_load(x))
    else:
        for j in range(LANES):
            (<uint16_t*>base)[i + j] = ox_bf16_from_f32(x[j])


# A block of 32 numbers as codes: number = (code - excess) * scale + minimum, or table[code] * scale.
cdef struct CodedBlock:
    uint16_t halves[2]          # scale, minimum
    uint8_t codes[KV_BLOCK]


cdef inline int clipped(float code, int top) noexcept nogil:
    """A code to which one half was added for rounding, cut off to an integer in 0 .. top."""
    return <int>min(max(code, <float>0.0), <float>top)


cdef inline int nearest_value(float x) noexcept nogil:
    """Index of the nearest value in IQ4_NL's table; the higher index of two values equally near."""
    cdef int i, found = 0
    for i in range(15):
        found = found + (2 * x >= VALUES_T4[i] + VALUES_T4[i + 1])
    return found


cdef inline void code_table(const float* x, float scale, CodedBlock* out) noexcept nogil:
    """IQ4_NL: codes by the nearest value, then the scale with the least squared error, weighted with x^2, as ggml's
    quantize_row_iq4_nl_ref does without a search."""
    cdef float inverse = <float>1.0 / scale if scale != 0 else 0, products = 0, squares = 0, value
    cdef int i
    for i in range(KV_BLOCK):
        out.codes[i] = nearest_value(x[i] * inverse)
        value = VALUES_T4[out.codes[i]]
        products = products + x[i] * x[i] * value * x[i]
        squares = squares + x[i] * x[i] * value * value
    out.halves[0] = ox_f16_from_f32(products / squares if squares > 0 else 0)


cdef inline void code_block(const int kv_type, const float* given, Py_ssize_t n, CodedBlock* out) noexcept nogil:
    """Codes of ``n`` numbers, followed by zeros up to 32.

    q8_0: scale = the largest magnitude / 127, codes rounded to nearest, ties to even. q4_0, q5_0: scale = the number of
    the largest magnitude / -8 or -16; q4_1, q5_1: scale = (highest - lowest) / 15 or 31, minimum = the lowest; both
    as in ggml's reference code. A block without a finite half as its scale (it has a NaN, an infinity or too large a
    number) is NaN as a whole.
    """
    cdef float x[KV_BLOCK]
    cdef float most = 0, largest = 0, low, high, scale, inverse
    cdef int i, top = (1 << code_bits(kv_type)) - 1
    memset(out, 0, sizeof(out[0]))
    memcpy(x, given, n * sizeof(float))
    low = high = given[0]
    for i in range(n):
        if not fabsf(x[i]) <= most:
            most, largest = fabsf(x[i]), x[i]
            if most != most:
                break
        low, high = min(low, x[i]), max(high, x[i])
    for i in range(n, KV_BLOCK):
        x[i] = low if has_minima(kv_type) else 0
    if kv_type == L_C8:
        scale = most / <float>127.0
    elif kv_type == L_T4:
        scale = largest / VALUES_T4[0]
    elif has_minima(kv_type):
        scale = (high - low) / <float>top
    else:
        scale = largest / <float>-code_excess(kv_type)
    out.halves[0] = ox_f16_from_f32(scale)
    if has_minima(kv_type):
        out.halves[1] = ox_f16_from_f32(low)
    if most != most or (out.halves[0] & 0x7c00) == 0x7c00 or (out.halves[1] & 0x7c00) == 0x7c00:
        out.halves[0], out.halves[1] = HALF_NAN, 0
        return
    if kv_type == L_T4:
        code_table(x, scale, out)
    elif kv_type == L_C8:
        if out.halves[0] != 0:
            inverse = <float>127.0 / most
            for i in range(KV_BLOCK):  # adding 1.5 * 2^23 rounds to an integer
                out.codes[i] = <uint8_t><int8_t>((x[i] * inverse + <float>12582912.0) - <float>12582912.0)
    else:
        inverse = <float>1.0 / scale if scale != 0 else 0
        for i in range(KV_BLOCK):
            if has_minima(kv_type):
                out.codes[i] = clipped((x[i] - low) * inverse + <float>0.5, top)
            else:
                out.codes[i] = clipped(x[i] * inverse + (code_excess(kv_type) + <float>0.5), top)


cdef inline void put_codes(const int kv_type, const CodedBlock* block, uint8_t* out, Py_ssize_t stride) noexcept nogil:
    """Writes the code bytes of a block, ``stride`` bytes apart."""
    cdef int i, j
    cdef uint8_t bits
    if code_bits(kv_type) == 8:
        for i in range(KV_BLOCK):
            out[i * stride] = block.codes[i]
        return
    for i in range(16):
        out[i * stride] = (block.codes[i] & 15) | <uint8_t>((block.codes[i + 16] & 15) << 4)
    if code_bits(kv_type) == 5:
        for i in range(4):
            bits = 0
            for j in range(8):
                bits = bits | <uint8_t>((block.codes[8 * i + j] >> 4) << j)
            out[(16 + i) * stride] = bits


cdef inline void put_blocks(const int kv_type, const float* x, Py_ssize_t dim, uint8_t* panel, Py_ssize_t lanes,
                            Py_ssize_t lane, bint is_key) noexcept nogil:
    """Writes the key or value of one position, block by block, to a lane of a panel."""
    cdef CodedBlock block
    cdef Py_ssize_t d
    cdef uint8_t* bytes_
    cdef int h
    for d in range(0, dim, 32):
        code_block(kv_type, x + d, min(<Py_ssize_t>KV_BLOCK, dim - d), &block)
        for h in range(kv_halves(kv_type)):
            (<uint16_t*>panel)[h * lanes + lane] = block.halves[h]
        bytes_ = panel + 2 * kv_halves(kv_type) * lanes
        if is_key:
            put_codes(kv_type, &block, bytes_ + lane, lanes)
        else:
            put_codes(kv_type, &block, bytes_ + lane * kv_code_bytes(kv_type), 1)
        panel = panel + kv_block_bytes(kv_type) * lanes


cdef inline void put_coded(int kv_type, const float* x, Py_ssize_t dim, uint8_t* panel, Py_ssize_t lanes,
                           Py_ssize_t lane, bint is_key) noexcept nogil:
    if kv_type == L_C8:
        put_blocks(L_C8, x, dim, panel, lanes, lane, is_key)
    elif kv_type == L_C4:
        put_blocks(L_C4, x, dim, panel, lanes, lane, is_key)
    elif kv_type == L_C5:
        put_blocks(L_C5, x, dim, panel, lanes, lane, is_key)
    elif kv_type == L_M4:
        put_blocks(L_M4, x, dim, panel, lanes, lane, is_key)
    elif kv_type == L_M5:
        put_blocks(L_M5, x, dim, panel, lanes, lane, is_key)
    else:
        put_blocks(L_T4, x, dim, panel, lanes, lane, is_key)


cdef inline void put_paired_key(const Pages* c, uint16_t* panel, Py_ssize_t lane, const float* x) noexcept nogil:
    cdef Py_ssize_t d
    for d in range(paired(c.key_dim)):
        panel[(d >> 1) * 2 * c.lanes + 2 * lane + (d & 1)] = bf16_from(x[d]) if d < c.key_dim else 0


cdef inline uint16_t* paired_value(const Pages* c, uint8_t* panel, Py_ssize_t lane) noexcept nogil:
    """The first number of a value in a panel of pairs; its next numbers are `pair_step` apart."""
    return <uint16_t*>panel + (lane >> 1) * 2 * c.value_pad + (lane & 1)


cdef inline Py_ssize_t pair_step(const Pages* c) noexcept nogil:
    return 2 if c.lanes > 1 else 1


cdef inline void put_paired_value(const Pages* c, uint8_t* panel, Py_ssize_t lane, const float* x) noexcept nogil:
    cdef uint16_t* to = paired_value(c, panel, lane)
    cdef Py_ssize_t d, step = pair_step(c)
    for d in range(c.value_pad):
        to[d * step] = bf16_from(x[d]) if d < c.value_dim else 0


cdef inline void put_key(const Pages* c, uint8_t* panel, Py_ssize_t lane, const float* x) noexcept nogil:
    cdef Py_ssize_t d
    if c.walk_type == L_BF16:
        put_paired_key(c, <uint16_t*>panel, lane, x)
        return
    if code_bits(c.key_type):
        put_coded(c.key_type, x, c.key_dim, panel, c.lanes, lane, True)
        return
    for d in range(c.key_dim):
        put(c.key_type, panel, d * c.lanes + lane, x[d])


cdef inline void put_value(const Pages* c, uint8_t* panel, Py_ssize_t lane, const float* x) noexcept nogil:
    cdef Py_ssize_t d
    if c.walk_type == L_BF16:
        put_paired_value(c, panel, lane, x)
        return
    if code_bits(c.value_type):
        put_coded(c.value_type, x, c.value_dim, panel, c.lanes, lane, False)
        return
    for d in range(0, c.value_dim, 16):
        put_lanes(c.value_type, panel, lane * c.value_pad + d, x + d, c.value_dim - d)
