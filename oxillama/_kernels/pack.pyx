"""From the blocks of a GGUF file to floats (`dequantize`) and to packed panels (`pack`).

One body of each per format; the panels are described in layouts.pxd. Both only move bits and
multiply floats one by one, so this module is compiled once and not per target.
"""

cimport numpy as cnp
from cython.parallel cimport prange
from libc.stdint cimport int8_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from arrays cimport f32_data, u8_data
from layouts cimport *
from simd cimport ox_f32_from_bf16, ox_f32_from_f16

cnp.import_array()

cdef enum:  # format ids, as stored in GGUF files
    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30

ctypedef void (*dequantize_body)(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil
# 16 row pointers (rows past the end point at zeros), columns, one panel of output
ctypedef void (*pack_body)(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil


cdef struct Codec:
    dequantize_body dequantize
    pack_body pack
    int layout
    Py_ssize_t block_len, block_bytes


cdef inline uint16_t half_at(const uint8_t* p) noexcept nogil:
    cdef uint16_t h
    memcpy(&h, p, 2)
    return h


cdef inline uint32_t word_at(const uint8_t* p) noexcept nogil:
    cdef uint32_t w
    memcpy(&w, p, 4)
    return w


cdef inline void put_word(uint8_t* p, uint32_t w) noexcept nogil:
    memcpy(p, &w, 4)


cdef inline void put_half(uint8_t* p, uint16_t h) noexcept nogil:
    memcpy(p, &h, 2)


# --- floats ---------------------------------------------------------------------------------------

cdef void f32_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    memcpy(out, blocks, 4 * n)


cdef void f16_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = ox_f32_from_f16(half_at(blocks + 2 * i))


cdef void bf16_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = ox_f32_from_bf16(half_at(blocks + 2 * i))


cdef void f32_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Py_ssize_t k
    cdef int r
    for k in range(cols):
        for r in range(16):
            memcpy(out + 64 * k + 4 * r, row[r] + 4 * k, 4)


cdef void half_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Py_ssize_t k
    cdef int r
    for k in range(cols):
        for r in range(16):
            memcpy(out + 32 * k + 2 * r, row[r] + 2 * k, 2)


# --- blocks of 32 ---------------------------------------------------------------------------------
#
# Q8_0          f16 d, 32 signed codes
# Q4_0 IQ4_NL   f16 d, 16 bytes of nibbles: value i in the low half of byte i, i + 16 in the high one
# Q4_1          f16 d, f16 m, nibbles
# Q5_0          f16 d, 32 bits: the values' fifth, nibbles
# Q5_1          f16 d, f16 m, 32 bits, nibbles

cdef void q8_0_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Py_ssize_t b, i
    cdef float d
    for b in range(n):
        d = ox_f32_from_f16(half_at(blocks + 34 * b))
        for i in range(32):
            out[32 * b + i] = d * <int8_t>blocks[34 * b + 2 + i]


cdef void q8_0_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Py_ssize_t b
    cdef uint8_t* head
    cdef uint8_t* codes
    cdef const uint8_t* src
    cdef int r, g
    for b in range(cols // 32):
        head = out + header_at(L_C8, b)
        codes = out + codes_at(L_C8, b)
        for r in range(16):
            src = row[r] + 34 * b
            put_half(head + 2 * r, half_at(src))
            for g in range(8):
                put_word(codes + 64 * g + 4 * r, word_at(src + 2 + 4 * g))


# Where the parts of a nibble block lie; 0 where it has no such part.
cdef struct Nibbles:
    int layout, bytes, minimum, fifth, nibbles


cdef inline Nibbles nibble_block(const int format_id) noexcept nogil:
    if format_id == Q4_0:
        return Nibbles(L_C4, 18, 0, 0, 2)
    if format_id == Q4_1:
        return Nibbles(L_M4, 20, 2, 0, 4)
    if format_id == Q5_0:
        return Nibbles(L_C5, 22, 0, 2, 6)
    if format_id == Q5_1:
        return Nibbles(L_M5, 24, 2, 4, 8)
    return Nibbles(L_T4, 18, 0, 0, 2)  # IQ4_NL


cdef inline void nibble_dequantize(const int format_id, const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Nibbles at = nibble_block(format_id)
    cdef const uint8_t* block
    cdef Py_ssize_t b
    cdef uint32_t fifth = 0
    cdef float d, m = 0
    cdef int i, code
    for b in range(n):
        block = blocks + at.bytes * b
        d = ox_f32_from_f16(half_at(block))
        if at.minimum:
            m = ox_f32_from_f16(half_at(block + at.minimum))
        if at.fifth:
            fifth = word_at(block + at.fifth)
        for i in range(32):
            code = (block[at.nibbles + (i & 15)] >> (4 * (i >> 4))) & 15
            if at.fifth:
                code |= ((fifth >> i) & 1) << 4
            if at.minimum:
                out[32 * b + i] = d * <float>code + m
            elif at.layout == L_T4:
                out[32 * b + i] = d * <float>IQ4_VALUES[code]
            else:
                out[32 * b + i] = d * <float>(code - (16 if at.fifth else 8))


cdef inline uint32_t every_fourth(uint32_t bits) noexcept nogil:
    """Bits 0, 4, 8, ... 28 gathered in the low byte."""
    bits = bits & 0x11111111
    bits = (bits | (bits >> 3)) & 0x03030303
    bits = (bits | (bits >> 6)) & 0x000F000F
    return (bits | (bits >> 12)) & 0xFF


cdef inline void nibble_pack(const int format_id, const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Nibbles at = nibble_block(format_id)
    cdef uint8_t* head
    cdef uint8_t* codes
    cdef const uint8_t* src
    cdef uint32_t fifth
    cdef Py_ssize_t b
    cdef int r, v
    for b in range(cols // 32):
        head = out + header_at(at.layout, b)
        codes = out + codes_at(at.layout, b)
        for r in range(16):
            src = row[r] + at.bytes * b
            put_half(head + 2 * r, half_at(src))
            if at.minimum:
                put_half(head + 32 + 2 * r, half_at(src + at.minimum))
            for v in range(4):
                put_word(codes + 64 * v + 4 * r, word_at(src + at.nibbles + 4 * v))
            if at.fifth:
                fifth = word_at(src + at.fifth)
                put_word(codes + 256 + 4 * r, every_fourth(fifth) | (every_fourth(fifth >> 1) << 8)
                         | (every_fourth(fifth >> 2) << 16) | (every_fourth(fifth >> 3) << 24))


cdef void q4_0_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    nibble_dequantize(Q4_0, blocks, n, out)


cdef void q4_1_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    nibble_dequantize(Q4_1, blocks, n, out)


cdef void q5_0_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    nibble_dequantize(Q5_0, blocks, n, out)


cdef void q5_1_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    nibble_dequantize(Q5_1, blocks, n, out)


cdef void iq4_nl_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    nibble_dequantize(IQ4_NL, blocks, n, out)


cdef void q4_0_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    nibble_pack(Q4_0, row, cols, out)


cdef void q4_1_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    nibble_pack(Q4_1, row, cols, out)


cdef void q5_0_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    nibble_pack(Q5_0, row, cols, out)


cdef void q5_1_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    nibble_pack(Q5_1, row, cols, out)


cdef void iq4_nl_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    nibble_pack(IQ4_NL, row, cols, out)


# --- blocks of 256 --------------------------------------------------------------------------------
#
# A format says how one of its blocks comes apart; dequantizing and packing are then the same for all.
#
# Q2_K    16 bytes of scale (low) and minimum (high nibble), 64 bytes of bit pairs, f16 d, f16 dmin
# Q3_K    32 bytes of third bits, 64 bytes of bit pairs, 16 6-bit scales in 12 bytes, f16 d
# Q4_K    f16 d, f16 dmin, 8 6-bit scales and minima in 12 bytes, 128 bytes of nibbles
# Q5_K    the same, with 32 bytes of fifth bits before the nibbles
# Q6_K    128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, f16 d
# IQ4_XS  f16 d, upper bits of 8 6-bit scales, their lower ones, 128 bytes of nibbles

# A block of 256 taken apart. Words hold four values that are consecutive along the row, one a byte.
cdef struct Super:
    uint16_t d, dmin
    int8_t scale[16]
    int8_t minimum[16]
    uint32_t codes[64]


cdef inline void scales_of_12(const uint8_t* s, Super* out) noexcept nogil:
    """8 scales and 8 minima of 6 bits, as Q4_K and Q5_K have them."""
    cdef int j
    for j in range(4):
        out.scale[j] = s[j] & 63
        out.minimum[j] = s[j + 4] & 63
        out.scale[j + 4] = (s[j + 8] & 15) | ((s[j] >> 6) << 4)
        out.minimum[j + 4] = (s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4)


cdef inline void take_apart(const int format_id, const uint8_t* block, Super* out) noexcept nogil:
    cdef int s, g, k, h
    cdef uint32_t w
    if format_id == Q2_K:
        out.d, out.dmin = half_at(block + 80), half_at(block + 82)
        for s in range(16):
            out.scale[s] = block[s] & 15
            out.minimum[s] = block[s] >> 4
    elif format_id == Q3_K:
        out.d = half_at(block + 108)
        for s in range(16):
            out.scale[s] = (((block[96 + (s & 7)] >> (4 * (s >> 3))) & 15)
                            | (((block[104 + (s & 3)] >> (2 * (s >> 2))) & 3) << 4)) - 32
    elif format_id == Q4_K or format_id == Q5_K:
        out.d, out.dmin = half_at(block), half_at(block + 2)
        scales_of_12(block + 4, out)
    elif format_id == Q6_K:
        out.d = half_at(block + 208)
        memcpy(out.scale, block + 192, 16)
    else:  # IQ4_XS
        out.d = half_at(block)
        for s in range(8):
            out.scale[s] = (((block[4 + (s >> 1)] >> (4 * (s & 1))) & 15)
                            | (((half_at(block + 2) >> (2 * s)) & 3) << 4)) - 32
    for s in range(8):  # 32 columns each, in 8 words
        h, k = s >> 2, s & 3
        for g in range(8):
            if format_id == Q2_K:
                w = (word_at(block + 16 + 32 * h + 4 * g) >> (2 * k)) & 0x03030303
            elif format_id == Q3_K:
                w = (word_at(block + 32 + 32 * h + 4 * g) >> (2 * k)) & 0x03030303
                w |= ((word_at(block + 4 * g) >> s) & 0x01010101) << 2
            elif format_id == Q4_K:
                w = (word_at(block + 16 + 32 * (s >> 1) + 4 * g) >> (4 * (s & 1))) & 0x0F0F0F0F
            elif format_id == Q5_K:
                w = (word_at(block + 48 + 32 * (s >> 1) + 4 * g) >> (4 * (s & 1))) & 0x0F0F0F0F
                w |= ((word_at(block + 16 + 4 * g) >> s) & 0x01010101) << 4
            elif format_id == Q6_K:
                w = (word_at(block + 64 * h + 32 * (k & 1) + 4 * g) >> (4 * (k >> 1))) & 0x0F0F0F0F
                w |= ((word_at(block + 128 + 32 * h + 4 * g) >> (2 * k)) & 0x03030303) << 4
            else:
                w = (word_at(block + 8 + 16 * s + 4 * (g & 3)) >> (4 * (g >> 2))) & 0x0F0F0F0F
            out.codes[8 * s + g] = w


cdef inline int super_layout(const int format_id) noexcept nogil:
    if format_id == Q2_K:
        return L_K2
    if format_id == Q3_K:
        return L_K3
    if format_id == Q4_K:
        return L_K4
    if format_id == Q5_K:
        return L_K5
    return L_K6 if format_id == Q6_K else L_KT


cdef inline void super_dequantize(const int format_id, const int block_bytes, const uint8_t* blocks, Py_ssize_t n,
                                  float* out) noexcept nogil:
    cdef int layout = super_layout(format_id)
    cdef int sub = 16 if has_subs_of_16(layout) else 32
    cdef Super block
    cdef Py_ssize_t b
    cdef float d, dmin, ds, dm
    cdef int i, code
    for b in range(n):
        take_apart(format_id, blocks + block_bytes * b, &block)
        d = ox_f32_from_f16(block.d)
        if has_minima(layout):
            dmin = ox_f32_from_f16(block.dmin)
        for i in range(256):
            code = (block.codes[i >> 2] >> (8 * (i & 3))) & 255
            ds = d * <float>block.scale[i // sub]
            if has_minima(layout):
                dm = dmin * <float>block.minimum[i // sub]
                out[256 * b + i] = ds * <float>code - dm
            elif layout == L_KT:
                out[256 * b + i] = ds * <float>IQ4_VALUES[code]
            else:
                out[256 * b + i] = ds * <float>(code - (4 if layout == L_K3 else 32))


cdef inline void put_codes(const int layout, const uint32_t* w, uint8_t* out) noexcept nogil:
    """The 32 codes of one row, 8 words of 4, into the row's lane of a packed vector each."""
    cdef uint32_t plane
    cdef int v, g
    if code_bits(layout) >= 4:
        for v in range(4):
            put_word(out + 64 * v, (w[v] & 0x0F0F0F0F) | ((w[v + 4] & 0x0F0F0F0F) << 4))
    else:
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
    if code_bits(layout) == 5 or code_bits(layout) == 3:
        plane = 0
        for g in range(8):
            plane |= ((w[g] >> (code_bits(layout) - 1)) & 0x01010101) << g
        put_word(out + (256 if code_bits(layout) == 5 else 128), plane)


cdef inline void super_pack(const int format_id, const int block_bytes, const uint8_t** row, Py_ssize_t cols,
                            uint8_t* out) noexcept nogil:
    cdef int layout = super_layout(format_id)
    cdef int n_pairs = 8 if has_subs_of_16(layout) else 4
    cdef uint8_t* head
    cdef uint8_t* pairs
    cdef uint8_t* codes
    cdef Super block
    cdef Py_ssize_t b
    cdef int r, s
    for b in range(cols // 256):
        head = out + header_at(layout, b)
        codes = out + codes_at(layout, b)
        pairs = head + (64 if has_minima(layout) else 32)
        for r in range(16):
            take_apart(format_id, row[r] + block_bytes * b, &block)
            put_half(head + 2 * r, block.d)
            if has_minima(layout):
                put_half(head + 32 + 2 * r, block.dmin)
            for s in range(2 * n_pairs):
                if layout == L_K2:
                    pairs[32 * (s >> 1) + 2 * r + (s & 1)] = block.scale[s] | (block.minimum[s] << 4)
                else:
                    pairs[32 * (s >> 1) + 2 * r + (s & 1)] = <uint8_t>block.scale[s]
                    if has_minima(layout):
                        pairs[32 * n_pairs + 32 * (s >> 1) + 2 * r + (s & 1)] = <uint8_t>block.minimum[s]
            for s in range(8):
                put_codes(layout, block.codes + 8 * s, codes + 64 * code_bits(layout) * s + 4 * r)


cdef void q2_k_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    super_dequantize(Q2_K, 84, blocks, n, out)


cdef void q2_k_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    super_pack(Q2_K, 84, row, cols, out)


cdef void q3_k_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    super_dequantize(Q3_K, 110, blocks, n, out)


cdef void q3_k_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    super_pack(Q3_K, 110, row, cols, out)


cdef void q4_k_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    super_dequantize(Q4_K, 144, blocks, n, out)


cdef void q4_k_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    super_pack(Q4_K, 144, row, cols, out)


cdef void q5_k_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    super_dequantize(Q5_K, 176, blocks, n, out)


cdef void q5_k_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    super_pack(Q5_K, 176, row, cols, out)


cdef void q6_k_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    super_dequantize(Q6_K, 210, blocks, n, out)


cdef void q6_k_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    super_pack(Q6_K, 210, row, cols, out)


cdef void iq4_xs_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    super_dequantize(IQ4_XS, 136, blocks, n, out)


cdef void iq4_xs_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    super_pack(IQ4_XS, 136, row, cols, out)


cdef int codec_of(int format_id, Codec* c) except -1:
    """The bodies and sizes of a format; a ValueError where there are none."""
    if format_id == F32:
        c[0] = Codec(f32_dequantize, f32_pack, L_F32, 1, 4)
    elif format_id == F16:
        c[0] = Codec(f16_dequantize, half_pack, L_F16, 1, 2)
    elif format_id == BF16:
        c[0] = Codec(bf16_dequantize, half_pack, L_BF16, 1, 2)
    elif format_id == Q8_0:
        c[0] = Codec(q8_0_dequantize, q8_0_pack, L_C8, 32, 34)
    elif format_id == Q4_0:
        c[0] = Codec(q4_0_dequantize, q4_0_pack, L_C4, 32, 18)
    elif format_id == Q4_1:
        c[0] = Codec(q4_1_dequantize, q4_1_pack, L_M4, 32, 20)
    elif format_id == Q5_0:
        c[0] = Codec(q5_0_dequantize, q5_0_pack, L_C5, 32, 22)
    elif format_id == Q5_1:
        c[0] = Codec(q5_1_dequantize, q5_1_pack, L_M5, 32, 24)
    elif format_id == IQ4_NL:
        c[0] = Codec(iq4_nl_dequantize, iq4_nl_pack, L_T4, 32, 18)
    elif format_id == Q2_K:
        c[0] = Codec(q2_k_dequantize, q2_k_pack, L_K2, 256, 84)
    elif format_id == Q3_K:
        c[0] = Codec(q3_k_dequantize, q3_k_pack, L_K3, 256, 110)
    elif format_id == Q4_K:
        c[0] = Codec(q4_k_dequantize, q4_k_pack, L_K4, 256, 144)
    elif format_id == Q5_K:
        c[0] = Codec(q5_k_dequantize, q5_k_pack, L_K5, 256, 176)
    elif format_id == Q6_K:
        c[0] = Codec(q6_k_dequantize, q6_k_pack, L_K6, 256, 210)
    elif format_id == IQ4_XS:
        c[0] = Codec(iq4_xs_dequantize, iq4_xs_pack, L_KT, 256, 136)
    else:
        raise ValueError(f"format id {format_id}: no kernel for it")
    return 0


def dequantize(int format_id, cnp.ndarray blocks, cnp.ndarray out, int n_threads=1):
    """Turns whole blocks into floats, bit-equal to `gguf.quants.dequantize`.

    Parameters
    ----------
    format_id : the GGUF type number
    blocks : uint8, the bytes of the blocks
    out : float32, its size a multiple of the block length
    """
    cdef Codec c
    codec_of(format_id, &c)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    cdef Py_ssize_t n_blocks = n // c.block_len
    if n % c.block_len:
        raise ValueError(f"out: {n} elements are not whole blocks of {c.block_len}")
    cdef float* op = f32_data(out, n, "out")
    cdef const uint8_t* bp = u8_data(blocks, n_blocks * c.block_bytes, "blocks")
    cdef Py_ssize_t step = max(1, 65536 // c.block_len), i
    cdef Py_ssize_t steps = (n_blocks + step - 1) // step
    for i in prange(steps, nogil=True, schedule="dynamic", num_threads=n_threads if steps > 1 else 1):
        c.dequantize(bp + i * step * c.block_bytes, min(step, n_blocks - i * step), op + i * step * c.block_len)


def packed_bytes(int format_id, Py_ssize_t rows, Py_ssize_t cols):
    """Bytes of the packed panels of a (rows, cols) matrix."""
    cdef Codec c
    codec_of(format_id, &c)
    return (rows + 15) // 16 * panel_bytes(c.layout, cols)


def pack(int format_id, cnp.ndarray blocks, Py_ssize_t rows, Py_ssize_t cols, cnp.ndarray out, int n_threads=1):
    """Interleaves a (rows, cols) matrix into panels of 16 rows; missing rows of the last are zero.

    Parameters
    ----------
    format_id : the GGUF type number
    blocks : uint8, the rows as the file holds them
    out : uint8, ``packed_bytes(format_id, rows, cols)`` long
    """
    cdef Codec c
    codec_of(format_id, &c)
    if rows < 1 or cols < 1 or cols % c.block_len:
        raise ValueError(f"shape: {rows} x {cols} is not made of blocks of {c.block_len}")
    cdef Py_ssize_t row_bytes = cols // c.block_len * c.block_bytes
    cdef Py_ssize_t stride = panel_bytes(c.layout, cols), n_panels = (rows + 15) // 16, p
    cdef const uint8_t* bp = u8_data(blocks, rows * row_bytes, "blocks")
    cdef uint8_t* op = u8_data(out, n_panels * stride, "out")
    zeros = bytes(row_bytes)
    cdef const uint8_t* zero = zeros
    for p in prange(n_panels, nogil=True, schedule="dynamic", num_threads=n_threads):
        pack_panel(&c, bp, zero, row_bytes, rows, cols, p, op + p * stride)


cdef void pack_panel(const Codec* c, const uint8_t* blocks, const uint8_t* zero, Py_ssize_t row_bytes,
                     Py_ssize_t rows, Py_ssize_t cols, Py_ssize_t p, uint8_t* out) noexcept nogil:
    cdef const uint8_t* row[16]
    cdef Py_ssize_t last
    cdef int r
    if form_of(c.layout):  # a last group that misses a block: packed bytes are a function of the file
        last = cols // form_of(c.layout) - 1
        last -= last % group_blocks(c.layout)
        memset(out + header_at(c.layout, last), 0, group_blocks(c.layout) * header_bytes(c.layout))
    for r in range(16):
        row[r] = blocks + (16 * p + r) * row_bytes if 16 * p + r < rows else zero
    c.pack(row, cols, out)
