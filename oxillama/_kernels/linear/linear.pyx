"""Packed matrices times activations: y = W x for one token or many, in one kernel.

`Linear` holds the matrices that share an input (q, k and v; gate and up); their formats may differ.
`apply` first quantizes the tokens into tiles (8, 4, 2 or 1 of them, interleaved as the tile
bodies of tiles.pxd read them), then distributes the panels over the threads. The bits of a result depend
neither on the thread that computes it nor on the token's place in a tile.
"""

cimport numpy as cnp
from cython.parallel cimport parallel, prange, threadid
from libc.stdint cimport uint8_t, uintptr_t
from libc.stdlib cimport free as free_memory, malloc
from libc.string cimport memset

from oxillama._kernels.arrays cimport (
    PY_SSIZE_T_MAX, check_apart, check_threads, f32_data, f32_rows, f32_rows_out, fits, i32_data,
    u8_data, u8_out)
from oxillama._kernels.debugging cimport ensure
from oxillama._kernels.linear.activations cimport (
    A_BLOCKS, A_PAIRS, A_ROW, FORMS, Form, fill_tile, form_layout, form_number, form_tile, is_float, is_rows, is_tiles,
    largest_tile, ox_use_tiles, tile_size)
from oxillama._kernels.linear.tiles cimport Job
from oxillama._kernels.packing.formats cimport *
from oxillama._kernels.packing.layouts cimport block_cols, panel_bytes
from oxillama._kernels.simd.bf16 cimport has_bf16_dot, is_bf16_dot, is_bf16_dot_faster, ox_cpu_has
from oxillama._kernels.simd.simd cimport *

from oxillama.base.formats import LONGEST_ROW

cnp.import_array()

cdef extern from "nodes.h":
    enum:
        OX_MAX_NODES  # of `use_nodes`
        OX_NODE_CPUS
    const int ox_nodes
    const int ox_node_threads
    void ox_use_nodes(int nodes, const int* node_of, int n_cpus, int n_threads)
    int ox_enter_node(int t, int nodes) nogil
    long long ox_add(long long* counter, long long n) nogil

cdef enum:
    MAX_PARTS = 16
    MAX_GROUPS = 512
    FILL_ROWS = 16    # tokens that a thread quantizes at a time, a multiple of every tile size
    FILL_COLS = 1024  # columns that it quantizes at a time, a multiple of every block size
    FEW_TILES = 16    # maximum number of full tiles that each prefetch a share of the following panels
    UNPACKED_BYTES = 1 << 17  # unpacked panels, which stay in the second-level cache
    STRIP_BYTES = 1 << 18  # panels that a few tiles process together: these and the next ones stay in the cache


cdef bint unpacks_quick_codes = True  # `use_unpacked`
cdef long long own_units = 0, other_units = 0  # `units_taken`


cdef struct Part:
    const uint8_t* data
    int layout
    int form          # form of its activations
    Py_ssize_t rows
    Py_ssize_t first_panel
    Py_ssize_t first_row
    Py_ssize_t stride  # bytes of a panel
    float scale        # factor of the products


# All matrices of a `Linear`.
cdef struct Stack:
    Part parts[MAX_PARTS]
    int n_parts
    bint takes[FORMS]
    Py_ssize_t rows, cols, n_panels
    const float* bias


# Rows of a batch that one `Linear` multiplies. They may be scattered in x, but are contiguous in the output.
cdef struct Group:
    const Stack* stack
    const float* x
    Py_ssize_t x_ld        # floats from one row of x to the next
    const int* rows        # indices in x, one for each row of the group; NULL: 0, 1, ...
    float* out
    Py_ssize_t out_ld      # floats from one row of out to the next
    bint accumulate
    Py_ssize_t count
    Py_ssize_t first_fill  # units of `fill` in the groups before this one
    Py_ssize_t first_unit  # units of `run` in the groups before this one
    Form forms[FORMS]


# A call of `multiply`: every group's rows times its matrices.
cdef struct Call:
    const Group* groups
    Py_ssize_t n_groups
    Py_ssize_t chunk       # panels of a unit of `run`
    Py_ssize_t skip        # panels that other threads compute between two chunks of one thread
    uint8_t* products      # (threads, products_bytes), for unpacked panels; NULL: none are
    Py_ssize_t products_bytes


# The units of a node in a call, a cache line that its threads count in.
cdef struct NodeWork:
    long long taken        # may exceed `units`: threads that find none count, too
    long long units
    long long own, others  # units, of this node and of others, that threads of this node have run
    long long unused[4]


include "dispatch.pxi"  # run_job, run_unpacked, run_amx


cdef inline int tile_at(int form, Py_ssize_t t0, Py_ssize_t n, int most) noexcept nogil:
    """Tokens of the tile at token ``t0`` of ``n``, the largest of which has ``most``."""
    if most <= OX_TILE:
        return tile_size(n - t0)
    if is_rows(form):  # the last tile begins earlier, so that it is full
        return most if n - t0 > 16 else 16
    return 32 if n - t0 >= 32 else 16 if n - t0 >= 16 else tile_size(n - t0)


cdef inline bint shares_codes(int layout, Py_ssize_t n_tiles) noexcept nogil:
    """Whether so many full tiles share unpacked codes."""
    return 0 < unpacked_from(layout) <= n_tiles and (unpacks_quick_codes or not is_measured(layout))


cdef inline Py_ssize_t room_bytes(const Group* group) noexcept nogil:
    """Bytes for what one thread computes once for all tiles; 0: nothing."""
    cdef const Part* part = group.stack.parts
    cdef int _i
    for _i in range(group.stack.n_parts):
        if (shares_codes(part.layout, group.count // OX_TILE)
                or is_tiles(part.form) and largest_tile(part.form, group.count, True) > OX_TILE):
            return unpacked_panels(group.stack.cols) * 16 * group.stack.cols
        part += 1
    return 0


cdef inline void run_tile(int layout, int T, bint unpacks, const Job* job) noexcept nogil:
    """Some panels of a matrix times a tile of T tokens."""
    if T > OX_TILE:
        run_amx(layout, T == 32, job)
    elif unpacks and T == OX_TILE:
        run_unpacked(layout, job)
    else:
        run_job(layout, T, job)


cdef inline void amx_shape(const Part* w, bint shared, int columns) noexcept nogil:
    """Gives the tile registers so many columns, if blocks of 32 columns are multiplied in them."""
    if shared and w.form == A_BLOCKS:
        amx_columns(columns)


cdef inline Py_ssize_t strip_panels(const Part* w, Py_ssize_t cols, bint unpacks, bint shared,
                                    Py_ssize_t others) noexcept nogil:
    """Panels of a strip; ``others`` if nothing is computed once for all tiles."""
    if unpacks:
        return unpacked_panels(cols)
    return others if not shared else 2 if w.form == A_BLOCKS else 1


cdef inline Py_ssize_t unpacked_panels(Py_ssize_t cols) noexcept nogil:
    """Panels that are unpacked together."""
    return max(2, UNPACKED_BYTES // (16 * cols))


cdef void panels(const Part* w, Py_ssize_t p0, Py_ssize_t p1, const Group* group, Py_ssize_t skip,
                 uint8_t* products) noexcept nogil:
    """Multiplies panels p0..p1 of one matrix with all tokens of a group.

    Many tiles run over all panels in turn, which stay in the cache. A few tiles run over a strip of panels at a time,
    and each tile prefetches its share of the next strip, so that reading and multiplying overlap; the ``skip`` panels
    after the last strip belong to other threads. Tiles of r8 and b8 multiply as fast as the memory reads: many of them
    prefetch the next panels, too, a single one for itself. ``products``: see `Job`.
    """
    cdef int most = largest_tile(w.form, group.count, products != NULL)
    cdef bint shared = is_tiles(w.form) and most > OX_TILE
    cdef Py_ssize_t n_tiles = group.count // most
    cdef bint many = n_tiles * most > FEW_TILES * OX_TILE
    cdef bint strips = not shared and not is_float(w.form) and OX_PANELS * w.stride <= STRIP_BYTES
    cdef bint unpacks = not shared and products != NULL and shares_codes(w.layout, n_tiles)
    cdef bint few = n_tiles > 0 and not many and strips or unpacks
    cdef bint leads = OX_TILE == 8 and is_rows(w.form) and n_tiles <= 1
    cdef bint asks = is_rows(w.form) and many or few and not leads
    cdef Py_ssize_t strip = strip_panels(w, group.stack.cols, unpacks, shared, OX_PANELS if few else p1 - p0)
    cdef Py_ssize_t p = p0, t0, first, ahead
    cdef Job job
    cdef int T
    ensure(0 <= p0 < p1 <= (w.rows + 15) // 16)
    job.data, job.stride, job.rows, job.cols = w.data, w.stride, w.rows, group.stack.cols
    job.ld, job.accumulate, job.dots, job.scale = group.out_ld, group.accumulate, w.form == A_PAIRS, w.scale
    job.products = products
    job.bias = <const float*>NULL if group.stack.bias == NULL else group.stack.bias + w.first_row
    amx_shape(w, shared, 32)
    while p < p1:
        job.first, job.last = p, min(p + strip, p1)
        ahead = job.last if job.last < p1 else p1 + skip
        t0 = 0
        while t0 < group.count:
            T = tile_at(w.form, t0, group.count, most)
            first = min(t0, group.count - T)
            job.done = t0 - first
            form_tile(w.form, &group.forms[w.form], first, group.stack.cols, &job.tile)
            job.out = group.out + first * job.ld + w.first_row
            job.cold = t0 == 0 and (p == p0 or leads or shared or unpacks)
            job.next, job.step = w.data, 0
            if asks and T == most and t0 // most < n_tiles and ahead + strip <= (w.rows + 15) // 16:
                job.step = w.stride // (n_tiles * (job.cols // 32)) + 1
                job.next = w.data + ahead * w.stride + t0 // most * (strip * w.stride // n_tiles)
            run_tile(w.layout, T, unpacks, &job)
            t0 = first + T
        p = job.last
    amx_shape(w, shared, 64)


cdef inline Py_ssize_t piece_cols(const Stack* stack) noexcept nogil:
    """Columns of a row that a thread quantizes at a time; the whole row if r8 needs one scale for it."""
    return stack.cols if stack.takes[A_ROW] else FILL_COLS


cdef inline Py_ssize_t n_pieces(const Stack* stack) noexcept nogil:
    """Number of such pieces in a row."""
    return (stack.cols + piece_cols(stack) - 1) // piece_cols(stack)


cdef void fill(const Call* call, Py_ssize_t unit) noexcept nogil:
    """Converts unit ``unit``, up to FILL_ROWS tokens and FILL_COLS columns of a group, to the forms of its matrices."""
    cdef Py_ssize_t pieces, begin, t0, end, first, last, row
    cdef const Group* group = call.groups + call.n_groups - 1
    cdef const float* x[FILL_ROWS]
    cdef int form, T
    cdef bint tiles  # of AMX
    while unit < group.first_fill:
        group -= 1
    ensure(group >= call.groups)
    unit -= group.first_fill
    pieces = n_pieces(group.stack)
    end = min(group.count, (unit // pieces + 1) * FILL_ROWS)
    first = unit % pieces * piece_cols(group.stack)
    last = min(group.stack.cols, first + piece_cols(group.stack))
    begin = unit // pieces * FILL_ROWS
    for row in range(begin, end):
        ensure(group.rows == NULL or group.rows[row] >= 0)
        x[row - begin] = group.x + (row if group.rows == NULL else group.rows[row]) * group.x_ld
    for form in range(FORMS):
        if group.stack.takes[form]:
            tiles = is_tiles(form) and largest_tile(form, group.count, call.products != NULL) > OX_TILE
            t0 = begin
            while t0 < end:
                T = 16 if tiles and end - t0 == 16 else tile_size(end - t0)
                fill_tile(form, &group.forms[form], group.stack.cols, x + (t0 - begin), first, last, t0, T)
                t0 = t0 + T


cdef void run(const Call* call, Py_ssize_t unit, int thread) noexcept nogil:
    """Multiplies unit ``unit``, a chunk of a group's panels, with all rows of the group, in thread ``thread``."""
    cdef Py_ssize_t low = 0, high = call.n_groups, middle, first, last, p0, p1
    cdef const Group* group
    cdef int i
    cdef const Part* w
    cdef uint8_t* products = NULL if call.products == NULL else call.products + thread * call.products_bytes
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
            panels(w, p0, p1, group, call.skip, products)


cdef inline Py_ssize_t n_units_of(const Group* group, Py_ssize_t chunk) noexcept nogil:
    """Units of `run` of a group."""
    return (group.stack.n_panels + chunk - 1) // chunk


cdef inline Py_ssize_t first_of(int node, int nodes, Py_ssize_t n_units) noexcept nogil:
    """The first of a group's units that belong to a node: unit u belongs to node u * nodes // n_units."""
    return (node * n_units + nodes - 1) // nodes


cdef Py_ssize_t run_node(const Call* call, NodeWork* work, int node, int nodes, int thread) noexcept nogil:
    """Runs the units of a node that no other thread takes; returns how many."""
    cdef Py_ssize_t before = 0, end, first, n = 0, i
    cdef const Group* group = call.groups
    if ox_add(&work.taken, 0) >= work.units:
        return 0
    i = ox_add(&work.taken, 1)
    while i < work.units:
        first = first_of(node, nodes, n_units_of(group, call.chunk))
        end = before + first_of(node + 1, nodes, n_units_of(group, call.chunk)) - first
        if i < end:
            run(call, group.first_unit + first + i - before, thread)
            i = ox_add(&work.taken, 1)
            n += 1
        else:
            before = end
            group += 1
    return n


cdef void run_nodes(const Call* call, NodeWork* work, int nodes, int thread) noexcept nogil:
    """Runs units in a thread of a team: first of its own node, then what threads of the next nodes have left."""
    cdef int own = ox_enter_node(thread, nodes), node = own, _i
    ox_add(&work[own].own, run_node(call, work + own, own, nodes, thread))
    for _i in range(1, nodes):
        node = node + 1 if node + 1 < nodes else 0
        ox_add(&work[own].others, run_node(call, work + node, node, nodes, thread))


cdef void multiply_on_nodes(const Call* call, int nodes, bint tiles, int threads) noexcept nogil:
    """Runs all units of a call, each in the node that has its panels, unless other nodes have no work any more."""
    cdef NodeWork room[OX_MAX_NODES + 1]
    cdef NodeWork* work = <NodeWork*>((<uintptr_t>room + 63) & ~<uintptr_t>63)
    cdef Py_ssize_t i
    cdef int node
    memset(work, 0, nodes * sizeof(NodeWork))
    for node in range(nodes):
        for i in range(call.n_groups):
            work[node].units += (first_of(node + 1, nodes, n_units_of(&call.groups[i], call.chunk))
                                 - first_of(node, nodes, n_units_of(&call.groups[i], call.chunk)))
    with parallel(num_threads=threads):
        if tiles:
            amx_configure()
        run_nodes(call, work, nodes, threadid())
        if tiles:
            amx_release()
    for node in range(nodes):
        ox_add(&own_units, work[node].own)
        ox_add(&other_units, work[node].others)


cdef void multiply(Call* call, Group* groups, Py_ssize_t n_groups, char* scratch, int n_threads,
                   Py_ssize_t least=400000) noexcept nogil:
    """Multiplies groups whose matrices, rows, inputs and outputs are set.

    Fewer than ``least`` products are computed on one thread.
    """
    cdef const Stack* stack
    cdef Py_ssize_t n_fills = 0, n_panels = 0, n_values = 0, n_products = 0, n_units = 0, i
    cdef int form, threads, nodes = ox_nodes
    cdef bint tiles = False  # whether the threads need the tile registers of AMX
    cdef void* room = NULL
    scratch = <char*>((<uintptr_t>scratch + 63) & ~<uintptr_t>63)
    call.products, call.products_bytes = NULL, 0
    for i in range(n_groups):
        stack = groups[i].stack
        for form in range(FORMS):
            if stack.takes[form]:
                if largest_tile(form, groups[i].count, True) > OX_TILE:
                    tiles = True
                groups[i].forms[form].base = scratch
                scratch += form_layout(form, groups[i].count, stack.cols, &groups[i].forms[form])
        call.products_bytes = max(call.products_bytes, room_bytes(&groups[i]))
        groups[i].first_fill = n_fills
        n_fills += (groups[i].count + FILL_ROWS - 1) // FILL_ROWS * n_pieces(stack)
        n_panels += stack.n_panels
        n_values += groups[i].count * stack.cols
        n_products += groups[i].count * stack.cols * stack.rows
    call.groups, call.n_groups = groups, n_groups
    call.chunk = chunk_panels(n_panels, &groups[n_groups - 1], n_threads)
    for i in range(n_groups):
        groups[i].first_unit = n_units
        n_units += n_units_of(&groups[i], call.chunk)
    # starting threads costs microseconds: a few hundred thousand multiplications are faster on one
    threads = n_threads if n_products >= least and n_threads > 1 else 1
    call.skip = call.chunk * (min(threads, (ox_node_threads + nodes - 1) // nodes) - 1 if nodes > 1 else threads - 1)
    if call.products_bytes:  # without memory for them the vectors multiply
        room = malloc(threads * call.products_bytes + 64)
        if room != NULL:
            call.products = <uint8_t*>((<uintptr_t>room + 63) & ~<uintptr_t>63)
    if threads == 1 or n_values < 4 * FILL_COLS:
        for i in range(n_fills):
            fill(call, i)
    else:
        for i in prange(n_fills, schedule="dynamic", num_threads=threads):
            fill(call, i)
    if threads == 1:
        if tiles:
            amx_configure()
        for i in range(n_units):
            run(call, i, 0)
        if tiles:
            amx_release()
    elif nodes > 1:
        multiply_on_nodes(call, nodes, tiles, threads)
    else:
        with parallel(num_threads=threads):
            if tiles:
                amx_configure()
            for i in prange(n_units, schedule="dynamic"):
                run(call, i, threadid())
            if tiles:
                amx_release()
    free_memory(room)


def use_tiles(int rows, int products, int blocks) -> None:
    """Sets the tokens of the smallest products in the tile registers of AMX; other targets have none.

    No bit depends on it. No product may run meanwhile.

    Args:
        rows: for rows rounded to int8, at least 16 (the default).
        products: for formats with integer scales of sub-blocks, at least 32 (the default).
        blocks: for formats with a scale for each 32 columns, at least 32 (the default).

    Raises:
        ValueError: a number is too small, or above 2^30.
    """
    if rows < 16 or products < 32 or blocks < 32 or max(rows, products, blocks) > 1 << 30:
        raise ValueError("rows, products, blocks: expected at least 16, 32 and 32, and at most 2^30, "
                         f"got {rows}, {products} and {blocks}")
    ox_use_tiles(rows, products, blocks)


def use_unpacked(bint quick) -> None:
    """Sets whether unsigned 4-bit codes with sub-blocks, which one or two instructions unpack, are unpacked once for
    all tokens of a long product, as other codes are. No bit depends on it. No product may run meanwhile."""
    global unpacks_quick_codes
    unpacks_quick_codes = quick


def use_nodes(cnp.ndarray nodes: np.ndarray | None, int n_threads) -> None:
    """Splits the units of products over the NUMA nodes of a machine: of a matrix's n units, node k of N has those with
    u * N // n = k, and threads t with t * N // n_threads = k, which take its units first. No bit depends on it.

    A thread binds itself to the processors of its node when it first takes part in a product, and stays bound, also
    after a call with None. A product that runs meanwhile may bind its threads to the nodes of before.

    Args:
        nodes: int32 (processors,), the node of each processor, 0, 1, ...; -1: no thread is bound to it. None for one
            node and threads that are not bound, the default.
        n_threads: of most products.

    Raises:
        ValueError: there are more than 64 nodes or more processors than a mask of Linux has, a node has none, or there
            is more than one node without Linux or without OpenMP.
    """
    global own_units, other_units
    cdef const int* node_of = NULL
    cdef Py_ssize_t n_cpus = 0, i
    cdef int n_nodes = 1
    check_threads(n_threads)
    if nodes is not None:
        node_of, n_cpus = i32_data(nodes, 0, "nodes"), cnp.PyArray_SIZE(nodes)
        if n_cpus > OX_NODE_CPUS:
            raise ValueError(f"nodes: expected at most {OX_NODE_CPUS} processors, got {n_cpus}")
        found = {node_of[i] for i in range(n_cpus) if node_of[i] != -1}
        if found != set(range(len(found))) or not 1 <= len(found) <= OX_MAX_NODES:
            raise ValueError(f"nodes: expected 0, 1, ..., at most {OX_MAX_NODES - 1}, got {sorted(found)}")
        n_nodes = len(found)
    own_units = other_units = 0
    ox_use_nodes(n_nodes, node_of, n_cpus, n_threads)


def units_taken() -> tuple[int, int]:
    """Units of products since `use_nodes` that threads of their own node have run, and that others have. Products on
    one thread, and all with one node, are not counted."""
    return own_units, other_units


def computes_bf16_dot(int way) -> bool:
    """Whether a way to multiply pairs of bf16 gives the bits of two fused multiply-adds, for random vectors.

    Args:
        way: 0: the CPU's instruction; 1: fused multiply-adds in the opposite order; 2: acc + round(sum of products).

    Raises:
        ValueError: ``way`` is another number, or 0 on a CPU without the instruction.
    """
    if not 0 <= way <= 2:
        raise ValueError(f"way: expected 0, 1 or 2, got {way}")
    if way == 0 and not (OX_BF16_DOT and ox_cpu_has("avx512_bf16")):
        raise ValueError("way: expected 1 or 2 on a processor without an instruction for pairs of bf16, got 0")
    return bool(is_bf16_dot(way))


BF16_DOT: bool = bool(has_bf16_dot())
"""Whether the CPU has an instruction for pairs of bf16 that gives the bits of `bf16_fma`."""

BF16_DOT_IS_FASTER: bool = BF16_DOT and bool(is_bf16_dot_faster())
"""Whether matrices of bf16 are multiplied by this instruction: it was faster than fused multiply-adds at import."""


cdef const uint8_t* part_data(const Part* part, cnp.ndarray data) except NULL:
    """The data of a matrix's panels; ValueError if the array is too short or misaligned."""
    cdef const uint8_t* found = u8_data(data, (part.rows + 15) // 16 * part.stride, "matrix")
    if <uintptr_t>found & 63:
        raise ValueError(f"matrix: expected data aligned to 64 bytes, got address {<uintptr_t>found:#x}")
    return found


cdef class Linear:
    """Matrices that share one input, stacked by rows.

    Args:
        matrices: sequence of (layout id, rows, data), ``data`` a uint8 array of packed panels (see `pack`), 64-byte
            aligned; or None for every matrix: `give` supplies the panels later.
        cols: columns of every matrix, a multiple of the layouts' block.
        bias: float32 (rows,) over all the matrices, or None.
        bf16_dot: whether to multiply matrices of bf16 with the CPU's instruction for pairs; None: if that is
            faster (`BF16_DOT_IS_FASTER`). The bits are the same.
        scales: float32 (matrices,), a factor for the products of each matrix; None for 1.

    Raises:
        ValueError: An unknown layout, data too short or misaligned, a wrong width, or ``bf16_dot`` without the
            instruction.
    """

    cdef readonly Py_ssize_t rows, cols
    cdef Stack stack
    cdef Py_ssize_t token_bytes  # bytes of scratch
    cdef object bias
    cdef readonly tuple panels   # type: tuple[np.ndarray, ...] | None; None: not given yet
    cdef bint late               # made without panels, which `give` sets
    cdef Py_ssize_t running      # products that are reading the panels now

    def __cinit__(self, matrices: Sequence[tuple[int, int, np.ndarray | None]], Py_ssize_t cols,
                  bias: np.ndarray | None = None, bf16_dot: bool | None = None, cnp.ndarray scales=None):
        cdef Stack* stack = &self.stack
        cdef Part* part
        cdef Form f
        cdef int form, layout
        cdef Py_ssize_t rows
        cdef cnp.ndarray data
        cdef bint dots = BF16_DOT_IS_FASTER if bf16_dot is None else bf16_dot
        if dots and not BF16_DOT:
            raise ValueError("bf16_dot: expected False where no instruction multiplies pairs of bf16, got True")
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
            if layout == L_R8 and cols > LONGEST_ROW:
                raise ValueError(f"shape: expected at most {LONGEST_ROW} columns, got {rows} x {cols}")
            part = &stack.parts[stack.n_parts]
            part.layout = layout
            part.form = form_number(layout, dots)
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
        for form in range(FORMS):
            if stack.takes[form]:
                self.token_bytes += form_layout(form, 1, cols, &f)
        if bias is not None:
            stack.bias = f32_data(bias, self.rows, "bias")
        for form in range(stack.n_parts):
            stack.parts[form].scale = 1 if scales is None else f32_data(scales, stack.n_parts, "scales")[form]

    def give(self, panels: Sequence[np.ndarray] | None):
        """Sets, replaces or removes the panels of a `Linear` that was made without panels.

        Args:
            panels: sequence of uint8 arrays, one for each matrix, 64-byte aligned; None removes the panels.

        Raises:
            ValueError: An array is too short or misaligned, a product is running in another thread, or the `Linear`
                was made with panels.
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

    def scratch_bytes(self, Py_ssize_t n) -> int:
        """Bytes of scratch that ``n`` tokens need, in one group or in many (`apply_groups`)."""
        if not fits(n, self.token_bytes, PY_SSIZE_T_MAX - 64):
            raise ValueError(f"n: expected an integer >= 0 whose scratch fits the memory, got {n}")
        return n * self.token_bytes + 64

    def unit_panels(self, Py_ssize_t n, int n_threads) -> int:
        """Panels of a unit of work when ``n`` tokens are multiplied by this `Linear` alone; the last may be shorter."""
        cdef Group group
        if n < 0:
            raise ValueError(f"n: expected an integer >= 0, got {n}")
        check_threads(n_threads)
        group.stack, group.count = &self.stack, n
        return chunk_panels(self.stack.n_panels, &group, n_threads)

    def apply(self, cnp.ndarray x, cnp.ndarray out, cnp.ndarray scratch, int n_threads, bint accumulate=False,
              tuple plans: tuple[LowRankPlan, ...] = ()):
        """out = x W^T (+ bias), or out + x W^T (+ bias) if ``accumulate``; then adds the products of ``plans``.

        Args:
            x: float32 (n, cols)
            out: float32 (n, rows)
            scratch: uint8, at least ``scratch_bytes(n)`` plus the ``scratch_bytes`` of the plans
            n_threads: threads to use, at least 1
            plans: `LowRankPlan`s, added in this order
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
    """Raises ValueError if the Linear has no panels now."""
    if linear.panels is None:
        raise ValueError("panels: expected a Linear that was given its panels, got one without")
    return 0


cdef int check_kept(Linear linear, str name) except -1:
    """Raises ValueError if the Linear was made without panels, so that `give` could change them."""
    if linear.late:
        raise ValueError(f"{name}: expected a Linear made with its panels, got one made without")
    return 0


def apply_groups(list linears not None: list[Linear], cnp.ndarray counts, cnp.ndarray x,
                 cnp.ndarray rows: np.ndarray | None, cnp.ndarray out, cnp.ndarray scratch, int n_threads,
                 tuple plans: tuple[LowRankPlan, ...] = ()):
    """out[i] = x[rows[i]] W^T (+ bias), then adds the products of ``plans``; each group of consecutive i has its own W.

    One call for all groups keeps every thread busy even if each matrix is small. A row has the same bits as from
    its own `Linear.apply`.

    Args:
        linears: a `Linear` for each group, all of one shape.
        counts: int32 (groups,), rows of each, at least 1.
        x: float32 (n, cols)
        rows: int32 (m,), m the sum of ``counts``; None: x has these m rows in order.
        out: float32 (m, rows of a matrix)
        scratch: uint8, at least the largest ``scratch_bytes(m)`` of the linears, plus ``scratch_bytes`` of the plans
        n_threads: threads to use, at least 1
        plans: `LowRankPlan`s over the rows of out, added in this order

    Raises:
        ValueError: Shapes disagree, or there are more than 512 groups.
    """
    cdef tuple held = tuple(linears)  # keeps the objects alive that the groups point into, even if the list changes
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


cdef Py_ssize_t chunk_panels(Py_ssize_t n_panels, const Group* group, int n_threads) noexcept nogil:
    """Panels of a chunk: the four that a float tile takes together, or more up to about 64 KB, but at least four
    chunks per thread, so that a thread that another process delays does not hold up the rest.

    256 KB are faster where panels are prefetched: within a chunk a thread knows its next panels, and the
    activations of many tiles are read once per chunk.
    """
    cdef const Part* first = &group.stack.parts[0]
    cdef Py_ssize_t n_tiles = group.count // OX_TILE
    cdef bint asks = n_tiles > 1 and (n_tiles <= FEW_TILES and not is_float(first.form) or is_rows(first.form))
    cdef Py_ssize_t chunk = max(4, ((STRIP_BYTES if asks else 65536) + first.stride // 2) // first.stride)
    return max(1, min(chunk, n_panels // (4 * n_threads)))


cdef int check_rows(const int* rows, Py_ssize_t n_rows, Py_ssize_t n) except -1:
    """Raises ValueError unless each of ``rows`` is the index of one of ``n`` rows; NULL needs no check."""
    cdef Py_ssize_t i
    if rows != NULL:
        for i in range(n_rows):
            if not 0 <= rows[i] < n:
                raise ValueError(f"rows: expected 0 to {n - 1}, got {rows[i]}")
    return 0


include "low_rank.pxi"  # LowRank, LowRankPlan, plan_bytes, multiply_adapted
