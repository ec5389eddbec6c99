"""Writes unpacked blocks as floats or as packed panels, with the same code for every format.

The calls in dispatch.pxd pass ``layout``, ``block_len``, ``block_bytes`` and ``unpack`` as constants.
"""

from libc.math cimport fabsf
from libc.stdint cimport int8_t, int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from oxillama._kernels.packing.formats cimport *
from oxillama._kernels.packing.layouts cimport ROW_HEADER, codes_at, header_at, n_spans
from oxillama._kernels.packing.unpack cimport Block, Unpack, e5m3_value, half_at
from oxillama._kernels.simd.bf16 cimport LEAST_BF16, paired
from oxillama._kernels.simd.simd cimport ox_f32_from_bf16, ox_f32_from_bits, ox_f32_from_f16


cdef inline void put_word(uint8_t* p, uint32_t w) noexcept nogil:
    memcpy(p, &w, 4)


cdef inline void put_half(uint8_t* p, uint16_t h) noexcept nogil:
    memcpy(p, &h, 2)


# --- floats -----------------------------------------------------------------------------------------

cdef inline void float_dequantize(const int layout, const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Py_ssize_t i
    if scale_bytes(layout) == 4:
        memcpy(out, blocks, 4 * n)
        return
    for i in range(n):
        out[i] = scale_of(layout, half_at(blocks + 2 * i))


cdef inline void pair_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    """Packs bf16 in pairs of columns; magnitudes below 2^-56 become 0, so that no product is subnormal."""
    cdef uint16_t h
    cdef Py_ssize_t k
    cdef int r
    for k in range(paired(cols)):
        for r in range(16):
            h = half_at(row[r] + 2 * k) if k < cols else 0
            put_half(out + 64 * (k >> 1) + 4 * r + 2 * (k & 1), h if h & 0x7FFF >= LEAST_BF16 else 0)


cdef inline void float_pack(const int layout, const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Py_ssize_t k
    cdef int r
    if is_pairs(layout):
        pair_pack(row, cols, out)
        return
    for k in range(cols):
        for r in range(16):
            memcpy(out + scale_bytes(layout) * (16 * k + r), row[r] + scale_bytes(layout) * k, scale_bytes(layout))


# --- rows -------------------------------------------------------------------------------------------

cdef inline void row_pack(const int layout, const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    """Packs 16 rows of float32 as int8, span by span."""
    cdef Py_ssize_t s, n
    for s in range(n_spans(layout, cols)):
        n = min(<Py_ssize_t>span_of(layout), cols - s * span_of(layout))
        span_pack(row, s * span_of(layout), n, out)
        out = out + ROW_HEADER + 16 * n


cdef inline void span_pack(const uint8_t** row, Py_ssize_t first, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    """Packs columns of 16 rows: scale = max|w| / 127, code = round(w * (127 / max|w|)), ties to even.

    A span with max|w| up to 1e-36 counts as zero.
    """
    cdef const float* w
    cdef float most, inv, magnitude
    cdef int32_t total, code
    cdef Py_ssize_t k
    cdef int r
    for r in range(16):
        w = <const float*>row[r] + first
        most = 0
        for k in range(cols):
            magnitude = fabsf(w[k])
            most = magnitude if magnitude > most else most
        inv = 127.0 / most if most > <float>1e-36 else 0.0
        total = 0
        for k in range(cols):
            code = <int32_t>((w[k] * inv + <float>12582912.0) - <float>12582912.0)
            total += code
            out[ROW_HEADER + 64 * (k >> 2) + 4 * r + (k & 3)] = <uint8_t>code
        most = most / <float>127.0
        memcpy(out + 4 * r, &most, 4)
        memcpy(out + 64 + 4 * r, &total, 4)


# --- blocks -----------------------------------------------------------------------------------------

cdef inline float scale_of(const int layout, uint32_t bits) noexcept nogil:
    if scale_bytes(layout) == 4:
        return ox_f32_from_bits(bits)
    return ox_f32_from_bf16(bits) if is_bf16(layout) else ox_f32_from_f16(bits)


cdef inline int value_of(const int layout, int code) noexcept nogil:
    """The integer that a code stands for, before the multiplication with scales."""
    if code_bits(layout) == 8:
        return <int8_t>code
    if code_bits(layout) == 1:
        code = 2 * code
    return (code if table_of(layout) == NULL else table_of(layout)[code]) - code_excess(layout)


cdef inline void block_dequantize(const int layout, const int block_len, const int block_bytes, Unpack unpack,
                                  const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    """out = d * value; with minima d * code + m (blocks of 32) or d * scale * code - m * minimum (blocks of 256)."""
    cdef int sub = 16 if has_subs_of_16(layout) else 32
    cdef Block block
    cdef const uint8_t* codes = <const uint8_t*>block.codes
    cdef Py_ssize_t b
    cdef float d, m = 0, ds
    cdef int i, code
    for b in range(n):
        unpack(blocks + block_bytes * b, &block)
        d = 0 if has_halves(layout) else scale_of(layout, block.d) * unit_of(layout)
        if has_minima(layout):
            m = ox_f32_from_f16(block.minimum)
        if code_bits(layout) == 8 and not has_subs(layout):
            for i in range(block_len):
                out[block_len * b + i] = d * <float>(<const int8_t*>codes)[i]
            continue
        for i in range(block_len):
            code = codes[i]
            if has_halves(layout):
                ds = e5m3_value(<uint8_t>block.scales[i // 16])
            else:
                ds = d * <float>block.scales[i // sub] if has_subs(layout) else d
            if not has_minima(layout):
                out[block_len * b + i] = ds * <float>value_of(layout, code)
            elif has_subs(layout):
                out[block_len * b + i] = ds * <float>code - m * <float>block.minima[i // sub]
            else:
                out[block_len * b + i] = ds * <float>code + m


cdef inline void put_codes(const int layout, const uint32_t* w, uint8_t* out) noexcept nogil:
    """Writes the 32 codes of one row, 8 words of 4 codes, to the row's lane of the packed vectors."""
    cdef uint32_t plane
    cdef int v, g
    if code_bits(layout) == 8:
        for v in range(8):
            put_word(out + 64 * v, w[v])
    elif code_bits(layout) >= 4:
        for v in range(4):
            put_word(out + 64 * v, (w[v] & 0x0F0F0F0F) | ((w[v + 4] & 0x0F0F0F0F) << 4))
    elif code_bits(layout) >= 2:
        for v in range(2):
            plane = 0
            for g in range(4):
                plane |= (w[4 * v + g] & 0x03030303) << (2 * g)
            put_word(out + 64 * v, plane)
    if code_bits(layout) == 6:
        for v in range(2):
            plane = 0
            for g in range(4):
                plane |= ((w[4 * v + g] >> 4) & 0x03030303) << (2 * g)
            put_word(out + 256 + 64 * v, plane)
    if code_bits(layout) in (5, 3, 1):
        plane = 0
        for g in range(8):
            plane |= ((w[g] >> (code_bits(layout) - 1)) & 0x01010101) << g
        put_word(out + 64 * (code_bits(layout) - 1), plane)


cdef inline void put_subs(const int layout, const Block* block, uint8_t* pairs, const int r) noexcept nogil:
    """Writes the scales and minima of row r's sub-blocks, in pairs; in k2 a scale and its minimum share a byte."""
    cdef int n_pairs = 8 if has_subs_of_16(layout) else 4, s
    for s in range(2 * n_pairs):
        if layout == L_K2:
            pairs[32 * (s >> 1) + 2 * r + (s & 1)] = block.scales[s] | (block.minima[s] << 4)
        else:
            pairs[32 * (s >> 1) + 2 * r + (s & 1)] = <uint8_t>block.scales[s]
            if has_minima(layout):
                pairs[32 * n_pairs + 32 * (s >> 1) + 2 * r + (s & 1)] = <uint8_t>block.minima[s]


cdef inline void block_pack(const int layout, const int block_len, const int block_bytes, Unpack unpack,
                            const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    """Packs 16 rows of blocks; one block of the file may become several blocks of the panel, each with its scale."""
    cdef int per = block_len // form_of(layout), r, s, k
    cdef uint8_t* head
    cdef uint8_t* codes
    cdef Block block
    cdef Py_ssize_t b
    for b in range(cols // block_len):
        for r in range(16):
            unpack(row[r] + block_bytes * b, &block)
            for k in range(per):
                head = out + header_at(layout, per * b + k)
                codes = out + codes_at(layout, per * b + k) + 4 * r
                if has_halves(layout):
                    head[2 * r], head[2 * r + 1] = <uint8_t>block.scales[2 * k], <uint8_t>block.scales[2 * k + 1]
                elif scale_bytes(layout) == 4:
                    put_word(head + 4 * r, block.d)
                else:
                    put_half(head + 2 * r, <uint16_t>block.d)
                if has_minima(layout):
                    put_half(head + 32 + 2 * r, block.minimum)
                if has_subs(layout):
                    put_subs(layout, &block, head + (64 if has_minima(layout) else 32), r)
                for s in range(form_of(layout) // 32):
                    put_codes(layout, block.codes + 8 * (k * (form_of(layout) // 32) + s),
                              codes + 64 * code_bits(layout) * s)
