"""Carries a tile of rows through a block of positions: scores, softmax, values.

A row is a (token, query head) pair. It walks the positions it sees in blocks of 64, aligned to absolute
positions, and carries the highest score so far, the sum of exponentials and the weighted sum of the values
(online softmax: Milakov and Gimelshein, 2018; Dao, FlashAttention-2, 2023). Keys and values that a row does not see
enter none of its sums, not even as 0 * inf.

A row's results do not depend on its tile: lanes of a score vector are positions, lanes of an output vector are
dimensions, and sums run in order of dimension and of position.
"""

from libc.stdint cimport int8_t, uint8_t, uint16_t

from oxillama._kernels.attention.bf16pairs cimport add_pairs, pair_scores
from oxillama._kernels.attention.kvpage cimport LANES, KV_BLOCK
from oxillama._kernels.attention.panels cimport BLOCK, PANELS
from oxillama._kernels.attention.walk cimport *
from oxillama._kernels.packing.formats cimport L_BF16, L_C8, L_F16, L_F32
from oxillama._kernels.packing.layouts cimport float_load
from oxillama._kernels.simd.bf16 cimport rounded_bf16
from oxillama._kernels.simd.mathfun cimport exp16, exp_below16, exp_to_bf16, tanh16
from oxillama._kernels.simd.simd cimport *

cdef enum:
    Q8_PANEL = 544       # bytes of a q8_0 block of 32 dimensions in a panel: 16 scales, then codes


cdef inline int side_by_side(const int kv_type, const int T) noexcept nogil:
    """Panels, or vectors of a value, that T rows process together: enough sums to hide the latency of the fma.

    With 16 sums, each loaded element of 8 queries is used for two panels. q8_0 needs a second sum for each of them;
    fewer rows than 8 gain little from shared loads there, and 8 sums are faster.
    """
    cdef int sums = 4 if OX_TILE < 8 else 8 if kv_type == L_C8 and T < 8 else 16
    return 4 if sums >= 4 * T else 2 if sums >= 2 * T else 1


cdef inline int line_step(const int kv_type) noexcept nogil:
    """Vectors of 16 elements in a cache line."""
    return 1 if kv_type == L_F32 else 4 if kv_type == L_C8 else 2


cdef inline void score_panels(const int kv_type, const int T, const int P, const Walk* w, const float* q,
                              const int p0) noexcept nogil:
    """``w.weights`` (panels, T, 16) = products of T queries with the keys of P panels from ``p0`` on."""
    if is_paired(kv_type):
        pair_scores(kv_type == BF16_DOTS, T, P, w, q, p0)
    else:
        single_scores(kv_type, T, P, w, q, p0)


cdef inline void single_scores(const int kv_type, const int T, const int P, const Walk* w, const float* q,
                               const int p0) noexcept nogil:
    """`score_panels` for keys of floats or q8_0 codes."""
    cdef f32x16 acc[MAX_SUMS]
    cdef f32x16 part[MAX_SUMS]
    cdef f32x16 keys[4]
    cdef f32x16 k, x
    cdef Py_ssize_t d, at = 0, end
    cdef int p, t
    for t in range(P * T):
        acc[t] = f32_zero()
    if kv_type == L_C8:
        d = 0
        while d < w.key_dim:
            end = min(w.key_dim, d + KV_BLOCK)
            for t in range(P * T):
                part[t] = f32_zero()
            while d < end:
                for p in range(P):
                    if d & (line_step(kv_type) - 1) == 0:
                        ox_prefetch_far(w.next.keys[p0 + p] + at + 32 + LANES * (d & (KV_BLOCK - 1)))
                    keys[p] = f32_load_i8(<const int8_t*>w.now.keys[p0 + p] + at + 32 + LANES * (d & (KV_BLOCK - 1)))
                for t in range(T):
                    x = f32_keep(f32_set1(q[d * T + t]))
                    for p in range(P):
                        part[p * T + t] = f32_fma(keys[p], x, part[p * T + t])
                d = d + 1
            for p in range(P):
                k = f32_load_f16(<const uint16_t*>(w.now.keys[p0 + p] + at))
                for t in range(T):
                    acc[p * T + t] = f32_fma(part[p * T + t], k, acc[p * T + t])
            at = at + Q8_PANEL
    else:
        for d in range(w.key_dim):
            for p in range(P):
                ox_prefetch_far(w.next.keys[p0 + p] + d * (64 // line_step(kv_type)))
                keys[p] = float_load(kv_type, w.now.keys[p0 + p], d)
            for t in range(T):
                x = f32_keep(f32_set1(q[d * T + t]))
                for p in range(P):
                    acc[p * T + t] = f32_fma(keys[p], x, acc[p * T + t])
    for t in range(P * T):
        f32_store(w.weights + (p0 * T + t) * LANES, acc[t])


cdef inline f32x16 only(f32x16 x, f32x16 ramp, Py_ssize_t low, Py_ssize_t high, f32x16 other) noexcept nogil:
    """x in the lanes from low to high, other elsewhere."""
    x = f32_select_lt(ramp, f32_set1(<float>high), x, other)
    return f32_select_lt(ramp, f32_set1(<float>low), other, x)


cdef inline f32x16 biases_from(const Walk* w, Py_ssize_t head, Py_ssize_t distance) noexcept nogil:
    """The biases of a head for 16 keys, the first at ``distance`` = key position - query position."""
    cdef Py_ssize_t last = 2 * w.reach, start = distance + w.reach
    cdef const float* biases = w.biases + head * (last + 1)
    cdef float lanes[LANES]
    cdef int i
    if start >= last:
        return f32_set1(biases[last])
    if start + LANES <= 1:
        return f32_set1(biases[0])
    if start >= 0 and start + LANES <= last + 1:
        return f32_load(biases + start)
    for i in range(LANES):
        lanes[i] = biases[min(max(start + i, <Py_ssize_t>0), last)]
    return f32_load(lanes)


cdef inline void shrink_row(const Walk* w, Py_ssize_t row, float most) noexcept nogil:
    """Raises the row's highest score to ``most`` and scales its sums and outputs by e^(old - most)."""
    cdef float* outputs = w.state.outputs + row * w.value_pad
    cdef f32x16 shrink
    cdef Py_ssize_t d
    if most == w.state.most[row]:  # the factor would be 1
        return
    shrink = exp_below16(f32_sub(f32_set1(w.state.most[row]), f32_set1(most)))
    f32_store(w.state.sums + LANES * row, f32_mul(f32_load(w.state.sums + LANES * row), shrink))
    for d in range(0, w.value_pad, 16):
        f32_store(outputs + d, f32_mul(f32_load(outputs + d), shrink))
    w.state.most[row] = most


cdef inline f32x16 exponential(const int kv_type, f32x16 x) noexcept nogil:
    """e^x for x = score - highest score <= 0."""
    return exp_to_bf16(x) if is_paired(kv_type) else exp_below16(x)


cdef inline f32x16 put_weights(const int kv_type, float* weights, uint16_t* halves, f32x16 x) noexcept nogil:
    """Stores 16 weights in the form that the products with values read; returns them rounded to that form."""
    if kv_type == BF16_DOTS:
        return bf16_round(halves, x)
    if kv_type == L_BF16:
        x = rounded_bf16(x)
    f32_store(weights, x)
    return x


cdef inline void softmax_row(int kv_type, int T, const Walk* w, Py_ssize_t t0, int t, Py_ssize_t low,
                             Py_ssize_t high) noexcept nogil:
    """Turns scores from low to high of the block into weights, and rescales the state of row t0 + t to match.

    One function for all kinds and tiles: it is large, and few blocks need it.
    """
    cdef float* weights = w.weights + LANES * t
    cdef uint16_t* halves = w.halves + BLOCK * t
    cdef Py_ssize_t stride = T * LANES, row = t0 + t
    cdef Py_ssize_t p, first = low // LANES, last = (high + LANES - 1) // LANES
    cdef f32x16 scores[PANELS]
    cdef float lanes[LANES]
    cdef f32x16 s, sums, ramp, distance, highest = f32_set1(w.state.most[row])
    cdef Py_ssize_t ahead = w.block - (w.position + row // w.group)
    cdef int i
    for i in range(LANES):
        lanes[i] = i
    ramp = f32_load(lanes)
    for p in range(first, last):
        s = f32_load(weights + p * stride)
        if w.softcap:
            s = f32_mul(f32_set1(w.softcap), tanh16(f32_mul(f32_set1(<float>1.0 / w.softcap), s)))
        if w.slopes != NULL:
            distance = f32_abs(f32_add(ramp, f32_set1(<float>(ahead + LANES * p))))
            s = f32_fma(f32_set1(-w.slopes[row % w.group]), distance, s)
        if w.biases != NULL:
            s = f32_add(s, biases_from(w, row % w.group, ahead + LANES * p))
        if LANES * p < low or LANES * (p + 1) > high:
            s = only(s, ramp, low - LANES * p, high - LANES * p, f32_set1(least()))
        scores[p] = s
        highest = f32_max(s, highest)
    shrink_row(w, row, f32_hmax(highest))
    highest, sums = f32_set1(w.state.most[row]), f32_load(w.state.sums + LANES * row)
    for p in range(first, last):
        s = exponential(kv_type, f32_sub(scores[p], highest))
        if LANES * p < low or LANES * (p + 1) > high:
            s = only(s, ramp, low - LANES * p, high - LANES * p, f32_zero())
        s = put_weights(kv_type, weights + p * stride, halves + LANES * p, s)
        sums = f32_add(sums, s)
    f32_store(w.state.sums + LANES * row, sums)


cdef inline void softmax_tile(const int kv_type, const int T, const Walk* w, Py_ssize_t t0) noexcept nogil:
    """`softmax_row` for T rows that see the whole block, without soft cap, slopes or biases.

    Each step runs over all rows, so that the rows hide each other's latency.
    """
    cdef float most[MAX_TILE]
    cdef float* weights
    cdef f32x16 s, sums, highest
    cdef int p, t
    for t in range(T):
        highest = f32_set1(w.state.most[t0 + t])
        for p in range(PANELS):
            highest = f32_max(f32_load(w.weights + (p * T + t) * LANES), highest)
        most[t] = f32_hmax(highest)
    for t in range(T):
        shrink_row(w, t0 + t, most[t])
    for t in range(T):
        weights = w.weights + t * LANES
        highest, sums = f32_set1(most[t]), f32_load(w.state.sums + LANES * (t0 + t))
        for p in range(PANELS):
            s = exponential(kv_type, f32_sub(f32_load(weights + p * T * LANES), highest))
            s = put_weights(kv_type, weights + p * T * LANES, w.halves + BLOCK * t + LANES * p, s)
            sums = f32_add(sums, s)
        f32_store(w.state.sums + LANES * (t0 + t), sums)


cdef inline void add_vectors(const int kv_type, const int T, const int V, const Walk* w, const float* weights,
                             Py_ssize_t stride, Py_ssize_t start, Py_ssize_t end, Py_ssize_t first,
                             float* out) noexcept nogil:
    """Adds vectors first .. first + V of weight * value, for the block's positions from start to end, to T rows."""
    cdef f32x16 acc[MAX_SUMS]
    cdef f32x16 x[4]
    cdef f32x16 share
    cdef Py_ssize_t j, vectors = w.value_pad // LANES
    cdef const uint8_t* values
    cdef const uint8_t* following
    cdef const float* weight
    cdef int t, v
    for v in range(V):
        for t in range(T):
            acc[v * T + t] = f32_load(out + t * w.value_pad + LANES * (first + v))
    for j in range(start, end):
        values, following = w.now.values[j // LANES], w.next.values[j // LANES]
        weight = weights + j // LANES * stride + j % LANES
        for v in range(V):
            if kv_type == L_C8:
                if v == 0:
                    ox_prefetch_far(following + (first >> 1) * Q8_PANEL + 32 + KV_BLOCK * (j % LANES))
                x[v] = f32_load_i8(<const int8_t*>values + (first >> 1) * Q8_PANEL + 32 + KV_BLOCK * (j % LANES)
                                   + LANES * ((first & 1) + v))
            else:
                if v % line_step(kv_type) == 0:
                    ox_prefetch_far(following + (j % LANES * vectors + first + v) * (64 // line_step(kv_type)))
                x[v] = float_load(kv_type, values, j % LANES * vectors + first + v)
        for t in range(T):
            share = f32_keep(f32_set1(weight[LANES * t]))
            for v in range(V):
                acc[v * T + t] = f32_fma(x[v], share, acc[v * T + t])
    for v in range(V):
        for t in range(T):
            f32_store(out + t * w.value_pad + LANES * (first + v), acc[v * T + t])


cdef inline void add_values(const int kv_type, const int T, const int V, const Walk* w, const float* weights,
                            Py_ssize_t stride, Py_ssize_t start, Py_ssize_t end, float* out) noexcept nogil:
    """out += weight * value in order of position, for T rows that all see the positions from start to end of the block.

    ``weights`` is (panels, T, 16) with ``stride`` floats to a panel.
    """
    cdef Py_ssize_t d = 0, p, vectors = w.value_pad // LANES
    cdef f32x16 scale, weight
    cdef int t
    if start >= end:
        return
    if kv_type == L_C8:  # the scale of a position is multiplied into its weight
        while d < vectors:
            for p in range(start // LANES, (end + LANES - 1) // LANES):
                scale = f32_load_f16(<const uint16_t*>(w.now.values[p] + (d >> 1) * Q8_PANEL))
                for t in range(T):
                    weight = f32_mul(f32_load(weights + p * stride + LANES * t), scale)
                    f32_store(w.scaled + (p * T + t) * LANES, weight)
            if V >= 2:
                add_vectors(kv_type, T, 2, w, w.scaled, T * LANES, start, end, d, out)
            else:
                add_vectors(kv_type, T, 1, w, w.scaled, T * LANES, start, end, d, out)
                add_vectors(kv_type, T, 1, w, w.scaled, T * LANES, start, end, d + 1, out)
            d = d + 2
        return
    while d + V <= vectors:
        add_vectors(kv_type, T, V, w, weights, stride, start, end, d, out)
        d = d + V
    while d < vectors:
        add_vectors(kv_type, T, 1, w, weights, stride, start, end, d, out)
        d = d + 1


cdef inline void add_values_of_row(int kv_type, const Walk* w, const float* weights, Py_ssize_t stride,
                                   Py_ssize_t start, Py_ssize_t end, float* out) noexcept nogil:
    """`add_values` for one row, at the edges of what a tile's rows see; one function for all tiles."""
    if kv_type == L_F32:
        add_values(L_F32, 1, 1, w, weights, stride, start, end, out)
    elif kv_type == L_F16:
        add_values(L_F16, 1, 1, w, weights, stride, start, end, out)
    else:
        add_values(L_C8, 1, 1, w, weights, stride, start, end, out)


cdef inline void block_tile(const int kv_type, const int T, const Walk* w, Py_ssize_t t0) noexcept nogil:
    """Carries rows t0 .. t0 + T through one block of positions."""
    cdef Py_ssize_t low[MAX_TILE]      # a row sees the positions from low to high of the block
    cdef Py_ssize_t high[MAX_TILE]
    cdef Py_ssize_t most_low = 0, least_high = BLOCK, least_low = BLOCK, most_high = 0, position, head
    cdef float* out = w.state.outputs + t0 * w.value_pad
    cdef int P = side_by_side(kv_type, T), p, t
    position, head = w.position + t0 // w.group, t0 % w.group
    for t in range(T):
        if head == w.group:
            position, head = position + 1, 0
        head = head + 1
        high[t] = max(<Py_ssize_t>0, min(last_seen(&w.view, position) - w.block, <Py_ssize_t>BLOCK))
        low[t] = max(<Py_ssize_t>0, min(first_seen(&w.view, position) - w.block, high[t]))
        most_low, least_high = max(most_low, low[t]), min(least_high, high[t])
        least_low, most_high = min(least_low, low[t]), max(most_high, high[t])
    p = <int>(least_low // (LANES * P) * P)
    while LANES * p < most_high:
        score_panels(kv_type, T, side_by_side(kv_type, T), w, w.queries + t0 * w.query_words, p)
        p = p + P
    if most_low == 0 and least_high == BLOCK and not w.softcap and w.slopes == NULL and w.biases == NULL:
        softmax_tile(kv_type, T, w, t0)
    else:
        for t in range(T):
            if low[t] < high[t]:
                softmax_row(kv_type, T, w, t0, t, low[t], high[t])
    if is_paired(kv_type):
        add_pairs(kv_type == BF16_DOTS, T, side_by_side(kv_type, T), w, low, high, out)
        return
    least_high = max(least_high, most_low)  # all rows see [most_low, least_high), a range that may be empty
    # each row adds its values in order of position: before that range, in it, after it
    if most_low > least_low:
        for t in range(T):
            add_values_of_row(kv_type, w, w.weights + LANES * t, T * LANES, low[t], min(most_low, high[t]),
                              out + t * w.value_pad)
    add_values(kv_type, T, side_by_side(kv_type, T), w, w.weights, T * LANES, most_low, least_high, out)
    if most_high > least_high:
        for t in range(T):
            add_values_of_row(kv_type, w, w.weights + LANES * t, T * LANES, max(least_high, low[t]), high[t],
                              out + t * w.value_pad)


cdef inline void block_rows(const int kv_type, const Walk* w, Py_ssize_t n) noexcept nogil:
    """Carries all n rows through one block."""
    cdef Py_ssize_t t0 = 0
    cdef int T
    while t0 < n:
        T = rows_in_tile(n - t0)
        if OX_TILE >= 8 and T == 8:
            block_tile(kv_type, 8, w, t0)
        elif T == 4:
            block_tile(kv_type, 4, w, t0)
        elif T == 2:
            block_tile(kv_type, 2, w, t0)
        else:
            block_tile(kv_type, 1, w, t0)
        t0 = t0 + T


cdef inline void clear_rows(const State* s, Py_ssize_t n, Py_ssize_t value_pad) noexcept nogil:
    cdef Py_ssize_t r, d
    for r in range(n):
        s.most[r] = least()
        f32_store(s.sums + LANES * r, f32_zero())
        for d in range(0, value_pad, 16):
            f32_store(s.outputs + r * value_pad + d, f32_zero())


cdef inline void merge_row(const State* total, const State* part, Py_ssize_t r, Py_ssize_t value_pad) noexcept nogil:
    """Merges a row's partial result of one partition into its total: both are scaled to the higher maximum."""
    cdef f32x16 a = f32_set1(total.most[r]), b = f32_set1(part.most[r]), most = f32_max(b, a)
    cdef float lanes[LANES]
    cdef float* x = total.outputs + r * value_pad
    cdef float* y = part.outputs + r * value_pad
    cdef Py_ssize_t d
    f32_store(lanes, most)
    total.most[r] = lanes[0]
    a, b = exp16(f32_sub(a, most)), exp16(f32_sub(b, most))
    f32_store(total.sums + LANES * r, f32_fma(f32_load(part.sums + LANES * r), b,
                                              f32_mul(f32_load(total.sums + LANES * r), a)))
    for d in range(0, value_pad, 16):
        f32_store(x + d, f32_fma(f32_load(y + d), b, f32_mul(f32_load(x + d), a)))


cdef inline void finish_row(const State* s, Py_ssize_t r, Py_ssize_t value_pad, const float* sink) noexcept nogil:
    """Divides the row's outputs by its sum of exponentials, to which a sink adds one more, without a value."""
    cdef f32x16 most = f32_set1(s.most[r]), shrink = f32_set1(1.0), total, b
    cdef Py_ssize_t d
    total = f32_set1(f32_sum(f32_load(s.sums + LANES * r)))
    if sink != NULL:
        b = f32_set1(sink[0])
        b = f32_select_lt(most, b, b, most)
        shrink = exp16(f32_sub(most, b))
        total = f32_fma(total, shrink, exp16(f32_sub(f32_set1(sink[0]), b)))
    total = f32_div(shrink, total)
    for d in range(0, value_pad, 16):
        f32_store(s.outputs + r * value_pad + d, f32_mul(f32_load(s.outputs + r * value_pad + d), total))
