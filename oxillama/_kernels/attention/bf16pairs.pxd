"""Products with keys and values of bf16: pairs of dimensions, and pairs of positions.

Each pair adds two products to a sum: first the odd element's, then the even element's, as `bf16_fma` does. The
weighted values of a block are summed from 0, and the sum is added to the row's outputs: outputs may be subnormal
numbers, which the instruction takes for 0.

Pairs of positions are aligned to the panel. If a row sees one position of a pair, the weight and the value of the
other are replaced by 0, because the stored value may be anything.
"""

from libc.stdint cimport int8_t, uint8_t, uint32_t

from oxillama._kernels.attention.kvpage cimport LANES
from oxillama._kernels.attention.panels cimport BLOCK
from oxillama._kernels.attention.walk cimport MAX_SUMS, MAX_TILE, Walk
from oxillama._kernels.simd.bf16 cimport paired
from oxillama._kernels.simd.simd cimport *


cdef inline void pair_scores(const bint dots, const int T, const int P, const Walk* w, const float* q,
                             const int p0) noexcept nogil:
    """``w.weights`` (panels, T, 16) = products of T queries with the keys of P panels from ``p0`` on."""
    cdef f32x16 acc[MAX_SUMS]
    cdef u8x64 keys[4]
    cdef u8x64 x
    cdef f32x16 halves[4]
    cdef f32x16 share
    cdef Py_ssize_t d
    cdef int p, t
    for t in range(P * T):
        acc[t] = f32_zero()
    for d in range(paired(w.key_dim) // 2):
        for p in range(P):
            ox_prefetch_far(w.next.keys[p0 + p] + 64 * d)
            keys[p] = u8_load(w.now.keys[p0 + p] + 64 * d)
        if dots:
            for t in range(T):
                x = u8_keep(u8_set4(<const int8_t*>(q + d * T + t)))
                for p in range(P):
                    acc[p * T + t] = bf16_dot(acc[p * T + t], keys[p], x)
        else:
            for p in range(P):
                halves[p] = f32_from_high16(keys[p])
            for t in range(T):
                share = f32_keep(f32_set1(q[(2 * d + 1) * T + t]))
                for p in range(P):
                    acc[p * T + t] = f32_fma(halves[p], share, acc[p * T + t])
            for p in range(P):
                halves[p] = f32_from_low16(keys[p])
            for t in range(T):
                share = f32_keep(f32_set1(q[2 * d * T + t]))
                for p in range(P):
                    acc[p * T + t] = f32_fma(halves[p], share, acc[p * T + t])
    for t in range(P * T):
        f32_store(w.weights + (p0 * T + t) * LANES, acc[t])


cdef inline const uint8_t* pair_at(const Walk* w, const uint8_t* panel, Py_ssize_t j) noexcept nogil:
    """Pair ``j`` of the block's values; ``panel`` is the panel that contains it."""
    return panel + (j & (LANES // 2 - 1)) * 4 * w.value_pad


cdef inline void cut_edges(const Walk* w, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    """Where start or end splits a pair: copies that pair to ``w.edges`` with 0 for the value outside of the range."""
    cdef const uint32_t* pair
    cdef Py_ssize_t d
    if start & 1:
        pair = <const uint32_t*>pair_at(w, w.now.values[start // LANES], start // 2)
        for d in range(w.value_pad):
            w.edges[d] = pair[d] & <uint32_t>0xFFFF0000
    if end & 1:
        pair = <const uint32_t*>pair_at(w, w.now.values[end // LANES], end // 2)
        for d in range(w.value_pad):
            w.edges[w.value_pad + d] = pair[d] & <uint32_t>0xFFFF


cdef inline void pair_vectors(const bint dots, const int T, const int V, const int stride, const Walk* w, int t0,
                              Py_ssize_t start, Py_ssize_t end, Py_ssize_t first, float* out,
                              bint fresh) noexcept nogil:
    """Adds weight * value over the block's positions from start to end: T rows from t0 on, vectors first .. first + V.

    If ``fresh``, the sum begins with 0 and is added to ``out`` at its end; else the sum continues ``out``. The tile
    has ``stride`` rows.
    """
    cdef f32x16 acc[MAX_SUMS]
    cdef u8x64 x[4]
    cdef u8x64 share
    cdef f32x16 parts[4]
    cdef f32x16 part
    cdef Py_ssize_t j
    cdef const uint8_t* values
    cdef const uint8_t* following
    cdef const uint8_t* halves = <const uint8_t*>(w.halves + BLOCK * t0)
    cdef const float* weight
    cdef int t, v
    for v in range(V):
        for t in range(T):
            acc[v * T + t] = f32_zero() if fresh else f32_load(out + t * w.value_pad + LANES * (first + v))
    for j in range(start // 2, (end + 1) // 2):
        values = pair_at(w, w.now.values[j // (LANES // 2)], j)
        following = pair_at(w, w.next.values[j // (LANES // 2)], j)
        if 2 * j < start:
            values = <const uint8_t*>w.edges
        elif 2 * j + 2 > end:
            values = <const uint8_t*>(w.edges + w.value_pad)
        for v in range(V):
            ox_prefetch_far(following + 64 * (first + v))
            x[v] = u8_load(values + 64 * (first + v))
        if dots:
            for t in range(T):
                share = u8_keep(u8_set4(<const int8_t*>halves + 2 * BLOCK * t + 4 * j))
                for v in range(V):
                    acc[v * T + t] = bf16_dot(acc[v * T + t], x[v], share)
        else:
            weight = w.weights + (j // (LANES // 2) * stride + t0) * LANES + (2 * j & (LANES - 1))
            for v in range(V):
                parts[v] = f32_from_high16(x[v])
            for t in range(T):
                part = f32_keep(f32_set1(weight[LANES * t + 1]))
                for v in range(V):
                    acc[v * T + t] = f32_fma(parts[v], part, acc[v * T + t])
            for v in range(V):
                parts[v] = f32_from_low16(x[v])
            for t in range(T):
                part = f32_keep(f32_set1(weight[LANES * t]))
                for v in range(V):
                    acc[v * T + t] = f32_fma(parts[v], part, acc[v * T + t])
    for v in range(V):
        for t in range(T):
            if fresh:
                acc[v * T + t] = f32_add(f32_load(out + t * w.value_pad + LANES * (first + v)), acc[v * T + t])
            f32_store(out + t * w.value_pad + LANES * (first + v), acc[v * T + t])


cdef inline void pair_rows(const bint dots, const int T, const int V, const int stride, const Walk* w, int t0,
                           Py_ssize_t start, Py_ssize_t end, float* out, bint fresh) noexcept nogil:
    """`pair_vectors` for all vectors of the values; the T rows all see the positions from start to end."""
    cdef Py_ssize_t d = 0, vectors = w.value_pad // LANES
    if start >= end:
        return
    cut_edges(w, start, end)
    while d + V <= vectors:
        pair_vectors(dots, T, V, stride, w, t0, start, end, d, out, fresh)
        d = d + V
    while d < vectors:
        pair_vectors(dots, T, 1, stride, w, t0, start, end, d, out, fresh)
        d = d + 1


cdef inline void pairs_of_row(bint dots, int stride, const Walk* w, int t0, Py_ssize_t start, Py_ssize_t end,
                              float* out) noexcept nogil:
    """`pair_rows` for one row, at the edges of what a tile's rows see; one function for all tiles."""
    if OX_BF16_DOT and dots:
        pair_rows(True, 1, 1, stride, w, t0, start, end, out, False)
    else:
        pair_rows(False, 1, 1, stride, w, t0, start, end, out, False)


cdef inline void add_pairs(const bint dots, const int T, const int V, const Walk* w, const Py_ssize_t* low,
                           const Py_ssize_t* high, float* out) noexcept nogil:
    """Adds the weighted values of the block to T rows of ``out``; row t sees the positions from low[t] to high[t]."""
    cdef Py_ssize_t start = low[0], end = high[0], d
    cdef bint alike = True
    cdef float* own
    cdef int t
    for t in range(1, T):
        alike = alike and low[t] == low[0] and high[t] == high[0]
        start, end = max(start, low[t]), min(end, high[t])
    if alike:
        pair_rows(dots, T, V, T, w, 0, start, end, out, True)
        return
    start = paired(start)  # all rows see the pairs from start to end, a range that may be empty
    end = max(start, end & ~<Py_ssize_t>1)
    for d in range(0, T * w.value_pad, 16):
        f32_store(w.partial + d, f32_zero())
    for t in range(T):
        pairs_of_row(dots, T, w, t, low[t], min(start, high[t]), w.partial + t * w.value_pad)
    pair_rows(dots, T, V, T, w, 0, start, end, w.partial, False)
    for t in range(T):
        own = w.partial + t * w.value_pad
        pairs_of_row(dots, T, w, t, max(end, low[t]), high[t], own)
        if low[t] < high[t]:
            for d in range(0, w.value_pad, 16):
                f32_store(out + t * w.value_pad + d,
                          f32_add(f32_load(out + t * w.value_pad + d), f32_load(own + d)))
