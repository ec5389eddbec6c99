"""Where the parts of a packed panel lie. Which parts a layout has is generated from formats.py (formats.pxd).

A panel is 16 rows of a matrix, interleaved: lane r of every vector belongs to row r. A quantized panel is
its blocks one after another, each with its scales (the header) before its codes, so that reading it is one
stream; two blocks share a group where that keeps the codes on cache lines. A layout is a width of codes and
a kind of scales:

    codes of 32 columns, 64 bytes per bit; byte j of a lane, group g: value 4g + j of the lane's row
      8 bits      vector g
      4 bits      vector g % 4, low nibbles for g < 4, high ones else
      5, 6 bits   the same, then the upper bits: bit g of every byte, or bits 2(g % 4).. of vector g / 4
      2 bits      bits 2(g % 4).. of vector g / 4
      3 bits      the same, then bit g of every byte for the upper bit
      1 bit       bit g of every byte
    scales of a block of 32 columns
      f16 d[16] (bf16 for e4), and f16 m[16] for m4 and m5; for n4 those of its halves, bytes [16][2] (unpack.pxd)
    scales of a block of 256 columns, with sub-blocks of 16 (k2 k3 k6 g1 g2) or 32
      f16 d[16], f16 dmin[16] where there are minima, then pairs of int8: scales [S / 2][16][2], minima
      the same; k2 has both in one byte (low nibble, high nibble)
    scales of a block of 256 columns without sub-blocks (s2 s8)
      f16 d[16], for s8 f32 d[16]
    floats (f32 f16)
      the 16 rows' column 0, then column 1, ...; bf16 in pairs of columns [cols / 2][16][2], the last with a zero
    scales of whole rows (r8), before all codes of the panel
      f32 d[16], int32 sum of the row's codes [16]

Codes are what the format's are, or stand in a table of 16 values: those of IQ4_NL in their own, signed; the
others, which all lie in -64..63, 64 too high, so that they are 7-bit codes like most.
"""

from libc.stdint cimport uint8_t, uint16_t

from oxillama._kernels.packing.formats cimport *
from oxillama._kernels.simd.bf16 cimport paired
from oxillama._kernels.simd.simd cimport *

cdef enum:
    ROW_HEADER = 128     # bytes of a panel's scales and sums of rows


cdef inline int dot_excess(const int layout) noexcept nogil:
    """What the numbers that are multiplied are too high by."""
    if has_signed_codes(layout):
        return 1 << OX_S8_SHIFT if OX_S8_SHIFT else 0
    return code_excess(layout)


cdef inline int excess_shift(const int layout) noexcept nogil:
    """The excess as a power of two."""
    cdef int n = 0
    while 1 << n < dot_excess(layout):
        n += 1
    return n


cdef inline int pair_bytes(const int layout) noexcept nogil:
    """Bytes of a superblock's sub-block scales, all 16 rows."""
    return 0 if not has_subs(layout) else 256 if has_subs_of_16(layout) else 128


cdef inline int header_bytes(const int layout) noexcept nogil:
    """Bytes of a block's scales, all 16 rows."""
    cdef int halves = 64 if has_minima(layout) or scale_bytes(layout) == 4 else 32
    if form_of(layout) == 32:
        return halves
    return halves + pair_bytes(layout) * (2 if has_minima(layout) and layout != L_K2 else 1)


cdef inline int group_blocks(const int layout) noexcept nogil:
    """Blocks whose headers stand together, so that they fill whole cache lines of 64 bytes."""
    return 2 if header_bytes(layout) % 64 else 1


cdef inline Py_ssize_t block_bytes(const int layout) noexcept nogil:
    """Bytes of a block, header and codes."""
    return header_bytes(layout) + form_of(layout) * 2 * code_bits(layout)


cdef inline Py_ssize_t header_at(const int layout, Py_ssize_t b) noexcept nogil:
    """Where the header of block ``b`` of a panel begins."""
    cdef Py_ssize_t first = b - b % group_blocks(layout)
    return first * block_bytes(layout) + (b - first) * header_bytes(layout)


cdef inline Py_ssize_t codes_at(const int layout, Py_ssize_t b) noexcept nogil:
    """Where the codes of block ``b`` of a panel begin."""
    if is_row(layout):
        return ROW_HEADER + b * 512
    cdef Py_ssize_t first = b - b % group_blocks(layout)
    return (first * block_bytes(layout) + group_blocks(layout) * header_bytes(layout)
            + (b - first) * form_of(layout) * 2 * code_bits(layout))


cdef inline Py_ssize_t panel_bytes(int layout, Py_ssize_t cols) noexcept nogil:
    """Bytes of one panel of 16 rows: up to the end of the last block's codes."""
    if form_of(layout) == 0:
        return (paired(cols) if is_pairs(layout) else cols) * 16 * scale_bytes(layout)
    return codes_at(layout, cols // form_of(layout) - 1) + form_of(layout) * 2 * code_bits(layout)


cdef inline int block_cols(int layout) noexcept nogil:
    """A row must be a whole number of these columns."""
    return max(1, form_of(layout))


cdef inline f32x16 float_load(const int layout, const uint8_t* p, Py_ssize_t k) noexcept nogil:
    if layout == L_F32:
        return f32_load(<const float*>p + 16 * k)
    if layout == L_F16:
        return f32_load_f16(<const uint16_t*>p + 16 * k)
    return f32_load_bf16(<const uint16_t*>p + 16 * k)
