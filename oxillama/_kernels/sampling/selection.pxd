"""The highest candidates, and thresholds: found by sorting a few candidates, by sums over vectors of many.

Only up to SMALL candidates are ever sorted in descending order, at the latest by the draw.
"""

from libc.float cimport FLT_MAX
from libc.math cimport INFINITY
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from oxillama._kernels.debugging cimport ensure
from oxillama._kernels.sampling.candidates cimport *
from oxillama._kernels.simd.simd cimport *

cdef enum:
    SMALL = 1024  # maximum number of candidates that are sorted
    FEW = 128  # largest k of a top-k that is found through the maxima of blocks
    SORT_ROOM = (BLOCK + 1) * FEW
    SPLITS = 7  # thresholds tried in one pass


# --- order ------------------------------------------------------------------------------------------------------------

cdef inline uint64_t rank_of(float key, Py_ssize_t index) noexcept nogil:
    """A number that is higher for a higher key, and for a lower index of equal keys (0 and -0 are equal)."""
    cdef uint32_t bits
    key = key + <float>0.0
    memcpy(&bits, &key, 4)
    bits = ~bits if bits >> 31 else bits | <uint32_t>0x80000000U
    return (<uint64_t>bits << 32) | ~<uint32_t>index


cdef inline Py_ssize_t index_of(uint64_t rank) noexcept nogil:
    return ~<uint32_t>rank


cdef inline float key_of(uint64_t rank) noexcept nogil:
    cdef uint32_t bits = <uint32_t>(rank >> 32)
    cdef float key
    bits = bits & <uint32_t>0x7FFFFFFFU if bits >> 31 else ~bits
    memcpy(&key, &bits, 4)
    return key


cdef inline void sort_ranks(uint64_t* a, uint64_t* spare, Py_ssize_t n) noexcept nogil:
    """Sorts in descending order: insertion sort in runs of 16, then merges."""
    cdef Py_ssize_t begin, end, i, j, k, middle, width = 16
    cdef uint64_t item
    cdef uint64_t* source = a
    cdef uint64_t* target = spare
    for begin in range(0, n, 16):
        for i in range(begin + 1, min(begin + 16, n)):
            item = a[i]
            j = i
            while j > begin and a[j - 1] < item:
                a[j] = a[j - 1]
                j = j - 1
            a[j] = item
    while width < n:
        begin = 0
        while begin < n:
            middle = min(begin + width, n)
            end = min(begin + 2 * width, n)
            i = begin
            j = middle
            for k in range(begin, end):
                if i < middle and (j >= end or source[i] > source[j]):
                    target[k] = source[i]
                    i = i + 1
                else:
                    target[k] = source[j]
                    j = j + 1
            begin = end
        source, target = target, source
        width = width * 2
    if source != a:
        memcpy(a, source, n * sizeof(uint64_t))


cdef inline void install(Candidates* c, Py_ssize_t n) noexcept nogil:
    """Replaces the candidates by the first n of ``order``."""
    cdef Py_ssize_t i, at
    for i in range(n):
        at = index_of(c.order[i])
        ensure(at < c.n)
        c.spare_ids[i] = c.ids[at] if c.listed else <int>at
    for i in range(n):
        c.x[i] = key_of(c.order[i])
    memcpy(c.ids, c.spare_ids, n * sizeof(int))
    c.topped = False
    shrink(c, n)
    c.ranked = True


cdef inline void rank_small(Candidates* c) noexcept nogil:
    """Sorts the candidates in descending order if they are at most SMALL."""
    cdef Py_ssize_t i, m = 0
    if c.ranked or c.n > SMALL:
        return
    for i in range(c.n):
        if c.x[i] > -INFINITY:
            c.order[m] = rank_of(c.x[i], i)
            m += 1
    sort_ranks(c.order, c.order_spare, m)
    install(c, m)


cdef inline void sift(float* heap, Py_ssize_t i, Py_ssize_t n) noexcept nogil:
    """Moves item i down until the heap, whose root is the lowest item, is valid again."""
    cdef Py_ssize_t child = 2 * i + 1
    cdef float item = heap[i]
    while child < n:
        if child + 1 < n and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= item:
            break
        heap[i] = heap[child]
        i = child
        child = 2 * i + 1
    heap[i] = item


cdef inline Py_ssize_t find_highest(Candidates* c, Py_ssize_t k) noexcept nogil:
    """Writes the k <= FEW highest candidates to ``order``, sorted; returns their number.

    The k-th highest maximum of a block is a lower bound of the k-th highest logit; fewer than k blocks exceed it.
    """
    cdef Py_ssize_t n_blocks = padded(c.n) // BLOCK, b, i, m = 0, ties = k
    cdef float bound = -FLT_MAX
    cdef float* heap = c.part_key
    find_top(c)
    if k < n_blocks:
        memcpy(heap, c.blocks, k * sizeof(float))
        for i in range(k // 2, -1, -1):
            sift(heap, i, k)
        for b in range(k, n_blocks):
            if c.blocks[b] > heap[0]:
                heap[0] = c.blocks[b]
                sift(heap, 0, k)
        bound = heap[0] if heap[0] > -FLT_MAX else -FLT_MAX
    for b in range(n_blocks):
        if c.blocks[b] < bound:
            continue
        for i in range(b * BLOCK, (b + 1) * BLOCK):
            if c.x[i] > bound or (c.x[i] == bound and ties > 0):
                ties -= c.x[i] == bound
                ensure(m < SORT_ROOM)
                c.order[m] = rank_of(c.x[i], i)
                m += 1
    sort_ranks(c.order, c.order_spare, m)
    return min(m, k)


# --- mass -------------------------------------------------------------------------------------------------------------

cdef inline Py_ssize_t walk(const float* weight, Py_ssize_t n, double sum, double target) noexcept nogil:
    """The first index up to which ``sum`` plus weights exceeds the target; without one, the last weight above 0."""
    cdef Py_ssize_t piece, k, end, last = 0
    cdef f32x16 sums
    cdef double after
    for piece in range(0, n, 256):
        end = min(piece + 256, n)
        sums = f32_zero()
        for k in range(piece, padded(end), 16):
            sums = f32_add(sums, f32_load(weight + k))
        after = sum + f32_sum(sums)
        if after > target or end == n:
            for k in range(piece, end):
                if weight[k] > 0.0:
                    last = k
                    sum = sum + weight[k]
                    if sum > target:
                        return k
            return last
        if after > sum:
            last = end - 1
            while weight[last] == 0.0:
                last -= 1
        sum = after
    return last


cdef inline void masses(const float* key, const float* weight, Py_ssize_t n, const float* bounds,
                        double* out) noexcept nogil:
    """out[j] = the sum of the weights whose key reaches bounds[j], for SPLITS ascending bounds."""
    cdef Py_ssize_t piece, k, end = padded(n)
    cdef f32x16 zero = f32_zero(), y, w
    cdef f32x16 t0 = f32_set1(bounds[0]), t1 = f32_set1(bounds[1]), t2 = f32_set1(bounds[2])
    cdef f32x16 t3 = f32_set1(bounds[3]), t4 = f32_set1(bounds[4]), t5 = f32_set1(bounds[5])
    cdef f32x16 t6 = f32_set1(bounds[6]), s0, s1, s2, s3, s4, s5, s6
    for k in range(SPLITS):
        out[k] = 0.0
    for piece in range(0, end, 256):
        s0 = zero
        s1 = zero
        s2 = zero
        s3 = zero
        s4 = zero
        s5 = zero
        s6 = zero
        for k in range(piece, min(piece + 256, end), 16):
            y = f32_load(key + k)
            w = f32_load(weight + k)
            s0 = f32_add(s0, f32_select_lt(y, t0, zero, w))
            s1 = f32_add(s1, f32_select_lt(y, t1, zero, w))
            s2 = f32_add(s2, f32_select_lt(y, t2, zero, w))
            s3 = f32_add(s3, f32_select_lt(y, t3, zero, w))
            s4 = f32_add(s4, f32_select_lt(y, t4, zero, w))
            s5 = f32_add(s5, f32_select_lt(y, t5, zero, w))
            s6 = f32_add(s6, f32_select_lt(y, t6, zero, w))
        out[0] += f32_sum(s0)
        out[1] += f32_sum(s1)
        out[2] += f32_sum(s2)
        out[3] += f32_sum(s3)
        out[4] += f32_sum(s4)
        out[5] += f32_sum(s5)
        out[6] += f32_sum(s6)


cdef inline Py_ssize_t gather(Candidates* c, const float* key, const float* weight, Py_ssize_t n, float low,
                              float high) noexcept nogil:
    """Copies keys in [low, high) and their weights to the part, in order; returns their number. May read the part."""
    cdef Py_ssize_t k, m = 0
    cdef f32x16 lows = f32_set1(low), highs = f32_set1(high), v
    cdef int mask
    for k in range(0, padded(n), 16):
        v = f32_load(key + k)
        mask = f32_mask_lt(v, highs) & ~f32_mask_lt(v, lows) & 0xFFFF
        if mask:
            f32_compress(c.part_weight + m, f32_load(weight + k), mask)
            m += f32_compress(c.part_key + m, v, mask)
    pad(c.part_key, m, -INFINITY)
    pad(c.part_weight, m, 0.0)
    return m


cdef inline void range_of(const float* key, Py_ssize_t n, float* low, float* high) noexcept nogil:
    cdef Py_ssize_t k
    cdef f32x16 minus = f32_set1(-INFINITY), most = minus, least = minus, zero = f32_zero(), v
    for k in range(0, padded(n), 16):
        v = f32_load(key + k)
        most = f32_max(v, most)
        least = f32_max(f32_select_lt(minus, v, f32_sub(zero, v), minus), least)
    high[0] = f32_hmax(most)
    low[0] = -f32_hmax(least)


cdef inline void cut(Candidates* c, const float* key, double target, float lowest, float* threshold,
                     Py_ssize_t* ties) noexcept nogil:
    """A threshold and ties for `keep`: the highest keys, equal ones in order, whose weights ``e`` exceed the target.

    No key below ``lowest`` is needed. Each pass sums the weights above SPLITS thresholds in the open range, and
    gathers the keys of the interval in which the sum crosses the target, until they are few enough to sort.
    """
    cdef const float* y = key
    cdef const float* w = c.e
    cdef Py_ssize_t n = c.n, i, j
    cdef double above = 0.0, sum
    cdef float low, high
    cdef float[SPLITS] bounds
    cdef double[SPLITS] mass
    range_of(y, n, &low, &high)
    low = lowest if lowest > low else low
    threshold[0] = low
    ties[0] = c.n
    while n > SMALL and low < high:
        for j in range(SPLITS):
            bounds[j] = <float>(low + (<double>high - low) * (j + 1) / (SPLITS + 1))
        masses(y, w, n, bounds, mass)
        j = SPLITS - 1
        while j >= 0 and not above + mass[j] > target:
            j -= 1
        if j == SPLITS - 1:
            n = gather(c, y, w, n, bounds[j], INFINITY)
        else:
            n = gather(c, y, w, n, bounds[j] if j >= 0 else low, bounds[j + 1])
            above += mass[j + 1]
            threshold[0] = bounds[j + 1]
        y = c.part_key
        w = c.part_weight
        range_of(y, n, &low, &high)
    if n == 0:  # rounding errors of sums: the keys above suffice
        return
    if n > SMALL:  # all remaining keys are equal
        threshold[0] = low
        ties[0] = walk(w, n, above, target) + 1
        return
    for i in range(n):
        c.order[i] = rank_of(y[i], i)
    sort_ranks(c.order, c.order_spare, n)
    sum = above
    for i in range(n):
        sum = sum + w[index_of(c.order[i])]
        if sum > target or i == n - 1 or key_of(c.order[i + 1]) == -INFINITY:
            break
    threshold[0] = key_of(c.order[i])
    ties[0] = 1
    while ties[0] <= i and key_of(c.order[i - ties[0]]) == threshold[0]:
        ties[0] += 1
