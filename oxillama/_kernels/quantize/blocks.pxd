"""Writes quantized blocks as GGUF files have them: where each code, scale and half float lies.

unpack.pxd describes the blocks, and reads them.
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t
from libc.string cimport memcpy, memset

from oxillama._kernels.packing.formats cimport Q2_K, Q3_K, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K
from oxillama._kernels.simd.simd cimport ox_f16_from_f32

cdef inline void put_half(uint8_t* p, float value) noexcept nogil:
    cdef uint16_t h = ox_f16_from_f32(value)
    memcpy(p, &h, 2)


cdef inline bint has_minimum(const int format_id) noexcept nogil:
    return format_id == Q4_1 or format_id == Q5_1


cdef inline int levels(const int format_id) noexcept nogil:
    return 32 if format_id == Q5_0 or format_id == Q5_1 else 16


cdef inline void put_nibble_block(const int format_id, const uint8_t* codes, float d, float m,
                                  uint8_t* out) noexcept nogil:
    """A block of Q4_0 to Q5_1, of codes from 0 on."""
    cdef int at = 2, i
    put_half(out, d)
    if has_minimum(format_id):
        put_half(out + 2, m)
        at = 4
    if levels(format_id) == 32:
        memset(out + at, 0, 4)
        for i in range(32):
            out[at + i // 8] |= (codes[i] >> 4) << (i & 7)
        at += 4
    for i in range(16):
        out[at + i] = (codes[i] & 15) | ((codes[i + 16] & 15) << 4)


cdef inline void put_codes(const int format_id, const uint8_t* codes, uint8_t* out) noexcept nogil:
    """256 codes into a block whose codes are zero."""
    cdef int s, i, c, h, k
    for s in range(8):
        h, k = s >> 2, s & 3
        for i in range(32):
            c = codes[32 * s + i]
            if format_id == Q2_K:
                out[16 + 32 * h + i] |= c << (2 * k)
            elif format_id == Q3_K:
                out[32 + 32 * h + i] |= (c & 3) << (2 * k)
                out[i] |= (c >> 2) << s
            elif format_id == Q4_K:
                out[16 + 32 * (s >> 1) + i] |= c << (4 * (s & 1))
            elif format_id == Q5_K:
                out[48 + 32 * (s >> 1) + i] |= (c & 15) << (4 * (s & 1))
                out[16 + i] |= (c >> 4) << s
            else:
                out[64 * h + 32 * (k & 1) + i] |= (c & 15) << (4 * (k >> 1))
                out[128 + 32 * h + i] |= (c >> 4) << (2 * k)


cdef inline void put_fields(const int format_id, const float* scale, const float* minimum, float d, float dmin,
                            uint8_t* out) noexcept nogil:
    cdef int s, c
    cdef uint8_t sc[16]
    cdef uint8_t mn[16]
    if format_id == Q2_K:
        for s in range(16):
            out[s] = <uint8_t>(<int>scale[s] | (<int>minimum[s] << 4))
        put_half(out + 80, d)
        put_half(out + 82, dmin)
    elif format_id == Q3_K:
        for s in range(16):
            c = <int>scale[s] + 32
            out[96 + (s & 7)] |= (c & 15) << (4 * (s >> 3))
            out[104 + (s & 3)] |= (c >> 4) << (2 * (s >> 2))
        put_half(out + 108, d)
    elif format_id == Q6_K:
        for s in range(16):
            out[192 + s] = <uint8_t><int8_t>scale[s]
        put_half(out + 208, d)
    else:
        for s in range(8):
            sc[s], mn[s] = <uint8_t>scale[s], <uint8_t>minimum[s]
        for s in range(4):
            out[4 + s] = sc[s] | ((sc[s + 4] >> 4) << 6)
            out[8 + s] = mn[s] | ((mn[s + 4] >> 4) << 6)
            out[12 + s] = (sc[s + 4] & 15) | ((mn[s + 4] & 15) << 4)
        put_half(out, d)
        put_half(out + 2, dmin)
