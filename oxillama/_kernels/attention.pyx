"""Causal attention over paged keys and values, for a ragged batch of sequences in one call.

A page holds ``page_size`` tokens of every layer: per layer and head the keys as panels of 16
positions, dimension by dimension (so that a vector lane is a position and no score is summed over
lanes), then the values, position by position.

    page   [layer] { keys [head][page_size / 16][head_dim][16], values [head][page_size][value_pad] }

A value is padded with zeros to whole vectors of 16 (value_pad).

A query walks the positions it may see in blocks of 64, aligned to absolute positions, with an
online softmax (Milakov and Gimelshein, 2018; Dao et al., FlashAttention, 2022). What it computes
depends on its own position only, not on the tile, the chunk or the batch it stands in. Query heads
that share a key head, and neighbouring tokens of a prefill, form tiles that share each load.
"""

cimport numpy as cnp
from cython.parallel cimport prange, threadid
from libc.stdint cimport int64_t, uint8_t, uint16_t
from libc.string cimport memcpy

from arrays cimport checked, f32_data, i32_data, u8_data
from layouts cimport L_BF16, L_F16, L_F32, float_load
from mathfun cimport exp16
from simd cimport *

cnp.import_array()

cdef enum:
    BLOCK = 64          # positions per step of the online softmax
    PANELS = 4          # of 16 positions each
    MAX_ROWS = 64       # (token, head) pairs that one unit of work carries through the positions
    MAX_TILE = 8


# A page's layout, as the loops read it.
cdef struct Pages:
    Py_ssize_t n_layers, n_heads, key_dim, value_dim, value_pad, page_size
    Py_ssize_t item, keys_bytes, layer_bytes
    int kv_type


cdef class KvShape:
    """How a page is laid out.

    Parameters
    ----------
    n_layers, n_heads : layers, and key/value heads in each
    key_dim, value_dim : width of a key and of a value
    kv_type : layout id of f32, f16 or bf16
    page_size : tokens per page, a multiple of 16
    """

    cdef Pages c

    def __init__(self, Py_ssize_t n_layers, Py_ssize_t n_heads, Py_ssize_t key_dim, Py_ssize_t value_dim,
                 int kv_type, Py_ssize_t page_size):
        if n_layers < 1 or n_heads < 1 or key_dim < 1 or value_dim < 1:
            raise ValueError("KvShape: every size must be at least 1")
        if page_size < 16 or page_size & (page_size - 1):
            raise ValueError(f"page_size: needs a power of two, at least 16, got {page_size}")
        if not L_F32 <= kv_type <= L_BF16:
            raise ValueError(f"kv_type: needs the layout id of f32, f16 or bf16, got {kv_type}")
        self.c.n_layers, self.c.n_heads, self.c.key_dim, self.c.value_dim = n_layers, n_heads, key_dim, value_dim
        self.c.kv_type, self.c.page_size = kv_type, page_size
        self.c.value_pad = (value_dim + 15) & ~<Py_ssize_t>15
        self.c.item = 4 if kv_type == L_F32 else 2
        self.c.keys_bytes = n_heads * page_size * key_dim * self.c.item
        self.c.layer_bytes = self.c.keys_bytes + n_heads * page_size * self.c.value_pad * self.c.item

    @property
    def page_bytes(self):
        """Bytes of one page, all layers."""
        return self.c.n_layers * self.c.layer_bytes


# One piece of work: some tokens of a sequence, one key head, all its query heads.
cdef struct Unit:
    const int* table
    Py_ssize_t first_row, n_rows     # rows of the batch
    Py_ssize_t position              # of the first row
    Py_ssize_t head
    Py_ssize_t group                 # query heads to a key head
    Py_ssize_t window, chunk


# What carries a unit's rows from block to block of positions.
cdef struct Walk:
    const uint8_t* keys[PANELS]      # panels of the block, 16 positions each
    const uint8_t* values[PANELS]
    Py_ssize_t key_dim, value_pad, group
    Py_ssize_t position, block       # of the unit's first row; where the block begins
    Py_ssize_t window, chunk         # what limits a row's view to the back, or 0
    float* queries                   # (tiles, key_dim, T)
    float* outputs                   # (rows, value_pad)
    float* sums                      # (rows, 16)
    float* most                      # (rows,), highest score so far
    float* weights                   # (panels, T, 16), scores and then their exponentials


cdef class PagedBatch:
    """Where the rows of a batch stand, and where their keys and values are.

    Parameters
    ----------
    shape : the pages' layout
    addresses : int64 (pages,), the address of each page
    tables : int32 (sequences, width), page numbers of each sequence, in order of position
    row_start : int32 (sequences + 1,), the batch rows of each sequence
    position : int32 (sequences,), position of each sequence's first row
    """

    cdef Pages shape
    cdef cnp.ndarray addresses_, tables_, row_start_, position_
    cdef const int64_t* addresses
    cdef const int* tables
    cdef const int* row_start
    cdef const int* position
    cdef Py_ssize_t n_sequences, width, n_rows, longest

    def __init__(self, KvShape shape, cnp.ndarray addresses, cnp.ndarray tables, cnp.ndarray row_start,
                 cnp.ndarray position):
        cdef Py_ssize_t s, i, end, n_pages = cnp.PyArray_SIZE(addresses)
        self.shape = shape.c
        self.n_sequences, self.width = tables.shape[0], tables.shape[1]
        self.addresses = <const int64_t*>checked(addresses, cnp.NPY_INT64, n_pages, "addresses")
        self.tables = i32_data(tables, self.n_sequences * self.width, "tables")
        self.row_start = i32_data(row_start, self.n_sequences + 1, "row_start")
        self.position = i32_data(position, self.n_sequences, "position")
        self.addresses_, self.tables_, self.row_start_, self.position_ = addresses, tables, row_start, position
        if self.row_start[0] != 0:
            raise ValueError("row_start: must begin with 0")
        for s in range(self.n_sequences):
            end = <Py_ssize_t>self.position[s] + self.row_start[s + 1] - self.row_start[s]
            if self.position[s] < 0 or self.row_start[s + 1] < self.row_start[s]:
                raise ValueError(f"sequence {s}: negative position or row count")
            if end > self.width * shape.c.page_size:
                raise ValueError(f"sequence {s}: {end} positions do not fit {self.width} pages of {shape.c.page_size}")
            for i in range((end + shape.c.page_size - 1) // shape.c.page_size):
                if not 0 <= self.tables[s * self.width + i] < n_pages:
                    raise ValueError(f"sequence {s}: page {self.tables[s * self.width + i]} does not exist")
            self.longest = max(self.longest, end)
        self.n_rows = self.row_start[self.n_sequences]

    def store(self, Py_ssize_t layer, cnp.ndarray x, Py_ssize_t key_column, Py_ssize_t value_column,
              int n_threads):
        """Writes the keys and values of every row into the pages, rounded to the KV type.

        ``x`` is float32 (rows, width); keys (heads, key_dim) begin at ``key_column``, values at
        ``value_column``.
        """
        cdef Pages shape = self.shape
        cdef Py_ssize_t width = x.shape[1], s, r
        cdef const float* xp = f32_data(x, self.n_rows * width, "x")
        self.check_layer(layer)
        if (key_column + shape.n_heads * shape.key_dim > width or value_column + shape.n_heads * shape.value_dim > width
                or key_column < 0 or value_column < 0):
            raise ValueError(f"store: keys and values do not fit rows of {width}")
        for s in range(self.n_sequences):
            for r in prange(self.row_start[s], self.row_start[s + 1], nogil=True, schedule="dynamic", chunksize=16,
                            num_threads=n_threads if self.row_start[s + 1] - self.row_start[s] >= 64 else 1):
                self.store_row(layer, s, r, xp + r * width + key_column, xp + r * width + value_column)

    cdef void store_row(self, Py_ssize_t layer, Py_ssize_t s, Py_ssize_t r, const float* k,
                        const float* v) noexcept nogil:
        cdef Pages shape = self.shape
        cdef Py_ssize_t position = self.position[s] + r - self.row_start[s]
        cdef Py_ssize_t slot = position & (shape.page_size - 1)
        cdef uint8_t* page = <uint8_t*>self.addresses[self.tables[s * self.width + position // shape.page_size]]
        cdef uint8_t* keys = page + layer * shape.layer_bytes
        cdef uint8_t* values = keys + shape.keys_bytes
        cdef Py_ssize_t h, d, at
        for h in range(shape.n_heads):
            at = (h * shape.page_size + (slot & ~15)) * shape.key_dim + (slot & 15)
            for d in range(shape.key_dim):
                put_scalar(shape.kv_type, keys, at + 16 * d, k[h * shape.key_dim + d])
            at = (h * shape.page_size + slot) * shape.value_pad
            for d in range(0, shape.value_dim, 16):
                put_lanes(shape.kv_type, values, at + d, v + h * shape.value_dim + d, shape.value_dim - d)

    cdef int check_layer(self, Py_ssize_t layer) except -1:
        if not 0 <= layer < self.shape.n_layers:
            raise ValueError(f"layer: {layer} is not one of {self.shape.n_layers}")
        return 0

    def scratch_bytes(self, int n_threads):
        """Bytes of scratch that `attend` needs."""
        if n_threads < 1:
            raise ValueError(f"n_threads: needs at least 1, got {n_threads}")
        return n_threads * unit_floats(self.shape.key_dim, self.shape.value_pad) * sizeof(float) + 64

    def attend(self, Py_ssize_t layer, cnp.ndarray q, Py_ssize_t n_heads, float scale, cnp.ndarray out,
               cnp.ndarray scratch, int n_threads, Py_ssize_t window=0, Py_ssize_t chunk=0):
        """out = softmax(scale * q k^T over the positions up to the row's own) v.

        Parameters
        ----------
        q : float32 (rows, width), heads (n_heads, key_dim) in its first columns
        n_heads : query heads, a multiple of the key heads
        out : float32 (rows, n_heads * value_dim)
        scratch : uint8, ``scratch_bytes(n_threads)``
        window : a row sees the last ``window`` positions, its own included; 0 for all
        chunk : a row sees no position before the last multiple of ``chunk``; 0 for all
        """
        cdef Pages shape = self.shape
        cdef Py_ssize_t ld = q.shape[1], group = n_heads // shape.n_heads, tokens, unit, n_units = 0, s, size
        cdef const float* qp = f32_data(q, self.n_rows * ld, "q")
        cdef float* op = f32_data(out, self.n_rows * n_heads * shape.value_dim, "out")
        cdef uint8_t* free = u8_data(scratch, self.scratch_bytes(n_threads), "scratch")
        cdef int threads
        self.check_layer(layer)
        if n_heads < 1 or n_heads % shape.n_heads or n_heads * shape.key_dim > ld or group > MAX_ROWS:
            raise ValueError(f"attend: {n_heads} query heads do not fit {shape.n_heads} key heads or rows of {ld}")
        if window < 0 or chunk < 0:
            raise ValueError(f"attend: window and chunk need 0 or more, got {window} and {chunk}")
        free = <uint8_t*>((<int64_t>free + 63) & ~<int64_t>63)
        size = unit_floats(shape.key_dim, shape.value_pad)
        tokens = max(1, MAX_ROWS // group)
        for s in range(self.n_sequences):
            n_units += (self.row_start[s + 1] - self.row_start[s] + tokens - 1) // tokens * shape.n_heads
        threads = n_threads if self.n_rows * n_heads * self.longest * shape.key_dim >= 500000 else 1
        for unit in prange(n_units, nogil=True, schedule="dynamic", num_threads=threads):
            self.run(n_units - 1 - unit, tokens, layer, group, window, chunk, qp, ld, scale, op,
                     <float*>free + threadid() * size)

    cdef void run(self, Py_ssize_t unit, Py_ssize_t tokens, Py_ssize_t layer, Py_ssize_t group, Py_ssize_t window,
                  Py_ssize_t chunk, const float* q, Py_ssize_t ld, float scale, float* out,
                  float* scratch) noexcept nogil:
        """Finds unit number ``unit``: sequence by sequence, token tile by tile, head by head."""
        cdef Py_ssize_t s = 0, n
        cdef Unit u
        u.group, u.window, u.chunk = group, window, chunk
        while True:
            n = (self.row_start[s + 1] - self.row_start[s] + tokens - 1) // tokens * self.shape.n_heads
            if unit < n:
                break
            unit = unit - n
            s = s + 1
        n = unit // self.shape.n_heads * tokens
        u.head = unit % self.shape.n_heads
        u.table = self.tables + s * self.width
        u.first_row = self.row_start[s] + n
        u.n_rows = min(tokens, self.row_start[s + 1] - u.first_row)
        u.position = self.position[s] + n
        if self.shape.kv_type == L_F32:
            self.walk(L_F32, &u, layer, q, ld, scale, out, scratch)
        elif self.shape.kv_type == L_F16:
            self.walk(L_F16, &u, layer, q, ld, scale, out, scratch)
        else:
            self.walk(L_BF16, &u, layer, q, ld, scale, out, scratch)

    cdef inline void walk(self, const int kv_type, const Unit* u, Py_ssize_t layer, const float* q, Py_ssize_t ld,
                          float scale, float* out, float* scratch) noexcept nogil:
        """Carries the unit's (token, head) rows through all blocks of positions."""
        cdef Pages shape = self.shape
        cdef Py_ssize_t dk = shape.key_dim, dv = shape.value_pad, group = u.group, n = u.n_rows * group
        cdef Py_ssize_t end = u.position + u.n_rows
        cdef Py_ssize_t r, t0, d
        cdef int T, i, p
        cdef const uint8_t* page
        cdef Walk w
        cdef f32x16 total
        w.key_dim, w.value_pad, w.group, w.position = dk, dv, group, u.position
        w.window, w.chunk = u.window, u.chunk
        w.queries = scratch
        w.outputs = w.queries + MAX_ROWS * dk
        w.sums = w.outputs + MAX_ROWS * dv
        w.most = w.sums + MAX_ROWS * 16
        w.weights = w.most + MAX_ROWS
        t0 = 0
        while t0 < n:
            T = rows_in_tile(n - t0)
            for i in range(T):
                r = t0 + i
                w.most[r] = -1e30
                f32_store(w.sums + 16 * r, f32_zero())
                for d in range(0, dv, 16):
                    f32_store(w.outputs + r * dv + d, f32_zero())
                for d in range(dk):
                    w.queries[t0 * dk + d * T + i] = scale * q[(u.first_row + r // group) * ld
                                                               + (u.head * group + r % group) * dk + d]
            t0 = t0 + T
        w.block = first_seen(&w, u.position) & ~<Py_ssize_t>(BLOCK - 1)
        while w.block < end:
            p = 0
            while p < PANELS and w.block + 16 * p < end:
                r = w.block + 16 * p
                page = <const uint8_t*>self.addresses[u.table[r // shape.page_size]] + layer * shape.layer_bytes
                r = r & (shape.page_size - 1)
                w.keys[p] = page + (u.head * shape.page_size + r) * dk * shape.item
                w.values[p] = page + shape.keys_bytes + (u.head * shape.page_size + r) * dv * shape.item
                p = p + 1
            t0 = 0
            while t0 < n:
                T = rows_in_tile(n - t0)
                if OX_TILE >= 8 and T == 8:
                    block_tile(kv_type, 8, &w, t0)
                elif T == 4:
                    block_tile(kv_type, 4, &w, t0)
                elif T == 2:
                    block_tile(kv_type, 2, &w, t0)
                else:
                    block_tile(kv_type, 1, &w, t0)
                t0 = t0 + T
            w.block = w.block + BLOCK
        for r in range(n):
            total = f32_set1(<float>1.0 / f32_sum(f32_load(w.sums + 16 * r)))
            for d in range(0, dv, 16):
                f32_store(w.outputs + r * dv + d, f32_mul(f32_load(w.outputs + r * dv + d), total))
            # (rows, heads, value_dim); the query heads of a key head stand together
            d = ((u.first_row + r // group) * shape.n_heads + u.head) * group + r % group
            memcpy(out + d * shape.value_dim, w.outputs + r * dv, shape.value_dim * sizeof(float))


cdef inline Py_ssize_t unit_floats(Py_ssize_t dk, Py_ssize_t dv) noexcept nogil:
    return (MAX_ROWS * (dk + dv + 17) + BLOCK * MAX_TILE + 15) & ~<Py_ssize_t>15


cdef inline int rows_in_tile(Py_ssize_t left) noexcept nogil:
    cdef Py_ssize_t most = min(left, OX_TILE)
    return 8 if most >= 8 else 4 if most >= 4 else 2 if most >= 2 else 1


cdef inline void put_scalar(int kv_type, uint8_t* base, Py_ssize_t i, float x) noexcept nogil:
    if kv_type == L_F32:
        (<float*>base)[i] = x
    elif kv_type == L_F16:
        (<uint16_t*>base)[i] = ox_f16_from_f32(x)
    else:
        (<uint16_t*>base)[i] = ox_bf16_from_f32(x)


cdef inline void put_lanes(int kv_type, uint8_t* base, Py_ssize_t i, const float* x, Py_ssize_t left) noexcept nogil:
    """16 values from ``x``, or ``left`` of them and then zeros."""
    cdef float lanes[16]
    cdef Py_ssize_t j
    if left < 16:
        for j in range(16):
            lanes[j] = x[j] if j < left else 0
        x = lanes
    if kv_type == L_F32:
        memcpy(<float*>base + i, x, 64)
    elif kv_type == L_F16:
        f32_store_f16(<uint16_t*>base + i, f32_load(x))
    else:
        for j in range(16):
            (<uint16_t*>base)[i + j] = ox_bf16_from_f32(x[j])


cdef inline Py_ssize_t first_seen(const Walk* walk, Py_ssize_t position) noexcept nogil:
    """The first position that the row at ``position`` sees."""
    cdef Py_ssize_t first = 0
    if walk.window:
        first = max(0, position + 1 - walk.window)
    if walk.chunk:
        first = max(first, position - position % walk.chunk)
    return first


cdef inline void add_values(const int kv_type, const Walk* walk, const float* weights, const int T, Py_ssize_t start,
                            Py_ssize_t end, float* out) noexcept nogil:
    """One row: out += weight * value over positions start .. end of the block."""
    cdef Py_ssize_t j, d, vectors = walk.value_pad // 16
    cdef f32x16 weight
    for j in range(start, end):
        weight = f32_set1(weights[(j >> 4) * T * 16 + (j & 15)])
        for d in range(vectors):
            f32_store(out + 16 * d, f32_fma(float_load(kv_type, walk.values[j >> 4], (j & 15) * vectors + d), weight,
                                            f32_load(out + 16 * d)))


cdef inline void block_tile(const int kv_type, const int T, const Walk* walk, Py_ssize_t t0) noexcept nogil:
    """T rows from row ``t0`` of the unit through one block of positions: scores, softmax, values."""
    cdef f32x16 acc[MAX_TILE]
    cdef f32x16 scores[PANELS]
    cdef Py_ssize_t low[MAX_TILE]      # a row sees the positions from low to high of the block
    cdef Py_ssize_t high[MAX_TILE]
    cdef Py_ssize_t most_low = 0, least_high = BLOCK, last = 0, dk = walk.key_dim, dv = walk.value_pad, d, j
    cdef const float* q = walk.queries + t0 * dk
    cdef float* outputs = walk.outputs + t0 * dv
    cdef float* sums = walk.sums + t0 * 16
    cdef float* most = walk.most + t0
    cdef float* w = walk.weights
    cdef float lanes[16]
    cdef f32x16 k, v, highest, ramp, minus = f32_set1(-1e30)
    cdef int t, p, n, i
    for t in range(T):
        d = walk.position + (t0 + t) // walk.group
        high[t] = max(0, min(d + 1 - walk.block, BLOCK))
        low[t] = max(0, min(first_seen(walk, d) - walk.block, high[t]))
        most_low = max(most_low, low[t])
        least_high = min(least_high, high[t])
        last = max(last, high[t])
    least_high = max(least_high, most_low)  # all rows see [most_low, least_high), if that is anything
    n = <int>((last + 15) // 16)
    for p in range(n):
        for t in range(T):
            acc[t] = f32_zero()
        for d in range(dk):
            k = float_load(kv_type, walk.keys[p], d)
            for t in range(T):
                acc[t] = f32_fma(k, f32_set1(q[d * T + t]), acc[t])
        for t in range(T):
            f32_store(w + (p * T + t) * 16, acc[t])
    for i in range(16):
        lanes[i] = i
    ramp = f32_load(lanes)
    for t in range(T):
        if low[t] == high[t]:
            continue  # nothing of this block is this row's: no weight of it is read below
        highest = f32_set1(most[t])
        for p in range(n):
            # positions that the row does not see count as -1e30, whose exponential is exactly 0
            k = f32_select_lt(ramp, f32_set1(<float>(high[t] - 16 * p)), f32_load(w + (p * T + t) * 16), minus)
            scores[p] = f32_select_lt(ramp, f32_set1(<float>(low[t] - 16 * p)), minus, k)
            highest = f32_max(scores[p], highest)
        highest = f32_set1(f32_hmax(highest))
        k = exp16(f32_sub(f32_set1(most[t]), highest))  # what earlier sums shrink by
        v = f32_mul(f32_load(sums + 16 * t), k)
        for d in range(0, dv, 16):
            f32_store(outputs + t * dv + d, f32_mul(f32_load(outputs + t * dv + d), k))
        f32_store(lanes, highest)
        most[t] = lanes[0]
        for p in range(n):
            k = exp16(f32_sub(scores[p], highest))
            v = f32_add(v, k)
            f32_store(w + (p * T + t) * 16, k)
        f32_store(sums + 16 * t, v)
    # each row adds its values in order of position: what only it sees, what all see, what only it sees. A value
    # that a row does not see must not touch it, not even as 0 * inf
    for t in range(T):
        add_values(kv_type, walk, w + 16 * t, T, low[t], min(most_low, high[t]), outputs + t * dv)
    for d in range(dv // 16):
        for t in range(T):
            acc[t] = f32_load(outputs + t * dv + 16 * d)
        for j in range(most_low, least_high):
            v = float_load(kv_type, walk.values[j >> 4], (j & 15) * (dv // 16) + d)
            for t in range(T):
                acc[t] = f32_fma(v, f32_set1(w[((j >> 4) * T + t) * 16 + (j & 15)]), acc[t])
        for t in range(T):
            f32_store(outputs + t * dv + 16 * d, acc[t])
    for t in range(T):
        add_values(kv_type, walk, w + 16 * t, T, max(least_high, low[t]), high[t], outputs + t * dv)
