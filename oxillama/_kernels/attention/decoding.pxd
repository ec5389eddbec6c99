"""Stored keys and values as float32, for the types that the walk cannot read directly.

number = (code - excess) * scale (+ minimum). A scale is a half and a code has at most 8 bits: the product is exact,
so every target gives the same float32 with its own instructions.
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from oxillama._kernels.attention.kvpage cimport (
    KV_BLOCK, LANES, Pages, kv_block_bytes, kv_code_bytes, kv_halves)
from oxillama._kernels.packing.formats cimport (
    L_BF16, L_C4, L_C5, L_C8, L_F16, L_F32, L_M4, L_M5, L_T4, VALUES_T4, code_bits, code_excess, has_minima)
from oxillama._kernels.packing.layouts cimport float_load
from oxillama._kernels.packing.unpack cimport spread
from oxillama._kernels.simd.simd cimport *


cdef inline float stored_float(const int kv_type, const uint8_t* base, Py_ssize_t i) noexcept nogil:
    if kv_type == L_F32:
        return (<const float*>base)[i]
    if kv_type == L_F16:
        return ox_f32_from_f16((<const uint16_t*>base)[i])
    return ox_f32_from_bf16((<const uint16_t*>base)[i])


cdef inline void codes_of_position(const int kv_type, const uint8_t* bytes_, int8_t* out) noexcept nogil:
    """The 32 codes of a block at one position, excess subtracted: out[d]."""
    cdef uint32_t word
    cdef int i
    if code_bits(kv_type) == 8:
        memcpy(out, bytes_, KV_BLOCK)
        return
    for i in range(16):
        out[i] = bytes_[i] & 15
        out[i + 16] = bytes_[i] >> 4
    if code_bits(kv_type) == 5:
        for i in range(8):
            memcpy(&word, out + 4 * i, 4)
            word = word | (spread(bytes_[16 + i // 2] >> (4 * (i & 1))) << 4)
            memcpy(out + 4 * i, &word, 4)
    for i in range(KV_BLOCK):
        out[i] = VALUES_T4[out[i]] if kv_type == L_T4 else out[i] - code_excess(kv_type)


cdef inline void codes_of_panel(const int kv_type, const uint8_t* bytes_, int8_t* out) noexcept nogil:
    """The codes of a block at 16 positions, from bytes [bytes][16], excess subtracted: out[d * 16 + position]."""
    cdef int i, d
    if code_bits(kv_type) == 8:
        memcpy(out, bytes_, KV_BLOCK * LANES)
        return
    for i in range(256):
        out[i] = bytes_[i] & 15
        out[i + 256] = bytes_[i] >> 4
    if code_bits(kv_type) == 5:
        for d in range(KV_BLOCK):
            for i in range(16):
                out[16 * d + i] = out[16 * d + i] | (((bytes_[256 + 16 * (d >> 3) + i] >> (d & 7)) & 1) << 4)
    for i in range(512):
        out[i] = VALUES_T4[out[i]] if kv_type == L_T4 else out[i] - code_excess(kv_type)


cdef inline void decode_whole_keys(const int kv_type, const uint8_t* panel, Py_ssize_t dim, float* out) noexcept nogil:
    """The keys of all 16 positions of a panel: out[d * 16 + position]."""
    cdef int8_t codes[KV_BLOCK * LANES]
    cdef f32x16 scale, x
    cdef Py_ssize_t d, j
    if code_bits(kv_type) == 0:
        for d in range(dim):
            f32_store(out + d * LANES, float_load(kv_type, panel, d))
        return
    for d in range(0, dim, 32):
        codes_of_panel(kv_type, panel + 2 * LANES * kv_halves(kv_type), codes)
        scale = f32_load_f16(<const uint16_t*>panel)
        for j in range(min(<Py_ssize_t>KV_BLOCK, dim - d)):
            x = f32_mul(f32_load_i8(codes + LANES * j), scale)
            if has_minima(kv_type):
                x = f32_add(x, f32_load_f16(<const uint16_t*>panel + LANES))
            f32_store(out + (d + j) * LANES, x)
        panel = panel + kv_block_bytes(kv_type) * LANES


cdef inline void decode_key(const int kv_type, const uint8_t* panel, Py_ssize_t lanes, Py_ssize_t lane, Py_ssize_t dim,
                            float* out) noexcept nogil:
    """The key of one position of a panel of ``lanes``: out[d * 16]."""
    cdef uint8_t bytes_[KV_BLOCK]
    cdef int8_t codes[KV_BLOCK]
    cdef float scale, minimum = 0
    cdef Py_ssize_t d, j
    if code_bits(kv_type) == 0:
        for d in range(dim):
            out[d * LANES] = stored_float(kv_type, panel, d * lanes + lane)
        return
    for d in range(0, dim, 32):
        for j in range(kv_code_bytes(kv_type)):
            bytes_[j] = panel[(2 * kv_halves(kv_type) + j) * lanes + lane]
        codes_of_position(kv_type, bytes_, codes)
        scale = ox_f32_from_f16((<const uint16_t*>panel)[lane])
        if has_minima(kv_type):
            minimum = ox_f32_from_f16((<const uint16_t*>panel)[lanes + lane])
        for j in range(min(<Py_ssize_t>KV_BLOCK, dim - d)):
            out[(d + j) * LANES] = codes[j] * scale
            if has_minima(kv_type):
                out[(d + j) * LANES] = out[(d + j) * LANES] + minimum
        panel = panel + kv_block_bytes(kv_type) * lanes


cdef inline void decode_values(const int kv_type, const uint8_t* panel, Py_ssize_t lanes, Py_ssize_t lane, Py_ssize_t n,
                               Py_ssize_t pad, float* out) noexcept nogil:
    """The values at positions lane .. lane + n of a panel of ``lanes``: out[i * pad + d]."""
    cdef int8_t codes[KV_BLOCK]
    cdef const uint8_t* block
    cdef f32x16 scale, x
    cdef Py_ssize_t d, i, j
    for i in range(lane, lane + n):
        block = panel
        if code_bits(kv_type) == 0:
            for d in range(pad // LANES):
                f32_store(out + d * LANES, float_load(kv_type, panel, i * (pad // LANES) + d))
        else:
            for d in range(0, pad, 32):
                codes_of_position(kv_type, block + 2 * lanes * kv_halves(kv_type) + i * kv_code_bytes(kv_type), codes)
                scale = f32_set1(ox_f32_from_f16((<const uint16_t*>block)[i]))
                for j in range(0, KV_BLOCK, 16):
                    x = f32_mul(f32_load_i8(codes + j), scale)
                    if has_minima(kv_type):
                        x = f32_add(x, f32_set1(ox_f32_from_f16((<const uint16_t*>block)[lanes + i])))
                    f32_store(out + d + j, x)
                block = block + kv_block_bytes(kv_type) * lanes
        out = out + pad


cdef inline void decode_keys(const int kv_type, const uint8_t* panel, Py_ssize_t lanes, Py_ssize_t lane, Py_ssize_t n,
                             Py_ssize_t dim, float* out) noexcept nogil:
    """The keys at positions lane .. lane + n of a panel of ``lanes``: out[d * 16 + i]."""
    cdef Py_ssize_t i
    if n == LANES:
        decode_whole_keys(kv_type, panel, dim, out)
    else:
        for i in range(n):
            decode_key(kv_type, panel, lanes, lane + i, dim, out + i)


cdef inline void decode_panel(const Pages* c, const uint8_t* keys, const uint8_t* values, Py_ssize_t lane, Py_ssize_t n,
                              Py_ssize_t at, float* to_keys, float* to_values) noexcept nogil:
    """Decodes positions lane .. lane + n of two panels to positions at .. at + n of float32 panels of 16."""
    cdef float* k = to_keys + at
    cdef float* v = to_values + at * c.value_pad
    if c.key_type == L_F32:
        decode_keys(L_F32, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_F16:
        decode_keys(L_F16, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_BF16:
        decode_keys(L_BF16, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_C8:
        decode_keys(L_C8, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_C4:
        decode_keys(L_C4, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_C5:
        decode_keys(L_C5, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_M4:
        decode_keys(L_M4, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_M5:
        decode_keys(L_M5, keys, c.lanes, lane, n, c.key_dim, k)
    else:
        decode_keys(L_T4, keys, c.lanes, lane, n, c.key_dim, k)
    if c.value_type == L_F32:
        decode_values(L_F32, values, c.lanes, lane, n, c.value_pad, v)
    elif c.value_type == L_F16:
        decode_values(L_F16, values, c.lanes, lane, n, c.value_pad, v)
    elif c.value_type == L_BF16:
        decode_values(L_BF16, values, c.lanes, lane, n, c.value_pad, v)
    elif c.value_type == L_C8:
        decode_values(L_C8, values, c.lanes, lane, n, c.value_pad, v)
    elif c.value_type == L_C4:
        decode_values(L_C4, values, c.lanes, lane, n, c.value_pad, v)
    elif c.value_type == L_C5:
        decode_values(L_C5, values, c.lanes, lane, n, c.value_pad, v)
    elif c.value_type == L_M4:
        decode_values(L_M4, values, c.lanes, lane, n, c.value_pad, v)
    elif c.value_type == L_M5:
        decode_values(L_M5, values, c.lanes, lane, n, c.value_pad, v)
    else:
        decode_values(L_T4, values, c.lanes, lane, n, c.value_pad, v)
