"""How keys and values lie in a page, and how they get there.

A page holds ``page_size`` positions of every layer: per layer and head the keys, then the values, both in
panels of ``lanes`` positions: 16, or all of the page where it holds fewer.

    page           [layer] { keys [head][panel], values [head][panel] }
    f32 f16 bf16   keys [key_dim][lanes]       values [lanes][value_pad]
    q8_0           per block of 32 dimensions a scale (f16) and codes (int8) to each position
                   keys [block] { scale [lanes], code [32][lanes] }
                   values [block] { scale [lanes], code [lanes][32] }

A key stands dimension by dimension, so that a vector lane is a position and no score is summed over lanes. A
value stands in one piece, padded with zeros to whole vectors of 16 (q8_0: blocks of 32). What is stored of a
position depends on its own key and value only.

The walk over positions takes panels of 16. Smaller ones are gathered into one first (`panels.pxd`).
A page of keys alone has a ``value_dim`` of 0.
"""

from libc.math cimport fabsf
from libc.stdint cimport int8_t, uint8_t, uint16_t
from libc.string cimport memcpy, memset

from oxillama._kernels.packing.formats cimport L_BF16, L_C8, L_F16, L_F32
from oxillama._kernels.simd.simd cimport *

cdef enum:
    LANES = 16
    Q8_BLOCK = 32
    Q8_BYTES = 34  # of a block at one position: an f16 and 32 codes


cdef struct Pages:
    Py_ssize_t n_layers, n_heads, key_dim, value_dim, value_pad, page_size, lanes
    Py_ssize_t key_bytes, value_bytes  # of one position and head
    Py_ssize_t keys_bytes, layer_bytes
    int kv_type


cdef inline Pages page_layout(Py_ssize_t n_layers, Py_ssize_t n_heads, Py_ssize_t key_dim, Py_ssize_t value_dim,
                              int kv_type, Py_ssize_t page_size) noexcept nogil:
    cdef Pages c
    cdef Py_ssize_t item = 4 if kv_type == L_F32 else 2, unit = Q8_BLOCK if kv_type == L_C8 else LANES
    c.n_layers, c.n_heads, c.key_dim, c.value_dim = n_layers, n_heads, key_dim, value_dim
    c.kv_type, c.page_size, c.lanes = kv_type, page_size, min(page_size, <Py_ssize_t>LANES)
    c.value_pad = (value_dim + unit - 1) // unit * unit
    if kv_type == L_C8:
        c.key_bytes = (key_dim + Q8_BLOCK - 1) // Q8_BLOCK * Q8_BYTES
        c.value_bytes = c.value_pad // Q8_BLOCK * Q8_BYTES
    else:
        c.key_bytes, c.value_bytes = key_dim * item, c.value_pad * item
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
    """16 values from ``x``, or ``left`` of them and then zeros."""
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


cdef inline uint16_t q8_block(const float* x, Py_ssize_t n, int8_t* codes) noexcept nogil:
    """Codes of ``n`` values, zeros up to 32, and their scale as f16: the largest magnitude / 127, as GGUF's Q8_0.

    Codes are rounded to nearest, ties to even. A block whose scale is no finite half (a NaN, an infinity, or a
    value beyond 8.3e6 in it) is NaN as a whole: 0 times that scale.
    """
    cdef float most = 0, inverse
    cdef uint16_t scale
    cdef Py_ssize_t i
    memset(codes, 0, Q8_BLOCK)
    for i in range(n):
        if not fabsf(x[i]) <= most:
            most = fabsf(x[i])
            if most != most:
                return 0x7e00
    scale = ox_f16_from_f32(most / <float>127.0)
    if scale >= 0x7c00:
        return 0x7e00
    if scale != 0:
        inverse = <float>127.0 / most
        for i in range(n):  # adding 1.5 * 2^23 rounds to an integer
            codes[i] = <int8_t>((x[i] * inverse + <float>12582912.0) - <float>12582912.0)
    return scale


cdef inline void put_key(const Pages* c, uint8_t* panel, Py_ssize_t lane, const float* x) noexcept nogil:
    cdef Py_ssize_t d, i, n
    cdef int8_t codes[Q8_BLOCK]
    if c.kv_type != L_C8:
        for d in range(c.key_dim):
            put(c.kv_type, panel, d * c.lanes + lane, x[d])
        return
    for d in range(0, c.key_dim, 32):
        n = min(<Py_ssize_t>Q8_BLOCK, c.key_dim - d)
        (<uint16_t*>panel)[lane] = q8_block(x + d, n, codes)
        for i in range(n):
            (<int8_t*>panel)[(2 + i) * c.lanes + lane] = codes[i]
        panel = panel + Q8_BYTES * c.lanes


cdef inline void put_value(const Pages* c, uint8_t* panel, Py_ssize_t lane, const float* x) noexcept nogil:
    cdef Py_ssize_t d
    if c.kv_type != L_C8:
        for d in range(0, c.value_dim, 16):
            put_lanes(c.kv_type, panel, lane * c.value_pad + d, x + d, c.value_dim - d)
        return
    for d in range(0, c.value_dim, 32):
        (<uint16_t*>panel)[lane] = q8_block(x + d, min(<Py_ssize_t>Q8_BLOCK, c.value_dim - d),
                                            <int8_t*>panel + 2 * c.lanes + Q8_BLOCK * lane)
        panel = panel + Q8_BYTES * c.lanes
