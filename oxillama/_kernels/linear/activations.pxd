"""Activations in the forms that the tile bodies read: copied, rounded or quantized, in tiles of 8, 4, 2 or 1 tokens.

An activation is quantized to int8 per block of 32 (c8, c4, ...) or 256 (k4, k6, ...) columns, symmetrically,
scale = max|x| / 127, as llama.cpp's Q8_0 and Q8_K do, but with the scale kept as float32; for r8 a block is a whole
row, for b8 128 columns. A block whose max|x| is at most 1e-36 counts as zero; a NaN or an infinity in a block makes
its scale and its products NaN.

For matrices of bf16 an activation is rounded to bf16, to nearest even, after magnitudes below 2^-56 have become 0; a
NaN stays a NaN. The tile holds pairs of bf16 if an instruction multiplies them (`Job.dots`), else float32.
"""

from libc.math cimport NAN
from libc.stdint cimport int8_t, int32_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from oxillama._kernels.linear.tiles cimport ROW_PAD, Tile
from oxillama._kernels.packing.formats cimport *
from oxillama._kernels.packing.layouts cimport n_spans
from oxillama._kernels.simd.bf16 cimport paired, to_bf16
from oxillama._kernels.simd.simd cimport *

cdef enum:  # forms of activations
    A_F32 = 0
    A_BF16 = 1   # bf16 values as float32, an even number of columns
    A_PAIRS = 2  # the values of A_BF16 stored as bf16
    A_32 = 3
    A_256 = 4
    A_ROW = 5
    A_PRODUCTS = 6  # as A_256, for weights that AMX multiplies as products of codes and scales (`amx_super_tile`)
    A_128 = 7       # as A_ROW, with a scale for each 128 columns
    A_BLOCKS = 8    # as A_32, for weights that AMX multiplies (`amx_block_tile`)
    FORMS = 9

cdef extern from *:
    """
    /* Tokens of the smallest products in the tile registers of AMX: of r8 and b8, of layouts whose codes are multiplied
     * by their scales first, once for all tokens, and of layouts with blocks of 32. Fewer wait for the memory. */
    static int ox_tile_rows = 16, ox_tile_products = 32, ox_tile_blocks = 32;
    static void ox_use_tiles(int rows, int products, int blocks) {
        ox_tile_rows = rows, ox_tile_products = products, ox_tile_blocks = blocks;
    }
    """
    const int ox_tile_rows
    const int ox_tile_products
    const int ox_tile_blocks
    void ox_use_tiles(int rows, int products, int blocks)


cdef inline int form_number(int layout, bint dots) noexcept nogil:
    if is_row(layout):
        return A_128 if layout == L_B8 else A_ROW
    if is_pairs(layout):
        return A_PAIRS if dots else A_BF16
    if OX_AMX and has_subs(layout):
        return A_PRODUCTS
    if OX_AMX and form_of(layout) == 32 and not has_halves(layout):
        return A_BLOCKS
    return A_F32 if form_of(layout) == 0 else A_32 if form_of(layout) == 32 else A_256


cdef inline bint is_float(int form) noexcept nogil:
    """Whether activations are floats or bf16, without codes and scales."""
    return form <= A_PAIRS


cdef inline bint is_rows(int form) noexcept nogil:
    """Whether the codes of a token are contiguous."""
    return form == A_ROW or form == A_128


cdef inline bint is_blocks(int form) noexcept nogil:
    """Whether there is a scale for each 32 columns."""
    return form == A_32 or form == A_BLOCKS


cdef inline bint is_tiles(int form) noexcept nogil:
    """Whether tiles of 16 tokens are for AMX, and panels are unpacked once for all tokens."""
    return form == A_PRODUCTS or form == A_BLOCKS


cdef inline Py_ssize_t padded(Py_ssize_t n) noexcept nogil:
    return (n + 63) & ~<Py_ssize_t>63


# Scratch of one form for n tokens. The arrays of the tile that starts at token t0 begin at t0 times their bytes
# per token, so no table of tiles is needed.
cdef struct Form:
    char* base
    Py_ssize_t scale, sums, more  # offsets of the arrays after the codes (or values)


cdef inline Py_ssize_t codes_of_token(int form, Py_ssize_t cols) noexcept nogil:
    """Bytes of a token's codes or values."""
    if form == A_F32:
        return 4 * cols
    if form == A_BF16 or form == A_PAIRS:
        return paired(cols) * (4 if form == A_BF16 else 2)
    return cols + ROW_PAD if is_rows(form) else cols


cdef inline Py_ssize_t scales_of_token(int form, Py_ssize_t cols) noexcept nogil:
    if is_rows(form):
        return n_spans(L_B8 if form == A_128 else L_R8, cols)
    return cols // (32 if is_blocks(form) else 256)


cdef inline Py_ssize_t form_layout(int form, Py_ssize_t n, Py_ssize_t cols, Form* f) noexcept nogil:
    """Sets the offsets of ``f``; returns the bytes of all arrays, a multiple of 64."""
    cdef Py_ssize_t end
    f.scale = padded(n * codes_of_token(form, cols))
    if is_float(form):
        f.sums = f.more = f.scale
        return f.scale
    f.sums = f.scale + padded(n * scales_of_token(form, cols) * 4)
    if is_rows(form):
        f.more = f.sums
        return f.sums
    f.more = f.sums + padded(n * (cols // 32) * 4)
    end = f.more + padded(n * (cols // (16 if is_blocks(form) else 64)) * 4)
    return end


cdef inline void form_tile(int form, const Form* f, Py_ssize_t t0, Py_ssize_t cols, Tile* tile) noexcept nogil:
    tile.codes = <const int8_t*>f.base + t0 * codes_of_token(form, cols)
    tile.values = <const float*>tile.codes
    tile.scale = <const float*>(f.base + f.scale) + t0 * scales_of_token(form, cols)
    tile.nsum = <const int32_t*>(f.base + f.sums) + t0 * (cols // 32)
    tile.sums16 = tile.nsum
    tile.sums32 = <const int32_t*>(f.base + f.more) + t0 * (cols // 64)
    tile.nsum16 = <const int32_t*>(f.base + f.more) + t0 * (cols // 16)


cdef inline int largest_tile(int form, Py_ssize_t n, bint room) noexcept nogil:
    """Tokens of the largest tile of ``n`` tokens. The registers of AMX hold 16, and two of them share the codes.

    Tiles of `is_tiles` need ``room``, memory for unpacked panels.
    """
    if OX_AMX and is_rows(form) and n >= ox_tile_rows:
        return 32 if n >= 32 else 16
    if OX_AMX and is_tiles(form) and room and n >= (ox_tile_blocks if form == A_BLOCKS else ox_tile_products):
        return 32
    return OX_TILE


cdef inline int tile_size(Py_ssize_t left) noexcept nogil:
    cdef Py_ssize_t most = min(left, OX_TILE)
    return 8 if most >= 8 else 4 if most >= 4 else 2 if most >= 2 else 1


cdef inline f32x16 to_codes(f32x16 x, f32x16 inv, int8_t* out) noexcept nogil:
    """16 codes round(x * inv), ties to even: adding 1.5 * 2^23 leaves the integer in the low mantissa bits."""
    cdef f32x16 magic = f32_set1(12582912.0)
    cdef i32x16 code = i32_from_bits(f32_add(f32_mul(x, inv), magic))
    i32_store_i8(out, code)
    return f32_sub(f32_from_bits(code), magic)


cdef inline int32_t total_of(f32x16 codes, bint* finite) noexcept nogil:
    """The sum of 16 codes; if one of them came from a NaN or an infinity, 0 with ``finite`` cleared."""
    cdef float total = f32_sum(codes)
    if total - total == 0:
        return <int32_t>total
    finite[0] = False
    return 0


cdef inline int32_t pair(int32_t low, int32_t high) noexcept nogil:
    """Two 16-bit integers packed into one of 32 bits."""
    return <int32_t>((<uint32_t>low & 0xFFFF) | (<uint32_t>high << 16))


cdef inline void store_groups(int8_t* out, const int8_t* codes, Py_ssize_t column, int T, int t) noexcept nogil:
    """Stores 16 codes of token ``t`` of a tile of ``T`` in groups: (cols / 4, T, 4); for `OX_MATRIX` (cols / 8, T, 8).
    """
    cdef int g
    if OX_MATRIX:
        for g in range(2):
            memcpy(out + (column + 8 * g) * T + 8 * t, codes + 8 * g, 8)
    else:
        for g in range(4):
            memcpy(out + (column + 4 * g) * T + 4 * t, codes + 4 * g, 4)


cdef inline void store_row(int8_t* out, const int8_t* codes, Py_ssize_t column, int t, int k) noexcept nogil:
    """Stores 16 codes of token ``t`` of a tile of 16, (cols / k, 16, k)."""
    memcpy(out + column // k * 16 * k + k * t + column % k, codes, 16)


cdef inline void quantize_token(const int form, const float* x, Py_ssize_t first, Py_ssize_t last, const Tile* tile,
                                int T, int t) noexcept nogil:
    """Quantizes columns ``first`` to ``last`` (whole blocks) of token ``t`` of a tile of ``T``."""
    cdef Py_ssize_t block = 32 if form == A_32 else 256
    cdef Py_ssize_t b, k, i
    cdef f32x16 top
    cdef float most, inv
    cdef bint finite
    cdef int8_t codes[16]
    cdef int32_t half[2]
    cdef int32_t whole, other = 0
    cdef int8_t* out = <int8_t*>tile.codes
    for b in range(first // block, last // block):
        top = f32_zero()
        for k in range(0, block, 16):
            top = f32_max(f32_abs(f32_load(x + b * block + k)), top)
        most = f32_hmax(top)
        inv = 127.0 / most if most > <float>1e-36 else 0.0  # the quotient would overflow
        finite = True
        for k in range(0, block, 32):
            for i in range(2):
                half[i] = total_of(to_codes(f32_load(x + b * block + k + 16 * i), f32_set1(inv), codes), &finite)
                if OX_AMX and T == 16:
                    store_row(out, codes, b * block + k + 16 * i, t, 32 if form == A_32 else 64)
                else:
                    store_groups(out, codes, b * block + k + 16 * i, T, t)
            whole = half[0] + half[1]
            i = (b * block + k) // 32
            if form == A_32:
                (<int32_t*>tile.nsum)[i * T + t] = -whole
                (<int32_t*>tile.nsum16)[2 * i * T + t] = -half[0]
                (<int32_t*>tile.nsum16)[(2 * i + 1) * T + t] = -half[1]
            else:
                (<int32_t*>tile.sums16)[i * T + t] = pair(half[0], half[1])
                if i & 1:
                    (<int32_t*>tile.sums32)[(i >> 1) * T + t] = pair(other, whole)
                other = whole
        (<float*>tile.scale)[b * T + t] = most / 127.0 if finite else NAN


cdef inline void quantize_row(const int form, const float* x, Py_ssize_t cols, Py_ssize_t first, Py_ssize_t last,
                              const Tile* tile, int T, int t) noexcept nogil:
    """Quantizes columns ``first`` to ``last`` (whole spans) of token ``t`` of a tile of ``T``."""
    cdef Py_ssize_t span = span_of(L_B8 if form == A_128 else L_R8), s
    cdef float* scale = <float*>tile.scale + t * scales_of_token(form, cols)
    cdef int8_t* out = <int8_t*>tile.codes + (0 if OX_MATRIX else t * codes_of_token(form, cols))
    for s in range(first // span, (last + span - 1) // span):
        scale[s] = quantize_span(x + s * span, min(span, last - s * span), out, s * span, T, t)


cdef inline float quantize_span(const float* x, Py_ssize_t cols, int8_t* out, Py_ssize_t column, int T,
                                int t) noexcept nogil:
    """Quantizes columns with one scale, stores them from ``column`` on, and returns the scale."""
    cdef f32x16 top = f32_zero(), total = f32_zero(), magic = f32_set1(12582912.0), inv, moved
    cdef float most, sum
    cdef Py_ssize_t k
    cdef i32x16 code
    cdef int8_t codes[16]
    for k in range(0, cols, 16):
        top = f32_max(f32_abs(f32_load(x + k)), top)
    most = f32_hmax(top)
    inv = f32_set1(127.0 / most if most > <float>1e-36 else 0.0)
    for k in range(0, cols, 16):
        moved = f32_add(f32_mul(f32_load(x + k), inv), magic)
        total = f32_add(total, f32_sub(moved, magic))
        code = i32_from_bits(moved)
        if OX_MATRIX:
            i32_store_i8(codes, code)
            store_groups(out, codes, column + k, T, t)
        else:
            i32_store_i8(out + column + k, i32_add(code, i32_set1(1 << OX_A8_SHIFT)) if OX_A8_SHIFT else code)
    sum = f32_sum(total)  # NaN where a value is a NaN or an infinity
    return most / 127.0 if sum - sum == 0 else NAN


cdef inline void round_token(const bint pairs, const float* x, Py_ssize_t first, Py_ssize_t last, const Tile* tile,
                             int T, int t) noexcept nogil:
    """Rounds columns ``first`` (even) to ``last`` of token ``t`` of a tile of ``T``.

    If ``last`` is odd, a zero completes the last pair.
    """
    cdef uint32_t* out = <uint32_t*>tile.values
    cdef float rest[16]
    cdef uint32_t words[16]
    cdef Py_ssize_t k, n
    cdef int i
    cdef f32x16 v
    for k in range(first, last, 16):
        n = min(<Py_ssize_t>16, last - k)
        if n == 16:
            v = f32_load(x + k)
        else:
            memset(rest, 0, sizeof(rest))
            memcpy(rest, x + k, n * sizeof(float))
            v = f32_load(rest)
            n = paired(n)
        v = to_bf16(v)
        if pairs:
            f32_store_bf16(<uint16_t*>words, v)
            for i in range(n // 2):
                out[(k // 2 + i) * T + t] = words[i]
        else:
            f32_store(<float*>words, v)
            for i in range(n):
                out[(k + i) * T + t] = words[i] >> 16 << 16


cdef inline void fill_tile(int form, const Form* f, Py_ssize_t cols, const float** x, Py_ssize_t first, Py_ssize_t last,
                           Py_ssize_t t0, int T) noexcept nogil:
    """Writes columns ``first`` to ``last`` of T tokens with the rows ``x`` to the tile that starts at token ``t0``."""
    cdef Tile tile
    cdef Py_ssize_t k
    cdef float* v
    cdef int t
    form_tile(form, f, t0, cols, &tile)
    v = <float*>tile.values
    for t in range(T):
        if is_blocks(form):
            quantize_token(A_32, x[t], first, last, &tile, T, t)
        elif form == A_256 or form == A_PRODUCTS:
            quantize_token(A_256, x[t], first, last, &tile, T, t)
        elif form == A_ROW:
            quantize_row(A_ROW, x[t], cols, first, last, &tile, T, t)
        elif form == A_128:
            quantize_row(A_128, x[t], cols, first, last, &tile, T, t)
        elif form == A_PAIRS:
            round_token(True, x[t], first, last, &tile, T, t)
        elif form == A_BF16:
            round_token(False, x[t], first, last, &tile, T, t)
        elif T == 1:
            memcpy(v + first, x[t] + first, (last - first) * sizeof(float))
        else:
            for k in range(first, last):
                v[k * T + t] = x[t][k]
