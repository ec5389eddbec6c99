"""The panels of a block of positions: in place in the pages, or gathered into a thread's own memory.

A block is 64 consecutive positions, or 64 entries of a list of chosen positions. Panels of 16 positions are read in
place. Smaller panels, chosen positions and types that the walk cannot read are gathered first, so that the reader of
a panel finds the same numbers in the same lanes.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from oxillama._kernels.attention.decoding cimport decode_panel
from oxillama._kernels.attention.kvpage cimport (
    KV_BLOCK, LANES, Pages, keys_at, kv_block_bytes, pair_step, paired_value, values_at)
from oxillama._kernels.debugging cimport ensure
from oxillama._kernels.packing.formats cimport L_BF16, L_C8, L_F32
from oxillama._kernels.simd.bf16 cimport paired
from oxillama._kernels.simd.simd cimport *

cdef enum:
    BLOCK = 64           # positions per step of the online softmax
    PANELS = 4           # panels of 16 positions in a block


# A block's panels of 16 positions.
cdef struct Panels:
    const uint8_t* keys[PANELS]
    const uint8_t* values[PANELS]


# The pages of a sequence, for one layer and key head.
cdef struct Source:
    const Pages* shape
    uint8_t* const* table
    Py_ssize_t width                # pages in the table
    Py_ssize_t layer, head
    int kind                        # kind of panels that the walk reads: the shape's walk_type, or BF16_DOTS
    const int* chosen               # positions, -1 - j for position j of the next layer; NULL: all positions


cdef inline bint is_decoded(const Pages* c) noexcept nogil:
    """Whether the page has types that the walk reads as float32."""
    return c.walk_type != c.key_type or c.walk_type != c.value_type


cdef inline bint is_gathered(const Source* from_) noexcept nogil:
    return from_.shape.lanes < LANES or from_.chosen != NULL or is_decoded(from_.shape)


cdef inline void ask_for(const Panels* panels, Py_ssize_t key_bytes, Py_ssize_t value_bytes) noexcept nogil:
    """Prefetches the panels of a block, each of ``key_bytes`` and ``value_bytes``."""
    cdef Py_ssize_t i
    cdef int p
    for p in range(PANELS):
        for i in range(0, key_bytes, 64):
            ox_prefetch_far(panels.keys[p] + i)
        for i in range(0, value_bytes, 64):
            ox_prefetch_far(panels.values[p] + i)


cdef inline void take_strips(uint8_t* to, const uint8_t* panel, Py_ssize_t lanes, Py_ssize_t n,
                             Py_ssize_t width) noexcept nogil:
    """Copies an item of ``width`` bytes from each of n strips of ``lanes`` items to n strips of 16 items."""
    cdef Py_ssize_t i
    if width == 4:
        for i in range(n):
            (<uint32_t*>to)[LANES * i] = (<const uint32_t*>panel)[i * lanes]
    elif width == 2:
        for i in range(n):
            (<uint16_t*>to)[LANES * i] = (<const uint16_t*>panel)[i * lanes]
    else:
        for i in range(n):
            to[LANES * i] = panel[i * lanes]


cdef inline void take_paired_value(const Pages* c, const uint8_t* values, Py_ssize_t lane, Py_ssize_t at,
                                   uint8_t* to) noexcept nogil:
    """Copies the value at position ``lane`` of a panel of pairs to position ``at`` of a panel of 16."""
    cdef const uint16_t* x = paired_value(c, <uint8_t*>values, lane)
    cdef uint16_t* y = paired_value(c, to, at)
    cdef Py_ssize_t d, step = pair_step(c)
    for d in range(c.value_pad):
        y[2 * d] = x[step * d]


cdef inline void take(const Pages* c, const uint8_t* keys, const uint8_t* values, Py_ssize_t lane, Py_ssize_t at,
                      uint8_t* to_keys, uint8_t* to_values) noexcept nogil:
    """Copies position ``lane`` of a key and a value panel to position ``at`` of panels of 16."""
    cdef Py_ssize_t _b, n = c.lanes, item = 4 if c.key_type == L_F32 else 2, size = kv_block_bytes(L_C8)
    if is_decoded(c):
        decode_panel(c, keys, values, lane, 1, at, <float*>to_keys, <float*>to_values)
        return
    if c.walk_type == L_BF16:
        take_strips(to_keys + 4 * at, keys + 4 * lane, n, paired(c.key_dim) // 2, 4)
        take_paired_value(c, values, lane, at, to_values)
        return
    if c.key_type != L_C8:
        take_strips(to_keys + at * item, keys + lane * item, n, c.key_dim, item)
        memcpy(to_values + at * c.value_bytes, values + lane * c.value_bytes, c.value_bytes)
        return
    for _b in range(c.key_bytes // size):
        memcpy(to_keys + 2 * at, keys + 2 * lane, 2)
        take_strips(to_keys + 2 * LANES + at, keys + 2 * n + lane, n, KV_BLOCK, 1)
        to_keys, keys = to_keys + size * LANES, keys + size * n
    for _b in range(c.value_bytes // size):
        memcpy(to_values + 2 * at, values + 2 * lane, 2)
        memcpy(to_values + 2 * LANES + KV_BLOCK * at, values + 2 * n + KV_BLOCK * lane, KV_BLOCK)
        to_values, values = to_values + size * LANES, values + size * n


cdef inline void gather_strips(uint8_t* to, const uint8_t* panel, Py_ssize_t lanes, Py_ssize_t first, Py_ssize_t n,
                               Py_ssize_t width) noexcept nogil:
    """Copies n strips of ``lanes`` items of ``width`` bytes to items first .. of strips of 16."""
    cdef Py_ssize_t i
    for i in range(n):
        memcpy(to + (LANES * i + first) * width, panel + i * lanes * width, lanes * width)


cdef inline void gather(const Pages* c, const uint8_t* keys, const uint8_t* values, Py_ssize_t first, uint8_t* to_keys,
                        uint8_t* to_values) noexcept nogil:
    """Copies a panel of keys and one of values to positions first .. of panels of 16."""
    cdef Py_ssize_t b, n = c.lanes, size = kv_block_bytes(L_C8)
    if is_decoded(c):
        decode_panel(c, keys, values, 0, n, first, <float*>to_keys, <float*>to_values)
        return
    if c.walk_type == L_BF16:
        gather_strips(to_keys, keys, n, first, paired(c.key_dim) // 2, 4)
        if n == 1:
            take_paired_value(c, values, 0, first, to_values)
        else:
            gather_strips(to_values, values, n, first, 1, c.value_bytes)
        return
    if c.key_type != L_C8:
        gather_strips(to_keys, keys, n, first, c.key_dim, c.key_bytes // c.key_dim)
        gather_strips(to_values, values, n, first, 1, c.value_bytes)
        return
    for b in range(c.key_bytes // size):
        gather_strips(to_keys + b * size * LANES, keys + b * size * n, n, first, 1, 2)
        gather_strips(to_keys + b * size * LANES + 2 * LANES, keys + (b * size + 2) * n, n, first, KV_BLOCK, 1)
    for b in range(c.value_bytes // size):
        gather_strips(to_values + b * size * LANES, values + b * size * n, n, first, 1, 2)
        gather_strips(to_values + b * size * LANES + 2 * LANES, values + (b * size + 2) * n, n, first, 1, KV_BLOCK)


cdef inline void gather_panel(const Source* from_, Py_ssize_t at, Py_ssize_t end, uint8_t* keys,
                              uint8_t* values) noexcept nogil:
    """Fills panels of 16 with the positions from ``at`` to the end of its panel, or to ``end``."""
    cdef const Pages* shape = from_.shape
    cdef Py_ssize_t slot, position, layer
    cdef uint8_t* page
    while True:
        position, layer = at if from_.chosen == NULL else from_.chosen[at], from_.layer
        if position < 0:
            position, layer = -1 - position, layer + 1
        ensure(0 <= position // shape.page_size < from_.width)
        page = from_.table[position // shape.page_size]
        slot = position & (shape.page_size - 1)
        if from_.chosen != NULL:
            take(shape, keys_at(shape, page, layer, from_.head, slot),
                 values_at(shape, page, layer, from_.head, slot), slot & (shape.lanes - 1), at & (LANES - 1),
                 keys, values)
            at = at + 1
        else:
            gather(shape, keys_at(shape, page, from_.layer, from_.head, slot),
                   values_at(shape, page, from_.layer, from_.head, slot), at & (LANES - 1), keys, values)
            at = at + shape.lanes
        if at & (LANES - 1) == 0 or at >= end:
            return


cdef inline Panels find_panels(const Source* from_, Py_ssize_t at, Py_ssize_t end, uint8_t* memory) noexcept nogil:
    """The panels of the block at ``at``, up to ``end``, in place or gathered to ``memory`` (room for one block)."""
    cdef const Pages* shape = from_.shape
    cdef Panels found
    cdef uint8_t* page
    cdef int p
    for p in range(PANELS):
        if at >= end:  # no row sees this panel, but a tile may still read it
            found.keys[p], found.values[p] = found.keys[0], found.values[0]
        elif is_gathered(from_):
            found.keys[p], found.values[p] = memory, memory + LANES * shape.walk_key_bytes
            gather_panel(from_, at, end, memory, memory + LANES * shape.walk_key_bytes)
            memory = memory + LANES * (shape.walk_key_bytes + shape.walk_value_bytes)
        else:
            ensure(0 <= at // shape.page_size < from_.width)
            page = from_.table[at // shape.page_size]
            found.keys[p] = keys_at(shape, page, from_.layer, from_.head, at & (shape.page_size - 1))
            found.values[p] = values_at(shape, page, from_.layer, from_.head, at & (shape.page_size - 1))
        at = at + LANES
    return found
