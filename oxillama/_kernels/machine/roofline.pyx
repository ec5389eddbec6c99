"""Peak rates of this machine, against which the kernels are measured.

`read_bytes` is a plain streaming read; `integer_products` and `float_products` keep the multipliers busy from
registers, with enough independent sums to hide their latency. All use the operations of simd.h, so a target is
compared with the peak of its own instructions.
"""

cimport numpy as cnp
from cython.parallel cimport prange
from libc.stdint cimport uint8_t

from oxillama._kernels.arrays cimport check_threads, u8_data
from oxillama._kernels.simd.simd cimport *

cnp.import_array()

cdef enum:
    MAX_SUMS = 16        # independent sums
    CHUNK = 1 << 16      # bytes that a thread reads at a time
    MAX_ROUNDS = 1 << 30


def read_bytes(cnp.ndarray data, int n_threads) -> float:
    """Reads all of ``data`` (uint8, a multiple of 256 bytes) once. Returns a number computed from all of it."""
    cdef const uint8_t* p = u8_data(data, 0, "data")
    cdef Py_ssize_t n = cnp.PyArray_SIZE(data), i
    cdef float total = 0
    if n % 256:
        raise ValueError(f"data: expected a multiple of 256 bytes, got {n}")
    check_threads(n_threads)
    for i in prange((n + CHUNK - 1) // CHUNK, nogil=True, schedule="dynamic", num_threads=n_threads):
        total += read_chunk(p + i * CHUNK, min(<Py_ssize_t>CHUNK, n - i * CHUNK))
    return total


def integer_products(Py_ssize_t rounds, int n_threads) -> int:
    """Multiplies int8 codes in every thread; returns the total number of multiply-adds."""
    cdef Py_ssize_t _i
    cdef float total = 0
    check_threads(n_threads)
    check_rounds(rounds)
    for _i in prange(n_threads, nogil=True, schedule="static", num_threads=n_threads):
        total += integer_rounds(rounds)
    return rounds * integer_sums() * 64 * n_threads if total == total else 0


def float_products(Py_ssize_t rounds, int n_threads) -> int:
    """Multiplies float32 numbers in every thread; returns the total number of multiply-adds."""
    cdef Py_ssize_t _i
    cdef float total = 0
    check_threads(n_threads)
    check_rounds(rounds)
    for _i in prange(n_threads, nogil=True, schedule="static", num_threads=n_threads):
        total += float_rounds(rounds)
    return rounds * float_sums() * 16 * n_threads if total == total else 0


cdef int check_rounds(Py_ssize_t rounds) except -1:
    if not 0 <= rounds <= MAX_ROUNDS:
        raise ValueError(f"rounds: expected 0 to {MAX_ROUNDS}, got {rounds}")
    return 0


cdef float read_chunk(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    cdef u8x64 a = u8_load(p), b = a, c = a, d = a
    cdef Py_ssize_t i
    for i in range(0, n, 256):
        a = u8_or(a, u8_load(p + i))
        b = u8_or(b, u8_load(p + i + 64))
        c = u8_or(c, u8_load(p + i + 128))
        d = u8_or(d, u8_load(p + i + 192))
    return f32_sum(f32_from_i32(u7_dot(i32_zero(), u8_low4(u8_or(u8_or(a, b), u8_or(c, d))), a)))


cdef inline int integer_sums() noexcept nogil:
    """Number of sums with the highest rate. AVX-512: 12 sums reach 0.87 of it; AVX2: 16 sums exceed the registers."""
    return 16 if OX_TILE >= 8 else 12


cdef inline int float_sums() noexcept nogil:
    return 12 if OX_TILE >= 8 else 6


cdef float integer_rounds(Py_ssize_t rounds) noexcept nogil:
    cdef i32x16 sums[MAX_SUMS]
    cdef uint8_t codes[128]  # two alternating vectors, or a sum would be a multiple of one product
    cdef u8x64 w
    cdef f32x16 total = f32_zero()
    cdef Py_ssize_t k
    cdef int i
    for i in range(128):
        codes[i] = i & 3
    for i in range(integer_sums()):
        sums[i] = i32_zero()
    for k in range(rounds):
        w = u8_load(codes + 64 * (k & 1))
        for i in range(integer_sums()):
            sums[i] = u7_dot(sums[i], w, w)
    for i in range(integer_sums()):
        total = f32_add(total, f32_from_i32(sums[i]))
    return f32_sum(total)


cdef float float_rounds(Py_ssize_t rounds) noexcept nogil:
    cdef f32x16 sums[MAX_SUMS]
    cdef float values[32]
    cdef f32x16 w, total = f32_zero()
    cdef Py_ssize_t k
    cdef int i
    for i in range(32):
        values[i] = 0.5 / (i + 1)
    for i in range(float_sums()):
        sums[i] = f32_zero()
    for k in range(rounds):
        w = f32_load(values + 16 * (k & 1))
        for i in range(float_sums()):
            sums[i] = f32_fma(w, w, sums[i])
    for i in range(float_sums()):
        total = f32_add(total, sums[i])
    return f32_sum(total)
