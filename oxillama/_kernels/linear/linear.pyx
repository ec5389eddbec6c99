"""Packed matrices times activations: y = W x for one token or many, in one kernel.

`Linear` holds the matrices that share an input (q, k and v; gate and up), whatever their formats.
`apply` first quantizes the tokens into tiles (8, 4, 2 or 1 of them, interleaved as the tile
bodies of layouts.pxd read them), then hands out panels to threads. Who computes a panel, and in
which tile a token stands, changes no bit of the result.

An activation is quantized to int8 per block of 32 (c8, c4, ...) or 256 (k4, k6, ...) columns, symmetrically,
scale = max|x| / 127, as llama.cpp's Q8_0 and Q8_K do, but with the scale kept as float32. A block below
1e-36 counts as zero; the scale of one that holds a NaN or an infinity is NaN, and so are its products.
"""

cimport numpy as cnp
from cython.parallel cimport prange
from libc.math cimport NAN
from libc.stdint cimport int8_t, int32_t, uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy

from oxillama._kernels.arrays cimport (
    PY_SSIZE_T_MAX, check_apart, check_threads, f32_data, f32_rows, f32_rows_out, fits, i32_data,
    u8_data, u8_out)
from oxillama._kernels.debugging cimport ensure
from oxillama._kernels.linear.tiles cimport Job, Tile
from oxillama._kernels.packing.formats cimport *
from oxillama._kernels.packing.layouts cimport block_cols, panel_bytes
from oxillama._kernels.simd.simd cimport *

cnp.import_array()

cdef enum:
    A_F32 = 0
    A_32 = 1
    A_256 = 2
    MAX_PARTS = 16
    MAX_GROUPS = 512
    FILL_ROWS = 16    # tokens that a thread quantizes at a time, a multiple of every tile
    FILL_COLS = 1024  # columns of them, a multiple of every block


cdef struct Part:
    const uint8_t* data
    int layout
    int form          # of the activations it takes
    Py_ssize_t rows
    Py_ssize_t first_panel
    Py_ssize_t first_row
    Py_ssize_t stride  # bytes of a panel


# All matrices of a `Linear`.
cdef struct Stack:
    Part parts[MAX_PARTS]
    int n_parts
    bint takes[3]     # forms
    Py_ssize_t rows, n_panels
    const float* bias


cdef inline int form_number(int layout) noexcept nogil:
    return A_F32 if form_of(layout) == 0 else A_32 if form_of(layout) == 32 else A_256


cdef inline Py_ssize_t padded(Py_ssize_t n) noexcept nogil:
    return (n + 63) & ~<Py_ssize_t>63


# Scratch of one form for n tokens. For the tile that starts at token t0 every array begins at t0 times its
# bytes per token, so the tiles follow each other without a table.
cdef struct Form:
    char* base
    Py_ssize_t scale, sums, more  # offsets of the parts behind the codes (or values)


cdef inline Py_ssize_t form_layout(int form, Py_ssize_t n, Py_ssize_t cols, Form* f) noexcept nogil:
    """Fills in the offsets; returns the bytes of the whole, a multiple of 64."""
    cdef Py_ssize_t end
    f.scale = padded(n * cols * (4 if form == A_F32 else 1))
    if form == A_F32:
        f.sums = f.more = f.scale
        return f.scale
    f.sums = f.scale + padded(n * (cols // (32 if form == A_32 else 256)) * 4)
    f.more = f.sums + padded(n * (cols // 32) * 4)
    end = f.more
    if form == A_256:
        end += padded(n * (cols // 64) * 4)
    return end


cdef inline void form_tile(int form, const Form* f, Py_ssize_t t0, Py_ssize_t cols, Tile* tile) noexcept nogil:
    tile.values = <const float*>f.base + t0 * cols
    tile.codes = <const int8_t*>f.base + t0 * cols
    tile.scale = <const float*>(f.base + f.scale) + t0 * (cols // (32 if form == A_32 else 256))
    tile.nsum = <const int32_t*>(f.base + f.sums) + t0 * (cols // 32)
    tile.sums16 = tile.nsum
    tile.sums32 = <const int32_t*>(f.base + f.more) + t0 * (cols // 64)


# Rows of a batch that one `Linear` takes. They need not stand together in x, but they do in the output.
cdef struct Group:
    const Stack* stack
    Py_ssize_t start, count
    Py_ssize_t first_fill  # pieces of groups before this one
    Form forms[3]


# One call: every group's rows times its matrices.
cdef struct Call:
    const Group* groups
    Py_ssize_t n_groups
    const float* x
    const int* rows        # of x, in the order of the groups; NULL: as they are
    float* out             # in the order of the groups
    Py_ssize_t cols
    Py_ssize_t chunk       # panels handed out together
    Py_ssize_t n_chunks    # of a group
    bint accumulate


cdef inline int tile_size(Py_ssize_t left) noexcept nogil:
    cdef Py_ssize_t most = min(left, OX_TILE)
    return 8 if most >= 8 else 4 if most >= 4 else 2 if most >= 2 else 1


cdef inline f32x16 to_codes(f32x16 x, f32x16 inv, int8_t* out) noexcept nogil:
    """16 codes round(x * inv), ties to even: adding 1.5 * 2^23 leaves the integer in the low mantissa bits."""
    cdef f32x16 magic = f32_set1(12582912.0)
    cdef i32x16 code = i32_from_bits(f32_add(f32_mul(x, inv), magic))
    i32_store_i8(out, code)
    return f32_sub(f32_from_bits(code), magic)


cdef inline int32_t total_of(f32x16 codes, bint* finite) noexcept nogil:
    """The sum of 16 codes; 0, and ``finite`` cleared, where one of them came from a NaN or an infinity."""
    cdef float total = f32_sum(codes)
    if total - total == 0:
        return <int32_t>total
    finite[0] = False
    return 0


cdef inline int32_t pair(int32_t low, int32_t high) noexcept nogil:
    """Two integers of 16 bits in one of 32."""
    return <int32_t>((<uint32_t>low & 0xFFFF) | (<uint32_t>high << 16))


cdef void quantize_token(int form, const float* x, Py_ssize_t first, Py_ssize_t last, const Tile* tile, int T,
                         int t) noexcept nogil:
    """Quantizes columns ``first`` to ``last`` (whole blocks) of token ``t`` of a tile of ``T``."""
    cdef Py_ssize_t block = 32 if form == A_32 else 256
    cdef Py_ssize_t b, k, i
    cdef f32x16 top
    cdef float most, inv
    cdef bint finite
    cdef int8_t codes[16]
    cdef int32_t half[2]
    cdef int32_t whole, other = 0
    cdef int8_t* out = <int8_t*>tile.codes
    for b in range(first // block, last // block):
        top = f32_zero()
        for k in range(0, block, 16):
            top = f32_max(f32_abs(f32_load(x + b * block + k)), top)
        most = f32_hmax(top)
        inv = 127.0 / most if most > <float>1e-36 else 0.0  # or it would overflow
        finite = True
        for k in range(0, block, 32):
            for i in range(2):
                half[i] = total_of(to_codes(f32_load(x + b * block + k + 16 * i), f32_set1(inv), codes), &finite)
                store_groups(out + ((b * block + k + 16 * i) * T + 4 * t), codes, T)
            whole = half[0] + half[1]
            i = (b * block + k) // 32
            if form == A_32:
                (<int32_t*>tile.nsum)[i * T + t] = -whole
            else:
                (<int32_t*>tile.sums16)[i * T + t] = pair(half[0], half[1])
                if i & 1:
                    (<int32_t*>tile.sums32)[(i >> 1) * T + t] = pair(other, whole)
                other = whole
        (<float*>tile.scale)[b * T + t] = most / 127.0 if finite else NAN


cdef inline void store_groups(int8_t* out, const int8_t* codes, int T) noexcept nogil:
    """Four groups of 4 codes, each into its own row of the tile."""
    cdef int g
    for g in range(4):
        memcpy(out + g * 4 * T, codes + 4 * g, 4)


cdef void fill_tile(int form, const Group* group, const Call* call, Py_ssize_t first, Py_ssize_t last, Py_ssize_t t0,
                    int T) noexcept nogil:
    """Columns ``first`` to ``last`` of the T tokens from ``t0`` of the group on."""
    cdef Tile tile
    cdef int t
    cdef Py_ssize_t k, row
    cdef const float* x
    cdef float* v
    form_tile(form, &group.forms[form], t0, call.cols, &tile)
    v = <float*>tile.values
    for t in range(T):
        row = group.start + t0 + t
        ensure(t0 + t < group.count and (call.rows == NULL or call.rows[row] >= 0))
        x = call.x + (row if call.rows == NULL else call.rows[row]) * call.cols
        if form != A_F32:
            quantize_token(form, x, first, last, &tile, T, t)
        else:
            for k in range(first, last):
                v[k * T + t] = x[k]


include "dispatch.pxi"  # run_job


cdef void panels(const Part* w, Py_ssize_t p0, Py_ssize_t p1, const Group* group, const Call* call) noexcept nogil:
    """Panels p0..p1 of one matrix for all tokens of a group, tile by tile, while the panels stay in the cache."""
    cdef Py_ssize_t t0 = 0
    cdef Job job
    cdef int T
    ensure(0 <= p0 < p1 <= (w.rows + 15) // 16)
    job.data, job.stride, job.rows, job.cols = w.data, w.stride, w.rows, call.cols
    job.first, job.last, job.ld, job.accumulate = p0, p1, group.stack.rows, call.accumulate
    job.bias = <const float*>NULL if group.stack.bias == NULL else group.stack.bias + w.first_row
    while t0 < group.count:
        T = tile_size(group.count - t0)
        form_tile(w.form, &group.forms[w.form], t0, call.cols, &job.tile)
        job.out = call.out + (group.start + t0) * job.ld + w.first_row
        run_job(w.layout, T, &job)
        t0 = t0 + T


cdef void fill(const Call* call, Py_ssize_t unit) noexcept nogil:
    """Brings up to FILL_ROWS tokens of a group and FILL_COLS columns, piece ``unit`` of all, into the forms taken."""
    cdef Py_ssize_t pieces = (call.cols + FILL_COLS - 1) // FILL_COLS, t0, end, first, last
    cdef const Group* group = call.groups + call.n_groups - 1
    cdef int form, T
    while unit < group.first_fill:
        group -= 1
    ensure(group >= call.groups)
    unit -= group.first_fill
    end = min(group.count, (unit // pieces + 1) * FILL_ROWS)
    first = unit % pieces * FILL_COLS
    last = min(call.cols, first + FILL_COLS)
    for form in range(3):
        if group.stack.takes[form]:
            t0 = unit // pieces * FILL_ROWS
            while t0 < end:
                T = tile_size(end - t0)
                fill_tile(form, group, call, first, last, t0, T)
                t0 = t0 + T


cdef void run(const Call* call, Py_ssize_t unit) noexcept nogil:
    """A chunk of a group's panels, piece ``unit`` of all."""
    cdef const Group* group = call.groups + unit // call.n_chunks
    cdef Py_ssize_t first = unit % call.n_chunks * call.chunk, p0, p1
    cdef Py_ssize_t last = min(first + call.chunk, group.stack.n_panels)
    cdef int i
    cdef const Part* w
    for i in range(group.stack.n_parts):
        w = &group.stack.parts[i]
        p0 = max(first, w.first_panel) - w.first_panel
        p1 = min(last - w.first_panel, (w.rows + 15) // 16)
        if p0 < p1:
            panels(w, p0, p1, group, call)


cdef void multiply(Call* call, Group* groups, Py_ssize_t n_groups, char* scratch, int n_threads) noexcept nogil:
    """Runs a call whose x, rows, out, cols and accumulate are set, for groups whose matrices and rows are."""
    cdef const Stack* stack = groups[0].stack
    cdef Py_ssize_t n_fills = 0, n = 0, n_units, i
    cdef Py_ssize_t pieces = (call.cols + FILL_COLS - 1) // FILL_COLS
    cdef int form, threads
    scratch = <char*>((<uintptr_t>scratch + 63) & ~<uintptr_t>63)
    for i in range(n_groups):
        for form in range(3):
            if groups[i].stack.takes[form]:
                groups[i].forms[form].base = scratch
                scratch += form_layout(form, groups[i].count, call.cols, &groups[i].forms[form])
        groups[i].start = n
        groups[i].first_fill = n_fills
        n += groups[i].count
        n_fills += (groups[i].count + FILL_ROWS - 1) // FILL_ROWS * pieces
    call.groups, call.n_groups = groups, n_groups
    call.chunk = chunk_panels(n_groups * stack.n_panels, stack.parts[0].stride, n_threads)
    call.n_chunks = (stack.n_panels + call.chunk - 1) // call.chunk
    n_units = n_groups * call.n_chunks
    # starting threads costs microseconds: a few hundred thousand multiplications stay on one
    threads = n_threads if n * stack.rows * call.cols >= 400000 and n_threads > 1 else 1
    if threads == 1 or n * call.cols < 4 * FILL_COLS:
        for i in range(n_fills):
            fill(call, i)
    else:
        for i in prange(n_fills, schedule="dynamic", num_threads=threads):
            fill(call, i)
    if threads == 1:
        for i in range(n_units):
            run(call, i)
    else:
        for i in prange(n_units, schedule="dynamic", num_threads=threads):
            run(call, i)


cdef class Linear:
    """Matrices that share one input, stacked by rows.

    Parameters
    ----------
    matrices : sequence of (layout id, rows, data), ``data`` a uint8 array of packed panels
        (see `pack`), 64-byte aligned.
    cols : columns of every matrix, a multiple of the layouts' block.
    bias : float32 (rows,) over all the matrices, or None.

    Raises
    ------
    ValueError
        A layout is unknown, or the data is too short, misaligned, or of a wrong width.
    """

    cdef readonly Py_ssize_t rows, cols
    cdef Stack stack
    cdef Py_ssize_t token_bytes  # of scratch
    cdef list owners

    def __cinit__(self, matrices, Py_ssize_t cols, bias=None):
        cdef Stack* stack = &self.stack
        cdef Part* part
        cdef Form f
        cdef int form, layout
        cdef Py_ssize_t rows
        cdef cnp.ndarray data
        self.owners = [bias]
        self.cols = cols
        for layout, rows, data in matrices:
            if stack.n_parts == MAX_PARTS:
                raise ValueError(f"matrices: expected 1 to {MAX_PARTS}, got more")
            if not 0 <= layout < N_LAYOUTS:
                raise ValueError(f"layout: expected an id of 0 to {N_LAYOUTS - 1}, got {layout}")
            if rows < 1 or cols < 1 or cols % block_cols(layout):
                raise ValueError(f"shape: expected rows of blocks of {block_cols(layout)}, got {rows} x {cols}")
            if not fits(cols, 128, PY_SSIZE_T_MAX // 2) or not fits(rows // 16 + 1, 128 * cols, PY_SSIZE_T_MAX // 2):
                raise ValueError(f"shape: expected a matrix that fits the memory, got {rows} x {cols}")
            part = &stack.parts[stack.n_parts]
            part.layout = layout
            part.form = form_number(layout)
            part.rows = rows
            part.stride = panel_bytes(layout, cols)
            part.data = u8_data(data, (rows + 15) // 16 * part.stride, "matrix")
            if <uintptr_t>part.data & 63:
                raise ValueError("matrix: expected data aligned to 64 bytes, got address "
                                 f"{<uintptr_t>part.data:#x}")
            part.first_panel = stack.n_panels
            part.first_row = stack.rows
            stack.n_panels += (rows + 15) // 16
            stack.rows += rows
            stack.takes[part.form] = True
            stack.n_parts += 1
            self.owners.append(data)
        if stack.n_parts == 0:
            raise ValueError(f"matrices: expected 1 to {MAX_PARTS}, got 0")
        self.rows = stack.rows
        for form in range(3):
            if stack.takes[form]:
                self.token_bytes += form_layout(form, 1, cols, &f)
        if bias is not None:
            stack.bias = f32_data(bias, self.rows, "bias")

    def scratch_bytes(self, Py_ssize_t n):
        """Bytes of scratch that ``n`` tokens need, in one group or in many (`apply_groups`)."""
        if not fits(n, self.token_bytes, PY_SSIZE_T_MAX - 64):
            raise ValueError(f"n: expected an integer >= 0 whose scratch fits the memory, got {n}")
        return n * self.token_bytes + 64

    def apply(self, cnp.ndarray x, cnp.ndarray out, cnp.ndarray scratch, int n_threads, bint accumulate=False):
        """out = x W^T (+ bias), or out + that.

        Parameters
        ----------
        x : float32 (n, cols)
        out : float32 (n, rows)
        scratch : uint8, at least ``scratch_bytes(n)``
        n_threads : threads to use, at least 1
        """
        cdef Group group
        cdef Call call
        call.x, call.rows, call.cols = f32_rows(x, 0, self.cols, "x"), NULL, self.cols
        cdef Py_ssize_t n = x.shape[0]
        cdef char* free = <char*>u8_out(scratch, self.scratch_bytes(n), "scratch")
        group.stack, group.count = &self.stack, n
        call.out, call.accumulate = f32_rows_out(out, n, self.rows, "out"), accumulate
        check_threads(n_threads)
        check_apart(x, out, "x, out")
        check_apart(x, scratch, "x, scratch")
        check_apart(out, scratch, "out, scratch")
        if n:
            with nogil:
                multiply(&call, &group, 1, free, n_threads)


def apply_groups(list linears not None, cnp.ndarray counts, cnp.ndarray x, cnp.ndarray rows, cnp.ndarray out,
                 cnp.ndarray scratch, int n_threads):
    """out[i] = x[rows[i]] W^T (+ bias), where W is another matrix for each group of neighbouring i.

    One call for all groups keeps every thread busy though each matrix may be small; each row comes out as
    its `Linear` alone would have it.

    Parameters
    ----------
    linears : a `Linear` for each group, all of one shape.
    counts : int32 (groups,), rows of each, at least 1.
    x : float32 (n, cols)
    rows : int32 (m,), m the sum of ``counts``; None: x has these m rows.
    out : float32 (m, rows of a matrix)
    scratch : uint8, at least ``scratch_bytes(m)`` of the matrix that needs most
    n_threads : threads to use, at least 1.

    Raises
    ------
    ValueError
        Shapes that do not agree, or more than 512 groups.
    """
    cdef tuple held = tuple(linears)  # what the groups point into, whatever becomes of the list
    cdef Py_ssize_t n, m, n_groups = len(held)
    cdef Py_ssize_t left, needed = 64, i
    cdef Group groups[MAX_GROUPS]
    cdef Call call
    cdef Linear first, linear
    cdef const int* cp = i32_data(counts, n_groups, "counts")
    cdef char* free
    check_threads(n_threads)
    if not 1 <= n_groups <= MAX_GROUPS:
        raise ValueError(f"linears: expected 1 to {MAX_GROUPS} groups, got {n_groups}")
    for i in range(n_groups):
        if not isinstance(held[i], Linear):
            raise TypeError(f"linears: expected objects of Linear, got {type(held[i])}")
    first = held[0]
    call.x, call.rows, call.cols = f32_rows(x, 0, first.cols, "x"), NULL, first.cols
    n = x.shape[0]
    if rows is not None:
        call.rows = i32_data(rows, 0, "rows")
    m = left = n if rows is None else cnp.PyArray_SIZE(rows)
    for i in range(n_groups):
        linear = held[i]
        if (linear.rows, linear.cols, linear.stack.n_panels) != (first.rows, first.cols, first.stack.n_panels):
            raise ValueError(f"linears: expected shapes of {first.rows} x {first.cols}, "
                             f"got {linear.rows} x {linear.cols}")
        if not 1 <= cp[i] <= left:
            raise ValueError(f"counts: expected 1 to {left} rows for group {i}, got {cp[i]}")
        groups[i].stack, groups[i].count = &linear.stack, cp[i]
        left -= cp[i]
        needed += linear.scratch_bytes(cp[i]) - 64
    if left:
        raise ValueError(f"counts: expected {m} rows in all, got {m - left}")
    call.out, call.accumulate = f32_rows_out(out, m, first.rows, "out"), False
    if rows is not None:
        for i in range(m):
            if not 0 <= call.rows[i] < n:
                raise ValueError(f"rows: expected 0 to {n - 1}, got {call.rows[i]}")
    free = <char*>u8_out(scratch, needed, "scratch")
    check_apart(x, out, "x, out")
    check_apart(x, scratch, "x, scratch")
    check_apart(out, scratch, "out, scratch")
    with nogil:
        multiply(&call, groups, n_groups, free, n_threads)


cdef Py_ssize_t chunk_panels(Py_ssize_t n_panels, Py_ssize_t stride, int n_threads) noexcept nogil:
    """Panels handed out at a time: about 64 KB, and the four that a float tile takes together, but at
    least four chunks a thread, so that a thread which is kept waiting by another process does not hold up
    the rest."""
    cdef Py_ssize_t chunk = max(4, 65536 // stride)
    return max(1, min(chunk, n_panels // (4 * n_threads)))
