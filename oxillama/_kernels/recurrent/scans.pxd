"""The recurrences over the tokens of one sequence, for one block of 16 channels.

Every token is processed by the same operations in the same order, so a row's bits depend on the tokens up to it only.
"""

from libc.string cimport memcpy

from oxillama._kernels.recurrent.delta_rule cimport Delta, replay_delta, scan_delta
from oxillama._kernels.recurrent.state_batch cimport StateBatch
from oxillama._kernels.simd.mathfun cimport exp16, over_logistic16, softplus16
from oxillama._kernels.simd.rows cimport load_part, store_part
from oxillama._kernels.simd.simd cimport *


cdef inline Py_ssize_t blocks(Py_ssize_t n) noexcept nogil:
    """Number of blocks of 16 for ``n`` channels."""
    return (n + 15) // 16


# Inputs and outputs of a scan over one block of channels; steps are floats from row to row.
cdef struct Scan:
    Py_ssize_t first, end               # tokens
    Py_ssize_t n, left                  # rows of the memory, channels from this block on
    const float* x                      # input, this block's channels
    const float* dt
    const float* decay
    const float* b                      # (n,) per token
    const float* c
    const float* a                      # (n, 16), or NULL: ``decay`` has a number for each token
    const float* d
    const float* z                      # gate, or NULL
    float* out
    float* memory                       # (n, 16)
    Py_ssize_t floats                   # size of the memory
    Py_ssize_t x_step, dt_step, b_step, z_step, out_step
    Py_ssize_t x_at, dt_at, decay_at, b_at      # offsets of x, dt, decay, b in a record


cdef inline f32x16 finish(Scan* s, Py_ssize_t t, f32x16 y) noexcept nogil:
    """A token's output y, times silu(z) if there is a gate."""
    cdef f32x16 z
    if s.z == NULL:
        return y
    z = load_part(s.z + t * s.z_step, s.left, 0.0)
    return f32_mul(y, over_logistic16(z, z))


cdef inline void scan_channels(Scan* s) noexcept nogil:
    """Selective scan (Gu and Dao, Mamba, 2023): each channel has its own step dt, each row of memory its own decay."""
    cdef Py_ssize_t t, i
    cdef f32x16 dt, x, dx, h, y, d = load_part(s.d, s.left, 0.0)
    for t in range(s.first, s.end):
        dt = softplus16(load_part(s.dt + t * s.dt_step, s.left, 0.0))
        x = load_part(s.x + t * s.x_step, s.left, 0.0)
        dx = f32_mul(dt, x)
        y = f32_mul(d, x)
        for i in range(s.n):
            h = f32_mul(f32_load(s.memory + 16 * i), exp16(f32_mul(dt, f32_load(s.a + 16 * i))))
            h = f32_fma(dx, f32_set1(s.b[t * s.b_step + i]), h)
            y = f32_fma(h, f32_set1(s.c[t * s.b_step + i]), y)
            f32_store(s.memory + 16 * i, h)
        store_part(s.out + t * s.out_step, finish(s, t, y), s.left)


cdef inline f32x16 remember(float* memory, f32x16 keep, f32x16 dx, float b, float c, f32x16 y) noexcept nogil:
    """A row h of the memory: h = h * keep + dx * b; returns y + h * c."""
    cdef f32x16 h = f32_fma(dx, f32_set1(b), f32_mul(f32_load(memory), keep))
    f32_store(memory, h)
    return f32_fma(h, f32_set1(c), y)


cdef inline void scan_head(Scan* s) noexcept nogil:
    """Mamba-2's scan (Dao and Gu, 2024): one step and one decay per head. Four sums, added in pairs."""
    cdef Py_ssize_t t, i
    cdef f32x16 x, dx, keep, y0, y1, y2, y3, d = f32_set1(s.d[0])
    cdef const float* b
    cdef const float* c
    for t in range(s.first, s.end):
        x = load_part(s.x + t * s.x_step, s.left, 0.0)
        dx = f32_mul(f32_set1(s.dt[t * s.dt_step]), x)
        keep = f32_set1(s.decay[t * s.dt_step])
        b = s.b + t * s.b_step
        c = s.c + t * s.b_step
        y0 = f32_mul(d, x)
        y1 = y2 = y3 = f32_zero()
        for i in range(0, s.n - 3, 4):
            y0 = remember(s.memory + 16 * i, keep, dx, b[i], c[i], y0)
            y1 = remember(s.memory + 16 * i + 16, keep, dx, b[i + 1], c[i + 1], y1)
            y2 = remember(s.memory + 16 * i + 32, keep, dx, b[i + 2], c[i + 2], y2)
            y3 = remember(s.memory + 16 * i + 48, keep, dx, b[i + 3], c[i + 3], y3)
        for i in range(s.n & ~<Py_ssize_t>3, s.n):
            y0 = remember(s.memory + 16 * i, keep, dx, b[i], c[i], y0)
        y0 = f32_add(f32_add(y0, y1), f32_add(y2, y3))
        store_part(s.out + t * s.out_step, finish(s, t, y0), s.left)


# A block of value channels of one head of RWKV; all rows are ``step`` floats apart.
cdef struct Wkv:
    Py_ssize_t first, end, n, left, step
    const float* r
    const float* w
    const float* k
    const float* v
    const float* a                      # version 7: S = w S + k v + b (a S)
    const float* b
    const float* u                      # version 6: (n,), the weight of the current token
    float* out
    float* memory                       # (n, 16): key channels by value channels
    Py_ssize_t floats                   # size of the memory
    Py_ssize_t record_at, record_step   # this head's w in a record; floats from it to k, v, a, b
    Py_ssize_t within                   # the block's first channel in the head


cdef inline void wkv6_block(Wkv* s) noexcept nogil:
    """y = r (S + u k v); S = w S + k v (Peng et al., Eagle and Finch, 2024)."""
    cdef Py_ssize_t t, i, at
    cdef f32x16 v, kv, h, y
    for t in range(s.first, s.end):
        at = t * s.step
        v = load_part(s.v + at, s.left, 0.0)
        y = f32_zero()
        for i in range(s.n):
            kv = f32_mul(f32_set1(s.k[at + i]), v)
            h = f32_load(s.memory + 16 * i)
            y = f32_fma(f32_set1(s.r[at + i]), f32_fma(f32_set1(s.u[i]), kv, h), y)
            f32_store(s.memory + 16 * i, f32_fma(f32_set1(s.w[at + i]), h, kv))
        store_part(s.out + at, y, s.left)


cdef inline void wkv7_block(Wkv* s) noexcept nogil:
    """S = w S + k v + b (a S); y = r S (Peng et al., Goose, 2025)."""
    cdef Py_ssize_t t, i, at
    cdef f32x16 v, gone, h, y
    for t in range(s.first, s.end):
        at = t * s.step
        v = load_part(s.v + at, s.left, 0.0)
        gone = f32_zero()
        for i in range(s.n):
            gone = f32_fma(f32_set1(s.a[at + i]), f32_load(s.memory + 16 * i), gone)
        y = f32_zero()
        for i in range(s.n):
            h = f32_fma(f32_set1(s.k[at + i]), v, f32_mul(f32_set1(s.w[at + i]), f32_load(s.memory + 16 * i)))
            h = f32_fma(f32_set1(s.b[at + i]), gone, h)
            f32_store(s.memory + 16 * i, h)
            y = f32_fma(f32_set1(s.r[at + i]), h, y)
        store_part(s.out + at, y, s.left)


ctypedef fused Recurrence:
    Scan
    Wkv
    Delta


cdef inline void scan(Recurrence* s) noexcept nogil:
    """Runs the recurrence over the tokens from ``first`` to ``end``."""
    if Recurrence is Delta:
        scan_delta(s)
    elif Recurrence is Wkv:
        if s.u == NULL:
            wkv7_block(s)
        else:
            wkv6_block(s)
    elif s.a == NULL:
        scan_head(s)
    else:
        scan_channels(s)


# The effect of recorded tokens on a memory. No outputs are needed, so each row of the memory goes through all tokens
# at once, with the same operations as in the scans above.

cdef enum:
    AT_ONCE = 8  # records at a time


cdef inline void replay_channels(Scan* s, const float** records, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t t, i
    cdef f32x16 dt[AT_ONCE]
    cdef f32x16 dx[AT_ONCE]
    cdef f32x16 h
    for t in range(count):
        dt[t] = softplus16(load_part(records[t] + s.dt_at, s.left, 0.0))
        dx[t] = f32_mul(dt[t], load_part(records[t] + s.x_at, s.left, 0.0))
    for i in range(s.n):
        h = f32_load(s.memory + 16 * i)
        for t in range(count):
            h = f32_mul(h, exp16(f32_mul(dt[t], f32_load(s.a + 16 * i))))
            h = f32_fma(dx[t], f32_set1(records[t][s.b_at + i]), h)
        f32_store(s.memory + 16 * i, h)


cdef inline void replay_head(Scan* s, const float** records, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t t, i
    cdef f32x16 keep[AT_ONCE]
    cdef f32x16 dx[AT_ONCE]
    cdef f32x16 h
    for t in range(count):
        keep[t] = f32_set1(records[t][s.decay_at])
        dx[t] = f32_mul(f32_set1(records[t][s.dt_at]), load_part(records[t] + s.x_at, s.left, 0.0))
    for i in range(s.n):
        h = f32_load(s.memory + 16 * i)
        for t in range(count):
            h = f32_fma(dx[t], f32_set1(records[t][s.b_at + i]), f32_mul(h, keep[t]))
        f32_store(s.memory + 16 * i, h)


cdef inline void replay_wkv6(Wkv* s, const float** records, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t t, i, k_at = s.record_at + s.record_step
    cdef f32x16 v[AT_ONCE]
    cdef f32x16 h
    for t in range(count):
        v[t] = load_part(records[t] + s.record_at + 2 * s.record_step + s.within, s.left, 0.0)
    for i in range(s.n):
        h = f32_load(s.memory + 16 * i)
        for t in range(count):
            h = f32_fma(f32_set1(records[t][s.record_at + i]), h, f32_mul(f32_set1(records[t][k_at + i]), v[t]))
        f32_store(s.memory + 16 * i, h)


cdef inline void replay_wkv7(Wkv* s, const float** records, Py_ssize_t count) noexcept nogil:
    """Token by token, as each needs a sum over the memory; outputs, with any receptance, are discarded."""
    cdef Wkv one = s[0]
    cdef Py_ssize_t t
    cdef float[16] out
    one.first, one.end, one.out = 0, 1, out
    for t in range(count):
        one.r = one.w = records[t] + s.record_at
        one.k, one.v = one.w + s.record_step, one.w + 2 * s.record_step + s.within
        one.a, one.b = one.w + 3 * s.record_step, one.w + 4 * s.record_step
        wkv7_block(&one)


cdef inline void replay(Recurrence* s, const float** records, Py_ssize_t count) noexcept nogil:
    """Runs the recurrence over recorded tokens."""
    cdef Py_ssize_t n
    while count > 0:
        n = min(count, <Py_ssize_t>AT_ONCE)
        if Recurrence is Delta:
            replay_delta(s, records, n)
        elif Recurrence is Wkv:
            if s.u == NULL:
                replay_wkv7(s, records, n)
            else:
                replay_wkv6(s, records, n)
        elif s.a == NULL:
            replay_head(s, records, n)
        else:
            replay_channels(s, records, n)
        records += n
        count -= n


cdef inline void scan_rows(StateBatch states, Recurrence c, Py_ssize_t s, Py_ssize_t at, float* spare) noexcept nogil:
    """Runs all rows of sequence ``s``: settled rows in its state's memory at ``at``, open rows in a copy of it."""
    cdef Recurrence other
    cdef Py_ssize_t early = states.earlier_start[s], late = states.earlier_start[s + 1]
    cdef Py_ssize_t rows = states.row_start[s + 1] - states.row_start[s], settled = states.settled[s]
    cdef Py_ssize_t sure = min(early + settled, late)
    c.memory = states.take(s, at, c.floats)
    if states.is_plain:
        c.first, c.end = 0, rows
        scan(&c)
        return
    other = c  # c itself stays in registers
    replay(&other, states.earlier + early, sure - early)
    other.first, other.end = 0, settled - (sure - early)
    scan(&other)
    if settled == rows + late - early:
        return
    memcpy(spare, other.memory, other.floats * sizeof(float))
    other.memory = spare
    replay(&other, states.earlier + sure, late - sure)
    other.first, other.end = other.end, rows
    scan(&other)
