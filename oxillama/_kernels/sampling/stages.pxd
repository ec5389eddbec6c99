"""The sampling stages that cut candidates. `SamplerConfig` has their definitions and sources.

A probability p is relative to the current candidates. A bound on p is a bound on logits:
p >= t if x >= top + ln(t * total), so no stage divides by the total.
"""

from libc.float cimport FLT_MAX
from libc.math cimport INFINITY, sqrt
from libc.stdint cimport uint32_t

from oxillama._kernels.sampling.candidates cimport *
from oxillama._kernels.sampling.selection cimport *
from oxillama._kernels.simd.mathfun cimport exp64, log64
from oxillama._kernels.simd.simd cimport *

cdef enum:
    MIROSTAT_M = 100  # number of candidates from which mirostat 1 estimates the slope

cdef enum Kind:
    ALLOW, BAN, BIAS, MASK, PENALTIES, DRY, TOP_N_SIGMA, TOP_K, TYPICAL_P, TOP_P, MIN_P, TOP_A, EPSILON, ETA, XTC
    TEMPERATURE, MIROSTAT, MIROSTAT_V2

cdef struct Inputs:
    const int* history
    Py_ssize_t n_history
    const uint32_t* mask  # a bit for each token, set if allowed; or NULL
    double chance  # random number in [0, 1), for XTC
    double mu  # the surprise that mirostat allows, in bits


cdef inline void keep_allowed(Candidates* c, const int* ids, Py_ssize_t n) noexcept nogil:
    """Keeps only the given ids, which ascend. Runs before all cuts, so candidate i is still token i."""
    cdef Py_ssize_t i
    for i in range(n):
        c.x[i] = c.x[ids[i]]
    for i in range(n):
        c.ids[i] = ids[i]
    changed(c)
    shrink(c, n)


cdef inline void keep_masked(Candidates* c, const uint32_t* mask) noexcept nogil:
    """Keeps only tokens whose bit is set."""
    cdef Py_ssize_t k, i, m = 0
    cdef int bits
    for k in range(0, padded(c.n), 16):
        if c.listed:
            bits = 0
            for i in range(k, min(k + 16, c.n)):
                bits |= <int>(mask[c.ids[i] >> 5] >> (c.ids[i] & 31) & 1) << (i - k)
        else:
            bits = <int>(mask[k >> 5] >> (k & 31)) & 0xFFFF if k < c.n else 0
            if k < c.n < k + 16:
                bits &= 0xFFFF >> (k + 16 - c.n)
        if bits:
            f32_compress(<float*>c.ids + m, ids_at(c, k), bits)
            m += f32_compress(c.x + m, f32_load(c.x + k), bits)
    changed(c)
    shrink(c, m)


cdef inline void keep_sigma(Candidates* c, double n_sigma) noexcept nogil:
    """Keeps logits within n standard deviations of the highest (Tang et al., 2024)."""
    cdef Py_ssize_t k, j, n = 0
    cdef double[16] sums, squares
    cdef double d, deviation
    for j in range(16):
        sums[j] = squares[j] = 0.0
    find_top(c)
    for k in range(0, padded(c.n), 16):
        for j in range(16):
            d = <double>c.x[k + j] - c.top
            d = d if d > -INFINITY else 0.0  # -inf adds nothing to both sums
            sums[j] += d
            squares[j] += d * d
    n = count(c)
    for j in range(1, 16):
        sums[0] += sums[j]
        squares[0] += squares[j]
    d = sums[0] / n
    deviation = squares[0] / n - d * d
    keep_from(c, c.top - n_sigma * sqrt(deviation if deviation > 0 else 0.0))


cdef inline void keep_top_k(Candidates* c, Py_ssize_t k) noexcept nogil:
    """Keeps the k highest logits; of equal logits the lower ids."""
    cdef Py_ssize_t ties, i
    cdef float threshold
    if k >= c.n:
        return
    if k <= FEW:
        install(c, find_highest(c, k))
        return
    for i in range(padded(c.n)):
        c.e[i] = 1.0 if c.x[i] > -INFINITY else 0.0
    c.weighed = False
    cut(c, c.x, k - 0.5, -FLT_MAX, &threshold, &ties)
    keep(c, c.x, threshold, ties)


cdef inline double needed_above(const Candidates* c, double mass) noexcept nogil:
    """A logit below which all candidates together have less than 1 - mass."""
    return c.top + log64((1.0 - mass) * c.total / c.n) - 0.01


cdef inline void keep_top_p(Candidates* c, double mass) noexcept nogil:
    """Keeps the fewest, highest logits whose probabilities reach the mass; of equal logits the lower ids."""
    cdef Py_ssize_t ties
    cdef float threshold
    cdef double lowest
    if mass >= 1.0:
        return
    weigh(c)
    lowest = needed_above(c, mass)
    cut(c, c.x, mass * c.total * (1.0 - 1e-6), <float>lowest if lowest > -FLT_MAX else -FLT_MAX, &threshold, &ties)
    keep(c, c.x, threshold, ties)


cdef inline void keep_typical(Candidates* c, double mass) noexcept nogil:
    """Keeps candidates whose surprise -ln p is nearest the entropy H, until their mass exceeds ``mass``.

    |-ln p - H| is the distance of x from top + moment / total.
    """
    cdef Py_ssize_t ties, k
    cdef float threshold
    cdef double center, nearest, lowest
    cdef f32x16 middle, zero = f32_zero()
    if mass >= 1.0:
        return
    weigh(c)
    center = c.top + c.moment / c.total
    middle = f32_set1(<float>center)
    for k in range(0, padded(c.n), 16):
        f32_store(c.key + k, f32_sub(zero, f32_abs(f32_sub(f32_load(c.x + k), middle))))
    nearest = center - needed_above(c, mass)
    lowest = -max(nearest, c.top - center) - 0.01
    cut(c, c.key, mass * c.total * (1.0 + 1e-6), <float>lowest if lowest > -FLT_MAX else -FLT_MAX, &threshold, &ties)
    keep(c, c.key, threshold, ties)


cdef inline void keep_min_p(Candidates* c, double share) noexcept nogil:
    """Keeps p >= share * (highest p)."""
    find_top(c)
    keep_from(c, c.top + log64(share))


cdef inline void keep_top_a(Candidates* c, double a) noexcept nogil:
    """Keeps p >= a * (highest p)^2."""
    weigh(c)
    keep_from(c, c.top + log64(a / c.total))


cdef inline void keep_epsilon(Candidates* c, double epsilon) noexcept nogil:
    """Keeps p >= epsilon."""
    weigh(c)
    keep_from(c, c.top + log64(epsilon * c.total))


cdef inline void keep_eta(Candidates* c, double epsilon) noexcept nogil:
    """Keeps p >= min(epsilon, sqrt(epsilon) e^-H)."""
    weigh(c)
    cdef double bound = log64(epsilon), other = 0.5 * log64(epsilon) - entropy(c)
    keep_from(c, c.top + log64(c.total) + (bound if bound < other else other))


cdef inline void exclude_top(Candidates* c, double probability, double t, double chance) noexcept nogil:
    """XTC: if chance < probability, drops all p >= t but the lowest of these; of equals the highest id stays."""
    cdef Py_ssize_t k, i, last = -1
    cdef double bound
    cdef float least
    cdef f32x16 cutoff, most, v, minus = f32_set1(-INFINITY), zero = f32_zero()
    if t > 0.5 or not chance < probability:
        return
    weigh(c)
    bound = c.top + log64(t * c.total) if t > 0 else -FLT_MAX
    bound = bound - ((bound if bound > 0 else -bound) + 1.0) * 1.2e-7
    if bound > c.top:
        return
    cutoff = f32_set1(<float>bound if bound > -FLT_MAX else -FLT_MAX)
    most = minus
    for k in range(0, padded(c.n), 16):
        v = f32_load(c.x + k)
        most = f32_max(f32_select_lt(v, cutoff, minus, f32_sub(zero, v)), most)
    least = -f32_hmax(most)
    most = f32_set1(least)
    for k in range(0, padded(c.n), 16):
        if f32_mask_lt(f32_load(c.x + k), most) == 0xFFFF:
            continue
        for i in range(k, k + 16):
            if c.x[i] < least:
                continue
            if c.x[i] == least:
                if last >= 0:
                    c.x[last] = -INFINITY
                last = i
            else:
                c.x[i] = -INFINITY
    changed(c)


cdef inline void divide(Candidates* c, double temperature) noexcept nogil:
    """x = (x - top) / temperature; at 0 keeps only the first of the highest logits."""
    cdef Py_ssize_t k
    cdef f32x16 top, t
    cdef float least = 1.17549435e-38
    find_top(c)
    if not temperature > 0.0:
        keep(c, c.x, c.top, 1)
        return
    top = f32_set1(c.top)
    temperature = temperature if temperature < FLT_MAX else FLT_MAX
    t = f32_set1(<float>temperature if temperature > least else least)
    for k in range(0, padded(c.n), 16):
        f32_store(c.x + k, f32_div(f32_sub(f32_load(c.x + k), top), t))
    c.topped = False
    c.weighed = False


cdef inline void divide_by_entropy(Candidates* c, double temperature, double spread, double exponent) noexcept nogil:
    """Dynamic temperature: from temperature - spread to + spread, by (H / ln n)^exponent for n candidates."""
    cdef double low = temperature - spread if temperature > spread else 0.0, share, n = count(c)
    if n < 2:
        return
    weigh(c)
    share = entropy(c) / log64(n)
    share = share if share < 1.0 else 1.0
    if exponent > 0:
        share = exp64(exponent * log64(share)) if share > 0 else 0.0
    else:
        share = 1.0
    divide(c, low + (temperature + spread - low) * share)


cdef inline void keep_surprise(Candidates* c, double mu) noexcept nogil:
    """Mirostat 2: keeps -log2 p <= mu (Basu et al., 2021), or the first of the highest logits."""
    cdef double logit
    weigh(c)
    logit = c.top + log64(c.total) - mu * 6.931471805599453e-1
    if logit - c.top > 1e-6:
        keep(c, c.x, c.top, 1)
    else:
        keep_from(c, logit)


cdef inline void keep_zipf(Candidates* c, double mu) noexcept nogil:
    """Mirostat 1: keeps the k highest, with the k for which a Zipf law with the slope of the hundred highest logits has
    the surprise mu."""
    cdef Py_ssize_t m = find_highest(c, MIROSTAT_M), i
    cdef double products = 0.0, squares = 0.0, step, slope, excess, power, ln_k
    for i in range(m - 1):
        step = log64(<double>(i + 2) / <double>(i + 1))
        products += step * (<double>key_of(c.order[i]) - key_of(c.order[i + 1]))
        squares += step * step
    if m < 2 or not products < INFINITY:
        keep_top_k(c, 1)
        return
    slope = products / squares
    excess = slope - 1.0
    power = 1.0 - exp64(-excess * log64(<double>c.vocab))
    if excess > -1e-9 and excess < 1e-9 or power == 0.0:
        ln_k = mu * 6.931471805599453e-1 - log64(log64(<double>c.vocab))  # the limit for a slope of 1
    else:
        ln_k = log64(excess / power) + mu * 6.931471805599453e-1
    if slope > 0.0:
        ln_k = ln_k / slope
    else:
        ln_k = INFINITY if ln_k > 0.0 else -INFINITY
    if ln_k < 40.0:
        keep_top_k(c, max(1, <Py_ssize_t>(exp64(ln_k) * (1.0 + 1e-12))))


cdef inline dict kinds():
    """The kinds of stages by name."""
    return {
        "allow": ALLOW, "ban": BAN, "bias": BIAS, "mask": MASK, "penalties": PENALTIES, "dry": DRY,
        "top_n_sigma": TOP_N_SIGMA, "top_k": TOP_K, "typical_p": TYPICAL_P, "top_p": TOP_P, "min_p": MIN_P,
        "top_a": TOP_A, "epsilon_cutoff": EPSILON, "eta_cutoff": ETA, "xtc": XTC, "temperature": TEMPERATURE,
        "mirostat": MIROSTAT, "mirostat_v2": MIROSTAT_V2,
    }


cdef inline void apply(
    Kind kind, Candidates* c, double x, double y, double z, const Inputs* inputs
) noexcept nogil:
    """Applies a stage with up to three numbers; the highest logit of the candidates is known and not -inf."""
    if kind == TOP_N_SIGMA:
        keep_sigma(c, x)
    elif kind == TOP_K:
        keep_top_k(c, <Py_ssize_t>x)
    elif kind == TYPICAL_P:
        keep_typical(c, x)
    elif kind == TOP_P:
        keep_top_p(c, x)
    elif kind == MIN_P:
        keep_min_p(c, x)
    elif kind == TOP_A:
        keep_top_a(c, x)
    elif kind == EPSILON:
        keep_epsilon(c, x)
    elif kind == ETA:
        keep_eta(c, x)
    elif kind == XTC:
        exclude_top(c, x, y, inputs.chance)
    elif kind == TEMPERATURE:
        if y > 0:
            divide_by_entropy(c, x, y, z)
        else:
            divide(c, x)
    elif kind == MIROSTAT:
        keep_zipf(c, inputs.mu)
    else:
        keep_surprise(c, inputs.mu)
