"""The tile bodies that multiply in the tile registers of AMX: 16 or 32 tokens."""

from libc.stdint cimport int8_t, int32_t, uint8_t, uint16_t, uintptr_t
from libc.string cimport memcpy, memset

from oxillama._kernels.linear.tiles cimport (
    FAR_AHEAD, Job, ROW_PAD, add_span, ask, block_scale, code_group, code_place, codes_of, excess_of_block,
    minimum_pairs, prefetch, put_panel, scale_pairs, share, unpack_panels)
from oxillama._kernels.packing.formats cimport *
from oxillama._kernels.packing.layouts cimport *
from oxillama._kernels.simd.simd cimport *


cdef inline void split_products(const int layout, const uint8_t* header, const uint8_t* c,
                                uint8_t* out) noexcept nogil:
    """Codes times scales of a block of 256 columns, split in two bytes: (2, 64, 64)."""
    cdef i32x16 pairs, even, odd
    cdef Py_ssize_t b
    cdef int g
    for b in range(8):  # 32 columns
        pairs = scale_pairs(layout, header, b if has_subs_of_16(layout) else b // 2)
        even = i16_pair(pairs, pairs)
        pairs = i32_sar(pairs, 16)
        odd = i16_pair(pairs, pairs)
        if not has_subs_of_16(layout):
            even = odd = odd if b & 1 else even
        for g in range(8):
            amx_split(code_group(layout, c, g), even if g < 4 else odd, code_excess(layout), has_signed_codes(layout),
                      out, out + 4096)
            out = out + 64
        c = c + 64 * code_bits(layout)


cdef inline void amx_super_tile(const int layout, int two, const Job* job) noexcept nogil:
    """Multiplies a panel of a layout with sub-blocks with 16 tokens, or 32 if ``two``, in the registers of AMX.

    The sum of scale * code * activation over a block is an integer, so that the order is free: the products of scales
    and codes come first, once for all tokens. A register sums all 256 columns of each of their two bytes.
    """
    cdef int32_t room[4 * 256 + 16]
    cdef int32_t* sums = <int32_t*>((<uintptr_t>room + 63) & ~<uintptr_t>63)
    cdef const uint8_t* panel = job.data + job.first * job.stride
    cdef const uint8_t* header
    cdef const uint8_t* w = job.products
    cdef const int8_t* x = job.tile.codes
    cdef const int32_t* totals = job.tile.sums16 if has_subs_of_16(layout) else job.tile.sums32
    cdef int n_pairs = 8 if has_subs_of_16(layout) else 4
    cdef Py_ssize_t n_blocks = job.cols // 256, b, at
    cdef i32x16 minima[8]
    cdef i32x16 total
    cdef f32x16 acc[32]
    cdef f32x16 d, m, da
    cdef int t, i, k
    if job.cold:
        for b in range(n_blocks):
            header = panel + header_at(layout, b)
            prefetch(header, header_bytes(layout))
            for i in range(8):
                prefetch(panel + codes_at(layout, b) + 64 * code_bits(layout) * i, 64 * code_bits(layout))
            split_products(layout, header, panel + codes_at(layout, b), job.products + 8192 * b)
    for t in range(32):
        acc[t] = f32_zero()
    for b in range(n_blocks):
        header = panel + header_at(layout, b)
        amx_begin(two)
        for k in range(0, 4096, 1024):
            amx_add_ss(two, x + k, x + 16 * job.cols + k, 64, w + k, w + 4096 + k)
        amx_end(two, sums)
        d = block_scale(layout, header)
        if has_minima(layout):
            m = f32_sub(f32_zero(), f32_load_f16(<const uint16_t*>header + 16))
            for i in range(n_pairs):
                minima[i] = minimum_pairs(layout, header, i)
        for t in range(32 if two else 16):
            at = (t >> 4) * n_blocks + b  # the place of the block in the token's tile of 16
            da = f32_set1(job.tile.scale[at * 16 + (t & 15)])
            k = 512 * (t >> 4) + 16 * (t & 15)
            total = i32_add(i32_shl(i32_load(sums + k), 7), i32_load(sums + k + 256))
            acc[t] = f32_fma(f32_from_i32(total), f32_mul(d, da), acc[t])
            if has_minima(layout):
                total = i32_zero()
                for i in range(n_pairs):
                    total = i16_dot(total, minima[i], i32_set1(totals[(at * n_pairs + i) * 16 + (t & 15)]))
                acc[t] = f32_fma(f32_from_i32(total), f32_mul(m, da), acc[t])
        x = x + 4096
        w = w + 8192
    for t in range(32 if two else 16):
        put_panel(job, 1, job.first, t, acc + t)


cdef inline void amx_block_tile(const int layout, int two, const Job* job) noexcept nogil:
    """Multiplies one or two panels of a layout with blocks of 32 columns with 16 tokens, or 32 if ``two``, in the
    registers of AMX. Codes and activations are signed bytes there."""
    cdef int32_t room[4 * 256 + 16]
    cdef int32_t* sums = <int32_t*>((<uintptr_t>room + 63) & ~<uintptr_t>63)
    cdef bint unpacked = code_bits(layout) < 8
    cdef Py_ssize_t n_blocks = job.cols // 32, n_panels = job.last - job.first, at, b, q
    cdef const int8_t* x = job.tile.codes
    cdef const uint8_t* w = codes_of(unpacked, job, job.first)
    cdef const uint8_t* w2 = codes_of(unpacked, job, job.last - 1)
    cdef const uint8_t* header
    cdef f32x16 acc[2 * 32]
    cdef f32x16 d, m, da
    cdef i32x16 part, nsum
    cdef int t
    if job.cold and unpacked:
        unpack_panels(layout, False, job)
    for t in range(2 * 32):
        acc[t] = f32_zero()
    for b in range(n_blocks):
        amx_begin(two)
        at = code_place(layout, unpacked, b)
        amx_add_ss(two, x, x + 16 * job.cols, 32, w + at, w2 + at)
        amx_end(two, sums)
        for q in range(n_panels):
            header = job.data + (job.first + q) * job.stride + header_at(layout, b)
            if job.cold and not unpacked:
                prefetch(header, header_bytes(layout) + 512)
            d = block_scale(layout, header)
            if has_minima(layout):
                m = f32_sub(f32_zero(), f32_load_f16(<const uint16_t*>header + 16))
            for t in range(32 if two else 16):
                at = ((t >> 4) * n_blocks + b) * 16 + (t & 15)  # the block in the token's tile of 16
                part = i32_load(sums + 512 * (t >> 4) + 256 * q + 16 * (t & 15))
                nsum = i32_set1(job.tile.nsum[at])
                da = f32_set1(job.tile.scale[at])
                if not has_signed_codes(layout):
                    part = i32_add(part, excess_of_block(layout, nsum))
                acc[32 * q + t] = f32_fma(f32_from_i32(part), f32_mul(d, da), acc[32 * q + t])
                if has_minima(layout):
                    acc[32 * q + t] = f32_fma(f32_from_i32(nsum), f32_mul(m, da), acc[32 * q + t])
        x = x + 512
    for q in range(n_panels):
        for t in range(32 if two else 16):
            put_panel(job, 1, job.first + q, t, acc + 32 * q + t)


cdef inline void amx_row_tiles(const int layout, const int two, const Job* job) noexcept nogil:
    """Multiplies panels of rows, two at a time, with 16 tokens, or with 32 if ``two``, in the registers of AMX."""
    cdef int32_t room[4 * 256 + 16]
    cdef int32_t* sums = <int32_t*>((<uintptr_t>room + 63) & ~<uintptr_t>63)
    cdef uint8_t rest[2 * 1024]  # the last 32 columns of two panels, and zeros
    cdef Py_ssize_t ld = job.cols + ROW_PAD, spans = n_spans(layout, job.cols), apart, p, s, n, k
    cdef const uint8_t* panel
    cdef const uint8_t* next
    cdef const int8_t* x
    cdef f32x16 acc[2 * 32]
    cdef f32x16 scale
    cdef i32x16 excess, part
    cdef int q, t
    for p in range(job.first, job.last, 2):
        panel = job.data + p * job.stride
        apart = job.stride if p + 1 < job.last else 0  # from a panel to the other one
        next = share(job, p)
        x = job.tile.codes
        for t in range(2 * 32):
            acc[t] = f32_zero()
        for s in range(spans):
            n = min(<Py_ssize_t>span_of(layout), job.cols - s * span_of(layout))
            amx_begin(two)
            if job.cold and layout != L_R8:
                prefetch(panel + FAR_AHEAD - OX_AHEAD, ROW_HEADER)
                prefetch(panel + apart + FAR_AHEAD - OX_AHEAD, ROW_HEADER)
            panel = panel + ROW_HEADER
            for k in range(n // 64):
                if job.cold:
                    prefetch(panel + 1024 * k + FAR_AHEAD - OX_AHEAD, 1024)
                    prefetch(panel + apart + 1024 * k + FAR_AHEAD - OX_AHEAD, 1024)
                next = ask(next, 4 * job.step)
                amx_add_us(two, x, x + 16 * ld, ld, panel + 1024 * k, panel + apart + 1024 * k)
                x = x + 64
            panel = panel + 16 * n
            if n % 64:
                memset(rest, 0, sizeof(rest))
                memcpy(rest, panel - 512, 512)
                memcpy(rest + 1024, panel + apart - 512, 512)
                amx_add_us(two, x, x + 16 * ld, ld, rest, rest + 1024)
            amx_end(two, sums)
            for q in range(2):
                scale = f32_load(<const float*>(panel + q * apart - 16 * n - ROW_HEADER))
                excess = i32_shl(i32_load(panel + q * apart - 16 * n - 64), OX_A8_SHIFT)
                for t in range(job.done, 32 if two else 16):
                    part = i32_sub(i32_load(sums + 512 * (t >> 4) + 256 * q + 16 * (t & 15)), excess)
                    acc[32 * q + t] = add_span(layout, acc[32 * q + t], part,
                                               f32_mul(scale, f32_set1(job.tile.scale[t * spans + s])))
        for q in range(min(<Py_ssize_t>2, job.last - p)):
            for t in range(job.done, 32 if two else 16):
                put_panel(job, 1, p + q, t, acc + 32 * q + t)
