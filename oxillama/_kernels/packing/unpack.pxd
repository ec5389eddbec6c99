"""Unpacks the blocks of each format: scales, and codes in row order. One function for each format of formats.py.

Blocks of 32:

    Q8_0          f16 d, 32 signed codes
    Q8_1          f16 d, f16 d times the sum of the codes (not read), codes
        Q4_0 IQ4_NL   f16 d, 16 bytes of nibbles: value i in the low nibble of byte i, value i + 16 in the high one
    Q4_1          f16 d, f16 m, nibbles
        Q5_0          f16 d, 32 bits: the fifth bit of each value, nibbles
    Q5_1          f16 d, f16 m, 32 bits, nibbles
        MXFP4         a byte e for the scale 2^(e - 127), nibbles

Blocks of 64 and of 128:

        NVFP4      4 scales of 16 values each: unsigned bytes, 4 bits of exponent and 3 of fraction; then 8 bytes of
                   nibbles for each scale: value i in the low nibble of byte i, value i + 8 in the high one
        Q1_0       f16 d, 16 bytes of bits, the first value in the lowest bit: d or -d
        Q2_0       f16 d, 16 bytes of bit pairs, the first value in the lowest bits
    Q2_0_G128  f16 d, 32 bytes of bit pairs

Blocks of 256:

    Q2_K     16 bytes of scale (low) and minimum (high nibble), 64 bytes of bit pairs, f16 d, f16 dmin
    Q3_K     32 bytes of third bits, 64 bytes of bit pairs, 16 6-bit scales in 12 bytes, f16 d
    Q4_K     f16 d, f16 dmin, 8 6-bit scales and minima in 12 bytes, 128 bytes of nibbles
        Q5_K     as Q4_K, with 32 bytes of fifth bits before the nibbles
    Q6_K     128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, f16 d
        IQ4_XS   f16 d, upper bits of 8 6-bit scales, their lower bits, 128 bytes of nibbles
    TQ1_0    52 bytes of 5 digits in base 3 (4 in the last 4 bytes), f16 d
    TQ2_0    64 bytes of bit pairs, f16 d
    Q8_K     f32 d, 256 signed codes, their sums over 16 (not read)

The other formats store 8 or 4 values as the number of an entry in a grid (see tools/make_grids.py), and sign bits: one
for each value, or in IQ1 one that says whether 1/8 is added to all values or subtracted. Where 7 sign bits are stored
for 8 values, the eighth makes the number of negative values even. Scales s of 3 or 4 bits mean 2 s + 1.

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

from oxillama._kernels.packing.formats cimport (
    IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS,
)
from oxillama._kernels.simd.simd cimport ox_f32_from_bits

cdef enum:  # offsets of the grids in GRIDS, in words
    GRID_2XXS = 0
    GRID_2XS = 512
    GRID_2S = 1536
    GRID_1 = 3584
    GRID_3XXS = 7680
    GRID_3S = 7936
    GRID_WORDS = 8448

cdef extern from *:
    """
    #define OX_E5M3_UNIT 83076749736557242056487941267521536.0f
    """
    const float E5M3_UNIT "OX_E5M3_UNIT"  # factor of the float whose exponent and fraction bits are the byte

# The entries of all grids, as words of 4 codes, two words for an entry of 8. Filled by pack.pyx when it is imported.
cdef extern from *:
    """
    static uint32_t OX_GRIDS[8448];
    """
    uint32_t* GRIDS "OX_GRIDS"


# An unpacked block. A word holds the codes of 4 consecutive columns, one in each byte.
cdef struct Block:
    uint32_t d        # the bits of the scale: f16, bf16 or f32
    uint16_t minimum  # the bits of the f16 minimum, or of the f16 factor of the minima
    int8_t scales[16]  # scales of sub-blocks; for halves of a block e5m3 bytes
    int8_t minima[16]
    uint32_t codes[64]

ctypedef void (*Unpack)(const uint8_t* block, Block* out) noexcept nogil


cdef inline uint16_t half_at(const uint8_t* p) noexcept nogil:
    cdef uint16_t h
    memcpy(&h, p, 2)
    return h


cdef inline uint32_t word_at(const uint8_t* p) noexcept nogil:
    cdef uint32_t w
    memcpy(&w, p, 4)
    return w


# --- scales of a byte ----------------------------------------------------------------------------------
#
# e5m3: 5 bits of exponent and 3 of fraction, 2^(e - 11) (1 + m / 8); byte 0 means 0. No value is subnormal.

cdef inline uint8_t e5m3_of_e4m3(uint8_t byte) noexcept nogil:
    """Half a scale of NVFP4, as the table holds doubled values. The scale has 4 bits of exponent, subnormals from 2^-9.

    127 means 0; the upper bit is not read.
    """
    cdef int m = byte & 127
    if byte == 127:
        return 0
    return m + 24 if m >= 8 else 16 + 2 * m if m >= 4 else 8 + 4 * m if m >= 2 else 8 * m


cdef inline float e5m3_value(uint8_t byte) noexcept nogil:
    return ox_f32_from_bits(<uint32_t>byte << 20) * <float>E5M3_UNIT


# --- words of four codes -----------------------------------------------------------------------------

cdef inline uint32_t spread(uint32_t bits) noexcept nogil:
    """Moves bit i of 4 to the lowest bit of byte i."""
    bits = bits & 15
    return (bits | (bits << 7) | (bits << 14) | (bits << 21)) & 0x01010101


cdef inline uint32_t spread_pairs(uint32_t byte) noexcept nogil:
    """Moves the four bit pairs of a byte to the lowest bits of four bytes, the lowest pair first."""
    return (byte & 3) | ((byte & 12) << 6) | ((byte & 48) << 12) | ((byte & 192) << 18)


cdef inline uint32_t nibbles(const uint8_t* p, const int i) noexcept nogil:
    """Word ``i`` of 32 codes in 16 bytes: all low nibbles, then all high nibbles."""
    return (word_at(p + 16 * (i >> 3) + 4 * (i & 3)) >> (4 * ((i >> 2) & 1))) & 0x0F0F0F0F


cdef inline uint32_t wide_nibbles(const uint8_t* p, const int i) noexcept nogil:
    """Word ``i`` of 64 codes in 32 bytes: all low nibbles, then all high nibbles."""
    return (word_at(p + 32 * (i >> 4) + 4 * (i & 7)) >> (4 * ((i >> 3) & 1))) & 0x0F0F0F0F


cdef inline uint32_t pairs(const uint8_t* p, const int i) noexcept nogil:
    """Word ``i`` of 128 codes of 2 bits in 32 bytes: the lowest bits of all bytes first."""
    return (word_at(p + 32 * (i >> 5) + 4 * (i & 7)) >> (2 * ((i >> 3) & 3))) & 0x03030303


cdef inline uint32_t planes(const uint8_t* p, const int i) noexcept nogil:
    """Word ``i`` of 256 bits in 32 bytes: the lowest bits of all bytes first."""
    return (word_at(p + 4 * (i & 7)) >> (i >> 3)) & 0x01010101


# --- blocks of 32, 64 and 128 -------------------------------------------------------------------------

cdef inline void nibble_codes(const uint8_t* p, Block* out) noexcept nogil:
    cdef int i
    for i in range(8):
        out.codes[i] = nibbles(p, i)


cdef inline void fifth_bits(uint32_t bits, Block* out) noexcept nogil:
    cdef int i
    for i in range(8):
        out.codes[i] |= spread(bits >> (4 * i)) << 4


cdef inline void unpack_q8_0(const uint8_t* block, Block* out) noexcept nogil:
    out.d = half_at(block)
    memcpy(out.codes, block + 2, 32)


cdef inline void unpack_q8_1(const uint8_t* block, Block* out) noexcept nogil:
    out.d = half_at(block)
    memcpy(out.codes, block + 4, 32)


cdef inline void unpack_q4_0(const uint8_t* block, Block* out) noexcept nogil:
    out.d = half_at(block)
    nibble_codes(block + 2, out)


cdef inline void unpack_q4_1(const uint8_t* block, Block* out) noexcept nogil:
    out.d, out.minimum = half_at(block), half_at(block + 2)
    nibble_codes(block + 4, out)


cdef inline void unpack_q5_0(const uint8_t* block, Block* out) noexcept nogil:
    out.d = half_at(block)
    nibble_codes(block + 6, out)
    fifth_bits(word_at(block + 2), out)


cdef inline void unpack_q5_1(const uint8_t* block, Block* out) noexcept nogil:
    out.d, out.minimum = half_at(block), half_at(block + 2)
    nibble_codes(block + 8, out)
    fifth_bits(word_at(block + 4), out)


cdef inline void unpack_iq4_nl(const uint8_t* block, Block* out) noexcept nogil:
    unpack_q4_0(block, out)


cdef inline void unpack_mxfp4(const uint8_t* block, Block* out) noexcept nogil:
    """The scale 2^(e - 127), halved as the table holds doubled values: 2^(e - 128) as bf16, subnormal for e < 2."""
    out.d = 0x20 << block[0] if block[0] < 2 else (block[0] - 1) << 7
    nibble_codes(block + 1, out)


cdef inline void unpack_q1_0(const uint8_t* block, Block* out) noexcept nogil:
    cdef int i
    out.d = half_at(block)
    for i in range(32):
        out.codes[i] = spread(block[2 + (i >> 1)] >> (4 * (i & 1)))


cdef inline void pair_codes(const uint8_t* p, const int n, Block* out) noexcept nogil:
    cdef int i
    for i in range(n):
        out.codes[i] = spread_pairs(p[i])


cdef inline void unpack_q2_0(const uint8_t* block, Block* out) noexcept nogil:
    out.d = half_at(block)
    pair_codes(block + 2, 16, out)


cdef inline void unpack_q2_0_g128(const uint8_t* block, Block* out) noexcept nogil:
    out.d = half_at(block)
    pair_codes(block + 2, 32, out)


cdef inline void unpack_nvfp4(const uint8_t* block, Block* out) noexcept nogil:
    cdef int i
    for i in range(4):
        out.scales[i] = <int8_t>e5m3_of_e4m3(block[i])
    for i in range(16):
        out.codes[i] = (word_at(block + 4 + 8 * (i >> 2) + 4 * (i & 1)) >> (4 * ((i >> 1) & 1))) & 0x0F0F0F0F


# --- blocks of 256 ------------------------------------------------------------------------------------

cdef inline void scales_of_12(const uint8_t* s, Block* out) noexcept nogil:
    """8 scales and 8 minima of 6 bits in 12 bytes, packed as in Q4_K and Q5_K."""
    cdef int j
    for j in range(4):
        out.scales[j] = s[j] & 63
        out.minima[j] = s[j + 4] & 63
        out.scales[j + 4] = (s[j + 8] & 15) | ((s[j] >> 6) << 4)
        out.minima[j + 4] = (s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4)


cdef inline uint32_t trits(const uint8_t* bytes, const int power) noexcept nogil:
    """Digit ``power`` of 4 bytes, each a fraction of 5 base-3 digits: floor(3 frac(byte 3^power / 256))."""
    cdef int factor = 1 if power == 0 else 3 if power == 1 else 9 if power == 2 else 27 if power == 3 else 81
    cdef uint32_t w = 0
    cdef int i
    for i in range(4):
        w |= <uint32_t>((3 * ((bytes[i] * factor) & 255)) >> 8) << (8 * i)
    return w


cdef inline uint32_t tq1_word(const uint8_t* block, const int i) noexcept nogil:
    """Word ``i``: the first digits of 32 bytes, their second digits, ...; then the digits of 16 bytes, then of 4."""
    if i < 40:
        return trits(block + 4 * (i & 7), i >> 3)
    if i < 60:
        return trits(block + 32 + 4 * (i & 3), (i - 40) >> 2)
    return trits(block + 48, i - 60)


cdef inline void unpack_q2_k(const uint8_t* block, Block* out) noexcept nogil:
    cdef int i
    out.d, out.minimum = half_at(block + 80), half_at(block + 82)
    for i in range(16):
        out.scales[i], out.minima[i] = block[i] & 15, block[i] >> 4
    for i in range(64):
        out.codes[i] = pairs(block + 16, i)


cdef inline void unpack_q3_k(const uint8_t* block, Block* out) noexcept nogil:
    cdef int i
    out.d = half_at(block + 108)
    for i in range(16):
        out.scales[i] = (((block[96 + (i & 7)] >> (4 * (i >> 3))) & 15)
                         | (((block[104 + (i & 3)] >> (2 * (i >> 2))) & 3) << 4)) - 32
    for i in range(64):
        out.codes[i] = pairs(block + 32, i) | (planes(block, i) << 2)


cdef inline void unpack_q4_k(const uint8_t* block, Block* out) noexcept nogil:
    cdef int i
    out.d, out.minimum = half_at(block), half_at(block + 2)
    scales_of_12(block + 4, out)
    for i in range(64):
        out.codes[i] = wide_nibbles(block + 16, i)


cdef inline void unpack_q5_k(const uint8_t* block, Block* out) noexcept nogil:
    cdef int i
    out.d, out.minimum = half_at(block), half_at(block + 2)
    scales_of_12(block + 4, out)
    for i in range(64):
        out.codes[i] = wide_nibbles(block + 48, i) | (planes(block + 16, i) << 4)


cdef inline void unpack_q6_k(const uint8_t* block, Block* out) noexcept nogil:
    cdef int i
    out.d = half_at(block + 208)
    memcpy(out.scales, block + 192, 16)
    for i in range(64):  # 64 bytes hold 128 codes: the low nibbles before the high ones
        out.codes[i] = (word_at(block + 64 * (i >> 5) + 4 * (i & 15)) >> (4 * ((i >> 4) & 1))) & 0x0F0F0F0F
        out.codes[i] |= pairs(block + 128, i) << 4


cdef inline void unpack_q8_k(const uint8_t* block, Block* out) noexcept nogil:
    out.d = word_at(block)
    memcpy(out.codes, block + 4, 256)


cdef inline void unpack_iq4_xs(const uint8_t* block, Block* out) noexcept nogil:
    cdef int i
    out.d = half_at(block)
    for i in range(8):
        out.scales[i] = (((block[4 + (i >> 1)] >> (4 * (i & 1))) & 15)
                         | (((half_at(block + 2) >> (2 * i)) & 3) << 4)) - 32
    for i in range(64):
        out.codes[i] = nibbles(block + 8, i)


cdef inline void unpack_tq1_0(const uint8_t* block, Block* out) noexcept nogil:
    cdef int i
    out.d = half_at(block + 52)
    for i in range(64):
        out.codes[i] = tq1_word(block, i)


cdef inline void unpack_tq2_0(const uint8_t* block, Block* out) noexcept nogil:
    cdef int i
    out.d = half_at(block + 64)
    for i in range(64):
        out.codes[i] = pairs(block, i)


# --- blocks of 256 with grids --------------------------------------------------------------------------

cdef inline uint32_t signs_of_7(uint32_t bits) noexcept nogil:
    """8 signs from the 7 that are stored: the number of set bits is even."""
    cdef uint32_t odd = bits ^ (bits >> 4)
    odd ^= odd >> 2
    return bits | (((odd ^ (odd >> 1)) & 1) << 7)


cdef inline int odd_scale(const uint8_t* nibbles, const int i) noexcept nogil:
    return 2 * ((nibbles[i >> 1] >> (4 * (i & 1))) & 15) + 1


cdef inline void take_grid_scales(const int format_id, const uint8_t* block, Block* out) noexcept nogil:
    """Writes the scales 2 s + 1: 16 of them for IQ1 and IQ2, 8 for IQ3, also where the format stores fewer."""
    cdef int s
    if format_id == IQ1_M:
        out.d = 0
        for s in range(4):
            out.d |= (half_at(block + 48 + 2 * s) >> 12) << (4 * s)
        for s in range(16):
            out.scales[s] = 2 * ((half_at(block + 48 + 2 * (s >> 2)) >> (3 * (s & 3))) & 7) + 1
        return
    out.d = half_at(block)
    if format_id == IQ2_XXS:
        for s in range(16):
            out.scales[s] = 2 * (word_at(block + 6 + 8 * (s >> 1)) >> 28) + 1
    elif format_id == IQ2_XS or format_id == IQ2_S:
        for s in range(16):
            out.scales[s] = odd_scale(block + (66 if format_id == IQ2_XS else 74), s)
    elif format_id == IQ1_S:
        for s in range(16):
            out.scales[s] = 2 * ((half_at(block + 34 + 2 * (s >> 1)) >> 12) & 7) + 1
    elif format_id == IQ3_XXS:
        for s in range(8):
            out.scales[s] = 2 * (word_at(block + 66 + 4 * s) >> 28) + 1
    else:  # IQ3_S
        for s in range(8):
            out.scales[s] = odd_scale(block + 106, s)


cdef inline void take_grid_codes(const int format_id, const uint8_t* block, Block* out) noexcept nogil:
    cdef int s, k, shift = 3 if format_id == IQ3_XXS or format_id == IQ3_S else 2
    cdef uint32_t first, second, signs, w  # indices of words in GRIDS; a bit for each of 8 values; bits of the block
    for s in range(8):
        for k in range(4):  # each k: 8 columns
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


cdef inline void unpack_grid(const int format_id, const uint8_t* block, Block* out) noexcept nogil:
    take_grid_scales(format_id, block, out)
    take_grid_codes(format_id, block, out)


cdef inline void unpack_iq1_s(const uint8_t* block, Block* out) noexcept nogil:
    unpack_grid(IQ1_S, block, out)


cdef inline void unpack_iq1_m(const uint8_t* block, Block* out) noexcept nogil:
    unpack_grid(IQ1_M, block, out)


cdef inline void unpack_iq2_xxs(const uint8_t* block, Block* out) noexcept nogil:
    unpack_grid(IQ2_XXS, block, out)


cdef inline void unpack_iq2_xs(const uint8_t* block, Block* out) noexcept nogil:
    unpack_grid(IQ2_XS, block, out)


cdef inline void unpack_iq2_s(const uint8_t* block, Block* out) noexcept nogil:
    unpack_grid(IQ2_S, block, out)


cdef inline void unpack_iq3_xxs(const uint8_t* block, Block* out) noexcept nogil:
    unpack_grid(IQ3_XXS, block, out)


cdef inline void unpack_iq3_s(const uint8_t* block, Block* out) noexcept nogil:
    unpack_grid(IQ3_S, block, out)
