"""The gated delta rule over the rows of a batch (`delta_rule.pxd` has the recurrence).

A task is one or two blocks of 16 value channels of a head. The tokens of a sequence are processed in order, each with
the same operations in the same order, so neither prefill chunks nor batches change a bit. With many tokens a task is a
whole head: each of its blocks processes `TOKENS` tokens before the next ones, so that the keys and decays which the
blocks share are in the core's cache.
"""

cimport numpy as cnp
from cython.parallel cimport prange, threadid

from oxillama._kernels.arrays cimport (
    PY_SSIZE_T_MAX, check_apart, check_dimensions, f32_rows, f32_rows_out, fits)
from oxillama._kernels.recurrent.delta_rule cimport Delta, blocks_at_once
from oxillama._kernels.recurrent.scans cimport blocks, scan, scan_rows
from oxillama._kernels.recurrent.state_batch cimport StateBatch
from oxillama._kernels.simd.rows cimport threads_for

cnp.import_array()

cdef enum:
    TOKENS = 64  # tokens that each block of a head processes in turn


def delta_scan(StateBatch states not None, Py_ssize_t offset, Py_ssize_t record, Py_ssize_t heads, bint interleaved,
               cnp.ndarray qkv, cnp.ndarray decay, cnp.ndarray beta, cnp.ndarray out, int n_threads):
    """S = g S; u = beta (v - S^T k); S = S + k u^T; out = S^T q, for each head of values.

    Args:
        offset: start of the layer's (heads, blocks of a head, dim, 16) floats in a state
        record: start of the layer's (keys + heads) * dim + heads + decays floats in a record: k, v, beta, decay
        heads: value heads; a multiple of the key heads
        interleaved: value head h uses key head h % keys, not h // (heads // keys)
        qkv: float32 (rows, (2 keys + heads) * dim): q, k, v
        decay: float32 (rows, heads), or (rows, heads * dim) with a decay for each key channel
        beta: float32 (rows, heads)
        out: float32 (rows, heads * dim)
    """
    check_dimensions(out, 2, "out")
    check_dimensions(qkv, 2, "qkv")
    check_dimensions(decay, 2, "decay")
    cdef Py_ssize_t inner = out.shape[1], width = qkv.shape[1], decays = decay.shape[1], dim, keys, per, task, group
    if heads < 1 or inner < heads or inner % heads:
        raise ValueError(f"delta_scan: expected {inner} channels in whole heads, got {heads} heads")
    dim = inner // heads
    keys = (width - inner) // (2 * dim)
    if keys < 1 or heads % keys or 2 * keys * dim != width - inner:
        raise ValueError(f"qkv: expected q, k and v of {heads} heads of {dim} channels, got rows of {width}")
    if decays != heads and decays != inner:
        raise ValueError(f"decay: expected rows of {heads} or of {inner}, got {decays}")
    if not fits(dim, 32, PY_SSIZE_T_MAX):
        raise ValueError(f"delta_scan: expected heads that fit a state, got {dim} channels")
    cdef Delta c
    c.n, c.step, c.decay_step, c.beta_step, c.out_step = dim, width, decays, heads, inner
    c.by_channel = decays != heads
    c.q = f32_rows(qkv, states.n_rows, width, "qkv")
    c.k = c.q + keys * dim
    c.v = c.k + keys * dim
    c.decay = f32_rows(decay, states.n_rows, decays, "decay")
    c.beta = f32_rows(beta, states.n_rows, heads, "beta")
    c.out = f32_rows_out(out, states.n_rows, inner, "out")
    states.check(offset, heads * blocks(dim), 16 * dim)
    states.check_record(record, keys * dim + inner + heads + decays)
    c.k_at, c.v_at = record, record + keys * dim
    c.beta_at = c.v_at + inner
    c.decay_at = c.beta_at + heads
    cdef int threads = threads_for(states.n_scanned * inner * dim, n_threads)
    for name, array in (("qkv", qkv), ("decay", decay), ("beta", beta)):
        check_apart(array, out, f"{name}, out")
    c.floats = blocks_at_once() * 16 * dim
    states.grow_spare(threads, c.floats)
    per = (blocks(dim) + blocks_at_once() - 1) // blocks_at_once()
    group = heads // keys if not interleaved else 0
    if states.is_plain and states.n_rows >= 2 * TOKENS * states.n_sequences and heads >= 2 * threads:
        for task in prange(states.n_sequences * heads, nogil=True, schedule="dynamic", num_threads=threads):
            delta_head(states, c, task // heads, task % heads, group, keys, offset)
    else:
        for task in prange(states.n_sequences * heads * per, nogil=True, schedule="dynamic", chunksize=4,
                           num_threads=threads):
            delta_task(states, c, task // (heads * per), task % (heads * per) // per, task % per * blocks_at_once(),
                       group, keys, offset, states.spare + threadid() * c.floats)
    states.note(c.k_at, c.k, width, keys * dim + inner)
    states.note(c.beta_at, c.beta, heads, heads)
    states.note(c.decay_at, c.decay, decays, decays)


cdef void delta_task(StateBatch states, Delta c, Py_ssize_t s, Py_ssize_t head, Py_ssize_t block, Py_ssize_t group,
                     Py_ssize_t keys, Py_ssize_t offset, float* spare) noexcept nogil:
    """Computes some blocks of one head; ``group`` adjacent heads share a key head; 0: every ``keys``-th head does."""
    point(states, &c, s, head, block, group, keys)
    scan_rows(states, c, s, offset + (head * blocks(c.n) + block) * 16 * c.n, spare)


cdef void delta_head(StateBatch states, Delta c, Py_ssize_t s, Py_ssize_t head, Py_ssize_t group, Py_ssize_t keys,
                     Py_ssize_t offset) noexcept nogil:
    """Computes all blocks of one head, `TOKENS` tokens at a time; for batches without open rows."""
    cdef Py_ssize_t rows = states.row_start[s + 1] - states.row_start[s], n = blocks(c.n), first, block, i, j, at
    cdef Delta part
    for i in range((rows + TOKENS - 1) // TOKENS):
        first = i * TOKENS
        for j in range((n + blocks_at_once() - 1) // blocks_at_once()):
            block = j * blocks_at_once()
            part = c
            point(states, &part, s, head, block, group, keys)
            at = offset + (head * n + block) * 16 * c.n
            part.memory = states.take(s, at, part.floats) if first == 0 else states.after[s] + at
            part.first, part.end = first, min(first + TOKENS, rows)
            scan(&part)


cdef inline void point(StateBatch states, Delta* c, Py_ssize_t s, Py_ssize_t head, Py_ssize_t block, Py_ssize_t group,
                       Py_ssize_t keys) noexcept nogil:
    """Moves the pointers to the rows of a sequence, to a head and to a block of the head."""
    cdef Py_ssize_t first = states.row_start[s], within = 16 * block, dim = c.n
    cdef Py_ssize_t at = head * dim + within, key = (head // group if group else head % keys) * dim
    c.blocks = min(blocks(dim) - block, blocks_at_once())
    c.left = dim - within
    c.floats = c.blocks * 16 * dim
    c.q += first * c.step + key
    c.k += first * c.step + key
    c.v += first * c.step + at
    c.decay += first * c.decay_step + (head * dim if c.by_channel else head)
    c.beta += first * c.beta_step + head
    c.out += first * c.out_step + at
    c.k_at += key
    c.v_at += at
    c.decay_at += head * dim if c.by_channel else head
    c.beta_at += head
