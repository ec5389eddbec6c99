"""The candidates of one choice, and the operations that all sampling stages share.

A vocabulary is never sorted. Candidates keep the order of their ids; a cut is a threshold, found by selection.pxd, and
the candidates that reach it move to the front (`keep`). Logits are padded with -inf to whole blocks, so that no loop
has a remainder; -inf always means "not a candidate". Sums have one fixed order: 16 lanes of float over pieces of 256,
the tree of `f32_sum`, then doubles.
"""

from libc.float cimport FLT_MAX
from libc.math cimport INFINITY
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from oxillama._kernels.debugging cimport ensure
from oxillama._kernels.simd.mathfun cimport exp16, log64
from oxillama._kernels.simd.simd cimport *

cdef enum:
    BLOCK = 64  # logits that share a maximum

cdef struct Candidates:
    Py_ssize_t vocab
    Py_ssize_t n
    float* x  # (n,) logits, then -inf to the end of the block
    int* ids  # (n,) tokens if `listed`; else candidate i is token i
    bint listed
    bint ranked  # in descending order, without -inf
    bint topped  # top and blocks are up to date
    bint weighed  # e, total and moment are up to date
    float top  # the highest logit
    float* blocks  # maximum of each block
    float* e  # exp(x - top)
    double total  # sum of e
    double moment  # sum of e * (x - top)
    float* key  # working memory for keys other than x
    float* part_key  # keys that `cut` has not decided on yet
    float* part_weight
    int* spare_ids
    uint64_t* order
    uint64_t* order_spare
    int* marks  # (vocab,) a number for each token, all 0 between uses

cdef extern from *:
    """
    static const int ox_lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    """
    const int* ox_lanes


cdef inline Py_ssize_t padded(Py_ssize_t n) noexcept nogil:
    return (n + BLOCK - 1) // BLOCK * BLOCK


cdef inline void pad(float* x, Py_ssize_t n, float fill) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n, padded(n)):
        x[i] = fill


cdef inline void changed(Candidates* c) noexcept nogil:
    """Marks all that is computed from the logits as outdated."""
    c.ranked = False
    c.topped = False
    c.weighed = False


cdef inline bint start(Candidates* c, const float* logits) noexcept nogil:
    """Copies a vocabulary of logits; returns False if one is NaN or +inf."""
    cdef Py_ssize_t n = c.vocab, whole = n // 16 * 16, k
    cdef f32x16 bad = f32_zero(), one = f32_set1(1.0), infinity = f32_set1(INFINITY), v
    c.n = n
    c.listed = False
    changed(c)
    for k in range(0, whole, 16):
        v = f32_load(logits + k)
        bad = f32_select_lt(v, infinity, bad, one)
        f32_store(c.x + k, v)
    memcpy(c.x + whole, logits + whole, (n - whole) * sizeof(float))
    pad(c.x, n, -INFINITY)
    if whole < n:
        bad = f32_select_lt(f32_load(c.x + whole), infinity, bad, one)
    return f32_hmax(bad) == 0.0


cdef inline void find_top(Candidates* c) noexcept nogil:
    """Computes the maximum of each block and of all logits."""
    cdef Py_ssize_t b
    cdef const float* x
    cdef float most = -INFINITY
    if c.topped:
        return
    for b in range(padded(c.n) // BLOCK):
        x = c.x + b * BLOCK
        c.blocks[b] = f32_hmax(f32_max(f32_max(f32_load(x), f32_load(x + 16)),
                                       f32_max(f32_load(x + 32), f32_load(x + 48))))
        most = c.blocks[b] if c.blocks[b] > most else most
    c.top = most
    c.topped = True


cdef inline void weigh(Candidates* c) noexcept nogil:
    """e = exp(x - top), their sum, and the sum of e * (x - top): the entropy is ln total - moment / total."""
    cdef Py_ssize_t piece, k, end = padded(c.n)
    cdef f32x16 top, least = f32_set1(-128.0), d, e, sums, moments
    if c.weighed:
        return
    find_top(c)
    top = f32_set1(c.top)
    c.total = 0.0
    c.moment = 0.0
    for piece in range(0, end, 256):
        sums = f32_zero()
        moments = f32_zero()
        for k in range(piece, min(piece + 256, end), 16):
            d = f32_sub(f32_load(c.x + k), top)
            e = exp16(d)
            f32_store(c.e + k, e)
            sums = f32_add(sums, e)
            moments = f32_fma(e, f32_max(d, least), moments)  # 0 * -inf would be NaN
        c.total = c.total + f32_sum(sums)
        c.moment = c.moment + f32_sum(moments)
    c.weighed = True


cdef inline f32x16 ids_at(const Candidates* c, Py_ssize_t k) noexcept nogil:
    """16 ids, as the bits of floats."""
    cdef float[16] bits
    memcpy(bits, <const int*>c.ids + k if c.listed else ox_lanes, sizeof(bits))
    if c.listed:
        return f32_load(bits)
    return f32_from_bits(i32_add(i32_set1(<int>k), i32_from_bits(f32_load(bits))))


cdef inline void shrink(Candidates* c, Py_ssize_t n) noexcept nogil:
    """Keeps the first n candidates, whose ids are set."""
    ensure(0 <= n <= c.vocab)
    c.n = n
    c.listed = True
    c.weighed = False
    pad(c.x, n, -INFINITY)


cdef inline void keep(Candidates* c, const float* key, float threshold, Py_ssize_t ties) noexcept nogil:
    """Keeps keys above the threshold, and the first ``ties`` keys equal to it; -inf is never kept.

    Maxima of blocks are outdated afterwards; ``top`` stays right, as every cut but `keep_typical` keeps the highest.
    """
    cdef Py_ssize_t k, m = 0
    cdef f32x16 t = f32_set1(threshold), v
    cdef int above, same, low
    for k in range(0, padded(c.n), 16):
        v = f32_load(key + k)
        above = f32_mask_lt(t, v)
        same = ~f32_mask_lt(v, t) & ~above & 0xFFFF if ties > 0 else 0
        while same and ties > 0:
            low = same & -same
            above |= low
            same ^= low
            ties -= 1
        if above:
            f32_compress(<float*>c.ids + m, ids_at(c, k), above)
            m += f32_compress(c.x + m, f32_load(c.x + k), above)
    c.topped = False
    shrink(c, m)


cdef inline void keep_from(Candidates* c, double logit) noexcept nogil:
    """Keeps the highest logit, and all that reach ``logit`` within the rounding error of a float32 of this size."""
    cdef double size = logit if logit > 0.0 else -logit
    cdef double threshold = logit - (size + 1.0) * 1.2e-7
    find_top(c)
    threshold = threshold if threshold < c.top else c.top
    keep(c, c.x, <float>threshold if threshold > -FLT_MAX else -FLT_MAX, c.n)


cdef inline double entropy(const Candidates* c) noexcept nogil:
    """The entropy of the candidates in nats."""
    cdef double h = log64(c.total) - c.moment / c.total
    return h if h > 0.0 else 0.0


cdef inline Py_ssize_t count(const Candidates* c) noexcept nogil:
    """Number of logits above -inf."""
    cdef Py_ssize_t k, m = 0
    cdef f32x16 minus = f32_set1(-INFINITY)
    cdef int mask
    for k in range(0, padded(c.n), 16):
        mask = f32_mask_lt(minus, f32_load(c.x + k))
        while mask:
            mask &= mask - 1
            m += 1
    return m
