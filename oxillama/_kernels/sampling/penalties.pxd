"""Penalties for recent tokens: repetition, frequency and presence penalties, and DRY.

Only tokens of the window are touched: ``marks`` counts each of them, or holds its longest repetition, and is all 0
again afterwards.
"""

from libc.float cimport FLT_MAX
from libc.math cimport INFINITY
from libc.stdint cimport uint8_t

from oxillama._kernels.sampling.candidates cimport Candidates, changed
from oxillama._kernels.simd.mathfun cimport log64

cdef struct Penalties:
    float repetition
    float frequency
    float presence
    Py_ssize_t window  # -1: the whole history

cdef struct Dry:
    double multiplier
    double base
    Py_ssize_t allowed
    Py_ssize_t range  # -1: the whole history
    Py_ssize_t n_kinds
    const uint8_t* kinds  # per token: 1 ends a repetition, 2 begins a sequence that does, 3 both
    Py_ssize_t n_breakers
    const int* breakers  # sequences of tokens, each preceded by its length


cdef inline float finite(float x) noexcept nogil:
    """Clips infinities: no penalty masks a token, no reward makes it infinite."""
    if x == -INFINITY:
        return -FLT_MAX
    return FLT_MAX if x == INFINITY else x


cdef inline float penalized(float x, int n, const Penalties* p) noexcept nogil:
    if x == -INFINITY:
        return x
    x = x / p.repetition if x > 0 else x * p.repetition
    return finite(x - (<float>n * p.frequency + p.presence))


cdef inline Py_ssize_t window_of(Py_ssize_t n, Py_ssize_t window) noexcept nogil:
    return window if 0 <= window < n else n


cdef inline bint known(const Candidates* c, const int* tokens, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if not 0 <= tokens[i] < c.vocab:
            return False
    return True


cdef inline bint penalize(Candidates* c, const int* history, Py_ssize_t n, const Penalties* p) noexcept nogil:
    """Each distinct token once: a positive logit is divided by the repetition penalty, another multiplied (Keskar et
    al., 2019); then count * frequency + presence penalty is subtracted (OpenAI). False if a token is unknown."""
    cdef Py_ssize_t window = window_of(n, p.window), i
    cdef const int* recent = history + (n - window)
    cdef int token
    if not known(c, recent, window):
        return False
    for i in range(window):
        c.marks[recent[i]] += 1
    if c.listed:
        for i in range(c.n):
            token = c.ids[i]
            if c.marks[token]:
                c.x[i] = penalized(c.x[i], c.marks[token], p)
        for i in range(window):
            c.marks[recent[i]] = 0
    else:
        for i in range(window):
            token = recent[i]
            if c.marks[token]:
                c.x[token] = penalized(c.x[token], c.marks[token], p)
                c.marks[token] = 0
    changed(c)
    return True


cdef inline Py_ssize_t unbroken(const int* last, Py_ssize_t n, const Dry* dry) noexcept nogil:
    """Number of tokens after the latest breaker; ``last[-i]`` is the i-th token from the end."""
    cdef Py_ssize_t i, j, at, length, longest
    cdef int token
    cdef const int* breaker
    for i in range(n):
        token = last[-i]
        if token >= dry.n_kinds or dry.kinds[token] == 0:
            continue
        longest = 0 if dry.kinds[token] & 1 else -1
        at = 0
        while at < dry.n_breakers and dry.kinds[token] & 2:
            length = dry.breakers[at]
            breaker = dry.breakers + at + 1
            at = at + 1 + length
            if breaker[0] != token or length - 1 > i or length - 1 <= longest:
                continue
            j = 1
            while j < length and breaker[j] == last[-(i - j)]:
                j += 1
            if j == length:
                longest = length - 1
        if longest >= 0:
            return i - longest
    return n


cdef inline void match(const int* last, Py_ssize_t n, int* z) noexcept nogil:
    """z[k] = number of tokens before the last k that agree with the latest tokens: the Z-algorithm on the reversed
    tokens (Gusfield, 1997), linear in n."""
    cdef Py_ssize_t left = 0, right = 0, k, m
    for k in range(1, n):
        m = min(<Py_ssize_t>z[k - left], right - k) if k < right else 0
        if k + m >= right:
            while k + m < n and last[-m] == last[-(k + m)]:
                m += 1
            left = k
            right = k + m
        z[k] = <int>m


cdef inline void lower(Candidates* c, Py_ssize_t i, int token, double most, const Dry* dry) noexcept nogil:
    """Subtracts multiplier * base^(length - allowed) from candidate i; ``marks`` holds its length + 1."""
    cdef double power = 1.0, factor = dry.base
    cdef Py_ssize_t n = c.marks[token] - 1 - dry.allowed
    if token < dry.n_kinds and dry.kinds[token] & 1 or c.x[i] == -INFINITY:
        return
    n = <Py_ssize_t>most if most > 0 and n > most else n
    while n > 0:
        power = power * factor if n & 1 else power
        factor = factor * factor
        n >>= 1
    power = power * dry.multiplier
    c.x[i] = finite(c.x[i] - <float>(power if power < FLT_MAX else FLT_MAX))


cdef inline bint dry_penalize(Candidates* c, const int* history, Py_ssize_t n, const Dry* dry, int* z) noexcept nogil:
    """Don't repeat yourself (p-e-w, 2024): a token that would extend a repetition of L >= allowed tokens loses
    multiplier * base^(L - allowed). A breaker bounds L and is never penalized. False if a token is unknown.

    Args:
        z: working memory of one int for each token in the range
    """
    cdef Py_ssize_t window = window_of(n, dry.range), limit, k, length
    cdef const int* last = history + n - 1
    cdef double most = 0.0
    cdef int token
    if not known(c, history + (n - window), window):
        return False
    if window <= dry.allowed:
        return True
    limit = unbroken(last, window, dry)
    if limit < dry.allowed:
        return True
    match(last, window, z)
    for k in range(1, window):
        length = min(<Py_ssize_t>z[k], limit)
        if length >= dry.allowed and c.marks[last[-(k - 1)]] <= length:
            c.marks[last[-(k - 1)]] = <int>length + 1
    if dry.base > 1.000001:  # base^n must stay a float, as in llama.cpp
        most = <double><Py_ssize_t>(88.7228391 / log64(dry.base))
    if c.listed:
        for k in range(c.n):
            if c.marks[c.ids[k]]:
                lower(c, k, c.ids[k], most, dry)
    for k in range(window):
        token = last[-k]
        if c.marks[token]:
            if not c.listed:
                lower(c, token, token, most, dry)
            c.marks[token] = 0
    changed(c)
    return True
