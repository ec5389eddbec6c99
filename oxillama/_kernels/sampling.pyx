"""Choosing among logits: selection and the cumulative draw, in one order on every machine."""

cimport numpy as cnp
from libc.math cimport isnan

from arrays cimport f32_data, i32_data

cnp.import_array()


cdef inline bint before(const float* x, int a, int b) noexcept nogil:
    """Whether token ``a`` ranks before ``b``: higher logit, or the same and the lower id."""
    return x[a] > x[b] or (x[a] == x[b] and a < b)


cdef void sift(const float* x, int* heap, Py_ssize_t i, Py_ssize_t n) noexcept nogil:
    """Restores a heap whose root ranks last."""
    cdef Py_ssize_t child
    cdef int item = heap[i]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and before(x, heap[child], heap[child + 1]):
            child = child + 1
        if not before(x, item, heap[child]):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = item


def top_k(cnp.ndarray logits, Py_ssize_t k, cnp.ndarray ids):
    """The k highest logits in descending order, the lower id first among equals; -inf is left out.

    Parameters
    ----------
    logits : float32 (vocab,)
    k : how many, at least 1
    ids : int32 (k,), filled from the front

    Returns
    -------
    int : how many there are, or -1 if a logit is NaN
    """
    cdef Py_ssize_t vocab = cnp.PyArray_SIZE(logits), n = 0, i
    cdef const float* x = f32_data(logits, vocab, "logits")
    cdef int* heap = i32_data(ids, k, "ids")
    cdef float minus = -float("inf"), floor = minus
    cdef int last
    if k < 1:
        raise ValueError(f"k: needs at least 1, got {k}")
    with nogil:
        for i in range(vocab):
            if x[i] > floor:
                if n < k:
                    heap[n] = <int>i
                    n = n + 1
                    if n == k:
                        for last in range(<int>(k // 2), -1, -1):
                            sift(x, heap, last, k)
                        floor = x[heap[0]]
                else:
                    heap[0] = <int>i
                    sift(x, heap, 0, k)
                    floor = x[heap[0]]
            elif isnan(x[i]):
                n = -1
                break
        if 0 < n < k:
            for last in range(<int>(n // 2), -1, -1):
                sift(x, heap, last, n)
        for i in range(n - 1, 0, -1):
            last = heap[0]
            heap[0] = heap[i]
            heap[i] = last
            sift(x, heap, 0, i)
    return n


def draw(cnp.ndarray probabilities, double u):
    """The first index whose cumulative probability, summed from the front in double, exceeds ``u`` * total.

    Parameters
    ----------
    probabilities : float32 (n,), not negative, in the order they are summed
    u : in [0, 1)
    """
    cdef Py_ssize_t n = cnp.PyArray_SIZE(probabilities), i, last = -1
    cdef const float* p = f32_data(probabilities, n, "probabilities")
    cdef double total = 0, sum = 0
    with nogil:
        for i in range(n):
            total = total + p[i]
        u = u * total
        for i in range(n):
            if p[i] > 0:
                last = i
                sum = sum + p[i]
                if sum > u:
                    break
    return last


def count_below(cnp.ndarray probabilities, double mass):
    """How many leading probabilities it takes for their sum, in double, to reach ``mass``; at least 1."""
    cdef Py_ssize_t n = cnp.PyArray_SIZE(probabilities), i
    cdef const float* p = f32_data(probabilities, n, "probabilities")
    cdef double sum = 0
    for i in range(n):
        sum = sum + p[i]
        if sum >= mass:
            return i + 1
    return n
