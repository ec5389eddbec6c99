"""Routing of tokens to experts: the experts of each token, and their weights."""

cimport numpy as cnp
from libc.math cimport sqrtf

from oxillama._kernels.arrays cimport (
    check_apart, check_dimensions, check_shape, f32_data, f32_out, f32_rows, f32_rows_out, i32_data, i32_out, rows_of)
from oxillama._kernels.simd.mathfun cimport over_logistic16, softplus16
from oxillama._kernels.simd.rows cimport load_part, softmax_row, store_part
from oxillama._kernels.simd.simd cimport *

cnp.import_array()

cdef enum:
    MAX_EXPERTS = 1024
    BY_SOFTMAX, BY_SIGMOID, BY_CHOSEN, BY_ROOT

GATINGS: dict[str, int] = {
    "softmax": BY_SOFTMAX,  # softmax over all experts
    "sigmoid": BY_SIGMOID,  # sigmoid for each expert
    "chosen": BY_CHOSEN,    # softmax over the chosen experts
    "sqrt_softplus": BY_ROOT,  # sqrt(ln(1 + e^x)) for each expert
}


cdef void take_best(const float* score, Py_ssize_t n, Py_ssize_t k, char* taken) noexcept nogil:
    """Marks the k highest of n scores; of equal scores the first. NaN ranks lowest."""
    cdef Py_ssize_t _i, j, best
    for j in range(n):
        taken[j] = 0
    for _i in range(k):
        best = -1
        for j in range(n):
            if taken[j]:
                continue
            if best < 0 or score[j] > score[best] or (score[best] != score[best] and score[j] == score[j]):
                best = j
        taken[best] = 1


cdef void keep_groups(float* score, Py_ssize_t n, Py_ssize_t groups, Py_ssize_t kept) noexcept nogil:
    """Sets all scores to -inf but in the ``kept`` groups with the highest sums of two scores (DeepSeek-V3, 2024)."""
    cdef float sums[MAX_EXPERTS]
    cdef char taken[MAX_EXPERTS]
    cdef Py_ssize_t g, i, size = n // groups
    cdef float first, second
    for g in range(groups):
        first = second = -1e39
        for i in range(g * size, (g + 1) * size):
            if score[i] > first:
                second = first
                first = score[i]
            elif score[i] > second:
                second = score[i]
        sums[g] = first + second if size > 1 else first
    take_best(sums, groups, kept, taken)
    for i in range(n):
        if not taken[i // size]:
            score[i] = -1e39


cdef void route_row(const float* logits, const float* bias, Py_ssize_t n, Py_ssize_t k, int gating,
                    Py_ssize_t groups, Py_ssize_t kept, bint normalize, float scale, int* chosen,
                    float* weights) noexcept nogil:
    cdef float probability[MAX_EXPERTS]
    cdef float score[MAX_EXPERTS]
    cdef char taken[MAX_EXPERTS]
    cdef Py_ssize_t i, j = 0
    cdef float total = 0
    if gating == BY_SOFTMAX:
        softmax_row(logits, n, probability)
    elif gating == BY_SIGMOID:
        for i in range(0, n, 16):
            store_part(probability + i, over_logistic16(f32_set1(1.0), load_part(logits + i, n - i, 0.0)), n - i)
    elif gating == BY_ROOT:
        for i in range(0, n, 16):
            store_part(probability + i, softplus16(load_part(logits + i, n - i, 0.0)), n - i)
        for i in range(n):
            probability[i] = sqrtf(probability[i])
    for i in range(n):
        if bias != NULL:
            score[i] = probability[i] + bias[i]
        else:
            score[i] = probability[i] if groups > 1 else logits[i]
    if groups > 1:
        keep_groups(score, n, groups, kept)
    take_best(score, n, k, taken)
    for i in range(n):
        if taken[i]:
            chosen[j] = <int>i
            weights[j] = logits[i] if gating == BY_CHOSEN else probability[i]
            j = j + 1
    if gating == BY_CHOSEN:
        softmax_row(weights, k, weights)
    if normalize:
        for j in range(k):
            total = total + weights[j]
        total = max(total, <float>6.103515625e-5)  # the smallest normal half float, as in llama.cpp
    for j in range(k):
        weights[j] = (weights[j] / total if normalize else weights[j]) * scale


def route(cnp.ndarray logits, bias: np.ndarray | None, str gating, Py_ssize_t groups, Py_ssize_t kept, bint normalize,
          float scale, cnp.ndarray chosen, cnp.ndarray weights):
    """Chooses each row's experts and their weights.

    The experts with the highest logits are chosen, or with the highest probability plus ``bias``; of equal ones the
    first. ``weights`` are the probabilities, divided by their sum if ``normalize``, times ``scale``.

    Args:
        logits: float32 (n, experts), at most 1024 experts
        bias: float32 (experts,), or None; it affects the choice only
        gating: one of `GATINGS`
        groups, kept: if ``groups`` is above 1, experts come from the ``kept`` groups (of consecutive experts) whose
            two best scores have the highest sums
        chosen: int32 (n, k), ascending in each row
        weights: float32 (n, k)
    """
    cdef const float* lp = f32_data(logits, 0, "logits")
    cdef Py_ssize_t n = rows_of(logits, "logits"), experts = logits.shape[1], k, i
    cdef const float* bp = NULL if bias is None else f32_data(bias, experts, "bias")
    cdef int* cp = i32_out(chosen, 0, "chosen")
    cdef float* wp
    cdef int kind
    check_dimensions(chosen, 2, "chosen")
    k = chosen.shape[1]
    check_shape(chosen, n, k, "chosen")
    wp = f32_rows_out(weights, n, k, "weights")
    check_apart(chosen, weights, "chosen, weights")
    check_apart(logits, chosen, "logits, chosen")
    check_apart(logits, weights, "logits, weights")
    if gating not in GATINGS:
        raise ValueError(f"gating: expected one of {', '.join(GATINGS)}, got {gating!r}")
    kind = GATINGS[gating]
    if not 1 <= k <= experts <= MAX_EXPERTS:
        raise ValueError(f"route: expected 1 to all of at most {MAX_EXPERTS} experts, got {k} of {experts}")
    if kind == BY_CHOSEN and (bias is not None or groups > 1):
        raise ValueError("route: expected neither bias nor groups with a softmax over the chosen, got them")
    if groups < 1:
        raise ValueError(f"route: expected at least 1 group, got {groups}")
    if groups > 1 and not (experts % groups == 0 and 1 <= kept <= groups <= experts
                           and k <= kept * (experts // groups)):
        raise ValueError(f"route: expected equal groups with enough experts, "
                         f"got {k} of {experts} in {kept} of {groups}")
    with nogil:
        for i in range(n):
            route_row(lp + i * experts, bp, experts, k, kind, groups, kept, normalize, scale, cp + i * k, wp + i * k)


def group(cnp.ndarray chosen, cnp.ndarray weights, cnp.ndarray counts, cnp.ndarray rows, cnp.ndarray factors):
    """Sorts the choices of `route` by expert, then by row.

    Args:
        chosen: int32 (n, k)
        weights: float32 (n, k)
        counts: int32 (experts,), rows of each expert
        rows: int32 (n k,), the rows of the first expert, then of the second, and so on
        factors: float32 (n k,), the weights in the order of ``rows``
    """
    cdef const int* cp = i32_data(chosen, 0, "chosen")
    cdef Py_ssize_t n = rows_of(chosen, "chosen"), k = chosen.shape[1], i, at = 0
    cdef const float* wp = f32_rows(weights, n, k, "weights")
    cdef int* count = i32_out(counts, 0, "counts")
    cdef Py_ssize_t experts = cnp.PyArray_SIZE(counts)
    cdef int* rp = i32_out(rows, n * k, "rows")
    cdef float* fp = f32_out(factors, n * k, "factors")
    cdef Py_ssize_t next[MAX_EXPERTS]
    for name, a in (("chosen", chosen), ("weights", weights)):
        for other, b in (("counts", counts), ("rows", rows), ("factors", factors)):
            check_apart(a, b, f"{name}, {other}")
    check_apart(counts, rows, "counts, rows")
    check_apart(counts, factors, "counts, factors")
    check_apart(rows, factors, "rows, factors")
    if experts > MAX_EXPERTS:
        raise ValueError(f"group: expected at most {MAX_EXPERTS} experts, got {experts}")
    for i in range(n * k):
        if not 0 <= cp[i] < experts:
            raise ValueError(f"chosen: expected 0 to {experts - 1}, got {cp[i]}")
    with nogil:
        for i in range(experts):
            count[i] = 0
        for i in range(n * k):
            count[cp[i]] += 1
        for i in range(experts):
            next[i] = at
            at = at + count[i]
        for i in range(n * k):
            at = next[cp[i]]
            next[cp[i]] = at + 1
            rp[at] = <int>(i // k)
            fp[at] = wp[i]
