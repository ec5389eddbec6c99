"""How a block of 256 comes apart, for every format that has such blocks: scales, and codes in row order.

    Q2_K     16 bytes of scale (low) and minimum (high nibble), 64 bytes of bit pairs, f16 d, f16 dmin
    Q3_K     32 bytes of third bits, 64 bytes of bit pairs, 16 6-bit scales in 12 bytes, f16 d
    Q4_K     f16 d, f16 dmin, 8 6-bit scales and minima in 12 bytes, 128 bytes of nibbles
    Q5_K     the same, with 32 bytes of fifth bits before the nibbles
    Q6_K     128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, f16 d
    IQ4_XS   f16 d, upper bits of 8 6-bit scales, their lower ones, 128 bytes of nibbles
    TQ1_0    52 bytes of 5 digits in base 3 (4 in the last 4 bytes), f16 d
    TQ2_0    64 bytes of bit pairs, f16 d
    Q8_K     f32 d, 256 signed codes, their sums over 16 (not read)

The others name 8 or 4 values at a time by an entry of a grid (see tools/make_grids.py), and have 8 bits with
it: signs, one for each value, or for IQ1 the sign of 1/8 to be added to all of them. Seven bits of signs
stand for eight, an even number of which is negative. Scales s of 3 or 4 bits mean 2 s + 1.

    IQ2_XXS  f16 d; 8 times: 4 bytes of entries, 4 times 7 signs, a scale
    IQ2_XS   f16 d, 32 words of 9 bits of entry and 7 signs, 16 scales
    IQ2_S    f16 d, 32 lower bytes of entries, 32 bytes of signs, 32 times their upper 2 bits, 16 scales
    IQ3_XXS  f16 d, 64 entries; 8 times: 4 times 7 signs, a scale
    IQ3_S    f16 d, 64 lower bytes of entries, 64 ninth bits, 32 bytes of signs, 8 scales
    IQ1_S    f16 d, 32 lower bytes of entries; 8 times: 4 times their upper 3 bits, a scale, the sign of 1/8
    IQ1_M    32 lower bytes of entries, 32 nibbles: their upper 3 bits, the sign; 4 words: 4 scales, 4 bits of f16 d

Source: ggml-common.h and ggml-quants.c (https://github.com/ggml-org/ggml).
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

cdef enum:  # format ids, as stored in GGUF files
    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    Q1_0 = 41

cdef enum:  # where the grids begin in GRIDS, in words
    GRID_2XXS = 0
    GRID_2XS = 512
    GRID_2S = 1536
    GRID_1 = 3584
    GRID_3XXS = 7680
    GRID_3S = 7936
    GRID_WORDS = 8448

# The entries of all grids: words of 4 codes, two to an entry of 8. Filled by pack.pyx when it is imported.
cdef extern from *:
    """
    static uint32_t OX_GRIDS[8448];
    """
    uint32_t* GRIDS "OX_GRIDS"


# A block of 256 taken apart. Words hold four codes that are consecutive along the row, one a byte.
cdef struct Super:
    uint32_t d  # the bits of the f16 or f32 scale
    uint16_t dmin
    int8_t scale[16]
    int8_t minimum[16]
    uint32_t codes[64]


cdef inline uint16_t half_at(const uint8_t* p) noexcept nogil:
    cdef uint16_t h
    memcpy(&h, p, 2)
    return h


cdef inline uint32_t word_at(const uint8_t* p) noexcept nogil:
    cdef uint32_t w
    memcpy(&w, p, 4)
    return w


cdef inline void scales_of_12(const uint8_t* s, Super* out) noexcept nogil:
    """8 scales and 8 minima of 6 bits, as Q4_K and Q5_K have them."""
    cdef int j
    for j in range(4):
        out.scale[j] = s[j] & 63
        out.minimum[j] = s[j + 4] & 63
        out.scale[j + 4] = (s[j + 8] & 15) | ((s[j] >> 6) << 4)
        out.minimum[j + 4] = (s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4)


cdef inline void take_scales(const int format_id, const uint8_t* block, Super* out) noexcept nogil:
    cdef int s
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
    elif format_id == IQ4_XS:
        out.d = half_at(block)
        for s in range(8):
            out.scale[s] = (((block[4 + (s >> 1)] >> (4 * (s & 1))) & 15)
                            | (((half_at(block + 2) >> (2 * s)) & 3) << 4)) - 32
    elif format_id == Q8_K:
        out.d = word_at(block)
    else:
        out.d = half_at(block + (52 if format_id == TQ1_0 else 64))


cdef inline uint32_t trits(const uint8_t* bytes, const int power) noexcept nogil:
    """Digit ``power`` of 4 bytes, each a fraction of 5 digits in base 3: digit = 3 times what is left, above 1."""
    cdef int factor = 1 if power == 0 else 3 if power == 1 else 9 if power == 2 else 27 if power == 3 else 81
    cdef uint32_t w = 0
    cdef int i
    for i in range(4):
        w |= <uint32_t>((3 * ((bytes[i] * factor) & 255)) >> 8) << (8 * i)
    return w


cdef inline uint32_t tq1_word(const uint8_t* block, const int i) noexcept nogil:
    """Word ``i``: the digits of 32 bytes, the first of all before the second, then of 16 and of 4."""
    if i < 40:
        return trits(block + 4 * (i & 7), i >> 3)
    if i < 60:
        return trits(block + 32 + 4 * (i & 3), (i - 40) >> 2)
    return trits(block + 48, i - 60)


cdef inline void take_codes(const int format_id, const uint8_t* block, Super* out) noexcept nogil:
    cdef int s, g, k, h
    cdef uint32_t w
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
            elif format_id == Q8_K:
                w = word_at(block + 4 + 32 * s + 4 * g)
            elif format_id == TQ1_0:
                w = tq1_word(block, 8 * s + g)
            elif format_id == TQ2_0:
                w = (word_at(block + 32 * h + 4 * g) >> (2 * k)) & 0x03030303
            else:  # IQ4_XS
                w = (word_at(block + 8 + 16 * s + 4 * (g & 3)) >> (4 * (g >> 2))) & 0x0F0F0F0F
            out.codes[8 * s + g] = w


cdef inline uint32_t signs_of_7(uint32_t bits) noexcept nogil:
    """8 signs of which the 7 are given."""
    cdef uint32_t odd = bits ^ (bits >> 4)
    odd ^= odd >> 2
    return bits | (((odd ^ (odd >> 1)) & 1) << 7)


cdef inline uint32_t spread(uint32_t bits) noexcept nogil:
    """Bit i of 4 in the lowest bit of byte i."""
    return ((bits & 15) * 0x00204081) & 0x01010101


cdef inline int odd_scale(const uint8_t* nibbles, const int i) noexcept nogil:
    return 2 * ((nibbles[i >> 1] >> (4 * (i & 1))) & 15) + 1


cdef inline void take_grid_scales(const int format_id, const uint8_t* block, Super* out) noexcept nogil:
    """As 16 scales for IQ1 and IQ2, 8 for IQ3, whatever the format has."""
    cdef int s
    if format_id == IQ1_M:
        out.d = 0
        for s in range(4):
            out.d |= (half_at(block + 48 + 2 * s) >> 12) << (4 * s)
        for s in range(16):
            out.scale[s] = 2 * ((half_at(block + 48 + 2 * (s >> 2)) >> (3 * (s & 3))) & 7) + 1
        return
    out.d = half_at(block)
    if format_id == IQ2_XXS:
        for s in range(16):
            out.scale[s] = 2 * (word_at(block + 6 + 8 * (s >> 1)) >> 28) + 1
    elif format_id == IQ2_XS or format_id == IQ2_S:
        for s in range(16):
            out.scale[s] = odd_scale(block + (66 if format_id == IQ2_XS else 74), s)
    elif format_id == IQ1_S:
        for s in range(16):
            out.scale[s] = 2 * ((half_at(block + 34 + 2 * (s >> 1)) >> 12) & 7) + 1
    elif format_id == IQ3_XXS:
        for s in range(8):
            out.scale[s] = 2 * (word_at(block + 66 + 4 * s) >> 28) + 1
    else:  # IQ3_S
        for s in range(8):
            out.scale[s] = odd_scale(block + 106, s)


cdef inline void take_grid_codes(const int format_id, const uint8_t* block, Super* out) noexcept nogil:
    cdef int s, k, shift = 3 if format_id == IQ3_XXS or format_id == IQ3_S else 2
    cdef uint32_t first, second, signs, w  # words of GRIDS; a bit for each of 8 values
    for s in range(8):
        for k in range(4):  # 8 columns each
            if format_id == IQ2_XXS:
                first = GRID_2XXS + 2 * block[2 + 8 * s + k]
                signs = signs_of_7((word_at(block + 6 + 8 * s) >> (7 * k)) & 127)
            elif format_id == IQ2_XS:
                w = half_at(block + 2 + 8 * s + 2 * k)
                first = GRID_2XS + 2 * (w & 511)
                signs = signs_of_7(w >> 9)
            elif format_id == IQ2_S:
                w = (block[66 + s] >> (2 * k)) & 3
                first = GRID_2S + 2 * (block[2 + 4 * s + k] | (w << 8))
                signs = block[34 + 4 * s + k]
            elif format_id == IQ1_S:
                w = half_at(block + 34 + 2 * s)
                first = GRID_1 + 2 * (block[2 + 4 * s + k] | (((w >> (3 * k)) & 7) << 8))
                signs = 255 if w >> 15 else 0
            elif format_id == IQ1_M:
                w = block[32 + 2 * s + (k >> 1)] >> (4 * (k & 1))
                first = GRID_1 + 2 * (block[4 * s + k] | ((w & 7) << 8))
                signs = 255 if w & 8 else 0
            elif format_id == IQ3_XXS:
                first = GRID_3XXS + block[2 + 8 * s + 2 * k]
                signs = signs_of_7((word_at(block + 66 + 4 * s) >> (7 * k)) & 127)
            else:  # IQ3_S
                w = block[66 + s] >> (2 * k)
                first = GRID_3S + (block[2 + 8 * s + 2 * k] | ((w & 1) << 8))
                signs = block[74 + 4 * s + k]
            if format_id == IQ3_XXS:
                second = GRID_3XXS + block[3 + 8 * s + 2 * k]
            elif format_id == IQ3_S:
                second = GRID_3S + (block[3 + 8 * s + 2 * k] | (((w >> 1) & 1) << 8))
            else:
                second = first + 1
            out.codes[8 * s + 2 * k] = GRIDS[first] | (spread(signs) << shift)
            out.codes[8 * s + 2 * k + 1] = GRIDS[second] | (spread(signs >> 4) << shift)


cdef inline bint has_grid(const int format_id) noexcept nogil:
    return IQ2_XXS <= format_id <= IQ2_S and format_id != IQ4_NL or format_id == IQ1_M


cdef inline void take_apart(const int format_id, const uint8_t* block, Super* out) noexcept nogil:
    if has_grid(format_id):
        take_grid_scales(format_id, block, out)
        take_grid_codes(format_id, block, out)
    else:
        take_scales(format_id, block, out)
        take_codes(format_id, block, out)
