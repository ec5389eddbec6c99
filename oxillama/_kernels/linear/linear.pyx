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
from libc.stdlib cimport free as free_memory, malloc
from libc.string cimport memcpy

from oxillama._kernels.arrays cimport (
    PY_SSIZE_T_MAX, check_apart, check_threads, f32_data, f32_rows, f32_rows_out, f64_data,
    fits, i32_data, u8_data, u8_out)
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
    Py_ssize_t rows, cols, n_panels
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
    const float* x
    Py_ssize_t x_ld        # floats from a row of x to the next
    const int* rows        # of x, one for each row of the group; NULL: the first ones
    float* out
    Py_ssize_t out_ld      # floats from a row of out to the next
    bint accumulate
    Py_ssize_t count
    Py_ssize_t first_fill  # pieces of groups before this one
    Py_ssize_t first_unit  # chunks of panels of groups before this one
    Form forms[3]


# One call: every group's rows times its matrices.
cdef struct Call:
    const Group* groups
    Py_ssize_t n_groups
    Py_ssize_t chunk       # panels handed out together


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


cdef void fill_tile(int form, const Group* group, Py_ssize_t first, Py_ssize_t last, Py_ssize_t t0,
                    int T) noexcept nogil:
    """Columns ``first`` to ``last`` of the T tokens from ``t0`` of the group on."""
    cdef Tile tile
    cdef int t
    cdef Py_ssize_t k, row
    cdef const float* x
    cdef float* v
    form_tile(form, &group.forms[form], t0, group.stack.cols, &tile)
    v = <float*>tile.values
    for t in range(T):
        row = t0 + t
        ensure(row < group.count and (group.rows == NULL or group.rows[row] >= 0))
        x = group.x + (row if group.rows == NULL else group.rows[row]) * group.x_ld
        if form != A_F32:
            quantize_token(form, x, first, last, &tile, T, t)
        elif T == 1:
            memcpy(v + first, x + first, (last - first) * sizeof(float))
        else:
            for k in range(first, last):
                v[k * T + t] = x[k]


include "dispatch.pxi"  # run_job


cdef void panels(const Part* w, Py_ssize_t p0, Py_ssize_t p1, const Group* group) noexcept nogil:
    """Panels p0..p1 of one matrix for all tokens of a group, tile by tile, while the panels stay in the cache."""
    cdef Py_ssize_t t0 = 0
    cdef Job job
    cdef int T
    ensure(0 <= p0 < p1 <= (w.rows + 15) // 16)
    job.data, job.stride, job.rows, job.cols = w.data, w.stride, w.rows, group.stack.cols
    job.first, job.last, job.ld, job.accumulate = p0, p1, group.out_ld, group.accumulate
    job.bias = <const float*>NULL if group.stack.bias == NULL else group.stack.bias + w.first_row
    while t0 < group.count:
        T = tile_size(group.count - t0)
        form_tile(w.form, &group.forms[w.form], t0, group.stack.cols, &job.tile)
        job.out = group.out + t0 * job.ld + w.first_row
        run_job(w.layout, T, &job)
        t0 = t0 + T


cdef inline Py_ssize_t n_pieces(Py_ssize_t cols) noexcept nogil:
    """Pieces of a row of ``cols`` columns."""
    return (cols + FILL_COLS - 1) // FILL_COLS


cdef void fill(const Call* call, Py_ssize_t unit) noexcept nogil:
    """Brings up to FILL_ROWS tokens of a group and FILL_COLS columns, piece ``unit`` of all, into the forms taken."""
    cdef Py_ssize_t pieces, t0, end, first, last
    cdef const Group* group = call.groups + call.n_groups - 1
    cdef int form, T
    while unit < group.first_fill:
        group -= 1
    ensure(group >= call.groups)
    unit -= group.first_fill
    pieces = n_pieces(group.stack.cols)
    end = min(group.count, (unit // pieces + 1) * FILL_ROWS)
    first = unit % pieces * FILL_COLS
    last = min(group.stack.cols, first + FILL_COLS)
    for form in range(3):
        if group.stack.takes[form]:
            t0 = unit // pieces * FILL_ROWS
            while t0 < end:
                T = tile_size(end - t0)
                fill_tile(form, group, first, last, t0, T)
                t0 = t0 + T


cdef void run(const Call* call, Py_ssize_t unit) noexcept nogil:
    """A chunk of a group's panels, piece ``unit`` of all."""
    cdef Py_ssize_t low = 0, high = call.n_groups, middle, first, last, p0, p1
    cdef const Group* group
    cdef int i
    cdef const Part* w
    while high - low > 1:
        middle = (low + high) // 2
        if unit < call.groups[middle].first_unit:
            high = middle
        else:
            low = middle
    group = call.groups + low
    first = (unit - group.first_unit) * call.chunk
    last = min(first + call.chunk, group.stack.n_panels)
    for i in range(group.stack.n_parts):
        w = &group.stack.parts[i]
        p0 = max(first, w.first_panel) - w.first_panel
        p1 = min(last - w.first_panel, (w.rows + 15) // 16)
        if p0 < p1:
            panels(w, p0, p1, group)


cdef void multiply(Call* call, Group* groups, Py_ssize_t n_groups, char* scratch, int n_threads,
                   Py_ssize_t least=400000) noexcept nogil:
    """Multiplies groups whose matrices, rows, inputs and outputs are set.

    Calls of fewer than ``least`` products stay on one thread.
    """
    cdef const Stack* stack
    cdef Py_ssize_t n_fills = 0, n_panels = 0, n_values = 0, n_products = 0, n_units = 0, i
    cdef int form, threads
    scratch = <char*>((<uintptr_t>scratch + 63) & ~<uintptr_t>63)
    for i in range(n_groups):
        stack = groups[i].stack
        for form in range(3):
            if stack.takes[form]:
                groups[i].forms[form].base = scratch
                scratch += form_layout(form, groups[i].count, stack.cols, &groups[i].forms[form])
        groups[i].first_fill = n_fills
        n_fills += (groups[i].count + FILL_ROWS - 1) // FILL_ROWS * n_pieces(stack.cols)
        n_panels += stack.n_panels
        n_values += groups[i].count * stack.cols
        n_products += groups[i].count * stack.cols * stack.rows
    call.groups, call.n_groups = groups, n_groups
    call.chunk = chunk_panels(n_panels, groups[n_groups - 1].stack.parts[0].stride, n_threads)
    for i in range(n_groups):
        groups[i].first_unit = n_units
        n_units += (groups[i].stack.n_panels + call.chunk - 1) // call.chunk
    # starting threads costs microseconds: a few hundred thousand multiplications stay on one
    threads = n_threads if n_products >= least and n_threads > 1 else 1
    if threads == 1 or n_values < 4 * FILL_COLS:
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


cdef const uint8_t* part_data(const Part* part, cnp.ndarray data) except NULL:
    """The panels of a matrix: ValueError unless the array holds them and is aligned."""
    cdef const uint8_t* found = u8_data(data, (part.rows + 15) // 16 * part.stride, "matrix")
    if <uintptr_t>found & 63:
        raise ValueError(f"matrix: expected data aligned to 64 bytes, got address {<uintptr_t>found:#x}")
    return found


cdef class Linear:
    """Matrices that share one input, stacked by rows.

    Parameters
    ----------
    matrices : sequence of (layout id, rows, data), ``data`` a uint8 array of packed panels
        (see `pack`), 64-byte aligned; None for all of them: `give` brings the panels.
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
    cdef object bias
    cdef readonly tuple panels   # the arrays of the panels; None: not given
    cdef bint late               # whether `give` may exchange them
    cdef Py_ssize_t running      # products that read them now

    def __cinit__(self, matrices, Py_ssize_t cols, bias=None):
        cdef Stack* stack = &self.stack
        cdef Part* part
        cdef Form f
        cdef int form, layout
        cdef Py_ssize_t rows
        cdef cnp.ndarray data
        given = []
        self.bias = bias
        self.cols = stack.cols = cols
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
            if stack.n_parts and (data is None) != self.late:
                raise ValueError("matrices: expected the panels of all or of none, got some")
            self.late = data is None
            if not self.late:
                part.data = part_data(part, data)
                given.append(data)
            part.first_panel = stack.n_panels
            part.first_row = stack.rows
            stack.n_panels += (rows + 15) // 16
            stack.rows += rows
            stack.takes[part.form] = True
            stack.n_parts += 1
        self.panels = None if self.late else tuple(given)
        if stack.n_parts == 0:
            raise ValueError(f"matrices: expected 1 to {MAX_PARTS}, got 0")
        self.rows = stack.rows
        for form in range(3):
            if stack.takes[form]:
                self.token_bytes += form_layout(form, 1, cols, &f)
        if bias is not None:
            stack.bias = f32_data(bias, self.rows, "bias")

    def give(self, panels):
        """Exchanges the panels of a `Linear` that was made without.

        Parameters
        ----------
        panels : sequence of uint8 arrays, one for each matrix, 64-byte aligned; None takes the panels away.

        Raises
        ------
        ValueError
            An array is too short or misaligned, a product is running in another thread, or the panels were
            given when this was made.
        """
        cdef const uint8_t* data[MAX_PARTS]
        cdef cnp.ndarray array
        cdef tuple held = None if panels is None else tuple(panels)
        cdef int i
        if not self.late:
            raise ValueError("panels: expected a Linear made without panels, got one made with them")
        if self.running:
            raise ValueError(f"panels: expected no running product, got {self.running}")
        if held is not None:
            if len(held) != self.stack.n_parts:
                raise ValueError(f"panels: expected {self.stack.n_parts} arrays, got {len(held)}")
            for i in range(self.stack.n_parts):
                array = held[i]
                data[i] = part_data(&self.stack.parts[i], array)
        for i in range(self.stack.n_parts):
            self.stack.parts[i].data = NULL if held is None else data[i]
        self.panels = held

    def scratch_bytes(self, Py_ssize_t n):
        """Bytes of scratch that ``n`` tokens need, in one group or in many (`apply_groups`)."""
        if not fits(n, self.token_bytes, PY_SSIZE_T_MAX - 64):
            raise ValueError(f"n: expected an integer >= 0 whose scratch fits the memory, got {n}")
        return n * self.token_bytes + 64

    def apply(self, cnp.ndarray x, cnp.ndarray out, cnp.ndarray scratch, int n_threads, bint accumulate=False,
              tuple plans=()):
        """out = x W^T (+ bias), or out + that, and what ``plans`` add.

        Parameters
        ----------
        x : float32 (n, cols)
        out : float32 (n, rows)
        scratch : uint8, at least ``scratch_bytes(n)``, and those of the plans
        n_threads : threads to use, at least 1
        plans : `LowRankPlan`s, added one after the other
        """
        cdef Group group
        cdef Call call
        group.x, group.x_ld, group.rows = f32_rows(x, 0, self.cols, "x"), self.cols, NULL
        cdef Py_ssize_t n = x.shape[0]
        cdef char* free = <char*>u8_out(scratch, self.scratch_bytes(n) + plan_bytes(plans), "scratch")
        group.stack, group.count = &self.stack, n
        group.out, group.out_ld = f32_rows_out(out, n, self.rows, "out"), self.rows
        group.accumulate = accumulate
        check_threads(n_threads)
        check_apart(x, out, "x, out")
        check_apart(x, scratch, "x, scratch")
        check_apart(out, scratch, "out, scratch")
        check_given(self)
        self.running += 1
        try:
            if plans:
                multiply_adapted(&call, &group, 1, plans, group.x, NULL, n, group.out, free, n_threads)
            elif n:
                with nogil:
                    multiply(&call, &group, 1, free, n_threads)
        finally:
            self.running -= 1


cdef int check_given(Linear linear) except -1:
    """Raises ValueError unless the Linear has its panels."""
    if linear.panels is None:
        raise ValueError("panels: expected a Linear that was given its panels, got one without")
    return 0


cdef int check_kept(Linear linear, str name) except -1:
    """Raises ValueError unless the Linear keeps its panels as long as it lives."""
    if linear.late:
        raise ValueError(f"{name}: expected a Linear made with its panels, got one made without")
    return 0


def apply_groups(list linears not None, cnp.ndarray counts, cnp.ndarray x, cnp.ndarray rows, cnp.ndarray out,
                 cnp.ndarray scratch, int n_threads, tuple plans=()):
    """out[i] = x[rows[i]] W^T (+ bias) and what ``plans`` add, W being another matrix for each group of neighbours i.

    One call for all groups keeps every thread busy though each matrix may be small; each row comes out as
    its `Linear` alone would have it.

    Parameters
    ----------
    linears : a `Linear` for each group, all of one shape.
    counts : int32 (groups,), rows of each, at least 1.
    x : float32 (n, cols)
    rows : int32 (m,), m the sum of ``counts``; None: x has these m rows.
    out : float32 (m, rows of a matrix)
    scratch : uint8, at least ``scratch_bytes(m)`` of the matrix that needs most, and those of the plans
    n_threads : threads to use, at least 1
    plans : `LowRankPlan`s over the rows of out, added one after the other

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
    cdef const float* xp
    cdef const int* taken = NULL
    cdef float* outp
    cdef char* free
    check_threads(n_threads)
    if not 1 <= n_groups <= MAX_GROUPS:
        raise ValueError(f"linears: expected 1 to {MAX_GROUPS} groups, got {n_groups}")
    for i in range(n_groups):
        if not isinstance(held[i], Linear):
            raise TypeError(f"linears: expected objects of Linear, got {type(held[i])}")
    first = held[0]
    xp = f32_rows(x, 0, first.cols, "x")
    n = x.shape[0]
    if rows is not None:
        taken = i32_data(rows, 0, "rows")
    m = left = n if rows is None else cnp.PyArray_SIZE(rows)
    outp = f32_rows_out(out, m, first.rows, "out")
    for i in range(n_groups):
        linear = held[i]
        check_given(linear)
        if (linear.rows, linear.cols, linear.stack.n_panels) != (first.rows, first.cols, first.stack.n_panels):
            raise ValueError(f"linears: expected shapes of {first.rows} x {first.cols}, "
                             f"got {linear.rows} x {linear.cols}")
        if not 1 <= cp[i] <= left:
            raise ValueError(f"counts: expected 1 to {left} rows for group {i}, got {cp[i]}")
        groups[i].stack, groups[i].count = &linear.stack, cp[i]
        groups[i].rows = NULL if taken == NULL else taken + (m - left)
        groups[i].x, groups[i].x_ld = xp if taken != NULL else xp + (m - left) * first.cols, first.cols
        groups[i].out, groups[i].out_ld = outp + (m - left) * first.rows, first.rows
        groups[i].accumulate = False
        left -= cp[i]
        needed += linear.scratch_bytes(cp[i]) - 64
    if left:
        raise ValueError(f"counts: expected {m} rows in all, got {m - left}")
    check_rows(taken, m, n)
    free = <char*>u8_out(scratch, needed + plan_bytes(plans), "scratch")
    check_apart(x, out, "x, out")
    check_apart(x, scratch, "x, scratch")
    check_apart(out, scratch, "out, scratch")
    for linear in held:
        linear.running += 1
    try:
        if plans:
            multiply_adapted(&call, groups, n_groups, plans, xp, taken, m, outp, free, n_threads)
        else:
            with nogil:
                multiply(&call, groups, n_groups, free, n_threads)
    finally:
        for linear in held:
            linear.running -= 1


cdef Py_ssize_t chunk_panels(Py_ssize_t n_panels, Py_ssize_t stride, int n_threads) noexcept nogil:
    """Panels handed out at a time: about 64 KB, and the four that a float tile takes together, but at
    least four chunks a thread, so that a thread which is kept waiting by another process does not hold up
    the rest."""
    cdef Py_ssize_t chunk = max(4, 65536 // stride)
    return max(1, min(chunk, n_panels // (4 * n_threads)))


cdef int check_rows(const int* rows, Py_ssize_t n_rows, Py_ssize_t n) except -1:
    """Raises ValueError unless each of ``rows``, which may be NULL, is one of the ``n`` of x."""
    cdef Py_ssize_t i
    if rows != NULL:
        for i in range(n_rows):
            if not 0 <= rows[i] < n:
                raise ValueError(f"rows: expected 0 to {n - 1}, got {rows[i]}")
    return 0


cdef class LowRank:
    """What an adapter adds to the products of one `Linear`: y[rows of part i] += B_i (f (A x)[columns of part i]).

    Parameters
    ----------
    a : the matrices A of all parts, stacked by rows: (ranks, cols).
    parts : sequence of (B, column, row): a `Linear` (rows of the part, its rank), where its columns begin among
        the ranks, and where its rows begin in y.
    factors : float64 (ranks,), f but for the scale of the call.

    Raises
    ------
    ValueError
        A part reaches beyond the ranks or has columns that are no multiple of its blocks, or a `Linear` was
        made without its panels.
    """

    cdef readonly Py_ssize_t cols, ranks, rows
    cdef Linear a
    cdef tuple parts
    cdef Py_ssize_t columns[MAX_PARTS]
    cdef Py_ssize_t first_rows[MAX_PARTS]
    cdef Py_ssize_t n_parts
    cdef const double* factors
    cdef object owner

    def __cinit__(self, Linear a not None, parts, cnp.ndarray factors):
        cdef Py_ssize_t column, row
        cdef Linear b
        held = []
        check_kept(a, "a")
        for b, column, row in parts:
            if b is None:
                raise TypeError("parts: expected objects of Linear, got None")
            if self.n_parts == MAX_PARTS:
                raise ValueError(f"parts: expected 1 to {MAX_PARTS}, got more")
            if column < 0 or column > a.rows - b.cols:
                raise ValueError(f"parts: expected columns 0 to {a.rows - b.cols}, got {column}")
            if row < 0 or row > PY_SSIZE_T_MAX // 8 - b.rows:
                raise ValueError(f"parts: expected a row >= 0, got {row}")
            check_kept(b, "parts")
            self.columns[self.n_parts], self.first_rows[self.n_parts] = column, row
            self.rows = max(self.rows, row + b.rows)
            self.n_parts += 1
            held.append(b)
        if not held:
            raise ValueError(f"parts: expected 1 to {MAX_PARTS}, got 0")
        self.parts, self.a = tuple(held), a
        self.cols, self.ranks = a.cols, a.rows
        self.factors = f64_data(factors, a.rows, "factors")
        self.owner = factors

    def scratch_bytes(self, Py_ssize_t n):
        """Bytes of scratch that ``n`` tokens need, in one group or in many."""
        if not fits(n, self.token_bytes(), PY_SSIZE_T_MAX - 192):
            raise ValueError(f"n: expected an integer >= 0 whose scratch fits the memory, got {n}")
        return n * self.token_bytes() + 192

    cdef Py_ssize_t token_bytes(self):
        """Bytes of a token: its values between A and B, then what A needs, or B afterwards."""
        cdef Py_ssize_t needed = 0
        cdef Linear b
        for b in self.parts:
            needed += b.token_bytes
        return 4 * self.ranks + max(needed, self.a.token_bytes)


cdef class LowRankPlan:
    """Which rows of a product take which adapter, each row one at most.

    Parameters
    ----------
    factors : a `LowRank` for each group of neighbouring rows, all of the same ``cols``.
    scales : float64 (groups,), s.
    starts : int32 (groups,), the first row of each group; ascending, groups do not overlap.
    counts : int32 (groups,), rows of each, at least 1.

    Raises
    ------
    ValueError
        Groups that are not in order, or factors of different ``cols``.
    """

    cdef readonly Py_ssize_t cols, rows, n_groups, end  # end: of the last group's rows
    cdef readonly Py_ssize_t scratch_bytes
    cdef tuple factors
    cdef const double* scales
    cdef const int* starts
    cdef const int* counts
    cdef tuple owners

    def __cinit__(self, list factors not None, cnp.ndarray scales, cnp.ndarray starts, cnp.ndarray counts):
        cdef Py_ssize_t i
        cdef LowRank factor
        self.factors, self.n_groups = tuple(factors), len(factors)
        f64_data(scales, self.n_groups, "scales")
        i32_data(starts, self.n_groups, "starts")
        i32_data(counts, self.n_groups, "counts")
        if not cnp.PyArray_SIZE(scales) == cnp.PyArray_SIZE(starts) == cnp.PyArray_SIZE(counts) == self.n_groups:
            raise ValueError(f"scales, starts, counts: expected {self.n_groups} of each, as there are factors")
        self.owners = scales, starts, counts = scales.copy(), starts.copy(), counts.copy()
        self.scales = f64_data(scales, 0, "scales")
        self.starts = i32_data(starts, 0, "starts")
        self.counts = i32_data(counts, 0, "counts")
        if not self.factors:
            raise ValueError("factors: expected at least 1 group, got 0")
        for i in range(self.n_groups):
            if not isinstance(self.factors[i], LowRank):
                raise TypeError(f"factors: expected objects of LowRank, got {type(self.factors[i])}")
            factor = self.factors[i]
            if i == 0:
                self.cols = factor.cols
            if factor.cols != self.cols:
                raise ValueError(f"factors: expected {self.cols} columns, got {factor.cols}")
            if self.starts[i] < self.end or self.counts[i] < 1:
                raise ValueError(f"starts: expected groups in order, got {self.counts[i]} rows from {self.starts[i]}")
            self.end = <Py_ssize_t>self.starts[i] + self.counts[i]
            self.rows = max(self.rows, factor.rows)
            self.scratch_bytes += factor.scratch_bytes(self.counts[i])


cdef Py_ssize_t plan_bytes(tuple plans) except -1:
    """Scratch of all plans."""
    cdef Py_ssize_t needed = 0
    if plans is None:
        raise TypeError("plans: expected a tuple, got None")
    for plan in plans:
        if not isinstance(plan, LowRankPlan):
            raise TypeError(f"plans: expected objects of LowRankPlan, got {type(plan)}")
        needed += (<LowRankPlan>plan).scratch_bytes
    return needed


cdef int multiply_adapted(Call* call, const Group* products, Py_ssize_t n_products, tuple plans, const float* x,
                          const int* rows, Py_ssize_t n, float* out, char* free, int n_threads) except -1:
    """The products, and for each group of each plan out[i] += B (s f A x[rows[i]]).

    All A x are computed beside the products. A row has the same bits in every batch: its sums go in the order of
    the columns, and plans are added one after the other.
    """
    cdef Py_ssize_t width = products[0].stack.rows, cols = products[0].stack.cols
    cdef Py_ssize_t n_groups = 0, n_second = 0, i, j, k, g
    cdef LowRankPlan plan
    cdef LowRank factor
    cdef Linear b
    cdef Group* first
    cdef Group* second
    cdef float* h = <float*>((<uintptr_t>free + 63) & ~<uintptr_t>63)
    for plan in plans:
        if plan.cols != cols or plan.rows > width or plan.end > n:
            raise ValueError(f"plans: expected at most {n} rows, {cols} columns to {width}, "
                             f"got {plan.end} rows, {plan.cols} columns to {plan.rows}")
        n_groups += plan.n_groups
        n_second = max(n_second, plan.n_groups * MAX_PARTS)
    first = <Group*>malloc((n_groups + n_products + n_second) * sizeof(Group))
    if first == NULL:
        raise MemoryError()
    second = first + n_groups + n_products
    try:
        g = 0
        for plan in plans:
            for i in range(plan.n_groups):
                factor = plan.factors[i]
                first[g].stack, first[g].count = &factor.a.stack, plan.counts[i]
                first[g].rows = NULL if rows == NULL else rows + plan.starts[i]
                first[g].x, first[g].x_ld = x if rows != NULL else x + plan.starts[i] * cols, cols
                first[g].out, first[g].out_ld, first[g].accumulate = h, factor.ranks, False
                h += plan.counts[i] * factor.ranks
                g += 1
        memcpy(first + g, products, n_products * sizeof(Group))
        free = <char*>h
        with nogil:
            multiply(call, first, n_groups + n_products, free, n_threads)
        g = 0
        for plan in plans:
            n_second = 0
            for i in range(plan.n_groups):
                factor, h = plan.factors[i], first[g].out
                for j in range(plan.counts[i]):
                    for k in range(factor.ranks):
                        h[j * factor.ranks + k] *= <float>(plan.scales[i] * factor.factors[k])
                for j in range(factor.n_parts):
                    b = factor.parts[j]
                    second[n_second].stack, second[n_second].count = &b.stack, plan.counts[i]
                    second[n_second].x, second[n_second].x_ld = h + factor.columns[j], factor.ranks
                    second[n_second].rows, second[n_second].accumulate = NULL, True
                    second[n_second].out = out + plan.starts[i] * width + factor.first_rows[j]
                    second[n_second].out_ld = width
                    n_second += 1
                g += 1
            with nogil:
                multiply(call, second, n_second, free, n_threads, 100000)
    finally:
        free_memory(first)
    return 0
