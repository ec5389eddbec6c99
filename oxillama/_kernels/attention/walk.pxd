"""What rows carry through the positions that they see, and which positions these are.

A walk reads panels of one kind: floats, q8_0 codes, or pairs of bf16, multiplied by one instruction (`BF16_DOTS`)
or by fused multiply-adds (`L_BF16`). Queries are stored in the form that the products of the kind need.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from oxillama._kernels.attention.kvpage cimport LANES, Pages
from oxillama._kernels.attention.panels cimport BLOCK, Panels
from oxillama._kernels.packing.formats cimport L_BF16
from oxillama._kernels.simd.bf16 cimport paired, rounded_bf16
from oxillama._kernels.simd.simd cimport *

cdef enum:
    MAX_ROWS = 64        # (token, head) pairs of one unit
    MAX_TILE = 8
    MAX_SUMS = 16        # vectors of sums that a tile keeps in registers
    BF16_DOTS = -1       # a kind of walk: L_BF16 with the instruction for pairs


# The positions that a row sees.
cdef struct View:
    bint causal
    Py_ssize_t window, chunk     # 0: no limit
    Py_ssize_t end               # end of the sequence's positions


cdef inline Py_ssize_t first_seen(const View* view, Py_ssize_t position) noexcept nogil:
    cdef Py_ssize_t first = 0
    if view.window:
        first = max(0, position + 1 - view.window)
    if view.chunk:
        first = max(first, position - position % view.chunk)
    return first


cdef inline Py_ssize_t last_seen(const View* view, Py_ssize_t position) noexcept nogil:
    """The last position that the row at ``position`` sees, plus 1."""
    cdef Py_ssize_t last = view.end
    if view.causal:
        return position + 1
    if view.window:
        last = min(last, position + view.window)
    if view.chunk:
        last = min(last, position - position % view.chunk + view.chunk)
    return last


# What rows carry from block to block.
cdef struct State:
    float* outputs                   # (rows, value_pad)
    float* sums                      # (rows, 16)
    float* most                      # (rows,), the highest score so far


cdef inline Py_ssize_t state_floats(Py_ssize_t rows, Py_ssize_t value_pad) noexcept nogil:
    return (rows * (value_pad + LANES + 1) + 15) & ~<Py_ssize_t>15


cdef inline State state_at(float* memory, Py_ssize_t rows, Py_ssize_t value_pad) noexcept nogil:
    cdef State s
    s.outputs = memory
    s.sums = s.outputs + rows * value_pad
    s.most = s.sums + rows * LANES
    return s


cdef inline float least() noexcept nogil:
    """Lower than every score; its exponential relative to a score is 0."""
    return <float>-3e38


# Rows on their way through the blocks of a partition.
cdef struct Walk:
    Panels now, next                 # the current block, and the next one, which is being prefetched
    Py_ssize_t key_dim, value_pad
    Py_ssize_t group                 # rows per token
    Py_ssize_t position, block       # position of the first row; first position of the block
    View view
    float softcap                    # 0: no cap
    const float* slopes              # (group,), or NULL
    const float* biases              # (group, 2 reach + 1), indexed by key position - query position + reach, or NULL
    Py_ssize_t reach
    float* queries                   # (tiles, query_words, T), scaled
    Py_ssize_t query_words           # 4-byte words of a query: its dimensions, or its pairs of bf16
    float* weights                   # (panels, T, 16): scores, then their exponentials
    float* scaled                    # weights * the scales of one block of q8_0 values
    uint16_t* halves                 # (T, 64) in the memory of scaled: exponentials as bf16
    float* partial                   # (T, value_pad): the weighted sum of one block of bf16 values
    uint32_t* edges                  # (2, value_pad): split pairs, with 0 for the unseen value
    uint8_t* panels                  # room for a gathered block
    State state


cdef inline int rows_in_tile(Py_ssize_t left) noexcept nogil:
    cdef Py_ssize_t most = min(left, <Py_ssize_t>OX_TILE)
    return 8 if most >= 8 else 4 if most >= 4 else 2 if most >= 2 else 1


cdef inline bint is_paired(const int kind) noexcept nogil:
    return kind == L_BF16 or kind == BF16_DOTS


cdef inline Py_ssize_t query_words(int kind, Py_ssize_t key_dim) noexcept nogil:
    """Words of 4 bytes that a query takes."""
    if kind == BF16_DOTS:
        return paired(key_dim) // 2
    return paired(key_dim) if kind == L_BF16 else key_dim


cdef inline void lay_query(const Walk* w, int kind, Py_ssize_t first, int T, int i, const float* q,
                           float scale) noexcept nogil:
    """Stores a query, times ``scale``, as row ``i`` of the tile of T rows that begins with row ``first``.

    Where dimensions are paired, a zero follows an odd last one.
    """
    cdef float* to = w.queries + first * w.query_words + i
    cdef float numbers[LANES]
    cdef uint32_t words[8]
    cdef Py_ssize_t d, n, j
    if not is_paired(kind):
        for d in range(w.key_dim):
            to[d * T] = scale * q[d]
        return
    for d in range(0, w.key_dim, 16):
        n = min(<Py_ssize_t>LANES, w.key_dim - d)
        memset(numbers, 0, sizeof(numbers))
        memcpy(numbers, q + d, n * sizeof(float))
        n = paired(n)
        f32_store(numbers, rounded_bf16(f32_mul(f32_set1(scale), f32_load(numbers))))
        if kind == L_BF16:
            for j in range(n):
                to[(d + j) * T] = numbers[j]
        else:
            f32_store_bf16(<uint16_t*>words, f32_load(numbers))
            for j in range(n // 2):
                (<uint32_t*>to)[(d // 2 + j) * T] = words[j]


cdef inline Py_ssize_t thread_floats(const Pages* c) noexcept nogil:
    """Floats of a thread's own memory: queries, weights twice, for bf16 the sum of a block and two split pairs, and a
    gathered block."""
    cdef Py_ssize_t gathered = BLOCK * (c.walk_key_bytes + c.walk_value_bytes)
    return (MAX_ROWS * paired(c.key_dim) + 2 * BLOCK * MAX_TILE + pair_floats(c) + (gathered + 63) // 64 * 16)


cdef inline Py_ssize_t pair_floats(const Pages* c) noexcept nogil:
    return (MAX_TILE + 2) * c.value_pad if c.walk_type == L_BF16 else 0


cdef inline void place_walk(Walk* w, int kind, const Pages* c, float* own) noexcept nogil:
    """Sets the sizes of a walk, and points its buffers into a thread's own memory."""
    w.key_dim, w.value_pad, w.query_words = c.key_dim, c.value_pad, query_words(kind, c.key_dim)
    w.queries = own
    w.weights = w.queries + MAX_ROWS * paired(c.key_dim)
    w.scaled = w.weights + BLOCK * MAX_TILE
    w.halves = <uint16_t*>w.scaled
    w.partial = w.scaled + BLOCK * MAX_TILE
    w.edges = <uint32_t*>(w.partial + MAX_TILE * c.value_pad)
    w.panels = <uint8_t*>(w.scaled + BLOCK * MAX_TILE + pair_floats(c))
