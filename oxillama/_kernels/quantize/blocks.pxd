"""Writes quantized blocks in the byte layout of GGUF files: the place of each code, scale and half float.

unpack.pxd describes the blocks and reads them.
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from oxillama._kernels.packing.formats cimport (
    IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_XS, Q2_K, Q3_K, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K,
    format_block_bytes)
from oxillama._kernels.simd.simd cimport ox_f16_from_f32

cdef inline void put_word(uint8_t* p, uint32_t w) noexcept nogil:
    memcpy(p, &w, 4)


cdef inline void put_half(uint8_t* p, float value) noexcept nogil:
    cdef uint16_t h = ox_f16_from_f32(value)
    memcpy(p, &h, 2)


cdef inline bint has_minimum(const int format_id) noexcept nogil:
    return format_id == Q4_1 or format_id == Q5_1


cdef inline bint is_odd(int bits) noexcept nogil:
    """Whether an odd number of 8 bits is set."""
    bits ^= bits >> 4
    bits ^= bits >> 2
    return (bits ^ (bits >> 1)) & 1


cdef inline int levels(const int format_id) noexcept nogil:
    return 32 if format_id == Q5_0 or format_id == Q5_1 else 16


cdef inline void put_nibble_block(const int format_id, const uint8_t* codes, float d, float m,
                                  uint8_t* out) noexcept nogil:
    """Writes a block of Q4_0 to Q5_1 from codes >= 0."""
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
    """Writes 256 codes to a block whose code bits are zero."""
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
            elif format_id == IQ4_XS:
                out[8 + 16 * s + (i & 15)] |= c << (4 * (i >> 4))
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
    elif format_id == IQ4_XS:
        put_half(out, d)
        for s in range(8):
            c = <int>scale[s] + 32
            out[4 + (s >> 1)] |= (c & 15) << (4 * (s & 1))
            out[2 + (s >> 2)] |= (c >> 4) << (2 * (s & 3))
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


cdef inline void put_nibbles(const int* values, int n, uint8_t* out) noexcept nogil:
    cdef int i
    for i in range(0, n, 2):
        out[i >> 1] = <uint8_t>(values[i] | (values[i + 1] << 4))


cdef inline uint32_t four_signs(const uint8_t* signs) noexcept nogil:
    """7 of the 8 signs of each of 4 groups, in 28 bits."""
    return ((signs[0] & 127) | ((signs[1] & 127) << 7) | ((signs[2] & 127) << 14)
            | (<uint32_t>(signs[3] & 127) << 21))


cdef inline void put_grid_block(const int format_id, const int* scale, const uint16_t* entry, const uint8_t* signs,
                                const uint8_t* shift, float d, uint8_t* out) noexcept nogil:
    """Writes a block of IQ1, IQ2 or IQ3: a grid entry for each 4 or 8 values, a byte of signs and a shift for each 8.
    """
    cdef uint16_t h = ox_f16_from_f32(d)
    cdef uint32_t word
    cdef int s, k
    memset(out, 0, format_block_bytes(format_id))
    if format_id == IQ1_M:
        for k in range(32):
            out[k] = <uint8_t>entry[k]
            out[32 + (k >> 1)] |= ((entry[k] >> 8) | (shift[k] << 3)) << (4 * (k & 1))
        for k in range(4):
            word = (h >> (4 * k) & 15) << 12
            for s in range(4):
                word |= scale[4 * k + s] << (3 * s)
            out[48 + 2 * k], out[49 + 2 * k] = <uint8_t>word, <uint8_t>(word >> 8)
        return
    put_half(out, d)
    if format_id == IQ1_S:
        for s in range(8):
            word = (scale[s] << 12) | (shift[4 * s] << 15)
            for k in range(4):
                out[2 + 4 * s + k] = <uint8_t>entry[4 * s + k]
                word |= (entry[4 * s + k] >> 8) << (3 * k)
            out[34 + 2 * s], out[35 + 2 * s] = <uint8_t>word, <uint8_t>(word >> 8)
    elif format_id == IQ2_XXS:
        for s in range(8):
            for k in range(4):
                out[2 + 8 * s + k] = <uint8_t>entry[4 * s + k]
            put_word(out + 6 + 8 * s, four_signs(signs + 4 * s) | (<uint32_t>scale[s] << 28))
    elif format_id == IQ2_XS:
        for k in range(32):
            out[2 + 2 * k] = <uint8_t>entry[k]
            out[3 + 2 * k] = <uint8_t>((entry[k] >> 8) | ((signs[k] & 127) << 1))
        put_nibbles(scale, 16, out + 66)
    elif format_id == IQ2_S:
        for k in range(32):
            out[2 + k] = <uint8_t>entry[k]
            out[34 + k] = signs[k]
            out[66 + (k >> 2)] |= (entry[k] >> 8) << (2 * (k & 3))
        put_nibbles(scale, 16, out + 74)
    elif format_id == IQ3_XXS:
        for k in range(64):
            out[2 + k] = <uint8_t>entry[k]
        for s in range(8):
            put_word(out + 66 + 4 * s, four_signs(signs + 4 * s) | (<uint32_t>scale[s] << 28))
    else:  # IQ3_S
        for k in range(64):
            out[2 + k] = <uint8_t>entry[k]
            out[66 + (k >> 3)] |= (entry[k] >> 8) << (k & 7)
        for k in range(32):
            out[74 + k] = signs[k]
        put_nibbles(scale, 8, out + 106)
