"""Converts the blocks of a GGUF file to floats (`dequantize`) and to packed panels (`pack`, `pack_file`).

`unpack.pxd` describes the blocks, `layouts.pxd` the panels. The functions only move bits and multiply floats one
by one, so all targets share one compiled module.
"""

from pathlib import Path

import numpy as np

cimport numpy as cnp
from cython.parallel cimport prange, threadid
from libc.stdint cimport INT64_MAX, uint8_t
from libc.string cimport memcpy, memset

from oxillama._kernels.arrays cimport PY_SSIZE_T_MAX, check_apart, check_threads, f32_out, fits, u8_data, u8_out
from oxillama._kernels.packing.dispatch cimport dequantize_blocks, pack_rows
from oxillama._kernels.packing.formats cimport *
from oxillama._kernels.packing.layouts cimport *
from oxillama._kernels.packing.unpack cimport GRID_3XXS, GRID_WORDS, GRIDS

from oxillama.base.formats import IN_MEMORY, LAYOUTS

cnp.import_array()

cdef extern from *:
    """
    #ifdef _WIN32
    static int read_at(int fd, void* out, Py_ssize_t n, long long start) { return 0; }
    #else
    #include <unistd.h>
    /* Reads n bytes at an offset of a file; 0 if not all of them could be read. */
    static int read_at(int fd, void* out, Py_ssize_t n, long long start) {
        while (n > 0) {
            ssize_t done = pread(fd, out, (size_t)n, (off_t)start);
            if (done <= 0) return 0;
            out = (char*)out + done;
            n -= done;
            start += done;
        }
        return 1;
    }
    #endif
    """
    int read_at(int fd, void* out, Py_ssize_t n, long long start) nogil

cdef Py_ssize_t READ_BYTES = 1 << 18  # bytes that a thread reads at a time: they stay in its core's cache for packing

FORMAT_OF_ID = {fmt.id: fmt for fmt in IN_MEMORY.values()}

cdef struct Codec:
    int format, layout
    Py_ssize_t block_len, block_bytes


cdef fill_grids():
    """Loads GRIDS from grids.bin: codes of 2 bits for IQ1 and IQ2, then of 4 bits for IQ3 (see tools/make_grids.py)."""
    cdef cnp.ndarray words
    data = np.frombuffer(Path(__file__).with_name("grids.bin").read_bytes(), np.uint8)
    pairs, nibbles = data[:GRID_3XXS], data[GRID_3XXS:]
    codes = [pairs[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3, nibbles[:, None] >> np.array([0, 4], np.uint8)]
    words = np.concatenate([part.ravel() & 15 for part in codes])
    memcpy(GRIDS, u8_data(words, 4 * GRID_WORDS, "grids"), 4 * GRID_WORDS)


fill_grids()


cdef Codec codec_of(int format_id) except *:
    """The sizes and the layout of a format; ValueError if no kernel supports it."""
    fmt = FORMAT_OF_ID.get(format_id)
    if fmt is None or fmt.layout is None:
        raise ValueError(f"format_id: expected a format with kernels, got {format_id}")
    return Codec(format_id, LAYOUTS[fmt.layout].id, fmt.block_len, fmt.block_bytes)


cdef int check_matrix(const Codec* c, Py_ssize_t rows, Py_ssize_t cols) except -1:
    """Raises ValueError unless rows are whole blocks and the bytes of the matrix fit into Py_ssize_t."""
    if rows < 1 or cols < 1 or cols % c.block_len or not fits(cols, 128, PY_SSIZE_T_MAX // 2):
        raise ValueError(f"shape: expected rows of blocks of {c.block_len}, got {rows} x {cols}")
    if not fits(rows // 16 + 1, 128 * cols, PY_SSIZE_T_MAX // 2):
        raise ValueError(f"shape: expected a matrix that fits the memory, got {rows} x {cols}")
    return 0


def dequantize(int format_id, cnp.ndarray blocks, cnp.ndarray out, int n_threads=1):
    """Converts whole blocks to floats, bit-equal to `gguf.quants.dequantize`.

    Args:
        format_id: the GGUF type number
        blocks: uint8, the bytes of the blocks
        out: float32, its size a multiple of the block length
    """
    cdef Codec c = codec_of(format_id)
    if is_row(c.layout):
        raise ValueError(f"format_id: expected a format of files, got {format_id}")
    cdef float* op = f32_out(out, 0, "out")
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    cdef Py_ssize_t n_blocks = n // c.block_len
    check_threads(n_threads)
    if n % c.block_len:
        raise ValueError(f"out: expected whole blocks of {c.block_len} elements, got {n}")
    cdef const uint8_t* bp = u8_data(blocks, n_blocks * c.block_bytes, "blocks")
    check_apart(blocks, out, "blocks, out")
    cdef Py_ssize_t step = max(1, 65536 // c.block_len), i
    cdef Py_ssize_t steps = (n_blocks + step - 1) // step
    if steps <= 1:  # no parallel region, and the GIL stays locked
        dequantize_blocks(c.format, bp, n_blocks, op)
        return
    for i in prange(steps, nogil=True, schedule="dynamic", num_threads=n_threads):
        dequantize_blocks(c.format, bp + i * step * c.block_bytes, min(step, n_blocks - i * step),
                          op + i * step * c.block_len)


def packed_bytes(int format_id, Py_ssize_t rows, Py_ssize_t cols) -> int:
    """Bytes of the packed panels of a (rows, cols) matrix."""
    cdef Codec c = codec_of(format_id)
    check_matrix(&c, rows, cols)
    return (rows + 15) // 16 * panel_bytes(c.layout, cols)


def pack(int format_id, cnp.ndarray blocks, Py_ssize_t rows, Py_ssize_t cols, cnp.ndarray out, int n_threads=1):
    """Interleaves a (rows, cols) matrix into panels of 16 rows; the last panel is filled up with rows of zeros.

    Args:
        format_id: the GGUF type number
        blocks: uint8, the rows as stored in the file
        out: uint8, ``packed_bytes(format_id, rows, cols)`` long
    """
    cdef Codec c = codec_of(format_id)
    check_matrix(&c, rows, cols)
    check_threads(n_threads)
    cdef Py_ssize_t row_bytes = cols // c.block_len * c.block_bytes
    cdef Py_ssize_t stride = panel_bytes(c.layout, cols), n_panels = (rows + 15) // 16, p
    cdef const uint8_t* bp = u8_data(blocks, rows * row_bytes, "blocks")
    cdef uint8_t* op = u8_out(out, n_panels * stride, "out")
    check_apart(blocks, out, "blocks, out")
    zeros = bytes(row_bytes)
    cdef const uint8_t* zero = zeros
    for p in prange(n_panels, nogil=True, schedule="dynamic", num_threads=n_threads):
        pack_panel(&c, bp + 16 * p * row_bytes, zero, row_bytes, rows - 16 * p, cols, op + p * stride)


def pack_file(int format_id, int fd, long long start, Py_ssize_t rows, Py_ssize_t cols, cnp.ndarray out,
              int n_threads=1) -> bool:
    """`pack` for blocks in an open file; each thread reads the blocks that it packs.

    Args:
        fd: descriptor of the file
        start: offset of the first block

    Returns:
        bool: False if not all bytes could be read, or if the system cannot read at an offset
    """
    cdef Codec c = codec_of(format_id)
    check_matrix(&c, rows, cols)
    check_threads(n_threads)
    cdef Py_ssize_t row_bytes = cols // c.block_len * c.block_bytes
    if not 0 <= start <= INT64_MAX - rows * row_bytes:
        raise ValueError(f"start: expected an offset >= 0 with an end below 2^63, got {start}")
    cdef Py_ssize_t stride = panel_bytes(c.layout, cols), n_panels = (rows + 15) // 16, i
    cdef Py_ssize_t panels = max(1, READ_BYTES // (16 * row_bytes)), n_reads = (n_panels + panels - 1) // panels
    cdef Py_ssize_t own = min(16 * panels, rows) * row_bytes
    cdef int used = min(n_threads, n_reads)
    buffers, missed = np.empty(used * own, np.uint8), np.zeros(used, np.uint8)
    cdef uint8_t* op = u8_out(out, n_panels * stride, "out")
    cdef uint8_t* buffer = u8_out(buffers, used * own, "buffers")
    cdef uint8_t* miss = u8_out(missed, used, "missed")
    zeros = bytes(row_bytes)
    cdef const uint8_t* zero = zeros
    for i in prange(n_reads, nogil=True, schedule="dynamic", num_threads=used):
        if not read_panels(&c, fd, start, zero, row_bytes, rows, cols, i * panels, min(panels, n_panels - i * panels),
                           buffer + threadid() * own, op, stride):
            miss[threadid()] = 1
    return not missed.any()


cdef int read_panels(const Codec* c, int fd, long long start, const uint8_t* zero, Py_ssize_t row_bytes,
                     Py_ssize_t rows, Py_ssize_t cols, Py_ssize_t first, Py_ssize_t n, uint8_t* buffer,
                     uint8_t* out, Py_ssize_t stride) noexcept nogil:
    """Reads and packs ``n`` panels of a file; returns whether all bytes could be read."""
    cdef Py_ssize_t left = rows - 16 * first, p
    if not read_at(fd, buffer, min(16 * n, left) * row_bytes, start + 16 * first * row_bytes):
        return 0
    for p in range(n):
        pack_panel(c, buffer + 16 * p * row_bytes, zero, row_bytes, left - 16 * p, cols, out + (first + p) * stride)
    return 1


cdef void pack_panel(const Codec* c, const uint8_t* blocks, const uint8_t* zero, Py_ssize_t row_bytes,
                     Py_ssize_t rows, Py_ssize_t cols, uint8_t* out) noexcept nogil:
    """Packs up to 16 rows of ``blocks`` into a panel; missing rows are read from ``zero``."""
    cdef const uint8_t* row[16]
    cdef Py_ssize_t last
    cdef int r
    # the last group may lack a block: clear its headers, so that packed bytes depend on the file only
    if form_of(c.layout) and not is_row(c.layout):
        last = cols // form_of(c.layout) - 1
        last -= last % group_blocks(c.layout)
        memset(out + header_at(c.layout, last), 0, group_blocks(c.layout) * header_bytes(c.layout))
    for r in range(16):
        row[r] = blocks + r * row_bytes if r < rows else zero
    pack_rows(c.format, row, cols, out)
