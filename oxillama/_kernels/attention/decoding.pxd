"""Stored keys and values as float32, for the types that the walk does not take as they are.

number = (code - excess) * scale (+ minimum). A scale is a half and a code has at most 8 bits: the product is exact,
so every target gives the same float32 whatever instructions it takes for it.
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from oxillama._kernels.attention.kvpage cimport (
    KV_BLOCK, LANES, Pages, kv_block_bytes, kv_code_bytes, kv_halves)
from oxillama._kernels.packing.formats cimport (
    L_BF16, L_C4, L_C5, L_C8, L_F16, L_F32, L_M4, L_M5, L_T4, VALUES_T4, code_bits, code_excess, has_minima)
from oxillama._kernels.packing.layouts cimport float_load
from oxillama._kernels.simd.simd cimport *


cdef inline float stored_float(const int kv_type, const uint8_t* base, Py_ssize_t i) noexcept nogil:
    if kv_type == L_F32:
        return (<const float*>base)[i]
    if kv_type == L_F16:
        return ox_f32_from_f16((<const uint16_t*>base)[i])
    return ox_f32_from_bf16((<const uint16_t*>base)[i])


cdef inline int stored_code(const int kv_type, const uint8_t* codes, const int i, Py_ssize_t stride) noexcept nogil:
    """Code ``i`` of a block whose code bytes are ``stride`` apart, without its excess."""
    cdef int code
    if code_bits(kv_type) == 8:
        return <int8_t>codes[i * stride]
    code = (codes[(i & 15) * stride] >> (4 * (i >> 4))) & 15
    if code_bits(kv_type) == 5:
        code = code | (((codes[(16 + (i >> 3)) * stride] >> (i & 7)) & 1) << 4)
    return VALUES_T4[code] if kv_type == L_T4 else code - code_excess(kv_type)


cdef inline void decode_keys(const int kv_type, const uint8_t* panel, const Py_ssize_t lanes, Py_ssize_t lane,
                             const Py_ssize_t n, Py_ssize_t dim, float* out) noexcept nogil:
    """Positions lane .. lane + n of a panel of ``lanes``: out[d * 16 + i]."""
    cdef float scale[LANES]
    cdef float minimum[LANES]
    cdef const uint8_t* codes
    cdef Py_ssize_t d, i
    cdef int j
    if code_bits(kv_type) == 0:
        for d in range(dim):
            if n == LANES:
                f32_store(out + d * LANES, float_load(kv_type, panel, d))
            else:
                for i in range(n):
                    out[d * LANES + i] = stored_float(kv_type, panel, d * lanes + lane + i)
        return
    for d in range(0, dim, 32):
        codes = panel + 2 * kv_halves(kv_type) * lanes + lane
        for i in range(n):
            scale[i] = ox_f32_from_f16((<const uint16_t*>panel)[lane + i])
            if has_minima(kv_type):
                minimum[i] = ox_f32_from_f16((<const uint16_t*>panel)[lanes + lane + i])
        for j in range(<int>min(<Py_ssize_t>KV_BLOCK, dim - d)):
            for i in range(n):
                out[j * LANES + i] = stored_code(kv_type, codes + i, j, lanes) * scale[i]
                if has_minima(kv_type):
                    out[j * LANES + i] = out[j * LANES + i] + minimum[i]
        out = out + KV_BLOCK * LANES
        panel = panel + kv_block_bytes(kv_type) * lanes


cdef inline void decode_values(const int kv_type, const uint8_t* panel, Py_ssize_t lanes, Py_ssize_t lane, Py_ssize_t n,
                               Py_ssize_t pad, float* out) noexcept nogil:
    """Positions lane .. lane + n of a panel of ``lanes``: out[i * pad + d]."""
    cdef float scale, minimum = 0
    cdef const uint8_t* block
    cdef const uint8_t* codes
    cdef Py_ssize_t d, i
    cdef int j
    for i in range(lane, lane + n):
        if code_bits(kv_type) == 0:
            for d in range(pad // LANES):
                f32_store(out + d * LANES, float_load(kv_type, panel, i * (pad // LANES) + d))
        else:
            block = panel
            for d in range(0, pad, 32):
                scale = ox_f32_from_f16((<const uint16_t*>block)[i])
                if has_minima(kv_type):
                    minimum = ox_f32_from_f16((<const uint16_t*>block)[lanes + i])
                codes = block + 2 * kv_halves(kv_type) * lanes + i * kv_code_bytes(kv_type)
                for j in range(KV_BLOCK):
                    out[d + j] = stored_code(kv_type, codes, j, 1) * scale
                    if has_minima(kv_type):
                        out[d + j] = out[d + j] + minimum
                block = block + kv_block_bytes(kv_type) * lanes
        out = out + pad


cdef inline void keys_of_type(const int kv_type, const uint8_t* panel, Py_ssize_t lanes, Py_ssize_t lane, Py_ssize_t n,
                              Py_ssize_t dim, float* out) noexcept nogil:
    """`decode_keys`, where whole panels have constant sizes."""
    if n == LANES:
        decode_keys(kv_type, panel, LANES, 0, LANES, dim, out)
    else:
        decode_keys(kv_type, panel, lanes, lane, n, dim, out)


cdef inline void decode_panel(const Pages* c, const uint8_t* keys, const uint8_t* values, Py_ssize_t lane, Py_ssize_t n,
                              Py_ssize_t at, float* to_keys, float* to_values) noexcept nogil:
    """Positions lane .. lane + n of two panels become positions at .. of panels of 16 in float32."""
    cdef float* k = to_keys + at
    cdef float* v = to_values + at * c.value_pad
    if c.key_type == L_F32:
        keys_of_type(L_F32, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_F16:
        keys_of_type(L_F16, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_BF16:
        keys_of_type(L_BF16, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_C8:
        keys_of_type(L_C8, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_C4:
        keys_of_type(L_C4, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_C5:
        keys_of_type(L_C5, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_M4:
        keys_of_type(L_M4, keys, c.lanes, lane, n, c.key_dim, k)
    elif c.key_type == L_M5:
        keys_of_type(L_M5, keys, c.lanes, lane, n, c.key_dim, k)
    else:
        keys_of_type(L_T4, keys, c.lanes, lane, n, c.key_dim, k)
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
