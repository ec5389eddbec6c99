"""From the blocks of a GGUF file to floats (`dequantize`) and to packed panels (`pack`).

A format's blocks are described once, here or in superblocks.pxd, and its row in formats.py says the rest. The
panels are described in layouts.pxd. Both functions only move bits and multiply floats one by one, so
this module is compiled once and not per target.
"""

from pathlib import Path

import numpy as np

cimport numpy as cnp
from cython.parallel cimport prange
from libc.stdint cimport int8_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from arrays cimport f32_data, u8_data
from layouts cimport *
from simd cimport ox_f32_from_bf16, ox_f32_from_bits, ox_f32_from_f16
from superblocks cimport *

from oxillama.formats import FORMAT_BY_ID, LAYOUTS

cnp.import_array()

cdef struct Codec:
    int format, layout
    Py_ssize_t block_len, block_bytes


cdef fill_grids():
    """The grids of IQ1 and IQ2 have 2 bits a code, those of IQ3, which follow them, 4 (see tools/make_grids.py)."""
    cdef cnp.ndarray words
    data = np.frombuffer(Path(__file__).with_name("grids.bin").read_bytes(), np.uint8)
    pairs, nibbles = data[:GRID_3XXS], data[GRID_3XXS:]
    codes = [pairs[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3, nibbles[:, None] >> np.array([0, 4], np.uint8)]
    words = np.concatenate([part.ravel() & 15 for part in codes])
    memcpy(GRIDS, u8_data(words, 4 * GRID_WORDS, "grids"), 4 * GRID_WORDS)


fill_grids()


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
# Q8_1          f16 d, f16 d times the sum of the codes (not read), codes
# Q4_0 IQ4_NL   f16 d, 16 bytes of nibbles: value i in the low half of byte i, i + 16 in the high one
# Q4_1          f16 d, f16 m, nibbles
# Q5_0          f16 d, 32 bits: the values' fifth, nibbles
# Q5_1          f16 d, f16 m, 32 bits, nibbles
# MXFP4         exponent of two, nibbles

cdef inline void byte_dequantize(const int first, const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Py_ssize_t b, i
    cdef const uint8_t* block
    cdef float d
    for b in range(n):
        block = blocks + (first + 32) * b
        d = ox_f32_from_f16(half_at(block))
        for i in range(32):
            out[32 * b + i] = d * <int8_t>block[first + i]


cdef inline void byte_pack(const int first, const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    """Codes from byte ``first`` of a block on."""
    cdef Py_ssize_t b
    cdef uint8_t* head
    cdef uint8_t* codes
    cdef const uint8_t* src
    cdef int r, g
    for b in range(cols // 32):
        head = out + header_at(L_C8, b)
        codes = out + codes_at(L_C8, b)
        for r in range(16):
            src = row[r] + (first + 32) * b
            put_half(head + 2 * r, half_at(src))
            for g in range(8):
                put_word(codes + 64 * g + 4 * r, word_at(src + first + 4 * g))


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
    if format_id == MXFP4:
        return Nibbles(L_E4, 17, 0, 0, 1)
    return Nibbles(L_T4, 18, 0, 0, 2)  # IQ4_NL


cdef inline uint16_t power_of_two(const uint8_t e) noexcept nogil:
    """2^(e - 128) as bf16, the first two denormal. MXFP4's is 2^(e - 127), for values of half those in the table."""
    return 0x20 << e if e < 2 else (e - 1) << 7


cdef inline uint16_t nibble_scale(const int format_id, const uint8_t* block) noexcept nogil:
    return power_of_two(block[0]) if format_id == MXFP4 else half_at(block)


cdef inline int value_of(const int layout, int code) noexcept nogil:
    """What a block's scale is multiplied with."""
    if code_bits(layout) == 8:
        return <int8_t>code
    return (code if table_of(layout) == NULL else table_of(layout)[code]) - code_excess(layout)


cdef inline void nibble_dequantize(const int format_id, const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Nibbles at = nibble_block(format_id)
    cdef const uint8_t* block
    cdef Py_ssize_t b
    cdef uint32_t fifth = 0
    cdef float d, m = 0
    cdef int i, code
    for b in range(n):
        block = blocks + at.bytes * b
        d = ox_f32_from_f16(half_at(block)) if format_id != MXFP4 else ox_f32_from_bf16(power_of_two(block[0]))
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
            else:
                out[32 * b + i] = d * <float>value_of(at.layout, code)


cdef inline uint32_t every_fourth(uint32_t bits) noexcept nogil:
    """Bits 0, 4, 8, ... 28 gathered in the low byte."""
    bits = bits & 0x11111111
    bits = (bits | (bits >> 3)) & 0x03030303
    bits = (bits | (bits >> 6)) & 0x000F000F
    return (bits | (bits >> 12)) & 0xFF


cdef inline uint32_t bit_planes(uint32_t bits) noexcept nogil:
    """Bit 4 g + j moved to bit g of byte j."""
    return (every_fourth(bits) | (every_fourth(bits >> 1) << 8) | (every_fourth(bits >> 2) << 16)
            | (every_fourth(bits >> 3) << 24))


cdef inline void nibble_pack(const int format_id, const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Nibbles at = nibble_block(format_id)
    cdef uint8_t* head
    cdef uint8_t* codes
    cdef const uint8_t* src
    cdef Py_ssize_t b
    cdef int r, v
    for b in range(cols // 32):
        head = out + header_at(at.layout, b)
        codes = out + codes_at(at.layout, b)
        for r in range(16):
            src = row[r] + at.bytes * b
            put_half(head + 2 * r, nibble_scale(format_id, src))
            if at.minimum:
                put_half(head + 32 + 2 * r, half_at(src + at.minimum))
            for v in range(4):
                put_word(codes + 64 * v + 4 * r, word_at(src + at.nibbles + 4 * v))
            if at.fifth:
                put_word(codes + 256 + 4 * r, bit_planes(word_at(src + at.fifth)))


# --- blocks of 128: Q1_0 -----------------------------------------------------------------------------
#
# f16 d, 16 bytes of bits, the first value in the lowest: d or -d. In panels the scale is repeated every 32.

cdef void q1_0_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Py_ssize_t b, i
    cdef const uint8_t* block
    cdef float d
    for b in range(n):
        block = blocks + 18 * b
        d = ox_f32_from_f16(half_at(block))
        for i in range(128):
            out[128 * b + i] = d if (block[2 + (i >> 3)] >> (i & 7)) & 1 else -d


cdef void q1_0_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Py_ssize_t b
    cdef const uint8_t* src
    cdef int r
    for b in range(cols // 32):
        for r in range(16):
            src = row[r] + 18 * (b >> 2)
            put_half(out + header_at(L_C1, b) + 2 * r, half_at(src))
            put_word(out + codes_at(L_C1, b) + 4 * r, bit_planes(word_at(src + 2 + 4 * (b & 3))))


# --- blocks of 256: superblocks.pxd takes them apart ------------------------------------------------

cdef inline int super_layout(const int format_id) noexcept nogil:
    if format_id == Q2_K:
        return L_K2
    if format_id == Q3_K:
        return L_K3
    if format_id == Q4_K:
        return L_K4
    if format_id == Q5_K:
        return L_K5
    if format_id == Q6_K:
        return L_K6
    if format_id == IQ4_XS:
        return L_KT
    if format_id == Q8_K:
        return L_S8
    if format_id == TQ1_0 or format_id == TQ2_0:
        return L_S2
    if format_id == IQ3_XXS:
        return L_G3
    if format_id == IQ3_S:
        return L_G3S
    return L_G1 if format_id == IQ1_S or format_id == IQ1_M else L_G2


cdef inline void super_dequantize(const int format_id, Py_ssize_t block_bytes, const uint8_t* blocks, Py_ssize_t n,
                                  float* out) noexcept nogil:
    cdef int layout = super_layout(format_id)
    cdef int sub = 16 if has_subs_of_16(layout) else 32
    cdef Super block
    cdef Py_ssize_t b
    cdef float d, dmin, ds, dm
    cdef int i, code
    for b in range(n):
        take_apart(format_id, blocks + block_bytes * b, &block)
        d = ox_f32_from_bits(block.d) if layout == L_S8 else ox_f32_from_f16(block.d) * unit_of(layout)
        if has_minima(layout):
            dmin = ox_f32_from_f16(block.dmin)
        for i in range(256):
            code = (block.codes[i >> 2] >> (8 * (i & 3))) & 255
            ds = d * <float>block.scale[i // sub] if has_subs(layout) else d
            if has_minima(layout):
                dm = dmin * <float>block.minimum[i // sub]
                out[256 * b + i] = ds * <float>code - dm
            else:
                out[256 * b + i] = ds * <float>value_of(layout, code)


cdef inline void put_codes(const int layout, const uint32_t* w, uint8_t* out) noexcept nogil:
    """The 32 codes of one row, 8 words of 4, into the row's lane of a packed vector each."""
    cdef uint32_t plane
    cdef int v, g
    if code_bits(layout) == 8:
        for v in range(8):
            put_word(out + 64 * v, w[v])
    elif code_bits(layout) >= 4:
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


cdef inline void super_pack(const int format_id, Py_ssize_t block_bytes, const uint8_t** row, Py_ssize_t cols,
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
            if layout == L_S8:
                put_word(head + 4 * r, block.d)
            else:
                put_half(head + 2 * r, block.d)
            if has_minima(layout):
                put_half(head + 32 + 2 * r, block.dmin)
            for s in range(2 * n_pairs if has_subs(layout) else 0):
                if layout == L_K2:
                    pairs[32 * (s >> 1) + 2 * r + (s & 1)] = block.scale[s] | (block.minimum[s] << 4)
                else:
                    pairs[32 * (s >> 1) + 2 * r + (s & 1)] = <uint8_t>block.scale[s]
                    if has_minima(layout):
                        pairs[32 * n_pairs + 32 * (s >> 1) + 2 * r + (s & 1)] = <uint8_t>block.minimum[s]
            for s in range(8):
                put_codes(layout, block.codes + 8 * s, codes + 64 * code_bits(layout) * s + 4 * r)


# --- every format, by name, so that each gets bodies of its own ---------------------------------------

cdef void dequantize_blocks(const Codec* c, const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    if c.format == F32:
        f32_dequantize(blocks, n, out)
    elif c.format == F16:
        f16_dequantize(blocks, n, out)
    elif c.format == BF16:
        bf16_dequantize(blocks, n, out)
    elif c.format == Q8_0:
        byte_dequantize(2, blocks, n, out)
    elif c.format == Q8_1:
        byte_dequantize(4, blocks, n, out)
    elif c.format == Q1_0:
        q1_0_dequantize(blocks, n, out)
    elif c.format == Q4_0:
        nibble_dequantize(Q4_0, blocks, n, out)
    elif c.format == Q4_1:
        nibble_dequantize(Q4_1, blocks, n, out)
    elif c.format == Q5_0:
        nibble_dequantize(Q5_0, blocks, n, out)
    elif c.format == Q5_1:
        nibble_dequantize(Q5_1, blocks, n, out)
    elif c.format == IQ4_NL:
        nibble_dequantize(IQ4_NL, blocks, n, out)
    elif c.format == MXFP4:
        nibble_dequantize(MXFP4, blocks, n, out)
    elif c.format == Q2_K:
        super_dequantize(Q2_K, c.block_bytes, blocks, n, out)
    elif c.format == Q3_K:
        super_dequantize(Q3_K, c.block_bytes, blocks, n, out)
    elif c.format == Q4_K:
        super_dequantize(Q4_K, c.block_bytes, blocks, n, out)
    elif c.format == Q5_K:
        super_dequantize(Q5_K, c.block_bytes, blocks, n, out)
    elif c.format == Q6_K:
        super_dequantize(Q6_K, c.block_bytes, blocks, n, out)
    elif c.format == Q8_K:
        super_dequantize(Q8_K, c.block_bytes, blocks, n, out)
    elif c.format == IQ1_S:
        super_dequantize(IQ1_S, c.block_bytes, blocks, n, out)
    elif c.format == IQ1_M:
        super_dequantize(IQ1_M, c.block_bytes, blocks, n, out)
    elif c.format == IQ2_XXS:
        super_dequantize(IQ2_XXS, c.block_bytes, blocks, n, out)
    elif c.format == IQ2_XS:
        super_dequantize(IQ2_XS, c.block_bytes, blocks, n, out)
    elif c.format == IQ2_S:
        super_dequantize(IQ2_S, c.block_bytes, blocks, n, out)
    elif c.format == IQ3_XXS:
        super_dequantize(IQ3_XXS, c.block_bytes, blocks, n, out)
    elif c.format == IQ3_S:
        super_dequantize(IQ3_S, c.block_bytes, blocks, n, out)
    elif c.format == IQ4_XS:
        super_dequantize(IQ4_XS, c.block_bytes, blocks, n, out)
    elif c.format == TQ1_0:
        super_dequantize(TQ1_0, c.block_bytes, blocks, n, out)
    elif c.format == TQ2_0:
        super_dequantize(TQ2_0, c.block_bytes, blocks, n, out)


cdef void pack_rows(const Codec* c, const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    """16 row pointers (rows past the end point at zeros) into one panel."""
    if c.format == F32:
        f32_pack(row, cols, out)
    elif c.format == F16:
        half_pack(row, cols, out)
    elif c.format == BF16:
        half_pack(row, cols, out)
    elif c.format == Q8_0:
        byte_pack(2, row, cols, out)
    elif c.format == Q8_1:
        byte_pack(4, row, cols, out)
    elif c.format == Q1_0:
        q1_0_pack(row, cols, out)
    elif c.format == Q4_0:
        nibble_pack(Q4_0, row, cols, out)
    elif c.format == Q4_1:
        nibble_pack(Q4_1, row, cols, out)
    elif c.format == Q5_0:
        nibble_pack(Q5_0, row, cols, out)
    elif c.format == Q5_1:
        nibble_pack(Q5_1, row, cols, out)
    elif c.format == IQ4_NL:
        nibble_pack(IQ4_NL, row, cols, out)
    elif c.format == MXFP4:
        nibble_pack(MXFP4, row, cols, out)
    elif c.format == Q2_K:
        super_pack(Q2_K, c.block_bytes, row, cols, out)
    elif c.format == Q3_K:
        super_pack(Q3_K, c.block_bytes, row, cols, out)
    elif c.format == Q4_K:
        super_pack(Q4_K, c.block_bytes, row, cols, out)
    elif c.format == Q5_K:
        super_pack(Q5_K, c.block_bytes, row, cols, out)
    elif c.format == Q6_K:
        super_pack(Q6_K, c.block_bytes, row, cols, out)
    elif c.format == Q8_K:
        super_pack(Q8_K, c.block_bytes, row, cols, out)
    elif c.format == IQ1_S:
        super_pack(IQ1_S, c.block_bytes, row, cols, out)
    elif c.format == IQ1_M:
        super_pack(IQ1_M, c.block_bytes, row, cols, out)
    elif c.format == IQ2_XXS:
        super_pack(IQ2_XXS, c.block_bytes, row, cols, out)
    elif c.format == IQ2_XS:
        super_pack(IQ2_XS, c.block_bytes, row, cols, out)
    elif c.format == IQ2_S:
        super_pack(IQ2_S, c.block_bytes, row, cols, out)
    elif c.format == IQ3_XXS:
        super_pack(IQ3_XXS, c.block_bytes, row, cols, out)
    elif c.format == IQ3_S:
        super_pack(IQ3_S, c.block_bytes, row, cols, out)
    elif c.format == IQ4_XS:
        super_pack(IQ4_XS, c.block_bytes, row, cols, out)
    elif c.format == TQ1_0:
        super_pack(TQ1_0, c.block_bytes, row, cols, out)
    elif c.format == TQ2_0:
        super_pack(TQ2_0, c.block_bytes, row, cols, out)


cdef Codec codec_of(int format_id) except *:
    """A format's row of the table; a ValueError where no kernel runs it."""
    fmt = FORMAT_BY_ID.get(format_id)
    if fmt is None or fmt.layout is None:
        raise ValueError(f"format id {format_id}: no kernel for it")
    return Codec(format_id, LAYOUTS[fmt.layout].id, fmt.block_len, fmt.block_bytes)


def dequantize(int format_id, cnp.ndarray blocks, cnp.ndarray out, int n_threads=1):
    """Turns whole blocks into floats, bit-equal to `gguf.quants.dequantize`.

    Parameters
    ----------
    format_id : the GGUF type number
    blocks : uint8, the bytes of the blocks
    out : float32, its size a multiple of the block length
    """
    cdef Codec c = codec_of(format_id)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    cdef Py_ssize_t n_blocks = n // c.block_len
    if n % c.block_len:
        raise ValueError(f"out: {n} elements are not whole blocks of {c.block_len}")
    cdef float* op = f32_data(out, n, "out")
    cdef const uint8_t* bp = u8_data(blocks, n_blocks * c.block_bytes, "blocks")
    cdef Py_ssize_t step = max(1, 65536 // c.block_len), i
    cdef Py_ssize_t steps = (n_blocks + step - 1) // step
    for i in prange(steps, nogil=True, schedule="dynamic", num_threads=n_threads if steps > 1 else 1):
        dequantize_blocks(&c, bp + i * step * c.block_bytes, min(step, n_blocks - i * step),
                          op + i * step * c.block_len)


def packed_bytes(int format_id, Py_ssize_t rows, Py_ssize_t cols):
    """Bytes of the packed panels of a (rows, cols) matrix."""
    cdef Codec c = codec_of(format_id)
    return (rows + 15) // 16 * panel_bytes(c.layout, cols)


def pack(int format_id, cnp.ndarray blocks, Py_ssize_t rows, Py_ssize_t cols, cnp.ndarray out, int n_threads=1):
    """Interleaves a (rows, cols) matrix into panels of 16 rows; missing rows of the last are zero.

    Parameters
    ----------
    format_id : the GGUF type number
    blocks : uint8, the rows as the file holds them
    out : uint8, ``packed_bytes(format_id, rows, cols)`` long
    """
    cdef Codec c = codec_of(format_id)
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
    pack_rows(c, row, cols, out)
