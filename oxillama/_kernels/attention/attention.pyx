"""Attention over paged keys and values, for a ragged batch of sequences in one call.

`kvpage.pxd` defines the layout of a page, `panels.pxd` finds the positions of a block, `onlinesoftmax.pxd` carries
rows through a block. This module divides the work between threads.

A *unit* is some tokens of a sequence and some query heads that share a key head: up to 64 rows that share each load.
Positions are cut into *partitions* of 1024, aligned to absolute positions. A row computes a partial result for each
partition, and merges the partial results in order of position. Usually one thread takes a unit through all its
partitions; when there are too few units to occupy the threads (one sequence at a long context), each partition is a
task of its own (as in Flash-Decoding: Dao et al., 2023). The order of the sums is the same either way, so a row's
bits depend only on its own position and on the positions that it sees.

A row may attend to a list of chosen positions only (`selection.pxd`). They are gathered, and the index in the list
takes the place of the position when blocks and partitions are cut.
"""

cimport numpy as cnp
from cython.parallel cimport prange, threadid
from libc.stdint cimport INT32_MAX, uint8_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import numpy as np

from oxillama._kernels.arrays cimport (
    check_apart, check_dimensions, check_threads, f32_data, f32_rows, f32_rows_out, fits, i32_data, i32_out, u8_out)
from oxillama._kernels.attention.kvpage cimport (
    LANES, Pages, is_kv_type, keys_at, page_layout, put_key, put_value, values_at)
from oxillama._kernels.attention.page_table cimport PageTable
from oxillama._kernels.attention.panels cimport BLOCK, Source, ask_for, find_panels, is_gathered
from oxillama._kernels.attention.selection cimport choose_positions, score_positions, take_block_maxima
from oxillama._kernels.debugging cimport ensure
from oxillama._kernels.packing.formats cimport L_BF16, L_C8, L_F16, L_F32
from oxillama._kernels.attention.onlinesoftmax cimport block_rows, clear_rows, finish_row, merge_row
from oxillama._kernels.attention.walk cimport *
from oxillama._kernels.simd.bf16 cimport has_bf16_dot, is_bf16_dot_faster
from oxillama._kernels.simd.simd cimport *

cnp.import_array()

cdef enum:
    PARTITION = 1024    # positions in a partition
    SHARE = 4           # tasks wanted for each thread
    MOST = 1 << 24      # maximum of layers, heads, widths and page_size, so that no product overflows

cdef Py_ssize_t MOST_NUMBERS = <Py_ssize_t>1 << 34  # numbers of a token

BF16_DOT: bool = bool(has_bf16_dot())
"""Whether this target can multiply pairs of bf16 keys and values with one instruction."""

BF16_DOT_IS_FASTER: bool = BF16_DOT and bool(is_bf16_dot_faster())
"""Whether it does: the instruction was faster than fused multiply-adds at import."""


cdef class KvShape:
    """Layout of a page of keys and values.

    Args:
        n_layers, n_heads: layers, and key/value heads in each
        key_dim, value_dim: width of a key and of a value, 0 for keys without values
        key_type, value_type: layout ids of f32, f16, bf16, c8 (which is q8_0), c4 (q4_0), m4 (q4_1), c5 (q5_0), m5
            (q5_1), t4 (iq4_nl)
        page_size: tokens per page, a power of two
    """

    cdef Pages c

    def __cinit__(self, Py_ssize_t n_layers, Py_ssize_t n_heads, Py_ssize_t key_dim, Py_ssize_t value_dim,
                  int key_type, int value_type, Py_ssize_t page_size):
        if n_layers < 1 or n_heads < 1 or key_dim < 1 or value_dim < 0:
            raise ValueError("KvShape: expected sizes >= 1, and >= 0 of value_dim, got "
                             f"{(n_layers, n_heads, key_dim, value_dim)}")
        if max(n_layers, n_heads, key_dim, value_dim) > MOST or (
                not fits(n_layers * n_heads, max(key_dim, value_dim) + 32, MOST_NUMBERS)):
            raise ValueError(f"KvShape: expected sizes of at most {MOST} and 2**34 numbers to a token, got "
                             f"{(n_layers, n_heads, key_dim, value_dim)}")
        if not 1 <= page_size <= MOST or page_size & (page_size - 1):
            raise ValueError(f"page_size: expected a power of two up to {MOST}, got {page_size}")
        for kv_type, name in ((key_type, "key_type"), (value_type, "value_type")):
            if not is_kv_type(kv_type):
                raise ValueError(f"{name}: expected the layout id of f32, f16, bf16, c8, c4, c5, m4, m5 or t4, got "
                                 f"{kv_type}")
        self.c = page_layout(n_layers, n_heads, key_dim, value_dim, key_type, value_type, page_size)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page with all its layers."""
        return self.c.n_layers * self.c.layer_bytes


# A function for each kind of panels, not one for all of them, for which gcc takes twice as long.

cdef void block_of_f32(const Walk* w, Py_ssize_t n) noexcept nogil:
    block_rows(L_F32, w, n)


cdef void block_of_f16(const Walk* w, Py_ssize_t n) noexcept nogil:
    block_rows(L_F16, w, n)


cdef void block_of_bf16(const Walk* w, Py_ssize_t n) noexcept nogil:
    block_rows(L_BF16, w, n)


cdef void block_of_dots(const Walk* w, Py_ssize_t n) noexcept nogil:
    if OX_BF16_DOT:
        block_rows(BF16_DOTS, w, n)


cdef void block_of_c8(const Walk* w, Py_ssize_t n) noexcept nogil:
    block_rows(L_C8, w, n)


# The arguments of one call of `attend`.
cdef struct Call:
    Py_ssize_t layer, n_heads, ld       # query heads; ld: floats from one row of q to the next
    const float* q
    float* out
    float scale, softcap
    const float* sinks                  # (n_heads,), or NULL
    const float* slopes
    const float* biases
    Py_ssize_t reach
    Py_ssize_t window, chunk
    bint causal
    const int* chosen                   # (rows, most) chosen positions, or NULL
    const int* counts                   # (rows,) chosen positions of each row; NULL: all, or up to its own
    Py_ssize_t most
    Py_ssize_t tokens, heads            # maximum tokens and query heads of a unit
    Py_ssize_t units_per_tile           # units that share a tile of tokens


cdef struct Unit:
    Source source                       # where its keys and values lie
    Py_ssize_t first_row, n_tokens      # rows of the batch
    Py_ssize_t first_head, n_heads
    Py_ssize_t position                 # first token's position; if chosen: index of the last position in the list
    Py_ssize_t first_part, end_part     # the partitions with positions that the unit sees
    View view


cdef class PagedBatch:
    """Positions of a batch's rows, and the pages of their keys and values.

    Args:
        shape: the pages' layout
        pages: page table; the batch keeps the addresses that it finds there, even if the table changes later
        tables: int32 (sequences, width), page numbers of each sequence, in order of position
        row_start: int32 (sequences + 1,), the batch rows of each sequence
        position: int32 (sequences,), position of each sequence's first row
        bf16_dot: whether to multiply bf16 keys and values with the CPU's instruction for pairs; None: if that is
            faster (`BF16_DOT_IS_FASTER`). The bits are the same.
    """

    cdef Pages shape
    cdef dict owners            # keeps the memory of the pages alive
    cdef uint8_t** tables       # (sequences, width)
    cdef int* row_start
    cdef int* position
    cdef Py_ssize_t n_sequences, width, n_rows, longest, most_rows
    cdef int kind               # kind of panels that the walk reads

    def __cinit__(self, KvShape shape not None, PageTable pages not None, cnp.ndarray tables, cnp.ndarray row_start,
                  cnp.ndarray position, bf16_dot: bool | None = None):
        check_dimensions(tables, 2, "tables")
        cdef Py_ssize_t s, i, n = tables.shape[0], width = tables.shape[1], end
        cdef const int* numbers = i32_data(tables, 0, "tables")
        cdef const int* starts = i32_data(row_start, n + 1, "row_start")
        cdef const int* positions = i32_data(position, n, "position")
        if pages.page_bytes < shape.c.n_layers * shape.c.layer_bytes:
            raise ValueError(f"pages: expected pages of {shape.page_bytes} bytes, got {pages.page_bytes}")
        if bf16_dot and not BF16_DOT:
            raise ValueError("bf16_dot: expected False where no instruction multiplies pairs of bf16, got True")
        self.shape, self.owners, self.n_sequences, self.width = shape.c, pages.owners, n, width
        self.kind = self.shape.walk_type
        if self.kind == L_BF16 and (BF16_DOT_IS_FASTER if bf16_dot is None else bf16_dot):
            self.kind = BF16_DOTS
        self.tables = <uint8_t**>malloc((n * width + 1) * sizeof(uint8_t*))
        self.row_start = <int*>malloc((n + 1) * sizeof(int))
        self.position = <int*>malloc((n + 1) * sizeof(int))
        if self.tables == NULL or self.row_start == NULL or self.position == NULL:
            raise MemoryError
        memcpy(self.row_start, starts, (n + 1) * sizeof(int))
        memcpy(self.position, positions, n * sizeof(int))
        if self.row_start[0] != 0:
            raise ValueError(f"row_start: expected 0 first, got {self.row_start[0]}")
        for s in range(n):
            end = <Py_ssize_t>self.position[s] + self.row_start[s + 1] - self.row_start[s]
            if self.position[s] < 0 or self.row_start[s + 1] < self.row_start[s]:
                raise ValueError(f"sequence {s}: expected a position and a row count >= 0, got "
                                 f"{self.position[s]} and {<Py_ssize_t>self.row_start[s + 1] - self.row_start[s]}")
            if end > width * shape.c.page_size:
                raise ValueError(f"sequence {s}: expected at most {width * shape.c.page_size} positions, got {end}")
            i = (end + shape.c.page_size - 1) // shape.c.page_size
            self.find_pages(pages.addresses, numbers + s * width, i, s)
            self.longest = max(self.longest, end)
            self.most_rows = max(self.most_rows, <Py_ssize_t>self.row_start[s + 1] - self.row_start[s])
        self.n_rows = self.row_start[n]

    def __dealloc__(self):
        free(self.tables)
        free(self.row_start)
        free(self.position)

    cdef int find_pages(self, cnp.ndarray addresses, const int* numbers, Py_ssize_t n, Py_ssize_t s) except -1:
        """Stores the addresses of the first n pages of sequence ``s`` in ``self.tables``."""
        cdef const uintptr_t* known = <const uintptr_t*>cnp.PyArray_DATA(addresses)
        cdef Py_ssize_t size = cnp.PyArray_SIZE(addresses), i
        cdef uint8_t** found = self.tables + s * self.width
        for i in range(n):
            if not 0 <= numbers[i] < size:
                raise ValueError(f"sequence {s}: expected pages below {size}, got {numbers[i]}")
            found[i] = <uint8_t*>known[numbers[i]]
            if found[i] == NULL:
                raise ValueError(f"sequence {s}: expected pages with memory, got {numbers[i]}")
        return 0

    def store(self, Py_ssize_t layer, cnp.ndarray x, Py_ssize_t key_column, Py_ssize_t value_column,
              int n_threads):
        """Writes the keys and values of every row into the pages, rounded to the KV type.

        ``x`` is float32 (rows, width); keys (heads, key_dim) begin at ``key_column``, values at
        ``value_column``.
        """
        cdef Pages shape = self.shape
        check_dimensions(x, 2, "x")
        cdef Py_ssize_t width = x.shape[1], s, r, first, end
        cdef const float* xp = f32_rows(x, self.n_rows, width, "x")
        self.check_layer(layer)
        check_threads(n_threads)
        if (not 0 <= key_column <= width - shape.n_heads * shape.key_dim
                or not 0 <= value_column <= width - shape.n_heads * shape.value_dim):
            raise ValueError(f"store: expected keys and values within rows of {width}, "
                             f"got columns {key_column} and {value_column}")
        for s in range(self.n_sequences):
            first, end = self.row_start[s], self.row_start[s + 1]
            if end - first < 64:
                for r in range(first, end):
                    self.store_row(layer, s, r, xp + r * width + key_column, xp + r * width + value_column)
            else:
                for r in prange(first, end, nogil=True, schedule="dynamic", chunksize=16, num_threads=n_threads):
                    self.store_row(layer, s, r, xp + r * width + key_column, xp + r * width + value_column)

    cdef void store_row(self, Py_ssize_t layer, Py_ssize_t s, Py_ssize_t r, const float* k,
                        const float* v) noexcept nogil:
        cdef Pages* c = &self.shape
        cdef Py_ssize_t position = self.position[s] + r - self.row_start[s]
        cdef Py_ssize_t slot = position & (c.page_size - 1), lane = slot & (c.lanes - 1), h
        cdef uint8_t* page = self.tables[s * self.width + position // c.page_size]
        ensure(0 <= position // c.page_size < self.width)
        for h in range(c.n_heads):
            put_key(c, keys_at(c, page, layer, h, slot), lane, k + h * c.key_dim)
            put_value(c, values_at(c, page, layer, h, slot), lane, v + h * c.value_dim)

    cdef int check_layer(self, Py_ssize_t layer) except -1:
        if not 0 <= layer < self.shape.n_layers:
            raise ValueError(f"layer: expected 0 to {self.shape.n_layers - 1}, got {layer}")
        return 0

    def scratch_bytes(self, int n_threads) -> int:
        """Bytes of scratch that `attend` and `choose` need, for sequences of any length."""
        check_threads(n_threads)
        return n_threads * sizeof(float) * (thread_floats(&self.shape)
                                            + 2 * SHARE * state_floats(MAX_ROWS, self.shape.value_pad)) + 64

    def attend(self, Py_ssize_t layer, cnp.ndarray q, Py_ssize_t n_heads, float scale, cnp.ndarray out,
               cnp.ndarray scratch, int n_threads, Py_ssize_t window=0, Py_ssize_t chunk=0, *, bint causal=True,
               float softcap=0, cnp.ndarray sinks=None, cnp.ndarray slopes=None, cnp.ndarray biases=None,
               cnp.ndarray chosen=None, cnp.ndarray counts=None):
        """out = softmax(score) v over the positions a row sees; score = scale * q k^T, changed by the options below.

        Args:
            q: float32 (rows, width), heads (n_heads, key_dim) in its first columns
            n_heads: query heads, a multiple of the key heads
            out: float32 (rows, n_heads * value_dim)
            scratch: uint8, ``scratch_bytes(n_threads)``
            window: row i sees position j only if |i - j| < window; 0 for all
            chunk: row i sees position j only if both lie between the same multiples of ``chunk``; 0 for all
            causal: a row sees no position after its own; if false, all up to its sequence's last row in this batch
            softcap: score = softcap * tanh(scale * q k^T / softcap) (Bello et al., 2016); 0 for none
            sinks: float32 (n_heads,), one more score per head in the sum of exponentials, without a value
            slopes: float32 (n_heads,), score -= slope * |i - j|, after the soft cap (Press et al., ALiBi, 2022)
            biases: float32 (n_heads, 2 reach + 1), score += biases[h, reach + clip(j - i, -reach, reach)], after the
                soft cap (Raffel et al., T5, 2020)
            chosen: int32 (rows, most), ascending positions as `choose` writes them: all that a row sees. Excludes
                window, chunk, slopes, biases and ``causal=False``
            counts: int32 (rows,), how many of its chosen positions a row sees, in any order; -1 - j stands for
                position j of the next layer. None for the positions that `choose` writes
        """
        cdef Pages* shape = &self.shape
        cdef Py_ssize_t group = n_heads // shape.n_heads, n_units = 0, s, rows, longest = self.longest
        cdef uint8_t* memory = u8_out(scratch, self.scratch_bytes(n_threads), "scratch")
        cdef Call c
        self.check_layer(layer)
        check_dimensions(q, 2, "q")
        if n_heads < 1 or n_heads % shape.n_heads or not fits(n_heads, shape.key_dim, q.shape[1]):
            raise ValueError(f"n_heads: expected a multiple of {shape.n_heads} that fits rows of {q.shape[1]}, "
                             f"got {n_heads}")
        if not (0 <= window <= INT32_MAX and 0 <= chunk <= INT32_MAX):
            raise ValueError(f"attend: expected window and chunk from 0 to {INT32_MAX}, got {window} and {chunk}")
        if shape.value_dim == 0:
            raise ValueError("attend: expected pages with values, got keys alone")
        if not 0 <= softcap < 1e30:
            raise ValueError(f"softcap: expected a finite number >= 0, got {softcap}")
        c.layer, c.n_heads, c.ld, c.scale, c.softcap = layer, n_heads, q.shape[1], scale, softcap
        c.q = f32_rows(q, self.n_rows, c.ld, "q")
        if not fits(n_heads, shape.value_dim, MOST_NUMBERS):
            raise ValueError(f"n_heads: expected at most 2**34 numbers to a row, got {n_heads} heads")
        c.out = f32_rows_out(out, self.n_rows, n_heads * shape.value_dim, "out")
        check_apart(q, out, "q, out")
        check_apart(q, scratch, "q, scratch")
        check_apart(out, scratch, "out, scratch")
        c.sinks = NULL if sinks is None else f32_data(sinks, n_heads, "sinks")
        c.slopes = NULL if slopes is None else f32_data(slopes, n_heads, "slopes")
        c.biases, c.reach = NULL, 0
        if biases is not None:
            check_dimensions(biases, 2, "biases")
            if biases.shape[1] % 2 == 0:
                raise ValueError(f"biases: expected an odd number of distances, got {biases.shape[1]}")
            c.reach = biases.shape[1] // 2
            c.biases = f32_rows(biases, n_heads, biases.shape[1], "biases")
        c.window, c.chunk, c.causal = window, chunk, causal
        c.chosen, c.counts, c.most = NULL, NULL, 0
        if counts is not None:
            if chosen is None:
                raise ValueError("counts: expected them with chosen alone, got no chosen")
            c.counts = i32_data(counts, self.n_rows, "counts")
        if chosen is not None:
            if window or chunk or not causal or slopes is not None or biases is not None:
                raise ValueError("chosen: expected causal rows without window, chunk, slopes, biases, got one of them")
            c.chosen, c.most = self.check_chosen(chosen, c.counts, layer), chosen.shape[1]
            longest = c.most if counts is not None else min(longest, c.most)
        rows = (group + MAX_ROWS - 1) // MAX_ROWS     # units that share a key head
        c.heads = (group + rows - 1) // rows
        c.units_per_tile = rows * shape.n_heads
        c.tokens = 1 if c.chosen != NULL else min(max(<Py_ssize_t>1, MAX_ROWS // c.heads), self.most_rows)
        for s in range(self.n_sequences):
            n_units += self.tiles_of(&c, s) * c.units_per_tile
        if self.n_rows * n_heads * longest * shape.key_dim < 500000:
            n_threads = 1
        with nogil:
            self.share_out(&c, n_units, <float*>((<uintptr_t>memory + 63) & ~<uintptr_t>63), n_threads)

    cdef const int* check_chosen(self, cnp.ndarray chosen, const int* counts, Py_ssize_t layer) except? NULL:
        """The data of ``chosen``. Raises ValueError unless each row has ascending positions up to its own, or, with
        ``counts``, that many up to its own in this layer and the next one."""
        check_dimensions(chosen, 2, "chosen")
        cdef Py_ssize_t most = chosen.shape[1], s, r, i, position, before
        if most < 1 or not fits(self.n_rows, most, MOST_NUMBERS):
            raise ValueError(f"chosen: expected 1 to 2**34 positions, got rows of {most}")
        if chosen.shape[0] != self.n_rows:
            raise ValueError(f"chosen: expected {self.n_rows} rows, got {chosen.shape[0]}")
        cdef const int* found = i32_data(chosen, self.n_rows * most, "chosen")
        for s in range(self.n_sequences):
            for r in range(self.row_start[s], self.row_start[s + 1]):
                position, before = self.position[s] + r - self.row_start[s], -1
                if counts != NULL:
                    if not 1 <= counts[r] <= most:
                        raise ValueError(f"counts: expected 1 to {most} in row {r}, got {counts[r]}")
                    for i in range(counts[r]):
                        if not -1 - position <= found[r * most + i] <= position or (
                                found[r * most + i] < 0 and layer + 1 == self.shape.n_layers):
                            raise ValueError(f"chosen: expected positions up to {position} in row {r}, "
                                             f"got {found[r * most + i]}")
                    continue
                for i in range(min(position + 1, most)):
                    if not before < found[r * most + i] <= position:
                        raise ValueError(f"chosen: expected ascending positions up to {position} in row {r}, "
                                         f"got {found[r * most + i]} after {before}")
                    before = found[r * most + i]
        return found

    cdef Source source_of(self, Py_ssize_t s, Py_ssize_t layer) noexcept nogil:
        """The pages of sequence ``s`` in a layer, for the first key head."""
        cdef Source found
        found.shape, found.table, found.width = &self.shape, self.tables + s * self.width, self.width
        found.layer, found.head, found.kind, found.chosen = layer, 0, self.kind, NULL
        return found

    def choose(self, Py_ssize_t layer, cnp.ndarray q, Py_ssize_t n_heads, cnp.ndarray weights, cnp.ndarray scores,
               cnp.ndarray out, cnp.ndarray scratch, int n_threads, Py_ssize_t block=1, bint whole=False,
               Py_ssize_t local=0):
        """Writes to ``out``, for each row, the positions with the highest scores, up to the row's own position.

        The score of position j is sum_h weights[h] max(0, q_h k_j) (DeepSeek-V3.2, 2025), added in the order of the
        heads. Of equal scores the lower position is chosen; a NaN ranks below all numbers. The pages have one key head.

        With ``block`` above 1 it chooses blocks of so many positions instead, by the scores of the last positions of
        complete blocks. With ``whole`` a block's score is the highest product q k_j of its positions up to the row's,
        for the one head; the row's own block may be incomplete, and the ``local`` last blocks are always chosen.

        Args:
            q: float32 (rows, width), heads (n_heads, key_dim) in its first columns
            weights: float32 (rows, n_heads)
            scores: float32 (m, n), working memory for m rows at a time; n is a multiple of 64 and at least the length
                of the longest sequence
            out: int32 (rows, most); a row at position p gets min(p + 1, most) positions, in ascending order, or as
                many of its (p + 1) // block blocks, of p // block + 1 with ``whole``
            scratch: uint8, ``scratch_bytes(n_threads)``
        """
        cdef Pages* shape = &self.shape
        cdef Py_ssize_t first, n, i, s, r, ld, room, width, most, scored
        cdef bint by_last = block > 1 and not whole
        cdef Py_ssize_t parts = (self.longest + PARTITION - 1) // PARTITION, own = thread_floats(shape)
        cdef uint8_t* memory = u8_out(scratch, self.scratch_bytes(n_threads), "scratch")
        cdef Source source
        cdef float* aligned = <float*>((<uintptr_t>memory + 63) & ~<uintptr_t>63)
        self.check_layer(layer)
        for a, name in ((q, "q"), (weights, "weights"), (scores, "scores"), (out, "out")):
            check_dimensions(a, 2, name)
        if shape.n_heads != 1:
            raise ValueError(f"choose: expected pages of one key head, got {shape.n_heads}")
        ld, room, width, most = q.shape[1], scores.shape[0], scores.shape[1], out.shape[1]
        if n_heads < 1 or not fits(n_heads, shape.key_dim, ld):
            raise ValueError(f"n_heads: expected 1 or more that fit rows of {ld}, got {n_heads}")
        if room < 1 or width < self.longest or width % BLOCK:
            raise ValueError(f"scores: expected rows, of a multiple of {BLOCK} not below {self.longest}, "
                             f"got {(room, width)}")
        if most < 1:
            raise ValueError(f"out: expected one position or more to a row, got {most}")
        if not (1 <= block <= INT32_MAX and 0 <= local <= most) or (whole and n_heads != 1):
            raise ValueError(f"choose: expected blocks of at least 1, up to {most} of them local, and one head for "
                             f"whole blocks, got {block}, {local} and {n_heads}")
        last = np.arange(block - 1, self.longest, block, dtype=np.int32)
        cdef const int* last_positions = i32_data(last, 0, "last")
        cdef const float* qp = f32_rows(q, self.n_rows, ld, "q")
        cdef const float* wp = f32_rows(weights, self.n_rows, n_heads, "weights")
        cdef float* sp = f32_rows_out(scores, room, width, "scores")
        cdef int* chosen = i32_out(out, self.n_rows * most, "out")
        if out.shape[0] != self.n_rows:
            raise ValueError(f"out: expected {self.n_rows} rows, got {out.shape[0]}")
        arrays = (q, weights, scores, out, scratch)
        for i in range(5):
            for n in range(max(i + 1, 2), 5):
                check_apart(arrays[i], arrays[n], "q, weights, scores, out, scratch")
        if self.n_rows * n_heads * self.longest * shape.key_dim < 500000:
            n_threads = 1
        for first in range(0, self.n_rows, room):
            n = min(room, self.n_rows - first)
            for i in prange(n * parts, nogil=True, schedule="dynamic", num_threads=n_threads):
                r = first + i // parts
                s = self.sequence_of(r)
                scored = self.position[s] + r - self.row_start[s] + 1
                if by_last:
                    scored = scored // block
                if scored > (most * block if whole else most) and i % parts * PARTITION < scored:
                    source = self.source_of(s, layer)
                    source.chosen = last_positions if by_last else NULL
                    score_positions(&source, qp + r * ld, n_heads, NULL if whole else wp + r * n_heads,
                                    i % parts * PARTITION, min((i % parts + 1) * PARTITION, scored),
                                    aligned + threadid() * own, sp + i // parts * width)
            for i in prange(n, nogil=True, schedule="dynamic", num_threads=n_threads):
                r = first + i
                s = self.sequence_of(r)
                scored = self.position[s] + r - self.row_start[s] + 1
                if whole and scored > most * block:
                    take_block_maxima(sp + i * width, scored, block, local)
                scored = (scored + block - 1) // block if whole else scored // block
                choose_positions(sp + i * width, scored, most, chosen + r * most)

    cdef Py_ssize_t sequence_of(self, Py_ssize_t row) noexcept nogil:
        """The sequence that contains a row of the batch."""
        cdef Py_ssize_t s = 0
        while self.row_start[s + 1] <= row:
            s = s + 1
        return s

    cdef Py_ssize_t tiles_of(self, const Call* c, Py_ssize_t s) noexcept nogil:
        """Number of tiles of tokens that the rows of a sequence make."""
        return (self.row_start[s + 1] - self.row_start[s] + c.tokens - 1) // c.tokens

    cdef Unit find(self, const Call* c, Py_ssize_t unit) noexcept nogil:
        """Unit number ``unit``, counted by sequences, then tiles, then heads."""
        cdef Py_ssize_t s = 0, n, group = c.n_heads // self.shape.n_heads
        cdef Unit u
        while unit >= self.tiles_of(c, s) * c.units_per_tile:
            unit = unit - self.tiles_of(c, s) * c.units_per_tile
            s = s + 1
        n = unit // c.units_per_tile * c.tokens
        u.source = self.source_of(s, c.layer)
        u.first_row = self.row_start[s] + n
        u.n_tokens = min(c.tokens, self.row_start[s + 1] - u.first_row)
        u.position = self.position[s] + n
        unit = unit % c.units_per_tile
        u.source.head = unit % self.shape.n_heads
        n = unit // self.shape.n_heads * c.heads
        u.first_head = u.source.head * group + n
        u.n_heads = min(c.heads, group - n)
        ensure(s < self.n_sequences and u.n_tokens >= 1 and u.n_heads >= 1 and u.n_tokens * u.n_heads <= MAX_ROWS)
        u.view.causal, u.view.window, u.view.chunk = c.causal, c.window, c.chunk
        u.view.end = self.position[s] + self.row_start[s + 1] - self.row_start[s]
        if c.chosen != NULL:
            u.source.chosen = c.chosen + u.first_row * c.most
            u.view.end = c.counts[u.first_row] if c.counts != NULL else min(u.position + 1, c.most)
            u.position = u.view.end - 1
        u.first_part = first_seen(&u.view, u.position) // PARTITION
        u.end_part = (last_seen(&u.view, u.position + u.n_tokens - 1) + PARTITION - 1) // PARTITION
        return u

    cdef void share_out(self, const Call* c, Py_ssize_t n_units, float* memory, int n_threads) noexcept nogil:
        """Distributes the units over the threads; if there are too few units, distributes single partitions."""
        cdef Py_ssize_t own = thread_floats(&self.shape), state = state_floats(MAX_ROWS, self.shape.value_pad), unit
        cdef float* states = memory + n_threads * own
        if n_threads > 1 and n_units < SHARE * n_threads and self.longest > PARTITION:
            self.share_partitions(c, n_units, memory, n_threads)
            return
        if n_threads == 1:
            for unit in range(n_units):
                self.run_unit(c, n_units - 1 - unit, memory, states)
            return
        for unit in prange(n_units, schedule="dynamic", num_threads=n_threads):
            self.run_unit(c, n_units - 1 - unit, memory + threadid() * own, states + 2 * threadid() * state)

    cdef void share_partitions(self, const Call* c, Py_ssize_t n_units, float* memory, int n_threads) noexcept nogil:
        """Runs partitions as tasks, in waves whose states fit into ``memory``; merges each wave before the next one."""
        cdef Py_ssize_t own = thread_floats(&self.shape), rows = c.tokens * c.heads, n_tasks = 0, first = 0, i, n
        cdef Py_ssize_t state = state_floats(rows, self.shape.value_pad)
        cdef float* totals = memory + n_threads * own
        cdef float* parts = totals + n_units * state
        cdef Py_ssize_t room = 2 * SHARE * n_threads * state_floats(MAX_ROWS, self.shape.value_pad) // state - n_units
        cdef Unit u
        ensure(room >= 1)
        for i in range(n_units):
            u = self.find(c, i)
            n_tasks = n_tasks + u.end_part - u.first_part
        while first < n_tasks:
            n = min(room, n_tasks - first)
            for i in prange(n, schedule="dynamic", num_threads=n_threads):
                self.run_task(c, first + i, memory + threadid() * own, parts + i * state)
            for i in range(n):
                self.merge_task(c, first + i, totals, parts + i * state)
            first = first + n

    cdef Py_ssize_t find_task(self, const Call* c, Py_ssize_t task, Py_ssize_t* unit, Unit* u) noexcept nogil:
        """The partition of task number ``task``; writes the number of its unit to ``unit`` and the unit to ``u``."""
        unit[0] = 0
        u[0] = self.find(c, 0)
        while task >= u.end_part - u.first_part:
            task = task - (u.end_part - u.first_part)
            unit[0] = unit[0] + 1
            u[0] = self.find(c, unit[0])
        return u.first_part + task

    cdef void run_task(self, const Call* c, Py_ssize_t task, float* own, float* part) noexcept nogil:
        cdef Unit u
        cdef Py_ssize_t unit, partition = self.find_task(c, task, &unit, &u)
        cdef Walk w = self.ready(c, &u, own, part, c.tokens * c.heads)
        self.walk(c, &u, &w, partition)

    cdef void merge_task(self, const Call* c, Py_ssize_t task, float* totals, float* part) noexcept nogil:
        cdef Unit u
        cdef Py_ssize_t rows = c.tokens * c.heads, dv = self.shape.value_pad, unit
        cdef Py_ssize_t partition = self.find_task(c, task, &unit, &u)
        cdef State s = state_at(part, rows, dv)
        cdef State total = state_at(totals + unit * state_floats(rows, dv), rows, dv)
        self.merge(&u, partition, &total, &s)
        if partition + 1 == u.end_part:
            self.finish(c, &u, &total)

    cdef void run_unit(self, const Call* c, Py_ssize_t unit, float* own, float* states) noexcept nogil:
        cdef Unit u = self.find(c, unit)
        cdef Py_ssize_t partition
        cdef State total = state_at(states, MAX_ROWS, self.shape.value_pad)
        cdef Walk w = self.ready(c, &u, own, states + state_floats(MAX_ROWS, self.shape.value_pad), MAX_ROWS)
        for partition in range(u.first_part, u.end_part):
            self.walk(c, &u, &w, partition)
            self.merge(&u, partition, &total, &w.state)
        self.finish(c, &u, &total)

    cdef Walk ready(self, const Call* c, const Unit* u, float* own, float* part, Py_ssize_t rows) noexcept nogil:
        """A walk with the unit's scaled queries in tiles, and a state for up to ``rows`` rows."""
        cdef Walk w
        cdef Py_ssize_t dk = self.shape.key_dim, n = u.n_tokens * u.n_heads, t0 = 0, r
        cdef const float* q
        cdef int T, i
        place_walk(&w, self.kind, &self.shape, own)
        w.group = u.n_heads
        w.position, w.view, w.softcap = u.position, u.view, c.softcap
        w.slopes = <const float*>NULL if c.slopes == NULL else c.slopes + u.first_head
        w.reach = c.reach
        w.biases = <const float*>NULL if c.biases == NULL else c.biases + u.first_head * (2 * c.reach + 1)
        w.state = state_at(part, rows, w.value_pad)
        while t0 < n:
            T = rows_in_tile(n - t0)
            for i in range(T):
                r = t0 + i
                q = c.q + (u.first_row + r // u.n_heads) * c.ld + (u.first_head + r % u.n_heads) * dk
                lay_query(&w, self.kind, t0, T, i, q, c.scale)
            t0 = t0 + T
        return w

    cdef void walk(self, const Call* c, const Unit* u, Walk* w, Py_ssize_t partition) noexcept nogil:
        """Carries the unit's rows through the blocks of a partition, from an empty state."""
        cdef Py_ssize_t n = u.n_tokens * u.n_heads
        cdef Py_ssize_t end = min((partition + 1) * PARTITION, last_seen(&u.view, u.position + u.n_tokens - 1))
        w.block = max(partition * PARTITION, first_seen(&u.view, u.position)) & ~<Py_ssize_t>(BLOCK - 1)
        w.next = find_panels(&u.source, w.block, end, w.panels)
        ask_for(&w.next, LANES * self.shape.walk_key_bytes, LANES * self.shape.walk_value_bytes)
        clear_rows(&w.state, n, w.value_pad)
        while w.block < end:
            w.now = w.next
            if w.block + BLOCK < end and not is_gathered(&u.source):
                w.next = find_panels(&u.source, w.block + BLOCK, end, w.panels)
            if self.kind == L_F32:
                block_of_f32(w, n)
            elif self.kind == L_F16:
                block_of_f16(w, n)
            elif self.kind == L_BF16:
                block_of_bf16(w, n)
            elif self.kind == BF16_DOTS:
                block_of_dots(w, n)
            else:
                block_of_c8(w, n)
            w.block = w.block + BLOCK
            if is_gathered(&u.source) and w.block < end:  # the memory holds one gathered block
                w.next = find_panels(&u.source, w.block, end, w.panels)

    cdef void merge(self, const Unit* u, Py_ssize_t partition, const State* total, const State* part) noexcept nogil:
        cdef Py_ssize_t dv = self.shape.value_pad, r, position, first
        for r in range(u.n_tokens * u.n_heads):
            position = u.position + r // u.n_heads
            first = first_seen(&u.view, position) // PARTITION
            if partition == first:
                total.most[r] = part.most[r]
                memcpy(total.sums + LANES * r, part.sums + LANES * r, LANES * sizeof(float))
                memcpy(total.outputs + r * dv, part.outputs + r * dv, dv * sizeof(float))
            elif partition > first and partition * PARTITION < last_seen(&u.view, position):
                merge_row(total, part, r, dv)

    cdef void finish(self, const Call* c, const Unit* u, const State* total) noexcept nogil:
        """Writes the unit's rows of ``out``, (rows, n_heads, value_dim)."""
        cdef Py_ssize_t dv = self.shape.value_dim, r, head
        for r in range(u.n_tokens * u.n_heads):
            head = u.first_head + r % u.n_heads
            finish_row(total, r, self.shape.value_pad, <const float*>NULL if c.sinks == NULL else c.sinks + head)
            memcpy(c.out + ((u.first_row + r // u.n_heads) * c.n_heads + head) * dv,
                   total.outputs + r * self.shape.value_pad, dv * sizeof(float))
