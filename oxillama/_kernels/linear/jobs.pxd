"""What a tile body multiplies, and where it writes: `Job`, some panels of a matrix times a tile of tokens."""

from libc.stdint cimport int8_t, int32_t, uint8_t

from oxillama._kernels.simd.simd cimport *

cdef enum:
    FAR_AHEAD = 8192  # in place of OX_AHEAD where tiles multiply for as long as the memory takes to read
    ROW_PAD = 64      # bytes between the tokens of r8 and b8: rows of 2^n bytes would share a few sets of the cache


# Activations of a tile of T tokens, interleaved as the tile reads them.
cdef struct Tile:
    const float* values      # (cols, T) of float layouts; of pairs bf16 (cols / 2, T, 2), or float32 (cols, T)
    const int8_t* codes      # (cols / 4, T, 4); of r8 and b8 (T, cols + ROW_PAD); for AMX (cols / 64, 16, 64) or
                             # (cols / 32, 16, 32); for OX_MATRIX all of them (cols / 8, T, 8)
    const float* scale       # (blocks, T), a block being 32 or 256 columns; of r8 and b8 (T, spans)
    const int32_t* nsum      # (cols / 32, T): minus the sum of a block's codes
    const int32_t* nsum16    # (cols / 16, T): minus the sum of 16 codes
    const int32_t* sums16    # (cols / 32, T): sums over 16 columns, in pairs of int16
    const int32_t* sums32    # (cols / 64, T): sums over 32 columns, in pairs of int16


# Some panels of one matrix times one tile of tokens.
cdef struct Job:
    const uint8_t* data
    Py_ssize_t stride, rows, cols
    Py_ssize_t first, last    # panels
    Tile tile
    float* out                # row 0 of the matrix, for the first token of the tile
    Py_ssize_t ld             # floats between tokens in out
    int done                  # tokens at the start of the tile whose results another tile writes
    const float* bias
    float scale               # factor of the whole matrix
    bint accumulate
    bint dots                 # activations of pairs are bf16, for the instruction that multiplies a pair
    bint cold                 # the panels come from memory, so the tile prefetches within them
    uint8_t* products         # memory for what a cold tile computes once for all tokens: codes of the panels as bytes,
                              # (panels, cols / 4, 16, 4), or for AMX codes times scales, 8192 bytes a block
    const uint8_t* next       # this tile's share of later panels, which it prefetches
    Py_ssize_t step           # bytes of ``next`` to prefetch per 32 columns of a panel; 0: none


cdef inline const uint8_t* share(const Job* job, Py_ssize_t p) noexcept nogil:
    """The part of ``job.next`` that is prefetched together with panel ``p``."""
    return job.next + (p - job.first) * job.step * (job.cols // 32)


cdef inline const uint8_t* ask(const uint8_t* next, Py_ssize_t step) noexcept nogil:
    """Prefetches ``step`` bytes from ``next`` on, which are needed some panels later; returns their end."""
    cdef Py_ssize_t i
    for i in range(0, step, 64):
        ox_prefetch_far(next + i)
    return next + step


cdef inline void prefetch(const uint8_t* p, const int n) noexcept nogil:
    """Prefetches ``n`` bytes that lie OX_AHEAD bytes after ``p``, possibly in the next panel."""
    cdef int i
    for i in range(0, n, 64):
        ox_prefetch(p + OX_AHEAD + i)


cdef inline void put(f32x16 v, float* out, float scale, const float* bias, Py_ssize_t rows,
                     bint accumulate) noexcept nogil:
    """Writes up to 16 rows of one token: out = scale * v (+ bias), added to the old ``out`` if ``accumulate``."""
    cdef float lanes[16]
    cdef Py_ssize_t r
    v = f32_mul(v, f32_set1(scale))
    if rows >= 16:
        if bias != NULL:
            v = f32_add(v, f32_load(bias))
        if accumulate:
            v = f32_add(f32_load(out), v)
        f32_store(out, v)
        return
    f32_store(lanes, v)
    for r in range(rows):
        if bias != NULL:
            lanes[r] = lanes[r] + bias[r]
        out[r] = out[r] + lanes[r] if accumulate else lanes[r]


cdef inline void put_panel(const Job* job, const int T, Py_ssize_t p, int first, const f32x16* acc) noexcept nogil:
    """Writes the results of panel ``p`` for T tokens of the tile, from token ``first`` on."""
    cdef const float* bias = <const float*>NULL if job.bias == NULL else job.bias + 16 * p
    cdef int t
    for t in range(T):
        put(acc[t], job.out + (first + t) * job.ld + 16 * p, job.scale, bias, job.rows - 16 * p, job.accumulate)
