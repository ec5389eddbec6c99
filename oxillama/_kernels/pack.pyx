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
    Q8_0 = 8
    Q4_K = 12
    Q6_K = 14
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


# --- Q8_0: f16 d, 32 signed codes -----------------------------------------------------------------

cdef void q8_0_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Py_ssize_t b, i
    cdef float d
    for b in range(n):
        d = ox_f32_from_f16(half_at(blocks + 34 * b))
        for i in range(32):
            out[32 * b + i] = d * <int8_t>blocks[34 * b + 2 + i]


cdef void q8_0_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Py_ssize_t b
    cdef uint8_t* codes = out + scales_bytes(L_C8, cols)
    cdef const uint8_t* src
    cdef int r, g
    for b in range(cols // 32):
        for r in range(16):
            src = row[r] + 34 * b
            put_half(out + 32 * b + 2 * r, half_at(src))
            for g in range(8):
                put_word(codes + 512 * b + 64 * g + 4 * r, word_at(src + 2 + 4 * g))


# --- Q4_0: f16 d, 16 bytes of nibbles: value i in the low, i + 16 in the high half -------------------

cdef void q4_0_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Py_ssize_t b, i
    cdef float d
    cdef uint8_t byte
    for b in range(n):
        d = ox_f32_from_f16(half_at(blocks + 18 * b))
        for i in range(16):
            byte = blocks[18 * b + 2 + i]
            out[32 * b + i] = d * (<int>(byte & 15) - 8)
            out[32 * b + 16 + i] = d * (<int>(byte >> 4) - 8)


cdef void q4_0_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Py_ssize_t b
    cdef uint8_t* codes = out + scales_bytes(L_C4, cols)
    cdef const uint8_t* src
    cdef int r, v
    for b in range(cols // 32):
        for r in range(16):
            src = row[r] + 18 * b
            put_half(out + 32 * b + 2 * r, half_at(src))
            for v in range(4):
                put_word(codes + 256 * b + 64 * v + 4 * r, word_at(src + 2 + 4 * v))


# --- Q4_K: f16 d, f16 dmin, 8 scales and 8 minima of 6 bits in 12 bytes, 128 bytes of nibbles ---------

cdef inline void q4_k_scales(const uint8_t* s, uint8_t* scale, uint8_t* least) noexcept nogil:
    cdef int j
    for j in range(4):
        scale[j] = s[j] & 63
        least[j] = s[j + 4] & 63
        scale[j + 4] = (s[j + 8] & 15) | ((s[j] >> 6) << 4)
        least[j + 4] = (s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4)


cdef void q4_k_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Py_ssize_t b
    cdef const uint8_t* block
    cdef uint8_t scale[8]
    cdef uint8_t least[8]
    cdef uint8_t byte
    cdef float d, dmin, ds, dm
    cdef int s, i
    for b in range(n):
        block = blocks + 144 * b
        d = ox_f32_from_f16(half_at(block))
        dmin = ox_f32_from_f16(half_at(block + 2))
        q4_k_scales(block + 4, scale, least)
        for s in range(8):
            ds = d * <float>scale[s]
            dm = dmin * <float>least[s]
            for i in range(32):
                byte = block[16 + 32 * (s >> 1) + i]
                out[256 * b + 32 * s + i] = ds * <float>((byte >> 4) if s & 1 else (byte & 15)) - dm


cdef void q4_k_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Py_ssize_t b
    cdef const uint8_t* src
    cdef uint8_t* head
    cdef uint8_t* codes
    cdef uint8_t scale[8]
    cdef uint8_t least[8]
    cdef uint32_t one, two
    cdef int r, s, v
    for b in range(cols // 256):
        head = out + b * K4_BYTES
        codes = head + K4_HEADER
        for r in range(16):
            src = row[r] + 144 * b
            put_half(head + 2 * r, half_at(src))
            put_half(head + 32 + 2 * r, half_at(src + 2))
            q4_k_scales(src + 4, scale, least)
            for s in range(8):
                head[64 + 16 * s + r] = scale[s]
                head[192 + 32 * (s >> 1) + 2 * r + (s & 1)] = least[s]
            src += 16
            for s in range(4):  # 32 bytes hold two sub-blocks, one in each half of the bytes
                for v in range(4):
                    one = word_at(src + 32 * s + 4 * v)
                    two = word_at(src + 32 * s + 16 + 4 * v)
                    put_word(codes + 512 * s + 64 * v + 4 * r,
                             (one & 0x0F0F0F0F) | ((two & 0x0F0F0F0F) << 4))
                    put_word(codes + 512 * s + 256 + 64 * v + 4 * r,
                             ((one >> 4) & 0x0F0F0F0F) | (two & <uint32_t>0xF0F0F0F0))


# --- Q6_K: 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales, f16 d -------------------

cdef inline const uint8_t* q6_k_low(const uint8_t* block, int s) noexcept nogil:
    """The 32 bytes that hold the nibbles of sub-block ``s`` (in the high halves for s % 4 >= 2)."""
    return block + 64 * (s >> 2) + 32 * (s & 1)


cdef inline const uint8_t* q6_k_high(const uint8_t* block, int s) noexcept nogil:
    """The 32 bytes that hold its upper bits (from bit 2 * (s % 4) on)."""
    return block + 128 + 32 * (s >> 2)


cdef void q6_k_dequantize(const uint8_t* blocks, Py_ssize_t n, float* out) noexcept nogil:
    cdef Py_ssize_t b
    cdef const uint8_t* block
    cdef float d
    cdef int s, i, code
    for b in range(n):
        block = blocks + 210 * b
        d = ox_f32_from_f16(half_at(block + 208))
        for s in range(8):
            for i in range(32):
                code = (q6_k_low(block, s)[i] >> (4 * ((s & 3) >> 1))) & 15
                code |= ((q6_k_high(block, s)[i] >> (2 * (s & 3))) & 3) << 4
                out[256 * b + 32 * s + i] = (d * <float><int8_t>block[192 + 2 * s + (i >> 4)]) * <float>(code - 32)


cdef void q6_k_pack(const uint8_t** row, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    cdef Py_ssize_t b
    cdef const uint8_t* src
    cdef uint8_t* head
    cdef uint8_t* codes
    cdef uint32_t low, high, plane0, plane1
    cdef int r, s, v, k
    for b in range(cols // 256):
        head = out + b * K6_HEADER
        codes = out + scales_bytes(L_K6, cols) + b * K6_CODES
        for r in range(16):
            src = row[r] + 210 * b
            put_half(head + 2 * r, half_at(src + 208))
            for s in range(8):
                memcpy(head + 32 + 32 * s + 2 * r, src + 192 + 2 * s, 2)
                k = s & 3
                plane0 = plane1 = 0
                for v in range(4):
                    low = (word_at(q6_k_low(src, s) + 4 * v) >> (4 * (k >> 1))) & 0x0F0F0F0F
                    high = (word_at(q6_k_low(src, s) + 16 + 4 * v) >> (4 * (k >> 1))) & 0x0F0F0F0F
                    put_word(codes + 384 * s + 64 * v + 4 * r, low | (high << 4))
                    plane0 |= ((word_at(q6_k_high(src, s) + 4 * v) >> (2 * k)) & 0x03030303) << (2 * v)
                    plane1 |= ((word_at(q6_k_high(src, s) + 16 + 4 * v) >> (2 * k)) & 0x03030303) << (2 * v)
                put_word(codes + 384 * s + 256 + 4 * r, plane0)
                put_word(codes + 384 * s + 320 + 4 * r, plane1)


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
    elif format_id == Q4_K:
        c[0] = Codec(q4_k_dequantize, q4_k_pack, L_K4, 256, 144)
    elif format_id == Q6_K:
        c[0] = Codec(q6_k_dequantize, q6_k_pack, L_K6, 256, 210)
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
    cdef int r
    memset(out, 0, scales_bytes(c.layout, cols))  # the padding too: packed bytes are a function of the file
    for r in range(16):
        row[r] = blocks + (16 * p + r) * row_bytes if 16 * p + r < rows else zero
    c.pack(row, cols, out)
