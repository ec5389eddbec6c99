"""Layout of a packed panel. The properties of each layout are generated from formats.py (formats.pxd).

A panel is 16 rows of a matrix, interleaved: lane r of every vector belongs to row r. A quantized panel is a sequence
of blocks, each with its scales (the header) before its codes, so that it is read as one stream; two blocks form a
group, both headers before both codes, where that aligns the codes to cache lines. A layout combines a width of codes
with a kind of scales:

    codes of 32 columns, 64 bytes per bit; byte j of a lane, group g: value 4g + j of the lane's row
      8 bits      vector g
      4 bits      vector g % 4, low nibbles for g < 4, high ones else
            5, 6 bits   as 4 bits, then the upper bits: bit g of every byte, or bits 2(g % 4).. of vector g / 4
      2 bits      bits 2(g % 4).. of vector g / 4
            3 bits      as 2 bits, then bit g of every byte for the upper bit
      1 bit       bit g of every byte
    scales of a block of 32 columns
            f16 d[16] (bf16 for e4), and f16 m[16] for m4 and m5; for n4 a byte for each half, [16][2] (unpack.pxd)
    scales of a block of 256 columns, with sub-blocks of 16 (k2 k3 k6 g1 g2) or 32
            f16 d[16], with minima f16 dmin[16]; int8 scales of the S sub-blocks in pairs [S / 2][16][2], then minima
            likewise; k2 has both in one byte (scale in the low nibble, minimum in the high one)
    scales of a block of 256 columns without sub-blocks (s2 s8)
      f16 d[16], for s8 f32 d[16]
    floats (f32 f16)
            column 0 of the 16 rows, then column 1, ...; bf16 in pairs of columns [cols / 2][16][2], filled up with 0
    scales of spans, which are whole rows (r8) or 128 columns, at the end of a row fewer (b8), before their codes
      f32 d[16], int32 sum of the span's codes [16]

Codes are the codes of the format, or indices of a table of 16 values. The table of IQ4_NL has its signed values; the
other tables, whose values lie in -64..63, have 64 added, so that products take 7-bit codes as for most layouts.
"""

from libc.stdint cimport uint8_t, uint16_t

from oxillama._kernels.packing.formats cimport *
from oxillama._kernels.simd.bf16 cimport paired
from oxillama._kernels.simd.simd cimport *

cdef enum:
    ROW_HEADER = 128     # bytes of the scales and sums of a span in 16 rows


cdef inline int dot_excess(const int layout) noexcept nogil:
    """The excess of the integers that are multiplied: integer = value + excess."""
    if has_signed_codes(layout):
        return 1 << OX_S8_SHIFT if OX_S8_SHIFT else 0
    return code_excess(layout)


cdef inline int excess_shift(const int layout) noexcept nogil:
    """log2 of `dot_excess`, which is a power of two."""
    cdef int n = 0
    while 1 << n < dot_excess(layout):
        n += 1
    return n


cdef inline int pair_bytes(const int layout) noexcept nogil:
    """Bytes of the sub-block scales of a superblock in 16 rows."""
    return 0 if not has_subs(layout) else 256 if has_subs_of_16(layout) else 128


cdef inline int header_bytes(const int layout) noexcept nogil:
    """Bytes of the scales of a block in 16 rows."""
    cdef int halves = 64 if has_minima(layout) or scale_bytes(layout) == 4 else 32
    if form_of(layout) == 32:
        return halves
    return halves + pair_bytes(layout) * (2 if has_minima(layout) and layout != L_K2 else 1)


cdef inline int group_blocks(const int layout) noexcept nogil:
    """Blocks whose headers are adjacent, so that they fill whole cache lines of 64 bytes."""
    return 2 if header_bytes(layout) % 64 else 1


cdef inline Py_ssize_t block_bytes(const int layout) noexcept nogil:
    """Bytes of a block, header and codes."""
    return header_bytes(layout) + form_of(layout) * 2 * code_bits(layout)


cdef inline Py_ssize_t header_at(const int layout, Py_ssize_t b) noexcept nogil:
    """Offset of the header of block ``b`` in a panel."""
    cdef Py_ssize_t first = b - b % group_blocks(layout)
    return first * block_bytes(layout) + (b - first) * header_bytes(layout)


cdef inline Py_ssize_t codes_at(const int layout, Py_ssize_t b) noexcept nogil:
    """Offset of the codes of block ``b`` in a panel."""
    cdef Py_ssize_t first = b - b % group_blocks(layout)
    return (first * block_bytes(layout) + group_blocks(layout) * header_bytes(layout)
            + (b - first) * form_of(layout) * 2 * code_bits(layout))


cdef inline Py_ssize_t n_spans(const int layout, Py_ssize_t cols) noexcept nogil:
    """The number of spans of a row."""
    return (cols + span_of(layout) - 1) // span_of(layout)


cdef inline Py_ssize_t panel_bytes(int layout, Py_ssize_t cols) noexcept nogil:
    """Bytes of one panel of 16 rows, up to the end of the last block's codes."""
    if form_of(layout) == 0:
        return (paired(cols) if is_pairs(layout) else cols) * 16 * scale_bytes(layout)
    if is_row(layout):
        return n_spans(layout, cols) * ROW_HEADER + 16 * cols
    return codes_at(layout, cols // form_of(layout) - 1) + form_of(layout) * 2 * code_bits(layout)


cdef inline int block_cols(int layout) noexcept nogil:
    """The number of columns of which a row must be a multiple."""
    return max(1, form_of(layout))


cdef inline f32x16 float_load(const int layout, const uint8_t* p, Py_ssize_t k) noexcept nogil:
    if layout == L_F32:
        return f32_load(<const float*>p + 16 * k)
    if layout == L_F16:
        return f32_load_f16(<const uint16_t*>p + 16 * k)
    return f32_load_bf16(<const uint16_t*>p + 16 * k)
