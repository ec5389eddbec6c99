"""Choice of the positions that a row attends to, by a selector (sparse attention of DeepSeek-V3.2, 2025).

A position's score is a sum over the selector's heads of weight * max(0, query * key). Lanes are positions, products are
added in the order of dimensions and heads in their order: a score does not depend on which positions are scored
with it. The choice compares the bits of the scores, so it has no rounding.
"""

from libc.math cimport INFINITY
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy, memset

from oxillama._kernels.attention.kvpage cimport LANES
from oxillama._kernels.attention.onlinesoftmax cimport score_panels, side_by_side
from oxillama._kernels.attention.panels cimport BLOCK, PANELS, Source, find_panels
from oxillama._kernels.attention.walk cimport BF16_DOTS, MAX_ROWS, Walk, lay_query, place_walk, rows_in_tile
from oxillama._kernels.packing.formats cimport L_BF16, L_C8, L_F16, L_F32
from oxillama._kernels.simd.simd cimport *

cdef enum:
    BINS = 2048     # counters of one pass of the selection


cdef inline void score_tile(const int kv_type, const int T, const Walk* w, const float* q) noexcept nogil:
    """``w.weights`` (panels, T, 16) = products of T queries with the keys of a block."""
    cdef int p = 0
    while p < PANELS:
        score_panels(kv_type, T, side_by_side(kv_type, T), w, q, p)
        p = p + side_by_side(kv_type, T)


cdef inline void score_heads(const int kv_type, const Walk* w, Py_ssize_t n, const float* weights,
                             f32x16* sums) noexcept nogil:
    """Adds the scores of n heads for one block to ``sums``, one vector for each of its 4 panels; without weights, the
    products themselves."""
    cdef Py_ssize_t t0 = 0
    cdef int T, p, t
    while t0 < n:
        T = rows_in_tile(n - t0)
        if OX_TILE >= 8 and T == 8:
            score_tile(kv_type, 8, w, w.queries + t0 * w.query_words)
        elif T == 4:
            score_tile(kv_type, 4, w, w.queries + t0 * w.query_words)
        elif T == 2:
            score_tile(kv_type, 2, w, w.queries + t0 * w.query_words)
        else:
            score_tile(kv_type, 1, w, w.queries + t0 * w.query_words)
        for p in range(PANELS):
            for t in range(T):
                if weights == NULL:
                    sums[p] = f32_add(f32_load(w.weights + (p * T + t) * LANES), sums[p])
                    continue
                sums[p] = f32_fma(f32_max(f32_load(w.weights + (p * T + t) * LANES), f32_zero()),
                                  f32_set1(weights[t0 + t]), sums[p])
        t0 = t0 + T


cdef inline const float* at_head(const float* weights, Py_ssize_t head) noexcept nogil:
    return NULL if weights == NULL else weights + head


cdef inline void score_positions(const Source* source, const float* q, Py_ssize_t n_heads, const float* weights,
                                 Py_ssize_t first, Py_ssize_t end, float* own, float* scores) noexcept nogil:
    """Writes the scores of the positions from ``first``, where a block begins, to ``end``; the padding is undefined.

    Without weights the scores are the products of the one head. ``own`` is a thread's memory: 64 queries, the
    products of a tile, and room for a gathered block.
    """
    cdef Walk w
    cdef f32x16 sums[PANELS]
    cdef Py_ssize_t dim = source.shape.key_dim, h0, n, t0, at
    cdef int T, i, p
    place_walk(&w, source.kind, source.shape, own)
    for h0 in range(0, n_heads, 64):
        n, t0 = min(n_heads - h0, <Py_ssize_t>MAX_ROWS), 0
        while t0 < n:
            T = rows_in_tile(n - t0)
            for i in range(T):
                lay_query(&w, source.kind, t0, T, i, q + (h0 + t0 + i) * dim, 1.0)
            t0 = t0 + T
        for at in range(first, end, 64):
            w.now = find_panels(source, at, end, w.panels)
            w.next = w.now
            for p in range(PANELS):
                sums[p] = f32_load(scores + at + LANES * p) if h0 else f32_zero()
            if source.kind == L_F32:
                score_heads(L_F32, &w, n, at_head(weights, h0), sums)
            elif source.kind == L_F16:
                score_heads(L_F16, &w, n, at_head(weights, h0), sums)
            elif source.kind == L_BF16:
                score_heads(L_BF16, &w, n, at_head(weights, h0), sums)
            elif OX_BF16_DOT and source.kind == BF16_DOTS:
                score_heads(BF16_DOTS, &w, n, at_head(weights, h0), sums)
            else:
                score_heads(L_C8, &w, n, at_head(weights, h0), sums)
            for p in range(PANELS):
                f32_store(scores + at + LANES * p, sums[p])


cdef inline void take_block_maxima(float* scores, Py_ssize_t n, Py_ssize_t block, Py_ssize_t local) noexcept nogil:
    """Replaces n scores by the highest score of each ``block``; scores of the last ``local`` blocks are infinite."""
    cdef Py_ssize_t b, j, blocks = (n + block - 1) // block
    cdef float top
    for b in range(blocks):
        top = scores[b * block]
        for j in range(b * block + 1, min(n, (b + 1) * block)):
            top = scores[j] if scores[j] > top else top
        scores[b] = top if b < blocks - local else INFINITY


cdef inline uint32_t ordered(float x) noexcept nogil:
    """An integer that sorts like x: 0 and -0 are equal, a NaN is below every number."""
    cdef float sum_ = x + <float>0.0
    cdef uint32_t bits
    if x != x:
        return 0
    memcpy(&bits, &sum_, sizeof(bits))
    return ~bits if bits >> 31 else bits | (<uint32_t>1 << 31)


cdef inline void choose_positions(float* scores, Py_ssize_t n, Py_ssize_t most, int* chosen) noexcept nogil:
    """``chosen`` = the ``most`` highest of n scores, or all, in ascending order; of equal scores the lower positions.

    A radix selection finds the bits of the lowest chosen score, eleven at a time. ``scores`` is overwritten.
    """
    cdef uint32_t* bits = <uint32_t*>scores
    cdef Py_ssize_t counts[BINS]
    cdef Py_ssize_t j, at = 0, left = most, b
    cdef uint32_t least = 0, known = 0
    cdef int shift, step
    if n <= most:
        for j in range(n):
            chosen[j] = <int>j
        return
    for j in range(n):
        bits[j] = ordered(scores[j])
    for step in range(3):
        shift = 21 - 11 * step if step < 2 else 0
        memset(counts, 0, sizeof(counts))
        for j in range(n):
            if bits[j] & known == least:
                counts[(bits[j] >> shift) & (BINS - 1)] += 1
        b = BINS - 1
        while counts[b] < left:
            left = left - counts[b]
            b = b - 1
        least = least | (<uint32_t>b << shift)
        known = ~((<uint32_t>1 << shift) - 1)
    for j in range(n):
        if bits[j] > least or (bits[j] == least and left > 0):
            left = left - (bits[j] == least)
            chosen[at] = <int>j
            at = at + 1
