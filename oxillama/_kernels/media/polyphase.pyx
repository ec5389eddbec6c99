"""The sums of a polyphase filter, with which `models.media.sounds` resamples.

A sum is written as double operations in order, so the samples are the same bits on every machine. Eight turns are
summed side by side, which hides the latency of an addition.
"""

cimport numpy as cnp

from oxillama._kernels.arrays cimport check_dimensions, f32_data, f32_out, f64_data, fits, i32_data

cnp.import_array()

cdef enum:
    SIDE_BY_SIDE = 8


def polyphase(cnp.ndarray samples, cnp.ndarray first, cnp.ndarray weights, Py_ssize_t step, cnp.ndarray out) -> None:
    """out[t, j] = sum over k, in order, of weights[j, k] * samples[t * step + first[j] + k].

    Args:
        samples: float32 (n,)
        first: int32 (n_out,), the first sample of each output of a turn
        weights: float64 (n_out, taps)
        step: samples from one turn to the next
        out: float32 (turns, n_out)

    Raises:
        TypeError, ValueError: an array has another type or shape, or an output needs a sample that is not there.
    """
    check_dimensions(weights, 2, "weights")
    check_dimensions(out, 2, "out")
    cdef Py_ssize_t n_out = weights.shape[0], taps = weights.shape[1], turns = out.shape[0]
    cdef Py_ssize_t n = cnp.PyArray_SIZE(samples) if samples is not None else 0
    cdef const float* x = f32_data(samples, n, "samples")
    cdef const int* begins = i32_data(first, n_out, "first")
    cdef const double* w = f64_data(weights, n_out * taps, "weights")
    cdef float* y = f32_out(out, turns * n_out, "out")
    cdef Py_ssize_t t, j, k, i, side, n_blocks = (turns + SIDE_BY_SIDE - 1) // SIDE_BY_SIDE, block
    cdef const float* at
    cdef const double* row
    cdef double[SIDE_BY_SIDE] total
    if out.shape[1] != n_out:
        raise ValueError(f"out: expected rows of {n_out}, got rows of {out.shape[1]}")
    if step < 1:
        raise ValueError(f"step: expected an integer >= 1, got {step}")
    for j in range(n_out if turns else 0):
        if begins[j] < 0 or taps > n or begins[j] > n - taps or not fits(turns - 1, step, n - taps - begins[j]):
            raise ValueError(f"samples: expected all that output {j} needs, got {n}")
    with nogil:
        for block in range(n_blocks):
            t = block * SIDE_BY_SIDE
            side = min(<Py_ssize_t>SIDE_BY_SIDE, turns - t)
            for j in range(n_out):
                at, row = x + t * step + begins[j], w + j * taps
                for i in range(SIDE_BY_SIDE):
                    total[i] = 0.0
                if side == SIDE_BY_SIDE:
                    for k in range(taps):
                        for i in range(SIDE_BY_SIDE):
                            total[i] = total[i] + row[k] * <double>at[i * step + k]
                else:
                    for k in range(taps):
                        for i in range(side):
                            total[i] = total[i] + row[k] * <double>at[i * step + k]
                for i in range(side):
                    y[(t + i) * n_out + j] = <float>total[i]
