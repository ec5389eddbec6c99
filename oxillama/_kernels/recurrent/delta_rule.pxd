"""The delta rule over the tokens of one sequence, for one or two blocks of 16 value channels of one head.

A head's memory S holds a value for each of its n key channels (Yang et al., "Gated Delta Networks", 2024). With key k,
value v, query q, strength beta and decay g, which is one number per head or one per key channel (Kimi Team,
"Kimi Linear", 2025), a token does

    S = g S;  u = beta (v - S^T k);  S = S + k u^T;  o = S^T q.

A lane is a value channel. It sums over even and over odd key channels, and adds the two sums at the end. The S^T k of
the next token is summed while S is written for the current one: the same sums, with one pass over S less.
"""

from oxillama._kernels.simd.rows cimport load_part, store_part
from oxillama._kernels.simd.simd cimport *

cdef enum:
    MOST_BLOCKS = 2


# Inputs and outputs of one or two blocks; steps are floats from row to row.
cdef struct Delta:
    Py_ssize_t first, end               # tokens
    Py_ssize_t n, blocks, left          # key channels; blocks of value channels; channels from the first block on
    bint by_channel                     # a decay for each key channel
    const float* q                      # (n,) per token
    const float* k
    const float* v                      # channels of these blocks
    const float* decay
    const float* beta
    float* out
    float* memory                       # (blocks, n, 16)
    Py_ssize_t floats                   # size of the memory
    Py_ssize_t step, decay_step, beta_step, out_step
    Py_ssize_t k_at, v_at, decay_at, beta_at    # offsets of k, v, decay, beta in a record


# Two sums for each block.
cdef struct Sums:
    f32x16 parts[4]


cdef inline Py_ssize_t blocks_at_once() noexcept nogil:
    """Number of blocks whose sums fit into the registers."""
    return 2 if OX_TILE > 4 else 1


cdef inline float key_at(const bint by_channel, const float* k, const float* decay, Py_ssize_t i) noexcept nogil:
    """The factor of row i of S in S^T k after the decay; a decay per head is applied in `change` instead."""
    return k[i] * decay[i] if by_channel else k[i]


cdef inline void clear(Sums* sums) noexcept nogil:
    cdef int i
    for i in range(2 * MOST_BLOCKS):
        sums.parts[i] = f32_zero()


cdef inline void recall_row(const int B, const bint by_channel, Delta* s, const float* k, const float* decay,
                            Py_ssize_t i, const int part, Sums* known) noexcept nogil:
    cdef f32x16 key = f32_set1(key_at(by_channel, k, decay, i))
    cdef int b
    for b in range(B):
        known.parts[2 * b + part] = f32_fma(f32_load(s.memory + 16 * (b * s.n + i)), key, known.parts[2 * b + part])


cdef inline void recall(const int B, const bint by_channel, Delta* s, const float* k, const float* decay,
                        Sums* known) noexcept nogil:
    """known = S^T k before a token."""
    cdef Py_ssize_t i
    clear(known)
    for i in range(0, s.n - 1, 2):
        recall_row(B, by_channel, s, k, decay, i, 0, known)
        recall_row(B, by_channel, s, k, decay, i + 1, 1, known)
    if s.n & 1:
        recall_row(B, by_channel, s, k, decay, s.n - 1, 0, known)


cdef inline void change(const int B, const bint by_channel, Delta* s, const float* v, const float* decay, float beta,
                        Sums* known, Sums* u) noexcept nogil:
    """u = beta (v - S^T k), in the even parts of ``u``."""
    cdef f32x16 was, y
    cdef int b
    for b in range(B):
        was = f32_add(known.parts[2 * b], known.parts[2 * b + 1])
        y = load_part(v + 16 * b, s.left - 16 * b, 0.0)
        y = f32_sub(y, was) if by_channel else f32_fma(f32_set1(-decay[0]), was, y)
        u.parts[2 * b] = f32_mul(f32_set1(beta), y)


cdef inline void update_row(const int B, const bint by_channel, const bint wanted, const bint more, Delta* s,
                            const float* k, const float* decay, const float* q, Py_ssize_t i, const int part,
                            Sums* u, Sums* out, Sums* known) noexcept nogil:
    cdef f32x16 key = f32_set1(k[i]), keep = f32_set1(decay[i] if by_channel else decay[0]), h
    cdef f32x16 query = f32_set1(q[i]) if wanted else f32_zero()
    cdef f32x16 coming = f32_zero()
    cdef float* memory
    cdef int b
    if more:
        coming = f32_set1(key_at(by_channel, k + s.step, decay + s.decay_step, i))
    for b in range(B):
        memory = s.memory + 16 * (b * s.n + i)
        h = f32_fma(key, u.parts[2 * b], f32_mul(f32_load(memory), keep))
        f32_store(memory, h)
        if wanted:
            out.parts[2 * b + part] = f32_fma(h, query, out.parts[2 * b + part])
        if more:
            known.parts[2 * b + part] = f32_fma(h, coming, known.parts[2 * b + part])


cdef inline void update(const int B, const bint by_channel, const bint wanted, const bint more, Delta* s,
                        const float* k, const float* decay, const float* q, Sums* u, Sums* out,
                        Sums* known) noexcept nogil:
    """S = g S + k u^T; if ``wanted``, out = S^T q; if there is one ``more`` token, known = S^T k for it."""
    cdef Py_ssize_t i
    clear(out)
    clear(known)
    for i in range(0, s.n - 1, 2):
        update_row(B, by_channel, wanted, more, s, k, decay, q, i, 0, u, out, known)
        update_row(B, by_channel, wanted, more, s, k, decay, q, i + 1, 1, u, out, known)
    if s.n & 1:
        update_row(B, by_channel, wanted, more, s, k, decay, q, s.n - 1, 0, u, out, known)


cdef inline void scan_blocks(const int B, const bint by_channel, Delta* s) noexcept nogil:
    cdef Py_ssize_t t
    cdef const float* k
    cdef const float* decay
    cdef Sums known, u, out
    cdef int b
    if s.first >= s.end:
        return
    recall(B, by_channel, s, s.k + s.first * s.step, s.decay + s.first * s.decay_step, &known)
    for t in range(s.first, s.end):
        k, decay = s.k + t * s.step, s.decay + t * s.decay_step
        change(B, by_channel, s, s.v + t * s.step, decay, s.beta[t * s.beta_step], &known, &u)
        if t + 1 < s.end:
            update(B, by_channel, True, True, s, k, decay, s.q + t * s.step, &u, &out, &known)
        else:
            update(B, by_channel, True, False, s, k, decay, s.q + t * s.step, &u, &out, &known)
        for b in range(B):
            store_part(s.out + t * s.out_step + 16 * b, f32_add(out.parts[2 * b], out.parts[2 * b + 1]),
                       s.left - 16 * b)


cdef inline void scan_delta(Delta* s) noexcept nogil:
    """Runs the recurrence over the tokens from ``first`` to ``end``."""
    if s.blocks == 2:
        if s.by_channel:
            scan_blocks(2, True, s)
        else:
            scan_blocks(2, False, s)
    elif s.by_channel:
        scan_blocks(1, True, s)
    else:
        scan_blocks(1, False, s)


cdef inline void replay_blocks(const int B, const bint by_channel, Delta* s, const float** records,
                               Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t t
    cdef const float* k
    cdef const float* decay
    cdef Sums known, u, out
    for t in range(count):
        k, decay = records[t] + s.k_at, records[t] + s.decay_at
        recall(B, by_channel, s, k, decay, &known)
        change(B, by_channel, s, records[t] + s.v_at, decay, records[t][s.beta_at], &known, &u)
        update(B, by_channel, False, False, s, k, decay, k, &u, &out, &known)


cdef inline void replay_delta(Delta* s, const float** records, Py_ssize_t count) noexcept nogil:
    """Runs the recurrence over recorded tokens, without outputs."""
    if s.blocks == 2:
        if s.by_channel:
            replay_blocks(2, True, s, records, count)
        else:
            replay_blocks(2, False, s, records, count)
    elif s.by_channel:
        replay_blocks(1, True, s, records, count)
    else:
        replay_blocks(1, False, s, records, count)
